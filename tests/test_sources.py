"""files/sources.py, toy/source.py: clips of videos in memory, in a features file and in files."""
import numpy as np
import pytest
import torch

from data import Step, Video, View, frame_times, sentence_windows
from files import sources
from files.annotations import FeaturesFile
from files.video import Unreadable, evaluation_view, training_view
from support.command import BadInput
from toy import grammar, render
from toy import source as toy_source


class Captions(dict):
    """{id: its sentences, or the error of its file}."""

    def sentences(self, name):
        if isinstance(self[name], BadInput):
            raise self[name]
        return self[name]


class Teacher:
    """A frame as its mean and its first pixel, at a size of 4 x 4."""
    size = 4

    def encode_frames(self, frames):
        flat = frames.flatten(1).float()
        return torch.stack([flat.mean(1), flat[:, 0]], 1)


def test_toy_clips_are_the_nearest_frames_of_their_video():
    """Catches: half a frame's offset, -1 before 0 s, another video's clips; other views."""
    source = toy_source.ToySource("train", 3, 4, Teacher())
    rng, requests = np.random.default_rng(0), []
    assert len(source) == 3 and source.missing == [] and source.unreadable == {}
    for i in (2, 0, 1):
        video = source.videos[i]
        assert video == grammar.make_video("train", i)
        ours = source.pretrain_windows(i, np.random.default_rng(3))
        same = sentence_windows(render.narrate(video), video.duration, np.random.default_rng(3))
        assert np.array_equal(ours, same) and len(ours) > 1
        steps = toy_source.ToySource("train", 3, 4, annotated=True).pretrain_windows(i, rng)
        assert np.array_equal(steps, [step[:2] for step in video.steps])
        start = rng.uniform(-5, video.duration + 5, 20)
        requests.append((i, np.stack([start, start + rng.uniform(0, 20, 20)], 1)))
    loaded, row = source.load(requests), 0
    features = source.teacher_features(loaded.views)
    assert [id(request) for request in loaded.requests] == [id(request) for request in requests]
    assert loaded.failed == {} and loaded.clips.shape == (60, 4, 3, 32, 32)
    for i, windows in requests:
        frames = torch.from_numpy(render.render(grammar.make_video("train", i)))
        middles = (np.arange(len(frames)) + .5) / render.FPS
        for times in frame_times(windows, 4):
            nearest = np.abs(middles - times[:, None]).argmin(1)
            assert torch.equal(loaded.clips[row], frames[nearest])
            torch.testing.assert_close(features[row], Teacher().encode_frames(frames[nearest])
                                       .mean(0))
            row += 1


def test_feature_source_takes_the_nearest_row_of_its_video():
    """Catches: rows of another video or window, in the file's order, or nearest to its end."""
    features = FeaturesFile(np.array(["b", "a", "a", "b"]), np.array([5., 20., 10., 50.]),
                            np.float32([[1, 0], [2, 0], [3, 0], [4, 0]]))
    gone, a, none, b = (Video(name, steps=tuple(Step(*step, 0) for step in steps)) for name, *steps
                        in (("c", (1, 2)), ("a", (8, 14)), ("d",), ("b", (0, 4), (40, 60))))
    source = sources.FeatureSource([gone, a, none, b], features)
    assert source.videos == [a, b] and source.missing == ["c"] and source.listed == [gone, a, b]
    requests = [(1, np.array([[0., 4.], [40., 60.]])), (0, np.array([[2., 18.], [14., 30.]]))]
    loaded = source.load(requests)
    assert loaded.clips[:, 0].tolist() == [1, 4, 3, 2] and loaded.clips.dtype == torch.float32
    assert torch.equal(source.teacher_features(loaded.views), loaded.clips)
    assert loaded.requests is requests and loaded.failed == {} == source.unreadable
    assert source.pretrain_windows(1, np.random.default_rng(0)).tolist() == [[0, 4], [40, 60]]


def read_frames(path, times, short_side=None):
    """In place of files, pictures (3, 20, 30) showing a gradient and their time."""
    if "cut" in path:
        raise Unreadable(f"{path}: ends before 9 s")
    if "gone" in path:
        raise OSError(5, "Input/output error", path)
    gradient = torch.arange(600).view(20, 30) % 7
    return torch.stack([(gradient + 7 * int(t)).to(torch.uint8).expand(3, 20, 30) for t in times])


def open_videos(monkeypatch, names, size, *arguments):
    """A VideoSource of names, but no file of "none"; the arguments of each read_frames."""
    asked = []
    monkeypatch.setattr(sources, "read_frames", lambda *args: asked.append(args)
                        or read_frames(*args))
    paths = {name: f"{name}.mp4" for name in names if name != "none"}
    return sources.VideoSource([Video(name) for name in names], paths, View(size, 2),
                               *arguments), asked


