"""Eqs. 2 and 11 and the chain of Sec. 3.3 by hand, and what the paper leaves open: the schedule."""
import math

import pytest
import torch

import diffusion
from slow import draw

ALPHA_BAR = torch.tensor([0.9, 0.7, 0.3, 0.1], dtype=torch.float64)


@pytest.mark.parametrize("levels, dim", [(1, 64), (4, 64), (4, 512), (10, 9)])
def test_default_schedule_falls_in_geometric_steps_of_the_signal_to_noise_ratio(levels, dim):
    """Catches: alpha for alpha_bar, variances for deviations, ends exchanged, D left out; another T
    than the paper's four, or another scale than is documented."""
    alpha_bar = diffusion.noise_levels(dim, levels=levels).tolist()
    assert len(alpha_bar) == levels and len(diffusion.noise_levels(dim)) == 4
    for t, a in enumerate(alpha_bar):
        share = t / max(levels - 1, 1)
        ratio = 1.5 ** (1 - share) * 0.3 ** share      # at D = 1
        assert math.sqrt(a / (1 - a)) == pytest.approx(ratio / math.sqrt(dim), rel=1e-5)
    assert diffusion.scale_of(64) == 16
    release = torch.tensor([.9999, .9932, .9799, .9603])
    torch.testing.assert_close(diffusion.released_levels(), release, rtol=0, atol=5e-5)


def test_eq2_closed_form_equals_noising_one_step_at_a_time():
    """Catches: t off by one, alpha for alpha_bar, variance for deviation, another row's level."""
    alpha = torch.tensor([0.9, 0.8, 0.7, 0.6], dtype=torch.float64)
    alpha_bar = alpha.cumprod(0)
    z0, noise = draw(2, 4, 3), draw(2, 4, 3, seed=1)
    together = diffusion.add_noise(z0, noise, alpha_bar.expand(2, 4))    # column t at level t
    mean, var = 1.0, 0.0                                                 # x^0 is known exactly
    for t in range(len(alpha)):
        mean, var = alpha[t].sqrt() * mean, alpha[t] * var + 1 - alpha[t]    # Eq. 2, once
        for b in range(2):
            torch.testing.assert_close(together[b, t], mean * z0[b, t] + var.sqrt() * noise[b, t])


def made_up_h(zt, z, observed, j, t):
    """Some h: another result for every input, level and coordinate."""
    assert t.shape == j.shape == zt.shape[:1] and t.dtype == torch.int64
    seen = (z * observed[..., None]).sum(1) + j[:, None]
    return torch.sin(2 * zt + t[:, None] + torch.arange(zt.shape[-1]) + zt.sum(1, True) + seen)


@pytest.mark.parametrize("amount", [1.0, 0.0])
def test_sec33_sampling_equals_the_chain_written_out(amount):
    """Catches: a level skipped or asked twice, t off by one, new noise, rows mixed."""
    noise, z, j = amount * draw(3, 4), draw(3, 5, 4, seed=1), torch.tensor([0, 2, 4])
    observed, kept = draw(3, 5, seed=2) > 0, noise.clone()
    x_hat = diffusion.sample(made_up_h, z, observed, j, noise, ALPHA_BAR)
    bar = {t: float(ALPHA_BAR[t - 1]) for t in (1, 2, 3)}          # levels are 1 to 4, as there
    for b in range(3):
        def h(xt, t):
            return made_up_h(xt[None], z[b:b + 1], observed[b:b + 1], j[b:b + 1],
                             torch.tensor([t - 1]))[0].float()
        slow = h(noise[b], 4)                          # x_j^T is drawn from N(0, I)
        for t in (3, 2, 1):
            slow = h(math.sqrt(bar[t]) * slow + math.sqrt(1 - bar[t]) * noise[b], t)
        torch.testing.assert_close(x_hat[b], slow)
    assert torch.equal(noise, kept)


def test_eq11_is_the_mean_of_probabilities_by_loops():
    """Catches: the mean of log probabilities, or of logits, in place of that of probabilities."""
    log_p = draw(2, 3, 4).log_softmax(-1)
    p = diffusion.expectation(log_p)
    for b in range(2):
        for k in range(4):
            expected = sum(math.exp(log_p[b, m, k]) for m in range(3)) / 3
            assert p[b, k].item() == pytest.approx(expected)
