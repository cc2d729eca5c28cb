"""data.py: each kind of window and sample against a slow, obvious version; counts on the real COIN.

The real COIN.json is not part of this project; its test is skipped where it is absent.
"""
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import data
from data import Step, Video
from files.annotations import load_coin

COIN = Path(__file__).resolve().parents[2] / "shared" / "coin" / "COIN_dev.json"
FIRST = SimpleNamespace(integers=lambda high: 0)       # a Generator that draws the lowest number


def say(*counts):
    """Sentences of so many words, one each 10 s, 6 s long."""
    return [(10. * i, 10. * i + 6, "word " * count) for i, count in enumerate(counts)]


# ---- pre-training windows ----------------------------------------------------------------------
def test_sentence_windows_are_nine_seconds_around_every_second_one():
    """Catches: a stride of 1, a window that is not centered on its sentence, or not 9 s; frames
    asked for before 0 s or after the end; a window cut where it could be moved."""
    windows = data.sentence_windows(say(*[12] * 11), 200.0, FIRST)
    expected = [(max(20 * i - 1.5, 0), max(20 * i + 7.5, 9)) for i in range(6)]
    assert windows.dtype == np.float64 and np.allclose(windows, expected)
    ends = [(0, 2, "a " * 12), (5, 6, "a " * 12), (38, 44, "a " * 12)]
    assert data.sentence_windows(ends, 40.0, FIRST).tolist() == [[0, 9], [31, 40]]
    assert data.sentence_windows([(1, 3, "a " * 12)], 5.0, FIRST).tolist() == [[0, 5]]


@pytest.mark.parametrize("counts, expected", [
    ((12, 12, 12, 12, 12), [4.5, 23, 43]),
    ((12, 12, 11, 1, 12), [4.5, 28, 43]),                        # with the next: 12 words, enough
    ((12, 1, 10, 1, 12), [4.5, 23, 43]),                         # the next, then the one before
    ((5, 1, 9, 1, 12), [13, 28, 43]),                            # and the next but one
    ((1, 1, 1, 1, 1), [23, 23, 23]),                             # everything there is
    ((9, 5, 1), [8, 13]), ((1, 5, 9, 12), [13, 28])])            # at the end, at the start
def test_short_sentences_are_joined_until_twelve_words(counts, expected):
    """Catches: joined with one side only, one too many or too few, the span not grown.

    The span is seen in the window's middle: 3 + 10 i for sentence i alone.
    """
    windows = data.sentence_windows(say(*counts), 1000.0, FIRST)
    assert windows.mean(1).tolist() == expected


def test_a_narration_of_nothing_and_of_one_sentence():
    """Catches: a random draw among no sentences; one sentence left out by the stride."""
    rng = np.random.default_rng(0)
    assert data.sentence_windows([], 100.0, rng).shape == (0, 2)
    assert data.sentence_windows(say(1), 100.0, rng).tolist() == [[0, 9]]


def test_at_most_nine_consecutive_windows_uniformly():
    """Catches: the same nine each time, clips picked with holes, segments shuffled, the last run
    never drawn."""
    sentences, rng = say(*[12] * 25)[1:], np.random.default_rng(0)         # from 10 s on
    steps = [Step(10. * i, 10. * i + 3, 0) for i in range(12)]
    spoken, annotated = Counter(), Counter()
    for _ in range(1600):
        middles = data.sentence_windows(sentences, 1000.0, rng).mean(1)
        assert len(middles) == 9 and np.allclose(np.diff(middles), 20)     # every second
        spoken[round((middles[0] - 13) / 10)] += 1
        windows = data.step_windows(steps, rng)
        first = int(windows[0, 0] / 10)
        assert windows.tolist() == [list(step[:2]) for step in steps[first:first + 9]]
        annotated[first] += 1
    assert sorted(spoken) == list(range(8))            # first sentence 0 or 1, run 0 to 3
    assert min(spoken.values()) > 140 and max(spoken.values()) < 260       # 200 each; std 13
    assert sorted(annotated) == [0, 1, 2, 3] and min(annotated.values()) > 330
    assert len(data.sentence_windows(say(*[12] * 10), 1000.0, rng)) == 5   # fewer: all of them
    assert data.step_windows(steps[:4], rng).tolist() == [list(step[:2]) for step in steps[:4]]


