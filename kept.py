"""Kept embeddings: whole videos through f once, and the rows that h is then trained on.

f would compute the same again in every epoch of the last stage (train.py). The same embeddings are
what a features file holds (evaluate.py). R windows of all videos, B rows, N clips, D embedding.
"""
import functools

import numpy as np
import torch
from tqdm import tqdm

import parallel
from data import Loaded, prefetch
from program import BadInput, send
from protocols import CLIP_SECONDS, CLIPS, PIECES, around, history_windows, missing_clip

FORECASTS = 0.75          # share of the rows that are forecasts as at inference


def load_grid(source, stride, video):
    """9-s windows of a whole video, one every `stride` s -> Loaded."""
    from video import Unreadable
    try:
        duration = source.duration(video)
    except (Unreadable, OSError) as error:
        return Loaded([], torch.empty(0), torch.empty(0), {source.videos[video].name: str(error)})
    middles = np.arange(stride / 2, max(duration, stride), stride)
    return source.load([(video, np.array([around(m, m, CLIP_SECONDS, duration)
                                          for m in middles]))])


def embed_videos(source, encode, stride, workers, device):
    """Every video as embeddings of 9-s windows, one every `stride` s.

    Args:    encode: callable, clips on `device` -> (C, D).
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
                features.append(source.teach(loaded.looks).cpu())
    parts = parallel.everyone((names, windows, x, features))
    names, windows, x, features = ([row for rows in kind for row in rows] for kind in zip(*parts))
    failed = {name: why for part in parallel.everyone(failed) for name, why in part.items()}
    if not names:
        raise BadInput(f"not one of {len(source)} videos could be read; the first: "
                       f"{next(iter(failed.values()), 'there is none')}")
    return (np.array(names), np.concatenate(windows), torch.cat(x),
            torch.cat(features) if features else None, failed)


class KeptRows:
    """Kept embeddings, and which of them h is asked about: forecasts first, then any clip.

    Args:
        source:   gives the videos and their pre-training windows.
        features: annotations.FeaturesFile of these videos.
        teacher:  (R, D) the teacher's features of its rows.
        passes:   how often each video is gone through, with other windows each time.
        rng:      numpy Generator.
    """

    def __init__(self, source, features, teacher, passes, rng):
        self.x, self.teacher = torch.from_numpy(features.embedding), teacher
        forecasts, others = [], []                     # (rows (N,), observed (N,), j)
        every = np.arange(CLIPS) < PIECES
        for video in np.tile(np.arange(len(source)), passes):
            name, windows = source.videos[video].name, source.pretrain_windows(video, rng)
            if name not in features.rows:              # it could not be read
                continue
            if len(windows) > 1:
                rows = features.nearest(name, history_windows(windows, rng).mean(-1))
                forecasts += [(row, every, PIECES) for row in rows]
            if len(windows):
                j, observed = missing_clip(len(windows), rng)
                rows = np.zeros(CLIPS, np.int64)       # padding: any row, as it is not observed
                rows[:len(windows)] = features.nearest(name, windows.mean(-1))
                others.append((rows, np.pad(observed, (0, CLIPS - len(windows))), j))
        if not others:
            raise BadInput(f"none of the {len(source)} videos has a clip to train on")
        self.forecasts = len(forecasts)
        self.rows, self.observed, self.j = (torch.from_numpy(np.array(column))
                                            for column in zip(*forecasts, *others))

    def batch(self, size, rng, device):
        """x (B, N, D), features of clip j (B, D), observed (B, N), j (B,)."""
        first = rng.integers(self.forecasts, size=round(FORECASTS * size)) if self.forecasts else []
        then = rng.integers(self.forecasts, len(self.j), size=size - len(first))
        chosen = torch.from_numpy(np.concatenate([first, then]).astype(np.int64))
        rows, j = self.rows[chosen], self.j[chosen]
        missing = rows.gather(1, j[:, None])[:, 0]                                  # (B,)
        return tuple(send(part, device) for part in (
            self.x[rows].float(), self.teacher[missing].float(), self.observed[chosen], j))
