"""The embedded world: cooking procedures from a small grammar, and exact inference on it.

Every command uses this world by default: the method runs, and is measured against a known truth,
without any data. What comes next depends on which steps were done, and in which order. S = 40
steps, each "verb object".
"""
from collections import defaultdict

import numpy as np

from data import Step, Video

VERSION = 2                                        # of grammar.py, render.py and teacher.py
KEPT = .9                                          # see `pairs`


# --- The grammar: a part is a step, or what these functions return, [(probability, steps), ...] ---
def block(*parts):
    """All parts, in this order."""
    sequences = [(1.0, ())]
    for part in parts:
        options = [(1.0, (part,))] if isinstance(part, str) else part
        sequences = [(p * q, s + t) for p, s in sequences for q, t in options]
    return sequences


def either(first, second, p=.6):
    """The first part with probability p, else the second."""
    return [(p * q, s) for q, s in block(first)] + [((1 - p) * q, s) for q, s in block(second)]


def maybe(part, p=.3):
    """The part with probability p, else nothing."""
    return either(part, block(), p)


def pairs(*chain, ends, p=.5):
    """Pairs (a, .., b), each as given or as (b, .., a), and then one of two ends.

    The first pair is as given with probability p. Each later pair keeps the direction of the pair
    before it with probability KEPT. After a pair as given, so does the first end; else the second.
    """
    if not chain:
        return either(*ends, p)
    (a, *between, b), *rest = chain
    return either(block(a, *between, b, pairs(*rest, ends=ends, p=KEPT)),
                  block(b, *between, a, pairs(*rest, ends=ends, p=1 - KEPT)), p)


PROCEDURES = {
    "omelette": block(
        maybe("wash pan"),
        pairs(("crack egg", either("melt butter", "pour oil")),
              ("grate cheese", either("cut onion", "cut tomato")),
              ("pour egg", maybe("add salt"), either("add cheese", "add onion")),
              ends=(either("fold egg", "flip egg"), either("stir egg", "add salt")))),
    "fried potatoes": pairs(
        ("wash potato", either("pour oil", "melt butter")),
        (either("peel potato", "cut potato"), maybe("add salt"), either("peel onion", "cut onion")),
        ("fry onion", either("fry potato", "add cheese")),
        ends=(either("stir potato", "add salt"), either("add cheese", "add onion"))),
    "pizza": pairs(
        ("stir dough", either("open jar", "pour oil")),
        ("fold dough", maybe("add salt"), either("cut tomato", "grate cheese")),
        (either("add tomato", "spread tomato"), "add cheese"),
        ends=("bake dough", either("add salt", "close jar"))),
    "sandwich": pairs(
        ("wash tomato", either("cut bread", "bake bread")),
        ("cut tomato", either("spread butter", "melt butter")),
        ("add tomato", maybe("add salt"), either("add cheese", "cut cheese")),
        ends=(either("flip bread", "fry egg"), "add salt")),
    "soup": block(
        pairs((either("wash tomato", "cut tomato"), either("peel onion", "cut onion")),
              (either("pour oil", "melt butter"), maybe("add salt"),
               either("pour milk", "open jar")),
              ("fry onion", "add tomato"), ends=("stir soup", "add salt")),
        either("pour soup", "cut bread")),
    "pancakes": block(
        maybe("wash pan"),
        pairs(("crack egg", either("pour milk", "open jar")),
              ("stir dough", maybe("add salt"), either("melt butter", "pour oil")),
              ("pour dough", either("flip dough", "add salt")),
              ends=("spread butter", either("fold dough", "close jar")))),
}

STEPS = tuple(sorted({step for options in PROCEDURES.values() for _, s in options for step in s}))
STEP_ID = {step: i for i, step in enumerate(STEPS)}

