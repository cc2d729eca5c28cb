"""The filter of the embedded world against brute force: sampled timelines, and every prefix."""
import numpy as np

from data import forecast_samples, observed_steps
from toy import grammar
from toy.filter import GRID, next_step_from_clips, node_mass

GRAMMAR = grammar.Grammar()
S, DEPTH, N = len(grammar.STEPS), GRAMMAR.depth.max(), 8
VIDEOS = [grammar.make_video("validation", i) for i in range(300)]
SAMPLES = forecast_samples(VIDEOS)
LABELS = np.full((len(GRAMMAR.mass), DEPTH), -1)     # the steps of each prefix, -1 after its last
for node in range(1, len(LABELS)):                   # a parent comes before its children
    LABELS[node] = LABELS[GRAMMAR.parent[node]]
    LABELS[node, GRAMMAR.depth[node] - 1] = GRAMMAR.step[node]


def beliefs(samples, right, noise, rng):
    """Posteriors of an encoder times S, (M, N, S): `right` nats for the step at a clip's middle."""
    logits = noise * rng.normal(size=(len(samples), N, S))
    for m, sample in enumerate(samples):
        for i, middle in enumerate(sample.windows.mean(1)):
            for start, end, label in VIDEOS[sample.video].steps:
                logits[m, i, label] += right * (start <= middle < end)
    p = np.exp(logits)
    return S * p / p.sum(-1, keepdims=True)


def timelines(n, rng):
    """Start and end of the steps of n videos that never end: (n, DEPTH) s, twice."""
    time, start, end = rng.uniform(*grammar.INTRO_SECONDS, n), [], []
    for _ in range(DEPTH):
        start.append(time)
        end.append(time + rng.uniform(*grammar.STEP_SECONDS, n))
        gap = rng.random(n) < grammar.GAP_SHARE
        time = end[-1] + gap * rng.uniform(*grammar.GAP_SECONDS, n)
    return np.stack(start, 1), np.stack(end, 1)


def brute_force(likelihood, from_start, seconds, start, end):
    """One forecast (S,): the timelines whose history ends with a step, within 0.1 s of ours."""
    history, mass = N * seconds, np.zeros(len(GRAMMAR.mass))
    for k in range(DEPTH):                                   # the history ends with step k
        fits = abs(end[:, k] - history) < .1
        begin = np.zeros(len(end))
        if history >= 68 - 1e-6:
            begin = end[:, k] - 68
            fits = (begin >= 0) & ((end[:, 0] - begin >= 1) == from_start)
        chosen, nodes = np.flatnonzero(fits), np.flatnonzero(GRAMMAR.depth == k + 1)
        weight = len(chosen) / max(len(chosen[:2000]), 1)
        chosen = chosen[:2000]
        middle = begin[chosen, None] + seconds * (np.arange(N) + .5)
        middle = middle[..., None]
        during = (start[chosen, None] <= middle) & (middle < end[chosen, None])
        shown = np.where(during.any(-1), during.argmax(-1), -1)          # (timelines, N) which step
        for pattern, count in zip(*np.unique(shown, axis=0, return_counts=True)):
            clips = np.flatnonzero(pattern >= 0)
            p = likelihood[clips[:, None], LABELS[nodes][:, pattern[clips]].T].prod(0)
            mass[nodes] += weight * count * GRAMMAR.mass[nodes] * p
    forecast = mass / GRAMMAR.mass @ GRAMMAR.next_mass
    return forecast / forecast.sum()


def test_filter_equals_sampled_timelines():
    """Catches: other times, intro or gaps left out, `from_start` ignored, one length for all."""
    rng = np.random.default_rng(0)
    samples = [SAMPLES[i] for i in rng.choice(len(SAMPLES), 45, replace=False)]
    samples += [s for s in SAMPLES if not observed_steps(s, VIDEOS[s.video])[1]][:10]
    likelihood, seconds = beliefs(samples, 3.5, 1.5, rng), [np.ptp(s.windows[0]) for s in samples]
    from_start = [observed_steps(s, VIDEOS[s.video])[1] for s in samples]
    p = next_step_from_clips(GRAMMAR, likelihood, from_start, seconds)
    drawn = timelines(200_000, rng)
    q = np.array([brute_force(*row, *drawn) for row in zip(likelihood, from_start, seconds)])
    distance = abs(p - q).sum(1) / 2
    right = q[np.arange(len(q)), p.argmax(1)].mean(), q.max(1).mean()       # chance to be right
    print(f"\ntotal variation {distance.mean():.4f}, right {right[0]:.4f} and {right[1]:.4f}")
    np.testing.assert_allclose(p.sum(1), 1)
    assert distance.mean() < .01 and right[0] > right[1] - .005


def test_steps_before_the_end_of_a_history_by_counting():
    """Catches: a history that begins in a gap left out, or as likely as one that does in a step."""
    ends = timelines(400_000, np.random.default_rng(1))[1]
    goes_on, flat = GRAMMAR.next_mass.any(1), np.ones((1, N, S))
    for from_start in (False, True):
        mass = node_mass(GRAMMAR, flat, int(68 / GRID), from_start, np.array([68.]))[0]
        fits = (ends >= 68) & ((ends[:, :1] - (ends - 68) >= 1) == from_start)      # (n, DEPTH)
        found, counted = np.zeros((2, DEPTH))
        for k in range(DEPTH):                               # the history ends with step k
            nodes = (GRAMMAR.depth == k + 1) & goes_on
            if nodes.any():
                found[k], counted[k] = (mass / GRAMMAR.mass)[nodes].mean(), fits[:, k].mean()
        assert abs(found / found.sum() - counted / counted.sum()).sum() / 2 < .03   # GRID: .02
