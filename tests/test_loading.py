"""What a step or a sample reads: drawn from its number, by any worker, without bad videos."""
import functools
import json
import os
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from commands import randomized
from data import Loaded, Sample, forecast_samples, with_histories
from evaluate import EvaluateSettings
from evaluation import embedding
from evaluation.embedding import embed_videos
from evaluation.inference import predict_missing
from files.video import Unreadable as CannotRead
from support.command import BadInput
from support.workers import prefetch
from toy.source import ToySource
from train import TrainSettings
from training.pretrain import SIZES, Pretraining, load_step
from training.run import Run, Stage, videos_of_step
from weights.checkpoint import load_model

WORKERS = pytest.mark.parametrize("workers", [0, 2])


class Source:
    """Videos of 9, 6, 1, 0, 5, 7 and 2 clips: (video, s, view), for the teacher (video, s)."""
    counts = [9, 6, 1, 0, 5, 7, 2]

    def __init__(self, broken=(), closed=(), teacher=True):
        self.broken, self.closed, self.teacher = broken, closed, teacher
        self.videos = [SimpleNamespace(name=f"v{i}") for i in range(len(self.counts))]
        self.unreadable = {}

    def __len__(self):
        return len(self.videos)

    def duration(self, video):
        if video in self.closed:
            raise CannotRead(f"v{video} cannot be opened")
        return 10.0 * max(self.counts[video], 1)

    def pretrain_windows(self, video, rng):
        return np.arange(self.counts[video])[:, None] * 10. + [0, 9] + rng.random()

    def load(self, requests, rng=None):
        good = [request for request in requests if request[0] not in self.broken]
        rows = [(video, middle, 0 if rng is None else rng.random())
                for video, windows in good for middle in windows.mean(1)]
        clips = torch.tensor(rows, dtype=torch.float64)                    # (C, 3), or (0,)
        return Loaded(good, clips, clips[:, :2] if self.teacher and good else torch.empty(0),
                      {f"v{video}": f"v{video} is broken" for video, _ in requests
                       if video in self.broken})

    def teacher_features(self, views):
        return 1000 + views


def test_a_run_has_the_windows_that_were_read():
    """Catches: rows of h that point to other clips, where captions go on after the video ends."""
    class Cut(Source):
        def load(self, requests, rng=None):
            return super().load([(video, windows[:5]) for video, windows in requests], rng)
    for number in range(10, 20):
        loaded, runs = load_step(Cut(), MIDDLE, Stage("adamw", range(10, 99), 3, 1.0), number)
        assert [windows.tolist() for _, windows in loaded.requests] == [
            windows.tolist() for windows in runs]
        assert len(loaded.clips) == sum(map(len, runs))


@WORKERS
def test_prefetch_keeps_the_order(workers):
    """Catches: items in the order of being ready, one left out; BadInput lost in a worker."""
    def make(item):
        np.linalg.norm(np.ones((400 * (item % 2), 400)))     # every second one takes longer
        if item == 12:
            raise BadInput("captions/v3.csv:7: no time")
        return item, os.getpid()
    made = list(prefetch(make, range(3, 12), workers))
    assert [item for item, _ in made] == list(range(3, 12))
    assert len({process for _, process in made} - {os.getpid()}) == workers
    assert list(prefetch(make, [], workers)) == []
    with pytest.raises(BadInput, match="v3.csv:7"):
        list(prefetch(make, range(11, 14), workers))


def steps(source, numbers, workers=0, settings=TrainSettings(seed=5)):
    """What `load_step` gives for some steps of a stage from step 10 on, as plain lists."""
    make = functools.partial(load_step, source, settings, Stage("adamw", range(10, 99), 3, 1.0))
    return [([(video, windows.tolist()) for video, windows in loaded.requests],
             loaded.clips.tolist(), [windows.tolist() for windows in runs])
            for loaded, runs in prefetch(make, numbers, workers)]


MIDDLE = TrainSettings(seed=5, data="howto100m", videos="v", captions="c", phrases="p",
                       augment=False)


