"""f and h put together, what inference makes of them, and what pre-training prepares for them."""
import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from data import Loaded, pad_clips
from files.annotations import FeaturesFile
from test_denoiser import slow_h
from test_encoder import slow_timesformer
from test_losses import slow_match
from train import TrainSettings
from training import pretrain
from training.run import Run, Stage
from weights.checkpoint import build_model

K, D, TAU = 6, 16, 0.1
F = dict(image=8, patch=4, frames=2, width=8, depth=1, heads=2)
PHRASES = torch.randn(K, D, generator=torch.Generator().manual_seed(5)) + 1


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def build(encoder=None, order="diffusion", **more):
    """A tiny model with every parameter random, whose embeddings have a mean and a scale."""
    torch.manual_seed(0)
    model = build_model(PHRASES, encoder, dict(width=32, layers=2, heads=2, clips=5), order,
                        tau=TAU, teacher_tau=.07, pixels=(.4, .25) if encoder else None, **more)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    model.standardize.fit(0.2 * draw(9, D, seed=6) + draw(D, seed=7))
    return model


class Source:
    """Videos of 9, 6, 1 and 0 clips of 9 s, one every 10 s; the picture changes every second."""
    counts, unreadable = [9, 6, 1, 0], {}

    def __init__(self):
        generator = torch.Generator().manual_seed(2)
        self.videos = [SimpleNamespace(name=f"v{i}", duration=90.0) for i in range(4)]
        self.pixels = torch.randint(256, (4, 90, 2, 3, 8, 8), dtype=torch.uint8,
                                    generator=generator)
        self.features = torch.randn(4, 90, D, generator=generator)

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


# --- Eq. 1 ---
def slow_f(model, clip):
    """x_i of one clip (F, 3, H, W) uint8, in float64: (D,)."""
    weights = {name: value.double() for name, value in model.encoder.state_dict().items()}
    pixels = (clip.double() / 255 - .4) / .25
    return slow_timesformer(pixels.transpose(0, 1), weights, F["patch"], F["heads"], F["depth"])[1]


def slow_forecast(model, x, observed, j, noise):
    """Sec. 3.3 for one video and one noise: x (N, D), noise (P, D) -> x_hat (P, D), float64."""
    h, bar = copy.deepcopy(model.denoiser).double(), model.alpha_bar.tolist()
    mean, scale = model.standardize.mean.double(), math.sqrt(model.standardize.variance)
    zt = noise = noise.double()
    for t in (3, 2, 1, 0):
        z_hat = slow_h(h, zt, (x - mean) / scale, observed, j, t)
        zt = math.sqrt(bar[t - 1]) * z_hat + math.sqrt(1 - bar[t - 1]) * noise
    return mean + scale * z_hat


@torch.no_grad()
@pytest.mark.parametrize("j", [[[0], [0]], [[2], [1]], [[4], [3]], [[1, 2], [0, 3]]],
                         ids=["past", "present", "future", "together"])
