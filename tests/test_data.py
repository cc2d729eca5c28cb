"""data.py, tasks.py: each protocol against a slow, obvious version; both sources; counts on the real COIN.

The real file is not part of this project; its tests are skipped where it is absent.
"""
import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import data  # noqa: E402
from training import cache  # noqa: E402
import protocols  # noqa: E402
import tasks  # noqa: E402
from toy import grammar  # noqa: E402
from toy import render  # noqa: E402
from files.annotations import AnnotatedVideo, FeaturesFile, Step, load_coin  # noqa: E402
from commands import make_teacher  # noqa: E402
from support.command import BadInput  # noqa: E402

COIN = ROOT.parent / "shared" / "coin" / "COIN_dev.json"


class First:
    """In place of a numpy Generator: always the lowest number."""

    def integers(self, high):
        assert high >= 1
        return 0


def say(*counts, every=10.0):
    """Sentences of so many words, one each 10 s, 6 s long."""
    return [(every * i, every * i + 6, "word " * count) for i, count in enumerate(counts)]


def at_9s(start, end, duration):
    """9 s with the same middle, moved into the video: the obvious version."""
    first, last = (start + end) / 2 - 4.5, (start + end) / 2 + 4.5
    if first < 0:
        first, last = 0, 9
    if last > duration:
        first, last = duration - 9, duration
    return max(first, 0), min(last, duration)


# ---- pre-training windows ----------------------------------------------------------------------
def test_long_sentences_are_every_second_one():
    """Catches: a stride of 1, a window that is not centred on its sentence, or not 9 s."""
    sentences = say(*[12] * 11)
    windows = protocols.sentence_windows(sentences, 200.0, First())
    expected = [at_9s(s, e, 200.0) for s, e, _ in sentences[::2]]
    assert windows.dtype == np.float64 and np.allclose(windows, expected)
    assert np.allclose(windows[:, 1] - windows[:, 0], 9)


def test_short_sentences_are_joined_until_twelve_words():
    """Catches: joined with one side only, one too many or too few, the span not grown.

    The span is seen in the window's middle: 3 + 10 i for sentence i alone.
    """
    def middles(*counts):
        return protocols.sentence_windows(say(*counts), 1000.0, First()).mean(1).tolist()[1:]
    assert middles(12, 12, 12, 12, 12) == [23, 43]
    assert middles(12, 12, 11, 1, 12) == [28, 43]                # with the next: 12 words, enough
    assert middles(12, 1, 10, 1, 12) == [23, 43]                 # the next, then the one before
    assert middles(5, 1, 9, 1, 12) == [28, 43]                   # and the next but one
    assert middles(1, 1, 1, 1, 1) == [23, 23]                    # everything there is
    assert middles(9, 5, 1) == [13]                                 # at the end: only those before
    first = protocols.sentence_windows(say(1, 5, 9, 12), 1000.0, First()).mean(1)[0]
    assert first == 13                                           # at the start: only those after


def test_windows_stay_within_the_video():
    """Catches: frames asked for before 0 s or after the end; a window cut where it could move."""
    windows = protocols.sentence_windows([(0, 2, "a " * 12), (5, 6, "a " * 12),
                                          (38, 44, "a " * 12)], 40.0, First())
    assert windows.tolist() == [[0, 9], [31, 40]]
    assert protocols.sentence_windows([(1, 3, "a " * 12)], 5.0, First()).tolist() == [[0, 5]]


def test_sentences_without_words_are_not_there():
    """Catches: music ("", spaces) that takes a clip, or breaks the stride."""
    spoken = say(12, 12, 12, 12)
    silent = [spoken[0], (7, 8, "  "), *spoken[1:3], (27, 29, ""), spoken[3]]
    same = [protocols.sentence_windows(s, 100.0, First()).tolist() for s in (spoken, silent)]
    assert same[0] == same[1]
    for nothing in ([], [(0, 4, " ")]):
        empty = protocols.sentence_windows(nothing, 100.0, np.random.default_rng(0))
        assert empty.shape == (0, 2)
    one = protocols.sentence_windows(say(1), 100.0, np.random.default_rng(0))
    assert one.tolist() == [[0, 9]]