# Never in a caption of the teacher or in the phrase pool, though each of their words is in other
# phrases ("fry egg": "fry onion", "crack egg"). Their clips do occur in the training videos.
HELD_OUT = ("add onion", "bake bread", "cut cheese", "cut potato", "fry egg")
# Same object, same tool: only the motion tells these apart.
MOTION_ONLY = (("open jar", "close jar"), ("flip egg", "fold egg"))
# Phrases that are not steps: the pool of pre-training phrases is not the label set.
OTHER_PHRASES = ("add butter", "add egg", "add milk", "bake cheese", "bake potato", "cut butter",
                 "cut egg", "flip potato", "fold bread", "fry bread", "fry cheese", "grate potato",
                 "melt cheese", "open milk", "peel egg", "peel tomato", "pour salt",
                 "spread cheese", "spread oil", "stir milk", "stir oil", "wash bread", "wash egg",
                 "wash jar", "wash onion")
PHRASES = tuple(sorted(set(STEPS) - set(HELD_OUT) | set(OTHER_PHRASES)))     # the pool, y^{1:K}

# Timeline of a video, seconds; each drawn uniformly and independently of everything else.
INTRO_SECONDS, STEP_SECONDS, GAP_SECONDS, OUTRO_SECONDS = (6, 14), (9, 14), (4, 8), (3, 6)
GAP_SHARE = 0.12                                   # of the steps that a background gap follows
SPLIT_SEEDS = {"train": 0, "validation": 1_000_000, "test": 2_000_000}   # first seed of each split


def make_video(split, index):
    """Draw video `index` of a split: which step happens when. Its activity is its procedure."""
    rng = np.random.default_rng((SPLIT_SEEDS[split] + index, 0))
    activity = int(rng.integers(len(PROCEDURES)))
    options = list(PROCEDURES.values())[activity]
    _, names = options[rng.choice(len(options), p=[p for p, _ in options])]
    time, steps = rng.uniform(*INTRO_SECONDS), []
    for name in names:
        start, time = time, time + rng.uniform(*STEP_SECONDS)
        steps.append(Step(round(start, 2), round(time, 2), STEP_ID[name]))
        if rng.random() < GAP_SHARE:
            time += rng.uniform(*GAP_SECONDS)
    duration = round(time + rng.uniform(*OUTRO_SECONDS), 2)
    return Video(f"{split}_{index:05d}", split, activity, duration, tuple(steps))


def seed_of(video):
    """The seed of what is drawn of a video: its split's first one, plus the number in its name."""
    return SPLIT_SEEDS[video.split] + int(video.name.removeprefix(f"{video.split}_"))


# What a forecast may know of the observed steps (from_start: whether from the video's first one).
KNOWN = {"sequence": lambda steps, from_start: (steps, from_start),
         "set": lambda steps, from_start: (frozenset(steps), from_start),
         "set_last": lambda steps, from_start: (frozenset(steps), steps[-1:], from_start),
         "last_two": lambda steps, from_start: (steps[-2:], from_start),
         "last": lambda steps, from_start: steps[-1:]}


class Grammar:
    """The exact distribution of the next step, over all sequences of all procedures."""

    def __init__(self, known="sequence"):
        self.known = KNOWN[known]
        # {what is known: (S,)}: how probable it is that each step comes next
        self.following = defaultdict(lambda: np.zeros(len(STEPS)))
        for p, names in sum(PROCEDURES.values(), []):              # procedures are equally likely
            steps = tuple(STEP_ID[name] for name in names)
            for last in range(len(steps)):         # a history of this video may begin anywhere
                for key in {self.known(steps[i:last], i == 0) for i in range(last + 1)}:
                    self.following[key][steps[last]] += p

    def next_step(self, observed, from_start):
        """P(next step | what is known of the observed step ids; the video goes on): (S,), or zeros.
        from_start: whether the first of them is the first of the video."""
        mass = self.following.get(self.known(tuple(observed), from_start), np.zeros(len(STEPS)))
        return mass / (mass.sum() or 1.0)

    def chance(self, observed, from_start, future):
        """P(these steps follow in this order), each given that the video goes on; 0 with a -1."""
        p, observed = 1.0, list(observed)
        for step in future:
            p *= float(self.next_step(observed, from_start)[step]) if step >= 0 else 0.0
            observed.append(step)
        return p