def test_eq1_f_h_and_the_matching_put_together(j):
    """Catches: pixels that are not normalized, frames and channels exchanged; h in the space of f,
    a prediction that is left standardized; samples or videos that mix, a zero vector treated apart
    from other noise, a missing clip that is read, forecasts of the last clip alone; clips missing
    together that are forecast one by one; texts at another temperature."""
    model, clips, y = build(F), Source().pixels[0, :9], torch.arange(10).view(2, 5) % K
    noise = torch.stack([torch.zeros(2, len(j[0]), D), draw(2, len(j[0]), D)], 1)  # (B, Q, P, D)
    x, real = pad_clips(model.encode(clips), torch.tensor([5, 4]), 5)
    observed = real.scatter(1, torch.tensor(j), False)
    x_hat = model.forecast(x, observed, torch.tensor(j), noise)
    labels = torch.cat([y[b:b + 1, j[b]] for b in range(2)])                       # (B, P)
    log_p = (model.match(x).gather(2, y[..., None])[..., 0] * observed).sum(1)     # of all x_i
    log_p = log_p[:, None] + model.match(x_hat).gather(
        3, labels[:, None, :, None].expand(-1, 2, -1, -1)).sum((2, 3))             # (B, Q)
    for b, part in enumerate(clips.split([5, 4])):
        slow_x = torch.stack([slow_f(model, clip) for clip in part])               # (N, D)
        torch.testing.assert_close(x[b, :len(part)].double(), slow_x, rtol=1e-4, atol=1e-5)
        for q in range(2):
            slow = slow_forecast(model, slow_x, observed[b], j[b], noise[b, q])
            torch.testing.assert_close(x_hat[b, q].double(), slow, rtol=1e-3, atol=1e-4)
            p = 1.0                                                                # p(Y | X)
            for i, row in enumerate(slow_x):
                row = slow[j[b].index(i)] if i in j[b] else row
                p *= slow_match(row, PHRASES.double(), TAU)[y[b, i]]
            assert log_p[b, q].item() == pytest.approx(math.log(p), rel=1e-3)


# --- Inference ---
@torch.no_grad()
def test_the_next_clip_is_the_one_after_all_that_are_given():
    """Catches: the last clip forecast again, zeros in its place that are read, one noise for all
    samples; one clip too many that is not named."""
    model, x, noise = build(), draw(3, 4, D), draw(3, 5, D, seed=1)
    x_hat = model.forecast_next(x, noise)
    longer, observed = torch.cat([x, draw(3, 1, D, seed=2)], 1), torch.arange(5) < 4
    expected = model.forecast(longer, observed.expand(3, 5), torch.full((3, 1), 4),
                              noise[:, :, None])
    torch.testing.assert_close(x_hat, expected[:, :, 0])
    with pytest.raises(ValueError, match="6 clips per video, but h has positions for 5"):
        model.forecast_next(longer, noise)


@torch.no_grad()
def test_the_mask_model_predicts_once_whatever_the_noise():
    """Catches: a mask model that reads the noise, or its own prediction again."""
    model, asked = build(order="mask"), []
    model.denoiser.register_forward_pre_hook(lambda h, given: asked.append(given))
    x, noise = draw(2, 4, D), draw(2, 3, D, seed=1)
    x_hat = model.forecast_next(x, noise)
    assert len(asked) == 1 and not asked[0][0].any() and (asked[0][4] == 3).all()
    assert torch.equal(x_hat, model.forecast_next(x, 0 * noise)) and x_hat.shape == (2, 3, D)
    z_hat = model.denoiser(*asked[0])
    torch.testing.assert_close(model.standardize(x_hat).flatten(0, 1), z_hat[:, 0])


def test_the_classifier_equals_its_formula():
    """Catches: a prediction whose length is lost, tau left out, label sets softmaxed together,
    bfloat16 under autocast."""
    model, x = build(task="classify", classes=[2, 3]), draw(2, 3, D)
    with torch.autocast("cpu", torch.bfloat16):
        parts = model.classify(x)
    weight, bias = model.classifier.weight.double(), model.classifier.bias.double()
    p = (((x.double()[..., None, :] * weight).sum(-1) + bias) / TAU).exp()          # (2, 3, 5)
    for log_p, part in zip(parts, p.split([2, 3], -1), strict=True):
        expected = (part / part.sum(-1, keepdim=True)).log()
        torch.testing.assert_close(log_p.double(), expected, rtol=1e-4, atol=1e-4)


# --- Embeddings ---
def test_features_become_the_text_that_they_make_expect_by_loops():
    """Catches: the student's temperature, texts or features of other lengths, float16 that reaches
    the model, an x_i that is not of length 1."""
    model, features = build(), 4 * draw(3, D).half()
    texts = [y / y.norm() for y in PHRASES.double()]
    for x, feature in zip(model.encode(features), features.double()):
        p = slow_match(feature, PHRASES.double(), model.teacher_tau)
        expected = sum(share * y for share, y in zip(p, texts))
        torch.testing.assert_close(x.double(), expected / expected.norm(), rtol=1e-4, atol=1e-5)
    assert x.dtype == torch.float32


