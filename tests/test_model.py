"""f and h put together, and what inference makes of them: row by row, whatever f and h are."""
import math

import pytest
import torch

from denoiser import Denoiser
from diffusion import sample
from model import Config
from slow import draw, randomized, slow_match
from weights.checkpoint import build as build_model

K, N, D, TAU, SCALE = 6, 5, 16, 0.1, 3.0
ALPHA_BAR = [0.9, 0.6, 0.2]
PHRASES = draw(K, D, seed=5).float() + 1


def build(order="diffusion"):
    """A tiny model with every parameter random."""
    f = dict(kind="timesformer", image=8, patch=4, frames=2, width=8, depth=1, heads=2)
    h = dict(layers=2, heads=2, clips=N)
    config = Config(f, h, order, TAU, SCALE, ALPHA_BAR, (.4, .25))
    return randomized(build_model(config, PHRASES), 0.3)


def some_clips(C):
    return torch.randint(256, (C, 2, 3, 8, 8), dtype=torch.uint8,
                         generator=torch.Generator().manual_seed(0))


def slow_f(model, clip):
    """x_i of one clip (F, 3, H, W) uint8, pixel by pixel: (D,)."""
    pixels = torch.empty(3, 2, 8, 8)
    for t, c in ((t, c) for t in range(2) for c in range(3)):
        pixels[c, t] = (clip[t, c].float() / 255 - .4) / .25
    return model.encoder(pixels[None])[0]


@torch.no_grad()
@pytest.mark.parametrize("j", [(0, 0), (2, 1), (4, 3)], ids=["past", "present", "future"])
def test_eq1_f_h_and_the_matching_put_together(j):
    """Catches: pixels not normalized, axes exchanged; rows or samples that mix, x_j read; a scale
    that is left out, or of one side alone."""
    model, y = build(), torch.arange(10).view(2, 5) % K
    clips, noise = some_clips(9), torch.stack([torch.zeros(2, D), draw(2, D).float()], 1)
    x = torch.zeros(2, N, D)
    encoded = model(clips)
    x[0], x[1, :4] = encoded[:5], encoded[5:]                      # of row 1, the last is padding
    observed = torch.ones(2, N, dtype=torch.bool)
    observed[1, 4] = observed[0, j[0]] = observed[1, j[1]] = False
    x_hat = model.forecast(x, observed, torch.tensor(j), noise)                    # (B, Q, D)
    log_p, log_q = model.match(x), model.match(x_hat, 3 * PHRASES.flip(0))         # other texts
    for b, part in enumerate(clips.split([5, 4])):
        slow_x = torch.stack([slow_f(model, clip) for clip in part])               # (n, D)
        torch.testing.assert_close(x[b, :len(part)], slow_x, rtol=1e-4, atol=1e-5)
        padded = torch.cat([slow_x, torch.full((N - len(part), D), 7.0)])
        for q in range(2):
            z = SCALE * padded[None]
            z[0, j[b]] = 99.0                                      # h is not told x_j
            slow = sample(model.denoiser, z, observed[b:b + 1], torch.tensor(j[b:b + 1]),
                          noise[b:b + 1, q], torch.tensor(ALPHA_BAR))[0] / SCALE
            torch.testing.assert_close(x_hat[b, q], slow, rtol=1e-3, atol=1e-4)
            found, p = log_q[b, q, K - 1 - y[b, j[b]]].item(), 1.0                 # p(Y | X)
            for i, row in enumerate(slow_x):
                p *= slow_match(slow if i == j[b] else row, PHRASES, TAU)[y[b, i]]
                found += log_p[b, i, y[b, i]].item() if i != j[b] else 0.0
            assert found == pytest.approx(math.log(p), rel=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("order", ["diffusion", "mask"])
def test_histories_of_any_length_are_forecast_as_if_alone(order):
    """Catches: padding that is read, a clip that is not; the next clip at another place; an h of
    the mask that reads the noise, its own prediction or the level, or is not asked at the last."""
    model, x, noise = build(order), draw(3, 4, D).float(), draw(3, 2, D, seed=1).float()
    n, asked = torch.tensor([4, 1, 2]), []
    x_hat = model.forecast_next(x, noise, n)
    model.denoiser.register_forward_pre_hook(lambda h, given: asked.append(given))
    for b, k in enumerate(n):
        alone = model.forecast_next(x[b:b + 1, :k], noise[b:b + 1])
        torch.testing.assert_close(x_hat[b:b + 1], alone, rtol=1e-4, atol=1e-5)
        assert (asked[0][3] == k).all() and len(asked) == 3
        if order == "mask":
            zt, t = torch.zeros_like(asked[0][0]), torch.full_like(asked[0][4], 3)
            plain = Denoiser.forward(model.denoiser, zt, *asked[0][1:4], t)
            torch.testing.assert_close(SCALE * alone[0], plain)
        asked.clear()
    assert torch.equal(x_hat, model.forecast_next(x, 0 * noise, n)) == (order == "mask")
