"""training/cache.py: the rows of cached embeddings that h is trained on, and its batches."""
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from files.annotations import FeaturesFile
from support.command import BadInput
from training import cache


class Moments:
    """Videos of 6, 2, 1 and 0 windows. They have no length, so that their history is not random;
    each pass over a video has them two seconds later."""
    moments = [[3., 30., 31., 70., 110., 140.], [10., 90.], [77.], []]

    def __init__(self, chosen=(0, 1, 2, 3)):
        self.moments = [self.moments[video] for video in chosen]
        self.videos = [SimpleNamespace(name=f"v{i}") for i in range(len(chosen))]
        self.passes = Counter()

    def __len__(self):
        return len(self.videos)

    def pretrain_windows(self, video, rng):
        self.passes[video] += 1
        moments = np.array(self.moments[video]) + 2 * self.passes[video]
        return np.stack([moments, moments], 1)


def cached(source, without=(), missing=3):
    """CachedRows whose embeddings say video and time (every 3 s), and the nearest row by a loop.

    without: videos without embeddings.
    """
    rng = np.random.default_rng(0)
    place = rng.permutation([(video, time) for video in range(4) for time in range(0, 151, 3)])
    place = place[~np.isin(place[:, 0], without)]
    names, middles = [f"v{video}" for video, _ in place], place[:, 1].astype(float)
    features = FeaturesFile(np.array(names), middles, place.astype(np.float16))
    teacher = torch.from_numpy(place) @ torch.tensor([[1000], [1]])        # (R, 1)

    def nearest(video, time):
        return min((abs(t - time), t, row) for row, (v, t) in enumerate(place) if v == video)[2]
    return cache.CachedRows(source, features, teacher, 2, missing, rng), nearest


def expected_rows(nearest, P):
    """Rows of forecasts and of others of P missing clips, by loops over Moments in two passes."""
    forecasts, others = [], []
    for turn in (1, 2):
        for video, moments in enumerate(Moments.moments):
            moments = [moment + 2 * turn for moment in moments]
            for k in range(1, len(moments) - P + 1):
                before = moments[k - 1]
                begin = max(0, before - 68)
                history = [begin + (i + .5) * (before - begin) / 8 for i in range(8)]
                missing = moments[k:k + P]
                forecasts.append([nearest(video, time) for time in [*history, *missing]])
            if len(moments) >= P:
                others.append([nearest(video, moment) for moment in moments])
    return forecasts, others


@pytest.mark.parametrize("P", [1, 2, 3])
def test_rows_are_the_nearest_embeddings(P):
    """Catches: rows of another video or window, a pass that repeats the windows of the one before,
    the first clip asked as a forecast, padding that counts as real."""
    made, nearest = cached(Moments())
    (rows, real, F), (forecasts, others) = made.tables[P], expected_rows(nearest, P)
    assert F == len(forecasts) and real[:F].all()
    assert [row[some].tolist() for row, some in zip(rows, real)] == forecasts + others
    assert rows.shape == real.shape == (F + len(others), 8 + P)


def test_rows_of_videos_that_could_be_embedded():
    """Catches: a video without embeddings that ends the run, or stands in with those of another."""
    whole, made = (cached(Moments(), without)[0] for without in ([], [1]))
    (all_rows, _, every), (rows, real, F) = whole.tables[1], made.tables[1]
    assert F == every - 2 and len(rows) == len(all_rows) - 2 * 2                    # in two passes
    asked = whole.x[all_rows[:every]]                                               # (., 9, 2)
    assert torch.equal(made.x[rows[:F]], asked[asked[:, 8, 0] == 0])
    assert made.x[rows[F:, 0]][:, 0].tolist() == [0, 2, 0, 2]
    assert set(made.x[rows[real]][:, 0].tolist()) == {0, 2}
    with pytest.raises(BadInput, match="4 videos"):
        cached(Moments(), [0, 1, 2])


@pytest.mark.parametrize("share", [.25, .75])
def test_batches_are_forecasts_and_others(share, monkeypatch):
    """Catches: a part of the wrong kind or size, a row that is never drawn, features of another
    clip, columns out of step, float16 that reaches the model, a P that never comes."""
    monkeypatch.setattr(cache, "FORECASTS", share)
    made, _ = cached(Moments())
    rng, drawn, whole = np.random.default_rng(1), {1: Counter(), 2: Counter(), 3: Counter()}, {}
    for P, (rows, real, _) in made.tables.items():
        whole[P] = [(made.x[row].tolist(), some.tolist()) for row, some in zip(rows, real)]
    for _ in range(160):
        x, features, real, last, P = made.batch(8, rng)
        assert x.shape == (8, 8 + P, 2) and x.dtype == features.dtype == torch.float32
        assert torch.equal(features, x @ torch.tensor([[1000.], [1.]]))
        for b in range(8):
            place = whole[P].index((x[b].tolist(), real[b].tolist()))
            drawn[P][place] += 1
            assert (place < made.tables[P][2]) == last[b] == (b < 8 * share)
    assert all(len(drawn[P]) == len(whole[P]) for P in drawn)
    batches = [sum(count.values()) for count in drawn.values()]
    assert batches[0] == pytest.approx(8 * 80, abs=8 * 25)     # one is missing in half of them
    alone, _ = cached(Moments(), missing=1)
    assert alone.tables.keys() == {1} and alone.batch(8, rng)[4] == 1
    first = [made.batch(9, np.random.default_rng(seed))[0] for seed in (3, 3, 4)]
    assert torch.equal(first[0], first[1])
    assert first[0].shape != first[2].shape or not torch.equal(first[0], first[2])