def test_clips_of_a_features_file_are_steps_and_their_histories():
    """Catches: histories of steps alone, of another video, or counted as steps of a run."""
    settings, source = TrainSettings(seed=5, data="coin", annotations="a", features="f",
                                     text_embeddings="t"), Source(broken=[4])
    for number in range(10, 20):
        loaded, runs = load_step(source, settings, Stage("adamw", range(10, 99), 3, 1.0), number)
        for (video, windows), run in zip(loaded.requests, runs, strict=True):
            assert len(run) == source.counts[video]
            assert np.array_equal(windows, with_histories(run))


def test_a_step_is_drawn_from_seed_and_number():
    """Catches: windows or views that hang on other steps or workers; one order for all epochs."""
    source, numbers = Source(), range(10, 20)
    drawn = steps(source, numbers)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    assert steps(source, numbers[::-1]) == drawn[::-1]
    assert steps(source, numbers[3:], workers=2) == drawn[3:]                        # resumed
    other = steps(source, numbers, settings=TrainSettings(seed=6))
    parts = [part for step in drawn + other for part in step[:2]]
    assert all(a != b for i, a in enumerate(parts) for b in parts[:i])
    views = [clip[2] for step in drawn + other for clip in step[1]]
    assert len(set(views)) == len(views) and min(views) > 0                          # random ones
    epochs = [videos_of_step(place, 7, 3, 5).tolist() for place in range(10)]
    assert all(len({*a, *b}) == 6 for a, b in zip(epochs[::2], epochs[1::2]))
    assert len({*map(tuple, epochs)}) == 10                                          # new orders
    assert [[video for video, _ in step[0]] for step in drawn] == [
        [video for video in step if video != 3] for step in epochs]                  # 3: no clip
    assert steps(source, numbers, settings=MIDDLE) == [
        (requests, [[*clip[:2], 0] for clip in clips], runs) for requests, clips, runs in drawn]


