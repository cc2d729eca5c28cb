"""data.py: each kind of window and example against a slow version."""
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

import data
from data import Step, Video

FIRST = SimpleNamespace(integers=lambda high: 0)       # a Generator that draws the lowest number


def say(*counts):
    """Sentences of so many words, one each 10 s, 6 s long."""
    return [(10. * i, 10. * i + 6, "word " * count) for i, count in enumerate(counts)]


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_sentence_windows_are_nine_seconds_around_every_so_many_sentences(stride):
    """Catches: another stride, or always the same sentences; a window that is not centered, not
    9 s, or beyond the video."""
    rng, firsts = np.random.default_rng(0), Counter()
    for _ in range(300):
        windows = data.sentence_windows(say(*[12] * 11), 200.0, rng, stride)
        first = int(windows[0, 1] / 10)                # its middle is at 3 + 10 i, or later
        expected = [(max(10 * i - 1.5, 0), max(10 * i + 7.5, 9)) for i in range(first, 11, stride)]
        assert windows.dtype == np.float64 and np.allclose(windows, expected)
        firsts[first] += 1
    assert sorted(firsts) == [*range(stride)] and min(firsts.values()) > 70
    ends = [(0, 2, "a " * 12), (38, 44, "a " * 12)]
    assert data.sentence_windows(ends, 40.0, FIRST, 1).tolist() == [[0, 9], [31, 40]]
    assert data.sentence_windows(ends[:1], 5.0, rng, stride).tolist() == [[0, 5]]
    assert data.sentence_windows([], 100.0, rng, stride).shape == (0, 2)


@pytest.mark.parametrize("counts, expected", [
    ((12, 12, 11, 1, 12), [4.5, 28, 43]),                        # with the next: 12 words, enough
    ((12, 1, 10, 1, 12), [4.5, 23, 43]),                         # the next, then the one before
    ((5, 1, 9, 1, 12), [13, 28, 43]),                            # and the next but one
    ((1, 1, 1, 1, 1), [23, 23, 23]), ((9, 5, 1), [8, 13])])      # everything there is; at the end
def test_short_sentences_are_joined_until_twelve_words(counts, expected):
    """Catches: one sentence too many or too few; at 3 + 10 i sentence i alone is seen."""
    assert data.sentence_windows(say(*counts), 1000.0, FIRST).mean(1).tolist() == expected


def test_nine_consecutive_clips_or_some_of_fewer_repeated():
    """Catches: a first clip that is never drawn; a short video that has fewer clips than nine, one
    of its clips left out or out of order, or the last one alone repeated."""
    rng, windows = np.random.default_rng(0), np.array([(10. * i, 10. * i + 3) for i in range(12)])
    taken = [data.consecutive(windows, rng) for _ in range(400)]
    first = Counter(int(nine[0, 0] / 10) for nine in taken)
    assert sorted(first) == [0, 1, 2, 3] and min(first.values()) > 70
    assert all(np.array_equal(nine[:, 0], nine[0, 0] + 10 * np.arange(9)) for nine in taken)
    for n in range(1, 10):
        found = (data.consecutive(windows[:n], rng)[:, 0] / 10).astype(int).tolist()
        counts = Counter(found).values()
        assert len(found) == 9 and found == sorted(found) and {*found} == {*range(n)}
        assert max(counts) - min(counts) <= 2
    assert data.consecutive(windows[:0], rng).shape == (0, 2)    # such a video is unreadable


# --- Windows of the tasks, and their examples ---
@pytest.mark.parametrize("end, spacing, begin, n", [
    (100., None, 32., 8), (20., None, 0., 8), (100., 10., 20., 8), (43., 10., 3., 4),
    (38., 10., 0., 4), (3., 10., 0., 1)])
def test_a_history_is_cut_by_the_spacing_or_by_the_release(end, spacing, begin, n):
    """Catches: windows of another length, more than eight, of time before the video or after the
    end; another protocol than the release's eighths of the last 68 s."""
    part = (end - begin) / n
    expected = [(begin + i * part, begin + (i + 1) * part) for i in range(n)]
    assert np.allclose(data.history_windows(end, spacing), expected)


def test_windows_and_frames_are_spread_evenly():
    """Catches: views that leave a long step or miss its ends; frames at a clip's edges,
    or beyond the middle seconds."""
    assert data.classify_windows(10, 40, 100, 3).tolist() == [[10, 19], [20.5, 29.5], [31, 40]]
    assert data.classify_windows(10, 40, 100, 1).tolist() == [[20.5, 29.5]]
    assert data.classify_windows(10, 12, 100, 3).tolist() == [[6.5, 15.5]] * 3     # centered
    assert data.classify_windows(1, 4, 5, 2).tolist() == [[0, 5]] * 2              # a short video
    assert data.frame_times([(0, 1), (5, 5)], 2).tolist() == [[.25, .75], [5, 5]]
    assert data.frame_times([], 4).shape == (0, 4)
    assert data.frame_times([(0, 10), (1, 3)], 2, seconds=4).tolist() == [[4, 6], [1.5, 2.5]]


def video(*segments, duration=None):
    """A video of steps (start s, end s, label)."""
    return Video("v", "train", 7, duration, tuple(Step(*segment) for segment in segments))


def test_forecast_examples_are_consecutive_pairs():
    """Catches: the observed step as the label, or seen of it what is to be told; the last left out,
    min_steps counted in pairs."""
    videos = [video((0, 5, 7)), video((0, 10, 1), (12, 90, 2), (95, 99, 1)),
              video((0, 0, 4), (0, 0, 5), (3, 8, 6)), video((5, 30, 1), (12, 20, 2), (25, 28, 3))]
    rows = [(s.video, s.label, s.step, s.windows[0, 0], s.windows[-1, 1])
            for s in data.forecast_examples(videos)]
    assert rows == [(1, 2, 1, 0, 10), (1, 1, 2, 22, 90),         # of video 2 nothing is observed
                    (3, 2, 1, 0, 12), (3, 3, 2, 0, 20)]          # step 2 begins while 1 goes on
    found = data.forecast_examples(videos, spacing=20, min_steps=3)
    assert [(s.video, len(s.windows)) for s in found] == [(1, 1), (1, 4), (3, 1), (3, 1)]
    assert data.forecast_examples(videos, min_steps=4) == []


def test_classify_and_activity_examples_are_all_steps_and_whole_videos():
    """Catches: a step of a one-step video lost, a window beyond a video whose length is known; the
    last 68 s of an activity, or a label of its step."""
    videos = [video((0, 5, 7)), video((0, 10, 1), (20, 22, 2), duration=24.0)]
    examples = data.classify_examples(videos)
    assert [(s.video, s.label, s.step, s.windows.shape) for s in examples] == [
        (0, 7, 0, (3, 2)), (1, 1, 0, (3, 2)), (1, 2, 1, (3, 2))]
    assert examples[2].windows.tolist() == [[15, 24]] * 3
    videos = [Video("a", activity=17, duration=240.0), video((1, 2, 0), (3, 30, 1))]
    examples = data.activity_examples(videos)
    assert [(s.video, s.label) for s in examples] == [(0, 17), (1, 7)]
    for example, end in zip(examples, (240, 30)):
        edges = np.linspace(0, end, 9)
        assert np.allclose(example.windows, np.stack([edges[:-1], edges[1:]], 1))
