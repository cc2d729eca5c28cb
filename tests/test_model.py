"""f and h put together, what inference makes of them, and the stages of pre-training."""
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from commands import randomized
from model import encode_parts
from test_denoiser import slow_h
from test_encoder import slow_timesformer
from test_losses import slow_match
from train import TrainSettings
from training import pretrain, run
from training.run import Run, Stage, learning_rate
from weights.checkpoint import build_model

K, D, TAU = 6, 16, 0.1
F = dict(image=8, patch=4, frames=2, width=8, depth=1, heads=2)
PHRASES = torch.randn(K, D, generator=torch.Generator().manual_seed(5)) + 1


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def build(encoder=None, order="diffusion", **more):
    """A tiny model with every parameter random, whose embeddings have a mean and a scale."""
    model = randomized(build_model(PHRASES, encoder, dict(layers=2, heads=2, clips=5), order,
                                   tau=TAU, pixels=(.4, .25) if encoder else None, **more), 0.3)
    model.standardize.update(0.2 * draw(9, D, seed=6) + draw(D, seed=7))
    return model


def slow_f(model, clip):
    """x_i of one clip (F, 3, H, W) uint8, in float64: (D,)."""
    weights = {name: value.double() for name, value in model.encoder.state_dict().items()}
    pixels = (clip.double() / 255 - .4) / .25
    return slow_timesformer(pixels.transpose(0, 1), weights, F["patch"], F["heads"], F["depth"])[1]


def slow_forecast(model, x, observed, j, noise):
    """Sec. 3.3 for one video and one noise: x (N, D), noise (P, D) -> x_hat (P, D), float64."""
    h = {name: value.double() for name, value in model.denoiser.state_dict().items()}
    bar = model.alpha_bar.tolist()
    mean, scale = model.standardize.mean.double(), math.sqrt(model.standardize.variance)
    zt = noise = noise.double()
    for t in (3, 2, 1, 0):
        z_hat = slow_h(h, 2, zt, (x - mean) / scale, observed, j, t)
        zt = math.sqrt(bar[t - 1]) * z_hat + math.sqrt(1 - bar[t - 1]) * noise
    return mean + scale * z_hat


@torch.no_grad()
@pytest.mark.parametrize("j", [[[0], [0]], [[2], [1]], [[4], [3]], [[1, 2], [0, 3]]],
                         ids=["past", "present", "future", "together"])
def test_eq1_f_h_and_the_matching_put_together(j):
    """Catches: pixels not normalized, axes exchanged; samples that mix, a missing clip read."""
    model, y = build(F), torch.arange(10).view(2, 5) % K
    clips = torch.randint(256, (9, 2, 3, 8, 8), dtype=torch.uint8)
    noise = torch.stack([torch.zeros(2, len(j[0]), D), draw(2, len(j[0]), D)], 1)  # (B, Q, P, D)
    x = pad_sequence(model.encode(clips).split([5, 4]), batch_first=True)          # (B, N, D)
    real = torch.arange(5) < torch.tensor([[5], [4]])
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
    """Catches: a length that is lost, tau left out, label sets softmaxed together, bfloat16."""
    model, x = build(task="classify", classes=[2, 3]), draw(2, 3, D)
    with torch.autocast("cpu", torch.bfloat16):
        parts = model.classify(x)
    weight, bias = model.classifier.weight.double(), model.classifier.bias.double()
    p = (((x.double()[..., None, :] * weight).sum(-1) + bias) / TAU).exp()          # (2, 3, 5)
    for log_p, part in zip(parts, p.split([2, 3], -1), strict=True):
        expected = (part / part.sum(-1, keepdim=True)).log()
        torch.testing.assert_close(log_p.double(), expected, rtol=1e-4, atol=1e-4)


def test_features_become_the_text_that_they_make_expect_by_loops():
    """Catches: another temperature or length, float16, x_i not of length 1."""
    model, features = build(), 4 * draw(3, D).half()
    texts = [y / y.norm() for y in PHRASES.double()]
    for x, feature in zip(model.encode(features), features.double()):
        p = slow_match(feature, PHRASES.double(), TAU)
        expected = sum(share * y for share, y in zip(p, texts))
        torch.testing.assert_close(x.double(), expected / expected.norm(), rtol=1e-4, atol=1e-5)
    assert x.dtype == torch.float32


