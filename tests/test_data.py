"""data.py: each kind of window and sample against a slow version; counts on the real COIN."""
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import data
from data import Step, Video
from evaluation import embedding
from files.annotations import load_coin

COIN = Path(__file__).resolve().parents[2] / "shared" / "coin" / "COIN_dev.json"
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


def test_windows_of_all_of_a_video_and_a_random_run_of_them():
    """Catches: always the same sentences, a run with holes, the last one never drawn."""
    rng, starts = np.random.default_rng(0), Counter()
    windows = np.array([(10. * i, 10. * i + 3) for i in range(12)])
    for _ in range(1600):
        middles = data.sentence_windows(say(*[12] * 25)[1:], 1000.0, rng).mean(1)
        assert len(middles) == 12 and np.allclose(np.diff(middles), 20)    # every second
        run = data.random_run(windows, 9, rng)
        starts.update([middles[0], first := int(run[0, 0] / 10)])
        assert np.array_equal(run, windows[first:first + 9])
    assert sorted(starts) == [0, 1, 2, 3, 13, 23]
    assert min(starts.values()) > 330 and min(starts[13], starts[23]) > 700
    for few in (windows[:9], windows[:4], windows[:0]):
        assert np.array_equal(data.random_run(few, 9, rng), few)


def test_sentences_of_a_window_by_hand():
    """Catches: a sentence of the next window, none in the window, the mean over all sentences."""
    sentences = [(0, 4, "a"), (3, 5, "b"), (20, 30, "c")]                # middles 2, 4, 25
    windows = np.array([[0, 9], [3, 9], [9, 16], [15, 24], [2, 25]], float)
    assert embedding.spoken_during(sentences, windows).tolist() == [
        [.5, .5, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [1 / 3, 1 / 3, 1 / 3]]
    assert embedding.spoken_during([], windows).shape == (5, 0)


def slow_history(windows, end):
    """The 8 clips that stand for what precedes clip `end`, by loops."""
    last, row = windows[end - 1][1], []
    begin = max(last - 68, windows[0][0])
    for piece in range(8):
        middle = begin + (piece + .5) * (last - begin) / 8
        row.append(min(range(end), key=lambda i: abs(sum(windows[i]) / 2 - middle)))
    return row


def slow_steps(shown):
    """The clips of each step of a run, by loops: lists of consecutive clips that show the same."""
    steps = [[0]]
    for i in range(1, len(shown)):
        if shown[i] == shown[i - 1]:
            steps[-1].append(i)
        else:
            steps.append([i])
    return steps


def slow_places(n, P):
    """{(first step of the row, first missing step)} of the other rows of a run of n steps."""
    return {(first, k) for first in range(max(n - 8 - P, 0) + 1) for k in range(n - P + 1)
            if first <= k <= first + 8}


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("kinds", [2, 4, None])
def test_missing_rows_by_loops(most, kinds):
    """Catches: a history of another length, end or run; one with a clip of the missing step; an
    unsure clip asked for; two
    clips of a step around a missing one; a step never or too often missing, or always by one clip.
    """
    rng, runs = np.random.default_rng(most), [np.arange(12)[:, None] * 4. + [20, 29]]
    for n in (1, 16, 2, 3, 5, 9, 4):
        middles, half = 5 + rng.uniform(1, 30, n).cumsum(), rng.uniform(.5, 5, n)
        runs.append(np.stack([middles - half, middles + half], 1))
    C = sum(map(len, runs))
    shown = rng.integers(kinds, size=C) if kinds else np.arange(C)       # None: each clip is a step
    sure = rng.permutation(C) if kinds else np.zeros(C)                  # equally: all are asked
    starts = np.cumsum([0] + [len(windows) for windows in runs])
    steps = [slow_steps(shown[a:b]) for a, b in zip(starts, starts[1:])]
    histories = [[slow_history(windows, first) for first, *_ in members[1:]]
                 for windows, members in zip(runs, steps)]
    seen, clips, lengths = [set() for _ in runs], [set() for _ in runs], set()
    for _ in range(300):
        rows, j = data.missing_rows(runs, shown, sure, most, rng)
        P = j.shape[1]
        N = 8 + P
        lengths.add(P)
        assert rows.dtype == j.dtype == torch.int64 and rows.shape[1:] == (N,)
        found, total = [*zip(rows.tolist(), j.tolist(), strict=True)], 0
        for run, (windows, start) in enumerate(zip(runs, starts)):
            S = len(steps[run])
            step_of = [s for s, members in enumerate(steps[run]) for _ in members]
            mine = [([-1 if i < 0 else i - start for i in row], places)
                    for row, places in found if 0 <= row[0] - start < len(windows)]
            asked = [k for s in range(1, S - P + 1) for k in steps[run][s]
                     if not kinds or sorted(sure).index(sure[start + k]) >= (C - 1) / 3]
            forecasts, others, total = mine[:len(asked)], mine[len(asked):], total + len(mine)
            for k, (row, places) in zip(asked, forecasts, strict=True):
                assert row[:9] == histories[run][step_of[k] - 1] + [k]
                assert [step_of[i] for i in row[8:]] == [*range(step_of[k], step_of[k] + P)]
                assert places == [*range(8, N)]
            firsts = []
            for row, places in others:
                first = step_of[row[0]]
                visible = [*range(first, min(first + N, S))]
                assert [step_of[i] for i in row if i >= 0] == visible
                assert row[len(visible):] == [-1] * (N - len(visible))
                assert places == [*range(places[0], places[0] + P)]
                firsts.append(step_of[row[places[0]]])
                clips[run].add(row[places[0]])
                seen[run].add((first, firsts[-1]))
            assert firsts in ([*range(k, S - P + 1, data.AMONG)] for k in range(data.AMONG))
            assert firsts or S < P
        assert total == len(rows)                                          # of no other run
    assert lengths == {*range(1, most + 1)}
    if most == 1:
        assert clips == [{*range(len(windows))} for windows in runs]
        assert seen == [slow_places(len(members), 1) for members in steps]


def test_missing_rows_with_histories_of_their_own():
    """Catches: histories of another clip or run, a piece of one asked for, or among other clips."""
    rng, lengths = np.random.default_rng(0), (1, 4, 12, 2)
    steps = [np.stack([10 + 20. * np.arange(n), 25 + 20. * np.arange(n)], 1) for n in lengths]
    runs = [data.with_histories(windows) for windows in steps]
    owner = [(run, clip) for run, windows in enumerate(runs) for clip in range(len(windows))]
    assert [len(windows) for windows in runs] == [1, 28, 100, 10]
    for _ in range(20):
        rows, j = data.missing_rows(steps, np.arange(139), np.zeros(139), 2, rng, histories=True)
        forecasts, places, P = [], j.tolist(), j.shape[1]
        for row, place in zip(rows.tolist(), places):
            (run,) = {owner[i][0] for i in row if i >= 0}
            clips = [owner[i][1] for i in row if i >= 0]
            if max(clips) < lengths[run]:                                  # around the missing one
                assert clips == [*range(clips[0], clips[0] + len(clips))]
                continue
            k = clips[8]
            assert place == [*range(8, 8 + P)] and clips[8:] == [*range(k, k + P)]
            before = data.forecast_windows(steps[run][k - 1, 1])
            assert np.array_equal(runs[run][clips[:8]], before)
            forecasts.append((run, k))
        assert forecasts == [(run, k) for run, n in enumerate(lengths) for k in range(1, n - P + 1)]


def test_runs_that_give_few_rows_or_none():
    """Catches: a training step without a row; a traceback where fewer steps than P are seen."""
    rng, one = np.random.default_rng(0), np.array([[3., 12.]])
    three = np.array([[3., 12.], [5., 14.], [8., 17.]])
    for runs, shown in (([one], [5]), ([three], [5, 5, 5]), ([one, three], [5, 5, 5, 5])):
        sure = np.zeros(len(shown))
        rows, j = data.missing_rows(runs, np.array(shown), sure, 3, rng)   # one step in each run
        assert len(rows) == len(runs) and (rows[:, 1:] == -1).all() and not j.any()
        assert rows.shape[1:] == (9,)
    with pytest.raises(ValueError, match="1 clips, but the runs have 3"):
        data.missing_rows([three], np.zeros(1), np.zeros(1), 1, rng)
    for runs in ([one[:0]], [one, one[:0]]):
        with pytest.raises(ValueError, match="without windows"):
            data.missing_rows(runs, np.zeros(1), np.zeros(1), 1, rng)


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
    """Catches: views that leave a long step or miss its ends; frames at a clip's edges."""
    assert data.classify_windows(10, 40, 100, 3).tolist() == [[10, 19], [20.5, 29.5], [31, 40]]
    assert data.classify_windows(10, 40, 100, 1).tolist() == [[20.5, 29.5]]
    assert data.classify_windows(10, 19, 100, 3).tolist() == [[10, 19]] * 3
    assert data.classify_windows(10, 12, 100, 3).tolist() == [[6.5, 15.5]] * 3     # centered
    assert data.classify_windows(0, 2, 100, 3).tolist() == [[0, 9]] * 3            # inside
    assert data.classify_windows(1, 4, 5, 2).tolist() == [[0, 5]] * 2              # a short video
    assert data.frame_times([(10, 18)], 4).tolist() == [[11, 13, 15, 17]]
    assert data.frame_times([(0, 1), (5, 5)], 2).tolist() == [[.25, .75], [5, 5]]
    assert data.frame_times([], 4).shape == (0, 4)


def video(*segments, duration=None):
    """A video of steps (start s, end s, label)."""
    return Video("v", "train", 7, duration, tuple(Step(*segment) for segment in segments))


def test_forecast_samples_are_consecutive_pairs():
    """Catches: the observed step as the label, the last left out, min_steps counted in pairs."""
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
    """Catches: a label of the step, another length; the last 68 s instead of all, a gap."""
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
    videos, names = load_coin(COIN)
    assert len(videos) == 8412 and len(names) == 778 and names.count("") == 1    # never a step
    assert sum(video.split == "test" for video in videos) == 1703
    assert len(data.forecast_samples(videos)) == 24_493
    assert len(data.classify_samples(videos)) == 32_905
    longer = len(data.forecast_samples(videos, min_steps=3))
    assert longer == 24_493 - sum(len(v.steps) == 2 for v in videos)
    assert abs(longer - 22_037) < 0.02 * 22_037        # the released list is about the same
