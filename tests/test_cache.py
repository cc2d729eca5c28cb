"""What h is asked: the missing clip, forecasts as at inference, and rows of kept embeddings."""
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import data
import protocols
from files.annotations import FeaturesFile
from training.cache import KeptRows, embed_videos
from support.command import BadInput


# ------------------------------------------------------------------------------------------------
# One row
# ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("count, P", [(1, 1), (2, 1), (5, 1), (9, 1), (3, 3), (5, 2), (9, 3)])
def test_missing_clips_and_hidden_tail_by_counts(count, P):
    """Catches: j never the first or the last, j or the future told, a clip before j hidden, a gap
    within what is shown or within j, a tail that is always or never hidden or begins at one place
    too often."""
    places = count - P + 1
    rng, found = np.random.default_rng(0), Counter()
    for _ in range(2000 * places):
        j, observed = protocols.missing_clips(count, P, rng)
        assert observed.shape == (count,) and observed.dtype == bool
        first, after = int(j[0]), int(j[0]) + P
        assert j.tolist() == list(range(first, after))
        shown = int(observed[after:].sum())
        assert observed.tolist() == [i < first or after <= i < after + shown for i in range(count)]
        found[first, after + shown] += 1                     # the hidden tail begins there
    for first in range(places):
        starts = range(first + P, count + 1)                 # count: none is hidden; std sqrt(n)
        assert sum(found[first, start] for start in starts) == pytest.approx(2000, abs=200)
        for start in starts:
            n = 2000 / len(starts)
            assert found[first, start] == pytest.approx(n, abs=4.5 * n ** .5), (first, start)


def test_history_windows_are_what_forecasts_read():
    """Catches: a history that ends before the clip is half over or after it, always at one place,
    or longer than 68 s; eight windows with holes; the clip before in place of the missing one; one
    draw for all clips of a video; a missing clip too few."""
    windows, places = np.array([[0., 9.], [14., 20.], [60., 75.], [99., 110.]]), []
    before, missing = windows[:-1], windows[1:, None]
    quarter = SimpleNamespace(uniform=lambda low, high: low + .25 * (high - low))
    rows = protocols.history_windows(before, missing, quarter)
    assert rows.shape == (3, 9, 2) and np.array_equal(rows[:, 8:], missing)
    for row, end in zip(rows, (5.625, 17.75, 69.375)):       # a quarter of the second half
        edges = np.linspace(max(0, end - 68), end, 9)
        assert np.allclose(row[:8, 0], edges[:-1]) and np.allclose(row[:8, 1], edges[1:])
    rng = np.random.default_rng(0)
    for _ in range(500):
        rows = protocols.history_windows(before, missing, rng)
        ends = rows[:, 7, 1]
        places.append((ends - before.mean(1)) / (before[:, 1] - before.mean(1)))
        assert (ends - rows[:, 0, 0] <= 68 + 1e-9).all() and rows.min() >= 0
    assert np.abs(np.corrcoef(np.array(places).T) - np.eye(3)).max() < .2
    places = np.sort(places, 0)                              # (500, 3), uniform in 0..1
    assert places.min() >= 0 and places.max() <= 1
    assert np.abs(places - np.linspace(0, 1, 500)[:, None]).max() < .09     # Kolmogorov-Smirnov
    several = np.stack([windows[1:3], windows[2:4]])         # (2, 2, 2)
    rows = protocols.history_windows(before[:2], several, rng)
    assert rows.shape == (2, 10, 2) and np.array_equal(rows[:, 8:], several)


# ------------------------------------------------------------------------------------------------
# Kept embeddings
# ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("stride", [4.0, 7.5, 1000.0])
def test_embed_videos_equals_encoding_each_window(stride):
    """Catches: windows of other places or lengths than 9 s, rows counted to another video, the
    teacher's rows in another order, a last window beyond the end, a short video without a row."""
    def features_of(frames):
        return frames[:, :, 8, 8:12].flatten(1).float()

    def encode(clips):
        return clips.float().mean((3, 4)).flatten(1)                       # (C, F * 3)

    source = data.ToySource("train", 3, 4, SimpleNamespace(encode_frames=features_of),
                            progress=False)
    names, windows, x, teacher, failed = embed_videos(source, encode, stride, 0, "cpu")
    row = 0
    for video, script in enumerate(source.videos):
        middle = stride / 2
        while middle < script.duration or middle == stride / 2:
            start = min(max(middle - 4.5, 0), script.duration - 9)         # within the video
            window = np.array([[start, start + 9]])
            assert names[row] == script.name and np.array_equal(windows[row], window[0])
            loaded = source.load([(video, window)])
            assert torch.equal(x[row], encode(loaded.clips)[0])
            assert torch.equal(teacher[row], source.teach(loaded.looks)[0])
            middle, row = middle + stride, row + 1
    assert row == len(names) == len(windows) == len(x) == len(teacher) and failed == {}


