"""What a step or a sample reads: drawn from its number, by any worker, without unreadable videos.

The clips say what they show (video, s, view), so that a row in the wrong place is seen at once.
"""
import functools
import json
import os
import random
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import data  # noqa: E402
from evaluation import inference  # noqa: E402
import tasks  # noqa: E402
import train  # noqa: E402
import files.video as video_module  # noqa: E402
from files.captions import Captions  # noqa: E402
from training.cache import embed_videos  # noqa: E402
from support.command import BadInput, parse  # noqa: E402
from training.run import earlier_unreadable  # noqa: E402
from settings import EvaluateSettings, TrainSettings  # noqa: E402
from support.workers import prefetch  # noqa: E402

WORKERS = pytest.mark.parametrize("workers", [0, 2])


class Source:
    """Videos of 9, 6, 1, 0, 5, 7 and 2 clips; a clip is (video, s, view), a look (video, s)."""
    counts = [9, 6, 1, 0, 5, 7, 2]

    def __init__(self, broken=(), closed=(), teacher=True):
        self.broken, self.closed, self.teacher = broken, closed, teacher
        self.videos = [SimpleNamespace(name=f"v{i}") for i in range(len(self.counts))]
        self.unreadable = {}

    def __len__(self):
        return len(self.videos)

    def duration(self, video):
        if video in self.closed:
            raise video_module.Unreadable(f"v{video} cannot be opened")
        return 10.0 * max(self.counts[video], 1)

    def pretrain_windows(self, video, rng):
        return np.arange(self.counts[video])[:, None] * 10. + [0, 9] + rng.random()

    def load(self, requests, rng=None):
        good = [request for request in requests if request[0] not in self.broken]
        rows = [(video, middle, 0 if rng is None else rng.random())
                for video, windows in good for middle in windows.mean(1)]
        clips = torch.tensor(rows, dtype=torch.float64)                    # (C, 3), or (0,)
        return data.Loaded(good, clips, clips[:, :2] if self.teacher and good else torch.empty(0),
                           {f"v{video}": f"v{video} is broken" for video, _ in requests
                            if video in self.broken})

    def teach(self, looks):
        return 1000 + looks


@pytest.fixture(autouse=True)
def no_hang():
    """A test that waits for ever is an error after a minute."""
    def late(signum, frame):
        raise TimeoutError("a minute has passed")
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 60, 30)       # again, should one be lost in a destructor
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


# ------------------------------------------------------------------------------------------------
# Workers
# ------------------------------------------------------------------------------------------------
@WORKERS
def test_prefetch_keeps_the_order(workers):
    """Catches: items in the order in which they happen to be ready, one left out or made twice."""
    def make(item):
        np.linalg.norm(np.ones((400 * (item % 2), 400)))     # every second one takes longer
        return item, os.getpid()
    found = list(prefetch(make, range(3, 12), workers))
    assert [item for item, _ in found] == list(range(3, 12))
    assert len({process for _, process in found} - {os.getpid()}) == workers
    assert list(prefetch(make, [], workers)) == []


def test_a_worker_that_dies_is_an_error():
    """Catches: a run that waits for ever for a worker that was killed (for its memory, say)."""
    def make(item):
        if item == 1:
            os._exit(1)
        return item
    with pytest.raises(RuntimeError, match="worker.*exited"):
        list(prefetch(make, range(8), 2))


@WORKERS
def test_a_mistake_in_a_worker_stays_what_it_is(workers):
    """Catches: a user's mistake that looks like our bug because a worker found it."""
    def make(item):
        raise BadInput("captions/v3.csv:7: no time")
    with pytest.raises(BadInput, match="v3.csv:7"):
        list(prefetch(make, range(2), workers))


