"""The embedded world: cooking procedures from a small grammar, and exact inference on it.

Every command uses this world by default: the method runs, and is measured against a known truth,
without any data. Only the observed steps and their order tell what comes next. S = 40 steps, each
"verb object".
"""
from collections import defaultdict
from itertools import permutations

import numpy as np

from data import Step, Video


# --- The grammar: a part is a step, or what these functions return, [(probability, steps), ...] ---
def block(*parts):
    """All parts, in this order."""
    sequences = [(1.0, ())]
    for part in parts:
        options = [(1.0, (part,))] if isinstance(part, str) else part
        sequences = [(p * q, s + t) for p, s in sequences for q, t in options]
    return sequences


def maybe(p, part):
    """The part with probability p, else nothing."""
    return either((1 - p, block()), (p, part))


def either(*weighted):
    """One of several: either((p, part), ...), the p summing to 1."""
    return [(p * q, s) for p, part in weighted for q, s in block(part)]


def any_order(*parts):
    """All parts; the order given with probability 0.5, the other orders share the rest evenly."""
    orders = list(permutations(parts))
    shares = [0.5] + [0.5 / (len(orders) - 1)] * (len(orders) - 1)
    return [(w * p, s) for w, order in zip(shares, orders) for p, s in block(*order)]


PROCEDURES = {
    "omelette": block(
        maybe(.4, "wash pan"),
        any_order("crack egg", either((.5, "grate cheese"), (.5, "cut onion")),
                  either((.6, "melt butter"), (.4, "pour oil"))),
        either((.6, "stir egg"), (.4, "add salt")), "pour egg",
        either((.5, "add cheese"), (.3, "flip egg"), (.2, "add onion")), maybe(.4, "fold egg")),
    "fried potatoes": block(
        "wash potato",
        any_order(either((.6, "peel potato"), (.4, "cut potato")),
                  either((.6, "pour oil"), (.4, "melt butter")),
                  either((.5, "peel onion"), (.5, "cut onion"))),
        either((.6, "fry potato"), (.4, "fry onion")), maybe(.5, "stir potato"),
        either((.5, "add salt"), (.3, "add cheese"), (.2, "add onion"))),
    "pizza": block(
        either((.6, "stir dough"), (.4, "pour oil")),
        any_order(either((.6, "open jar"), (.4, "spread tomato")), "fold dough",
                  either((.6, "grate cheese"), (.4, "cut tomato"))),
        maybe(.35, "close jar"), either((.5, "add cheese"), (.3, "add tomato"), (.2, "add onion")),
        maybe(.4, "add salt"), "bake dough"),
    "sandwich": block(
        maybe(.3, "wash tomato"), either((.55, "cut bread"), (.45, "bake bread")),
        any_order("cut tomato", either((.6, "spread butter"), (.4, "melt butter")),
                  either((.6, "cut cheese"), (.4, "fry egg"))),
        either((.6, "add tomato"), (.4, "add cheese")), maybe(.4, "add salt"),
        maybe(.5, "flip bread")),
    "soup": block(
        any_order(either((.6, "wash tomato"), (.4, "cut tomato")),
                  either((.5, "peel onion"), (.5, "cut onion")),
                  either((.6, "pour oil"), (.4, "melt butter"))),
        either((.6, "fry onion"), (.4, "add tomato")),
        either((.5, "pour milk"), (.3, "open jar"), (.2, "add salt")), maybe(.6, "stir soup"),
        either((.6, "cut bread"), (.4, "pour soup"))),
    "pancakes": block(
        maybe(.4, "wash pan"),
        any_order("crack egg", "pour milk", either((.6, "stir dough"), (.4, "add salt"))),
        either((.6, "melt butter"), (.4, "pour oil")), "pour dough", "flip dough",
        either((.5, "spread butter"), (.3, "open jar"), (.2, "fold dough")),
        maybe(.3, "close jar")),
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


class Grammar:
    """The exact distribution of the next step, over all sequences of all procedures."""

    def __init__(self):
        # {(observed steps, from_start): (S,)}: how probable it is that each step comes after them
        self.following = defaultdict(lambda: np.zeros(len(STEPS)))
        for p, names in sum(PROCEDURES.values(), []):              # procedures are equally likely
            steps = tuple(STEP_ID[name] for name in names)
            for last in range(len(steps)):
                for first in range(last + 1):
                    self.following[steps[first:last], first == 0][steps[last]] += p

    def next_step(self, observed, from_start):
        """P(next step | observed step ids; procedure unknown, not ended): (S,), or zeros.
        from_start: whether the first of them is the first of the video."""
        mass = self.following.get((tuple(observed), from_start), np.zeros(len(STEPS)))
        return mass / (mass.sum() or 1.0)

    def chance(self, observed, from_start, future):
        """P(these steps follow in this order), each given that the video goes on; 0 with a -1."""
        p, observed = 1.0, list(observed)
        for step in future:
            p *= float(self.next_step(observed, from_start)[step]) if step >= 0 else 0.0
            observed.append(step)
        return p
