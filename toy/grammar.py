"""The toy world: cooking procedures from a small grammar, and exact inference on it.

Every command uses the toy world by default. So the method runs without any data, and is measured
against a known truth. What comes next depends on which steps were done, and in which order. There
are S = 40 steps, each named "verb object".
"""
import zlib
from itertools import product

import numpy as np

from data import Step, Video

VERSION = 5                        # of grammar.py, render.py, sprites.toml and teacher.py

# --- The grammar: a part is a step, or what these functions return, [(probability, steps), ...] ---
def block(*parts):
    """All parts, in this order."""
    sequences = [(1.0, ())]
    for part in parts:
        options = part
        if isinstance(part, str):
            options = [(1.0, (part,))]
        longer = []
        for p, before in sequences:
            for q, after in options:
                longer.append((p * q, before + after))
        sequences = longer
    return sequences


def one_of(parts):
    """One of the parts, with equal chances."""
    options = []
    for part in parts:
        for p, steps in block(part):
            options.append((p / len(parts), steps))
    return options


def orders_of(pair):
    """Both orders of a pair (a, b, end, other end), and the end that follows each."""
    a, b, end, other = pair
    return (a, b, end), (b, a, other)


def procedure(begin, first, second, between):
    """Two interleaved pairs of steps, and then the ends that their orders decide.

    A pair is (a, b, end, other end). Either order of a and b has probability 1/2. `end` follows if
    a was done before b, else `other end`. So the end tells the order, and nothing later depends on
    the order again. With pairs (a, b, ..) and (c, d, ..), a video shows: begin, a, c, b, d, end of
    the first pair, between, end of the second. It shows one step of `begin` and one of `between`.
    The steps of a pair are 9 s apart, so no clip shows both.
    """
    sequences = []
    for a, b, end in orders_of(first):
        for c, d, last in orders_of(second):
            options = block(one_of(begin), a, c, b, d, end, one_of(between), last)
            sequences += [(p / 4, steps) for p, steps in options]
    return sequences


# Look-alikes: the teacher cannot tell the first two of these apart (render.py). Their order decides
# the end, so they are at stake in 10 of 42 forecasts: once in two procedures, twice in four.
JAR = ("open jar", "close jar", "spread tomato", "pour oil")
PAN = ("heat pan", "cool pan", "melt butter", "flip egg")
OVEN = ("start oven", "stop oven", "fold egg", "add tomato")
LOOK_ALIKES = (JAR[:2], PAN[:2], OVEN[:2])
EGG = ("crack egg", "pour milk", "bake dough", "fold dough")
POTATO = ("wash potato", one_of(("peel potato", "cut potato")), "fry potato", "stir potato")

PROCEDURES = {}            # {name: its sequences}; all are equally likely
PROCEDURES["omelette"] = procedure(
    ("wash pan", "wash tomato"), PAN, OVEN, ("add salt", "cut bread", "fry egg", "cut cheese"))
PROCEDURES["fried potatoes"] = procedure(
    ("wash pan", "cut tomato"), JAR, PAN, ("add salt", "peel onion", "fry onion", "add cheese"))
PROCEDURES["pizza"] = procedure(
    ("stir dough", "cut tomato"), OVEN, JAR,
    ("grate cheese", "add onion", "add cheese", "cut onion"))
PROCEDURES["sandwich"] = procedure(
    ("wash tomato", "bake bread"), PAN, OVEN,
    ("spread butter", "cut cheese", "flip bread", "fry egg"))
PROCEDURES["soup"] = procedure(
    ("wash pan", "wash tomato"), JAR, POTATO, ("stir soup", "pour soup", "add onion", "cut bread"))
PROCEDURES["pancakes"] = procedure(
    ("stir dough", "bake bread"), OVEN, EGG,
    ("spread butter", "grate cheese", "flip bread", "add salt"))
SEQUENCES = sum(PROCEDURES.values(), [])           # of all procedures


def steps_in(sequences):
    """The names of the steps that occur in sequences, by name."""
    names = set()
    for _, steps in sequences:
        names.update(steps)
    return tuple(sorted(names))


STEPS = steps_in(SEQUENCES)
STEP_ID = {step: i for i, step in enumerate(STEPS)}
# (S,): each step's id; both look-alikes of a pair have the id of the first.
AS_ONE = np.arange(len(STEPS))
for a, b in LOOK_ALIKES:
    AS_ONE[STEP_ID[b]] = STEP_ID[a]

