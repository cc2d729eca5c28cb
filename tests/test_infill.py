"""Infilling, several next steps at once, and steps in turn: against loops."""
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional

import test_evaluate
from data import (CLIP_SECONDS, HISTORY, Loaded, Step, Video, forecast_samples, forecast_windows,
                  observed_steps, samples_of)
from evaluate import EvaluateSettings
from evaluation import forecasting, tasks
from evaluation.embedding import encode_samples
from evaluation.inference import extend_history, sample_in_turn
from evaluation.labeled import require_task
from evaluation.truth import future_rows
from losses import match
from model import ProcedureModel
from support.command import BadInput
from toy import grammar

S = len(grammar.STEPS)
TEXTS = functional.normalize(torch.randn(S, 24, generator=torch.Generator().manual_seed(0)), dim=-1)
SETTINGS = EvaluateSettings(samples=3, batch=7, seed=5)


class Model:
    """A forecast of clip j is the step after the last observed one before it, or before the first
    observed one after it, by number; where nothing is observed step 0. Noise is added to it."""
    task, denoiser, dim, tau = None, SimpleNamespace(clips=10), 24, 0.1

    def forecast(self, x, observed, j, noise):
        assert not observed.gather(1, j).any()
        x_hat = 0.3 * noise                                                    # (B, Q, P, D)
        for b, clips in enumerate(x):
            seen = [i for i in range(len(clips)) if observed[b, i]]
            for p, place in enumerate(j[b].tolist()):
                before, after = [i for i in seen if i < place], [i for i in seen if i > place]
                step = (self.step(clips[before[-1]]) + place - before[-1] if before else
                        self.step(clips[after[0]]) - (after[0] - place) if after else 0)
                x_hat[b, :, p] += TEXTS[step % S]
        return x_hat

    forecast_next = ProcedureModel.forecast_next

    def step(self, clip):
        return int((TEXTS @ clip).argmax())

    def encode(self, clips):
        return clips


class Source(test_evaluate.Source):
    """Videos of the embedded world whose clips are the texts of their steps; one has 12 steps."""

    def __init__(self):
        super().__init__("validation", 8)
        self.videos.append(Video("long", steps=tuple(
            Step(10.0 * k + 1, 10.0 * k + 9, k + 5) for k in range(12))))

    def load(self, requests, rng=None):
        clips = [TEXTS[min(self.videos[video].steps,
                           key=lambda step: abs((step.start + step.end) / 2 - middle)).label]
                 for video, windows in requests for middle in windows.mean(-1)]
        return Loaded(requests, torch.stack(clips), [], {})


def test_infill_reads_the_nine_steps_around_the_missing_one():
    """Catches: steps of another video, j not at the missing step, prior and future exchanged."""
    counts = [3, 12, 9]
    steps = [(first, count, k) for first, count in zip((0, 3, 15), counts) for k in range(count)]
    for (first, count, k), row, real, j, kind in zip(steps, *tasks.infill_rows(counts),
                                                     strict=True):
        read = row[real].tolist()
        assert read == [*range(read[0], read[0] + min(count, 9))]
        assert first <= read[0] and read[-1] < first + count and row[j] == first + k
        assert count != 12 or not 4 <= k <= 7 or j == 4                    # in the middle
        assert tasks.PLACES[kind] == ("first" if k == 0 else
                                       "last" if k == count - 1 else "middle")


