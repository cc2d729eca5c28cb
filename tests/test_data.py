"""data.py: each kind of window, row and example against a slow version."""
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

import data
from data import Example, Step, Video

FIRST = SimpleNamespace(integers=lambda high: 0)       # a Generator that draws the lowest number


def say(*counts):
    """Sentences of so many words, one each 10 s, 6 s long."""
    return [(10. * i, 10. * i + 6, "word " * count) for i, count in enumerate(counts)]


def test_sentence_windows_are_nine_seconds_around_every_second_one():
    """Catches: a stride of 1, a window that is not centered, not 9 s, or beyond the video."""
    windows = data.sentence_windows(say(*[12] * 11), 200.0, FIRST)
    expected = [(max(20 * i - 1.5, 0), max(20 * i + 7.5, 9)) for i in range(6)]
    assert windows.dtype == np.float64 and np.allclose(windows, expected)
    ends = [(0, 2, "a " * 12), (5, 6, "a " * 12), (38, 44, "a " * 12)]
    assert data.sentence_windows(ends, 40.0, FIRST).tolist() == [[0, 9], [31, 40]]
    assert data.sentence_windows([(1, 3, "a " * 12)], 5.0, FIRST).tolist() == [[0, 5]]
    rng = np.random.default_rng(0)                     # of nothing, and of one sentence
    assert data.sentence_windows([], 100.0, rng).shape == (0, 2)
    assert data.sentence_windows(say(1), 100.0, rng).tolist() == [[0, 9]]


@pytest.mark.parametrize("counts, expected", [
    ((12, 12, 12, 12, 12), [4.5, 23, 43]),
    ((12, 12, 11, 1, 12), [4.5, 28, 43]),                        # with the next: 12 words, enough
    ((12, 1, 10, 1, 12), [4.5, 23, 43]),                         # the next, then the one before
    ((5, 1, 9, 1, 12), [13, 28, 43]),                            # and the next but one
    ((1, 1, 1, 1, 1), [23, 23, 23]),                             # everything there is
    ((9, 5, 1), [8, 13]), ((1, 5, 9, 12), [13, 28])])            # at the end, at the start
def test_short_sentences_are_joined_until_twelve_words(counts, expected):
    """Catches: one sentence too many or too few; at 3 + 10 i sentence i alone is seen."""
    windows = data.sentence_windows(say(*counts), 1000.0, FIRST)
    assert windows.mean(1).tolist() == expected


def test_windows_of_all_of_a_video_and_consecutive_ones_among_them():
    """Catches: always the same sentences, a window left out, the last one never drawn."""
    rng, starts = np.random.default_rng(0), Counter()
    windows = np.array([(10. * i, 10. * i + 3) for i in range(12)])
    for _ in range(1600):
        middles = data.sentence_windows(say(*[12] * 25)[1:], 1000.0, rng).mean(1)
        assert len(middles) == 12 and np.allclose(np.diff(middles), 20)    # every second
        taken = data.consecutive_windows(windows, 9, rng)
        starts.update([middles[0], first := int(taken[0, 0] / 10)])
        assert np.array_equal(taken, windows[first:first + 9])
    assert sorted(starts) == [0, 1, 2, 3, 13, 23]
    assert min(starts.values()) > 330 and min(starts[13], starts[23]) > 700
    for short in (windows[:9], windows[:4], windows[:0]):
        assert np.array_equal(data.consecutive_windows(short, 9, rng), short)


# --- Windows of the tasks, and their examples ---
@pytest.mark.parametrize("end, start, begin", [
    (100.0, 0.0, 32.0), (68.0, 0.0, 0.0), (20.0, 0.0, 0.0), (68.5, 0.0, 0.5), (100.0, 50.0, 50.0)])
def test_forecast_windows_are_eighths_of_the_last_68_seconds(end, start, begin):
    """Catches: the last 64 s, padding, frames after the step's end or before the start."""
    windows, part = data.forecast_windows(end, start=start), (end - begin) / 8
    assert windows.shape == (8, 2) and windows.max() == end
    assert np.allclose(windows, [(begin + i * part, begin + (i + 1) * part) for i in range(8)])
    ends = np.array([[end, 55.], [90., end]])
    many = data.forecast_windows(ends, start=start)
    assert many.shape == (2, 2, 8, 2)
    for place in np.ndindex(2, 2):
        assert np.array_equal(many[place], data.forecast_windows(ends[place], start=start))