def test_sentences_of_a_window_by_hand():
    """Catches: a sentence of the next window, none where the middle of none lies in it, the mean
    over all sentences in place of those heard."""
    sentences = [(0, 4, "a"), (3, 5, "b"), (20, 30, "c")]                # middles 2, 4, 25
    windows = np.array([[0, 9], [3, 9], [9, 16], [15, 24], [2, 25]], float)
    assert data.spoken_during(sentences, windows).tolist() == [
        [.5, .5, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [1 / 3, 1 / 3, 1 / 3]]
    assert data.spoken_during([], windows).shape == (5, 0)


@pytest.mark.parametrize("P", [1, 3])
def test_missing_clips_by_counts(P):
    """Catches: j never the first or the last place, in padding, with gaps, or of the same place in
    all videos; a forecast whose missing clips are not the last."""
    counts = torch.arange(2000 * 7) % 7 + 3                                # 3 to 9 clips
    real, last = torch.arange(9) < counts[:, None], torch.arange(2000 * 7) < 700
    torch.manual_seed(0)
    for j in (data.missing_clips(real, P), data.missing_clips(real, P, last)):
        assert torch.equal(j - j[:, :1], torch.arange(P).expand_as(j))
        for count in range(3, 10):
            drawn = j[(counts == count) & ~last, 0].bincount()
            places = count - P + 1                                         # std sqrt(n)
            assert len(drawn) == places and (drawn - 1900 / places).abs().max() < 4.5 * (
                1900 / places) ** .5
    assert torch.equal(j[last, -1], counts[last] - 1)


def test_history_windows_are_what_forecasts_read():
    """Catches: a history that ends before the clip is half over or after it, always at one place,
    or longer than 68 s; eight windows with holes; the clip before in place of the missing one."""
    windows, places = np.array([[0., 9.], [14., 20.], [60., 75.], [99., 110.]]), []
    before, missing = windows[:-1], windows[1:, None]
    quarter = SimpleNamespace(uniform=lambda low, high: low + .25 * (high - low))
    rows = data.history_windows(before, missing, quarter)
    assert rows.shape == (3, 9, 2) and np.array_equal(rows[:, 8:], missing)
    for row, end in zip(rows, (5.625, 17.75, 69.375)):       # a quarter of the second half
        edges = np.linspace(max(0, end - 68), end, 9)
        assert np.allclose(row[:8, 0], edges[:-1]) and np.allclose(row[:8, 1], edges[1:])
    rng = np.random.default_rng(0)
    for _ in range(500):
        rows = data.history_windows(before, missing, rng)
        ends = rows[:, 7, 1]
        places.append((ends - before.mean(1)) / (before[:, 1] - before.mean(1)))
        assert (ends - rows[:, 0, 0] <= 68 + 1e-9).all() and rows.min() >= 0
    assert np.abs(np.corrcoef(np.array(places).T) - np.eye(3)).max() < .2
    places = np.sort(places, 0)                              # (500, 3), uniform in 0..1
    assert 0 <= places.min() and np.abs(places - np.linspace(0, 1, 500)[:, None]).max() < .09
    several = np.stack([windows[1:3], windows[2:4]])         # (2, 2, 2)
    rows = data.history_windows(before[:2], several, rng)
    assert rows.shape == (2, 10, 2) and np.array_equal(rows[:, 8:], several)


# ---- windows of the tasks, frames, padding -----------------------------------------------------
@pytest.mark.parametrize("end, begin", [(100.0, 32.0), (68.0, 0.0), (20.0, 0.0), (68.5, 0.5)])
def test_forecast_windows_are_eighths_of_the_last_68_seconds(end, begin):
    """Catches: the last 64 s, padding where the history is shorter, frames after the step's end."""
    windows, part = data.forecast_windows(end), (end - begin) / 8
    assert windows.shape == (8, 2) and windows.max() == end
    assert np.allclose(windows, [(begin + i * part, begin + (i + 1) * part) for i in range(8)])
    ends = np.array([[end, 5.], [90., end]])
    many = data.forecast_windows(ends)
    assert many.shape == (2, 2, 8, 2)
    for place in np.ndindex(2, 2):
        assert np.array_equal(many[place], data.forecast_windows(ends[place]))


def test_windows_and_frames_are_spread_evenly():
    """Catches: views that leave a long step, that do not touch its ends, or miss its middle; frames
    at the edges of a clip, which two neighboring clips would share."""
    assert data.classify_windows(10, 40, 100, 3).tolist() == [[10, 19], [20.5, 29.5], [31, 40]]
    assert data.classify_windows(10, 40, 100, 1).tolist() == [[20.5, 29.5]]
    assert data.classify_windows(10, 19, 100, 3).tolist() == [[10, 19]] * 3
    assert data.classify_windows(10, 12, 100, 3).tolist() == [[6.5, 15.5]] * 3     # centered
    assert data.classify_windows(0, 2, 100, 3).tolist() == [[0, 9]] * 3            # inside
    assert data.classify_windows(1, 4, 5, 2).tolist() == [[0, 5]] * 2              # a short video
    assert data.frame_times([(10, 18)], 4).tolist() == [[11, 13, 15, 17]]
    assert data.frame_times([(0, 1), (5, 5)], 2).tolist() == [[.25, .75], [5, 5]]
    assert data.frame_times([], 4).shape == (0, 4)


def test_pad_clips():
    """Catches: clips of one video in another's row; padding that is marked as there; rows of one
    axis, or of three, refused."""
    x = torch.arange(1., 13).view(6, 2).requires_grad_()
    padded, real = data.pad_clips(x, torch.tensor([2, 0, 3, 1]), 3)
    assert real.tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 1], [1, 0, 0]]
    expected = torch.zeros(4, 3, 2)
    expected[0, :2], expected[2], expected[3, 0] = x[:2], x[2:5], x[5]
    assert torch.equal(padded, expected)
    padded.sum().backward()
    assert torch.equal(x.grad, torch.ones(6, 2))       # the encoder learns through it
    flags, _ = data.pad_clips(torch.ones(6, dtype=torch.bool), torch.tensor([2, 0, 3, 1]), 3)
    assert torch.equal(flags, real)
    assert data.pad_clips(torch.ones(6, 2, 5), torch.tensor([2, 4]), 4)[0].shape == (2, 4, 2, 5)


