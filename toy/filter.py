"""What comes next in the embedded world, from an encoder's beliefs about the observed clips.

A forward pass over the prefix tree of toy/grammar.py and the timeline of its videos. It is exact
but for three things: time goes in steps of 0.5 s; a clip shows the step at its middle; a clip of
background is as likely under every step.

M forecasts, m of them at a time; N = 8 clips of the history; n nodes; S steps; k points in time.
"""
import numpy as np

from data import HISTORY
from toy.grammar import GAP_SECONDS, GAP_SHARE, INTRO_SECONDS, STEP_SECONDS

GRID = 0.5                                         # s from one point in time to the next


def longer(seconds, limits):
    """P(a time, uniform between two limits, is longer than each of `seconds`)."""
    low, high = limits
    return np.clip((high - seconds) / (high - low), 0, 1)


def near(seconds, limits):
    """P(a time, uniform between two limits, is within half a GRID of each of `seconds`)."""
    return longer(seconds - GRID / 2, limits) - longer(seconds + GRID / 2, limits)


def next_step_from_clips(grammar, likelihood, from_start, clip_seconds):
    """P(next step | clips), as `Grammar.next_step` without the true steps: (M, S) float64.

    The history ends where a step ends. It is the last 68 s, or all of the video so far.
    likelihood: (M, N, S) float > 0: P(clip | step) / P(clip | background); S times a posterior.
    clip_seconds: (M,) float, s from one clip to the next.
    """
    M, N, S = likelihood.shape
    end, forecast = N * np.asarray(clip_seconds, float), np.zeros((M, S))    # s of the history
    groups = {}                                    # {(last point in time, from_start): forecasts}
    for i, last in enumerate(((end + 1e-6) // GRID).astype(int).tolist()):
        groups.setdefault((last, bool(from_start[i])), []).append(i)
    for key, members in groups.items():
        for i in range(0, len(members), 32):
            some = members[i:i + 32]
            mass = node_mass(grammar, likelihood[some], *key, end[some])            # (m, n)
            forecast[some] = mass / grammar.mass @ grammar.next_mass
    return forecast / forecast.sum(1, keepdims=True)


def node_mass(grammar, likelihood, last, from_start, end):
    """P(clips, and the node's step ends with the history), up to a factor per forecast: (m, n).
    last: number of the last point in time, which is `end`, (m,) s, of each history."""
    (m, N, S), whole = likelihood.shape, last * GRID < HISTORY  # whole: all of the video so far
    k = GRID * np.arange(last + 1)                              # (k,)  s
    time = end[:, None] - k[::-1]                               # (m, k)  s since the history began
    middle = end[:, None] * (np.arange(N) + 0.5) / N            # (m, N)
    seen = (middle[:, :, None] <= time[:, None]).astype(float)
    # P(clips up to a time | all of them show step s): (m, S, k)
    emit = np.exp(np.log(np.maximum(likelihood, 1e-30)).swapaxes(1, 2) @ seen)
    step_time, gap_time = (near(k - k[:, None], limits)         # (k, k): from one time to another
                           for limits in (STEP_SECONDS, GAP_SECONDS))
    # A history that begins later than the video does so in its intro, in a step, or in a gap.
    begins = near(time, INTRO_SECONDS) if whole else GRID * longer(time, INTRO_SECONDS) * from_start
    begins = begins[:, None]                                    # (m, nodes, k): a next step begins
    in_step, in_gap = GRID * longer(k, STEP_SECONDS), GRID * longer(k, GAP_SECONDS) * GAP_SHARE
    in_first = GRID * (longer(k, INTRO_SECONDS) @ near(k + k[:, None], STEP_SECONDS))
    goes_on, nodes, first = grammar.next_mass.any(1), np.zeros(1, int), 0           # the root
    mass = np.zeros((m, len(grammar.mass)))
    for depth in range(1, grammar.depth.max() + 1):
        before, parents, nodes = first, nodes, np.flatnonzero((grammar.depth == depth) & goes_on)
        earliest = (INTRO_SECONDS[0] + STEP_SECONDS[0] * depth if whole else
                    STEP_SECONDS[0] * (depth - 1) * from_start)
        first = max(int(earliest / GRID) - 1, 0)                # no step of this depth ends before
        if first > last:
            break
        own, shown = grammar.mass[nodes, None], emit[:, grammar.step[nodes]]        # (m, nodes, k)
        begins = begins[:, np.searchsorted(parents, grammar.parent[nodes])]
        begins = begins * own / grammar.mass[grammar.parent[nodes], None]
        ends = begins / shown[..., before:] @ step_time[before:, first:]
        if not whole and depth == 1:                            # observed if a second of it is
            ends += own * in_first * ((k >= 1) == from_start)
        if not whole and depth > 1 and not from_start:
            ends += own * in_step
        ends *= shown[..., first:]
        mass[:, nodes] = ends[..., -1]
        begins = ends * (1 - GAP_SHARE) + ends @ gap_time[first:, first:] * GAP_SHARE
        if not whole and not from_start:
            begins += own * in_gap
    return mass