# ------------------------------------------------------------------------------------------------
# Training
# ------------------------------------------------------------------------------------------------
def steps(source, numbers, ordering, seed=5, workers=0, first=10, batch=3):
    """What `load_step` gives for some steps, as plain lists."""
    make = functools.partial(train.load_step, source, TrainSettings(seed=seed), batch, ordering,
                             first)
    return [([(video, windows.tolist()) for video, windows in loaded.requests],
             loaded.clips.tolist(), [(seen.tolist(), *j.tolist()) for seen, j in asked])
            for loaded, asked in prefetch(make, numbers, workers)]


@pytest.mark.parametrize("ordering", [True, False])
def test_a_step_is_drawn_from_seed_and_number(ordering):
    """Catches: windows, missing clips or views that depend on which step or worker came before, on
    global generators, or on when a run was resumed; the same draw in every step or for every seed.
    """
    source, numbers = Source(), range(12, 20)
    found = steps(source, numbers, ordering)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    assert steps(source, numbers[::-1], ordering) == found[::-1]
    assert steps(source, numbers, ordering, workers=2) == found
    assert steps(source, numbers[3:], ordering, workers=2) == found[3:]              # resumed
    other = steps(source, numbers, ordering, seed=6)
    everything = [part for step in found + other for part in step[:2]]
    assert all(a != b for i, a in enumerate(everything) for b in everything[:i])
    views = [clip[2] for step in found + other for clip in step[1]]
    assert len(set(views)) == len(views) and min(views) > 0                          # rng arrived
    missing = [j for step in found for _, j in step[2]]
    assert len(set(missing)) > 3 if ordering else set(missing) == {-1}


def test_without_augmentation_every_clip_is_the_middle_view():
    """Catches: --no-augment that changes nothing, or that changes which windows are read."""
    settings = parse(TrainSettings, ["--seed", "5", "--data", "howto100m", "--videos", "v",
                                     "--captions", "c", "--phrases", "p", "--no-augment"])
    for step in (12, 13):
        loaded, asked = train.load_step(Source(), settings, 3, True, 10, step)
        assert loaded.clips.numel() and not loaded.clips[:, 2].any()
        [(requests, clips, missing)] = steps(Source(), [step], True)
        assert [(video, windows.tolist()) for video, windows in loaded.requests] == requests
        assert loaded.clips[:, :2].tolist() == [clip[:2] for clip in clips]
        assert [(seen.tolist(), *j.tolist()) for seen, j in asked] == missing


def test_the_steps_of_a_stage_take_all_videos_in_turn():
    """Catches: a stage that begins in the middle of an epoch, a video that comes twice or never."""
    found = steps(Source(), range(10, 14), True, first=10, batch=3)
    shown = [[video for video, _ in step[0]] for step in found]
    epochs = [train.videos_of_step(place, 7, 3, 5).tolist() for place in range(4)]
    assert shown == [[video for video in step if video != 3] for step in epochs]     # 3: no clip
    assert all(len({*a, *b}) == 6 for a, b in (epochs[:2], epochs[2:]))


@WORKERS
def test_unreadable_videos_leave_the_rows_of_a_batch_aligned(workers):
    """Catches: clips, targets, missing clip or what is observed of a broken video, or of the video
    after it, in another's row; a draw that depends on whether a file could be read."""
    whole, source, found = Source(), Source(broken=(1, 5)), []
    settings, model = TrainSettings(seed=2), SimpleNamespace(
        encode=lambda clips: clips, phrases=torch.eye(2, dtype=torch.float64) + .5, teacher_tau=.1)
    make = functools.partial(train.load_step, source, settings, 7, True, 0)
    for step, (loaded, asked) in enumerate(prefetch(make, range(6), workers)):
        all_requests = train.load_step(whole, settings, 7, True, 0, step)
        x, targets, observed, j = train.encode_batch(model, source, loaded, asked, "cpu")
        assert loaded.failed == {"v1": "v1 is broken", "v5": "v5 is broken"}
        rows = [(video, windows, seen, missing) for (video, windows), (seen, missing)
                in zip(all_requests[0].requests, all_requests[1]) if video not in (1, 5)]
        assert len(rows) == len(x) == len(targets) == len(observed) == len(j) == 4
        for b, (video, windows, seen, missing) in enumerate(rows):
            n, middles = len(windows), torch.from_numpy(windows.mean(1))
            assert x[b, :n, 0].tolist() == [video] * n and torch.equal(x[b, :n, 1], middles)
            assert observed[b].tolist() == [*seen, *[False] * (9 - n)] and j[b] == missing
            looks = 1000 + torch.stack([torch.full((n,), float(video)).double(), middles], 1)
            torch.testing.assert_close(targets[b, :n], slow_targets(model, looks))
            assert (targets[b, n:] == 0).all() and (x[b, n:] == 0).all()
            found.append(int(j[b]))
    assert len(set(found)) > 2


