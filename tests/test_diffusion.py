"""Eqs. 2 and 11, the chain of Sec. 3.3 by hand, and what the schedule's levels mean."""
import math

import pytest
import torch
from torch.nn import functional

import diffusion

ALPHA_BAR = torch.tensor([0.9, 0.7, 0.3, 0.1], dtype=torch.float64)


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def crowded(K, D, spread=0.5, seed=0):
    """Unit vectors with a large common part, as CLIP's text embeddings."""
    common = functional.normalize(draw(D, seed=seed), dim=-1)
    rest = functional.normalize(draw(K, D, seed=seed + 1), dim=-1)
    return functional.normalize(common + spread * rest, dim=-1)


# --- Eq. 2 ---
def test_eq2_closed_form_equals_noising_one_step_at_a_time():
    """Catches: t off by one, alpha used for alpha_bar, variance used for standard deviation."""
    alpha = torch.tensor([0.9, 0.8, 0.7, 0.6], dtype=torch.float64)
    alpha_bar = alpha.cumprod(0)
    one, zero = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    mean, var = one, zero                                                # x^0 is known exactly
    for t in range(len(alpha)):
        mean, var = alpha[t].sqrt() * mean, alpha[t] * var + 1 - alpha[t]    # Eq. 2, once
        torch.testing.assert_close(diffusion.add_noise(one, zero, alpha_bar[t]), mean)
        torch.testing.assert_close(diffusion.add_noise(zero, one, alpha_bar[t]) ** 2, var)


def test_add_noise_refuses_to_broadcast():
    """Catches: one noise for a whole batch."""
    with pytest.raises(ValueError, match=r"noise is \(4,\), z0 is \(2, 4\)"):
        diffusion.add_noise(draw(2, 4), draw(4), ALPHA_BAR[0])


# --- The schedule, and the space it lives in ---
@pytest.mark.parametrize("levels", [2, 4, 10])
def test_schedule_falls_in_geometric_steps_of_the_signal_to_noise_ratio(levels):
    """Catches: alpha returned for alpha_bar, the ratio of variances for that of deviations, the
    first and the last exchanged."""
    alpha_bar = diffusion.noise_levels(levels).tolist()
    assert len(alpha_bar) == levels and len(diffusion.noise_levels()) == 4
    for t, a in enumerate(alpha_bar):
        share = t / (levels - 1)
        ratio = 3.0 ** (1 - share) * 0.3 ** share
        assert math.sqrt(a / (1 - a)) == pytest.approx(ratio, rel=1e-5)


def clean_points(phrases):
    """(K, D), as float64: the map is made for float32."""
    mean, A = diffusion.affine_map(phrases)
    unit = torch.stack([y / math.sqrt(y @ y) for y in phrases])
    return (unit - mean.double()) @ A.double()


@pytest.mark.parametrize("K", [12, 3])
def test_clean_points_are_half_whitened_with_mean_squared_length_one(K):
    """Catches: the common part left in, lengths of the texts left in, a scale per coordinate, a
    mean over D in place of a sum (points sqrt(D) too long), variance used for deviation (whitened),
    axes transposed; with K < D: another floor where the texts do not spread, or none."""
    phrases = crowded(K, 5) * torch.arange(1, K + 1)[:, None]
    points, (mean, A) = clean_points(phrases), diffusion.affine_map(phrases)
    assert mean.shape == (5,) and A.shape == (5, 5)
    torch.testing.assert_close(A, A.T)
    assert points.sum(0).abs().max() < 1e-5
    assert sum(float(z @ z) for z in points) / K == pytest.approx(1, rel=1e-5)
    unit = torch.stack([y / math.sqrt(y @ y) for y in phrases])
    _, length, axes = torch.linalg.svd(unit - unit.mean(0))        # another way to the same axes
    length = torch.cat([length, length.new_zeros(5)])[:5]
    spread = [max(float(s), .01 * float(length[0])) for s in length]
    for axis, s in zip(axes, spread):                              # shrunk by the root of it
        expected = math.sqrt(spread[0] / s) * (A.double() @ axes[0]) @ axes[0] * axis
        torch.testing.assert_close(A.double() @ axis, expected, rtol=1e-3, atol=1e-4)


def bayes_accuracy(D, spread, draws=3000, K=32):
    """Share of right guesses of which of K points it was, from x_j^t alone, per level: (T,)."""
    points, hits = clean_points(crowded(K, D, spread)), []
    truth = torch.arange(draws) % K
    for t, a in enumerate(diffusion.noise_levels().double()):
        zt = diffusion.add_noise(points[truth], draw(draws, D, seed=9 + t), a.expand(draws))
        hits.append((torch.cdist(zt, a.sqrt() * points).argmin(1) == truth).double().mean())
    return torch.stack(hits)


def test_a_level_means_the_same_at_any_width_and_for_any_crowd():
    """Catches: noise that grows with D against unit vectors (at D = 512 all is lost at level 0), a
    common part of the texts that hides their differences."""
    reference = bayes_accuracy(64, 0.5)
    assert reference[0] > reference[-1] + 0.3 and (reference.diff() < 0).all()
    assert (bayes_accuracy(512, 0.5) - reference).abs().max() < 0.04
    assert (bayes_accuracy(64, 0.05) - reference).abs().max() < 0.04


