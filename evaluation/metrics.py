"""Scores of forecasts: top-k, distance from the truth, best of several draws, similar histories.

M examples, K steps or classes, R draws. labels (M,) int64: the correct classes.
"""
import numpy as np
import torch
from torch.nn.functional import normalize, one_hot

# Of a softmax that steps are drawn from. Each figure uses the one that is best on its examples.
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
    "bayes_unnamed": "of the sequence, names guessed",
    "bayes_set_unnamed": "of the set, names guessed", "ideal_oracle": "best of exact draws",
    "possible_next": "possible: likeliest step, p", "new": "new to training",
    "by_pair": "% right, look-alikes as one",
    "look_alikes": "% right within look-alikes", "held_out": "% right of held-out steps",
    "by_position": "by position: first, between, last", "futures": "% of futures possible",
    "possible": "whole futures", "first": "their first steps"}
NEIGHBORS = 50            # of `neighbor_forecast`, chosen on validation videos from 20, 50, 100


def percent(hits):
    """Mean of hits or of chances (M,) -> percent, unrounded; None if M = 0."""
    return 100 * float(hits.double().mean()) if len(hits) else None


def topk_correct(scores, labels, k):
    """Whether the correct class is among the k best of scores (M, K): (M,) bool.

    Equal scores are ranked by index. They occur: only 749 of COIN's 778 step texts are distinct.
    Raises: FloatingPointError unless all scores are finite.
    """
    if not scores.isfinite().all():
        raise FloatingPointError("scores are not finite; the checkpoint's weights may be damaged")
    best = scores.argsort(dim=1, descending=True, stable=True)[:, :k]          # (M, k)
    return (best == labels[:, None]).any(1)


def pack(right, examples, parts=None):
    """What experiments/compare.py reads of M data.Example: {column: which are right, (M,) bool, as
    hexadecimal bits; "parts": {name: which examples belong to this part, likewise}; "per_video":
    how many examples each video has, in their order}."""
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
    """How many different steps are likeliest in the Q samples, on average: log p (M, Q, K)."""
    return float(np.mean([len(picks.unique()) for picks in log_p.argmax(-1)]))


def total_variation(p, truth):
    """Half of the L1 distance: p and truth (M, K) -> (M,), from 0 to 1."""
    return (p - truth).abs().sum(1) / 2


def softmaxes(log_p):
    """The distributions at each of TEMPERATURES: log p (..., K) -> iterator of (..., K) float64."""
    return ((log_p.double() / temperature).softmax(-1) for temperature in TEMPERATURES)


def best_of_draws(log_p, labels):
    """Draw one step from each of Q distributions, log p (M, Q, K), at the best of TEMPERATURES: the
    chance that any drawn step is correct, (M,)."""
    answers = labels[:, None, None].expand(-1, log_p.shape[1], 1)
    chances = [1 - (1 - p.gather(2, answers)).prod(1)[:, 0] for p in softmaxes(log_p)]
    return max(chances, key=percent)


def nearest_variation(log_p, truth):
    """The mean total variation of log p (M, K) from the truth, at the best of TEMPERATURES."""
    return min(float(total_variation(p, truth).mean()) for p in softmaxes(log_p))


def neighbor_forecast(keys, following, queries, classes):
    """How often each step followed the NEIGHBORS nearest histories. Nearness is the cosine over all
    that h reads: keys (n, N, D), following (n,) int64, queries (M, N, D) -> (M, classes)."""
    if not len(keys):
        return torch.full((len(queries), classes), 1 / classes)
    keys, queries = (normalize(of.flatten(1), dim=-1) for of in (keys, queries))
    nearest = torch.cat([(part @ keys.T).topk(min(NEIGHBORS, len(keys))).indices
                         for part in queries.split(256)])                      # (M, NEIGHBORS)
    return one_hot(following[nearest], classes).double().mean(1)


def print_lines(content, indent=""):
    """Print a dict's numbers, nested dicts indented. None, `by_class` and `right` are left out."""
    for name, value in content.items():
        if name == "right":                                # for experiments/compare.py
            continue
        if isinstance(value, dict):
            print(indent + WORDS.get(name, name))
            print_lines(value, indent + "  ")
        elif value is not None and name != "by_class":
            numbers = value if isinstance(value, list) else [value]
            text = ", ".join(f"{n:.2f}" if isinstance(n, float) else str(n) for n in numbers)
            print(f"{indent + WORDS.get(name, name):<36}{text}")
