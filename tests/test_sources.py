"""files/sources.py: clips of listed videos, from real files; what is absent or unreadable."""
import numpy as np
import pytest
import torch

from data import Video, View, frame_times, sentence_windows
from files import sources
from files.sources import VideoSource, open_folder
from files.video import (Unreadable, evaluation_view, find_videos, read_frames, short_side_for,
                         training_view)
from support.errors import InputError
from test_video import write

TEXT = "word " * 12                                    # a sentence that is not joined with others
VIEW = View(32, 2)


@pytest.fixture
def folder(tmp_path):
    """Videos a (4 s), b (10 s), bad (no video), short (3 s); narrations of all, and of gone."""
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
    source = VideoSource([Video("b"), Video("a")], paths, VIEW, teacher_size=4)
    requests = [(1, np.array([[0.0, 2.0], [1.0, 3.0]])), (0, np.array([[6.0, 9.0]]))]
    loaded = source.load(requests, rng)
    assert len(loaded.clips) == len(loaded.views) == 3 and loaded.failed == {}
    for row, (name, window) in enumerate([("a", [0, 2]), ("a", [1, 3]), ("b", [6, 9])]):
        clip = read_frames(paths[name], frame_times([window], 2)[0], short_side_for(32))
        assert torch.equal(loaded.clips[row], evaluation_view(clip, 32) if rng is None
                           else training_view(clip, 32, same))
        assert torch.equal(loaded.views[row], evaluation_view(clip, 4))


def test_narrations_are_judged_before_a_video_is_read(folder, capsys):
    """Catches: a narration at fault, or without words, that is found in training alone, or left out
    in silence; a share that counts other videos, or a skipped one; a list of ids ignored."""
    (folder / "short.csv").write_text("start,end,text\n0,1,[Music]\n")
    told = "4 narrations, 1 without words, 1 unreadable"
    with pytest.raises(InputError, match=rf"{told}: more than .* 0.2, .*b\.csv:2: "):
        open_folder(folder, folder, None, VIEW, max_unreadable=0.2)
    for source in (open_folder(folder, folder, None, VIEW, skip=["b"], max_unreadable=0),
                   open_folder(folder, folder, None, VIEW, max_unreadable=0.25)):
        assert [video.name for video in source.videos] == ["a", "bad"]
        assert list(source.wrong_captions) == ["b"] and source.silent == ["short"]
        assert source.absent == ["gone"]
    assert told in capsys.readouterr().out
    with pytest.raises(InputError, match="--skip nobody: not among"):
        open_folder(folder, folder, None, VIEW, skip=["nobody"])
    (folder / "ids.txt").write_text("short.mp4\n")
    with pytest.raises(InputError, match="1 narrations, 1 without words"):
        open_folder(folder, folder, folder / "ids.txt", VIEW)


def test_windows_of_narrations(folder):
    """Catches: a window after the end of the video; times in ms; a video that is shorter than a
    clip refused; a reason that is lost, or told again of another request."""
    source = open_folder(folder, folder, None, VIEW, max_unreadable=0.25)
    for i, (name, rows, reason) in enumerate([
            ("a", None, None), ("bad", None, "bad.mp4: cannot be read"),
            ("short", "0,9,a\n1500,1600,b\n2500,2600,c", "1 of 3 captions begin before the video"),
            ("short", f"0,2.5,{TEXT}", None)]):
        if rows:
            (folder / "short.csv").write_text(f"start,end,text\n{rows}\n")
        windows = source.pretrain_windows(min(i, 2), np.random.default_rng(1), 2)
        loaded = source.load([(min(i, 2), windows)])
        assert (reason or "") in loaded.failed.get(name, "") and bool(loaded.failed) == bool(reason)
        if name == "a":                                # its third sentence begins after the video
            said = source.sentences(0)[:2]
            assert np.array_equal(windows, sentence_windows(said, 4.0, np.random.default_rng(1)))
    assert windows.tolist() == [[0, 3]]


@pytest.mark.parametrize("failures", [2, 3])
def test_a_video_is_unreadable_after_three_failures(folder, monkeypatch, failures):
    """Catches: an error of a network that passes taken for a broken file; a file tried for ever."""
    source = VideoSource([Video("a")], find_videos(folder), VIEW)
    left = [None] * failures

    def read_some(*args):
        if left:
            left.pop()
            raise Unreadable("no answer")
        return read_frames(*args)
    monkeypatch.setattr(sources, "read_frames", read_some)
    loaded = source.load([(0, np.array([[0.0, 2.0]]))])
    assert loaded.failed == ({"a": "no answer"} if failures == 3 else {}) and not left
