"""The main departure from the paper: which clips h reads in training, and which of them is missing.

R rows of nine clips; n clips of one video, numbered 0 to n - 1; -1 is padding.

    --rows paper      data.paper_rows: every clip is missing in turn, all others are visible
    --rows release    the same, with a random tail of the clips after the missing one hidden
    --rows steps      the default: rows that ask what comes next, made of steps instead of clips

The first section of docs/differences.md explains what `steps` changes, with an example.
1. Consecutive clips with the same likeliest phrase under f are one step. h predicts the first clip
   of each step after the first. In the paper's rows, the next clip often shows the same step.
2. Such a row holds a history, cut as at inference, and then the missing clip. The tail is hidden.
   Narrated clips overlap, so the history ends before the missing clip begins.
A third of the paper's rows, with one clip of each step, is kept so that h can infill.
"""
import itertools

import numpy as np
import torch

from data import PIECES, forecast_windows, paper_rows
from training.batches import generator

EVERY = 3                     # every third row of `paper_rows` is kept beside `forecast_rows`


def steps_of(phrases):
    """Merge consecutive clips whose phrases (n,) are equal into steps: [[clip, ...], ...]."""
    return [list(step) for _, step in itertools.groupby(range(len(phrases)), phrases.__getitem__)]


def forecast_rows(windows, steps):
    """Rows that ask what comes next: each step after the first has one. Its first clip is missing.

    The history ends with the last clip whose window ends before the missing clip begins. It has at
    most 68 s, in 8 pieces. Each piece is represented by the clip whose middle is nearest.

    Args:    windows (n, 2) s; steps from `steps_of`.
    Returns: [(row, j), ...] as `paper_rows`: eight clips of the history, then the missing clip.
    """
    rows = []
    for k, *_ in steps[1:]:
        before = np.flatnonzero(windows[:k, 1] <= windows[k, 0])
        if len(before):
            start, end = windows[before[0], 0], windows[before[-1], 1]
            pieces = forecast_windows(end, start=start).mean(1)                        # (8,) s
            nearest = np.abs(pieces[:, None] - windows[before].mean(1)).argmin(1)      # (8,)
            rows.append((before[nearest].tolist() + [k], PIECES))
    return rows


def change_context(row, j, n, context, rng):
    """Controls. "shuffled": the observed clips of the row go to random places. "bag": also, the
    missing clip is any of the n clips that are not observed, before or after them."""
    places = [i for i, clip in enumerate(row) if clip >= 0 and i != j]
    row = np.array(row)
    row[places] = rng.permutation(row[places])
    if context == "bag":
        row[j] = rng.choice(np.setdiff1d(np.arange(n), row[places]))
    return row.tolist()


def missing_rows(windows, phrases, rng, rows="steps", context="observed"):
    """Which clips of a video h reads in one update, and which one of each row is missing.

    Args:    windows (n, 2) s, of consecutive clips; phrases (n,), the number of each clip's
             likeliest phrase; rows, context: the flags of train.py.
    Returns: rows (R, 9) int64, numbers of clips, -1 = padding; j (R,) int64, the missing places.
    """
    n = len(windows)
    if rows != "steps":
        chosen = paper_rows([[*range(n)]], rng, hide_tail=rows == "release")
    else:
        steps = steps_of(phrases)
        chosen = paper_rows([[int(rng.choice(step)) for step in steps]], rng)  # one clip of each
        chosen = chosen[int(rng.integers(min(EVERY, len(chosen))))::EVERY]
        chosen += forecast_rows(windows, steps)
    if context in ("shuffled", "bag"):
        chosen = [(change_context(row, j, n, context, rng), j) for row, j in chosen]
    row, j = zip(*chosen)
    return torch.tensor(row), torch.tensor(j)


def rows_of_group(requests, phrases, update, args):
    """`missing_rows` of each video of a group, whose C clips are numbered 0 to C - 1.

    Args:    requests: [(video, windows (n, 2) s), ...]; phrases (C,).
    Returns: rows (R, 9), j (R,), and counts: how many rows each video has.
    """
    rows, j, first, C = [], [], 0, len(phrases)
    for video, windows in requests:
        own, rng = slice(first, first + len(windows)), generator("rows", args.seed, update, video)
        row, place = missing_rows(windows, phrases[own], rng, args.rows, args.context)
        row = torch.where(row < 0, -1, row + first)
        if args.context == "random":                   # a control: any clips of the group
            observed = (row >= 0) & (torch.arange(row.shape[1]) != place[:, None])
            row[observed] = torch.from_numpy(rng.integers(C, size=int(observed.sum())))
        rows.append(row)
        j.append(place)
        first = own.stop
    return torch.cat(rows), torch.cat(j), [len(part) for part in j]
