"""f and h put together, and what inference makes of them: row by row, whatever f and h are."""
import math
from types import SimpleNamespace

import pytest
import torch

from denoiser import Denoiser
from encoder import TimeSformer
from model import ProcedureModel, clips_at_once, encode_parts
from slow import draw, randomized, slow_match

K, N, D, TAU = 6, 5, 16, 0.1
F = dict(image=8, patch=4, frames=2, width=8, depth=1, heads=2)
ALPHA_BAR = [0.9, 0.6, 0.2]
PHRASES = draw(K, D, seed=5).float() + 1


def build(order="diffusion", **more):
    """A tiny model with every parameter random, whose embeddings have a mean and a scale."""
    f, h = TimeSformer(dim=D, **F), Denoiser(D, layers=2, heads=2, clips=N)
    model = ProcedureModel(PHRASES, f, h, order, TAU, (.4, .25), ALPHA_BAR, **more)
    space = randomized(model, 0.3).standardize
    space.add((0.2 * draw(9, D, seed=6) + draw(D, seed=7)).float())
    space.update()
    return model


def some_clips(C):
    return torch.randint(256, (C, 2, 3, 8, 8), dtype=torch.uint8,
                         generator=torch.Generator().manual_seed(0))


def slow_f(model, clip):
    """x_i of one clip (F, 3, H, W) uint8, pixel by pixel: (D,)."""
    pixels = torch.empty(3, 2, 8, 8)
    for t, c in ((t, c) for t in range(2) for c in range(3)):
        pixels[c, t] = (clip[t, c].float() / 255 - .4) / .25
    return model.encoder(pixels[None])[0]


def slow_forecast(model, x, observed, j, noise):
    """Sec. 3.3 for one row and one noise: x (N, D), noise (D,) -> x_hat (D,); h is not told x_j."""
    mean, scale = model.standardize.mean, math.sqrt(model.standardize.variance)
    z = torch.stack([(row - mean) / scale for row in x])
    z[j] = 99.0
    zt, t = noise, len(ALPHA_BAR) - 1
    while True:
        z_hat = model.denoiser(zt[None], z[None], observed[None], torch.tensor([j]),
                               torch.tensor([t]))[0]
        if t == 0:
            return mean + scale * z_hat
        t -= 1
        zt = math.sqrt(ALPHA_BAR[t]) * z_hat + math.sqrt(1 - ALPHA_BAR[t]) * noise


@torch.no_grad()
@pytest.mark.parametrize("j", [(0, 0), (2, 1), (4, 3)], ids=["past", "present", "future"])
def test_eq1_f_h_and_the_matching_put_together(j):
    """Catches: pixels not normalized, axes exchanged; rows or samples that mix, x_j read; scores
    less a bias under --scores paper."""
    model, y = build(), torch.arange(10).view(2, 5) % K
    model.scores = "paper"
    clips, noise = some_clips(9), torch.stack([torch.zeros(2, D), draw(2, D).float()], 1)
    x = torch.zeros(2, N, D)
    encoded = model.encode(clips)
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
            slow = slow_forecast(model, padded, observed[b], j[b], noise[b, q])
            torch.testing.assert_close(x_hat[b, q], slow, rtol=1e-3, atol=1e-4)
            found, p = log_q[b, q, K - 1 - y[b, j[b]]].item(), 1.0                 # p(Y | X)
            for i, row in enumerate(slow_x):
                p *= slow_match(slow if i == j[b] else row, PHRASES, TAU)[y[b, i]]
                found += log_p[b, i, y[b, i]].item() if i != j[b] else 0.0
            assert found == pytest.approx(math.log(p), rel=1e-3)


@torch.no_grad()
def test_the_mask_model_predicts_once_whatever_the_noise():
    """Catches: a mask model that reads the noise, or its own prediction again."""
    model, asked = build(order="mask"), []
    model.denoiser.register_forward_pre_hook(lambda h, given: asked.append(given))
    x, noise = draw(2, 4, D).float(), draw(2, 3, D, seed=1).float()
    x_hat = model.forecast_next(x, noise)
    assert len(asked) == 1 and not asked[0][0].any() and (asked[0][4] == 2).all()
    assert torch.equal(x_hat, model.forecast_next(x, 0 * noise)) and x_hat.shape == (2, 3, D)
    torch.testing.assert_close(model.standardize(x_hat).flatten(0, 1), model.denoiser(*asked[0]))


@pytest.mark.parametrize("size", [0, 2, 5, 9])
def test_parts_give_the_same_embeddings_and_gradients(size):
    """Catches: a part lost or exchanged, gradients of one part alone; more clips, or pictures of
    more pixels, at once; none at all."""
    model, clips, weight, counts, found = build(), some_clips(5), draw(5, D).float(), [], []
    model.encoder.register_forward_pre_hook(lambda f, given: counts.append(len(given[0])))
    for encode in model, lambda clips: encode_parts(model, clips, size):
        x = encode(clips)
        (x * weight).sum().backward()
        found.append([x, *(p.grad for p in model.encoder.parameters())])
        model.zero_grad(set_to_none=True)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert counts[0] == 5 and max(counts[1:]) <= (size or 5)
    for frames, image, expected in (8, 224, 24), (32, 224, 6), (8, 112, 96), (999, 224, 1):
        assert clips_at_once(SimpleNamespace(frames=frames, image=image)) == expected


def test_other_axes_and_types_are_refused():
    """Catches: an answer for exchanged axes, for normalized pixels, for one clip or row; a line of
    torch that names no argument; a sentence about what is right."""
    model, clips, x, noise = build(), some_clips(5), torch.ones(2, 4, D), torch.ones(2, 3, D)
    seen, j = torch.ones(2, 4) > 0, torch.zeros(2, dtype=torch.int64)
    for method, *given, name in (
            *((model, wrong, "clips") for wrong in (
                clips.transpose(1, 2), clips / 255, clips[0], clips[:, :1], clips[..., :4], [1])),
            (model.match, x[..., 1:], "x"), (model.match, x.double(), "x"),
            (model.match, x, x, "texts"), (model.match, x, ["a"], "texts"),
            (model.match, x, x[0, :, 1:], "texts"), (model.forecast_next, x[0], noise, "x"),
            (model.forecast_next, x, noise[:1], "noise"),
            (model.forecast_next, x, noise[:, 0], "noise"),
            (model.forecast, x, seen[:, 1:], j, noise, "observed"),
            (model.forecast, x, seen, j.float(), noise, "j"),
            (model.forecast, x, seen, j, noise[..., 1:], "noise")):
        with pytest.raises(ValueError, match=rf"^{name} \(.*: needed is torch.* given is \S+ "):
            method(*given)
    with pytest.raises(ValueError, match=f"^{N + 1} clips, the missing one included: h reads {N}$"):
        model.forecast_next(torch.ones(2, N, D), noise)
    assert model.match(x[0, 0]).shape == (K,)
