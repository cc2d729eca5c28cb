"""evaluate.py: every number of its tables, counted again from embeddings that are known."""
import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional

import data
import diffusion
import losses
import pseudo_labels
from commands import draw, read_json
from evaluate import EvaluateSettings, main
from evaluation import forecasting, labeled, metrics
from evaluation.embedding import encode_samples
from evaluation.table import print_table
from evaluation.tasks import classify
from evaluation.truth import best_h, class_means, form_rows, truth_rows
from toy import grammar
from toy.filter import next_step_from_clips
from train import TrainSettings
from training.run import Run, Stage
from weights import checkpoint

S, D, Q, SEED = len(grammar.STEPS), 16, 3, 2
TAU, SPREAD = 0.2, 0.25
TWINS = grammar.STEP_ID["melt butter"], grammar.STEP_ID["pour oil"]       # they have equal texts
TEXTS = functional.normalize(draw(S, D, seed=1), dim=-1) * (1 + draw(S, 1, seed=2).abs())
TEXTS[TWINS[1]] = TEXTS[TWINS[0]]
TURN = torch.linalg.qr(draw(D, D, seed=3))[0]


def tilted(p):
    """As a matrix product may do: of two equal texts the later one scores a little higher."""
    return p + 1e-10 * torch.arange(p.shape[-1])


class Source:
    """Videos of the embedded world; a clip is its middle second: its step, the next one, noise."""

    def __init__(self, split, count, *_):
        self.split, self.videos = split, [grammar.make_video(split, i) for i in range(count)]
        self.listed, self.missing, self.unreadable = self.videos, [], {}
        self.ours, self.teachers = ([self.seconds(video, turn) for video in self.videos]
                                    for turn in (TURN, torch.eye(D).double()))

    def seconds(self, video, turn):
        """(seconds, D): the text of the step, that of the next one turned, and noise."""
        rows = .3 * draw(math.ceil(video.duration), D,
                         seed=grammar.seed_of(video) + int(turn[0, 0] == 1))
        y = functional.normalize(TEXTS, dim=-1)
        for k, (start, end, label) in enumerate(video.steps):
            rows[int(start):int(end) + 1] += y[label]
            if k + 1 < len(video.steps):
                rows[int(start):int(end) + 1] += y[video.steps[k + 1].label] @ turn.T
        return rows

    def __len__(self):
        return len(self.videos)

    def pretrain_windows(self, video, rng):
        if self.split == "train" and video == 1:
            return np.zeros((0, 2))
        windows = np.array([step[:2] for step in self.videos[video].steps])
        return windows.repeat(2, 0)[:9]                # two clips of each step

    def load(self, requests, rng=None):
        clips, views = (torch.cat([rows[video][windows.mean(-1).astype(int)]
                                   for video, windows in requests])
                        for rows in (self.ours, self.teachers))
        return data.Loaded(requests, clips, views, {})

    def teacher_features(self, views):
        return views


class Model:
    """In place of ProcedureModel: it predicts the last clip, turned, with noise."""
    task, order, encoder, denoiser = None, "diffusion", SimpleNamespace(frames=1), "h"
    dim, tau, alpha_bar = D, TAU, diffusion.noise_levels(D).double()
    standardize = diffusion.Standardizer(D).double()

    def to(self, device):
        return self

    def encode(self, clips):
        return clips

    def forecast_next(self, x, noise):
        return x[:, -1:] @ TURN + SPREAD * noise


@pytest.fixture(autouse=True)
def world(monkeypatch):
    """All that the tables are made of: the model, the sources of the three splits, the teacher."""
    def open_source(settings, split, *_, **__):
        return Source(split, settings.toy_videos), TEXTS
    for module in (labeled, forecasting):
        monkeypatch.setattr(module, "open_labeled", open_source)
    monkeypatch.setattr(checkpoint, "load_model", lambda path: (Model(), {}, {}))
    for module, name, score in ((losses, "match", losses.match),
                                (forecasting, "soft_targets", pseudo_labels.soft_targets)):
        monkeypatch.setattr(module, name, lambda *args, score=score, **tau: tilted(
            score(*args, **tau)))


SETTINGS = EvaluateSettings(seed=SEED, samples=Q, batch=7, toy_videos=25)