def test_what_is_said_in_a_window_by_loops():
    """Catches: a sentence of the next window, none where the middle of none lies in it, the mean
    over all sentences in place of those heard."""
    sentences = [(0, 4, "a"), (3, 5, "b"), (20, 30, "c")]                # middles 2, 4, 25
    windows = np.array([[0, 9], [3, 9], [9, 16], [15, 24], [2, 25]], float)
    assert protocols.said_during(sentences, windows).tolist() == [
        [.5, .5, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [1 / 3, 1 / 3, 1 / 3]]
    assert protocols.said_during([], windows).shape == (5, 0)


def test_targets_are_of_frames_of_words_or_of_both():
    """Catches: words of another video or window, features that are not of length 1 before their
    mean, silence that is not a number, the wrong one of the three."""
    said = {0: [(0, 4, "one"), (10, 14, "two")], 1: [], 2: [(0, 9, "three")]}
    word = dict(zip(("one", "two", "three"), torch.eye(4)))
    source = SimpleNamespace(
        sentences=said.get, teach=lambda looks: looks, teacher=SimpleNamespace(
            encode_sentences=lambda texts: torch.stack([word[text] for text in texts])))
    requests = [(0, np.array([[0., 9], [9, 18], [0, 18]])), (1, np.array([[0., 9]])),
                (2, np.array([[0., 9]]))]
    looks = 3 * torch.eye(4)[[3, 3, 3, 3, 2]]
    loaded = data.Loaded(requests, None, looks, {})
    heard = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0], [.5 ** .5, .5 ** .5, 0, 0], [0, 0, 0, 0],
                          [0, 0, 1, 0]])
    assert torch.equal(cache.teach(source, loaded), looks)
    torch.testing.assert_close(cache.teach(source, loaded, "narration"), heard)
    torch.testing.assert_close(cache.teach(source, loaded, "both"), (looks / 3 + heard) / 2)


def test_a_kept_world_is_rendered_once(monkeypatch):
    """Catches: a source of another split or size, features that are wanted and not there, videos
    that a single command keeps in memory."""
    made = []
    monkeypatch.setattr(data, "ToySource", lambda *args: made.append(args) or
                        SimpleNamespace(teacher=args[-1]))
    monkeypatch.setattr(data, "toy_teacher", lambda device: "teacher")
    data.open_toy("test", 3, 4, False, "cpu"), data.open_toy("test", 3, 4, False, "cpu")
    assert made == 2 * [("test", 3, 4, None)]
    monkeypatch.setattr(data, "KEPT", {})
    del made[:]
    for teach, split in ((False, "test"), (True, "test"), (False, "test"), (False, "train")):
        source = data.open_toy(split, 3, 4, teach, "cpu")
        assert source.teacher == ("teacher" if split == "test" and made[1:] else None)
    assert made == [("test", 3, 4, None), ("test", 3, 4, "teacher"), ("train", 3, 4, None)]


def test_at_most_nine_consecutive_windows_uniformly():
    """Catches: the same nine each time, clips picked with holes, the last run never drawn."""
    sentences, rng = say(*[12] * 25)[1:], np.random.default_rng(0)         # from 10 s on
    runs = Counter()
    for _ in range(1600):
        middles = protocols.sentence_windows(sentences, 1000.0, rng).mean(1)
        assert len(middles) == 9 and np.allclose(np.diff(middles), 20)     # every second
        runs[round((middles[0] - 13) / 10)] += 1
    assert sorted(runs) == list(range(8))              # first sentence 0 or 1, run 0 to 3
    assert min(runs.values()) > 140 and max(runs.values()) < 260     # 200 each; std 13
    assert len(protocols.sentence_windows(say(*[12] * 10), 1000.0, rng)) == 5     # fewer: all kept


