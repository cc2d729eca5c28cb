"""training/rows.py and data.paper_rows: each kind of row, and the controls, by loops."""
from collections import Counter

import numpy as np
import pytest
import torch

import data
from training.rows import missing_rows


def slow_paper_rows(n):
    """{(first clip of the row, missing clip)} that can be asked about n clips."""
    return {(first, k) for first in range(max(n - 9, 0) + 1) for k in range(n)
            if first <= k < first + 9}


def slow_steps(clips, phrases):
    """Lists of consecutive clips that show the same."""
    steps = [[clips[0]]]
    for before, clip in zip(clips, clips[1:]):
        if phrases[clip] == phrases[before]:
            steps[-1].append(clip)
        else:
            steps.append([clip])
    return steps


def slow_history(windows, clips, k):
    """The 8 of these clips that stand for what precedes clip k; [] if none ends before it."""
    clips = [i for i in clips if windows[i][1] <= windows[k][0]]
    row, last = [], max((windows[i][1] for i in clips), default=0)
    begin = max(last - 68, windows[clips[0]][0]) if clips else 0
    for piece in range(8 if clips else 0):
        middle = begin + (piece + .5) * (last - begin) / 8
        row.append(min(clips, key=lambda i: abs(sum(windows[i]) / 2 - middle)))
    return row


def slow_forecast_rows(windows, steps, confident):
    histories = [(slow_history(windows, range(steps[0][0], step[0]), k), k)
                 for step in steps[1:] for k in step if confident[k]]
    return [(history + [k], 8) for history, k in histories if history]


def as_list(rows, j):
    assert rows.dtype == j.dtype == torch.int64 and rows.shape == (len(j), 9)
    return [*zip(map(tuple, rows.tolist()), j.tolist(), strict=True)]


@pytest.mark.parametrize("kind, phrases", [("paper", 4), ("steps", 2), ("steps", 4)])
def test_missing_rows_by_loops(kind, phrases):
    """Catches: a history of another length or video; one that ends after the missing clip begins,
    or holds a clip of its step; an uncertain clip asked for; two clips of a step in a row of
    `paper_rows`; a place or a clip that is never missing, or twice; padding before the end."""
    rng, windows = np.random.default_rng(phrases), [np.arange(12)[:, None] * 4. + [20, 29]]
    for n in (1, 16, 2, 3, 5, 9, 10, 4):
        middles = 5 + rng.uniform(1, 30, n).cumsum()
        windows.append(np.stack([middles - 4.5, middles + 4.5], 1))
    every = np.concatenate(windows)
    C, ends = len(every), np.cumsum([len(part) for part in windows])
    videos = [[*range(end - len(part), end)] for part, end in zip(windows, ends)]
    phrase, confidence = rng.integers(phrases, size=C), rng.permutation(C)
    confident = [sorted(confidence).index(value) >= (C - 1) / 3 for value in confidence]
    shown = phrase if kind == "steps" else range(C)
    steps = [slow_steps(clips, shown) for clips in videos]
    expected = [row for part in steps for row in slow_forecast_rows(every, part, confident)]
    expected = Counter((tuple(row), j) for row, j in expected if kind != "paper")
    step_of = {clip: s for part in steps for s, step in enumerate(part) for clip in step}
    seen, missing = [set() for _ in videos], set()
    for _ in range(300):
        asked, given = [], ([*enumerate(windows)], confidence, phrase, rng, kind)
        found = as_list(*missing_rows(*given))
        among = len(found) - expected.total()              # these are rows of `paper_rows`
        assert Counter(found[among:]) == expected
        for row, j in found[:among]:
            video = next(v for v, clips in enumerate(videos) if row[0] in clips)
            clips, S = [i for i in row if i >= 0], len(steps[video])
            assert {*clips} <= {*videos[video]} and row[len(clips):] == (-1,) * (9 - len(clips))
            first = step_of[clips[0]]
            assert [step_of[i] for i in clips] == [*range(first, min(first + 9, S))]
            asked.append((video, step_of[row[j]]))
            seen[video].add((first, step_of[row[j]]))
            missing.add(row[j])
        each = [(v, s) for v, part in enumerate(steps) for s in range(len(part))]
        assert asked in ([each] if kind == "paper" else [each[i::3] for i in range(3)])
    assert seen == [slow_paper_rows(len(part)) for part in steps]
    assert missing == {*range(C)}


