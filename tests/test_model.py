"""f and h together: losses, gradients, what is hidden, and forecasts."""
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

import data
import model as model_module
import train
from model import ProcedureModel
from settings import TrainSettings

K, D, N, TAU = 6, 8, data.CLIPS, 0.1
H = dict(width=16, layers=2, heads=2)
F = dict(image=8, patch=4, frames=2, width=8, depth=1, heads=2)
PHRASES = torch.randn(K, D, generator=torch.Generator().manual_seed(5)) + 1


def build(order="diffusion", encoder=None, seed=0, spread=0.3):
    """A tiny model with every parameter random: h's start would hide what it sees."""
    torch.manual_seed(seed)
    model = ProcedureModel(PHRASES, encoder, H if order != "none" else None, order, TAU,
                           (.4, .25) if encoder else None, teacher_tau=.07)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=spread)
    return model


def rows(B=3, seed=0):
    """x (B, N, D) unit, there (B, N) with 9, 6 and 3 clips, targets (B, N, K)."""
    generator = torch.Generator().manual_seed(seed)
    x = functional.normalize(torch.randn(B, N, D, generator=generator), dim=-1)
    there = torch.arange(N) < torch.tensor([9, 6, 3])[:B, None]
    return x, there, (2 * torch.randn(B, N, K, generator=generator)).softmax(-1)


J = torch.tensor([4, 5, 0])                            # a missing clip of each video


def drawn(there, seed=0):
    """What may be read, and which clips are missing: one video forecasts, the others have gaps."""
    for generator in map(torch.Generator().manual_seed, range(seed, seed + 1000)):
        observed, missing = train.draw_missing(there, generator)
        gaps = observed.any(1).sum(1) > 0
        forecasts = (missing == there).all(1) & gaps
        if forecasts.tolist() == [True, False, False] and gaps.all() and missing.any(1).all():
            return observed, missing


def noise_like(model, B=3, seed=1):
    return torch.randn(B, len(model.alpha_bar), D, generator=torch.Generator().manual_seed(seed))


# ------------------------------------------------------------------------------------------------
# Eqs. 6 to 10 as they are wired
# ------------------------------------------------------------------------------------------------
def slow_match(x, phrases, tau=TAU):
    """Eq. 6 for one x: (D,) -> (K,)."""
    score = torch.stack([x @ y / (tau * x.norm() * y.norm()) for y in phrases])
    return score.exp() / score.exp().sum()


def slow_points():
    """z_k by loops: unit texts less their mean, mean squared length 1."""
    unit = [y / y.norm() for y in PHRASES]
    mean = sum(unit) / K
    scale = 1 / math.sqrt(sum(float((y - mean) @ (y - mean)) for y in unit) / K)
    return [scale * (y - mean) for y in unit], mean


def test_eq5_predictor_equals_h_asked_one_query_at_a_time():
    """Catches: the context or the noisy point not scaled, the mean text left out, z_hat not the
    point that Eq. 6 expects of x_hat, level or j of another query."""
    model, (x, there, _) = build(), rows()
    points, mean = slow_points()
    zt, t = noise_like(model), torch.tensor([[0, 1, 2, 3], [3, 3, 1, 0], [2, 0, 0, 1]])
    j = torch.tensor([[4, 0, 1, 8], [5, 5, 2, 0], [0, 1, 2, 0]])
    with torch.no_grad():
        x_hat, z_hat = model.predictor(x, there[:, None], j)(zt, t)
        for b in range(3):
            context = torch.stack([math.sqrt(D) * sum(p * z for p, z in
                                                      zip(slow_match(row, PHRASES, model.clip_tau),
                                                      points))
                                   for row in x[b]])
            for q in range(4):
                a = float(model.alpha_bar[t[b, q]])
                out = model.denoiser(context[None], there[b:b + 1, None],
                                     zt[b:b + 1, q:q + 1] / math.sqrt(a / D + 1 - a),
                                     j[b:b + 1, q:q + 1], t[b:b + 1, q:q + 1])[0, 0]
                slow = mean + model_module.GAIN * out
                torch.testing.assert_close(x_hat[b, q], slow, rtol=1e-4, atol=1e-5)
                expected = sum(p * z for p, z in zip(slow_match(slow, PHRASES), points))
                torch.testing.assert_close(z_hat[b, q], expected, rtol=1e-4, atol=1e-5)