def test_of_a_long_video_a_run_is_read():
    """Catches: all of a long video, or always the same part; windows that are not the clips'."""
    source = Source()
    source.counts = [40] * 7
    for settings, size in ((TrainSettings(seed=5), "small"), (MIDDLE, "paper")):
        most, starts = SIZES[size]["run"], set()
        for _, clips, runs in steps(source, range(10, 30), settings=settings):
            assert [clip[1] for clip in clips] == np.concatenate(runs).mean(1).tolist()
            for windows in runs:
                assert len(windows) == most and np.allclose(np.diff(windows, axis=0), 10)
                starts.add(windows[0][0] // 10)
        assert min(starts) < 5 and max(starts) > 35 - most


class Batches(Pretraining):
    """The batches of a run, without its folder, optimizer and weights: f gives back the clips."""

    def __init__(self, source, settings):
        self.source, self.settings, self.device, self.first = source, settings, "cpu", 0
        self.unreadable, self.model = {}, SimpleNamespace(dim=2, encode=lambda clips: clips)

    def steps(self, stage, optimizer, items_of):
        return zip(stage.span, items_of(stage.span), strict=True)


@pytest.mark.parametrize("broken, workers", [((), 0), ((1, 3, 5), 0), ((1, 5), 2)])
def test_a_batch_is_the_clips_of_its_videos_and_rows_of_them(tmp_path, broken, workers):
    """Catches: clips or features of another video, a row of two or shifted, P always the same."""
    stage, source = Stage("adamw", range(20, 26), 7, 1.0), Source(broken)
    run, several = Batches(source, TrainSettings(
        seed=2, out=tmp_path, workers=workers, missing=2, max_unreadable=1.)), set()
    for number, (step, batch) in zip(stage.span, run.batches(stage, None), strict=True):
        rng, clips = np.random.default_rng((2, 2, step)), []
        for video in videos_of_step(step - 20, 7, 7, 2):
            windows = source.pretrain_windows(video, rng)
            rng.integers(1)                            # the run begins with the first window
            clips += [(video, middle) for middle in windows.mean(1) if video not in broken]
        clips = torch.tensor(clips, dtype=torch.float64)                                 # (C, 2)
        x = run.encode(batch)
        assert step == number and torch.equal(x[:, :2], clips)
        assert torch.equal(batch.teacher, 1000 + clips)
        rows, j = run.missing_rows(batch, torch.arange(len(x)) // 2 % 2, torch.zeros(len(x)))
        (R, P), missing = j.shape, rows.gather(1, j)
        assert rows.shape == (R, 8 + P)
        assert ((clips[rows, 0] == clips[missing[:, :1], 0]) | (rows < 0)).all()
        several.add(P)
    assert several == {1, 2}
    assert run.unreadable == {f"v{i}": f"v{i} is broken" for i in {*broken} - {3}}


def test_unreadable_videos_are_counted_and_named(tmp_path):
    """Catches: a video counted in every epoch, a reason lost, the share of one step's videos."""
    path, settings = tmp_path / "unreadable.json", TrainSettings(out=tmp_path, max_unreadable=.05)
    stage = Stage("adamw", range(50), 4, 1.0)
    run, named = Run(settings, None, {}, [stage], None), {}                 # 2 of 40 are allowed
    for failed in ({}, {"a": "cut off"}, {"a": "cut off"}, {"a": "cut off", "b": "no video"}):
        path.unlink(missing_ok=True)
        new, named = failed.keys() - named.keys(), named | failed
        run.add_unreadable(failed, [None] * 40)
        assert run.unreadable == named and path.exists() == bool(new)
    with pytest.raises(BadInput, match=r"3 of 40 .*--max-unreadable 0.05.*unreadable.json"):
        run.add_unreadable({"c": "empty"}, [None] * 40)
    assert json.loads(path.read_text()) == named | {"c": "empty"}            # all are named


@pytest.mark.parametrize("stride", [4.0, 7.5, 1000.0])
def test_embed_videos_equals_encoding_each_window(stride):
    """Catches: other windows, rows counted to another video, a short video without a row."""
    def encode(clips):
        return clips.float().mean((3, 4)).flatten(1)                       # (C, F * 3)
    source, row = ToySource("train", 3, 4), 0
    names, windows, x, failed = embed_videos(source, encode, stride, 0, "cpu")
    for i, video in enumerate(source.videos):
        middle = stride / 2
        while middle < video.duration or middle == stride / 2:
            start = min(max(middle - 4.5, 0), video.duration - 9)          # within the video
            window = np.array([[start, start + 9]])
            assert names[row] == video.name and np.array_equal(windows[row], window[0])
            assert torch.equal(x[row], encode(source.load([(i, window)]).clips)[0])
            middle, row = middle + stride, row + 1
    assert row == len(names) == len(windows) == len(x) and failed == {}


@WORKERS
def test_embed_videos_skips_what_cannot_be_read(workers):
    """Catches: rows of the next video under a broken one's name, a run ended by a closed file."""
    def embed(source):
        return embed_videos(source, lambda clips: clips, 4.0, workers, "cpu")
    whole = embed(Source())
    with pytest.raises(BadInput, match="2 of 7 .*--max-unreadable 0.2; .*v0 is broken"):
        embed_videos(Source(broken=(0, 4)), lambda clips: clips, 4.0, workers, "cpu", 0.2)
    names, windows, x, failed = embed(Source(broken=(0, 4), closed=(5,)))
    assert failed == {"v0": "v0 is broken", "v4": "v4 is broken", "v5": "v5 cannot be opened"}
    good = ~np.isin(whole[0], list(failed))
    assert set(names) == {"v1", "v2", "v3", "v6"} and names.tolist() == whole[0][good].tolist()
    assert np.array_equal(windows, whole[1][good])
    assert torch.equal(x, whole[2][good]) and (x[:, 2] == 0).all()           # no random view
    assert [f"v{int(video)}" for video in x[:, 0]] == names.tolist()
    with pytest.raises(BadInput, match="7 .*v0 is broken"):
        embed(Source(broken=range(7)))


def test_targets_are_of_frames_of_words_or_of_both():
    """Catches: words of another window, features not of length 1 in a mean, NaN for silence."""
    sentences = {0: [(0, 4, "one"), (10, 14, "two")], 1: [], 2: [(0, 9, "three")]}
    word = dict(zip(("one", "two", "three"), torch.eye(4)))
    source = SimpleNamespace(
        sentences=sentences.get, teacher_features=lambda views: views, teacher=SimpleNamespace(
            encode_sentences=lambda texts: torch.stack([word[text] for text in texts])))
    requests = [(0, np.array([[0., 9], [9, 18], [0, 18]])), (1, np.array([[0., 9]])),
                (2, np.array([[0., 9]]))]
    views = 3 * torch.eye(4)[[3, 3, 3, 3, 2]]
    loaded = Loaded(requests, None, views, {})
    spoken = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0], [.5 ** .5, .5 ** .5, 0, 0], [0, 0, 0, 0],
                           [0, 0, 1, 0]])
    for kind, expected in (("vision", views), ("narration", spoken),
                           ("both", (views / 3 + spoken) / 2)):
        torch.testing.assert_close(embedding.teacher_features(source, loaded, kind), expected)


