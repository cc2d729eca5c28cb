"""Scores of forecasts: top-k, best of several draws, total variation, likelihood, bigrams.

M examples (forecasts), K steps or classes, R draws per example. labels (M,) int64, the correct
class, 0 to K - 1; draws (M, R) int64, the class of each sampled forecast. Ties are ranked by
index, lowest first. They do happen: of COIN's 778 step texts 749 are distinct.
"""
import torch

TEMPERATURES = 0.5, 0.7, 1.0       # of a softmax baseline: the best of the three counts
FLOOR = 0.001                      # least probability of a step that no draw shows, in `nll`


def percent(hits):
    """Mean of hits or of chances (M,) -> percent, unrounded; None if M = 0."""
    return 100 * float(hits.double().mean()) if len(hits) else None


def topk_correct(scores, labels, k):
    """Whether the correct class is among the k best of scores (M, K): (M,) bool.

    Raises: FloatingPointError unless all scores are finite.
    """
    if not scores.isfinite().all():
        raise FloatingPointError("scores are not finite; the checkpoint's weights may be damaged")
    own = scores.gather(1, labels[:, None])                              # (M, 1)
    lower = torch.arange(scores.shape[1], device=scores.device) < labels[:, None]
    ahead = (scores > own) | (scores == own) & lower                     # (M, K)
    return ahead.sum(1) < k


def accuracy_rows(columns, labels):
    """{"top1": {name: percent}, "top5": ...} of {name: scores (M, K)}; None stays None."""
    return {f"top{k}": {name: None if scores is None else percent(topk_correct(scores, labels, k))
                        for name, scores in columns.items()} for k in (1, 5)}


def by_class(correct, labels, K):
    """Percent correct of each of K classes, None if none occurs: (M,) bool, (M,) -> a list."""
    return [percent(correct[labels == k]) for k in range(K)]


def oracle_correct(draws, labels):
    """Whether any of the R draws is correct: (M,) bool."""
    return (draws == labels[:, None]).any(1)


def distinct(draws):
    """Number of different classes among the R draws: (M,) int64, 1 to R."""
    return 1 + (draws.sort(1).values.diff() != 0).sum(1)


def softmax_at(log_p, temperature):
    """The distribution of a forecast at a temperature: log p (M, K) -> (M, K) float64."""
    return (log_p.double() / temperature).softmax(-1)


def oracle_softmax(log_p, labels, R):
    """Percent of forecasts that the best of R draws from their softmax gets right, in closed form.

        mean of 1 - (1 - p_y)^R, at the best of TEMPERATURES
    """
    chances = []
    for temperature in TEMPERATURES:
        p = softmax_at(log_p, temperature).gather(1, labels[:, None])[:, 0]
        chances.append(percent(1 - (1 - p) ** R))
    return max(chances)


def histogram(draws, K):
    """Share of each class among R draws: (M, R) -> (M, K) float64."""
    shares = torch.zeros(len(draws), K, dtype=torch.float64, device=draws.device)
    return shares.scatter_add_(1, draws, torch.full_like(draws, 1 / draws.shape[1],
                                                         dtype=torch.float64))


def total_variation(p, truth):
    """Half the L1 distance of two distributions (M, K) -> (M,) float64."""
    return (p - truth).abs().sum(1) / 2


def nll(p, labels):
    """Mean of -log p(y), with p at least FLOOR: p (M, K), labels (M,) -> float."""
    return float(-p.gather(1, labels[:, None]).clamp(min=FLOOR).log().mean())


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
