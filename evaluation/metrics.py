"""Scores of forecasts: top-k, distance from the truth, best of several draws, similar histories.

M examples, K steps or classes, R draws. labels (M,) int64: the correct classes.
"""
import numpy as np
import torch
from torch.nn.functional import normalize

TEMPERATURES = 0.5, 0.7, 1.0, 1.4  # of a softmax that is drawn from: the best of them counts
MOST, BEFORE, SHARPNESS = 6, 0.7, 10.0     # of `neighbor_forecast`, chosen on validation videos


def percent(hits):
    """Mean of hits or of chances (M,) -> percent, unrounded; None if M = 0."""
    return 100 * float(hits.double().mean()) if len(hits) else None


def topk_correct(scores, labels, k):
    """Whether the correct class is among the k best of scores (M, K): (M,) bool.

    Equal scores are ranked by index: of COIN's 778 step texts 749 are distinct.
    Raises: FloatingPointError unless all scores are finite.
    """
    if not scores.isfinite().all():
        raise FloatingPointError("scores are not finite; the checkpoint's weights may be damaged")
    best = scores.argsort(dim=1, descending=True, stable=True)[:, :k]          # (M, k)
    return (best == labels[:, None]).any(1)


def pack(right, examples):
    """{column: (M,) bool} of M data.Example -> {column: hexadecimal bits, "per_video": how many
    examples, in turn, are of one video}, for experiments/compare.py."""
    videos = torch.tensor([example.video for example in examples])
    runs = videos.unique_consecutive(return_counts=True)[1]
    return {name: np.packbits(bits.numpy()).tobytes().hex() for name, bits in right.items()} | {
        "per_video": runs.tolist()}


def accuracies(columns, labels):
    """{"top1": {name: percent}, "top5": ...} of {name: scores (M, K)}."""
    return {f"top{k}": {name: percent(topk_correct(scores, labels, k))
                        for name, scores in columns.items()} for k in (1, 5)}


def distinct(log_p):
    """How many steps are the likeliest of one of the Q samples, on average: log p (M, Q, K)."""
    return float(np.mean([len(picks.unique()) for picks in log_p.argmax(-1)]))


def total_variation(p, truth):
    """Half of the L1 distance: p and truth (M, K) -> (M,), from 0 to 1."""
    return (p - truth).abs().sum(1) / 2


def softmaxes(log_p):
    """The distributions at each of TEMPERATURES: log p (M, K) -> [(M, K) float64, ...]."""
    return [(log_p.double() / temperature).softmax(-1) for temperature in TEMPERATURES]


def oracle_softmax(log_p, labels, R):
    """Percent of forecasts that the best of R draws from their softmax gets right: the mean of
    1 - (1 - p_y)^R, at the best of TEMPERATURES."""
    return max(percent(1 - (1 - p.gather(1, labels[:, None])) ** R) for p in softmaxes(log_p))


def merge_steps(p):
    """p (n, K) of consecutive clips -> (m, K), the mean of each run of one likeliest step."""
    run = p.argmax(-1).unique_consecutive(return_inverse=True)[1]
    return torch.stack([p[run == i].mean(0) for i in range(run.max() + 1)])


def history_key(steps):
    """What histories are compared by, of p (m, K) of the steps of one -> (3 K,): what was seen, the
    last step and the one before, each of length 1, the third then times BEFORE."""
    before = steps[-2] if len(steps) > 1 else torch.zeros_like(steps[-1])
    seen, last, before = (normalize(of, dim=0) for of in (steps.max(0).values, steps[-1], before))
    return torch.cat([seen, last, BEFORE * before])


def neighbor_forecast(videos, histories):
    """Kernel regression: what followed in similar histories, of up to MOST steps, without labels.

    videos: p (n, K) of the clips of each training video; histories: p (M, N, K) of the observed
    clips -> (M, K), averages with weights softmax(SHARPNESS * dot product of the keys).
    """
    pairs = [(history_key(steps[max(0, i - MOST):i]), steps[i])
             for steps in map(merge_steps, videos) for i in range(1, len(steps))]
    K = histories.shape[-1]
    keys, following = zip(*pairs or [(torch.zeros(3 * K), torch.full((K,), 1 / K))])
    queries = torch.stack([history_key(merge_steps(p)) for p in histories])    # (M, 3 K)
    weights = (SHARPNESS * queries @ torch.stack(keys).T).softmax(-1)          # (M, pairs)
    return weights @ torch.stack(following)
