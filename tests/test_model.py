"""f and h together: losses, gradients, what is hidden, and forecasts."""
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import diffusion
import model as model_module
from data import CLIPS, Loaded
from files.annotations import FeaturesFile
from train import TrainSettings
from training import pretrain
from training.run import Run, Stage
from weights.checkpoint import build_model

K, D, N, TAU, CLIP_TAU = 6, 8, CLIPS, 0.1, 0.4
H = dict(width=16, layers=2, heads=2)
F = dict(image=8, patch=4, frames=2, width=8, depth=1, heads=2)
PHRASES = torch.randn(K, D, generator=torch.Generator().manual_seed(5)) + 1


def build(order="diffusion", encoder=None, clip_tau=CLIP_TAU):
    """A tiny model with every parameter random: the initial zeros of h would hide its inputs."""
    torch.manual_seed(0)
    model = build_model(PHRASES, encoder, H, order, tau=TAU, teacher_tau=.07, clip_tau=clip_tau,
                        pixels=(.4, .25) if encoder else None)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


J = torch.tensor([[4], [5], [0]])                      # a missing clip of each video
J2 = torch.tensor([[4, 6], [3, 5], [0, 1]])            # two of each


def question():
    """x (B, N, D) unit, targets (B, N, K), observed (B, N), J (B, 1) of videos of 9, 6 and 3 clips.

    Clip J, padding and another clip are not observed.
    """
    generator = torch.Generator().manual_seed(0)
    x = functional.normalize(torch.randn(3, N, D, generator=generator), dim=-1)
    targets = (2 * torch.randn(3, N, K, generator=generator)).softmax(-1)
    hidden = torch.arange(N) == torch.tensor([8, 1, 2])[:, None]
    real = torch.arange(N) < torch.tensor([9, 6, 3])[:, None]
    return x, targets, real & ~hidden & (torch.arange(N) != J), J


def noise_like(model):
    """A noise for each video and level, (B, T, D)."""
    return torch.randn(3, len(model.alpha_bar), D, generator=torch.Generator().manual_seed(1))


# ---- Eqs. 5 to 10 as they are wired --------------------------------------------------------------
def slow_match(x, phrases, tau=TAU):
    """Eq. 6 for one x: (D,) -> (K,)."""
    score = torch.stack([x @ y / (tau * x.norm() * y.norm()) for y in phrases])
    return score.exp() / score.exp().sum()


def slow_predicted(x_hat, phrases):
    """The same for a prediction, whose length counts: a list of K."""
    logits = [float(x_hat @ y / y.norm()) / TAU for y in phrases]
    total = sum(math.exp(value - max(logits)) for value in logits)
    return [math.exp(value - max(logits)) / total for value in logits]


def slow_points(model):
    """z_k one by one, and the mean text."""
    unit = [y / y.norm() for y in PHRASES]
    mean = sum(unit) / K
    return [model.A @ (y - mean) for y in unit], mean


