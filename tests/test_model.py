"""f and h together: losses, gradients, what is hidden, and forecasts."""
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import diffusion
import protocols
import data
import model as model_module
import train
from files.annotations import FeaturesFile
from model import ProcedureModel
from settings import TrainSettings

K, D, N, TAU = 6, 8, protocols.CLIPS, 0.1
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


J = torch.tensor([[4], [5], [0]])                      # a missing clip of each video


def question():
    """x (B, N, D), targets (B, N, K), observed (B, N) with clip J, padding and others hidden, J."""
    x, there, targets = rows()
    hidden = torch.arange(N) == torch.tensor([8, 1, 2])[:, None]
    return x, targets, there & ~hidden & (torch.arange(N) != J), J


def noise_like(model, B=3, seed=1):
    return torch.randn(B, len(model.alpha_bar), D, generator=torch.Generator().manual_seed(seed))


# ------------------------------------------------------------------------------------------------
# Eqs. 6 to 10 as they are wired
# ------------------------------------------------------------------------------------------------
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


def test_eq5_predictor_equals_h_asked_one_query_at_a_time():
    """Catches: the context or the point of x_j^t not scaled, the mean text left out, z_hat not the
    point that Eq. 6 expects of x_hat, the level of another query (also in what x_j^t itself says of
    x_j^0), j of another video."""
    model, (x, _, observed, j) = build(), question()
    points, mean = slow_points(model)
    zt, t = noise_like(model), torch.tensor([[0, 1, 2, 3], [3, 3, 1, 0], [2, 0, 0, 1]])
    with torch.no_grad():
        x_hat, z_hat = model.predictor(x, observed, j)(zt, t)
        for b in range(3):
            context = torch.stack([math.sqrt(D) * sum(p * z for p, z in
                                                      zip(slow_match(row, PHRASES, model.clip_tau),
                                                      points))
                                   for row in x[b]])
            for q in range(4):
                a = float(model.alpha_bar[t[b, q]])
                memory = model.denoiser.remember(context[None], observed[b:b + 1])
                says = [math.exp(math.sqrt(a) / (1 - a) * float(z @ zt[b, q])) for z in points]
                point = math.sqrt(D) * sum(p / sum(says) * z for p, z in zip(says, points))
                out = model.denoiser(memory, observed[b:b + 1], point[None, None],
                                     j[b:b + 1], t[b:b + 1, q:q + 1])[0, 0]
                u = mean + model_module.GAIN * out
                slow = u / u.norm() + TAU * math.sqrt(a) / (1 - a) * model.A @ zt[b, q]
                torch.testing.assert_close(x_hat[b, q], slow, rtol=1e-4, atol=1e-5)
                expected = sum(p * z for p, z in zip(slow_predicted(slow, PHRASES), points))
                torch.testing.assert_close(z_hat[b, q], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dim", [16, 512])
def test_eq2_a_prediction_is_what_h_says_times_what_the_noisy_clip_says(dim):
    """Catches: evidence of x_j^t that is weaker or stronger than Eq. 2 makes it, at one D or all,
    divided by the length of the prediction, or read at another level."""
    torch.manual_seed(0)
    phrases = torch.randn(12, dim) + 2                       # crowded, of any length
    model = ProcedureModel(phrases, None, dict(width=8, layers=1, heads=2), "diffusion", TAU, None)
    x, observed = torch.randn(2, 3, dim), torch.tensor([[True, True, False]] * 2)
    zt, t = torch.randn(2, 4, dim), torch.arange(4).expand(2, 4)
    predict = model.predictor(x, observed, torch.tensor([[2], [2]]))
    with torch.no_grad():
        nn.init.normal_(model.denoiser.out.weight, std=dim ** -.5)
        model.denoiser.read_noisy.weight.zero_()             # h reads the context alone
        says, log_p = (model.match_predicted(predict(z, t)[0]) for z in (0 * zt, zt))
    for level, a in enumerate(model.alpha_bar.tolist()):
        for b in range(2):
            slow = []
            for k, z in enumerate(model.points):             # log N(x_t; sqrt(a) z, 1 - a)
                far = ((zt[b, level] - math.sqrt(a) * z) ** 2).sum() / (2 * (1 - a))
                slow.append(says[b, level, k] - far + a * (z ** 2).sum() / (2 * (1 - a)))
            torch.testing.assert_close(log_p[b, level], torch.stack(slow).log_softmax(0),
                                       rtol=1e-3, atol=2e-3)


def test_observed_clips_are_read_at_a_temperature_of_their_own():
    """Catches: clip_tau left out, of the reading or of what h reads; taken for the student's tau;
    clips read at a temperature of 0 where there is none."""
    x, _, _ = rows()
    for clip_tau, expected in ((.4, .4), (None, TAU)):
        model = ProcedureModel(PHRASES, None, H, "diffusion", TAU, None, clip_tau=clip_tau)
        points, _ = slow_points(model)
        for b, i in ((0, 0), (2, 5)):
            p = slow_match(x[b, i], PHRASES, expected)
            torch.testing.assert_close(model.read(x)[b, i].exp(), p)
            torch.testing.assert_close(model.match(x)[b, i].exp(), slow_match(x[b, i], PHRASES))
            torch.testing.assert_close(model.context(x)[b, i],
                                       math.sqrt(D) * sum(w * z for w, z in zip(p, points)))


def test_eq9_eq10_ordering_losses_by_loops():
    """Catches: the target or the clean point of another clip than j, a level noised as another,
    sums for means, MSE between embeddings and points, j of another video."""
    model, (x, targets, observed, _) = build(), question()
    points, _ = slow_points(model)
    torch.manual_seed(7)                                  # the order of the draws, as in the code
    t, noise, mse, mc = torch.randint(len(model.alpha_bar), (3,)), torch.randn(3, 1, D)[:, 0], 0.0, 0.0
    with torch.no_grad():
        for b, j in enumerate(J[:, 0]):
            z0 = sum(p * z for p, z in zip(targets[b, j], points))
            a = float(model.alpha_bar[t[b]])
            predict = model.predictor(x[b:b + 1], observed[b:b + 1], J[b:b + 1])
            for zt, level in ((math.sqrt(a) * z0 + math.sqrt(1 - a) * noise[b], t[b]),
                              (torch.zeros(D), len(model.alpha_bar) - 1)):
                x_hat, z_hat = predict(zt[None, None], torch.tensor([[level]]))
                mse += float((z_hat[0, 0] - z0) @ (z_hat[0, 0] - z0)) / 6
                p = slow_predicted(x_hat[0, 0], PHRASES)
                mc -= float(sum(w * math.log(v) for w, v in zip(targets[b, j], p))) / 6
        torch.manual_seed(7)
        terms = train.objective(model, x, targets, observed, J, True)
    assert terms["mse"].item() == pytest.approx(mse, rel=1e-4)
    assert terms["mc"].item() == pytest.approx(mc, rel=1e-4)


# ------------------------------------------------------------------------------------------------
# Who may read what
# ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("order", ["diffusion", "mask"])
def test_hidden_clips_get_no_gradient_and_observed_ones_do(order):
    """Catches: h reads the missing clip itself, a gap, the hidden future or padding; an observed
    clip that it cannot read; videos that mix."""
    model, (x, targets, observed, j) = build(order), question()
    x.requires_grad_()
    for b in range(3):
        x.grad, only = None, observed & (torch.arange(3) == b)[:, None]
        train.ordering_losses(model, x, targets[torch.arange(3)[:, None], j], only, j)[1].backward()
        assert torch.equal(x.grad.abs().amax(-1) > 0, only), b


# ------------------------------------------------------------------------------------------------
# A training step
# ------------------------------------------------------------------------------------------------
class Source:
    """Videos of 9, 6, 1 and 0 clips of 9 s, one every 10 s; what is seen changes every second.

    Those in `broken` cannot be read.
    """
    counts = [9, 6, 1, 0]

    def __init__(self, broken=()):
        self.broken = broken
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
        good = [request for request in requests if request[0] not in self.broken]
        looks = torch.tensor([(video, int(middle)) for video, windows in good
                              for middle in windows.mean(-1)])             # (C, 2)
        return data.Loaded(good, self.pixels[tuple(looks.T)], looks,
                           {f"v{video}": "broken" for video, _ in requests if video in self.broken})

    def teach(self, looks):
        return self.features[tuple(looks.T)]


def step(model, source, ordering, seed=3):
    loaded, asked = train.load_step(source, TrainSettings(seed=seed), 4, ordering, 0, 0)
    batch = train.encode_batch(model, source, loaded, asked, "cpu")
    torch.manual_seed(3)
    return train.objective(model, *batch, ordering)


def slow_target(model, feature):
    """p' of one clip: the softmax of its teacher's cosines."""
    score = torch.stack([functional.cosine_similarity(feature, y, dim=0) for y in PHRASES])
    return (score / model.teacher_tau).softmax(0).detach()


@pytest.mark.parametrize("ordering, broken", [(True, ()), (False, ()), (True, (1,)), (False, (0,)),
                                              (True, (0, 2))])
def test_a_batch_is_the_rows_of_its_videos(ordering, broken):
    """Catches: clips, targets or views of another video, padding that is observed, a video without
    clips or one that cannot be read that shifts the others (or what is asked of them), clips or
    observed kept by count of another video."""
    model, source, kinds, settings = build(encoder=F), Source(broken), set(), TrainSettings(seed=4)
    for step in range(20, 24):
        loaded, asked = train.load_step(source, settings, 4, ordering, 20, step)
        with torch.no_grad():
            x, targets, observed, j = train.encode_batch(model, source, loaded, asked, "cpu")
        same, b = np.random.default_rng((4, 2, step)), 0
        for video in train.videos_of_step(step - 20, 4, 4, 4):
            windows = source.pretrain_windows(video, same)
            seen, missing = np.ones(len(windows), bool), [-1]
            if ordering and len(windows):
                missing, seen = protocols.missing_clips(len(windows), 1, same)
            if not len(windows) or video in broken:
                continue
            n = len(windows)
            kinds.add(n)
            assert j[b].tolist() == list(missing)
            assert observed[b].tolist() == [*seen, *[False] * (N - n)]
            assert (x[b, n:] == 0).all()
            for i, second in enumerate(windows.mean(1).astype(int)):
                with torch.no_grad():
                    alone = model.encode(source.pixels[video, second][None])[0]
                torch.testing.assert_close(x[b, i], alone, rtol=1e-4, atol=1e-5)
                torch.testing.assert_close(
                    targets[b, i], slow_target(model, source.features[video, second]))
            b += 1
        assert x.shape == (b, N, D) and targets.shape == (b, N, K) and observed.dtype == torch.bool
        assert b == 3 - len(broken) and loaded.failed.keys() == {f"v{video}" for video in broken}
    assert kinds >= {n for video, n in enumerate([9, 6, 1]) if video not in broken}


@pytest.mark.parametrize("order", ["diffusion", "mask"])
def test_eq7_gradients_reach_f_and_h_and_nothing_else(order):
    """Catches: an encoder detached from the objective, a part of h that is never used, phrases,
    points, mean, teacher or soft targets trained along."""
    model, source = build(order, F), Source()
    terms = step(model, source, ordering=True)
    assert terms["loss"].item() == pytest.approx(sum(terms[n].item() for n in ("xe", "mse", "mc")))
    terms["loss"].backward()
    dead = [name for name, p in model.named_parameters()
            if p.grad is None or not p.grad.isfinite().all() or p.grad.abs().max() < 1e-6]
    assert dead == (["denoiser.read_noisy.weight"] if order == "mask" else [])  # it reads zeros
    assert source.features.grad is None
    assert not any(buffer.requires_grad for buffer in model.buffers())
    assert {name for name, _ in model.named_buffers()} == {
        "phrases", "mean", "A", "points", "alpha_bar"}


def test_eq7_every_term_trains_what_it_should():
    """Catches: L_XE that trains h; L_MSE or L_MC that do not reach the encoder by the context."""
    model, source = build(encoder=F), Source()
    f, h = model.encoder.patch_embed.proj.weight, model.denoiser.out.weight
    for name, of_h in (("xe", False), ("mse", True), ("mc", True)):
        model.zero_grad(set_to_none=True)
        step(model, source, ordering=True)[name].backward()
        assert f.grad.abs().max() > 0, name
        assert (h.grad is not None and bool(h.grad.abs().max() > 0)) == of_h, name


def test_eq8_is_over_the_observed_clips():
    """Catches: the missing clip, a hidden one or padding counted in L_XE, a video left out, the
    teacher's temperature for the student's; matching alone that leaves clips out or knows h."""
    model, (x, targets, observed, j) = build(encoder=F), question()
    each = [[-float((targets[b, i] * slow_match(x[b, i], PHRASES).log()).sum()) for i in range(N)]
            for b in range(3)]
    with torch.no_grad():
        terms = train.objective(model, x, targets, observed, j, True)
        alone = train.objective(model, x, targets, observed, j, False)
        one = train.objective(model, x[:1], targets[:1], torch.arange(N)[None] != 4, j[:1], True)
    mean = sum(each[b][i] for b, i in observed.nonzero().tolist()) / observed.sum().item()
    assert terms["xe"].item() == pytest.approx(mean, rel=1e-4)
    assert set(alone) == {"loss", "xe"} and alone["loss"] == alone["xe"] == terms["xe"]
    expected = sum(each[0][i] for i in range(9) if i != 4) / (9 - 1)                     # Eq. 8
    assert one["xe"].item() == pytest.approx(expected, rel=1e-4)


def test_sgd_comes_first_and_f_and_h_have_rates_of_their_own():
    """Catches: AdamW from the start, SGD without momentum, a stage that trains another part or at
    the rate of another, a weight decay that does not arrive, a rate before the schedule sets it."""
    model = build(encoder=F)
    given = TrainSettings(sgd_lr=.1, lr=.2, order_lr=.3, weight_decay=.4)
    f, h = (list(part.parameters()) for part in (model.encoder, model.denoiser))
    stages = {"sgd": (torch.optim.SGD, [(f, .1)]), "match": (torch.optim.AdamW, [(f, .2)]),
              "joint": (torch.optim.AdamW, [(f, .2), (h, .3)]),
              "order": (torch.optim.AdamW, [(h, .3)])}
    for stage, (kind, expected) in stages.items():
        optimizer = train.make_optimizer(model, given, stage)
        assert type(optimizer) is kind and len(optimizer.param_groups) == len(expected)
        for group, (parameters, peak) in zip(optimizer.param_groups, expected):
            assert list(map(id, group["params"])) == list(map(id, parameters))
            assert (group["peak"], group["lr"], group["weight_decay"]) == (peak, 0, .4)
            assert group.get("momentum") == (.9 if stage == "sgd" else None)


# ------------------------------------------------------------------------------------------------
# The last stage: h alone
# ------------------------------------------------------------------------------------------------
def test_kept_rows_are_those_of_the_finished_f():
    """Catches: embeddings of an f that still learns (a graph kept for each), a teacher of other
    rows, another draw when a run is resumed or with workers, a features file that is embedded
    again; steps that another than the finished f sees, or that follow themselves."""
    model, source = build(encoder=F), Source()
    kept, again = (train.keep_rows(model, source, TrainSettings(keep=2, missing=3, workers=workers),
                                   "cpu")[0] for workers in (0, 2))
    middle = np.arange(train.GRID / 2, 90, train.GRID)
    assert not kept.x.requires_grad and kept.x.shape == (4 * len(middle), D)
    seconds = np.clip(middle, 4.5, 85.5).astype(int)                       # windows within 0..90 s
    with torch.no_grad():
        x = torch.cat([model.encode(source.pixels[video, seconds]) for video in range(4)])
        seen = model.match(x).argmax(-1)
    torch.testing.assert_close(kept.x, x, rtol=1e-4, atol=1e-5)
    assert torch.equal(kept.teacher, source.features[:, seconds].flatten(0, 1))
    assert kept.tables.keys() == again.tables.keys() >= {1}
    for P, (rows, observed, j, forecasts) in kept.tables.items():
        assert all(torch.equal(a, b) for a, b in zip(kept.tables[P], again.tables[P][:3]))
        for row in rows[:forecasts]:                                       # not the same step again
            steps = seen[row[8:]]
            assert (steps[1:] != steps[:-1]).all()
    assert len(kept.tables[1][2]) - kept.tables[1][3] == 2 * 3             # videos with a clip

    table = FeaturesFile(np.array(["v0", "v1", "v2"]), np.ones(3), np.eye(3, D, dtype=np.float16))
    source.features, source.counts = table, [2, 2, 2, 0]
    kept, _ = train.keep_rows(build(), source, TrainSettings(keep=2), "cpu")
    assert torch.equal(kept.x, torch.eye(3, D).half()) and torch.equal(kept.teacher, kept.x)


@pytest.mark.parametrize("order", ["diffusion", "mask"])
def test_eq9_eq10_of_kept_rows_train_h_alone(order):
    """Catches: f or the kept rows trained along, L_XE in the sum, targets of another clip than j or
    at the student's temperature."""
    model, (x, _, observed, j) = build(order, F), question()
    features = torch.randn(3, 1, D, generator=torch.Generator().manual_seed(9)).requires_grad_()
    asked = []

    def batch(size, rng, device):
        asked.append(size)
        return x, features, observed, j
    torch.manual_seed(7)
    terms, rows = train.order_terms(model, SimpleNamespace(batch=batch),
                                    TrainSettings(order_batch=3), "cpu", 0, None)
    torch.manual_seed(7)
    target = torch.stack([slow_target(model, feature[0]) for feature in features])[:, None]
    mse, mc = train.ordering_losses(model, x, target, observed, j)
    assert set(terms) == {"loss", "mse", "mc"} and asked == [3]
    torch.testing.assert_close(terms["mse"], mse)
    torch.testing.assert_close(terms["mc"], mc)
    torch.testing.assert_close(terms["loss"], mse + mc)
    terms["loss"].backward()
    assert features.grad is None and all(p.grad is None for p in model.encoder.parameters())
    dead = [name for name, p in model.denoiser.named_parameters() if p.grad.abs().max() < 1e-6]
    assert dead == (["read_noisy.weight"] if order == "mask" else [])


# ------------------------------------------------------------------------------------------------
# Forecasts
# ------------------------------------------------------------------------------------------------
def test_sec33_forecast_of_a_permuted_batch_and_of_single_samples():
    """Catches: samples or videos that mix; the zero vector treated apart from other noise."""
    model, (x, _, observed, _) = build(), question()
    noise = torch.cat([0 * noise_like(model)[:, :1], noise_like(model)], 1)
    turn = torch.tensor([2, 0, 1])
    with torch.no_grad():
        x_hat = model.forecast(x, observed, J, noise)
        torch.testing.assert_close(
            model.forecast(x[turn], observed[turn], J[turn], noise[turn]), x_hat[turn])
        for q in range(noise.shape[1]):
            alone = model.forecast(x, observed, J, noise[:, q:q + 1])
            torch.testing.assert_close(alone, x_hat[:, q:q + 1])
    assert (x_hat[:, 1:] - x_hat[:, :1]).abs().amax(-1).min() > 1e-4       # samples do differ


def test_clips_missing_together_are_denoised_together():
    """Catches: a group of clips that are each forecast alone, groups that mix, an order of groups
    by clip; losses that ask one of several missing clips alone."""
    model, (x, targets, observed, _) = build(), question()
    j = torch.tensor([[4, 6], [3, 5], [0, 1]])
    observed = observed & ~functional.one_hot(j, N).bool().any(1)
    noise, rows = noise_like(model), torch.arange(3)[:, None]                     # two groups of 2
    with torch.no_grad():
        x_hat = model.forecast(x, observed, j, noise)
        for first in (0, 2):
            group = slice(first, first + 2)
            torch.testing.assert_close(model.forecast(x, observed, j, noise[:, group]),
                                       x_hat[:, group])
        other = noise.clone()
        other[:, 1] += 1                               # of the second clip of the first group
        moved = (model.forecast(x, observed, j, other) - x_hat).abs().amax(-1)         # (B, 4)
        assert (moved[:, :2] > 0).all() and (moved[:, 2:] == 0).all()
        torch.manual_seed(7)
        mse, mc = train.ordering_losses(model, x, targets[rows, j], observed, j)
        torch.manual_seed(7)
        t = torch.randint(len(model.alpha_bar), (3, 2))
        z0 = targets[rows, j] @ model.points                                           # (B, 2, D)
        zt, t = diffusion.training_queries(z0, t, torch.randn(3, 2, D), model.alpha_bar)
        x_hat, z_hat = model.predictor(x, observed, j)(zt, t)
        far = [(z_hat[:, q] - z0[:, q % 2]).pow(2).sum(-1).mean() for q in range(4)]
        log_p = model.match_predicted(x_hat)
        nats = [-(targets[rows, j][:, q % 2] * log_p[:, q]).sum(-1).mean() for q in range(4)]
    assert mse.item() == pytest.approx(sum(far).item() / 4)
    assert mc.item() == pytest.approx(sum(nats).item() / 4)


@pytest.mark.parametrize("kappa", [model_module.KAPPA, .37])
def test_sec33_forecasts_begin_with_scaled_noise(kappa, monkeypatch):
    """Catches: KAPPA left out of the draws, at the start or at later levels."""
    monkeypatch.setattr(model_module, "KAPPA", kappa)
    model, (x, _, observed, _) = build(), question()
    noise = noise_like(model)
    with torch.no_grad():
        predict = model.predictor(x, observed, J)
        expected = diffusion.sample(predict, kappa * noise, model.alpha_bar)
        torch.testing.assert_close(model.forecast(x, observed, J, noise), expected)


@pytest.mark.parametrize("order", ["diffusion", "mask"])
def test_a_past_present_or_future_clip_can_be_forecast(order):
    """Catches: a forecast that works for the last clip alone, or does not know which is missing;
    one that reads the missing clip or padding."""
    model, (x, _, _) = build(order), rows(1)
    noise, results = noise_like(model, 1), []
    with torch.no_grad():
        for j in range(7):                                                 # clips 7 and 8: padding
            observed = (torch.arange(N) != j) & (torch.arange(N) < 7)
            results.append(model.forecast(x, observed[None], torch.tensor([[j]]), noise))
            for i in range(N):
                other = x.clone()
                other[:, i] = functional.normalize(x[:, i].flip(-1) + 1, dim=-1)
                moved = (model.forecast(other, observed[None], torch.tensor([[j]]), noise)
                         - results[-1]).abs().max()
                assert (moved > 0) == observed[i], (j, i, moved)
    for a in range(7):
        assert results[a].isfinite().all()
        assert all((results[a] - results[b]).abs().max() > 1e-5 for b in range(a))


def test_mask_and_none_are_what_the_ablation_says():
    """Catches: a mask model that reads the noise or has an L_MSE; matching alone with an h."""
    model, (x, targets, observed, _) = build("mask"), question()
    noise, target = noise_like(model), targets[torch.arange(3)[:, None], J]
    x_hat = model.forecast(x, observed, J, noise)
    assert x_hat.shape == noise.shape
    assert torch.equal(x_hat, model.forecast(x, observed, J, 0 * noise))
    mse, mc = train.ordering_losses(model, x, target, observed, J)
    expected = -(target * model.match_predicted(x_hat[:, :1])).sum(-1).mean()
    assert mse == 0 and mc.item() == pytest.approx(expected.item(), rel=1e-5)
    none = build("none", F)
    assert none.denoiser is None and set(step(none, Source(), ordering=False)) == {"loss", "xe"}


def test_encode_normalises_pixels_and_embeddings():
    """Catches: frames and channels exchanged, no division by 255, embeddings of other lengths."""
    model, clips = build(encoder=F), Source().pixels[0, :2]
    pixels = torch.stack([torch.stack([(clips[:, f, c] / 255 - .4) / .25 for f in range(2)], 1)
                          for c in range(3)], 1)                           # (C, 3, F, H, W)
    torch.testing.assert_close(model.encode(clips), model.encoder(pixels))
    torch.testing.assert_close(model.encode(clips).norm(dim=-1), torch.ones(2))
    none = build()
    assert none.encoder is None
    torch.testing.assert_close(none.encode(3 * PHRASES), functional.normalize(PHRASES, dim=-1))