def test_step_windows_are_a_uniform_run_of_the_segments():
    """Catches: segments shuffled, resampled or cut; the last run never drawn."""
    segments, rng = [(10.0 * i, 10.0 * i + 3) for i in range(12)], np.random.default_rng(0)
    runs = Counter()
    for _ in range(800):
        windows = protocols.step_windows(segments, rng)
        first = int(windows[0, 0] / 10)
        assert windows.tolist() == [list(s) for s in segments[first:first + 9]]
        runs[first] += 1
    assert sorted(runs) == [0, 1, 2, 3] and min(runs.values()) > 150
    assert protocols.step_windows(segments[:4], rng).tolist() == [list(s) for s in segments[:4]]
    assert protocols.step_windows([], rng).shape == (0, 2)


# ---- windows of the two tasks ------------------------------------------------------------------
@pytest.mark.parametrize("end, begin", [(100.0, 32.0), (68.0, 0.0), (20.0, 0.0), (68.5, 0.5)])
def test_forecast_windows_are_eighths_of_the_last_68_seconds(end, begin):
    """Catches: the last 64 s, padding where the history is shorter, frames after the step's end."""
    windows = protocols.forecast_windows(end)
    part = (end - begin) / 8
    expected = [(begin + i * part, begin + (i + 1) * part) for i in range(8)]
    assert windows.shape == (8, 2) and np.allclose(windows, expected)
    assert windows.max() == end
    ends = np.array([[end, 5.], [90., end]])
    many = protocols.forecast_windows(ends)
    assert many.shape == (2, 2, 8, 2)
    for place in np.ndindex(2, 2):
        assert np.array_equal(many[place], protocols.forecast_windows(ends[place]))


def test_classify_windows_spread_over_the_step():
    """Catches: views that leave a long step, that do not touch its ends, or miss its middle."""
    assert protocols.classify_windows(10, 40, 100, 3).tolist() == [[10, 19], [20.5, 29.5], [31, 40]]
    assert protocols.classify_windows(10, 40, 100, 1).tolist() == [[20.5, 29.5]]
    assert protocols.classify_windows(10, 19, 100, 3).tolist() == [[10, 19]] * 3
    assert protocols.classify_windows(10, 12, 100, 3).tolist() == [[6.5, 15.5]] * 3   # centred
    assert protocols.classify_windows(0, 2, 100, 3).tolist() == [[0, 9]] * 3          # inside
    assert protocols.classify_windows(1, 4, 5, 2).tolist() == [[0, 5]] * 2         # a short video


def test_frame_times_are_middles_of_equal_parts():
    """Catches: frames at the edges of a clip, which two neighbouring clips would share."""
    assert protocols.frame_times([(10, 18)], 4).tolist() == [[11, 13, 15, 17]]
    assert protocols.frame_times([(0, 1), (5, 5)], 2).tolist() == [[.25, .75], [5, 5]]
    assert protocols.frame_times([], 4).shape == (0, 4)


# ---- the embedded world ------------------------------------------------------------------------
@pytest.fixture(scope="module")
def source():
    """Three videos; the "teacher" of a frame is its mean, minimum and maximum."""
    def features(frames):
        flat = frames.flatten(1).float()
        return torch.stack([flat.mean(1), flat.min(1).values, flat.max(1).values], 1)
    return data.ToySource("train", 3, 4, SimpleNamespace(encode_frames=features), progress=False)


def test_frame_index_is_the_nearest_frame(source):
    """Catches: an offset of half a frame, a frame of the neighbouring video, -1 before 0 s."""
    rng = np.random.default_rng(0)
    for video in range(3):
        count = source.first[video + 1] - source.first[video]
        times_of_frames = (np.arange(count) + 0.5) / source.fps
        start = rng.uniform(-5, source.videos[video].duration + 5, 50)
        windows = np.stack([start, start + rng.uniform(0, 20, 50)], 1)
        index = source.frame_index(video, windows).numpy() - source.first[video]
        times = protocols.frame_times(windows, 4)
        distance = np.abs(times[..., None] - times_of_frames)                # (50, 4, count)
        chosen = np.take_along_axis(distance, index[..., None], -1)[..., 0]
        assert np.allclose(chosen, distance.min(-1))