def test_other_axes_types_and_numbers_are_refused():
    """Catches: an answer for exchanged axes, normalized pixels or one clip; another's message."""
    model, clips = build(F), torch.zeros(5, 2, 3, 8, 8, dtype=torch.uint8)
    assert model.encode(clips).shape == (5, D)
    assert encode_parts(model.train(), clips, 2).requires_grad
    for wrong in (clips.transpose(1, 2), clips.float() / 255, clips[0], clips.movedim(2, 4),
                  clips[:, :1], clips[..., :4], torch.zeros(5, D)):
        for part in (None, 2):
            given = wrong if part is None else wrong[:2]
            with pytest.raises(ValueError, match="uint8 clips .C, F, 3, H, W") as error:
                encode_parts(model, wrong, part)
            assert str(error.value).startswith(f"{tuple(given.shape)} {wrong.dtype} given")
    for wrong in (draw(3, 5, D), draw(3, 0, D), draw(4, D)):
        with pytest.raises(ValueError, match=r"needed is \(B, N, D\), N from 1 to 4 clips"):
            model.forecast_next(wrong, draw(3, 2, D))
    for wrong in (clips, torch.zeros(5, D + 1), torch.zeros(D), torch.zeros(5, D).byte(),
                  torch.zeros(5, D).long()):
        with pytest.raises(ValueError, match=f"float features .C, D., here .C, {D}."):
            build().encode(wrong)


# --- The stages of pre-training ---
def test_the_bar_shows_the_terms_and_once_the_time_left(monkeypatch, tmp_path, capsys):
    """Catches: a training that shows its speed alone; an estimate of one stage, or in each row."""
    given, model, done = TrainSettings(out=tmp_path), build(F), 0
    stages = [Stage("sgd", range(30), 4, .1, 1), Stage("adamw", range(30, 60), 4, .1, 1)]
    monkeypatch.setattr(run, "time", SimpleNamespace(perf_counter=lambda: 6.0 * done))
    began = Run(given, model, {}, stages, None)
    for stage in stages:
        optimizer = pretrain.Pretraining.make_optimizer(
            SimpleNamespace(model=model, settings=given), stage)
        for step, _ in began.steps(stage, optimizer, iter):
            done = step + 1
            began.log(4, **{name: torch.tensor(value + done) for name, value in (
                ("loss", .5), ("xe", .25), ("mse", .125), ("mc", .75))})
    out, err = capsys.readouterr()
    assert out.count("about") == out.count("about 4 min for the 40 steps left") == 1
    assert "loss=30.5, xe=30.2, mse=30.1, mc=30.8" in err and "loss=60.5" in err


def test_sgd_comes_first_and_rates_rise_and_fall_within_a_stage(monkeypatch, tmp_path):
    """Catches: a stage of another optimizer, rate, length or part; a constant rate; eval mode."""
    monkeypatch.setattr(pretrain, "SGD_LR", .1)
    monkeypatch.setitem(pretrain.SIZES["small"], "decay", .4)
    given = TrainSettings(out=tmp_path, batch=4, sgd_epochs=2, epochs=1, lr=.2)
    stages = pretrain.plan_stages(given, 83)                             # 20 steps per epoch
    assert stages == [Stage("sgd", range(40), 4, .1, 2), Stage("adamw", range(40, 60), 4, .2, 1)]
    alone = pretrain.plan_stages(TrainSettings(batch=4, sgd_epochs=0, epochs=1, lr=.2), 83)
    assert alone == [Stage("adamw", range(20), 4, .2, 1)]
    model = build(F)
    for stage, kind, momentum in zip(stages, (torch.optim.SGD, torch.optim.AdamW), (.9, None)):
        optimizer = pretrain.Pretraining.make_optimizer(
            SimpleNamespace(model=model.eval(), settings=given), stage)
        group, = optimizer.param_groups
        assert type(optimizer) is kind
        assert [*map(id, group["params"])] == [*map(id, model.parameters())]
        assert (group["lr"], group["weight_decay"], group.get("momentum")) == (0, .4, momentum)
        n, run = len(stage.span), Run(given, model, {}, stages, None)
        assert [*stage.span] == [step for step, _ in run.steps(stage, optimizer, iter)]
        assert model.training and np.allclose([learning_rate(i, stage) for i in stage.span], [
            stage.lr * min(1, (i + 1) / (.05 * n + 1), (n - i) / (.95 * n)) for i in range(n)])