@pytest.mark.parametrize("failed", [0, 1])
def test_infill_equals_counting(failed):
    """Catches: another label, clip or position; an unreadable video that moves all others."""
    source, guesses, labels, kinds = Source(), [], [], []
    samples = samples_of("infill", source.videos)[failed:]
    x, teacher, samples = encode_samples(Model(), source, samples, SETTINGS, "cpu")
    source.unreadable = {video.name: "ends early" for video in source.videos[:failed]}
    result = tasks.infill(Model(), source, samples, x, teacher, TEXTS, SETTINGS)
    for video in source.videos[failed:]:
        steps = [step.label for step in video.steps]
        labels += steps
        guesses += [(steps[k - 1] + 1 if k else steps[1] - 1) % S for k in range(len(steps))]
        kinds += [0, *[1] * (len(steps) - 2), 2]
    assert result["evaluated"] == len(labels)
    right, kinds = np.equal(guesses, labels), np.array(kinds)
    assert result["by_position"] == pytest.approx([100 * right[kinds == k].mean()
                                                   for k in range(3)])
    noise = torch.randn(len(labels), 3, 1, 24, generator=torch.Generator().manual_seed(5))
    p = match(TEXTS[guesses][:, None] + .3 * noise[:, :, 0], TEXTS, .1).exp().numpy()  # (M, 3, S)
    assert result["top1"] == pytest.approx({
        "zero_noise": 100 * right.mean(),
        "expectation": 100 * np.equal(p.mean(1).argmax(-1), labels).mean(),
        "oracle": 100 * (p.argmax(-1).T == labels).any(0).mean()})


