"""What a model.Config may hold, since a file can say anything."""
from itertools import pairwise

from model import ORDERS
from support.errors import InputError

LARGEST = 2 ** 14         # of the numbers among the arguments of f and h, of either sign
TINY, EXTREME = 1e-6, 1e6    # of other numbers; TINY is the least of those that must be above 0


def are_numbers(values, low=TINY, high=EXTREME):
    """Whether `values` is a list or a tuple of numbers, and no bools, from `low` to `high`. NaN is
    no such number."""
    if not isinstance(values, (list, tuple)):
        return False
    for value in values:
        is_kind = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_kind or not low <= value <= high:
            return False
    return True


def are_arguments(sizes):
    """Whether `sizes` can be arguments of f or h: {name: value, or list of values}. A value is a
    bool, a text, None, or a number."""
    if not isinstance(sizes, dict) or not all(isinstance(name, str) for name in sizes):
        return False
    for value in sizes.values():
        items = value if isinstance(value, (list, tuple)) else [value]
        for item in items:
            is_plain = item is None or isinstance(item, (bool, str))
            if not is_plain and not are_numbers([item], -LARGEST, LARGEST):
                return False
    return True


def check_config(config):
    """InputError, with the name of a field, if its value in a model.Config is of another type or
    out of bounds. Nothing is allocated."""
    def need(name, good, what):
        if not good:
            value = str(getattr(config, name))[:80]
            raise InputError(f"config: {name} is {value}; {what} needed")

    sizes = f"a dict of plain values, no number above {LARGEST}, is"
    need("encoder", are_arguments(config.encoder) and "kind" in config.encoder, sizes)
    need("denoiser", config.denoiser is None or are_arguments(config.denoiser), sizes)
    need("order", config.order in ORDERS, f"one of {', '.join(ORDERS)} is")
    number = f"a number from {TINY:g} to {EXTREME:g} is"
    need("tau", are_numbers([config.tau]), number)
    need("scale", are_numbers([config.scale]), number)
    need("spacing", config.spacing is None or are_numbers([config.spacing]), number)

    levels = config.alpha_bar
    falls = are_numbers(levels, 0, 1) and len(levels) > 0 and levels[0] < 1 and levels[-1] > 0
    falls = falls and all(now > then for now, then in pairwise(levels))
    need("alpha_bar", falls, "numbers that fall, between 0 and 1, are")
    pixels = config.pixels
    is_pair = are_numbers(pixels, -EXTREME, EXTREME) and len(pixels) == 2 and pixels[1] >= TINY
    need("pixels", is_pair, "a mean, and a deviation above 0, are")

    is_whole = isinstance(config.stride, int) and are_numbers([config.stride])
    need("stride", is_whole, "a whole number above 0 is")
    need("history", config.history in (None, "spaced", "paper"), "spaced or paper is")
    share = config.hold_out
    is_share = are_numbers([share], 0, 1) and 0 < share < 1
    need("hold_out", share is None or is_share, "a share below 1 is")

    classes = config.classes
    are_counts = are_numbers(classes) and all(isinstance(count, int) for count in classes)
    need("classes", are_counts, "a list of whole numbers above 0 is")
    names = [] if config.names is None else config.names
    are_texts = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
    need("names", are_texts, "a list of texts is")
    need("text_space", isinstance(config.text_space, bool), "true or false is")
    temperature = config.logit_tau
    need("logit_tau", temperature is None or are_numbers([temperature]), number)
    for name in "task", "clip", "clip_weights", "first_phrase":
        need(name, isinstance(getattr(config, name), (str, type(None))), "a text is")
    need("classes", classes or config.task is None, "a number for each label set is")