def test_clips_and_teacher_of_the_same_frames(source):
    """Catches: clips of another video or order; a teacher that looked at one frame, or others."""
    requests = [(2, np.array([[10., 26.]])), (0, np.array([[40., 40.], [2., 30.]]))]
    loaded = source.load(requests)
    clips, features = loaded.clips, source.teach(loaded.looks)
    assert [id(request) for request in loaded.requests] == [id(request) for request in requests]
    assert loaded.failed == {} and source.unreadable == {}
    assert clips.shape == (3, 4, 3, 32, 32) and clips.dtype == torch.uint8
    for row, (video, window) in enumerate([(2, (10, 26)), (0, (40, 40)), (0, (2, 30))]):
        total = torch.zeros(3)
        for f in range(4):
            seconds = window[0] + (window[1] - window[0]) * (f + .5) / 4
            frame = source.pixels[int(source.first[video]) + int(seconds * source.fps)]
            assert torch.equal(clips[row, f], frame)
            pixels = frame.float()
            total += torch.stack([pixels.mean(), pixels.min(), pixels.max()])
        assert torch.allclose(features[row], total / 4, atol=1e-3)


def test_toy_source_holds_the_worlds_videos(source):
    """Catches: frames of one video counted to another; windows of another video's narration."""
    from toy import render
    assert len(source) == 3 and source.videos[1] == grammar.make_video("train", 1)
    assert np.array_equal(source.pixels[source.first[1]:source.first[2]].numpy(),
                          render.render(source.videos[1]))
    for video in range(3):
        ours = source.pretrain_windows(video, np.random.default_rng(3))
        same = protocols.sentence_windows(render.narrate(source.videos[video]),
                                     source.videos[video].duration, np.random.default_rng(3))
        assert np.array_equal(ours, same) and 1 <= len(ours) <= 9
        assert ours.min() >= 0 and ours.max() <= source.videos[video].duration


# ---- COIN with a features file -----------------------------------------------------------------
def video(name, *segments, split="train", duration=None):
    return AnnotatedVideo(name, split, 0, duration,
                          tuple(Step(start, end, label) for start, end, label in segments))


def test_feature_source_takes_the_nearest_row_of_its_video():
    """Catches: rows of another video, of the next window, in the file's order instead of time's,
    or nearest to a window's start or end."""
    features = FeaturesFile(np.array(["b", "a", "a", "b"]), np.array([5., 20., 10., 50.]),
                            np.float32([[1, 0], [2, 0], [3, 0], [4, 0]]))
    a, b, gone = video("a", (8, 14, 1)), video("b", (0, 4, 2), (40, 60, 3)), video("c", (1, 2, 0))
    source = data.FeatureSource([gone, a, video("no steps"), b], features)
    assert source.videos == [a, b] and source.missing == ["c"] and len(source) == 2
    assert source.listed == [gone, a, b]
    requests = [(1, np.array([[0., 4.], [40., 60.]])), (0, np.array([[2., 18.], [14., 30.]]))]
    loaded = source.load(requests)
    assert loaded.clips[:, 0].tolist() == [1, 4, 3, 2] and loaded.clips.dtype == torch.float32
    assert torch.equal(source.teach(loaded.looks), loaded.clips)
    assert [id(request) for request in loaded.requests] == [id(request) for request in requests]
    assert loaded.failed == {} and source.unreadable == {}
    rng = np.random.default_rng(0)
    assert source.pretrain_windows(1, rng).tolist() == [[0, 4], [40, 60]]


