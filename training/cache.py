"""Cached embeddings, the rows that h is trained on: f would compute the same in every epoch.

R windows of all videos, B rows, N clips, P missing ones, D embedding.
"""
import numpy as np
import torch

from data import PIECES, history_windows
from support.command import require

FORECASTS = 0.75          # share of the rows that are forecasts as at inference; 0: the paper


class CachedRows:
    """Cached embeddings, and what h is to predict from them: forecasts, and any clips.

    Args:
        source:   gives the videos and their pre-training windows.
        features: annotations.FeaturesFile of these videos.
        teacher:  (R, D) the teacher's features of its rows.
        passes:   passes over each video, with other windows each time.
        missing:  the most clips that are missing together.
        rng:      numpy Generator.
    """

    def __init__(self, source, features, teacher, passes, missing, rng):
        self.x, self.teacher = torch.from_numpy(features.embedding), teacher
        forecasts, others = ({P: [] for P in range(1, missing + 1)} for _ in range(2))
        for video in np.tile(np.arange(len(source)), passes):
            name, windows = source.videos[video].name, source.pretrain_windows(video, rng)
            if name not in features.rows or not len(windows):      # unreadable, or nothing is said
                continue
            windows = windows[features.covers(name, windows.mean(-1))]
            rows = features.nearest(name, windows.mean(-1))
            for P in forecasts:
                after = np.arange(1, len(rows) - P + 1)[:, None] + np.arange(P)            # (m, P)
                if len(after):
                    history = history_windows(windows[after[:, 0] - 1], windows[after], rng)
                    forecasts[P] += list(features.nearest(name, history.mean(-1)))
                if len(rows) >= P:
                    others[P].append(rows)
        self.tables = {}                               # rows, real (M, 8 + P); number of forecasts
        for P in forecasts:
            found = forecasts[P] + others[P]
            rows = np.zeros((len(found), PIECES + P), np.int64)                # padded with row 0
            real = np.zeros(rows.shape, bool)
            for i, row in enumerate(found):
                rows[i, :len(row)], real[i, :len(row)] = row, True
            if others[P]:
                self.tables[P] = torch.from_numpy(rows), torch.from_numpy(real), len(forecasts[P])
        require(self.tables, f"none of the {len(source)} videos has a clip to train on")

    def batch(self, size, rng):
        """x, teacher's features (B, N, D), real (B, N), last (B,): see data.missing_clips; and P.

        N = 8 + P. One clip is missing in half of the batches, several (if they may) in the others.
        """
        P = rng.choice([*self.tables][1:]) if len(self.tables) > 1 and rng.random() < 0.5 else 1
        rows, real, forecasts = self.tables[P]
        first = rng.integers(forecasts, size=round(FORECASTS * size)) if forecasts else []
        then = rng.integers(forecasts, len(rows), size=size - len(first))
        chosen = torch.from_numpy(np.concatenate([first, then]).astype(np.int64))
        rows = rows[chosen]
        return (self.x[rows].float(), self.teacher[rows].float(), real[chosen],
                chosen < forecasts, P)
