"""Steps missing anywhere: missing.py against loops, and its two commands."""
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional

from evaluation import metrics
from evaluation import missing
import tasks
from toy import grammar
import losses
from files.annotations import AnnotatedVideo, Step
from losses import match
from support.command import BadInput
from protocols import CLIP_SECONDS, HISTORY, forecast_windows
from settings import EvaluateSettings

S = len(grammar.STEPS)
TEXTS = functional.normalize(torch.randn(S, 24, generator=torch.Generator().manual_seed(0)), dim=-1)
SETTINGS = EvaluateSettings(samples=3, batch=7, seed=5)


class Model:
    """A forecast of clip j is the step after the last observed one before it, or before the first
    observed one after it, by number; where nothing is observed step 0. Noise is added to it."""
    task, denoiser = None, SimpleNamespace(clips=10)

    def forecast(self, x, observed, j, noise):
        rows = []
        for clips, seen, places, eps in zip(x, observed, j, noise):
            seen = [i for i in range(len(clips)) if seen[i]]
            for q, point in enumerate(eps):
                place = int(places[q % len(places)])
                before, after = [i for i in seen if i < place], [i for i in seen if i > place]
                step = (self.step(clips[before[-1]]) + place - before[-1] if before else
                        self.step(clips[after[0]]) - (after[0] - place) if after else 0)
                rows.append(TEXTS[step % S] + 0.3 * point)
        return torch.stack(rows).view_as(noise)

    def forecast_next(self, x, noise):
        following = ((x[:, -1] @ TEXTS.T).argmax(-1) + 1) % S                  # (M,)
        return TEXTS[following][:, None] + 0.5 * noise

    def step(self, clip):
        return int((TEXTS @ clip).argmax())

    def encode(self, clips):
        return clips

    def match_predicted(self, x_hat, texts):
        return match(x_hat, texts, 0.1)


class Source:
    """Videos of the embedded world whose clips are the texts of their steps; one has 12 steps."""

    def __init__(self):
        self.videos = [grammar.make_video("validation", i) for i in range(8)]
        self.videos.append(AnnotatedVideo("long", "test", 0, 130.0, tuple(
            Step(10.0 * k + 1, 10.0 * k + 9, k) for k in range(12))))
        self.listed, self.unreadable, self.missing = self.videos, {}, []

    def __len__(self):
        return len(self.videos)

    def load(self, requests, rng=None):
        clips = []
        for video, windows in requests:
            for middle in windows.mean(-1):
                steps = tasks.steps_of(self.videos[video])
                near = [abs((start + end) / 2 - middle) for start, end, _ in steps]
                clips.append(TEXTS[steps[int(np.argmin(near))][2]])
        return SimpleNamespace(requests=requests, clips=torch.stack(clips), looks=[], failed={})


def test_infill_reads_the_nine_steps_around_the_missing_one():
    """Catches: steps of another video, a window that leaves the video, j beside the missing step,
    prior and future exchanged."""
    counts = [3, 12, 9]
    rows, there, j, kind = missing.infill_rows(counts)
    place = 0
    for first, count in zip((0, 3, 15), counts):
        for k in range(count):
            shown = rows[place][there[place]].tolist()
            assert len(shown) == min(count, 9) and shown == [*range(shown[0], shown[0] + len(shown))]
            assert first <= shown[0] and shown[-1] < first + count
            assert rows[place, j[place, 0]] == first + k
            if count == 12 and 4 <= k <= 7:
                assert j[place, 0] == 4                                    # in the middle
            assert missing.PLACES[kind[place]] == (
                "prior" if k == 0 else "future" if k == count - 1 else "current")
            place += 1
    assert place == len(rows) == len(there) == len(j) == len(kind)


def test_missing_clips_are_predicted_in_groups():
    """Catches: noise that depends on the batch, zero noise among the samples, clips of a group
    exchanged, a mean of log probabilities."""
    generator = torch.Generator().manual_seed(1)
    x = TEXTS[torch.randint(S, (5, 6), generator=generator)]
    j = torch.tensor([[1, 4]] * 5)
    observed = torch.ones(5, 6).bool().scatter(1, j, False)
    zero, mean, picks = missing.predict_missing(Model(), x, observed, j, TEXTS, 3, 9, 2)
    noise = torch.randn(5, 3, 2, 24, generator=torch.Generator().manual_seed(9))
    for b in range(5):
        for p in range(2):
            clean = Model().forecast(x[b:b + 1], observed[b:b + 1], j[b:b + 1, p:p + 1],
                                     torch.zeros(1, 1, 24))[0, 0]
            torch.testing.assert_close(zero[b, p], match(clean, TEXTS, .1))
            drawn = [match(clean + .3 * noise[b, q, p], TEXTS, .1) for q in range(3)]
            torch.testing.assert_close(mean[b, p], sum(row.exp() for row in drawn) / 3)
            assert picks[b, :, p].tolist() == [int(row.argmax()) for row in drawn]