def write_coin(folder, D=4, classes=3, texts=3, text_D=None, names=("a", "b")):
    """A COIN.json of two videos, features of `names`, texts -> the settings of `open_coin`."""
    steps = [{"id": str(i + 1), "segment": [10. * i, 10. * i + 5], "label": f"step {i}"}
             for i in range(classes)]
    (folder / "COIN.json").write_text(json.dumps({"database": {
        name: {"subset": subset, "recipe_type": 0, "annotation": steps}
        for name, subset in (("a", "training"), ("b", "testing"))}}))
    rows = np.array(names)
    np.savez(folder / "f.npz", video=rows, start=np.zeros(len(rows)), end=np.ones(len(rows)),
             embedding=np.ones((len(rows), D), np.float16))
    np.savez(folder / "t.npz", names=np.array([f"s{i}" for i in range(texts)]),
             embeddings=np.eye(texts, text_D or D, dtype=np.float32) + 1)
    return SimpleNamespace(annotations=folder / "COIN.json", features=folder / "f.npz",
                           text_embeddings=folder / "t.npz")


def test_open_coin_gives_one_split(tmp_path):
    """Catches: test videos in training; embeddings of classes reordered or normalised."""
    given = write_coin(tmp_path)
    for split, name in (("train", "a"), ("test", "b")):
        source, texts = data.open_coin(given, split)
        assert [v.name for v in source.videos] == [name] and source.missing == []
        assert torch.equal(texts, torch.eye(3, 4) + 1)
    assert data.open_coin(given, "train")[0].features is source.features       # read once


@pytest.mark.parametrize("change, named", [
    (dict(D=5, text_D=4), ["f.npz", "width 5", "t.npz", "4"]),
    (dict(texts=2), ["t.npz", "2 classes", "COIN.json", "class 3"]),
    (dict(names=("x", "y")), ["f.npz", "train", "COIN.json"])])
def test_open_coin_refuses_files_that_do_not_fit(tmp_path, change, named):
    """Catches: a shape error from deep inside, class ids off by one, a run over no video."""
    with pytest.raises(BadInput) as error:
        data.open_coin(write_coin(tmp_path, **change), "train")
    assert all(text in str(error.value) for text in named) and "\n" not in str(error.value)


def test_open_coin_without_rows_where_they_are_not_needed(tmp_path):
    """Catches: test videos refused because nobody computed features of the training videos."""
    source, _ = data.open_coin(write_coin(tmp_path, names=("b",)), "train", needed=False)
    assert len(source) == 0 and source.missing == ["a"]


# ---- samples -----------------------------------------------------------------------------------
def test_forecast_samples_are_consecutive_pairs():
    """Catches: the shown step as the label, the last step left out, min_steps counted in pairs."""
    videos = [video("a", (0, 5, 7)), video("b", (0, 10, 1), (12, 90, 2), (95, 99, 1)),
              video("c", (0, 0, 4), (0, 0, 5), (3, 8, 6))]
    found = [(s.video, s.label, s.step, s.windows[0, 0], s.windows[-1, 1])
             for s in tasks.forecast_samples(videos)]
    assert found == [(1, 2, 1, 0, 10), (1, 1, 2, 22, 90)]        # c: nothing shown before 0 s
    assert [s.video for s in tasks.forecast_samples(videos[:2], min_steps=3)] == [1, 1]
    assert tasks.forecast_samples(videos[:2], min_steps=4) == []


def test_classify_samples_are_all_steps():
    """Catches: a step of a one-step video lost, a window beyond a video whose length is known."""
    videos = [video("a", (0, 5, 7)), video("b", (0, 10, 1), (20, 22, 2), duration=24.0)]
    found = [(s.video, s.label, s.step, s.windows.shape) for s in tasks.classify_samples(videos)]
    assert found == [(0, 7, 0, (3, 2)), (1, 1, 0, (3, 2)), (1, 2, 1, (3, 2))]
    assert tasks.classify_samples(videos)[2].windows.tolist() == [[15, 24]] * 3


def test_toy_and_coin_steps_look_alike():
    """Catches: a label's step and segment taken from different lists."""
    world = grammar.make_video("test", 3)
    rows = tasks.steps_of(world)
    assert [row[2] for row in rows] == list(world.steps)
    assert [row[:2] for row in rows] == [tuple(segment) for segment in world.segments]
    assert tasks.steps_of(video("a", (1, 2, 3))) == [(1, 2, 3)]
    assert len(tasks.forecast_samples([world])) == len(rows) - 1


