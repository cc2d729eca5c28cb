"""training/rows.py and data.paper_rows: each kind of row, and the controls, by loops."""
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import data
from training.batches import draw_noise
from training.rows import missing_rows, rows_of_group


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


def slow_forecast_rows(windows, steps):
    histories = [(slow_history(windows, range(step[0]), step[0]), step[0]) for step in steps[1:]]
    return [(history + [k], 8) for history, k in histories if history]


def as_list(rows, j):
    assert rows.dtype == j.dtype == torch.int64 and rows.shape == (len(j), 9)
    return [*zip(map(tuple, rows.tolist()), j.tolist(), strict=True)]


@pytest.mark.parametrize("kind, phrases", [("paper", 4), ("steps", 2), ("steps", 4)])
def test_missing_rows_by_loops(kind, phrases):
    """Catches: a history of another length; one that ends after the missing clip begins, or holds
    a clip of its step; a second clip of a step asked for, or in a row of `paper_rows`; a place or
    a clip that is never missing, or twice; padding before the end."""
    rng = np.random.default_rng(phrases)
    for n in (1, 16, 2, 3, 5, 9, 10, 4):
        middles = 5 + rng.uniform(1, 30, n).cumsum()
        windows = np.stack([middles - 4.5, middles + 4.5], 1)
        phrase = rng.integers(phrases, size=n)
        steps = slow_steps([*range(n)], phrase if kind == "steps" else range(n))
        expected = [] if kind == "paper" else slow_forecast_rows(windows, steps)
        step_of = {clip: s for s, step in enumerate(steps) for clip in step}
        seen, missing, offsets = set(), set(), [[*range(len(steps))][i::3] for i in range(3)]
        for _ in range(200):
            found = as_list(*missing_rows(windows, phrase, rng, kind))
            among = len(found) - len(expected)             # these are rows of `paper_rows`
            assert found[among:] == [(tuple(row), j) for row, j in expected]
            for row, j in found[:among]:
                clips, S = [i for i in row if i >= 0], len(steps)
                assert row[len(clips):] == (-1,) * (9 - len(clips))
                first = step_of[clips[0]]
                assert [step_of[i] for i in clips] == [*range(first, min(first + 9, S))]
                seen.add((first, step_of[row[j]]))
                missing.add(row[j])
            asked = [step_of[row[j]] for row, j in found[:among]]
            assert asked in ([[*range(n)]] if kind == "paper" else [*filter(None, offsets)])
        assert seen == slow_paper_rows(len(steps)) and missing == {*range(n)}


def test_every_update_asks_something_else():
    """Catches: rows or noise that are the same in all updates, or change within one; a control that
    moves the missing clip, or reads clips of the same video alone."""
    args = SimpleNamespace(seed=1, rows="steps", context="observed")
    requests = [(video, np.arange(n)[:, None] * 10. + [0, 9]) for video, n in ((4, 7), (2, 12))]
    phrases = np.arange(7 + 12) // 2

    def draws(update):
        rows, j, _ = rows_of_group(requests, phrases, update, args)
        noise, t = draw_noise(requests, [30, 20], update, 5, 4, args.seed)
        return rows.tolist(), noise.tolist(), t.tolist(), j.tolist()
    first, again, other = draws(3), draws(3), draws(5)
    assert first == again and all(a != b for a, b in zip(first[:3], other))
    args.context = "random"
    rows, *_, j = draws(3)
    missing = [row[place] for row, place in zip(first[0], first[3])]
    assert j == first[3] and [row[place] for row, place in zip(rows, j)] == missing
    assert any({*row} & {*range(7)} and {*row} & {*range(7, 7 + 12)} for row in rows)


def test_the_example_of_the_page():
    """Catches: an example that the code does not give."""
    windows = np.array([[0, 9], [8, 17], [18, 27], [26, 35], [36, 45]], float)
    pad, until_17 = (-1,) * 6, (0, 0, 0, 0, 1, 1, 1, 1)
    following = [(until_17 + (2,), 8), (until_17 + (3,), 8)]
    drawn = [as_list(*missing_rows(windows, np.array([7, 7, 3, 5, 5]),
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
def test_controls_change_the_observed_clips_or_what_is_missing(kind):
    """Catches: a missing clip that moves, padding that is filled, an order or a clip that stays; a
    bag whose missing clip is the next, or is shown."""
    windows = np.arange(12)[:, None] * 10. + [0, 9]
    phrase, asked = np.arange(12) // 2, set()
    for seed in range(40):
        plain, shuffled, bag = (as_list(*missing_rows(
            windows, phrase, np.random.default_rng(seed), kind, context))
            for context in ("observed", "shuffled", "bag"))
        for (a, j), (b, k), (c, m) in zip(plain, shuffled, bag, strict=True):
            assert j == k == m and a[j] == b[j]
            assert [i < 0 for i in a] == [i < 0 for i in b] == [i < 0 for i in c]
            assert sorted(a) == sorted(b)
            shown = [i for place, i in enumerate(c) if place != j]
            assert sorted(shown) == sorted(i for place, i in enumerate(a) if place != j)
            assert c[j] not in shown
            asked.add((max(shown) < c[j], c[j] == a[j]))
        assert plain != shuffled
    assert asked == {(before, same) for before in (True, False) for same in (True, False)}


def test_the_missing_clip_is_equally_often_at_each_place():
    """Catches: places that are preferred, where the video's ends leave a choice."""
    rng, clips = np.random.default_rng(0), [*range(100, 125)]
    rows = [data.paper_rows([clips], rng) for _ in range(200)]
    places = Counter(j for found in rows for row, j in found[8:17])        # 1,800 rows
    assert sorted(places) == [*range(9)] and 140 < min(places.values()) <= max(
        places.values()) < 260
    assert all(row[j] == k for found in rows for k, (row, j) in zip(clips, found, strict=True))