# Never in a caption of the teacher or in the phrase pool, though each of their words is in other
# phrases ("fry egg": "fry onion", "crack egg"). Their clips do occur in the training videos.
HELD_OUT = ("add onion", "bake bread", "cut cheese", "cut potato", "fry egg")
# Phrases that are not steps: the pool of pre-training phrases is not the label set.
OTHER_PHRASES = ("add butter", "add egg", "add milk", "bake cheese", "bake potato", "cut butter",
                 "cut egg", "flip potato", "fold bread", "fry bread", "fry cheese", "grate potato",
                 "melt cheese", "open milk", "peel egg", "peel tomato", "pour salt",
                 "spread cheese", "spread oil", "stir milk", "stir oil", "wash bread", "wash egg",
                 "wash jar", "wash onion")
PHRASES = tuple(sorted(set(STEPS) - set(HELD_OUT) | set(OTHER_PHRASES)))     # the pool, y^{1:K}

# Timeline of a video, seconds; each drawn uniformly and independently of everything else.
INTRO_SECONDS, STEP_SECONDS, GAP_SECONDS, OUTRO_SECONDS = (6, 14), (9, 14), (4, 8), (6, 10)
GAP_SHARE = 0.12                                   # share of the steps before a background gap
SPLIT_SEEDS = {"train": 0, "validation": 1_000_000, "test": 2_000_000}   # first seed of each split


def is_new(names):
    """Whether a sequence of steps is in the eighth of sequences that no training video has. The
    first step does not count, since forecasts of the last steps seldom see it."""
    return zlib.crc32(" ".join(names[1:]).encode()) % 8 == 0


def make_video(split, index):
    """Draw video `index` of a split: which step happens when. Its activity is its procedure."""
    rng = np.random.default_rng((SPLIT_SEEDS[split] + index, 0))
    activity = int(rng.integers(len(PROCEDURES)))
    options = list(PROCEDURES.values())[activity]
    chances = [p for p, _ in options]
    while True:
        _, names = options[rng.choice(len(options), p=chances)]
        if split != "train" or not is_new(names):
            break
    time, steps = rng.uniform(*INTRO_SECONDS), []
    for name in names:
        end = time + rng.uniform(*STEP_SECONDS)
        steps.append(Step(round(time, 2), round(end, 2), STEP_ID[name]))
        time = end
        if rng.random() < GAP_SHARE:
            time += rng.uniform(*GAP_SECONDS)
    duration = round(time + rng.uniform(*OUTRO_SECONDS), 2)
    return Video(f"{split}_{index:05d}", split, activity, duration, tuple(steps))


def number_of(video):
    """The number in a video's name."""
    return int(video.name.removeprefix(f"{video.split}_"))


def seed_of(video):
    """The seed of a video's draws: the first seed of its split, plus its number."""
    return SPLIT_SEEDS[video.split] + number_of(video)


class Grammar:
    """The exact distribution of the next step, over all sequences of all procedures. known: what
    is known of the observed steps, their "sequence" or "set". With `training`, only sequences of
    training videos count. What then has p = 0 is in no training video."""

    def __init__(self, known="sequence", training=False):
        self.known = {"sequence": tuple, "set": frozenset}[known]
        # {(what is known, from_start): (S,)}: how probable it is that each step comes next
        self.following = {}
        for p, names in SEQUENCES:
            if training and is_new(names):
                continue
            steps = tuple(STEP_ID[name] for name in names)
            for last in range(len(steps)):         # a history of this video may begin anywhere
                for key in {(self.known(steps[i:last]), i == 0) for i in range(last + 1)}:
                    if key not in self.following:
                        self.following[key] = np.zeros(len(STEPS))
                    self.following[key][steps[last]] += p

    def next_step(self, observed, from_start):
        """P(next step | what is known of the observed step ids; the video goes on): (S,), or zeros.
        from_start: whether the first observed step is the first of the video."""
        mass = self.following.get((self.known(observed), from_start), np.zeros(len(STEPS)))
        return mass / (mass.sum() or 1.0)

    def chance(self, observed, from_start, future):
        """P(these steps follow in this order), each if the video goes on; 0 if one is -1."""
        p, before = 1.0, list(observed)
        for step in future:
            if step < 0:
                return 0.0
            p *= float(self.next_step(before, from_start)[step])
            before.append(step)
        return p

    def share(self, observed, from_start, meant):
        """P(a future follows), if look-alikes count as one. meant: the ids that each of its steps
        may be."""
        total = 0.0
        for ids in product(*meant):
            total += self.chance(observed, from_start, ids)
        return total