def p_of(x, tau):
    """p(step | x) (..., S) by the formula; that of equal texts is equal."""
    cosines = torch.stack([(x * y).sum(-1) / x.norm(dim=-1) / y.norm() for y in TEXTS], -1)
    cosines[..., TWINS[1]] = cosines[..., TWINS[0]]
    weights = (cosines / tau).exp()
    return weights / weights.sum(-1, keepdim=True)


def top(scores, y, k=1):
    return 100 * metrics.topk_correct(scores, y, k).double().mean().item()


def by_class(scores, y):
    return metrics.by_class(metrics.topk_correct(scores, y, 1), y, S)


def forecasts_of(source):
    """Each forecast: its video, the middles of its 8 clips (s), the next step."""
    for v, video in enumerate(source.videos):
        for now, then in zip(video.steps, video.steps[1:]):
            begin = max(0.0, now.end - 68)
            yield v, [begin + (now.end - begin) * (i + .5) / 8 for i in range(8)], then


def clips_of(rows, source):
    """(M, 8, D) of rows, source.ours or source.teachers: the clips of each forecast."""
    return torch.stack([rows[v][[int(m) for m in middles]] for v, middles, _ in
                        forecasts_of(source)])


def oracle(p, y):
    """Percent of forecasts of which one of the samples p (M, Q, S) is right."""
    return 100 * np.mean([label in row for label, row in zip(y.tolist(), p.argmax(-1).tolist())])


def predictions(source, samples, seed, some=slice(None)):
    """p(next step) of some forecasts for each of their noises: (M, Q, S)."""
    last = clips_of(source.ours, source)[some, -1:]
    noise = torch.randn(len(last), samples, D, generator=torch.Generator().manual_seed(seed))
    return p_of(last @ TURN + SPREAD * noise, TAU)


def zero_noise(source):
    """p(next step) of each forecast without noise: (M, S)."""
    return p_of(clips_of(source.ours, source)[:, -1] @ TURN, TAU)


def middle_of(step):
    return int((step.start + step.end) / 2)


def temperature_by_hand():
    """That of the zero-noise forecasts against what the teacher sees in the next step's middle."""
    held = Source("validation", 20)
    target = torch.stack([p_of(held.teachers[v][middle_of(then)], TAU)
                          for v, _, then in forecasts_of(held)])
    return metrics.fit_temperature(zero_noise(held).log(), target)


def counts_by_hand(last):
    """Counts of each step in training, of what follows the nearest of a last clip, its softmax."""
    train, seen, follows = Source("train", 25), np.zeros(S), np.zeros((S, S))
    for v, video in enumerate(train.videos):
        steps = [int(p_of(train.ours[v][middle_of(step)], TAU).argmax())
                 for step in video.steps for _ in range(2)][:9] if v != 1 else []
        for step in steps:
            seen[step] += 1
        for a, b in zip(steps, steps[1:]):
            follows[a, b] += a != b                        # one step in two clips
    after = torch.tensor(np.array([row / row.sum() if row.sum() else follows.sum(0) / follows.sum()
                                   for row in follows]))
    posterior = p_of(last, TAU)
    return torch.tensor(seen).expand(len(last), -1), after[posterior.argmax(-1)], posterior @ after


