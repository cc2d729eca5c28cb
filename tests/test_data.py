"""data.py: windows and examples against slow versions; files/folder.py: clips of real files."""
from argparse import Namespace
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_video import write

import data
from data import UNKNOWN, Example, NarratedVideos, Pictures, Step, Unreadable, Video
from files.captions import Captions
from files.folder import VideoFolder
from files.video import evaluation_crop, read_frames, short_side_for, training_crop
from sources import choose, list_narrated
from support.encode import LabeledExamples
from support.errors import InputError, require_readable
from support.workers import read_ahead

FIRST = SimpleNamespace(integers=lambda high: 0)       # a Generator that draws the lowest number


def say(*counts):
    """Sentences of so many words, one each 10 s, 6 s long."""
    return [(10. * i, 10. * i + 6, "word " * count) for i, count in enumerate(counts)]


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_sentence_windows_are_nine_seconds_around_every_so_many_sentences(stride):
    """Catches: another stride, always the same sentences; a window that is not 9 s around one."""
    rng, firsts = np.random.default_rng(0), Counter()
    for _ in range(300):
        windows = data.sentence_windows(say(*[12] * 11), 200.0, rng, stride)
        first = int(windows[0, 1] / 10)                # its middle is at 3 + 10 i, or later
        expected = [(max(10 * i - 1.5, 0), max(10 * i + 7.5, 9)) for i in range(first, 11, stride)]
        assert windows.dtype == np.float64 and np.allclose(windows, expected)
        firsts[first] += 1
    assert sorted(firsts) == [*range(stride)] and min(firsts.values()) > 70
    ends = [(0, 2, "a " * 12), (38, 44, "a " * 12)]
    assert data.sentence_windows(ends, 40.0, FIRST, 1).tolist() == [[0, 9], [31, 40]]
    assert data.sentence_windows(ends[:1], 5.0, rng, stride).tolist() == [[0, 5]]
    assert data.sentence_windows([], 100.0, rng, stride).shape == (0, 2)


@pytest.mark.parametrize("counts, expected", [
    ((12, 12, 11, 1, 12), [4.5, 28, 43]),                        # with the next: 12 words, enough
    ((12, 1, 10, 1, 12), [4.5, 23, 43]),                         # the next, then the one before
    ((5, 1, 9, 1, 12), [13, 28, 43]),                            # and the next but one
    ((1, 1, 1, 1, 1), [23, 23, 23]), ((9, 5, 1), [8, 13])])      # everything there is; at the end
def test_short_sentences_are_joined_until_twelve_words(counts, expected):
    """Catches: one sentence too many or too few; at 3 + 10 i sentence i alone is seen."""
    assert data.sentence_windows(say(*counts), 1000.0, FIRST).mean(1).tolist() == expected


def test_nine_consecutive_clips_or_some_of_fewer_repeated():
    """Catches: a first clip never drawn; of a short video a clip left out, or one repeated."""
    rng, windows = np.random.default_rng(0), np.array([(10. * i, 10. * i + 3) for i in range(12)])
    taken = [data.consecutive(windows, rng) for _ in range(400)]
    first = Counter(int(nine[0, 0] / 10) for nine in taken)
    assert sorted(first) == [0, 1, 2, 3] and min(first.values()) > 70
    assert all(np.array_equal(nine[:, 0], nine[0, 0] + 10 * np.arange(9)) for nine in taken)
    for n in range(1, 10):
        found = (data.consecutive(windows[:n], rng)[:, 0] / 10).astype(int).tolist()
        counts = Counter(found).values()
        assert len(found) == 9 and found == sorted(found) and {*found} == {*range(n)}
        assert max(counts) - min(counts) <= 2
    assert data.consecutive(windows[:0], rng).shape == (0, 2)    # such a video is unreadable


