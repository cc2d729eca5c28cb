"""Eqs. 2 and 11 and the chain of Sec. 3.3 by hand, the schedule, and the space it lives in."""
import math

import pytest
import torch

import diffusion
from slow import draw

ALPHA_BAR = torch.tensor([0.9, 0.7, 0.3, 0.1], dtype=torch.float64)


def test_standardized_embeddings_by_loops():
    """Catches: a scale per coordinate, a sum for the mean, variance for deviation, no inverse;
    clips counted twice, or in groups of unequal weight; statistics of an update without clips."""
    space, D = diffusion.Standardizer(3, rate=0.3).double(), 3
    mean, variance = [0.0] * D, 1.0
    for step, clips in enumerate((5, 2, 7, 4, 3, 6), start=1):
        x = 2 * draw(clips, D, seed=clips) + torch.tensor([3.0, 0.0, -1.0])
        space.add(x[:1])
        space.add(x[1:])
        space.update()
        rate = max(1 / step, 0.3)                      # the mean of all, then a running average
        for d in range(D):
            mean[d] += rate * (sum(clip[d].item() for clip in x) / clips - mean[d])
        square = sum((clip[d].item() - mean[d]) ** 2 for clip in x for d in range(D))
        variance += rate * (square / (D * clips) - variance)
        assert space.mean.tolist() == pytest.approx(mean)
        assert space.variance.item() == pytest.approx(variance)
    z, kept = space(x), x.clone()
    assert z[2].tolist() == pytest.approx(
        [(x[2, d].item() - mean[d]) / math.sqrt(variance) for d in range(D)])
    torch.testing.assert_close(space.inverse(z), x)
    space.update()
    assert space.mean.tolist() == pytest.approx(mean)
    assert torch.equal(x, kept) and len(space.state_dict()) == 3 and not [*space.parameters()]
    assert diffusion.Standardizer(3).rate == 0.01      # results were measured with it


def test_clips_that_are_all_equal_can_be_standardized():
    """Catches: a division by a variance of zero."""
    space, x = diffusion.Standardizer(3).double(), draw(1, 3)
    space.add(x.expand(4, -1))
    space.update()
    assert space(draw(5, 3)).isfinite().all() and space(x).abs().max() < 1e-6


@pytest.mark.parametrize("levels, dim", [(1, 64), (2, 64), (4, 64), (4, 512), (10, 9)])
def test_default_schedule_falls_in_geometric_steps_of_the_signal_to_noise_ratio(levels, dim):
    """Catches: alpha for alpha_bar, variances for deviations, ends exchanged, D left out; another T
    than the paper's four."""
    alpha_bar = diffusion.noise_levels(dim, levels).tolist()
    assert len(alpha_bar) == levels and len(diffusion.noise_levels(dim)) == 4
    for t, a in enumerate(alpha_bar):
        share = t / max(levels - 1, 1)
        ratio = 3.0 ** (1 - share) * 0.3 ** share      # at D = 1
        assert math.sqrt(a / (1 - a)) == pytest.approx(ratio / math.sqrt(dim), rel=1e-5)


def test_eq2_closed_form_equals_noising_one_step_at_a_time():
    """Catches: t off by one, alpha for alpha_bar, variance for deviation, another row's level."""
    alpha = torch.tensor([0.9, 0.8, 0.7, 0.6], dtype=torch.float64)
    alpha_bar = alpha.cumprod(0)
    z0, noise = draw(4, 3), draw(4, 3, seed=1)
    together = diffusion.add_noise(z0, noise, alpha_bar)                 # row t at level t
    one, zero = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    mean, var = one, zero                                                # x^0 is known exactly
    for t in range(len(alpha)):
        mean, var = alpha[t].sqrt() * mean, alpha[t] * var + 1 - alpha[t]    # Eq. 2, once
        torch.testing.assert_close(diffusion.add_noise(one, zero, alpha_bar[t]), mean)
        torch.testing.assert_close(diffusion.add_noise(zero, one, alpha_bar[t]) ** 2, var)
        torch.testing.assert_close(together[t], (mean * z0[t] + var.sqrt() * noise[t])[0])


def made_up_h(zt, t):
    """Some h: another result for every input, level and coordinate."""
    assert t.shape == zt.shape[:1] and t.dtype == torch.int64
    return torch.sin(2 * zt + t[:, None] + torch.arange(zt.shape[-1]) + zt.sum(1, True))


def slow_chain(noise):
    """Sec. 3.3 for one sample (D,), T = 4, written out, with levels 1 to 4 as in the paper."""
    def h(x, t):
        return made_up_h(x[None], torch.tensor([t - 1]))[0]
    bar = {t: float(ALPHA_BAR[t - 1]) for t in (1, 2, 3)}
    x_hat = h(noise, 4)                                # x_j^T is drawn from N(0, I)
    x_hat = h(math.sqrt(bar[3]) * x_hat + math.sqrt(1 - bar[3]) * noise, 3)
    x_hat = h(math.sqrt(bar[2]) * x_hat + math.sqrt(1 - bar[2]) * noise, 2)
    return h(math.sqrt(bar[1]) * x_hat + math.sqrt(1 - bar[1]) * noise, 1)


@pytest.mark.parametrize("amount", [1.0, 0.0])
def test_sec33_sampling_equals_the_chain_written_out(amount):
    """Catches: a level skipped or asked twice, t off by one, new noise, samples mixed."""
    noise = amount * draw(3, 4)
    kept = noise.clone()
    x_hat = diffusion.sample(made_up_h, noise, ALPHA_BAR)
    for b in range(3):
        torch.testing.assert_close(x_hat[b], slow_chain(noise[b]))
    assert torch.equal(noise, kept)


def test_eq11_is_the_mean_of_probabilities_by_loops():
    """Catches: the mean of log probabilities, or of logits, in place of that of probabilities."""
    log_p = draw(2, 3, 4).log_softmax(-1)
    p = diffusion.expectation(log_p)
    for b in range(2):
        for k in range(4):
            expected = sum(math.exp(log_p[b, m, k]) for m in range(3)) / 3
            assert p[b, k].item() == pytest.approx(expected)