def test_windows_and_frames_are_spread_evenly():
    """Catches: views that leave a long step or miss its ends; frames at a clip's edges,
    or beyond the middle seconds."""
    assert data.classify_windows(10, 40, 100, 3).tolist() == [[10, 19], [20.5, 29.5], [31, 40]]
    assert data.classify_windows(10, 40, 100, 1).tolist() == [[20.5, 29.5]]
    assert data.classify_windows(10, 19, 100, 3).tolist() == [[10, 19]] * 3
    assert data.classify_windows(10, 12, 100, 3).tolist() == [[6.5, 15.5]] * 3     # centered
    assert data.classify_windows(0, 2, 100, 3).tolist() == [[0, 9]] * 3            # inside
    assert data.classify_windows(1, 4, 5, 2).tolist() == [[0, 5]] * 2              # a short video
    assert data.frame_times([(10, 18)], 4).tolist() == [[11, 13, 15, 17]]
    assert data.frame_times([(0, 1), (5, 5)], 2).tolist() == [[.25, .75], [5, 5]]
    assert data.frame_times([], 4).shape == (0, 4)
    assert data.frame_times([(0, 10), (1, 3)], 2, seconds=4).tolist() == [[4, 6], [1.5, 2.5]]


def video(*segments, duration=None):
    """A video of steps (start s, end s, label)."""
    return Video("v", "train", 7, duration, tuple(Step(*segment) for segment in segments))


def test_forecast_examples_are_consecutive_pairs():
    """Catches: the observed step as the label, the last left out, min_steps counted in pairs."""
    videos = [video((0, 5, 7)), video((0, 10, 1), (12, 90, 2), (95, 99, 1)),
              video((0, 0, 4), (0, 0, 5), (3, 8, 6))]
    rows = [(s.video, s.label, s.step, s.windows[0, 0], s.windows[-1, 1])
            for s in data.examples_of("forecast", videos)]
    assert rows == [(1, 2, 1, 0, 10), (1, 1, 2, 22, 90)]         # of video 2 nothing is observed
    assert [s.video for s in data.examples_of("forecast", videos, min_steps=3)] == [1, 1]
    assert data.examples_of("forecast", videos, min_steps=4) == []


def test_classify_examples_are_all_steps():
    """Catches: a step of a one-step video lost, a window beyond a video whose length is known."""
    videos = [video((0, 5, 7)), video((0, 10, 1), (20, 22, 2), duration=24.0)]
    examples = data.examples_of("classify", videos)
    assert [(s.video, s.label, s.step, s.windows.shape) for s in examples] == [
        (0, 7, 0, (3, 2)), (1, 1, 0, (3, 2)), (1, 2, 1, (3, 2))]
    assert examples[2].windows.tolist() == [[15, 24]] * 3
    videos.append(video((0, 5, 3), (6, 9, 4), (9, 15, 5)))
    found = data.examples_of("infill", videos)
    assert [(s.video, s.label, len(s.windows)) for s in found] == [(2, k, 1) for k in (3, 4, 5)]
    assert data.examples_of("infill", videos, min_steps=4) == []


def test_activity_examples_are_whole_videos():
    """Catches: a label of the step, another length; the last 68 s instead of all, a gap."""
    videos = [Video("a", activity=17, duration=50.0), video((1, 2, 0), duration=240.0),
              video((1, 2, 0), (3, 30, 1))]
    examples = data.examples_of("activity", videos)
    assert [(s.video, s.label) for s in examples] == [(0, 17), (1, 7), (2, 7)]
    for example, end in zip(examples, (50, 240, 30)):
        edges = np.linspace(0, end, 9)
        assert np.allclose(example.windows, np.stack([edges[:-1], edges[1:]], 1))


def test_observed_steps_are_those_seen_for_a_second():
    """Catches: a step that ends as the history begins, the next step among those observed."""
    script = video((0, 10, 5), (12, 30, 6), (31, 60, 7), (65, 70, 8))
    for start, expected in (0, ([5, 6, 7], True)), (9.5, ([6, 7], False)), (29.5, ([7], False)):
        example = Example(0, data.forecast_windows(60.0, start=start), 8, 3)
        assert data.observed_steps(example, script) == expected