def test_skip_scale_is_what_the_noisy_point_says_of_the_clean_one():
    """Catches: alpha_bar for its root, the deviation of the noise for its variance. Compared with
    the posterior of points of equal length under Eq. 2 and a flat prior."""
    points, zt = functional.normalize(draw(6, 5), dim=-1), draw(5, seed=1)
    for a, c in zip(ALPHA_BAR, diffusion.skip_scale(ALPHA_BAR)):
        log_q = [-sum(float(v - math.sqrt(a) * w) ** 2 for v, w in zip(zt, z)) / (2 * (1 - a))
                 for z in points]
        torch.testing.assert_close((c * points @ zt).softmax(0), torch.stack(log_q).softmax(0))


def test_training_asks_a_level_and_zeros_at_the_last():
    """Catches: levels and their numbers out of step; x_j^T = 0 asked at another level than
    inference asks it, or never; clips that are missing together mixed up, or their levels."""
    z0, noise = draw(5, 2, 3), draw(5, 2, 3, seed=1)
    levels = torch.tensor([[2, 1], [0, 0], [3, 0], [1, 2], [1, 3]])
    zt, t = diffusion.training_queries(z0, levels, noise, ALPHA_BAR)
    assert zt.shape == (5, 4, 3) and t.tolist() == [[*k, 3, 3] for k in levels.tolist()]
    for b in range(5):
        for p in range(2):
            a = float(ALPHA_BAR[levels[b, p]])
            torch.testing.assert_close(zt[b, p],
                                       math.sqrt(a) * z0[b, p] + math.sqrt(1 - a) * noise[b, p])
    assert (zt[:, 2:] == 0).all()


# --- Sec. 3.3 ---
def made_up_h(zt, t):
    """Some h: another result for every input, level and coordinate."""
    x_hat = torch.sin(2 * zt + t[..., None] + torch.arange(zt.shape[-1]))
    return x_hat, 0.5 * x_hat ** 2 - 0.3


def slow_chain(noise):
    """Sec. 3.3 for one noise (D,), T = 4, written out; levels 1 to 4 as in the paper."""
    def h(z, t):
        x_hat, z_hat = made_up_h(z[None, None], torch.tensor([[t - 1]]))
        return x_hat[0, 0], z_hat[0, 0]

    bar = {t: float(ALPHA_BAR[t - 1]) for t in (1, 2, 3, 4)}
    z4 = math.sqrt(1 - bar[4]) * noise
    _, clean = h(z4, 4)
    z3 = math.sqrt(bar[3]) * clean + math.sqrt(1 - bar[3]) * noise
    _, clean = h(z3, 3)
    z2 = math.sqrt(bar[2]) * clean + math.sqrt(1 - bar[2]) * noise
    _, clean = h(z2, 2)
    z1 = math.sqrt(bar[1]) * clean + math.sqrt(1 - bar[1]) * noise
    x_hat, _ = h(z1, 1)
    return x_hat


@pytest.mark.parametrize("amount", [1.0, 0.0])
def test_sec33_sampling_equals_the_chain_written_out(amount):
    """Catches: a level skipped or asked twice, t off by one, new noise at each level, noise added
    after the last one, x_hat noised again in place of z_hat, x_j^T of variance 1, samples that mix;
    with amount 0: the zero vector."""
    noise = amount * draw(2, 3, 4)
    kept = noise.clone()
    x_hat = diffusion.sample(made_up_h, noise, ALPHA_BAR)
    for b in range(2):
        for q in range(3):
            torch.testing.assert_close(x_hat[b, q], slow_chain(noise[b, q]))
    assert torch.equal(noise, kept)


def test_sec33_clips_missing_together_come_one_after_another_by_loops():
    """Catches: clips of a group denoised at once, or in another order; one that is not seen by
    those after it, or with another noise; a group that sees another; levels of those that wait."""
    def h(zt, t):                                      # what each makes of itself and of its group
        x_hat = torch.empty_like(zt)
        for q in range(zt.shape[1]):
            first = q - q % 3
            group = sum((1 + r) * (zt[:, first + r] + t[:, first + r, None]) for r in range(3))
            x_hat[:, q] = torch.sin(2 * zt[:, q] + t[:, q, None] + 0.3 * group)
        return x_hat, 0.5 * x_hat ** 2 - 0.3

    noise = draw(2, 6, 4)
    found = diffusion.sample(h, noise, ALPHA_BAR, together=3)
    for b in range(2):
        for first in (0, 3):
            eps = [noise[b, first + r] for r in range(3)]
            z, level = [(1 - ALPHA_BAR[3]).sqrt() * e for e in eps], [3, 3, 3]
            for r in range(3):
                for level[r] in (3, 2, 1, 0):
                    x_hat, z_hat = h(torch.stack(z)[None], torch.tensor([level]))
                    if level[r]:
                        a = ALPHA_BAR[level[r] - 1]
                        z[r] = a.sqrt() * z_hat[0, r] + (1 - a).sqrt() * eps[r]
            torch.testing.assert_close(found[b, first:first + 3], x_hat[0])


def test_eq11_is_the_mean_of_probabilities_by_loops():
    """Catches: the mean of log probabilities, or of logits, in place of that of probabilities."""
    log_p = draw(2, 3, 4).log_softmax(-1)
    p = diffusion.expectation(log_p)
    for b in range(2):
        for k in range(4):
            expected = sum(math.exp(log_p[b, m, k]) for m in range(3)) / 3
            assert p[b, k].item() == pytest.approx(expected)
