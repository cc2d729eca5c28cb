"""evaluate.py: every number of its tables, counted again from embeddings that are known.

In place of f, h and the teacher stand made-up embeddings, one for each second of the embedded
world's videos. All is float64, so that no rounding decides which step comes first.
"""
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional

import data
import losses
import pseudo_labels
from evaluate import EvaluateSettings
from evaluation import forecasting, metrics
from evaluation.embedding import encode_samples
from evaluation.inference import score_texts
from evaluation.recognition import classify
from evaluation.truth import truth_rows
from toy import grammar
from toy.source import as_video

S, D, Q, SEED = len(grammar.STEPS), 16, 3, 2
TAU, READ_TAU, TEACHER_TAU, SPREAD = 0.2, 0.3, 0.15, 0.25
TWINS = grammar.STEP_ID["melt butter"], grammar.STEP_ID["pour oil"]    # two steps with the same text


def draw(*shape, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


TEXTS = functional.normalize(draw(S, D, seed=1), dim=-1) * (1 + draw(S, 1, seed=2).abs())
TEXTS[TWINS[1]] = TEXTS[TWINS[0]]
UNIT = functional.normalize(TEXTS, dim=-1).numpy()
TURN = torch.linalg.qr(draw(D, D, seed=3))[0]


def tilted(p):
    """As a matrix product may do: of two equal texts the later one scores a little higher."""
    return p + 1e-10 * torch.arange(p.shape[-1])


class Source:
    """Videos of the embedded world; a clip is its middle second: its step, the next one, noise.

    The second training video has nothing that a window lies around.
    """

    def __init__(self, split, count, *_):
        scripts = [grammar.make_video(split, i) for i in range(count)]
        self.split, self.videos = split, [as_video(script, split) for script in scripts]
        self.listed, self.missing, self.unreadable = self.videos, [], {}
        self.ours, self.teachers = ([self.seconds(script, turn) for script in scripts]
                                    for turn in (TURN.numpy(), np.eye(D)))

    def seconds(self, script, turn):
        """(seconds, D): the text of the step, that of the next one turned, and noise."""
        rng = np.random.default_rng((script.seed, int(turn[0, 0] == 1)))
        rows = .3 * rng.standard_normal((math.ceil(script.duration), D))
        for k, (start, end) in enumerate(script.segments):
            for second in range(math.floor(start), math.floor(end) + 1):
                rows[second] += UNIT[script.steps[k]]
                if k + 1 < len(script.steps):
                    rows[second] += UNIT[script.steps[k + 1]] @ turn.T
        return rows

    def __len__(self):
        return len(self.videos)

    def pretrain_windows(self, video, rng):
        if self.split == "train" and video == 1:
            return np.zeros((0, 2))
        return np.array([step[:2] for step in self.videos[video].steps])[:9]

    def load(self, requests, rng=None):
        places = [(video, int(middle)) for video, windows in requests
                  for middle in windows.mean(-1)]
        clips, views = (torch.from_numpy(np.array([rows[video][i] for video, i in places]))
                        for rows in (self.ours, self.teachers))
        return data.Loaded(requests, clips, views, {})

    def teacher_features(self, views):
        return views


class Model:
    """In place of ProcedureModel: predictions and clips are read at temperatures of their own."""
    task, teacher_tau, encoder = None, TEACHER_TAU, SimpleNamespace(frames=1)

    def encode(self, clips):
        return clips

    def read(self, x, texts):
        return tilted(losses.match(x, texts, READ_TAU))

    def match_predicted(self, x_hat, texts):
        return tilted(losses.match(x_hat, texts, TAU))

    def forecast_next(self, x, noise):
        return x[:, -1:] @ TURN + SPREAD * noise


@pytest.fixture(autouse=True)
def world(monkeypatch):
    """All that the tables are made of: the sources of the three splits, and the teacher."""
    soft_targets = pseudo_labels.soft_targets
    monkeypatch.setattr(forecasting, "open_labeled", lambda settings, split, *_, **__: (
        Source(split, settings.toy_videos), TEXTS))
    monkeypatch.setattr(forecasting, "ToySource", Source)
    monkeypatch.setattr(forecasting, "soft_targets", lambda *args: tilted(soft_targets(*args)))


SETTINGS = EvaluateSettings(seed=SEED, samples=Q, batch=7, toy_videos=25)


# ------------------------------------------------------------------------------------------------
# The same, slowly
# ------------------------------------------------------------------------------------------------
def softmax(logits):
    weights = np.exp(logits - np.max(logits))
    return weights / weights.sum()


def cosines(x):
    """(D,) -> (S,), those of equal texts equal."""
    values = UNIT @ x / math.sqrt(x @ x)
    values[TWINS[1]] = values[TWINS[0]]
    return values


def best(scores, k=1):
    """The k best steps, the first of equal ones first."""
    return sorted(range(S), key=lambda s: (-scores[s], s))[:k]


def share(hits):
    return 100 * sum(hits) / len(hits)


def top(scores, labels, k=1):
    return share([label in best(row, k) for row, label in zip(scores, labels)])


def by_class(scores, labels):
    return [share([best(row)[0] == s for row, label in zip(scores, labels) if label == s])
            if s in labels else None for s in range(S)]


def mean_class(scores, labels):
    return np.mean([value for value in by_class(scores, labels) if value is not None])


def forecasts_of(source):
    """Each forecast: its video, how many steps came before, the middles of its 8 clips (s)."""
    for v, video in enumerate(source.videos):
        for k in range(1, len(video.steps)):
            end = video.steps[k - 1].end
            begin = max(0.0, end - 68)
            yield v, k, [begin + (end - begin) * (i + .5) / 8 for i in range(8)]


def last_clips(source):
    """Embedding of the last observed clip of each forecast, and what comes next."""
    return [*zip(*[(source.ours[v][int(middles[-1])], source.videos[v].steps[k].label)
                   for v, k, middles in forecasts_of(source)])]


def predictions(clips, noise):
    """p(next step) for each last clip and each of its noises (M, R, D): (M, R, S)."""
    return np.array([[softmax(cosines(x @ TURN.numpy() + SPREAD * eps) / TAU) for eps in row]
                     for x, row in zip(clips, noise)])


def noise_of(count, samples, seed):
    return torch.randn(count, samples, D, generator=torch.Generator().manual_seed(seed)).numpy()


def slow_temperature(held):
    """Where the NLL of the zero-noise softmax is least, by ternary search on 1 / T: it is convex.

    Against what the teacher makes of the clip in the middle of the next step.
    """
    clips, _ = last_clips(held)
    logits = np.log(predictions(clips, np.zeros((len(clips), 1, D)))[:, 0])
    steps = [(v, held.videos[v].steps[k]) for v, k, _ in forecasts_of(held)]
    target = [softmax(cosines(held.teachers[v][int((step.start + step.end) / 2)]) / TEACHER_TAU)
              for v, step in steps]
    low, high = 0.01, 100.0
    for _ in range(80):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        at = [sum(-t @ np.log(softmax(row * inverse)) for t, row in zip(target, logits))
              for inverse in (a, b)]
        low, high = (low, b) if at[0] < at[1] else (a, high)
    return 1 / low


def slow_bigrams(train, clips):
    """What follows the nearest step of each last clip, and what follows its softmax: counted."""
    follows = np.zeros((S, S))
    for v, video in enumerate(train.videos):
        steps = [best(cosines(train.ours[v][int((step.start + step.end) / 2)]))[0]
                 for step in video.steps[:9]] if v != 1 else []
        for a, b in zip(steps, steps[1:]):
            follows[a, b] += 1
    after = [row / row.sum() if row.sum() else follows.sum(0) / follows.sum() for row in follows]
    soft = [softmax(cosines(x) / READ_TAU) for x in clips]
    return [after[best(p)[0]] for p in soft], [sum(p[a] * after[a] for a in range(S)) for p in soft]


# ------------------------------------------------------------------------------------------------
# The forecast table
# ------------------------------------------------------------------------------------------------
def test_the_forecast_table_equals_counting():
    """Catches: zero noise among the samples of the expectation or the oracle; an oracle_softmax
    without its temperature, or fitted to the last observed clip; a clip baseline of one clip;
    unigram as class 0; bigram and bigram_soft exchanged; equal texts that do not tie; --seed or M
    that does not arrive."""
    source = Source("test", 25)
    result, evaluated, listed = forecasting.forecast(Model(), source, TEXTS, SETTINGS, "cpu")
    clips, y = last_clips(source)
    M = len(y)
    zero = predictions(clips, np.zeros((M, 1, D)))[:, 0]
    rounds = [predictions(clips, noise_of(M, Q, seed)) for seed in
              (SEED, *(SEED * 1000 + 500 + i for i in range(1, 5)))]
    means = [p.mean(1) for p in rounds]
    picks = [[[best(p)[0] for p in row] for row in drawn] for drawn in rounds]
    oracle = [share([label in row for row, label in zip(drawn, y)]) for drawn in picks]
    fitted = slow_temperature(Source("validation", 20))
    lucky = [1 - (1 - softmax(np.log(p) / fitted)[label]) ** Q for p, label in zip(zero, y)]
    teacher = [UNIT @ np.mean([source.teachers[v][int(m)] for m in middles], 0)
               for v, _, middles in forecasts_of(source)]
    hard, soft = slow_bigrams(Source("train", 25), clips)
    commonest = max(sorted(set(y)), key=y.count)
    assert evaluated == listed == M > 100 and commonest != 0
    expected = {
        "top1": {"zero_noise": top(zero, y), "expectation": top(means[0], y), "oracle": oracle[0],
                 "oracle_softmax": share(lucky)},
        "top5": {"zero_noise": top(zero, y, 5), "expectation": top(means[0], y, 5)},
        "mean_class": {"zero_noise": mean_class(zero, y), "expectation": mean_class(means[0], y)},
        "deviation": {"expectation": np.std([top(p, y) for p in means], ddof=1),
                      "oracle": np.std(oracle, ddof=1)},
        "baselines": {"random": 100 / S, "unigram": share([label == commonest for label in y]),
                      "clip": top(teacher, y), "bigram": top(hard, y), "bigram_soft": top(soft, y)}}
    for part, values in expected.items():
        assert result[part] == pytest.approx(values, rel=1e-6), part
    assert result["distinct"] == pytest.approx(np.mean([len(set(row)) for row in picks[0]]))
    assert result["by_class"] == pytest.approx(by_class(zero, y))
    assert result.keys() == expected.keys() | {"distinct", "truth", "by_class", "by_class_bayes"}


def encoded(source):
    """The samples of a source's forecasts, and their clips' embeddings."""
    samples = data.forecast_samples(source.videos)
    return samples, encode_samples(Model(), source, samples, SETTINGS, "cpu")[0]


def test_bigrams_equal_counting():
    """Catches: padding, or the order of a pair, counted; the first observed clip in place of the
    last; the posterior in place of the nearest step; a video without a clip that shifts others."""
    source = Source("test", 6)
    for ours, slow in zip(forecasting.bigrams(Model(), encoded(source)[1], TEXTS, SETTINGS, "cpu"),
                          slow_bigrams(Source("train", 25), last_clips(source)[0])):
        np.testing.assert_allclose(ours, slow, rtol=1e-7, atol=1e-12)


def test_the_rows_of_the_exact_truth_equal_counting():
    """Catches: the filter fed with posteriors that are not P(clip | step) relative to the
    background (times S), or without the clips' length; tv of the truth's draws in place of ours,
    or its floor of ours; other draws than --samples in the ideal oracle."""
    source, exact = Source("test", 30), grammar.Grammar()
    samples, x = encoded(source)
    clips, y = last_clips(source)
    drawn = torch.randint(S, (len(y), 30), generator=torch.Generator().manual_seed(1))
    rows, bayes = truth_rows(Model(), x, TEXTS, samples, source.videos, drawn, SETTINGS)
    truth, believed = [], []
    for sample, (v, _, middles) in zip(samples, forecasts_of(source)):
        steps, from_start = data.observed_steps(sample, source.videos[v])
        truth.append(exact.next_step(steps, from_start))
        likelihood = [S * softmax(cosines(source.ours[v][int(m)]) / READ_TAU) for m in middles]
        believed.append(exact.next_step_from_clips(
            np.array([likelihood]), np.array([from_start]), np.array([middles[1] - middles[0]]))[0])
    generator = torch.Generator().manual_seed(SEED)
    ideal = torch.multinomial(torch.tensor(np.array(truth)), 200, replacement=True,
                              generator=generator).tolist()
    drawn = drawn.tolist()
    for more in (50, 50, 50, 20):
        noise = noise_of(len(y), more, SEED * 1000 + len(drawn[0]))
        for row, p in zip(drawn, predictions(clips, noise)):
            row += p.argmax(1).tolist()

    def tv(draws):
        return np.mean([sum(abs(row.count(s) / 200 - p[s]) for s in range(S)) / 2
                        for row, p in zip(draws, truth)])
    few = [row[:Q] for row in ideal]
    assert rows == pytest.approx({
        "bayes_top1": top(truth, y), "bayes_top1_pixels": top(believed, y),
        "ideal_oracle": share([label in row for row, label in zip(few, y)]),
        "ideal_distinct": np.mean([len(set(row)) for row in few]),
        "tv": tv(drawn), "tv_ideal": tv(ideal), "tv_draws": 200}, rel=1e-6)
    assert bayes == pytest.approx(by_class(truth, y))


def test_a_step_is_observed_from_a_second_on():
    """Catches: another threshold, seconds of the video in place of seconds of the window."""
    video = as_video(grammar.make_video("test", 4), "test")
    labels = [step.label for step in video.steps]
    for inside in (.5, .99, 1.01, 5.):                      # s of step 1 in the window of step 4
        windows = np.array([[video.steps[1].end - inside, video.steps[3].end]])
        assert data.observed_steps(data.Sample(0, windows, labels[4], 4), video) == (
            labels[2 if inside < 1 else 1:4], False)
    windows = np.array([[0., video.steps[1].end]])
    assert data.observed_steps(data.Sample(0, windows, labels[2], 2), video) == (labels[:2], True)


# ------------------------------------------------------------------------------------------------
# The classification table
# ------------------------------------------------------------------------------------------------
def test_the_classification_table_equals_counting():
    """Catches: one view for three, logarithms averaged in place of probabilities, the teacher's row
    made of our embedding or at our temperature, equal texts that do not tie, kinds of steps mixed
    up, the difference of other samples or resampled by sample."""
    source = Source("test", 25)
    result, evaluated, listed = classify(Model(), source, TEXTS, SETTINGS, "cpu")
    steps = [(v, step) for v, video in enumerate(source.videos) for step in video.steps]
    y, p = [step.label for _, step in steps], {"ours": [], "teacher": []}
    for v, (start, end, _) in steps:
        views = [(start + end) / 2 + i * max(end - start - 9, 0) / 2 for i in (-1, 0, 1)]
        for name, rows, tau in (("ours", source.ours, READ_TAU),
                                ("teacher", source.teachers, TEACHER_TAU)):
            p[name].append(np.mean([softmax(cosines(rows[v][int(m)]) / tau) for m in views], 0))
    expected = {**{f"top{k}": {name: top(p[name], y, k) for name in p} for k in (1, 5)},
                "mean_class": {name: mean_class(p[name], y) for name in p}}
    for kind, names in (("held_out", grammar.HELD_OUT),
                        ("motion_only", sum(grammar.MOTION_ONLY, ()))):
        ids = [grammar.STEP_ID[name] for name in names]
        expected[kind] = {name: top(*zip(*[pair for pair in zip(p[name], y) if pair[1] in ids]))
                          for name in p}
    for part, values in expected.items():
        assert result[part] == pytest.approx(values), part
    hits = [torch.tensor([best(row)[0] == label for row, label in zip(p[name], y)]).double()
            for name in ("ours", "teacher")]
    interval = metrics.paired_bootstrap(*hits, groups=torch.tensor([v for v, _ in steps]))
    assert result["ours_minus_teacher"] == pytest.approx([100 * value for value in interval])
    assert result["by_class"] == pytest.approx(by_class(p["ours"], y))
    assert result.keys() == {*expected, "ours_minus_teacher", "by_class"}
    assert evaluated == listed == len(y)


def test_equal_texts_tie_and_each_of_them_counts():
    """Catches: equal texts told apart by rounding, one of them left out of the softmax."""
    x = draw(2, 3, D, seed=7)
    p = score_texts(Model().read, x, TEXTS).exp()
    for row, ours in zip(x.flatten(0, 1).numpy(), p.flatten(0, 1)):
        assert ours[TWINS[0]] == ours[TWINS[1]]
        np.testing.assert_allclose(ours, softmax(cosines(row) / READ_TAU), rtol=1e-6)


def test_percent():
    """Catches: a fraction that is not multiplied, a rounded one, NaN in a JSON, None as 0."""
    assert metrics.percent(None) is metrics.percent(math.nan) is None
    assert metrics.percent(torch.empty(0)) is None                        # nothing of a kind
    assert metrics.percent(0.123456) == pytest.approx(12.3456)
    assert metrics.percent(torch.tensor([True, False, True])) == pytest.approx(200 / 3)
