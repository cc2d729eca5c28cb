"""files/sources.py: clips of listed videos, from real files; what is absent or unreadable."""
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from commands import read_json
from data import Video, View, frame_times, sentence_windows
from files.captions import Captions
from files.sources import VideoSource, open_folder, require_readable
from files.video import evaluation_view, find_videos, read_frames, short_side_for, training_view
from support.errors import InputError
from test_video import write
from training.run import judge_unreadable

SEED = 1                                               # starts with the first sentence
TEXT = "word " * 12                                    # a sentence that is not joined with others


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
    paths = find_videos(folder)
    source = VideoSource([Video("b"), Video("a")], paths, View(32, 2), 4)
    requests = [(1, np.array([[0.0, 2.0], [1.0, 3.0]])), (0, np.array([[6.0, 9.0]]))]
    loaded = source.load(requests, rng)
    assert loaded.clips.shape == (3, 2, 3, 32, 32) and loaded.failed == {}
    assert loaded.views.shape == (3, 2, 3, 4, 4) and loaded.views.dtype == torch.uint8
    for row, (name, window) in enumerate([("a", [0, 2]), ("a", [1, 3]), ("b", [6, 9])]):
        clip = read_frames(paths[name], frame_times([window], 2)[0], short_side_for(32))
        assert torch.equal(loaded.clips[row], evaluation_view(clip, 32) if rng is None
                           else training_view(clip, 32, same))
        assert torch.equal(loaded.views[row], evaluation_view(clip, 4))


def test_the_absent_and_the_unreadable_are_named(folder):
    """Catches: another video in place of a broken one; a reason lost; an end by one bad file;
    scores of the rest, if times are in other units."""
    listed = [Video(name) for name in ("bad", "gone", "a", "short")]
    source = VideoSource(listed, find_videos(folder), View(32, 2))
    assert [video.name for video in source.videos] == ["bad", "a", "short"]
    assert source.listed == listed and source.absent == ["gone"]
    now, later = np.array([[0.0, 2.0]]), np.array([[3000.0, 4000.0]])                 # ms
    loaded = source.load([(0, now), (1, now), (2, later)])
    assert loaded.requests == [(1, now)] and len(loaded.clips) == 1 and len(loaded.views) == 0
    assert list(loaded.failed) == ["bad", "short"] and "ends 3" in loaded.failed["short"]
    assert "bad.mp4: cannot be read" in loaded.failed["bad"]
    assert len(source.load([(0, now)]).clips) == 0
    source.unreadable |= loaded.failed
    require_readable(source, 0.7)
    with pytest.raises(InputError, match="2 of 3 videos.*--max-unreadable 0.05; .*times must be"):
        require_readable(source, 0.05)


def test_no_file_matches_the_list(folder):
    """Catches: a run without videos; an error that does not show how the names differ."""
    (folder / "ids.txt").write_text("v_one\nv_two\n")
    for captions in (None, folder):
        with pytest.raises(InputError, match="the 2 listed videos.*'v_one', a file is '[a-z]+'"):
            open_folder(folder, captions, folder / "ids.txt", View(32, 2))
    source = open_folder(folder, None, None, View(32, 2))
    assert [video.name for video in source.videos] == ["a", "b", "bad", "short"]
    (folder / "ids.txt").write_text("a.mp4\nshort\n")
    (folder / "short.csv").unlink()                    # without a narration
    source = open_folder(folder, folder, folder / "ids.txt", View(32, 2))
    assert [video.name for video in source.videos] == ["a"] and source.absent == ["short"]


def test_windows_of_narrations(folder):
    """Catches: a bad caption file that ends the run, or is not counted; a window after the end of
    the video; a video that is shorter than a clip refused."""
    source = open_folder(folder, folder, None, View(32, 2))
    assert len(source.videos) == 4 and source.absent == ["gone"]
    windows = [source.pretrain_windows(i, np.random.default_rng(SEED)) for i in range(4)]
    sentences = Captions(folder).sentences("a")[:2]    # the third begins after the video
    same = sentence_windows(sentences, 4.0, np.random.default_rng(SEED))
    assert np.array_equal(windows[0], same)
    assert windows[1].shape == windows[2].shape == (0, 2)
    assert windows[3].tolist() == [[0, 3]]
    loaded = source.load([(0, windows[0]), (3, windows[3])])
    assert len(loaded.clips) == 2 and list(loaded.failed) == ["b", "bad"]
    assert "b.csv:2: " in loaded.failed["b"] and "bad.mp4: " in loaded.failed["bad"]
    args = SimpleNamespace(out=folder, max_unreadable=0.05)
    source.unreadable |= loaded.failed                 # also without worker processes
    with pytest.raises(InputError, match="2 of 4 videos are unreadable"):
        judge_unreadable(source, args)
    assert read_json(folder / "unreadable.json") == loaded.failed


def test_captions_in_other_units_are_unreadable(folder):
    """Catches: training on the first sentence of each video, since all others seem to be later."""
    rows = "".join(f"{4000 * i},{4000 * i + 3000},and then we stir it\n" for i in range(3))
    (folder / "a.csv").write_text(f"start,end,text\n{rows}")
    source = open_folder(folder, folder, None, View(32, 2))
    assert len(source.pretrain_windows(0, np.random.default_rng(SEED))) == 0
    assert "1 of 3 captions begin before the video ends" in source.skipped["a"]
