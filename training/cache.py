"""Kept embeddings: whole videos through f once, and the rows that h is then trained on.

First what the teacher makes of clips: of their frames, or of what is said meanwhile.

f would compute the same again in every epoch of the last stage (train.py). The same embeddings are
what a features file holds (evaluate.py). R windows of all videos, B rows, N clips, P missing ones,
D embedding.
"""
import functools

import numpy as np
import torch
from torch.nn import functional
from tqdm import tqdm

from support import parallel
from data import Loaded
from support.command import BadInput, send
from protocols import (CLIP_SECONDS, PIECES, around, history_windows, missing_clips,
                       said_during)
from support.workers import prefetch

FORECASTS = 0.75          # share of the rows that are forecasts as at inference


def hear(source, requests):
    """The teacher's text features of what is said during the requests' clips: (C, D), length 1.

    The mean over a clip's sentences: see `protocols.said_during`. Zeros where nothing is said.
    """
    shares, texts = [], []
    for video, windows in requests:
        sentences = source.sentences(video)
        share = said_during(sentences, windows)                                     # (n, m)
        heard = share.any(0)
        shares.append(torch.from_numpy(share[:, heard]).float())
        texts += [text for (_, _, text), used in zip(sentences, heard) if used]
    features = source.teacher.encode_sentences(texts).split([share.shape[1] for share in shares])
    rows = torch.cat([share @ part for share, part in zip(shares, features)])       # (C, D)
    return functional.normalize(rows, dim=-1)


def teach(source, loaded, targets="vision"):
    """What soft targets are made of: the teacher's features of loaded clips (C, D).

    targets: "vision", of their frames (the paper); "narration", of what is said meanwhile; "both",
             the mean of the two at length 1 (the release).
    """
    if targets == "narration":
        return hear(source, loaded.requests)
    seen = source.teach(loaded.looks)
    if targets == "vision":
        return seen
    return (functional.normalize(seen, dim=-1) + hear(source, loaded.requests).to(seen.device)) / 2


def load_grid(source, stride, video):
    """9-s windows of a whole video, one every `stride` s -> Loaded."""
    from files.video import Unreadable
    try:
        duration = source.duration(video)
    except (Unreadable, OSError) as error:
        return Loaded([], torch.empty(0), torch.empty(0), {source.videos[video].name: str(error)})
    middles = np.arange(stride / 2, max(duration, stride), stride)
    return source.load([(video, np.array([around(m, m, CLIP_SECONDS, duration)
                                          for m in middles]))])


def embed_videos(source, encode, stride, workers, device, targets="vision"):
    """Every video as embeddings of 9-s windows, one every `stride` s.

    Args:    encode: callable, clips on `device` -> (C, D); targets: see `teach`.
    Returns: names (R,), windows (R, 2) s, (R, D) embeddings, (R, D) the teacher's features on the
             CPU (None where the source has no teacher), and {id: reason} of unreadable videos.
    """
    names, windows, x, features, failed = [], [], [], [], {}
    make = functools.partial(load_grid, source, stride)
    mine = parallel.share(range(len(source)), parallel.PLACE)
    for loaded in tqdm(prefetch(make, mine, workers), desc="embed videos", total=len(mine),
                       mininterval=1):
        failed |= loaded.failed
        for video, rows in loaded.requests:
            names += [source.videos[video].name] * len(rows)
            windows.append(rows)
            x.append(encode(send(loaded.clips, device)).cpu())
            if len(loaded.looks):
                features.append(teach(source, loaded, targets).cpu())
    parts = parallel.everyone((names, windows, x, features))
    names, windows, x, features = ([row for rows in kind for row in rows] for kind in zip(*parts))
    failed = {name: why for part in parallel.everyone(failed) for name, why in part.items()}
    if not names:
        raise BadInput(f"not one of {len(source)} videos could be read; the first: "
                       f"{next(iter(failed.values()), 'there is none')}")
    return (np.array(names), np.concatenate(windows), torch.cat(x),
            torch.cat(features) if features else None, failed)