@pytest.mark.parametrize("clip_tau", [CLIP_TAU, None])
def test_eq5_predictor_equals_h_one_query_at_a_time(clip_tau):
    """Catches: the context or the point of x_j^t not scaled, observed clips matched at another
    temperature than theirs, the mean text left out, z_hat not the expected point of x_hat under
    Eq. 6, the level of another query (also in the evidence of x_j^t), j of another video."""
    model, (x, _, observed, j) = build(clip_tau=clip_tau), question()
    points, mean = slow_points(model)
    zt, t = noise_like(model), torch.tensor([[0, 1, 2, 3], [3, 3, 1, 0], [2, 0, 0, 1]])
    with torch.no_grad():
        x_hat, z_hat = model.predictor(x, observed, j)(zt, t)
        for b in range(3):
            context = torch.stack([math.sqrt(D) * sum(
                p * z for p, z in zip(slow_match(row, PHRASES, clip_tau or TAU), points))
                for row in x[b]])
            for q in range(4):
                a = float(model.alpha_bar[t[b, q]])
                memory = model.denoiser.remember(context[None], observed[b:b + 1])
                weight = [math.exp(math.sqrt(a) / (1 - a) * float(z @ zt[b, q])) for z in points]
                point = math.sqrt(D) * sum(p / sum(weight) * z for p, z in zip(weight, points))
                out = model.denoiser(memory, observed[b:b + 1], point[None, None],
                                     j[b:b + 1], t[b:b + 1, q:q + 1])[0, 0]
                u = mean + model_module.GAIN * out
                slow = u / u.norm() + TAU * math.sqrt(a) / (1 - a) * model.A @ zt[b, q]
                torch.testing.assert_close(x_hat[b, q], slow, rtol=1e-4, atol=1e-5)
                expected = sum(p * z for p, z in zip(slow_predicted(slow, PHRASES), points))
                torch.testing.assert_close(z_hat[b, q], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("j", [J, J2], ids=["one", "two"])
def test_eq9_eq10_ordering_losses_by_loops(j):
    """Catches: the target or the clean point of another clip than j, a level noised as another,
    sums for means, MSE between embeddings and points, j of another video, clips missing together
    that are predicted alone."""
    model, (x, targets, observed, _), P = build(), question(), j.shape[1]
    observed = observed & ~functional.one_hot(j, N).bool().any(1)
    points, _ = slow_points(model)
    torch.manual_seed(7)                                  # the order of the draws, as in the code
    t, noise = torch.randint(len(model.alpha_bar), (3, P)), torch.randn(3, P, D)
    mse = mc = 0.0
    with torch.no_grad():
        for b in range(3):
            p = targets[b, j[b]]                                                     # (P, K)
            z0 = torch.stack([sum(w * z for w, z in zip(row, points)) for row in p])
            a = model.alpha_bar[t[b]][:, None]
            predict = model.predictor(x[b:b + 1], observed[b:b + 1], j[b:b + 1])
            for zt, level in ((a.sqrt() * z0 + (1 - a).sqrt() * noise[b], t[b]),
                              (torch.zeros(P, D), torch.full((P,), len(model.alpha_bar) - 1))):
                x_hat, z_hat = predict(zt[None], level[None])
                for i in range(P):
                    mse += float((z_hat[0, i] - z0[i]) @ (z_hat[0, i] - z0[i])) / (6 * P)
                    log_p = map(math.log, slow_predicted(x_hat[0, i], PHRASES))
                    mc -= float(sum(w * v for w, v in zip(p[i], log_p))) / (6 * P)
        torch.manual_seed(7)
        terms = pretrain.objective(model, x, targets, observed, j, True)
    assert terms["mse"].item() == pytest.approx(mse, rel=1e-4)
    assert terms["mc"].item() == pytest.approx(mc, rel=1e-4)


# ---- Who may read what ---------------------------------------------------------------------------
@pytest.mark.parametrize("order", ["diffusion", "mask"])
def test_hidden_clips_get_no_gradient_and_observed_ones_do(order):
    """Catches: h reads the missing clip itself, a gap, the hidden future or padding; an observed
    clip that it cannot read; videos that mix."""
    model, (x, targets, observed, j) = build(order), question()
    x.requires_grad_()
    for b in range(3):
        x.grad, only = None, observed & (torch.arange(3) == b)[:, None]
        _, mc = pretrain.ordering_losses(model, x, targets[torch.arange(3)[:, None], j], only, j)
        mc.backward()
        assert torch.equal(x.grad.abs().amax(-1) > 0, only), b


# ---- A training step -----------------------------------------------------------------------------
class Source:
    """Videos of 9, 6, 1 and 0 clips of 9 s, one every 10 s; the picture changes every second."""
    counts = [9, 6, 1, 0]

    def __init__(self):
        generator = torch.Generator().manual_seed(2)
        self.videos = [SimpleNamespace(name=f"v{i}", duration=90.0) for i in range(4)]
        self.pixels = torch.randint(256, (4, 90, 2, 3, 8, 8), dtype=torch.uint8,
                                    generator=generator)
        self.features = torch.randn(4, 90, D, generator=generator).requires_grad_()

    def __len__(self):
        return 4

    def pretrain_windows(self, video, rng):
        return np.arange(self.counts[video])[:, None] * 10. + [0, 9]

    def duration(self, video):
        return self.videos[video].duration

    def load(self, requests, rng=None):
        views = torch.tensor([(video, int(middle)) for video, windows in requests
                              for middle in windows.mean(-1)])             # (C, 2)
        return Loaded(requests, self.pixels[tuple(views.T)], views, {})

    def teacher_features(self, views):
        return self.features[tuple(views.T)]


def losses_of_step(model, source):
    """The losses of a step of the joint stage, by name."""
    stage = Stage("joint", range(20, 24), 4)
    loaded, masks = pretrain.load_step(source, TrainSettings(seed=3), stage, 20)
    batch = pretrain.encode_batch(model, source, loaded, masks, "cpu")
    torch.manual_seed(3)
    return pretrain.objective(model, *batch, True)


def slow_target(model, feature):
    """p' of one clip: the softmax of its teacher's cosines."""
    score = torch.stack([functional.cosine_similarity(feature, y, dim=0) for y in PHRASES])
    return (score / model.teacher_tau).softmax(0).detach()


@pytest.mark.parametrize("order", ["diffusion", "mask"])
def test_eq7_gradients_reach_f_and_h_and_nothing_else(order):
    """Catches: an encoder detached from the objective or from L_MSE or L_MC, a part of h that is
    never used, L_XE that trains h, phrases, points, mean, teacher or soft targets trained along."""
    model, source = build(order, F), Source()
    terms = losses_of_step(model, source)
    assert terms["loss"].item() == pytest.approx(sum(terms[n].item() for n in ("xe", "mse", "mc")))
    terms["loss"].backward()
    dead = [name for name, p in model.named_parameters()
            if p.grad is None or not p.grad.isfinite().all() or p.grad.abs().max() < 1e-6]
    assert dead == (["denoiser.read_noisy.weight"] if order == "mask" else [])  # it reads zeros
    assert source.features.grad is None
    assert {name for name, buffer in model.named_buffers() if not buffer.requires_grad} == {
        "phrases", "mean", "A", "points", "alpha_bar"}
    f, h = model.encoder.patch_embed.proj.weight, model.denoiser.out.weight
    for name in ("xe", "mc") + (("mse",) if order == "diffusion" else ()):
        model.zero_grad(set_to_none=True)
        losses_of_step(model, source)[name].backward()
        assert f.grad.abs().max() > 0, name
        assert (h.grad is not None and bool(h.grad.abs().max() > 0)) == (name != "xe"), name


def test_eq8_is_over_the_observed_clips():
    """Catches: the missing clip, a hidden one or padding counted in L_XE, a video left out, a mean
    per video, the teacher's temperature, or that of observed clips in h's context, for the
    student's; matching alone that leaves clips out or knows h."""
    model, (x, targets, observed, j) = build(encoder=F), question()
    each = [[-float((targets[b, i] * slow_match(x[b, i], PHRASES).log()).sum()) for i in range(N)]
            for b in range(3)]
    with torch.no_grad():
        terms = pretrain.objective(model, x, targets, observed, j, True)
        alone = pretrain.objective(model, x, targets, observed, j, False)
        one = pretrain.objective(model, x[:1], targets[:1], torch.arange(N)[None] != 4, j[:1], True)
    mean = sum(each[b][i] for b, i in observed.nonzero().tolist()) / observed.sum().item()
    assert terms["xe"].item() == pytest.approx(mean, rel=1e-4)
    assert set(alone) == {"loss", "xe"} and alone["loss"] == alone["xe"] == terms["xe"]
    expected = sum(each[0][i] for i in range(9) if i != 4) / (9 - 1)                     # Eq. 8
    assert one["xe"].item() == pytest.approx(expected, rel=1e-4)


def test_sgd_comes_first_and_rates_rise_and_fall_within_a_stage(monkeypatch, tmp_path):
    """Catches: AdamW from the start, SGD without momentum, a stage that trains another part or at
    the rate of another, a weight decay that does not arrive; a constant rate, one schedule for all
    stages, groups that share a rate, a model that is not in training mode."""
    monkeypatch.setattr(pretrain, "SGD_LR", .1)
    monkeypatch.setattr(pretrain, "WEIGHT_DECAY", .4)
    model, given = build(encoder=F).eval(), TrainSettings(out=tmp_path, lr=.2, order_lr=.3)
    f, h = ([*map(id, part.parameters())] for part in (model.encoder, model.denoiser))
    share = [min(1, (i + 1) / 3, (40 - i) / 38) for i in range(40)]      # 2 of 40 steps to warm up
    for stage, kind, momentum, expected in (
            ("sgd", torch.optim.SGD, .9, [(f, .1)]), ("match", torch.optim.AdamW, None, [(f, .2)]),
            ("joint", torch.optim.AdamW, None, [(f, .2), (h, .3)]),
            ("order", torch.optim.AdamW, None, [(h, .3)])):
        optimizer, rates = pretrain.make_optimizer(model, given, stage), []
        groups = optimizer.param_groups
        assert type(optimizer) is kind
        assert [[*map(id, group["params"])] for group in groups] == [part for part, _ in expected]
        for group in groups:
            assert (group["lr"], group["weight_decay"], group.get("momentum")) == (0, .4, momentum)
        with Run(given, model, {}, 10, 50, 1) as training:
            for _ in training.steps(Stage(stage, range(10, 50), 1), optimizer, range(40)):
                rates.append([group["lr"] for group in groups])
                training.update(None, 0)
        assert np.allclose(rates, np.outer(share, [peak for _, peak in expected]))
        assert model.training


# ---- The last stage: h alone ---------------------------------------------------------------------
def test_cached_rows_are_those_of_the_finished_f(monkeypatch):
    """Catches: embeddings of an f that still learns (a graph kept for each), a teacher of other
    rows, a features file that is embedded again; steps that another than the finished f sees, or
    that follow themselves."""
    monkeypatch.setattr(pretrain, "PASSES", 2)
    model, source = build(encoder=F), Source()
    middle = np.arange(pretrain.GRID / 2, 90, pretrain.GRID)
    seconds = np.clip(middle, 4.5, 85.5).astype(int)                       # windows within 0..90 s
    with torch.no_grad():
        x = torch.cat([model.encode(source.pixels[video, seconds]) for video in range(4)])
        model.phrases.copy_(functional.normalize(x[:K] - x.mean(0), dim=-1))    # f sees them all
        seen = model.match(x).argmax(-1)
    rows, failed = pretrain.cache_rows(model, source, TrainSettings(missing=3), "cpu")
    assert not rows.x.requires_grad and rows.x.shape == (4 * len(middle), D)
    torch.testing.assert_close(rows.x, x, rtol=1e-4, atol=1e-5)
    assert torch.equal(rows.teacher, source.features[:, seconds].flatten(0, 1))
    assert failed == {} and rows.tables[1][3] > 0
    for table, _, _, forecasts in rows.tables.values():
        for row in table[:forecasts]:                                      # not the same step again
            steps = seen[row[8:]]
            assert (steps[1:] != steps[:-1]).all()
    assert len(rows.tables[1][2]) - rows.tables[1][3] == 2 * 3             # videos with a clip

    table = FeaturesFile(np.array(["v0", "v1", "v2"]), np.ones(3), np.eye(3, D, dtype=np.float16))
    source.features, source.counts = table, [2, 2, 2, 0]
    rows, _ = pretrain.cache_rows(build(), source, TrainSettings(), "cpu")
    assert torch.equal(rows.x, torch.eye(3, D).half()) and torch.equal(rows.teacher, rows.x)


def test_eq9_eq10_of_cached_rows_train_h_alone():
    """Catches: f or the cached rows trained along, L_XE in the sum, targets of another clip than j
    or at the student's temperature."""
    model, (x, _, observed, j) = build(encoder=F), question()
    features = torch.randn(3, 1, D, generator=torch.Generator().manual_seed(9)).requires_grad_()
    rows = {(pretrain.ORDER_BATCH, "cpu"): (x, features, observed, j)}
    source = SimpleNamespace(batch=lambda size, rng, device: rows[size, device])
    torch.manual_seed(7)
    terms, count = pretrain.order_losses(model, source, TrainSettings(), "cpu", 0)
    torch.manual_seed(7)
    target = torch.stack([slow_target(model, feature[0]) for feature in features])[:, None]
    mse, mc = pretrain.ordering_losses(model, x, target, observed, j)
    assert count == 3 and terms.keys() == {"loss", "mse", "mc"}
    for name, expected in (("mse", mse), ("mc", mc), ("loss", mse + mc)):
        torch.testing.assert_close(terms[name], expected)
    terms["loss"].backward()
    assert features.grad is None and all(p.grad is None for p in model.encoder.parameters())
    assert all(p.grad.abs().max() > 1e-6 for p in model.denoiser.parameters())


# ---- Forecasts -----------------------------------------------------------------------------------
@pytest.mark.parametrize("j", [J, J2], ids=["one", "two"])
def test_sec33_forecasts_of_a_permuted_batch_and_of_single_samples(j):
    """Catches: samples or videos that mix; the zero vector treated apart from other noise; KAPPA
    left out of the draws; clips missing together that are each forecast alone, groups of them that
    mix, or that are ordered by clip."""
    model, (x, _, observed, _), P = build(), question(), j.shape[1]
    observed = observed & ~functional.one_hot(j, N).bool().any(1)
    noise = torch.cat([torch.zeros(3, 2, D), noise_like(model)], 1)                # (B, 6, D)
    turn, other = torch.tensor([2, 0, 1]), noise.clone()
    other[:, P - 1] += 1                                   # of the last clip of the first group
    with torch.no_grad():
        x_hat = model.forecast(x, observed, j, noise)
        chain = diffusion.sample(model.predictor(x, observed, j), model_module.KAPPA * noise,
                                 model.alpha_bar, P)
        torch.testing.assert_close(x_hat, chain)
        torch.testing.assert_close(
            model.forecast(x[turn], observed[turn], j[turn], noise[turn]), x_hat[turn])
        for q in range(0, 6, P):
            alone = model.forecast(x, observed, j, noise[:, q:q + P])
            torch.testing.assert_close(alone, x_hat[:, q:q + P])
        moved = (model.forecast(x, observed, j, other) - x_hat).abs().amax(-1)     # (B, 6)
    assert (moved[:, :P] > 0).all() and (moved[:, P:] == 0).all()
    assert (x_hat[:, 2:] - x_hat[:, :1]).abs().amax(-1).min() > 1e-4       # samples do differ


@pytest.mark.parametrize("order", ["diffusion", "mask"])
def test_a_past_present_or_future_clip_can_be_forecast(order):
    """Catches: a forecast that works for the last clip alone, or does not know which is missing."""
    model, x, place = build(order), question()[0][:1], torch.arange(N)
    noise = noise_like(model)[:1]
    with torch.no_grad():                                                  # clips 7 and 8: padding
        results = [model.forecast(x, ((place != j) & (place < 7))[None], torch.tensor([[j]]), noise)
                   for j in range(7)]
    for a in range(7):
        assert results[a].isfinite().all()
        assert all((results[a] - results[b]).abs().max() > 1e-5 for b in range(a))


def test_the_mask_model_is_what_the_ablation_says():
    """Catches: a mask model that reads the noise or has an L_MSE."""
    model, (x, targets, observed, _) = build("mask"), question()
    noise, target = noise_like(model), targets[torch.arange(3)[:, None], J]
    x_hat = model.forecast(x, observed, J, noise)
    assert x_hat.shape == noise.shape
    assert torch.equal(x_hat, model.forecast(x, observed, J, 0 * noise))
    mse, mc = pretrain.ordering_losses(model, x, target, observed, J)
    expected = -(target * model.match_predicted(x_hat[:, :1])).sum(-1).mean()
    assert mse == 0 and mc.item() == pytest.approx(expected.item(), rel=1e-5)


def test_encode_normalizes_pixels_and_embeddings():
    """Catches: frames and channels exchanged, no division by 255, embeddings of other lengths."""
    model, clips = build(encoder=F), Source().pixels[0, :2]
    pixels = torch.stack([torch.stack([(clips[:, f, c] / 255 - .4) / .25 for f in range(2)], 1)
                          for c in range(3)], 1)                           # (C, 3, F, H, W)
    torch.testing.assert_close(model.encode(clips), model.encoder(pixels))
    torch.testing.assert_close(model.encode(clips).norm(dim=-1), torch.ones(2))
    none = build()
    assert none.encoder is None
    torch.testing.assert_close(none.encode(3 * PHRASES), functional.normalize(PHRASES, dim=-1))