def slow_targets(model, features):
    """p' by hand: the softmax of the cosines at the teacher's temperature."""
    cosine = torch.stack([torch.nn.functional.cosine_similarity(features, text[None])
                          for text in model.phrases], 1)
    return (cosine / model.teacher_tau).softmax(1)


def test_unreadable_videos_are_counted_and_named(tmp_path):
    """Catches: a video counted in every epoch, a reason lost, the file written at every step; the
    share taken of the videos of one step."""
    source, unreadable = [None] * 40, {}
    settings = TrainSettings(out=tmp_path, max_unreadable=.05)               # 2 of 40

    def written():
        return json.loads((tmp_path / "unreadable.json").read_text())
    train.count_unreadable(unreadable, {}, source, settings)
    assert not list(tmp_path.iterdir())
    train.count_unreadable(unreadable, {"a": "cut off"}, source, settings)
    assert written() == {"a": "cut off"} == unreadable
    (tmp_path / "unreadable.json").unlink()
    train.count_unreadable(unreadable, {"a": "cut off"}, source, settings)   # the next epoch
    assert not list(tmp_path.iterdir())
    train.count_unreadable(unreadable, {"a": "cut off", "b": "no video"}, source, settings)
    assert written() == {"a": "cut off", "b": "no video"}
    with pytest.raises(BadInput, match=r"3 of 40 .*--max-unreadable 0.05.*unreadable.json"):
        train.count_unreadable(unreadable, {"c": "empty"}, source, settings)
    assert written().keys() == {"a", "b", "c"}                               # all are named
    with pytest.raises(BadInput, match="1 of 3 "):
        train.count_unreadable({}, {"a": "cut off"}, source[:3], settings)


@WORKERS
def test_embed_videos_skips_what_cannot_be_read(workers):
    """Catches: rows of the next video under a broken one's name, a file that cannot be opened that
    ends the run, no word of it; a teacher invented where there is none."""
    whole = embed_videos(Source(), lambda clips: clips, 4.0, 0, "cpu")
    source = Source(broken=(0, 4), closed=(5,))
    names, windows, x, teacher, failed = embed_videos(source, lambda clips: clips, 4.0,
                                                           workers, "cpu")
    assert failed == {"v0": "v0 is broken", "v4": "v4 is broken", "v5": "v5 cannot be opened"}
    good = ~np.isin(whole[0], list(failed))
    assert set(names) == {"v1", "v2", "v3", "v6"} and names.tolist() == whole[0][good].tolist()
    assert np.array_equal(windows, whole[1][good])
    assert torch.equal(x, whole[2][good]) and torch.equal(teacher, whole[3][good])
    assert [f"v{int(row[0])}" for row in x] == names.tolist()
    assert (x[:, 2] == 0).all()                        # no random view: f has finished
    assert torch.equal(teacher, 1000 + x[:, :2])
    alone = embed_videos(Source(teacher=False), lambda clips: clips, 4.0, workers, "cpu")
    assert alone[3] is None and torch.equal(alone[2], whole[2])


def test_embed_videos_of_nothing_readable_is_bad_input():
    """Catches: an error from deep inside (nothing to concatenate) that names no file."""
    with pytest.raises(BadInput, match="7 .*v0 is broken"):
        embed_videos(Source(broken=range(7)), lambda clips: clips, 4.0, 0, "cpu")


