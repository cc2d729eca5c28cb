"""The main departure from the paper: which clips h reads in training, and which of them is missing.

R rows of nine clips; C clips of all videos of a batch, numbered 0 to C - 1; -1 is padding.

    --rows paper      data.paper_rows: every clip is missing in turn, all others are visible
    --rows release    the same, with a random tail of the clips after the missing one hidden
    --rows steps      the default: rows that ask what comes next, of steps in place of clips

What `steps` changes, with an example: docs/differences.md, the first section.
1. Most rows hold a history cut as at inference, and the missing clip after it: the tail is hidden.
   The history ends before that clip begins; narrated clips overlap, and would show the answer.
2. Consecutive clips with the same likeliest phrase under f are one step, and only clips of a later
   step are asked for: the next clip often shows the same one.
3. Rows that ask what comes next skip the clips that f is least sure of, a third of the batch.
A third of the paper's rows, of one clip of each step, stays among them, so that h can infill.
"""
import itertools

import numpy as np
import torch

from data import PIECES, forecast_windows, paper_rows
from support.errors import require

EVERY = 3                     # every third row of `paper_rows` stands beside `forecast_rows`
UNSURE = 1 / 3                # of a batch's clips, the least certain, are never asked for as next


def steps_of(clips, phrases):
    """Consecutive clips with one likeliest phrase are one step: [[clip, ...], ...], in order."""
    return [list(step) for _, step in itertools.groupby(clips, lambda clip: phrases[clip])]


def forecast_rows(windows, steps, confident):
    """Rows that ask what comes next, for each confident clip of every step but a video's first.

    The history is up to 68 s that end with the last clip of an earlier step whose window ends
    before the asked one begins, in 8 pieces; for each stands the clip of the nearest middle.

    Args:    windows (C, 2) s; steps: those of one video, by `steps_of`; confident (C,) bool.
    Returns: [(row, j), ...] as `paper_rows`: eight clips of the history, then the missing one.
    """
    rows, first = [], steps[0][0]
    for step in steps[1:]:
        for k in step:
            before = first + np.flatnonzero(windows[first:step[0], 1] <= windows[k, 0])
            if confident[k] and len(before):
                start, end = windows[before[0], 0], windows[before[-1], 1]
                pieces = forecast_windows(end, start=start).mean(1)                    # (8,) s
                nearest = np.abs(pieces[:, None] - windows[before].mean(1)).argmin(1)  # (8,)
                rows.append((before[nearest].tolist() + [k], PIECES))
    return rows


def change_context(row, j, context, C, rng):
    """A control: the row with its observed clips in random places ("shuffled"), or with any clips
    of the batch in their places ("random")."""
    row, places = np.array(row), [i for i, clip in enumerate(row) if clip >= 0 and i != j]
    row[places] = (rng.permutation(row[places]) if context == "shuffled" else
                   rng.integers(C, size=len(places)))
    return row.tolist()


def missing_rows(requests, confidence, phrases, rng, rows="steps", context="observed"):
    """Which clips h reads in one update, and which one of each row is missing.

    Args:    requests: [(video, windows (n, 2) s), ...]: each video's consecutive clips;
             confidence, phrases (C,): log p of each clip's likeliest phrase, and its number;
             rows, context: the flags of train.py.
    Returns: rows (R, 9) int64, numbers of clips, -1 = padding; j (R,) int64, the missing places.
    """
    require(rows in ("steps", "release", "paper"), f"--rows {rows}: steps, release or paper")
    windows = [windows for _, windows in requests]
    first = np.cumsum([0] + [len(part) for part in windows])
    clips = [list(range(a, b)) for a, b in zip(first, first[1:])]              # of each video
    if rows != "steps":
        chosen = paper_rows(clips, rng, hide_tail=rows == "release")
    else:
        steps = [steps_of(part, phrases) for part in clips]
        one_each = [[int(rng.choice(step)) for step in part] for part in steps]
        confident = confidence >= np.quantile(confidence, UNSURE)
        chosen = paper_rows(one_each, rng)
        chosen = chosen[int(rng.integers(min(EVERY, len(chosen))))::EVERY]
        every = np.concatenate(windows)                                        # (C, 2) s
        for part in steps:
            chosen += forecast_rows(every, part, confident)
    if context != "observed":
        chosen = [(change_context(row, j, context, first[-1], rng), j) for row, j in chosen]
    row, j = zip(*chosen)
    return torch.tensor(row), torch.tensor(j)