# --- Windows of the tasks, and their examples ---
@pytest.mark.parametrize("end, spacing, begin, n", [
    (100., None, 32., 8), (20., None, 0., 8), (100., 10., 20., 8), (43., 10., 3., 4),
    (38., 10., 0., 4), (3., 10., 0., 1)])
def test_a_history_is_cut_by_the_spacing_or_by_the_release(end, spacing, begin, n):
    """Catches: more than eight windows, time after the end; another protocol than the release's."""
    part = (end - begin) / n
    expected = [(begin + i * part, begin + (i + 1) * part) for i in range(n)]
    assert np.allclose(data.history_windows(end, spacing), expected)


def test_windows_and_frames_are_spread_evenly():
    """Catches: views that miss a step's ends; frames at a clip's edges, or beyond its middle."""
    assert data.classify_windows(10, 40, 100, 3).tolist() == [[10, 19], [20.5, 29.5], [31, 40]]
    assert data.classify_windows(10, 40, 100, 1).tolist() == [[20.5, 29.5]]
    assert data.classify_windows(10, 12, 100, 3).tolist() == [[6.5, 15.5]] * 3     # centered
    assert data.classify_windows(1, 4, 5, 2).tolist() == [[0, 5]] * 2              # a short video
    assert data.frame_times([(0, 1), (5, 5)], 2).tolist() == [[.25, .75], [5, 5]]
    assert data.frame_times([], 4).shape == (0, 4)
    assert data.frame_times([(0, 10), (1, 3)], 2, seconds=4).tolist() == [[4, 6], [1.5, 2.5]]


def video(*segments, duration=None):
    """A video of steps (start s, end s, label)."""
    return Video("v", "train", 7, duration, tuple(Step(*segment) for segment in segments))


def test_forecast_examples_are_consecutive_pairs():
    """Catches: the observed step as the label, or the answer seen; the last left out."""
    videos = [video((0, 5, 7)), video((0, 10, 1), (12, 90, 2), (95, 99, 1)),
              video((0, 0, 4), (0, 0, 5), (3, 8, 6)), video((5, 30, 1), (12, 20, 2), (25, 28, 3))]
    rows = [(s.video, s.label, s.step, s.windows[0, 0], s.windows[-1, 1])
            for s in data.forecast_examples(videos)]
    assert rows == [(1, 2, 1, 0, 10), (1, 1, 2, 22, 90),         # of video 2 nothing is observed
                    (3, 2, 1, 0, 12), (3, 3, 2, 0, 20)]          # step 2 begins while 1 goes on
    found = data.forecast_examples(videos, spacing=20, min_steps=3)
    assert [(s.video, len(s.windows)) for s in found] == [(1, 1), (1, 4), (3, 1), (3, 1)]
    assert data.forecast_examples(videos, min_steps=4) == []


def test_a_step_without_a_class_is_not_asked_for():
    """Catches: a step that is no candidate as an answer; one that is not observed, either."""
    videos = [video((0, 10, 1), (12, 20, UNKNOWN), (22, 30, 2))]
    assert [(s.label, s.step) for s in data.classify_examples(videos)] == [(1, 0), (2, 2)]
    assert [(s.label, s.step, s.windows[-1, 1]) for s in data.forecast_examples(videos)] == [
        (2, 2, 20)]


def test_classify_and_activity_examples_are_all_steps_and_whole_videos():
    """Catches: a step lost, a window beyond the video; the last 68 s of an activity."""
    videos = [video((0, 5, 7)), video((0, 10, 1), (20, 22, 2), duration=24.0)]
    examples = data.classify_examples(videos)
    assert [(s.video, s.label, s.step, s.windows.shape) for s in examples] == [
        (0, 7, 0, (3, 2)), (1, 1, 0, (3, 2)), (1, 2, 1, (3, 2))]
    assert examples[2].windows.tolist() == [[15, 24]] * 3
    videos = [Video("a", activity=17, duration=240.0), video((1, 2, 0), (3, 30, 1))]
    examples = data.activity_examples(videos)
    assert [(s.video, s.label) for s in examples] == [(0, 17), (1, 7)]
    for example, end in zip(examples, (240, 30)):
        edges = np.linspace(0, end, 9)
        assert np.allclose(example.windows, np.stack([edges[:-1], edges[1:]], 1))