@pytest.mark.parametrize("seed", [None, 3])
def test_video_source_gives_the_clips_of_its_files(monkeypatch, seed):
    """Catches: clips of another file or clip, random views, a broken file that ends the run."""
    source, asked = open_videos(monkeypatch, ["a", "cut", "none", "b", "gone"], 8, Teacher())
    assert source.missing == ["none"] and len(source) == 4 and len(source.listed) == 5
    windows = np.array([[0., 4.], [10., 18.]])
    requests = [(2, windows), (1, windows), (3, windows[:1]), (0, windows[1:])]
    rng, same = (None if seed is None else np.random.default_rng(seed) for _ in range(2))
    loaded = source.load(requests, rng)
    assert [path for path, *_ in asked] == ["b.mp4", "cut.mp4", "gone.mp4", "a.mp4"]
    assert asked[3][1].tolist() == [12, 16]                                      # s
    assert [id(request) for request in loaded.requests] == [id(requests[0]), id(requests[3])]
    assert loaded.failed.keys() == {"cut", "gone"} and "ends" in loaded.failed["cut"]
    assert loaded.clips.shape == (3, 2, 3, 8, 8) and loaded.clips.dtype == torch.uint8
    assert [view.shape for view in loaded.views] == [(2, 2, 3, 4, 4), (1, 2, 3, 4, 4)]
    features, views = source.teacher_features(loaded.views), torch.cat(loaded.views)
    for row, (name, times) in enumerate([("b", [1, 3]), ("b", [12, 16]), ("a", [12, 16])]):
        clip = read_frames(name, times)
        assert torch.equal(loaded.clips[row], evaluation_view(clip, 8) if rng is None
                           else training_view(clip, 8, same))
        assert torch.equal(views[row], evaluation_view(clip, 4))
        torch.testing.assert_close(features[row], Teacher().encode_frames(views[row]).mean(0))


def test_video_source_without_teacher_or_without_a_file(monkeypatch):
    """Catches: views for a teacher that is not there; pictures reduced below what a view needs."""
    source, asked = open_videos(monkeypatch, ["cut", "a"], 224)
    window = np.array([[0., 4.]])
    for requests, clips in (([(1, window), (0, window)], 1), ([(0, window)], 0)):
        loaded = source.load(requests)
        assert len(loaded.views) == 0 and len(loaded.clips) == len(loaded.requests) == clips
        assert loaded.failed.keys() == {"cut"} and asked[-1][2] >= 320      # 256 / 0.8


def test_video_source_windows_are_those_of_the_captions(monkeypatch):
    """Catches: sentences of another video, windows beyond the last sentence."""
    spoken = [(0., 6., "word " * 12), (20., 24., "word " * 12), (40., 47., "word " * 12)]
    source, _ = open_videos(monkeypatch, "cba", 8, None, Captions(a=spoken, b=[]))
    assert [video.name for video in source.videos] == ["b", "a"] and source.missing == ["c"]
    ours, same = (np.random.default_rng(1) for _ in range(2))
    assert source.pretrain_windows(0, ours).shape == (0, 2)
    sentence_windows([], 0.0, same)
    assert np.array_equal(source.pretrain_windows(1, ours), sentence_windows(spoken, 47.0, same))


def test_narrations_and_teacher_features_that_do_not_fit_their_video(monkeypatch, tmp_path):
    """Catches: a bad line that ends the run; a narration that runs on; a teacher's row reused."""
    spoken = [(0., 6., "word " * 12), (20., 24., "word " * 12), (40., 47., "word " * 12)]
    captions = Captions(b=BadInput("b.csv:3: bad"), short=spoken, long=spoken)
    source, _ = open_videos(monkeypatch, [*captions], 8, None, captions)
    monkeypatch.setattr(sources, "duration", lambda path: 9.0)
    monkeypatch.setattr(sources, "read_frames", lambda path, times, side: read_frames(
        "cut" if path == "short.mp4" and max(times) > 9 else path, times))
    rng = np.random.default_rng(0)
    requests = [(video, source.pretrain_windows(video, rng)) for video in range(2)]
    assert len(requests[0][1]) == 0
    windows = np.array([[0., 4.], [6., 12.], [30., 39.]])
    loaded = source.load([(1, windows)])
    assert loaded.failed == {"b": "b.csv:3: bad"}
    assert loaded.requests[0][1].tolist() == [[0, 4], [3, 9]] and len(loaded.clips) == 2
    assert "short" in source.load([(1, windows[2:])]).failed         # nothing of it is in the video
    monkeypatch.setattr(sources, "record", lambda path, *made: f"{path} {made}")
    source.cached, source.made = tmp_path, ("teach", 3)
    np.savez(tmp_path / "long.npz", rows=np.arange(20, dtype=np.float32).reshape(10, 2),
             made=f"{source.paths['long']} {('teach', 3)}")
    assert source.load([(2, windows[:2])]).views[0].tolist() == [[[2, 3], [6, 7]],
                                                                 [[14, 15], [18, 19]]]
    assert "long.npz: of another teacher, " in source.load([(2, windows)]).failed["long"]