def test_the_forecast_table_equals_counting(tmp_path, monkeypatch):
    """Catches: zero noise among the samples; another temperature, seed or M; a wrong baseline."""
    monkeypatch.setattr(forecasting, "SPREAD", 50)
    main(dataclasses.replace(SETTINGS, json=tmp_path / "o.json", device="cpu"))
    result, source = read_json(tmp_path / "o.json"), Source("test", 25)
    y = torch.tensor([then.label for _, _, then in forecasts_of(source)])
    some = torch.linspace(0, len(y) - 1, 50).long()
    zero, p = zero_noise(source), predictions(source, Q, SEED)
    drawn = [p[some], *(predictions(source, Q, SEED * 1000 + 500 + i, some) for i in range(1, 5))]
    hits = [(top(part.mean(1), y[some]), oracle(part, y[some])) for part in drawn]
    spread = np.std(hits, 0, ddof=1) * math.sqrt(50 / len(y))
    fitted = (zero.log() / temperature_by_hand()).softmax(-1)[range(len(y)), y]
    teacher = p_of(clips_of(source.teachers, source).mean(1), TAU)
    seen, hard, soft = counts_by_hand(clips_of(source.ours, source)[:, -1])
    assert result["evaluated"] == result["listed"] == len(y) > 100
    expected = {
        "top1": {"zero_noise": top(zero, y), "expectation": top(p.mean(1), y),
                 "oracle": oracle(p, y),
                 "oracle_softmax": 100 * (1 - (1 - fitted) ** Q).mean().item()},
        "top5": {"zero_noise": top(zero, y, 5), "expectation": top(p.mean(1), y, 5)},
        "deviation": {"expectation": spread[0], "oracle": spread[1]},
        "baselines": {"random": 100 / S, "unigram": top(seen, y), "clip": top(teacher, y),
                      "bigram": top(hard, y), "bigram_soft": top(soft, y)}}
    for part, values in expected.items():
        assert result[part] == pytest.approx(values, rel=1e-6), part
    assert result["distinct"] == pytest.approx(np.mean([len(set(row)) for row in
                                                        p.argmax(-1).tolist()]))
    assert result["by_class"] == pytest.approx(by_class(zero, y))
    assert result["truth"]["tv_forecasts"] == 50 and len(result["by_class_bayes"]) == S


def test_the_rows_of_the_exact_truth_equal_counting():
    """Catches: a filter of other posteriors or lengths; tv or its floor exchanged; other draws."""
    source, exact = Source("test", 30), grammar.Grammar()
    samples, x = data.forecast_samples(source.videos), clips_of(source.ours, source)
    y = torch.tensor([sample.label for sample in samples])
    some = torch.arange(0, len(y), 3)
    zero, samples_p = (draw(len(y), *shape, S).log_softmax(-1) for shape in ((), (7,)))
    log_p = draw(len(some), 30, S, seed=1).log_softmax(-1)
    rows, bayes = truth_rows(Model(), x, TEXTS, samples, source.videos, None, zero, samples_p, some,
                             log_p, SETTINGS)
    truth, believed = [], []
    for sample, clips, (_, middles, _) in zip(samples, x, forecasts_of(source)):
        steps, from_start = data.observed_steps(sample, source.videos[sample.video])
        truth.append(exact.next_step(steps, from_start))
        believed.append(next_step_from_clips(
            exact, (S * p_of(clips, TAU))[None].numpy(), np.array([from_start]),
            np.array([middles[1] - middles[0]]))[0])
    truth, believed = torch.tensor(np.array(truth)), torch.tensor(np.array(believed))
    ideal = torch.multinomial(truth, 200, replacement=True,
                              generator=torch.Generator().manual_seed(SEED))
    for more in (50, 50, 50, 20):
        p = predictions(source, more, SEED * 1000 + log_p.shape[1], some)
        log_p = torch.cat([log_p, p.log()], 1)
    few = ideal[:, :Q]
    assert rows.pop("form") is rows.pop("ideal_expectation") is None      # no validation clips
    means = [top(log_p[:, :n].exp().mean(1), y[some]) for n in (5, 50, 200)]
    assert rows.pop("expectations") == {"model": pytest.approx(means)}
    found = {"zero_noise": [], "expectation": [], "share": []}
    for own, drawn, exactly in zip(zero.exp(), samples_p.exp(), truth):
        votes = [int(p.argmax()) for p in drawn]
        for name, p in (("zero_noise", own), ("expectation", drawn.mean(0)),
                        ("share", torch.tensor([votes.count(step) / 7 for step in range(S)]))):
            best = max(range(S), key=lambda step: (p[step].item(), drawn[:, step].sum().item()))
            allowed = [step for step in range(S) if exactly[step] > 0]
            found[name].append((100 * (best in allowed), 100 * p[allowed].sum().item()))
    assert rows.pop("possible_next") == {
        name: pytest.approx(np.mean(values, 0), rel=1e-5) for name, values in found.items()}
    assert rows == pytest.approx({
        "bayes_top1": top(truth, y), "bayes_top1_pixels": top(believed, y),
        "ideal_oracle": 100 * (few == y[:, None]).any(1).double().mean().item(),
        "ideal_distinct": np.mean([len(set(row)) for row in few.tolist()]),
        "tv": metrics.total_variation(log_p.argmax(-1), truth[some]).mean().item(),
        "tv_ideal": metrics.total_variation(ideal[some], truth[some]).mean().item(),
        "tv_draws": 200, "tv_forecasts": len(some)}, rel=1e-6)
    assert bayes == pytest.approx(by_class(truth, y))