# --- files/folder.py ---
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


def narrated(folder, skip=()):
    """The narrated videos of a folder, opened."""
    source = list_narrated(Namespace(data="howto100m", videos=folder, captions=folder, ids=None,
                                     skip=skip))
    source.open(PICTURES, None)
    return source


def opened(folder, *names, seen=None):
    """Videos of a folder, without narrations. seen: the side of the teacher's pictures."""
    source = VideoFolder(Namespace(videos=folder))
    choose(source, [Video(name) for name in names])
    source.open(PICTURES, seen and SimpleNamespace(size=seen))
    return source


@pytest.mark.parametrize("seed", [None, 3])
def test_clips_are_those_of_their_windows_and_videos(folder, seed):
    """Catches: clips of another window or video, pictures of other frames, a crop drawn twice."""
    rng, same = (seed and np.random.default_rng(seed) for _ in range(2))
    source = opened(folder, "b", "a", seen=4)
    for i, name, windows in ((1, "a", [[0.0, 2.0], [1.0, 3.0]]), (0, "b", [[6.0, 9.0]])):
        clips, seen = source.clips(i, np.array(windows), rng)
        assert len(clips) == len(seen) == len(windows)
        for row, times in enumerate(data.frame_times(windows, 2)):
            clip = read_frames(folder / f"{name}.mp4", times, short_side_for(32))
            assert torch.equal(clips[row], evaluation_crop(clip, 32) if rng is None
                               else training_crop(clip, 32, same))
            assert torch.equal(seen[row], evaluation_crop(clip, 4))


def test_the_first_narrations_are_judged_before_a_video_is_read(folder, monkeypatch):
    """Catches: bad captions found hours later; a silent video counted as a bad one; a narration of
    --skip opened; all narrations read at the start."""
    (folder / "short.csv").write_text("start,end,text\n0,1,[Music]\n")       # and b is bad
    told = "first 4 narrations, 2 have words and 1 cannot be read; .* is 0.2; .*b.csv:2: "
    with pytest.raises(Unreadable, match=told):
        data.clip_distance(narrated(folder), 1, 0.2)
    assert data.clip_distance(narrated(folder), 1, 0.25) == 15.25  # of a: at 4.5, 4.5 and 35 s
    assert data.clip_distance(narrated(folder, skip=["b"]), 1, 0.0) == 15.25
    monkeypatch.setattr(data, "MEASURED", 1)
    assert data.clip_distance(narrated(folder), 1, 0.0) == 15.25
    (folder / "a.csv").write_text("start,end,text\n0,1,[Music]\n")
    with pytest.raises(Unreadable, match="0 have words .* nothing is said"):
        data.clip_distance(narrated(folder), 1, 1.0)


def test_videos_of_skip_keep_their_place_and_are_never_opened(folder, monkeypatch):
    """Catches: other items of a resumed run for the same videos; a video opened that crashes."""
    source = narrated(folder, skip=["b.mp4"])
    names = [video.name for video in source.videos]
    assert names == [video.name for video in narrated(folder).videos] == ["a", "b", "bad", "short"]
    assert source.left_out == {"gone": ("absent", "no file, or no narration"),
                               "b": ("skipped", "left out by --skip")}
    for name in "narration", "duration", "clips":
        monkeypatch.setattr(VideoFolder, name, lambda *args: pytest.fail("opened"))
    with read_ahead(NarratedVideos(source, 1), [(0, 1, 5)], 0) as reads:
        found, = reads
    assert (found.name, found.place, found.left_out) == ("b", 5, True) and found.failed
    with pytest.raises(InputError, match="--skip nobody: not among"):
        narrated(folder, skip=["nobody"])


