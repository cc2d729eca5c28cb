"""files/sources.py: clips of listed videos, from real files; what is absent or unreadable."""
import numpy as np
import pytest
import torch

from data import Video, View, frame_times, sentence_windows
from files.captions import Captions
from files.sources import VideoSource, open_folder, require_readable, require_videos
from files.video import evaluation_view, find_videos, read_frames, short_side_for, training_view
from support.errors import InputError
from test_video import write

TEXT = "word " * 12                                    # a sentence that is not joined with others


class Teacher:
    """A frame as its mean and its first pixel, at a size of 4 x 4."""
    size = 4

    def encode_frames(self, frames):
        flat = frames.flatten(1).float()
        return torch.stack([flat.mean(1), flat[:, 0]], 1)


@pytest.fixture
def folder(tmp_path):
    """Videos a (4 s), b (10 s), bad (no video), short (3 s); narrations of a, b, bad and gone."""
    for name, count in (("a", 100), ("b", 250), ("short", 75)):
        write(tmp_path / f"{name}.mp4", ticks=range(count))
    (tmp_path / "bad.mp4").write_text("no video")
    for name, rows in (("a", "0,1,a {0}\n2,3,b {0}\n30,40,c {0}\n"), ("b", "0,x,{0}\n"),
                       ("bad", "0,1,{0}\n"), ("gone", "0,1,{0}\n"), ("short", "0,2.5,{0}\n")):
        (tmp_path / f"{name}.csv").write_text("start,end,text\n" + rows.format(TEXT))
    return tmp_path


@pytest.mark.parametrize("seed", [None, 3])
def test_clips_are_those_of_their_windows_and_videos(folder, seed):
    """Catches: clips of another window or video, views of other frames, a crop drawn twice."""
    rng, same = (seed and np.random.default_rng(seed) for _ in range(2))
    names, paths = ["b", "gone", "a"], find_videos(folder)
    source = VideoSource([Video(name) for name in names], paths, View(32, 2), Teacher())
    requests = [(1, np.array([[0.0, 2.0], [1.0, 3.0]])), (0, np.array([[6.0, 9.0]]))]
    loaded = source.load(requests, rng)
    assert loaded.clips.shape == (3, 2, 3, 32, 32) and loaded.failed == {}
    assert [view.shape for view in loaded.views] == [(2, 2, 3, 4, 4), (1, 2, 3, 4, 4)]
    features = source.teacher_features(loaded.views)
    for row, (name, window) in enumerate([("a", [0, 2]), ("a", [1, 3]), ("b", [6, 9])]):
        clip = read_frames(paths[name], frame_times([window], 2)[0], short_side_for(32))
        assert torch.equal(loaded.clips[row], evaluation_view(clip, 32) if rng is None
                           else training_view(clip, 32, same))
        torch.testing.assert_close(features[row], Teacher().encode_frames(
            evaluation_view(clip, 4)).mean(0))


def test_promises_1_and_2_the_absent_and_the_unreadable_are_named(folder):
    """Catches: another video in place of a broken one; a reason lost; an end by one bad file."""
    listed = [Video(name) for name in ("bad", "gone", "a")]
    source = require_videos(VideoSource(listed, find_videos(folder), View(32, 2)), folder)
    assert [video.name for video in source.videos] == ["bad", "a"] and len(source) == 2
    assert source.listed == listed and source.absent == ["gone"]
    requests = [(0, np.array([[0.0, 2.0]])), (1, np.array([[0.0, 2.0]]))]
    loaded = source.load(requests)
    assert loaded.requests == requests[1:] and len(loaded.clips) == 1 and loaded.views == []
    assert list(loaded.failed) == ["bad"] and "bad.mp4: cannot be read" in loaded.failed["bad"]
    assert len(source.load(requests[:1]).clips) == 0


def test_promise_3_no_file_matches_the_list(folder):
    """Catches: a run without videos; an error that does not show how the names differ."""
    (folder / "ids.txt").write_text("v_one\nv_two\n")
    for captions in (None, folder):
        with pytest.raises(InputError, match="the 2 videos listed.*'v_one', a file is '[a-z]+'"):
            open_folder(folder, captions, folder / "ids.txt", View(32, 2))
    assert [video.name for video in open_folder(folder, None, None, View(32, 2)).videos] == [
        "a", "b", "bad", "short"]
    source = open_folder(folder, folder, None, View(32, 2))
    assert len(source) == 4 and source.absent == ["gone"]
    (folder / "ids.txt").write_text("a.mp4\nshort\n")
    (folder / "short.csv").unlink()                    # without a narration
    source = open_folder(folder, folder, folder / "ids.txt", View(32, 2))
    assert [video.name for video in source.videos] == ["a"] and source.absent == ["short"]


def test_promises_18_and_21_windows_of_narrations(folder):
    """Catches: a bad caption file that ends the run, or is not counted; a window after the end of
    the video; a video that is shorter than a clip refused."""
    source = open_folder(folder, folder, None, View(32, 2))
    sentences = Captions(folder).sentences("a")[:2]    # the third begins after the video
    for seed in range(3, -1, -1):
        windows = [source.pretrain_windows(i, np.random.default_rng(seed)) for i in range(4)]
        same = sentence_windows(sentences, 4.0, np.random.default_rng(seed))
        assert np.array_equal(windows[0], same)
    assert windows[1].shape == windows[2].shape == (0, 2)
    assert windows[3].tolist() == [[0, 3]]
    loaded = source.load([(0, windows[0]), (3, windows[3])])
    assert len(loaded.clips) == 2 and list(loaded.failed) == ["b", "bad"]
    assert "b.csv:2: " in loaded.failed["b"] and "bad.mp4: " in loaded.failed["bad"]


def test_promise_19_the_error_says_that_times_are_seconds(folder):
    """Catches: scores of the rest, if times are in other units; one bad video of many refused."""
    source = open_folder(folder, None, None, View(32, 2))
    source.unreadable |= source.load([(0, np.array([[3000.0, 4000.0]]))]).failed
    assert "ends 3" in source.unreadable["a"]
    require_readable(source, 0.25)
    with pytest.raises(InputError, match="1 of 4 videos.*--max-unreadable 0.05; times must be sec"):
        require_readable(source, 0.05)