def test_the_example_of_the_page():
    """Catches: an example that the code does not give."""
    windows = [np.array([[0, 9], [8, 17], [18, 27], [26, 35], [36, 45]], float)]
    pad, until_17 = (-1,) * 6, (0, 0, 0, 0, 1, 1, 1, 1)
    following = [(until_17 + (2,), 8), (until_17 + (3,), 8), ((0, 0, 0, 1, 1, 2, 2, 2, 4), 8)]
    drawn = [as_list(*missing_rows([*enumerate(windows)], np.zeros(5), np.array([7, 7, 3, 5, 5]),
                                   np.random.default_rng(seed))) for seed in range(99)]
    assert all(rows[1:] == following for rows in drawn)
    assert {((0, 2, 4) + pad, j) for j in range(3)} <= {rows[0] for rows in drawn}


def test_the_release_hides_a_drawn_tail_after_the_missing_clip():
    """Catches: the missing clip hidden, a tail that begins at it or is the same in all rows."""
    rng, tails = np.random.default_rng(0), Counter()
    for _ in range(500):
        for row, j in data.paper_rows([[*range(10, 15)]], rng, hide_tail=True):
            clips = [i for i in row if i >= 0]
            assert row == clips + [-1] * (9 - len(clips)) and clips == [*range(10, 10 + len(clips))]
            tails[j, len(clips)] += 1
    assert tails.keys() == {(j, n) for j in range(4) for n in range(j + 1, 5)} | {(4, 5)}
    for j in range(4):
        assert min(tails[j, n] for n in range(j + 1, 5)) > .7 * 500 / (4 - j)


@pytest.mark.parametrize("kind", ["paper", "steps"])
def test_controls_change_the_observed_clips_alone(kind):
    """Catches: a missing clip that moves, padding that is filled, an order or a clip that stays."""
    windows = [np.arange(n)[:, None] * 10. + [0, 9] for n in (6, 12)]
    phrase, confidence, seen = np.arange(18) // 2, np.zeros(18), set()
    for seed in range(40):
        plain, shuffled, other = (as_list(*missing_rows(
            [*enumerate(windows)], confidence, phrase, np.random.default_rng(seed), kind, context))
            for context in ("observed", "shuffled", "random"))
        for (a, j), (b, k), (c, m) in zip(plain, shuffled, other, strict=True):
            assert j == k == m and a[j] == b[j] == c[j]
            assert [i < 0 for i in a] == [i < 0 for i in b] == [i < 0 for i in c]
            assert sorted(a) == sorted(b)
            seen.update(i for place, i in enumerate(c) if place != j)
        assert plain != shuffled
        assert all({*a} != {*c} for (a, _), (c, _) in zip(plain[-3:], other[-3:]))
    assert seen == {-1, *range(18)} if kind == "paper" else seen >= {*range(18)}


def test_the_missing_clip_is_equally_often_at_each_place():
    """Catches: places that are preferred, where the video's ends leave a choice."""
    rng, clips = np.random.default_rng(0), [*range(100, 125)]
    rows = [data.paper_rows([clips], rng) for _ in range(200)]
    places = Counter(j for found in rows for row, j in found[8:17])        # 1,800 rows
    assert sorted(places) == [*range(9)] and 140 < min(places.values()) <= max(
        places.values()) < 260
    assert all(row[j] == k for found in rows for k, (row, j) in zip(clips, found, strict=True))