# ------------------------------------------------------------------------------------------------
# Measuring
# ------------------------------------------------------------------------------------------------
def samples_of(source, each=3):
    """Samples of 2 windows, `each` of every video, one after another in time."""
    return [tasks.Sample(video, np.array([[k, k + 1.], [20. + k, 40. + k]]), 10 * video + k, k)
            for video in range(len(source)) for k in range(each)]


def encode(source, samples, **settings):
    model = SimpleNamespace(encode=lambda clips: clips.flatten(1))
    return inference.encode_samples(model, source, samples, EvaluateSettings(**settings), "cpu", "")


@WORKERS
@pytest.mark.parametrize("batch", [1, 4, 100])
def test_unreadable_videos_leave_the_samples_aligned(workers, batch):
    """Catches: a label beside the embedding of another sample once one is left out; a batch of
    nothing else than broken videos; random views in evaluation; a result that depends on the batch
    or the workers."""
    source = Source(broken=(0, 2, 3))
    samples = samples_of(source)
    x, features, read = encode(source, samples, batch=batch, workers=workers, max_unreadable=.5)
    assert [s.label for s in read] == [s.label for s in samples if s.video not in (0, 2, 3)]
    assert x.shape == (12, 2, 3) and features.shape == (12, 2, 2)
    assert torch.equal(features, 1000 + x[..., :2])
    for row, sample in zip(x, read):
        assert row.tolist() == [[sample.video, sample.step + .5, 0],
                                [sample.video, sample.step + 30, 0]]
    assert source.unreadable == {f"v{i}": f"v{i} is broken" for i in (0, 2, 3)}


def test_too_many_unreadable_videos_end_the_measuring():
    """Catches: scores of the few files that happen to work; a share of samples instead of videos;
    the share itself refused."""
    source = Source(broken=(6,))
    encode(source, samples_of(source)[:-2], max_unreadable=1 / 7)       # one of 7 videos
    with pytest.raises(BadInput, match="1 of 7 .*--max-unreadable 0.1; .*v6 is broken"):
        encode(Source(broken=(6,)), samples_of(source), max_unreadable=.1)
    whole = Source()
    assert len(encode(whole, samples_of(whole), max_unreadable=0)[2]) == 21


def test_samples_without_a_teacher():
    """Catches: features invented, or an empty table, where there is nothing to compare with."""
    source = Source(teacher=False)
    x, features, read = encode(source, samples_of(source), batch=4)
    assert features is None and len(x) == len(read) == 21


# ------------------------------------------------------------------------------------------------
# Video files
# ------------------------------------------------------------------------------------------------
@pytest.fixture
def files(monkeypatch):
    """In place of files, pictures (3, 20, 30) showing a gradient and their time: what is asked."""
    asked = []

    def read_frames(path, times, short_side=None):
        asked.append((path, times.tolist(), short_side))
        if "cut" in path:
            raise video_module.Unreadable(f"{path}: ends before 9 s")
        if "gone" in path:
            raise OSError(5, "Input/output error", path)
        gradient = torch.arange(600).view(20, 30) % 7
        return torch.stack([(gradient + 7 * int(t)).to(torch.uint8).expand(3, 20, 30)
                            for t in times])
    monkeypatch.setattr(video_module, "read_frames", read_frames)
    return asked


class Teacher:
    """Looks at frames of 4 x 4: their mean, and their first pixel."""
    size = 4

    def encode_frames(self, frames):
        assert frames.shape[1:] == (3, 4, 4)
        flat = frames.flatten(1).float()
        return torch.stack([flat.mean(1), flat[:, 0]], 1)