@pytest.mark.parametrize("seconds", [HISTORY, 60.0, 20.0, 4.0])
def test_a_longer_history_is_cut_again_by_loops(seconds):
    """Catches: a shift in the wrong direction, windows of the whole video, a step of no length."""
    x, total = torch.arange(8.0)[None, :, None], seconds + CLIP_SECONDS
    longer, covered = extend_history(x, seconds, torch.full((1, 1), 99.0))
    assert covered == min(total, HISTORY) and longer.shape == (1, 8, 1)
    for i, (start, end) in enumerate(forecast_windows(total)):
        middle = (start + end) / 2
        assert longer[0, i, 0] == (99 if middle >= seconds else int(middle // (seconds / 8)))
    assert torch.equal(x, torch.arange(8.0)[None, :, None])
    if seconds == HISTORY:                                     # nearly a shift by one
        assert longer[0, :, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 99]


class Cycle(Model):
    """Steps 0 .. 5 as unit vectors: after k comes k + 1 or k + 2, by the noise; 2 more after 0."""
    def forecast_next(self, history, noise):
        last = history[:, -1].argmax(-1)                                       # (M,)
        old = 2 * (history[:, 0].argmax(-1) == 0)                              # (M,)
        following = ((last + old)[:, None] + 1 + (noise[..., 0] > 0)) % 6      # (M, Q)
        return functional.one_hot(following, 6).float()


def test_each_draw_goes_on_from_its_own_steps():
    """Catches: a history shared by draws or steps; one noise at every step."""
    noise = torch.randn(4, 40, 6, generator=torch.Generator().manual_seed(1))
    for more, clips, seconds in ((0, [3] * 6 + [1, 4], 68.0), (2, [0] * 7 + [2], 20.0)):
        x = functional.one_hot(torch.tensor(clips), 6).float()
        first, picks = sample_in_turn(Cycle(), x, seconds, 5 * torch.eye(6), noise)
        assert first.shape == (40, 6) and picks.shape == (40, 4)
        assert torch.equal(first.argmax(-1), picks[:, 0])
        steps = torch.cat([torch.full((40, 1), clips[-1]), picks], 1)
        moves = (steps[:, 1:] - steps[:, :-1]) % 6
        assert torch.equal(moves, 1 + more + (noise[..., 0].T > 0).long())
        assert len(moves.unique(dim=0)) > 10                   # of 16 courses


def test_the_next_steps_together_equal_counting():
    """Catches: a horizon never learned, too few steps after it, no temperature."""
    source = Source()
    videos = source.videos = source.videos[:-1]                            # without an exact truth
    samples = forecast_samples(videos)
    x = torch.stack([source.load([(s.video, s.windows)]).clips for s in samples])

    def rows_of(horizon):
        settings = EvaluateSettings(horizon=horizon, samples=3, batch=7, seed=5)
        return forecasting.horizon_rows(Model(), x, samples, videos, TEXTS, 2.0, settings)
    longer = SimpleNamespace(task="forecast", data="coin", horizon=3, checkpoint="c.pt")
    with pytest.raises(BadInput, match="at most 2 clips missing.*--missing 3"):
        require_task(Model(), longer)
    result, hits, exact, truth, steps = rows_of(2), [], grammar.Grammar(), [], []
    for clips, sample in zip(x, samples):
        after = [step.label for step in videos[sample.video].steps[sample.step:sample.step + 2]]
        if len(after) == 2:
            last = Model().step(clips[-1])
            steps.append([(last + 1) % S, (last + 2) % S])
            hits.append(np.equal(steps[-1], after))
            truth.append(exact.next_two_steps(*observed_steps(sample, videos[sample.video])))
    assert result["by_step"] == pytest.approx(list(100 * np.mean(hits, 0)))
    steps = torch.tensor(steps)
    noise = torch.randn(len(steps), 200, 2, 24, generator=torch.Generator().manual_seed(5))
    first, second = match(TEXTS[steps][:, None] + .3 * noise, TEXTS, .1).argmax(-1).unbind(-1)
    pairs, distances = result["pairs"], []
    for a, b, p in zip(first.tolist(), second.tolist(), truth):
        share = np.zeros((S, S))
        np.add.at(share, (a, b), 1 / len(a))
        distances.append(abs(share - p).sum() / 2)
    assert pairs["tv"] == pytest.approx(np.mean(distances))
    alone = (match(TEXTS[steps], TEXTS, .1) / 2.0).softmax(-1).numpy()         # (M, 2, S)
    independent = np.mean([abs(np.outer(a, b) - p).sum() / 2 for (a, b), p in zip(alone, truth)])
    assert pairs["tv_independent"] == pytest.approx(independent, abs=.12)      # 200 draws
    assert pairs["tv_ideal"] < 0.15
    few = [s for s in samples if s.step + 2 <= len(videos[s.video].steps)]
    noise = torch.randn(len(few), 2, 200, 24, generator=torch.Generator().manual_seed(5))
    allowed = []
    for s, eps in zip(few, noise):
        clips, seconds = source.load([(s.video, s.windows)]).clips, np.ptp(s.windows)
        picks = sample_in_turn(Model(), clips, seconds, TEXTS, eps)[1]
        allowed.append(np.mean([exact.chance(*observed_steps(s, videos[s.video]), future) > 0
                                for future in picks.tolist()]))
    assert result["futures"]["in_turn"]["possible"] == pytest.approx(100 * np.mean(allowed))
    assert rows_of(3)["by_step"] is None and rows_of(3)["futures"].keys() == {"in_turn"}


def test_futures_are_held_against_the_grammar():
    """Catches: the chance of a step for the future's, futures of other forecasts."""
    videos = [grammar.make_video("test", i) for i in range(12)]
    samples = [s for s in forecast_samples(videos) if len(videos[s.video].steps) - s.step >= 3]
    right = torch.tensor([[step.label for step in videos[s.video].steps[s.step:s.step + 3]]
                          for s in samples])
    wrong, late = right.clone(), right.clone()
    wrong[:, 0] = late[:, 2] = grammar.STEP_ID["wash potato"]         # begins a video, if any
    rows = future_rows(torch.stack([right] * 5 + [wrong] * 2 + [late], 1), samples, videos)
    assert rows["possible"] == 62.5 and rows["first"] == 75
    assert rows["likeliest"] == pytest.approx(100 / 3)
    draws = torch.stack([torch.stack([right[i]] * 4) for i in range(len(right))])
    truth = [grammar.Grammar().next_two_steps(*observed_steps(s, videos[s.video])) for s in samples]
    own = [1 - p[a, b] for p, (a, b, _) in zip(truth, right.tolist())]
    assert future_rows(draws, samples, videos)["tv"] == pytest.approx(np.mean(own))