# --- What pre-training prepares ---
def test_cached_rows_are_those_of_the_finished_f(monkeypatch):
    """Catches: embeddings of an f that still learns (a graph kept for each), a teacher of other
    rows or times, features that are not encoded."""
    monkeypatch.setattr(pretrain, "PASSES", 2)
    model, source = build(F), Source()
    middle = np.clip(np.arange(pretrain.GRID / 2, 90, pretrain.GRID), 4.5, 85.5)   # in 0..90 s
    seconds = middle.astype(int)
    with torch.no_grad():
        x = torch.cat([model.encode(source.pixels[video, seconds]) for video in range(4)])
    rows, failed = pretrain.cache_rows(model, source, TrainSettings(missing=3), "cpu")
    assert not rows.x.requires_grad and rows.x.shape == (4 * len(middle), D)
    torch.testing.assert_close(rows.x, x, rtol=1e-4, atol=1e-5)
    assert torch.equal(rows.teacher, source.features[:, seconds].flatten(0, 1))
    assert failed == {} and rows.tables[1][2] > 0
    table, real, forecasts = rows.tables[1]
    assert len(table) - forecasts == 2 * 3                                 # videos with a clip
    times = middle[table[forecasts:][real[forecasts:]] % len(middle)]      # near a clip's 4.5 s
    assert np.abs(times % 10 - 4.5).max() <= pretrain.GRID / 2

    table = FeaturesFile(np.array(["v0", "v1", "v2"]), np.ones(3), np.eye(3, D, dtype=np.float16))
    source.features, source.counts, model = table, [2, 2, 2, 0], build()
    rows, _ = pretrain.cache_rows(model, source, TrainSettings(), "cpu")
    torch.testing.assert_close(rows.x, model.encode(torch.eye(3, D)))
    assert torch.equal(rows.teacher, torch.eye(3, D).half())


def test_sgd_comes_first_and_rates_rise_and_fall_within_a_stage(monkeypatch, tmp_path):
    """Catches: AdamW from the start, SGD without momentum, a stage that trains another part or at
    the rate of another, a weight decay that does not arrive; a constant rate, one schedule for all
    stages, groups that share a rate, a model that is not in training mode."""
    monkeypatch.setattr(pretrain, "SGD_LR", .1)
    monkeypatch.setattr(pretrain, "WEIGHT_DECAY", .4)
    model, given = build(F).eval(), TrainSettings(out=tmp_path, lr=.2, order_lr=.3)
    f, h = ([*map(id, part.parameters())] for part in (model.encoder, model.denoiser))
    share = [min(1, (i + 1) / 3, (40 - i) / 38) for i in range(40)]      # 2 of 40 steps to warm up
    run = SimpleNamespace(model=model, settings=given)
    for name, kind, momentum, expected in (
            ("sgd", torch.optim.SGD, .9, [(f, .1), (h, .1)]),
            ("adamw", torch.optim.AdamW, None, [(f, .2), (h, .3)]),
            ("order", torch.optim.AdamW, None, [(h, .3)])):
        stage, rates = Stage(name, range(10, 50), 1), []
        optimizer = pretrain.Pretraining.make_optimizer(run, stage)
        groups = optimizer.param_groups
        assert type(optimizer) is kind
        assert [[*map(id, group["params"])] for group in groups] == [part for part, _ in expected]
        for group in groups:
            assert (group["lr"], group["weight_decay"], group.get("momentum")) == (0, .4, momentum)
        for step, item in Run(given, model, {}, [stage], None).steps(stage, optimizer, range(40)):
            assert step == 10 + item
            rates.append([group["lr"] for group in groups])
        assert np.allclose(rates, np.outer(share, [peak for _, peak in expected]))
        assert model.training
