"""files/sources.py: clips of listed videos, from real files; what is absent or unreadable."""
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from data import NarratedVideos, Pictures, Unreadable, Video, frame_times, sentence_windows
from files.sources import VideoSource, open_folder
from files.video import (evaluation_crop, find_videos, read_frames, short_side_for,
                         training_crop)
from support.errors import InputError, require_readable
from test_video import write

TEXT = "word " * 12                                    # a sentence that is not joined with others
PICTURES = Pictures(32, 2)


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
    """Catches: clips of another window or video, pictures of other frames, a crop drawn twice."""
    rng, same = (seed and np.random.default_rng(seed) for _ in range(2))
    paths = find_videos(folder)
    source = VideoSource([Video("b"), Video("a")], paths, PICTURES, SimpleNamespace(size=4))
    for i, name, windows in ((1, "a", [[0.0, 2.0], [1.0, 3.0]]), (0, "b", [[6.0, 9.0]])):
        clips, seen = source.clips(i, np.array(windows), rng)
        assert len(clips) == len(seen) == len(windows)
        for row, times in enumerate(frame_times(windows, 2)):
            clip = read_frames(paths[name], times, short_side_for(32))
            assert torch.equal(clips[row], evaluation_crop(clip, 32) if rng is None
                               else training_crop(clip, 32, same))
            assert torch.equal(seen[row], evaluation_crop(clip, 4))


def test_narrations_are_judged_before_a_video_is_read(folder, capsys):
    """Catches: a narration at fault, or without words, that is found in training alone, or left out
    in silence; a share that counts other videos, or a skipped one; a list of ids ignored."""
    (folder / "short.csv").write_text("start,end,text\n0,1,[Music]\n")
    told = "4 narrations, 1 without words, 1 unreadable"
    with pytest.raises(InputError, match=rf"{told}: more than .* 0.2, .*b\.csv:2: "):
        open_folder(folder, folder, None, PICTURES, max_unreadable=0.2)
    for source in (open_folder(folder, folder, None, PICTURES, skip=["b"], max_unreadable=0),
                   open_folder(folder, folder, None, PICTURES, max_unreadable=0.25)):
        assert [video.name for video in source.videos] == ["a", "bad"]
        assert {name: kind for name, (kind, _) in source.left_out.items()} == {
            "b": "captions", "short": "silent", "gone": "absent"}
    assert told in capsys.readouterr().out
    with pytest.raises(InputError, match="--skip nobody: not among"):
        open_folder(folder, folder, None, PICTURES, skip=["nobody"])
    (folder / "ids.txt").write_text("short.mp4\n")
    with pytest.raises(InputError, match="1 narrations, 1 without words"):
        open_folder(folder, folder, folder / "ids.txt", PICTURES)


def test_windows_of_narrations(folder):
    """Catches: a window after the end of the video; times in ms; a video that is shorter than a
    clip refused; a narration that is no longer there, or without words, as a traceback; a reason
    that is lost, or of another video."""
    source, asked = open_folder(folder, folder, None, PICTURES, max_unreadable=0.25), []
    names, read = [video.name for video in source.videos], source.clips
    source.clips = lambda i, windows, rng: asked.append(windows) or read(i, windows, rng)
    for name, rows, reason in (
            ("a", None, None), ("bad", None, "bad.mp4: cannot be read"),
            ("short", "0,9,a\n1500,1600,b\n2500,2600,c", "1 of 3 captions begin before the video"),
            ("short", "0,x,a", "short.csv:2: "), ("short", "0,1,[Music]", "0 of 0 captions"),
            ("short", f"0,2.5,{TEXT}", None)):
        if rows:
            (folder / "short.csv").write_text(f"start,end,text\n{rows}\n")
        found = NarratedVideos(source, 1, stride=1)[0, names.index(name), 5]
        assert (found.name, found.place) == (name, 5)
        assert reason in found.failed if reason else found.clips.shape == (9, 2, 3, 32, 32), name
        if name == "a":                                # its third sentence begins after the video
            said = sentence_windows(source.narration(0)[:2], 4.0, np.random.default_rng(0), 1)
            assert np.array_equal(asked[0][[0, 8]], said)
    assert len(asked) == 2 and asked[1].tolist() == [[0, 3]] * 9


@pytest.mark.parametrize("failures", [2, 3])
def test_a_video_is_unreadable_after_three_failures(folder, failures):
    """Catches: an error of a network that passes taken for a broken file; a file tried for ever."""
    source, left = VideoSource([Video("a")], find_videos(folder), PICTURES), [None] * failures

    def read_some(*args):
        if left:
            left.pop()
            raise Unreadable("no answer")
        return read_frames(*args)
    source.pictures_of, windows = read_some, np.array([[0.0, 2.0]])
    if failures == 2:
        assert source.clips(0, windows)[0].shape == (1, 2, 3, 32, 32)
    else:
        with pytest.raises(Unreadable, match="no answer"):
            source.clips(0, windows)
    assert not left


def test_a_share_of_unreadable_videos_counts_ids():
    """Catches: a video that a released csv lists once for each of its steps counted as often, so
    that two of ten are 4 %; a skipped one that is judged; all unreadable taken for enough."""
    videos = [Video(f"v{i}") for i in range(11) for _ in range(5)]
    source = SimpleNamespace(videos=videos, left_out={"v10": ("skipped", "by --skip")})
    wrong = {"v3": "cut off", "v4": "cut off", "v10": "by --skip"}
    require_readable(source, wrong, 0.2)
    with pytest.raises(InputError, match="^2 of 10 videos .* 0.19; .*; the first, v3: cut off$"):
        require_readable(source, wrong, 0.19)
    with pytest.raises(InputError, match="^10 of 10 videos"):
        require_readable(source, {video.name: "" for video in videos}, 1.0)