def encode(source, samples, **settings):
    """`encode_samples` with a model that gives back the clips."""
    model = SimpleNamespace(encode=lambda clips: clips.flatten(1))
    return embedding.encode_samples(model, source, samples, EvaluateSettings(**settings), "cpu")


@pytest.mark.parametrize("workers, batch", [(0, 1), (0, 4), (2, 4), (0, 100)])
def test_unreadable_videos_leave_the_samples_aligned(workers, batch):
    """Catches: a label by another sample's embedding; a batch of broken videos; random views."""
    source = Source(broken=(0, 2, 3))
    samples = [Sample(video, np.array([[k, k + 1.], [20. + k, 40. + k]]), 10 * video + k, k)
               for video in range(7) for k in range(3)][:-2]      # 9 of 19 are of the 3 videos
    x, features, read = encode(source, samples, batch=batch, workers=workers, max_unreadable=3 / 7)
    assert [s.label for s in read] == [s.label for s in samples if s.video not in (0, 2, 3)]
    assert x.shape == (10, 2, 3) and features.shape == (10, 2, 2)
    assert torch.equal(features, 1000 + x[..., :2])
    for row, sample in zip(x, read):
        assert row.tolist() == [[sample.video, sample.step + .5, 0],
                                [sample.video, sample.step + 30, 0]]
    assert source.unreadable == {f"v{i}": f"v{i} is broken" for i in (0, 2, 3)}
    with pytest.raises(BadInput, match="3 of 7 .*--max-unreadable 0.4; .*v0 is broken"):
        encode(source, samples, batch=batch, max_unreadable=.4)
    with pytest.raises(BadInput, match="7 of 7 .*v0 is broken"):
        encode(Source(broken=range(7)), samples, batch=batch, max_unreadable=1)
    x, features, read = encode(Source(teacher=False), samples, batch=batch, max_unreadable=0)
    assert features is None and len(x) == len(read) == 19


def test_blank_frames_tell_nothing_about_the_next_step(trained):
    """Catches: anything but pixels that reaches the forecast: of blank frames no two may differ."""
    source = ToySource("test", 12, 4)
    source.pixels = torch.zeros_like(source.pixels)
    model = randomized(load_model(trained / "diffusion")[0], 0.3)
    samples = forecast_samples(source.videos)
    x, _, read = embedding.encode_samples(model, source, samples, EvaluateSettings(batch=16), "cpu")
    assert len(read) == len(samples) == len(x)
    noise = torch.stack([torch.zeros(model.dim), torch.randn(model.dim)]).expand(len(x), -1, -1)
    log_p = predict_missing(model, x, torch.randn(40, model.dim), noise, 16)
    torch.testing.assert_close(log_p, log_p[:1].expand_as(log_p), atol=1e-4, rtol=0)