def test_eq9_eq10_ordering_losses_by_loops(monkeypatch):
    """Catches: the target or the clean point of another clip than j, a level noised as another,
    sums for means, MSE between embeddings and points, the view of another clip, padding counted."""
    model, (x, there, targets) = build(), rows()
    points, _ = slow_points()
    observed, missing = drawn(there)
    monkeypatch.setattr(train, "draw_missing", lambda there: (observed, missing))
    torch.manual_seed(7)                                  # the order of the draws, as in the code
    t, noise, mse, mc = torch.randint(4, (3, N)), torch.randn(3, N, D), 0.0, 0.0
    with torch.no_grad():
        for b, j in missing.nonzero().tolist():
            z0 = sum(p * z for p, z in zip(targets[b, j], points))
            a = float(model.alpha_bar[t[b, j]])
            seen = torch.cat([observed[b, :N], observed[b, N + j:N + j + 1]])[None]
            predict = model.predictor(x[b:b + 1], seen, torch.tensor([[j]]))
            for zt, level in ((math.sqrt(a) * z0 + math.sqrt(1 - a) * noise[b, j], t[b, j]),
                              (torch.zeros(D), 3)):
                x_hat, z_hat = predict(zt[None, None], torch.tensor([[level]]))
                mse += float((z_hat[0, 0] - z0) @ (z_hat[0, 0] - z0)) / (2 * missing.sum())
                p = slow_match(x_hat[0, 0], PHRASES)
                mc -= float(sum(w * math.log(v) for w, v in zip(targets[b, j], p))
                            ) / (2 * missing.sum())
        torch.manual_seed(7)
        ours = train.ordering_losses(model, x, there, targets)
    assert [value.item() for value in ours] == pytest.approx([float(mse), float(mc)], rel=1e-4)


# ------------------------------------------------------------------------------------------------
# What is missing, and who may read what
# ------------------------------------------------------------------------------------------------
def reached(observed, j):
    """Clips that reach query j, directly or by way of other clips: a set of ints."""
    found, new = set(), set(observed[N + j].nonzero()[:, 0].tolist())
    while new:
        found |= new
        new = {k for i in new for k in observed[i].nonzero()[:, 0].tolist()} - found
    return found


def test_draws_never_let_a_missing_clip_be_reached():
    """Catches: clip j, padding, another gap or the future read by query j, or by a clip that it
    reads; a video that neither forecasts nor has gaps."""
    counts = torch.tensor([1, 2, 5, 9]).repeat(200)
    there = torch.arange(N) < counts[:, None]
    observed, missing = train.draw_missing(there, torch.Generator().manual_seed(0))
    assert observed.shape == (800, 2 * N, N) and not (missing & ~there).any()
    causal = 0
    for b in range(800):
        count, gone = int(counts[b]), set(missing[b].nonzero()[:, 0].tolist())
        seen = {j: reached(observed[b], j) for j in gone}
        before = all(seen[j] == set(range(j)) for j in gone) and len(gone) == count
        kept = all(seen[j] == set(range(count)) - gone for j in gone)
        assert before or kept, (b, seen)
        causal += before and count == 9
    assert causal / 200 == pytest.approx(train.FORECASTS, abs=0.1)


def test_draws_ask_for_every_position():
    """Catches: a position that is never missing, or missing all the time; a tail never hidden."""
    n, there = 6, (torch.arange(N) < 6).expand(6000, N)
    _, missing = train.draw_missing(there, torch.Generator().manual_seed(0))
    for i in range(n):                                    # a tail starts before i: i of n + 1
        gap = 1 - 2 / 3 * (1 - i / (n + 1))
        expected = train.FORECASTS + (1 - train.FORECASTS) * gap
        assert missing[:, i].double().mean().item() == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("order", ["diffusion", "mask"])