def test_a_step_is_observed_from_a_second_on():
    """Catches: another threshold, seconds of the video in place of seconds of the window."""
    video = grammar.make_video("test", 4)
    labels = [step.label for step in video.steps]
    for inside in (.5, .99, 1.01, 5.):                      # s of step 1 in the window of step 4
        windows = np.array([[video.steps[1].end - inside, video.steps[3].end]])
        assert data.observed_steps(data.Sample(0, windows, labels[4], 4), video) == (
            labels[2 if inside < 1 else 1:4], False)
    windows = np.array([[0., video.steps[1].end]])
    assert data.observed_steps(data.Sample(0, windows, labels[2], 2), video) == (labels[:2], True)


def test_the_classification_table_equals_counting():
    """Catches: one view for three, logarithms averaged, another's row, kinds or videos mixed."""
    source = Source("test", 25)
    samples = data.samples_of("classify", source.videos)
    x, teacher, samples = encode_samples(Model(), source, samples, SETTINGS, "cpu")
    result = classify(Model(), source, samples, x, teacher, TEXTS, SETTINGS)
    steps = [(v, step) for v, video in enumerate(source.videos) for step in video.steps]
    y, p = torch.tensor([step.label for _, step in steps]), {}
    for name, rows in (("ours", source.ours), ("teacher", source.teachers)):
        p[name] = torch.stack([p_of(rows[v][[
            int((start + end) / 2 + i * max(end - start - 9, 0) / 2) for i in (-1, 0, 1)]],
            TAU).mean(0) for v, (start, end, _) in steps])
    expected = {f"top{k}": {name: top(p[name], y, k) for name in p} for k in (1, 5)}
    for kind, names in (("held_out", grammar.HELD_OUT),
                        ("motion_only", sum(grammar.MOTION_ONLY, ()))):
        own = [i for i, label in enumerate(y) if grammar.STEPS[label] in names]
        expected[kind] = {name: top(p[name][own], y[own]) for name in p}
    for part, values in expected.items():
        assert result[part] == pytest.approx(values), part
    assert result["by_class"] == pytest.approx(by_class(p["ours"], y))
    right = metrics.topk_correct(p["ours"], y, 1).int().tolist()
    assert [[tuple(map(int, step.split(":"))) for step in video.split()]
            for video in result["by_video"]] == [
        [(int(y[i]), right[i]) for i, (v, _) in enumerate(steps) if v == video]
        for video in range(25)]
    assert result.keys() == {*expected, "by_class", "by_video"}


HEAD = {"task": "forecast", "listed": 41, "evaluated": 40, "missing": 3, "unreadable": 0,
        "samples": 5}


def test_the_printed_table(capsys):
    """Catches: a row that does not apply; all digits; samples that may be videos; a long list."""
    print_table({**HEAD, "top1": {"zero_noise": 1 / 3, "oracle_softmax": None}, "truth": None,
                 "by_step": [1.23456, -2.0, 3.0], "by_class": [1.0] * 778,
                 "by_video": ["3:1 17:0"] * 1000, "baselines": {"bigram": 2.0}})
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "test samples", "listed 41", "evaluated 40", "videos", "missing 3", "unreadable 0",
        "task forecast", "samples 5 Monte Carlo samples of each forecast", "top1 % right",
        "zero_noise 0.33 the model, one forecast",
        "by_step 1.23, -2.00, 3.00 % right, the model: each step ahead",
        "baselines % right", "bigram 2.00 baseline",
        "standard error of a percentage of 40 samples: at most 7.9"]


def test_a_run_that_is_too_small_says_so(capsys):
    """Catches: a model of three steps without a word."""
    for steps, notes in ((9, 1), (50, 0)):
        Run(TrainSettings(), None, {}, [Stage("adamw", range(steps), 16, 1.0)], None)
        assert capsys.readouterr().out.count("note: ") == notes


