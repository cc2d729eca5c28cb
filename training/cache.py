"""Cached embeddings, the rows that h is trained on: f would compute the same in every epoch.

R windows of all videos, B rows, N clips, P missing ones, D embedding.
"""
import numpy as np
import torch

from data import PIECES, history_windows, missing_clips
from support.command import BadInput
from support.device import send

FORECASTS = 0.75          # share of the rows that are forecasts as at inference


class CachedRows:
    """Cached embeddings, and what h is to predict from them: forecasts, and any clips.

    Consecutive clips that show the same step count once: what is missing is a step, not the rest of
    one that was observed. Which step a clip shows is read off its embedding, without labels.

    Args:
        source:   gives the videos and their pre-training windows.
        features: annotations.FeaturesFile of these videos.
        teacher:  (R, D) the teacher's features of its rows.
        steps:    (R,) int64, the phrase that f sees in each row; None where the windows are steps.
        passes:   passes over each video, with other windows each time.
        missing:  the most clips that are missing together.
        rng:      numpy Generator.
    """

    def __init__(self, source, features, teacher, steps, passes, missing, rng):
        self.x, self.teacher = torch.from_numpy(features.embedding), teacher
        # P: [(rows (n,), which of them are observed, j (P,))]
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
                    history = history_windows(windows[new[after[:, 0]] - 1], windows[new[after]],
                                              rng)
                    ahead = np.arange(PIECES + P) < PIECES, PIECES + np.arange(P)
                    forecasts[P] += [(row, *ahead)
                                     for row in features.nearest(name, history.mean(-1))]
                if len(new) >= P:
                    j, readable = missing_clips(len(new), P, rng)
                    others[P].append((rows[new], readable, j))
        self.tables = {}                               # rows, observed (M, N), j (M, P), forecasts
        for P in forecasts:
            found = forecasts[P] + others[P]
            rows = np.zeros((len(found), PIECES + P), np.int64)                # padded with row 0
            observed = np.zeros(rows.shape, bool)
            for i, (row, readable, _) in enumerate(found):
                rows[i, :len(row)], observed[i, :len(row)] = row, readable
            if others[P]:
                j = np.stack([j for *_, j in found])
                self.tables[P] = *map(torch.from_numpy, (rows, observed, j)), len(forecasts[P])
        if not self.tables:
            raise BadInput(f"none of the {len(source)} videos has a clip to train on")

    def batch(self, size, rng, device):
        """x (B, N, D), features of clips j (B, P, D), observed (B, N), j (B, P); N = 8 + P.

        One clip is missing in half of the batches, several (where they may be) in the others.
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