def test_infill_equals_counting():
    """Catches: another step's label, the missing clip or a clip of another video read, a position
    counted under another, the future read where the past alone is asked."""
    source, right, before = Source(), {0: [], 1: [], 2: []}, {0: [], 1: [], 2: []}
    result, evaluated, listed = missing.infill(Model(), source, TEXTS, SETTINGS, "cpu")
    for video in source.videos:
        steps = [step for _, _, step in tasks.steps_of(video)]
        for k, step in enumerate(steps):
            kind = 0 if k == 0 else 2 if k == len(steps) - 1 else 1
            right[kind].append((steps[k - 1] + 1 if k else steps[1] - 1) % S == step)
            before[kind].append((steps[k - 1] + 1 if k else 0) % S == step)
    assert evaluated == listed == sum(map(len, right.values()))
    assert result["by_position"] == pytest.approx([100 * np.mean(right[k]) for k in range(3)])
    assert result["past_alone"] == pytest.approx([100 * np.mean(before[k]) for k in range(3)])
    assert result["top1"]["zero_noise"] == pytest.approx(100 * np.mean(sum(right.values(), [])))


@pytest.mark.parametrize("seconds", [HISTORY, 60.0, 20.0, 4.0])
def test_a_longer_history_is_cut_anew_by_loops(seconds):
    """Catches: a shift in the wrong direction, windows of the whole video, a step of no length."""
    x, step = torch.arange(8.0)[None, :, None], torch.full((1, 1), 99.0)
    other = torch.tensor([30.0]).double()                      # of its own length, beside it
    longer, kept = missing.lengthen(x.repeat(2, 1, 1), torch.tensor([seconds, 30.0]).double(),
                                    step.repeat(2, 1))
    alone, _ = missing.lengthen(x, other, step)
    assert torch.equal(longer[1:], alone) and kept[1] == 39
    total, kept = seconds + CLIP_SECONDS, kept[0]
    assert kept == min(total, HISTORY) and longer.shape == (2, 8, 1)
    for i, (start, end) in enumerate(forecast_windows(total)):
        middle = (start + end) / 2
        assert longer[0, i, 0] == (99 if middle >= seconds else int(middle // (seconds / 8)))
    assert torch.equal(x, torch.arange(8.0)[None, :, None])
    if seconds == HISTORY:                                     # nearly a shift by one
        assert longer[0, :, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 99]


class Cycle:
    """Steps 0 .. 5 as unit vectors: after step k comes k + 1 or k + 2, as the noise's sign says;
    two more where the oldest window shows step 0."""
    task, denoiser = None, True

    def forecast_next(self, history, noise):
        last = history[:, -1].argmax(-1)                                       # (M,)
        old = 2 * (history[:, 0].argmax(-1) == 0)                              # (M,)
        following = ((last + old)[:, None] + 1 + (noise[..., 0] > 0)) % 6      # (M, Q)
        return functional.one_hot(following, 6).float()

    def match_predicted(self, x, texts):
        return losses.match(x, texts, 0.1)


def test_each_draw_goes_on_from_its_own_steps():
    """Catches: a history shared by all draws, by all videos or by all steps; the same noise at
    every step; a future of another length; a next step that is not the futures' first."""
    x = functional.one_hot(torch.tensor([[3] * 6 + [1, 4], [0] * 7 + [2]]), 6).float()
    noise = torch.randn(4, 2, 40, 6, generator=torch.Generator().manual_seed(1))
    seconds = torch.tensor([68.0, 20.0]).double()
    first, picks = missing.sample_in_turn(Cycle(), x, seconds, 5 * torch.eye(6), noise)
    assert first.shape == (2, 40, 6) and picks.shape == (2, 40, 4)
    assert torch.equal(first.argmax(-1), picks[..., 0])
    for m, last in enumerate((4, 2)):
        steps = torch.cat([torch.full((40, 1), last), picks[m]], 1)
        moves = (steps[:, 1:] - steps[:, :-1]) % 6
        assert torch.equal(moves, 1 + 2 * m + (noise[:, m, :, 0].T > 0).long())
        assert len(moves.unique(dim=0)) > 10                   # of 16 courses


def test_the_next_steps_together_equal_counting(monkeypatch):
    """Catches: a horizon that h never learnt, a forecast with too few steps after it, pairs counted
    by their first step, repaired draws that stay together, softmax draws without temperature, a
    second step that does not follow the draw's own first."""
    monkeypatch.setattr(missing, "IN_TURN", 7)
    source = Source()
    source.videos = source.listed = source.videos[:-1]                     # without an exact truth
    samples = tasks.forecast_samples(source.videos)
    x = torch.stack([source.load([(s.video, s.windows)]).clips for s in samples])
    settings = EvaluateSettings(horizon=2, samples=3, batch=7, seed=5)
    result = missing.horizon(Model(), x, samples, source.videos, TEXTS, 2.0, settings)
    with pytest.raises(BadInput, match="at most 2 clips missing.*--missing 3"):
        missing.horizon(Model(), x, samples, source.videos, TEXTS, 2.0,
                        EvaluateSettings(horizon=3))
    hits, grammar, truth, log_p, kept = [[], []], grammar.Grammar(), [], [], []
    for clips, sample in zip(x, samples):
        after = source.videos[sample.video].steps[sample.step:sample.step + 2]
        if len(after) == 2:
            last = Model().step(clips[-1])
            for k in range(2):
                hits[k].append((last + k + 1) % S == after[k])
            truth.append(grammar.next_two_steps(*tasks.shown_steps(sample, source.videos[sample.video])))
            log_p.append([match(TEXTS[(last + k + 1) % S], TEXTS, .1) for k in range(2)])
            kept.append([(last + k + 1) % S for k in range(2)])
    assert result["by_step"] == pytest.approx([100 * np.mean(row) for row in hits])
    noise = torch.randn(len(kept), 200, 2, 24, generator=torch.Generator().manual_seed(5))
    picks = match(TEXTS[torch.tensor(kept)][:, None] + .3 * noise, TEXTS, .1).argmax(-1)
    repaired = torch.stack([picks[..., 0], picks[..., 1].roll(1, 1)], -1)

    def tv(draws, truth=truth):
        far = []
        for rows, p in zip(draws.tolist(), truth):
            share = np.zeros((S, S))
            for a, b in rows:
                share[a, b] += 1 / len(rows)
            far.append(abs(share - p).sum() / 2)
        return np.mean(far)
    assert result["pairs"]["tv"] == pytest.approx(tv(picks))
    assert result["pairs"]["tv_repaired"] == pytest.approx(tv(repaired))
    few = kept[::-(-len(kept) // 7)]
    noise = torch.randn(2, len(few), 200, 24, generator=torch.Generator().manual_seed(5))
    begun = match(TEXTS[torch.tensor(few)[:, 0]][:, None] + .5 * noise[0], TEXTS, .1).argmax(-1)
    then = match(TEXTS[(begun + 1) % S] + .5 * noise[1], TEXTS, .1).argmax(-1)
    some = truth[::-(-len(kept) // 7)]
    assert 1 < len(few) <= 7 < len(kept) and len(begun[0].unique()) > 3
    assert result["pairs"]["tv_in_turn"] == pytest.approx(tv(torch.stack([begun, then], -1), some))
    assert result["pairs"]["tv_in_turn_repaired"] == pytest.approx(
        tv(torch.stack([begun, then.roll(1, 1)], -1), some))
    flat = [[(row / 2.0).softmax(-1).numpy() for row in rows] for rows in log_p]
    expected = np.mean([abs(np.outer(a, b) - p).sum() / 2 for (a, b), p in zip(flat, truth)])
    assert result["pairs"]["tv_independent"] == pytest.approx(expected, abs=.12)   # 200 draws
    assert result["pairs"]["tv_ideal"] < 0.15


def test_the_truth_of_pairs_has_the_truth_of_single_steps():
    """Catches: metrics.total_variation fed with pairs in another order than the truth's."""
    first = torch.tensor([[1, 1, 2, 0]])
    second = torch.tensor([[3, 3, 0, 1]])
    truth = torch.zeros(4, 4).double()
    truth[1, 3], truth[2, 0] = .5, .5
    assert float(metrics.total_variation(first * 4 + second, truth.view(1, -1))) == .25