@pytest.mark.skipif(not COIN.is_file(), reason="no shared/coin/COIN_dev.json")
def test_samples_of_the_real_coin():
    """Catches: any pair or step lost: the benchmark's counts are 24,493 pairs and 32,905 steps."""
    videos, _ = load_coin(COIN)
    assert len(tasks.forecast_samples(videos)) == 24_493
    assert len(tasks.classify_samples(videos)) == 32_905
    longer = len(tasks.forecast_samples(videos, min_steps=3))
    assert longer == 24_493 - sum(len(v.steps) == 2 for v in videos)
    assert abs(longer - 22_037) < 0.02 * 22_037        # the released list is about the same


# ---- padding -----------------------------------------------------------------------------------
def test_pad_clips():
    """Catches: clips of one video in another's row; padding that is marked as there; rows of one
    axis, or of three, refused."""
    x = torch.arange(1., 13).view(6, 2).requires_grad_()
    padded, there = data.pad_clips(x, torch.tensor([2, 0, 3, 1]), 3)
    assert there.tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 1], [1, 0, 0]]
    expected = torch.zeros(4, 3, 2)
    expected[0, :2], expected[2], expected[3, 0] = x[:2], x[2:5], x[5]
    assert torch.equal(padded, expected)
    padded.sum().backward()
    assert torch.equal(x.grad, torch.ones(6, 2))       # the encoder learns through it
    flags, _ = data.pad_clips(torch.ones(6, dtype=torch.bool), torch.tensor([2, 0, 3, 1]), 3)
    assert torch.equal(flags, there)
    assert data.pad_clips(torch.ones(6, 2, 5), torch.tensor([2, 4]), 4)[0].shape == (2, 4, 2, 5)


def test_blank_frames_tell_nothing_about_the_next_step():
    """Catches: anything but pixels that reaches the forecast (durations, video length, position of
    the window, the seed): with blank frames no two forecasts may differ, so that the best of them
    is right as often as the most frequent next step, and no oftener."""
    from evaluation.inference import encode_samples, forecasts
    from model import ProcedureModel
    from settings import EvaluateSettings

    teacher = SimpleNamespace(encode_frames=lambda pixels: torch.ones(len(pixels), 8))
    source = data.ToySource("test", 12, 4, teacher, False)
    source.pixels = torch.zeros_like(source.pixels)
    torch.manual_seed(0)
    model = ProcedureModel(torch.randn(20, 8), dict(image=32, patch=8, frames=4, width=16, depth=1,
                                                    heads=2),
                           dict(width=16, layers=1, heads=2), "diffusion", 0.02, (.4, .25)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    samples = tasks.forecast_samples(source.videos)
    x, _, read = encode_samples(model, source, samples, EvaluateSettings(batch=16), "cpu", "blank")
    assert len(read) == len(samples) == len(x)
    zero, _ = forecasts(model, x, torch.randn(40, 8), 1, 0, 16)
    torch.testing.assert_close(zero, zero[:1].expand_as(zero), atol=1e-4, rtol=0)


@pytest.mark.parametrize("kept", ["good", "of another world", "cut off", "absent"])
def test_the_teacher_is_trained_when_it_must_be(cache, tmp_path, monkeypatch):
    """Catches: a teacher of another world than the one that is rendered; a cache that is never
    read, or that ends the program where it was cut off."""
    make_teacher(tmp_path)
    monkeypatch.chdir(tmp_path)
    path, trained, build = data.TEACHER_FILE, [], render.build_teacher
    content = torch.load(path, weights_only=True)
    if kept == "of another world":
        torch.save({**content, "world": "0" * 64}, path)
    elif kept == "cut off":
        path.write_bytes(path.read_bytes()[:1000])
    elif kept == "absent":
        path.unlink()
    monkeypatch.setattr(render, "train_teacher", lambda: trained.append(1) or build())
    data.toy_teacher("cpu")
    assert len(trained) == (kept != "good")
    data.toy_teacher("cpu")
    assert len(trained) == (kept != "good")            # it was kept
