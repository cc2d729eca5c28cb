"""Scores of forecasts: top-k, oracle, total variation, temperature, bigrams.

M samples (forecasts), K steps or classes, R draws per sample. labels (M,) int64, the correct class,
0 to K - 1; draws (M, R) int64, the class of each sampled forecast. Ties are ranked by index, lowest
first. They do happen: of COIN's 778 step texts 749 are distinct.
"""
import math

import torch

from support.device import end_unless_finite


def percent(hits):
    """Mean of hits or of chances (M,) -> percent, unrounded; None where M = 0."""
    return 100 * float(hits.double().mean()) if len(hits) else None


def topk_correct(scores, labels, k):
    """Whether the correct class is among the k best of scores (M, K): (M,) bool; of k >= K always.
    FloatingPointError unless all scores are finite."""
    end_unless_finite("scores", scores)
    own = scores.gather(1, labels[:, None])                              # (M, 1)
    lower = torch.arange(scores.shape[1], device=scores.device) < labels[:, None]
    ahead = (scores > own) | (scores == own) & lower                     # (M, K)
    return ahead.sum(1) < k


def by_class(correct, labels, K):
    """Percent correct of each of K classes, None if none occurs: (M,) bool, (M,) -> a list."""
    size = torch.bincount(labels, minlength=K)
    hits = torch.bincount(labels[correct], minlength=K)
    return [100 * h / n if n else None for h, n in zip(hits.tolist(), size.tolist())]


def accuracy_rows(columns):
    """Rows top1 and top5, in percent: columns {name: (scores (M, K) or None, labels (M,))}."""
    return {f"top{k}": {name: None if scores is None else percent(topk_correct(scores, y, k))
                        for name, (scores, y) in columns.items()} for k in (1, 5)}


def oracle_correct(draws, labels):
    """Whether any of the R draws is correct: (M,) bool."""
    return (draws == labels[:, None]).any(1)


def distinct(draws):
    """Number of different classes among the R draws: (M,) int64, 1 to R."""
    return 1 + (draws.sort(1).values.diff() != 0).sum(1)


def oracle_softmax(probabilities, labels, R):
    """Chance that R draws from each row of probabilities (M, K) hit the label: 1 - (1 - p_y)^R."""
    return 1 - (1 - probabilities.gather(1, labels[:, None])[:, 0].double()) ** R


def total_variation(draws, truth):
    """Half the L1 distance of the histogram of draws (M, R) to the truth (M, K) -> (M,) float64."""
    one = torch.full(draws.shape, 1 / draws.shape[1], dtype=torch.float64, device=draws.device)
    histogram = torch.zeros_like(truth, dtype=torch.float64).scatter_add_(1, draws, one)    # (M, K)
    return (histogram - truth).abs().sum(1) / 2


def fit_temperature(logits, target):
    """The temperature T, 1e-3 to 1e3, with the least cross entropy of softmax(logits / T) (M, K).

    The loss is convex in 1 / T: bisection of log T finds where its slope, the mean logit under the
    softmax minus that under the target, crosses zero. target: (M, K), rows sum to 1, or labels.
    """
    logits = logits.double()
    logits = logits - logits.max(1, keepdim=True).values                 # (M, K)  at most 0
    wanted = (logits.gather(1, target[:, None]) if target.ndim == 1 else target * logits).sum()
    low, high = math.log(1e-3), math.log(1e3)
    for _ in range(45):                                                  # until 14 / 2^45 wide
        middle = (low + high) / 2
        p = (logits / math.exp(middle)).softmax(1)
        too_flat = (p * logits).sum() <= wanted                          # T is too high
        low, high = (low, middle) if too_flat else (middle, high)
    return math.exp((low + high) / 2)


def bigram_counts(sequences, K):
    """[a, b]: how often b follows a in a list of sequences, (n,) int64 each -> (K, K) float64."""
    pairs = torch.cat([steps[:-1] * K + steps[1:] for steps in sequences])   # a number per pair
    return torch.bincount(pairs, minlength=K * K).view(K, K).double()


def bigram_forecast(counts, posterior):
    """The class after the last observed clip, from `bigram_counts` (K, K): (M, K) float64.

        P(b) = sum_a posterior[a] * counts[a, b] / sum_c counts[a, c]

    posterior (M, K): the class of the last observed clip, rows sum to 1. The row of a class that
    nothing ever followed is the sum of all rows; with no pair at all, it is uniform.
    """
    any_class = counts.sum(0) if counts.any() else torch.ones_like(counts[0])       # (K,)
    rows = torch.where(counts.any(1, keepdim=True), counts, any_class)
    return posterior.double() @ (rows / rows.sum(1, keepdim=True))       # (M, K)
