"""What a model.Config may hold, since a file can say anything."""
from itertools import pairwise

from model import ORDERS
from support.errors import InputError

LARGEST = 2 ** 14         # of the numbers among the arguments of f and h, of either sign
EXTREME = 1e6                # of other numbers; those that must be above 0 are at least 1 / EXTREME


def is_number(value, low=1 / EXTREME, high=EXTREME):
    """Whether a value is a number, and no bool, from `low` to `high`. NaN is not."""
    is_kind = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_kind and low <= value <= high


def is_list(values, is_good):
    """Whether `values` is a list or a tuple, and is_good(item) of each of its items."""
    return isinstance(values, (list, tuple)) and all(map(is_good, values))


def is_count(value):
    """Whether a value is a whole number above 0."""
    return isinstance(value, int) and is_number(value)


def is_share(value):
    """Whether a value is a number between 0 and 1, both excluded."""
    return is_number(value, 0, 1) and 0 < value < 1


def is_plain(value):
    """Whether a value can be an argument of f or h, or an item of one that is a list."""
    return value is None or isinstance(value, (bool, str)) or is_number(value, -LARGEST, LARGEST)


def are_arguments(sizes):
    """Whether `sizes` can be arguments of f or h: {name: value, or list of values}."""
    if not isinstance(sizes, dict):
        return False
    for name, value in sizes.items():
        if not isinstance(name, str) or not (is_plain(value) or is_list(value, is_plain)):
            return False
    return True


def are_levels(levels):
    """Whether `levels` can be alpha_bar: at least one share, each below the one before."""
    if not is_list(levels, is_share) or not levels:
        return False
    return all(now > then for now, then in pairwise(levels))


def are_pixels(pair):
    """Whether a pair can be (mean, std) of pixels."""
    if not isinstance(pair, (list, tuple)) or len(pair) != 2:
        return False
    return is_number(pair[0], -EXTREME, EXTREME) and is_number(pair[1])


def check_config(config):
    """InputError, with the name of a field, if its value in a model.Config is of another type or
    out of bounds. Nothing is allocated."""
    def need(name, good, what):
        if not good:
            value = str(getattr(config, name))[:80]
            raise InputError(f"config: {name} is {value}; {what} needed")

    def is_text(value):
        return isinstance(value, str)

    sizes = f"a dict of plain values, no number above {LARGEST}, is"
    need("encoder", are_arguments(config.encoder) and "kind" in config.encoder, sizes)
    need("denoiser", config.denoiser is None or are_arguments(config.denoiser), sizes)
    need("order", config.order in ORDERS, f"one of {', '.join(ORDERS)} is")
    number = f"a number from {1 / EXTREME:g} to {EXTREME:g} is"
    need("tau", is_number(config.tau), number)
    need("scale", is_number(config.scale), number)
    need("alpha_bar", are_levels(config.alpha_bar), "numbers that fall, between 0 and 1, are")
    need("pixels", are_pixels(config.pixels), "a mean, and a deviation above 0, are")
    need("spacing", config.spacing is None or is_number(config.spacing), number)
    need("stride", is_count(config.stride), "a whole number above 0 is")
    need("history", config.history in (None, "spaced", "paper"), "spaced or paper is")
    need("hold_out", config.hold_out is None or is_share(config.hold_out), "a share below 1 is")
    need("classes", is_list(config.classes, is_count), "a list of whole numbers above 0 is")
    need("logit_tau", config.logit_tau is None or is_number(config.logit_tau), number)
    need("names", config.names is None or is_list(config.names, is_text), "a list of texts is")
    for name in "task", "clip", "clip_weights", "first_phrase":
        value = getattr(config, name)
        need(name, value is None or is_text(value), "a text is")
    need("classes", config.classes or config.task is None, "a number for each label set is")