class Moments:
    """Videos of 6, 2, 1 and 0 windows. They have no length, so that their history is not random;
    each time a video is gone through, they are two seconds later."""
    moments = [[3., 30., 31., 70., 110., 140.], [10., 90.], [77.], []]

    def __init__(self, kept=(0, 1, 2, 3)):
        self.moments = [self.moments[video] for video in kept]
        self.videos = [SimpleNamespace(name=f"v{i}") for i in range(len(kept))]
        self.passed = Counter()

    def __len__(self):
        return len(self.videos)

    def pretrain_windows(self, video, rng):
        self.passed[video] += 1
        moments = np.array(self.moments[video]) + 2 * self.passed[video]
        return np.stack([moments, moments], 1)


def keep(source, passes=2, but=(), steps=None, missing=3):
    """KeptRows whose embeddings say video and time (every 3 s), and the nearest row by a loop.

    but: videos without embeddings. steps: callable, video and time -> the step seen there.
    """
    rng = np.random.default_rng(0)
    place = rng.permutation([(video, time) for video in range(4) for time in range(0, 151, 3)])
    place = place[~np.isin(place[:, 0], but)]
    names, middles = [f"v{video}" for video, _ in place], place[:, 1].astype(float)
    features = FeaturesFile(np.array(names), middles, place.astype(np.float16))
    teacher = torch.from_numpy(place) @ torch.tensor([[1000], [1]])        # (R, 1)
    seen = None if steps is None else np.array([steps(*row) for row in place])

    def nearest(video, time):
        return min((abs(t - time), t, row) for row, (v, t) in enumerate(place) if v == video)[2]
    return KeptRows(source, features, teacher, seen, passes, missing, rng), nearest


def expected_rows(nearest, P, same=lambda video, a, b: False):
    """Rows of forecasts and of others of P missing clips, by loops over Moments in two passes.

    same: whether two moments show one step.
    """
    forecasts, others = [], []
    for turn in (1, 2):
        for video, moments in enumerate(Moments.moments):
            moments = [moment + 2 * turn for moment in moments]
            new = [i for i in range(len(moments))
                   if i == 0 or not same(video, moments[i - 1], moments[i])]
            for k in range(1, len(new) - P + 1):
                before = moments[new[k] - 1]
                begin = max(0, before - 68)
                history = [begin + (i + .5) * (before - begin) / 8 for i in range(8)]
                missing = [moments[i] for i in new[k:k + P]]
                forecasts.append([nearest(video, time) for time in [*history, *missing]])
            if len(new) >= P:
                others.append([nearest(video, moments[i]) for i in new])
    return forecasts, others


@pytest.mark.parametrize("P", [1, 2, 3])
def test_kept_rows_are_the_nearest_embeddings(P):
    """Catches: rows of another video or window, a pass that repeats the windows of the one before,
    the first clip asked as a forecast, padding or clips j observed, a history that is hidden."""
    kept, nearest = keep(Moments())
    (rows, seen, js, F), (forecasts, others) = kept.tables[P], expected_rows(nearest, P)
    assert rows[:F].tolist() == forecasts and (js[:F] == 8 + torch.arange(P)).all()
    assert (seen[:F] == (torch.arange(8 + P) < 8)).all()
    assert len(rows) == len(seen) == len(js) == F + len(others)
    for row, observed, j, expected in zip(rows[F:], seen[F:], js[F:], others):
        n = len(expected)
        assert row[:n].tolist() == expected and (j < n).all() and len(j) == P
        assert not observed[j].any() and not observed[n:].any() and observed[:j[0]].all()


