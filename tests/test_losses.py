"""Eqs. 6 to 10 against loops in float64, typed from the paper."""
import itertools

import pytest
import torch

import losses
from slow import draw, slow_entropy, slow_match

TAU = 0.02                                             # the paper's


def soft(*shape, seed=0):
    """Random soft targets: rows sum to 1."""
    return (3 * draw(*shape, seed=seed)).softmax(-1)


def test_eq6_match_equals_the_softmax_by_loops():
    """Catches: tau left out, squared or inverted, a side not normalized, an axis; bfloat16; a
    float64 x with the float32 phrases of a model refused, or rounded."""
    x, phrases = draw(2, 3, 4), (7 * draw(5, 4, seed=1)).float()
    log_p = losses.match(x, phrases, TAU)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = losses.match(x.bfloat16().double(), phrases, TAU), losses.match(
            x.bfloat16(), phrases, TAU)
    torch.testing.assert_close(mixed[1], mixed[0].float(), rtol=1e-4, atol=1e-4)
    assert log_p.shape == (2, 3, 5)
    for b, i in itertools.product(range(2), range(3)):
        torch.testing.assert_close(log_p[b, i].exp(), slow_match(x[b, i], phrases, TAU))


def test_eq6_is_finite_at_the_smallest_temperature_and_the_longest_vectors():
    """Catches: exp before the maximum is taken off; log of a probability that is 0 in float32."""
    x = torch.tensor([[1e4, 0.0], [-1e4, 1e-4]], requires_grad=True)
    log_p = losses.match(x, torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), 0.01)
    torch.testing.assert_close(log_p[0].detach(), torch.tensor([0.0, -200.0]))
    log_p.sum().backward()
    assert x.grad.isfinite().all()


def test_eq8_xe_is_the_mean_over_the_observed_clips_by_loops():
    """Catches: 1 / N for 1 / (N - 1), a sum for a mean, p and p' exchanged in H; a mean over all
    videos. Eq. 8: every j."""
    (B, N), phrases = (2, 4), draw(5, 3, seed=1)
    x, targets = draw(B, N, 3), soft(B, N, 5, seed=2)
    found = losses.cross_entropy(targets, losses.match(x, phrases, TAU)).mean(1)
    for b, loss in enumerate(found):
        expected = 0.0
        for _, i in itertools.permutations(range(N), 2):                       # (j, i), i != j
            expected += slow_entropy(targets[b, i], slow_match(x[b, i], phrases, TAU))
        assert loss.item() == pytest.approx(expected / (N - 1) / N)


def test_eq9_mse_is_the_squared_length_averaged_over_the_missing_clips():
    """Catches: a mean over D, a sum over clips, the length without its square, another x_j^0."""
    N, D = 3, 4
    x_hat, x = draw(2, N, D), draw(2, N, D, seed=1)
    for b, loss in enumerate(losses.mse_loss(x_hat, x)):
        expected = sum(float(x_hat[b, j, d] - x[b, j, d]) ** 2 for j in range(N) for d in range(D))
        assert loss.item() == pytest.approx(expected / N)


def test_eq10_mc_is_the_cross_entropy_averaged_over_the_missing_clips():
    """Catches: a sum over clips, p and p' exchanged, the target of another clip; a share that
    counts something else."""
    N, D = 3, 4
    x_hat, phrases, targets = draw(2, N, D), draw(5, D, seed=1), soft(2, N, 5, seed=2)
    log_p = losses.match(x_hat, phrases, TAU)
    for b, loss in enumerate(losses.cross_entropy(targets, log_p).mean(1)):
        p = [slow_match(row, phrases, TAU) for row in x_hat[b]]
        expected = sum(slow_entropy(targets[b, j], p[j]) for j in range(N)) / N
        assert loss.item() == pytest.approx(float(expected))
        right = sum(int(p[j].argmax() == targets[b, j].argmax()) for j in range(N)) / N
        assert losses.agreement(log_p, targets)[b].item() == pytest.approx(right)


def test_eq_a_bounds_the_likelihood_of_a_small_chain_by_enumeration():
    """Eq. A with three values of x_j, three levels and two texts. The two terms of h, with the
    likelihood at t = 1 and the prior's KL, are the mean of log q / p over all paths x^1, .., x^T,
    and never below -log p. Catches: a bound that is none, a term that is missing."""
    S, T = 3, 3
    q, p = soft(T, S, S), soft(T, S, S, seed=1)            # rows are q(x^t | x^t-1), p(x^t-1 | x^t)
    prior, p_y = soft(S, seed=2), soft(S, 2, seed=3)
    p_0 = prior @ p[2] @ p[1] @ p[0]                       # p_theta(x^0), (S,)
    at_t = [torch.eye(S, dtype=torch.float64), q[0], q[0] @ q[1], q[0] @ q[1] @ q[2]]
    for x0 in range(S):
        bound = (at_t[T][x0] * (at_t[T][x0] / prior).log()).sum()              # dropped
        bound -= (at_t[1][x0] * p[0][:, x0].log()).sum()                       # t = 1
        for t, xt in itertools.product(range(2, T + 1), range(S)):
            posterior = at_t[t - 1][x0] * q[t - 1][:, xt] / at_t[t][x0, xt]
            bound += at_t[t][x0, xt] * (posterior * (posterior / p[t - 1][xt]).log()).sum()
        by_paths = 0.0
        for path in itertools.product([x0], *[range(S)] * T):
            forward, backward = 1.0, prior[path[-1]]
            for t in range(T):
                forward = forward * q[t][path[t], path[t + 1]]
                backward = backward * p[t][path[t + 1], path[t]]
            by_paths += forward * (forward / backward).log()
        torch.testing.assert_close(bound, by_paths)
        assert bound > -p_0[x0].log()
    assert ((p_0[:, None] * -p_y.log()).sum(0) > -(p_0[:, None] * p_y).sum(0).log()).all()