def test_video_source_gives_the_clips_of_its_files(files):
    """Catches: clips of another file, frames of one clip in the next, random views in evaluation,
    one view for all clips, a teacher that sees them, a broken file that ends the run."""
    names = ["a", "cut", "none", "b", "gone"]
    source = data.VideoSource([data.Narrated(name) for name in names],
                              {name: f"{name}.mp4" for name in names if name != "none"}, 8, 2,
                              Teacher())
    assert source.missing == ["none"] and len(source) == 4 and len(source.listed) == 5
    windows = np.array([[0., 4.], [10., 18.]])
    requests = [(2, windows), (1, windows), (3, windows[:1]), (0, windows[1:])]
    seen = {"b": [1, 3, 12, 16], "a": [12, 16]}                         # s of the frames
    for rng in (None, np.random.default_rng(3)):
        files.clear()
        loaded = source.load(requests, rng)
        assert [path for path, *_ in files] == ["b.mp4", "cut.mp4", "gone.mp4", "a.mp4"]
        assert [times for path, times, _ in files if path == "a.mp4"] == [[12, 16]]
        assert [id(request) for request in loaded.requests] == [id(requests[0]), id(requests[3])]
        assert loaded.failed.keys() == {"cut", "gone"} and "ends" in loaded.failed["cut"]
        assert loaded.clips.shape == (3, 2, 3, 8, 8) and loaded.clips.dtype == torch.uint8
        assert [look.shape for look in loaded.looks] == [(2, 2, 3, 4, 4), (1, 2, 3, 4, 4)]
        same, place = np.random.default_rng(3), 0
        for name, times in seen.items():
            for pair in (times[:2], times[2:]):
                if pair:
                    clip = video_module.read_frames(name, np.array(pair))
                    view = (video_module.evaluation_view(clip, 8) if rng is None
                            else video_module.training_view(clip, 8, same))
                    assert torch.equal(loaded.clips[place], view)
                    look = video_module.evaluation_view(clip, 4)
                    assert torch.equal(torch.cat(loaded.looks)[place], look)
                    torch.testing.assert_close(source.teach(loaded.looks)[place],
                                               Teacher().encode_frames(look).mean(0))
                    place += 1


def test_video_source_without_teacher_or_without_a_file(files):
    """Catches: views for a teacher that is not there; pictures reduced below what a view needs."""
    source = data.VideoSource([data.Narrated("cut"), data.Narrated("a")],
                              {"cut": "cut.mp4", "a": "a.mp4"}, 224, 2)
    loaded = source.load([(1, np.array([[0., 4.]])), (0, np.array([[0., 4.]]))])
    assert len(loaded.looks) == 0 and len(loaded.clips) == 1
    assert all(short_side >= 320 for *_, short_side in files)
    loaded = source.load([(0, np.array([[0., 4.]]))])
    assert loaded.requests == [] and len(loaded.clips) == 0 and loaded.failed.keys() == {"cut"}


def test_video_source_windows_are_those_of_the_captions(files):
    """Catches: sentences of another video, windows beyond the last sentence."""
    import protocols
    spoken = [(0., 6., "word " * 12), (20., 24., "word " * 12), (40., 47., "word " * 12)]
    captions = Captions(None, {"a": spoken, "b": []}, lambda path, name, entry: entry)
    source = data.VideoSource([data.Narrated(name) for name in "cba"], {"a": "a.mp4", "b": "b.mp4"},
                              8, 2, None, captions)
    ours, same = (np.random.default_rng(1) for _ in range(2))
    assert source.pretrain_windows(0, ours).shape == (0, 2)
    protocols.sentence_windows([], 0.0, same)
    assert np.array_equal(source.pretrain_windows(1, ours),
                          protocols.sentence_windows(spoken, 47.0, same))


def test_a_resumed_run_knows_what_could_not_be_read(tmp_path):
    """Catches: earlier names that are lost from unreadable.json; a cut-off file that ends a run."""
    assert earlier_unreadable(tmp_path) == {}
    (tmp_path / "unreadable.json").write_text('{"a": "cut off"}')
    assert earlier_unreadable(tmp_path) == {"a": "cut off"}
    (tmp_path / "unreadable.json").write_text('{"a": "cu')
    assert earlier_unreadable(tmp_path) == {}
