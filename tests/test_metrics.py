"""Each score against a slow, obvious version, and its degenerate cases."""
import math

import numpy as np
import pytest
import torch

from evaluation.metrics import (bigram_forecast, by_class, fit_temperature, percent,
                                topk_correct)


def random(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_topk_equals_sorting_by_score_then_index():
    """Catches: ties broken otherwise, or for the label; K = 2 or M = 1 squeezed; NaN scored."""
    scores = (random(300, 7) * 4).floor()                          # many exact ties
    labels = (random(300, seed=1) * 7).long()
    for k in (1, 3, 5, 7, 9):
        slow = [label in sorted(range(7), key=lambda c: (-row[c], c))[:k]
                for row, label in zip(scores.tolist(), labels.tolist())]
        assert topk_correct(scores, labels, k).tolist() == slow
    assert topk_correct(scores, labels, 1).equal(scores.argmax(1) == labels)
    assert topk_correct(torch.zeros(1, 2), torch.tensor([1]), 1).tolist() == [False]
    for bad in (math.nan, math.inf):
        with pytest.raises(FloatingPointError, match="scores: not finite"):
            topk_correct(torch.tensor([[0., 1.], [bad, 0.]]), torch.tensor([1, 0]), 1)
    assert percent(torch.empty(0)) is None
    assert percent(torch.tensor([True, False, True])) == pytest.approx(200 / 3)


def test_accuracy_per_class_equals_a_loop_over_the_classes_there_are():
    """Catches: an average over samples; a class that does not occur counted as 0."""
    labels = (random(60) * 5).long() * 2
    correct = random(60, seed=1) < .5
    rows = [[bool(c) for c, y in zip(correct, labels) if y == k] for k in range(10)]
    expected = [100 * sum(row) / len(row) if row else None for row in rows]
    assert by_class(correct, labels, 10) == pytest.approx(expected)
    assert expected.count(None) == 5


def test_temperature_has_the_least_nll_of_a_fine_grid():
    """Catches: logits * T, a search the wrong way, labels and soft targets treated apart."""
    logits = 3 * torch.randn(400, 5, generator=torch.Generator().manual_seed(0)).double()
    target = torch.softmax(logits / 2 + random(400, 5), 1)
    found = fit_temperature(logits, target)

    def nll(T):
        return torch.nn.functional.cross_entropy(logits / T, target).item()
    grid = np.exp(np.linspace(math.log(.05), math.log(50), 2000))
    best = grid[np.argmin([nll(T) for T in grid])]
    assert abs(found / best - 1) < .005 and nll(found) <= nll(best)
    assert 1.5 < found < 2.6                                       # 2 made the targets
    assert found == fit_temperature(logits + 100, target)          # a shift of a row says nothing
    assert fit_temperature(logits / 50, target) == pytest.approx(found / 50, rel=1e-6)
    labels = torch.multinomial(target, 1, generator=torch.Generator().manual_seed(1))[:, 0]
    assert fit_temperature(logits, labels) == pytest.approx(
        fit_temperature(logits, torch.eye(5).double()[labels]))


def test_temperature_of_perfect_useless_and_equal_logits_is_finite():
    """Catches: overflow or NaN at the ends of the search (M = 1, K = 2 included)."""
    perfect = torch.tensor([[1., 0.]])
    assert fit_temperature(perfect, torch.tensor([0])) == pytest.approx(1e-3)
    assert fit_temperature(perfect, torch.tensor([1])) == pytest.approx(1e3)
    for seed in range(5):                                          # sums must not round apart
        many, equal = random(200, 3, seed=seed), random(200, 1, seed=seed).repeat(1, 3)
        assert fit_temperature(many, many.argmax(1)) == pytest.approx(1e-3)
        assert fit_temperature(equal, torch.arange(200) % 3) == pytest.approx(1e-3)


def test_bigram_forecast_equals_the_sum_over_the_last_step():
    """Catches: columns normalized for rows, an unseen row as NaN, zero or uniform."""
    counts = torch.tensor([[0, 3, 1], [2, 0, 0], [0, 0, 0]]).double()      # 2 is never followed
    follows = [[0, 3 / 4, 1 / 4], [1, 0, 0], [2 / 6, 3 / 6, 1 / 6]]
    posterior = torch.cat([torch.eye(3), torch.softmax(2 * random(4, 3), 1).float()])
    slow = [[sum(p[a] * follows[a][b] for a in range(3)) for b in range(3)]
            for p in posterior.tolist()]
    torch.testing.assert_close(bigram_forecast(counts, posterior), torch.tensor(slow).double())
    assert bigram_forecast(torch.zeros(2, 2).double(), torch.eye(2)).eq(.5).all()