class KeptRows:
    """Kept embeddings, and what h is asked about them: forecasts, and any clips.

    Clips that follow one another and show the same step count once: what is missing is a step, not
    the rest of one that was seen. Which step a clip shows is read off its embedding, without
    labels.

    Args:
        source:   gives the videos and their pre-training windows.
        features: annotations.FeaturesFile of these videos.
        teacher:  (R, D) the teacher's features of its rows.
        steps:    (R,) int64, the phrase that f sees in each row; None where the windows are steps.
        passes:   how often each video is gone through, with other windows each time.
        missing:  the most clips that are missing together.
        rng:      numpy Generator.
    """

    def __init__(self, source, features, teacher, steps, passes, missing, rng):
        self.x, self.teacher = torch.from_numpy(features.embedding), teacher
        forecasts, others = ({P: [] for P in range(1, missing + 1)} for _ in range(2))
        for video in np.tile(np.arange(len(source)), passes):
            name, windows = source.videos[video].name, source.pretrain_windows(video, rng)
            if name not in features.rows or not len(windows):      # unreadable, or nothing is said
                continue
            rows = features.nearest(name, windows.mean(-1))
            new = np.arange(len(rows)) if steps is None else np.flatnonzero(
                np.diff(steps[rows], prepend=-1))                  # clips that begin a step
            for P in forecasts:
                after = np.arange(1, len(new) - P + 1)[:, None] + np.arange(P)    # (m, P) of `new`
                if len(after):
                    asked = history_windows(windows[new[after[:, 0]] - 1], windows[new[after]], rng)
                    forecasts[P] += list(features.nearest(name, asked.mean(-1)))
                if len(new) >= P:
                    j, seen = missing_clips(len(new), P, rng)
                    others[P].append((rows[new], seen, j))
        self.tables = {P: join_rows(forecasts[P], others[P], P) for P in forecasts if others[P]}
        if not self.tables:
            raise BadInput(f"none of the {len(source)} videos has a clip to train on")

    def batch(self, size, rng, device):
        """x (B, N, D), features of clips j (B, P, D), observed (B, N), j (B, P); N = 8 + P.

        One clip is missing in half of the batches, several in the others; always one, if at most
        one may be.
        """
        P = rng.choice([*self.tables][1:]) if len(self.tables) > 1 and rng.random() < 0.5 else 1
        rows, observed, j, forecasts = self.tables[P]
        first = rng.integers(forecasts, size=round(FORECASTS * size)) if forecasts else []
        then = rng.integers(forecasts, len(j), size=size - len(first))
        chosen = torch.from_numpy(np.concatenate([first, then]).astype(np.int64))
        rows, j = rows[chosen], j[chosen]
        missing = rows.gather(1, j)                                                 # (B, P)
        return tuple(send(part, device) for part in (
            self.x[rows].float(), self.teacher[missing].float(), observed[chosen], j))


def join_rows(forecasts, others, P):
    """Rows of one table: forecasts first, then any clips, padded with row 0, which is not observed.

    Args:    forecasts: [rows (8 + P,)]; others: [(rows (n,), observed (n,), j (P,))].
    Returns: rows (M, 8 + P), observed (M, 8 + P), j (M, P), and how many are forecasts.
    """
    N, F = PIECES + P, len(forecasts)
    rows, observed = np.zeros((F + len(others), N), np.int64), np.zeros((F + len(others), N), bool)
    j = np.tile(PIECES + np.arange(P), (F + len(others), 1))
    observed[:F, :PIECES] = True
    for i, row in enumerate(forecasts):
        rows[i] = row
    for i, (row, seen, missing) in enumerate(others, F):
        rows[i, :len(row)], observed[i, :len(row)], j[i] = row, seen, missing
    return *map(torch.from_numpy, (rows, observed, j)), F
