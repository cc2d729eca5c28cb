"""Scores of forecasts: top-k, distance from the truth, best of several draws, similar histories.

M examples, K steps or classes, R draws. labels (M,) int64: the correct classes.
"""
import numpy as np
import torch
from torch.nn.functional import normalize, one_hot

# Of a softmax that is drawn from, chosen for each figure by its answers: the best counts.
TEMPERATURES = .05, .07, .1, .15, .2, .3, .4, .5, .6, .7, .85, 1., 1.2, 1.4, 1.7, 2., 3.
# What is printed for a key of the JSON: the words of docs/results.md.
WORDS = {
    "zero_noise": "zero noise", "expectation": "mean of samples", "oracle": "best of samples",
    "oracle_draws": "best of draws from samples", "oracle_softmax": "best of draws from zero noise",
    "distinct": "distinct steps", "top1": "% right", "top5": "% among the five likeliest",
    "similar": "similar histories", "tv": "total variation", "tv_error": "its standard error",
    "tv_ideal": "that of as many exact draws", "tv_softmax": "that of zero noise's softmax",
    "truth": "exact distribution", "bayes_top1": "of the sequence", "bayes_set": "of the set",
    "bayes_set_last": "of the set and the last step", "bayes_last_two": "of the last two steps",
    "bayes_last": "of the last step", "bayes_alike": "look-alikes not told apart",
    "ideal_oracle": "best of exact draws", "possible_next": "possible: likeliest step, p",
    "by_pair": "% right, look-alikes as one", "new": "new to training",
    "look_alikes": "% right within look-alikes", "held_out": "% right of held-out steps",
    "by_position": "by position: first, between, last", "futures": "% of futures possible",
    "possible": "whole futures", "first": "their first steps"}
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


def pack(right, examples, parts=None):
    """For experiments/compare.py, of M data.Example: {column: which are right, of (M,) bool, as
    hexadecimal bits; "parts": {name: the same of which examples a part is of}; "per_video": how
    many examples, in turn, are of one video}."""
    def bits(columns):
        return {name: np.packbits(of.numpy()).tobytes().hex() for name, of in columns.items()}
    videos = torch.tensor([example.video for example in examples])
    runs = videos.unique_consecutive(return_counts=True)[1]
    return bits(right) | {"parts": bits(parts or {}), "per_video": runs.tolist()}


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
    """The distributions at each of TEMPERATURES: log p (..., K) -> iterator of (..., K) float64."""
    return ((log_p.double() / temperature).softmax(-1) for temperature in TEMPERATURES)


def best_of_draws(log_p, labels):
    """If one step is drawn from each of Q distributions, log p (M, Q, K), at the best of
    TEMPERATURES: the chance that one of them is the correct one, (M,)."""
    answers = labels[:, None, None].expand(-1, log_p.shape[1], 1)
    chances = [1 - (1 - p.gather(2, answers)).prod(1)[:, 0] for p in softmaxes(log_p)]
    return max(chances, key=percent)


def nearest_variation(log_p, truth):
    """The mean total variation of log p (M, K) from the truth, at the best of TEMPERATURES."""
    return min(float(total_variation(p, truth).mean()) for p in softmaxes(log_p))


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
    clips -> (M, K): how often each step is the likeliest one of those that followed, with weights
    softmax(SHARPNESS * dot product of the keys).
    """
    pairs = [(history_key(steps[max(0, i - MOST):i]), steps[i].argmax())
             for steps in map(merge_steps, videos) for i in range(1, len(steps))]
    K = histories.shape[-1]
    if not pairs:
        return torch.full((len(histories), K), 1 / K)
    keys, following = map(torch.stack, zip(*pairs))
    queries = torch.stack([history_key(merge_steps(p)) for p in histories])    # (M, 3 K)
    return torch.cat([(SHARPNESS * part @ keys.T).softmax(-1) @ one_hot(following, K).float()
                      for part in queries.split(256)])