def test_hidden_clips_get_no_gradient_and_observed_ones_do(monkeypatch, order):
    """Catches: h reads the missing clip itself, a gap, the hidden future or padding; an observed
    clip that it cannot read."""
    model, (x, there, targets) = build(order), rows()
    observed, missing = drawn(there)
    for b, j in missing.nonzero().tolist():
        one = torch.zeros_like(missing)
        one[b, j] = True
        monkeypatch.setattr(train, "draw_missing", lambda there: (observed, one))
        x.requires_grad_().grad = None
        train.ordering_losses(model, x, there, targets)[1].backward()
        touched = x.grad.abs().amax(-1).nonzero().tolist()
        assert touched == [[b, i] for i in sorted(reached(observed[b], j))], (b, j)


# ------------------------------------------------------------------------------------------------
# A training step
# ------------------------------------------------------------------------------------------------
class Source:
    """Videos of 9, 6, 1 and 0 clips, in the form that `train.step_losses` asks for."""
    counts = [9, 6, 1, 0]

    def __init__(self):
        generator = torch.Generator().manual_seed(2)
        total = sum(self.counts)
        self.pixels = torch.randint(256, (total, 2, 3, 8, 8), dtype=torch.uint8,
                                    generator=generator)
        self.features = torch.randn(total, D, generator=generator).requires_grad_()
        self.first = np.cumsum([0, *self.counts])

    def pretrain_windows(self, video, rng):
        return np.zeros((self.counts[video], 2))

    def take(self, rows, requests):
        return torch.cat([rows[self.first[v]:self.first[v + 1]] for v, _ in requests])

    def clips(self, requests):
        return self.take(self.pixels, requests)

    def teacher(self, requests):
        return self.take(self.features, requests)


def step(model, source, ordering, videos=range(4)):
    batch = train.encode_batch(model, source, videos, np.random.default_rng(3), "cpu")
    torch.manual_seed(3)
    return train.objective(model, *batch, ordering)


@pytest.mark.parametrize("order", ["diffusion", "mask"])
def test_eq7_gradients_reach_f_and_h_and_nothing_else(order):
    """Catches: an encoder detached from the objective, a part of h that is never used, phrases,
    points, mean, teacher or soft targets trained along."""
    model, source = build(order, F), Source()
    terms = step(model, source, ordering=True)
    assert terms["loss"].item() == pytest.approx(sum(terms[n].item() for n in ("xe", "mse", "mc")))
    terms["loss"].backward()
    dead = [name for name, p in model.named_parameters()
            if p.grad is None or not p.grad.isfinite().all() or p.grad.abs().max() == 0]
    assert dead == (["denoiser.read_noisy.weight"] if order == "mask" else [])  # it reads zeros
    assert source.features.grad is None
    assert not any(buffer.requires_grad for buffer in model.buffers())
    assert {name for name, _ in model.named_buffers()} == {
        "phrases", "mean", "points", "alpha_bar"}


def test_eq7_every_term_trains_what_it_should():
    """Catches: L_XE that trains h; L_MSE or L_MC that do not reach the encoder by the context."""
    model, source = build(encoder=F), Source()
    f, h = model.encoder.patch_embed.proj.weight, model.denoiser.out.weight
    for name, of_h in (("xe", False), ("mse", True), ("mc", True)):
        model.zero_grad(set_to_none=True)
        step(model, source, ordering=True)[name].backward()
        assert f.grad.abs().max() > 0, name
        assert (h.grad is not None and bool(h.grad.abs().max() > 0)) == of_h, name


def test_eq8_is_its_mean_over_each_clip_in_turn_as_the_missing_one():
    """Catches: L_XE of the observed clips of one draw alone, 1 / N^2, a clip or a video left out,
    the teacher's temperature for the student's or the other way round."""
    model, source = build(encoder=F), Source()
    with torch.no_grad():
        ours, alone = step(model, source, True)["xe"], step(model, source, False)
        x, each = model.encode(source.pixels), []
        for i in range(16):
            p = slow_match(x[i], PHRASES)
            score = torch.stack([functional.cosine_similarity(source.features[i], y, dim=0)
                                 for y in PHRASES]) / model.teacher_tau
            each.append(-float(sum(w * math.log(v) for w, v in zip(score.softmax(0), p))))
        one = step(model, source, True, [0])["xe"]
    expected = 0.0
    for j in range(9):
        expected += sum(each[i] for i in range(9) if i != j) / (9 - 1) / 9              # Eq. 8
    assert one.item() == pytest.approx(expected, rel=1e-4)
    assert ours.item() == pytest.approx(sum(each) / 16, rel=1e-4)
    assert alone["loss"] == alone["xe"] == ours


