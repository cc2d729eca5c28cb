"""Does learning the order of steps help f? The paper's Table 4, as a difference with an interval.

S seeds are resampled, with both of their runs, and V videos, with all their M steps, R times.
"""
import numpy as np

from support.command import require
from toy import grammar

KINDS = {"all": grammar.STEPS, "held_out": grammar.HELD_OUT,
         "motion_only": sum(grammar.MOTION_ONLY, ())}


def outcomes(content):
    """The JSON content of --task classify -> video, label and right (0 or 1): (3, M) int64."""
    return np.array([(video, *map(int, step.split(":"))) for video, steps in
                     enumerate(content["by_video"]) for step in steps.split()]).T


def gain(pairs, steps):
    """How many points more of these steps are right with order: (mean, low, high), as `bootstrap`.
    pairs: [(content with order, content without), ...] of S seeds, JSON of --task classify;
    BadInput unless all are of the same steps of the same videos."""
    found = [outcomes(content) for pair in pairs for content in pair]
    video, label, _ = found[0]
    require(all(np.array_equal(found[0][:2], other[:2]) for other in found),
            "by_video in classify.json: runs were evaluated on different videos")
    kept = np.isin(label, [grammar.STEP_ID[step] for step in steps])
    _, video = np.unique(video[kept], return_inverse=True)
    right = np.array([other[2, kept] for other in found])                      # (2 S, M)
    more = [np.bincount(video, row) for row in right[::2] - right[1::2]]
    return [100 * value for value in bootstrap(np.array(more), np.bincount(video))]


def bootstrap(more, size, R=10_000):
    """The mean difference of a step, with its 95 % percentile interval: (mean, low, high).
    Of few seeds it is too narrow: the spread of S drawn again is smaller by sqrt((S - 1) / S).
    more: (S, V), how many more steps of a video are right; size: (V,), how many it has, not 0."""
    (S, V), generator = more.shape, np.random.default_rng(0)
    seeds = generator.multinomial(S, np.full(S, 1 / S), R)                     # (R, S) times drawn
    videos = generator.multinomial(V, np.full(V, 1 / V), R)                    # (R, V)
    means = (seeds @ more * videos).sum(1) / (S * (videos @ size))             # (R,)
    return more.sum() / (S * size.sum()), *np.quantile(means, [.025, .975])