@pytest.mark.parametrize("P", [1, 2])
def test_clips_of_one_step_count_once(P):
    """Catches: a forecast of the step that was just seen, a history that ends before the last clip
    of a step, a step that returns later left out, steps read off another row."""
    def step(video, time):
        return int(time) // 50 % 2                     # 0 to 50 s one step, to 100 s another, ...
    kept, nearest = keep(Moments(), steps=step)
    times = dict(enumerate(kept.x.tolist()))           # row -> (video, time)

    def same(video, a, b):
        return step(*times[nearest(video, a)]) == step(*times[nearest(video, b)])
    (rows, _, _, F), (forecasts, others) = kept.tables[P], expected_rows(nearest, P, same)
    assert rows[:F].tolist() == forecasts and 0 < F < len(expected_rows(nearest, P)[0])
    for row, expected in zip(rows[F:], others, strict=True):
        assert row[:len(expected)].tolist() == expected


def test_kept_rows_of_videos_that_could_be_embedded():
    """Catches: a video without embeddings that ends the run, or stands in with those of another."""
    whole, kept = (keep(Moments(), but=but)[0] for but in ([], [1]))
    (all_rows, _, _, every), (rows, observed, j, F) = whole.tables[1], kept.tables[1]
    assert F == every - 2 and len(rows) == len(all_rows) - 2 * 2                    # in two passes
    asked = whole.x[all_rows[:every]]                                               # (., 9, 2)
    assert torch.equal(kept.x[rows[:F]], asked[asked[:, 8, 0] == 0])
    missing = kept.x[rows.gather(1, j)[F:, 0]]
    assert missing[:, 0].tolist() == [0, 2, 0, 2]
    assert set(kept.x[rows[observed]][:, 0].tolist()) == {0}                        # v2 is one clip
    with pytest.raises(BadInput, match="4 videos"):
        keep(Moments(), but=[0, 1, 2])


@pytest.mark.parametrize("share", [.25, .75])
def test_kept_batches_are_forecasts_and_others(share, monkeypatch):
    """Catches: a part of the wrong kind or size, a row that is never drawn, features of another
    clip than j, columns out of step, float16 that reaches the model, a P that never comes."""
    monkeypatch.setattr("kept.FORECASTS", share)
    kept, _ = keep(Moments())
    rng, drawn, whole = np.random.default_rng(1), {1: Counter(), 2: Counter(), 3: Counter()}, {}
    for P, (rows, seen, js, _) in kept.tables.items():
        whole[P] = [(kept.x[row].tolist(), observed.tolist(), j.tolist())
                    for row, observed, j in zip(rows, seen, js)]
    for _ in range(160):
        x, features, observed, j = kept.batch(8, rng, "cpu")
        P = j.shape[1]
        assert x.shape == (8, 8 + P, 2) and x.dtype == features.dtype == torch.float32
        for b in range(8):
            place = whole[P].index((x[b].tolist(), observed[b].tolist(), j[b].tolist()))
            drawn[P][place] += 1
            assert (place < kept.tables[P][3]) == (b < 8 * share)
            assert features[b, :, 0].tolist() == (x[b, j[b]] @ torch.tensor([1000., 1.])).tolist()
    assert all(len(drawn[P]) == len(whole[P]) for P in drawn)
    batches = [sum(count.values()) for count in drawn.values()]
    assert batches[0] == pytest.approx(8 * 80, abs=8 * 25)     # one is missing in half of them
    alone, _ = keep(Moments(), missing=1)
    assert alone.tables.keys() == {1} and alone.batch(8, rng, "cpu")[3].shape == (8, 1)
    first = [kept.batch(9, np.random.default_rng(seed), "cpu")[0] for seed in (3, 3, 4)]
    assert torch.equal(first[0], first[1])
    assert first[0].shape != first[2].shape or not torch.equal(first[0], first[2])


def test_kept_batches_of_videos_with_one_clip():
    """Catches: a forecast drawn where there is none; a lone clip that h may read; several clips
    asked of videos that have one."""
    kept, _ = keep(Moments([2, 3]))
    x, features, observed, j = kept.batch(6, np.random.default_rng(0), "cpu")
    assert kept.tables.keys() == {1} and kept.tables[1][3] == 0 and x.shape == (6, 9, 2)
    assert (j == 0).all() and not observed.any()
    assert set(features[:, 0, 0].tolist()) == {78, 81}         # 79 s in one pass, 81 s in the other
    assert kept.batch(1, np.random.default_rng(0), "cpu")[0].shape == (1, 9, 2)