def test_a_narration_may_run_on_for_as_long_again():
    """Catches: half of the sentences after the end refused, or more than half accepted; one that
    begins as the video ends."""
    said = [(0.0, 1.0, "a"), (4.0, 9.0, "b"), (5.0, 6.0, "c"), (7.0, 8.0, "d")]
    assert data.sentences_before(said, 5.0) == said[:2]
    with pytest.raises(Unreadable, match="^1 of 4 captions begin before"):
        data.sentences_before(said, 4.0)


def test_windows_of_narrations(folder):
    """Catches: a window after the end; times in ms; a short video refused; a traceback
    for a narration that is bad; a reason that is lost, or of another video; a video without
    words counted as one that failed."""
    source, asked = narrated(folder), []
    names, read = [video.name for video in source.videos], source.clips
    source.clips = lambda i, windows, rng: asked.append(windows) or read(i, windows, rng)
    for name, rows, reason in (
            ("a", None, None), ("bad", None, "bad.mp4: cannot be read"),
            ("short", "0,9,a\n1500,1600,b\n2500,2600,c", "1 of 3 captions begin before the video"),
            ("short", "0,x,a", "short.csv:2: "), ("short", "0,1,[Music]", "no words"),
            ("short", f"0,2.5,{TEXT}", None)):
        if rows:
            (folder / "short.csv").write_text(f"start,end,text\n{rows}\n")
        item = 0, names.index(name), 5
        with read_ahead(NarratedVideos(source, 1, stride=1), [item], 0) as reads:
            found, = reads
        assert (found.name, found.place) == (name, 5)
        assert reason in found.failed if reason else found.clips.shape == (9, 2, 3, 32, 32), name
        assert found.left_out == (reason == "no words")
        if name == "a":                                # its third sentence begins after the video
            said = data.sentence_windows(source.narration(0)[:2], 4.0, np.random.default_rng(0), 1)
            assert np.array_equal(asked[0][[0, 8]], said)
    assert len(asked) == 2 and asked[1].tolist() == [[0, 3]] * 9
    (folder / "short.csv").unlink()
    with read_ahead(NarratedVideos(source, 1), [item], 0) as reads:
        found, = reads
    assert "short.csv" in found.failed and not found.left_out


def test_a_video_is_unreadable_after_three_failures(folder, monkeypatch):
    """Catches: an error of a network that passes taken for a broken file; a file tried for ever."""
    source, left = opened(folder, "a"), []

    def read_some(*args):
        if left:
            raise Unreadable(left.pop())
        return read_frames(*args)
    monkeypatch.setattr(VideoFolder, "pictures_of", staticmethod(read_some))
    examples = LabeledExamples(source, [Example(0, np.array([[0.0, 2.0]]), 0, 0)])
    for failures, reason in (2, None), (3, "no answer"):
        left += ["no answer"] * failures
        with read_ahead(examples, [(0, 0, 0)], 0) as reads:
            found, = reads
        assert found.failed == reason and not left
    assert found.clips is None


def test_a_folder_of_captions_is_listed_without_opening_a_file(tmp_path):
    """Catches: a start that looks at each of a million files, or fails for one of them."""
    for name in range(2000):
        (tmp_path / f"{name}.csv").symlink_to("nowhere")
    assert len(Captions(tmp_path)) == 2000


def test_a_share_of_unreadable_videos():
    """Catches: a share that is allowed refused, one above it passed, none left passed."""
    wrong = {"v3": "cut off", "v4": "cut off"}
    require_readable(wrong, 10, 0.2)
    with pytest.raises(InputError, match="^2 of 10 videos .* 0.19; .*; the first, v3: cut off$"):
        require_readable(wrong, 10, 0.19)
    for failed in wrong, {}:
        with pytest.raises(InputError, match="^. of . videos"):
            require_readable(failed, len(failed), 1.0)