# ------------------------------------------------------------------------------------------------
# Forecasts
# ------------------------------------------------------------------------------------------------
def test_sec33_forecast_of_a_permuted_batch_and_of_single_samples():
    """Catches: samples or videos that mix; the zero vector treated apart from other noise."""
    model, (x, there, _) = build(), rows()
    noise = torch.cat([0 * noise_like(model)[:, :1], noise_like(model)], 1)
    observed, turn = there & (torch.arange(N) != J[:, None]), torch.tensor([2, 0, 1])
    with torch.no_grad():
        x_hat = model.forecast(x, observed, J, noise)
        torch.testing.assert_close(
            model.forecast(x[turn], observed[turn], J[turn], noise[turn]), x_hat[turn])
        for q in range(noise.shape[1]):
            alone = model.forecast(x, observed, J, noise[:, q:q + 1])
            torch.testing.assert_close(alone, x_hat[:, q:q + 1])
    assert (x_hat[:, 1:] - x_hat[:, :1]).abs().amax(-1).min() > 1e-4       # samples do differ


@pytest.mark.parametrize("order", ["diffusion", "mask"])
def test_a_past_present_or_future_clip_can_be_forecast(order):
    """Catches: a forecast that works for the last clip alone, or does not know which is missing;
    one that reads the missing clip or padding."""
    model, (x, _, _) = build(order), rows(1)
    noise, results = noise_like(model, 1), []
    with torch.no_grad():
        for j in range(7):                                                 # clips 7 and 8: padding
            observed = (torch.arange(N) != j) & (torch.arange(N) < 7)
            results.append(model.forecast(x, observed[None], torch.tensor([j]), noise))
            for i in range(N):
                other = x.clone()
                other[:, i] = functional.normalize(x[:, i].flip(-1) + 1, dim=-1)
                moved = (model.forecast(other, observed[None], torch.tensor([j]), noise)
                         - results[-1]).abs().max()
                assert (moved > 0) == observed[i], (j, i, moved)
    for a in range(7):
        assert results[a].isfinite().all()
        assert all((results[a] - results[b]).abs().max() > 1e-5 for b in range(a))


def test_mask_and_none_are_what_the_ablation_says(monkeypatch):
    """Catches: a mask model that reads the noise or has an L_MSE; matching alone with an h."""
    model, (x, there, targets) = build("mask"), rows()
    noise, one = noise_like(model), torch.arange(N) == J[:, None]
    observed = there & ~one
    x_hat = model.forecast(x, observed, J, noise)
    assert x_hat.shape == noise.shape
    assert torch.equal(x_hat, model.forecast(x, observed, J, 0 * noise))
    monkeypatch.setattr(train, "draw_missing",
                        lambda there: (observed[:, None].expand(3, 2 * N, N), one))
    mse, mc = train.ordering_losses(model, x, there, targets)
    expected = -(targets[torch.arange(3), J] * model.match(x_hat[:, 0])).sum(-1).mean()
    assert mse == 0 and mc.item() == pytest.approx(expected.item(), rel=1e-5)
    none = build("none", F)
    assert none.denoiser is None and set(step(none, Source(), ordering=False)) == {"loss", "xe"}


def test_encode_normalises_pixels_and_embeddings():
    """Catches: frames and channels exchanged, no division by 255, embeddings of other lengths."""
    model, clips = build(encoder=F), Source().pixels[:2]
    pixels = torch.stack([torch.stack([(clips[:, f, c] / 255 - .4) / .25 for f in range(2)], 1)
                          for c in range(3)], 1)                           # (C, 3, F, H, W)
    torch.testing.assert_close(model.encode(clips), model.encoder(pixels))
    torch.testing.assert_close(model.encode(clips).norm(dim=-1), torch.ones(2))
    torch.testing.assert_close(build().encode(3 * PHRASES), functional.normalize(PHRASES, dim=-1))