# ---- samples -----------------------------------------------------------------------------------
def video(*segments, duration=None):
    """A video of steps (start s, end s, label)."""
    return Video("v", "train", 7, duration, tuple(Step(*segment) for segment in segments))


def test_forecast_samples_are_consecutive_pairs():
    """Catches: the observed step as the label, the last step left out, min_steps counted in pairs.
    """
    videos = [video((0, 5, 7)), video((0, 10, 1), (12, 90, 2), (95, 99, 1)),
              video((0, 0, 4), (0, 0, 5), (3, 8, 6))]
    rows = [(s.video, s.label, s.step, s.windows[0, 0], s.windows[-1, 1])
            for s in data.samples_of("forecast", videos)]
    assert rows == [(1, 2, 1, 0, 10), (1, 1, 2, 22, 90)]         # of video 2 nothing is observed
    assert [s.video for s in data.forecast_samples(videos, min_steps=3)] == [1, 1]
    assert data.forecast_samples(videos, min_steps=4) == []


def test_classify_samples_are_all_steps():
    """Catches: a step of a one-step video lost, a window beyond a video whose length is known."""
    videos = [video((0, 5, 7)), video((0, 10, 1), (20, 22, 2), duration=24.0)]
    samples = data.samples_of("classify", videos)
    assert [(s.video, s.label, s.step, s.windows.shape) for s in samples] == [
        (0, 7, 0, (3, 2)), (1, 1, 0, (3, 2)), (1, 2, 1, (3, 2))]
    assert samples[2].windows.tolist() == [[15, 24]] * 3
    videos.append(video((0, 5, 3), (6, 9, 4), (9, 15, 5)))
    found = data.samples_of("infill", videos)
    assert [(s.video, s.label, len(s.windows)) for s in found] == [(2, k, 1) for k in (3, 4, 5)]
    assert data.samples_of("infill", videos, min_steps=4) == []


def test_activity_samples_are_whole_videos():
    """Catches: a label of the step instead of the video, a length that is not the video's; the last
    68 s instead of all, a gap between two windows."""
    videos = [Video("a", activity=17, duration=50.0), video((1, 2, 0), duration=240.0),
              video((1, 2, 0), (3, 30, 1))]
    samples = data.samples_of("activity", videos)
    assert [(s.video, s.label) for s in samples] == [(0, 17), (1, 7), (2, 7)]
    for sample, end in zip(samples, (50, 240, 30)):
        edges = np.linspace(0, end, 9)
        assert np.allclose(sample.windows, np.stack([edges[:-1], edges[1:]], 1))


@pytest.mark.skipif(not COIN.is_file(), reason="no shared/coin/COIN_dev.json")
def test_samples_of_the_real_coin():
    """Catches: any pair or step lost: the benchmark's counts are 24,493 pairs and 32,905 steps."""
    videos, _ = load_coin(COIN)
    assert len(data.forecast_samples(videos)) == 24_493
    assert len(data.classify_samples(videos)) == 32_905
    longer = len(data.forecast_samples(videos, min_steps=3))
    assert longer == 24_493 - sum(len(v.steps) == 2 for v in videos)
    assert abs(longer - 22_037) < 0.02 * 22_037        # the released list is about the same