def test_the_best_h_is_the_posterior_mean():
    """Catches: the noise's variance left out, the wrong level, a prior not used, other clips."""
    z, labels = draw(60, 4, seed=1) @ draw(4, 4, seed=2), torch.arange(60) % 5
    means, covariance = class_means(z, labels, 6)
    for s in range(5):
        assert torch.allclose(means[s], z[labels == s].mean(0))
    assert torch.allclose(means[5], z.mean(0))
    rest = torch.stack([row - means[s] for row, s in zip(z, labels)])
    assert torch.allclose(covariance, rest.T @ rest / 59)
    prior, alpha_bar = draw(2, 6, seed=3).softmax(-1), torch.tensor([.9, .2]).double()
    zt, eye = draw(2, 3, 4, seed=4), torch.eye(4).double()
    for t, a in enumerate(alpha_bar):
        z_hat = best_h(prior, means, covariance, alpha_bar)(zt, torch.full((2,), t))
        total = a * covariance + (1 - a) * eye
        for m in range(2):
            for q in range(3):
                w, each = [], []
                for s in range(6):
                    rest = zt[m, q] - a.sqrt() * means[s]
                    w.append(prior[m, s] * torch.distributions.MultivariateNormal(
                        torch.zeros(4).double(), total).log_prob(rest).exp())
                    each.append(means[s] + a.sqrt() * covariance @ torch.linalg.solve(total, rest))
                expected = sum(p * e for p, e in zip(w, each)) / sum(w)
                assert torch.allclose(z_hat[m, q], expected)


def test_what_the_form_allows_equals_sampling_by_hand(monkeypatch):
    """Catches: clips not the ninth, or not standardized; another prior, other draws."""
    model, M = Model(), 40
    model.standardize, model.alpha_bar = diffusion.Standardizer(D).double(), torch.tensor([.5, .05])
    model.standardize.mean, model.standardize.variance = draw(D, seed=1), torch.tensor(4.).double()
    labels, y = torch.arange(3 * S) % S, torch.arange(M) % S
    x = draw(3 * S, 9, D, seed=2) + 3 * TEXTS[labels][:, None]
    prior, some = draw(M, S, seed=3).mul(3).softmax(-1), torch.arange(0, M, 4)
    ideal = torch.randint(S, (M, 200), generator=torch.Generator().manual_seed(4))
    rows = form_rows(model, prior, ideal, (x, None, labels), TEXTS, y, some, prior, SETTINGS)
    means, covariance = class_means(model.standardize(x[:, 8]), labels, S)

    def normal(*shape, seed):
        return torch.randn(*shape, D, generator=torch.Generator().manual_seed(seed))

    def p(rows, noise):
        h = best_h(prior[rows], means, covariance, model.alpha_bar)
        return p_of(model.standardize.inverse(diffusion.sample(h, noise, model.alpha_bar)), TAU)

    def exact(steps, noise):
        variance, axes = torch.linalg.eigh(covariance)
        clips = [[means[s] + axes @ (variance.sqrt() * eps) for s, eps in zip(row, some_noise)]
                 for row, some_noise in zip(steps.tolist(), noise.double())]
        return p_of(model.standardize.inverse(torch.stack([torch.stack(row) for row in clips])),
                    TAU)
    every, many = torch.arange(M), normal(len(some), 200, seed=SEED + 1)
    zero, samples = p(every, torch.zeros(M, 1, D))[:, 0], p(every, normal(M, Q, seed=SEED))
    assert rows["form"] == pytest.approx({
        "zero_noise": top(zero, y), "expectation": top(samples.mean(1), y),
        "oracle": oracle(samples, y),
        "distinct": np.mean([len(set(row)) for row in samples.argmax(-1).tolist()]),
        "tv": metrics.total_variation(p(some, many).argmax(-1), prior[some]).mean().item()},
        abs=1e-4)
    assert rows["ideal_expectation"] == pytest.approx(
        top(exact(ideal[:, :Q], normal(M, Q, seed=SEED)).mean(1), y))
    for name, found in (("form", p(some, many)), ("exact", exact(ideal[some], many))):
        assert rows["expectations"][name] == pytest.approx([
            top(found[:, :n].mean(1), y[some]) for n in (5, 50, 200)]), name
