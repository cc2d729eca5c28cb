"""predict.py: what is read of a video, the truth next to its futures, the command."""
import json
import shutil
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from commands import call, fails
from data import Sample, Video, forecast_windows, observed_steps, view_of
from evaluation import prediction
from evaluation.prediction import count_futures, observe_toy, rank_next, rank_steps, truth_of
from files.sources import VideoSource
from files.video import Unreadable, duration, read_clips
from predict import predict
from support.command import BadInput, write_json
from test_weights import F, make_ours, published
from toy import grammar, render
from toy.__main__ import ExportSettings, start
from toy.source import ToySource, load_teacher
from weights.checkpoint import load_model, save_checkpoint

REAL = 0.45, 0.225                     # pixels of a checkpoint that was trained on video files
KEYS = ["video", "clips", "next", "futures", "warning"]
NAMES = ["feed the bird", "sing a song", "pour egg", "feed the bird"]
VIDEO, CLIP = "ex/videos/test_00000.mp4", ("--clip", "local-dir:ex/clip")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the exported world in ex/, checkpoints of several kinds, a list of steps."""
    folder = tmp_path_factory.mktemp("predict")
    for name, made in {
            "runs/pretrain": make_ours(pixels=(render.MEAN, render.STD)),
            "real": make_ours(pixels=REAL), "none": make_ours("none", pixels=REAL),
            "mask": make_ours("mask", pixels=REAL), "narrow": make_ours(D=32, pixels=REAL),
            "tuned": make_ours(pixels=REAL, task="forecast", classes=[5]),
            "features": make_ours(encoder=None), "released": published()}.items():
        (folder / name).mkdir(parents=True)
        save_checkpoint(folder / name / "checkpoint.pt", *made)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        start(ExportSettings(out=Path("ex"), train=0, test=1))
    (folder / "own.txt").write_text("\n".join(NAMES) + "\n")
    (folder / "one.txt").write_text("feed the bird\n")
    (folder / "broken.mp4").write_bytes(b"no video")
    return folder


@pytest.fixture(autouse=True)
def in_place(place, monkeypatch):
    """Work in that folder."""
    monkeypatch.chdir(place)


# ---- parts -------------------------------------------------------------------------------------
def test_futures_are_counted_and_steps_ranked():
    """Catches: shares that do not sum to 1, a rank turned round, ties not in the list's order."""
    futures = count_futures(torch.tensor([[0, 1], [2, 2], [2, 2], [1, 0]]), ["a", "b", "c"])
    assert futures == [{"steps": ["c", "c"], "share": 0.5}, {"steps": ["a", "b"], "share": 0.25},
                       {"steps": ["b", "a"], "share": 0.25}]
    rows = rank_steps(torch.tensor([0.25, 0.5, 0.25]), ["a", "b", "c"])
    assert [(row["step"], row["p"]) for row in rows] == [("b", 0.5), ("a", 0.25), ("c", 0.25)]
    rows = rank_next(torch.tensor([0.4, 0.25, 0.35]), torch.tensor([2, 1, 1, 0]), ["a", "b", "c"])
    assert [tuple(row.values()) for row in rows] == [
        ("b", 0.25, 0.5), ("a", pytest.approx(0.4), 0.25), ("c", pytest.approx(0.35), 0.25)]


def observed_toy(number=0, at=None):
    """Test video `number`, as the encoder of runs/pretrain reads it."""
    return observe_toy(number, prediction.open_model("runs/pretrain", "cpu")[0], at, 3)


def test_the_embedded_video_is_read_as_it_is_evaluated():
    """Catches: other frames than evaluate.py takes; another middle; a truth counted one off."""
    source, exact = ToySource("test", 6, F["frames"]), grammar.Grammar()
    for number, video in enumerate(source.videos):
        observed, k = observed_toy(number), max(len(video.steps) - 4, 0)
        windows, truth = observed.windows, truth_of(observed, [])
        assert torch.equal(source.load([(number, windows)]).clips, observed.clips)
        assert observed.pictures.shape == (8, 3, 32, 32) and windows[-1, 1] == video.steps[k].end
        p = exact.next_step(*observed_steps(Sample(0, windows, 0, k + 1), video))
        assert {row["step"]: pytest.approx(row["p"]) for row in truth["next"]} == {
            grammar.STEPS[step]: p[step] for step in np.flatnonzero(p)}
        assert truth["follows"] == [grammar.STEPS[step.label] for step in video.steps[k + 1:]]
        if video.steps[k].start < windows[-1].mean():
            assert truth["clips"][-1] == grammar.STEPS[video.steps[k].label]


def test_any_moment_of_the_embedded_video():
    """Catches: a traceback where nothing was shown yet, or nothing follows."""
    with pytest.raises(BadInput, match="--at"):
        observed_toy(at=1e9)
    futures = [{"steps": ["crack egg"], "share": 1.0}]
    over = truth_of(observed_toy(at=grammar.make_video("test", 0).duration), futures)
    assert over["follows"] == over["next"] == over["futures"] == []
    truth = truth_of(observed_toy(at=1.0), futures)
    p = {row["step"]: row["p"] for row in truth["next"]}
    assert truth["follows"] and sum(p.values()) == pytest.approx(1)
    assert truth["futures"][0]["share"] == pytest.approx(p["crack egg"])


# ---- the command -------------------------------------------------------------------------------
def run_predict(*argv):
    """The JSON of a call."""
    call("predict.py", *argv, "--json", "out.json", "--device", "cpu")
    return json.loads(Path("out.json").read_text())


def check_content(content, names, samples, horizon):
    """SPEC's keys and types; probabilities that sum to 1, the largest first."""
    assert list(content)[:5] == KEYS and len(content["clips"]) == 8
    for clip in content["clips"]:
        assert list(clip) == ["start", "end", "steps"] and clip["start"] < clip["end"]
        assert len(clip["steps"]) == min(5, len(names))
    assert sorted(row["step"] for row in content["next"]) == sorted(names)
    rows = [(row["share"], row["p"]) for row in content["next"]]
    assert [sum(column) for column in zip(*rows)] == pytest.approx([1, 1], abs=1e-4)
    assert rows == sorted(rows, reverse=True)
    firsts = Counter()
    for future in content["futures"]:
        firsts[future["steps"][0]] += future["share"]
    assert {row["step"]: pytest.approx(row["share"]) for row in content["next"]
            if row["share"]} == firsts
    assert sum(future["share"] for future in content["futures"]) == pytest.approx(1)
    for future in content["futures"]:
        assert set(future["steps"]) <= set(names) and len(future["steps"]) == horizon
        assert future["share"] * samples == pytest.approx(round(future["share"] * samples))


def test_without_a_video(capsys):
    """Catches: a truth that is not printed; another answer for the same seed; a false warning."""
    content = run_predict("--seed", "3", "--samples", "7", "--horizon", "2")
    check_content(content, grammar.STEPS, 7, 2)
    assert content["video"] == "test_00003" and content["warning"] is None
    model, texts = load_model("runs/pretrain")[0].eval(), load_teacher("cpu").encode_phrases(
        grammar.STEPS)
    noise = torch.randn(2, 7, model.dim, generator=torch.Generator().manual_seed(3))[:1]
    with torch.no_grad():
        x = model.encode(observe_toy(3, model, None, 2).clips)
        x_hat = model.forecast_next(x[None], noise)[0]
        p = model.match(x_hat, texts).exp().mean(0)                        # Eq. 11
    assert {row["step"]: row["p"] for row in content["next"]} == {
        step: pytest.approx(value, rel=1e-4) for step, value in zip(grammar.STEPS, p.tolist())}
    assert list(content["truth"]) == ["clips", "next", "futures", "follows"]
    assert len(content["truth"]["futures"]) == len(content["futures"])
    out = capsys.readouterr().out
    assert "test_00003 of the embedded world" in out and "what follows: " in out
    assert out.count("truth") == 3 and "share is how many samples" in out
    assert run_predict("--seed", "3", "--samples", "7", "--horizon", "2") == content


def test_a_file_any_steps_and_the_warning(capsys):
    """Catches: SPEC's keys changed; unequal equals; no warning; --at or the function otherwise."""
    content = run_predict(VIDEO, "--steps", "own.txt", "--at", "30", "--samples", "5")
    check_content(content, NAMES, 5, 3)
    assert list(content) == KEYS and content["video"] == VIDEO
    assert content["clips"][-1]["end"] == 30 and content["clips"][0]["start"] == 0
    assert "only the embedded world" in content["warning"]
    assert content["warning"] in capsys.readouterr().out
    birds = [row["p"] for row in content["next"] if row["step"] == "feed the bird"]
    assert birds[0] == birds[1]
    for video, steps, at, samples in ((VIDEO, NAMES, 30.0, 5), (VIDEO, "own.txt", 30, 5),
                                      (Path(VIDEO), (*NAMES,), np.float32(30), np.int64(5))):
        assert predict(video, steps=steps, at=at, samples=samples, device="cpu") == content
    for steps in ([], ["feed the bird"]):
        with pytest.raises(BadInput, match="nothing to choose from"):
            predict(VIDEO, steps=steps, device="cpu")


def test_real_checkpoints_with_their_teacher(monkeypatch):
    """Catches: the toy's teacher for real videos; another answer by a file; a needless warning."""
    monkeypatch.setattr(prediction, "load_teacher", None)
    own = ("--steps", "own.txt", *CLIP)
    content = run_predict(VIDEO, "--checkpoint", "real", *own)
    check_content(content, NAMES, 50, 3)
    assert content["warning"] is None
    call("files", "embed", "--phrases", "own.txt", "--out", "own.npz", *CLIP)
    assert run_predict(VIDEO, "--checkpoint", "real", "--text-embeddings", "own.npz") == content
    check_content(run_predict(VIDEO, "--checkpoint", "released", *own), NAMES, 50, 3)


def test_the_teacher_of_the_run_is_not_written_over(capsys):
    """Catches: outputs held against the flags that are given alone, not those of the run."""
    teacher = Path("ex/clip/open_clip_config.json")
    before = teacher.read_bytes()
    shutil.copytree("real", "adopted")
    write_json(Path("adopted/config.json"), {"settings": {"clip": CLIP[1], "clip_weights": None}})
    line = fails(capsys, 2, "predict.py", VIDEO, "--checkpoint", "adopted", "--steps", "own.txt",
                 "--json", str(teacher))
    assert "--json" in line and "--clip" in line and teacher.read_bytes() == before


def test_the_mask_model_has_one_future_and_matching_alone_none():
    """Catches: samples that differ where nothing is drawn; a forecast made up without h."""
    content = run_predict(VIDEO, "--checkpoint", "mask", "--steps", "own.txt", *CLIP)
    assert [future["share"] for future in content["futures"]] == [1]
    content = run_predict(VIDEO, "--checkpoint", "none", "--steps", "own.txt", *CLIP)
    assert content["next"] == content["futures"] == [] and len(content["clips"]) == 8
    assert "without order" in content["warning"]


@pytest.mark.parametrize("argv, named", [
    (["nowhere.mp4"], "nowhere.mp4: no such file"), (["broken.mp4"], "broken.mp4: cannot be read"),
    (["own.txt"], "own.txt"), (["."], "--video reads"),
    ([VIDEO, "--at", "900"], "--at 900"),
    ([VIDEO, *CLIP], "--clip local-dir:ex/clip: has no effect"),
    (["--clip-weights", "w.pt"], "--clip-weights w.pt: has no effect"),
    ([VIDEO, "--steps", "one.txt"], "one class"),
    ([VIDEO, "--checkpoint", "real"], "--steps is missing"),
    (["--checkpoint", "real"], "VIDEO is missing"),
    ([VIDEO, "--checkpoint", "tuned", "--steps", "own.txt"], "fine-tuned for --task forecast"),
    ([VIDEO, "--checkpoint", "features", "--steps", "own.txt"], "has no encoder"),
    ([VIDEO, "--checkpoint", "narrow", "--steps", "own.txt", *CLIP], "embeddings of width 32"),
    ([VIDEO, "--device", "gpu"], "--device gpu")], ids=str)
def test_bad_input_is_one_line(argv, named, capsys):
    """Catches: a traceback for invalid input; a JSON as well as an error."""
    Path("out.json").unlink(missing_ok=True)
    assert named in fails(capsys, 2, "predict.py", *argv, "--json", "out.json")
    assert not Path("out.json").exists()


@pytest.mark.parametrize("name, values", [
    ("video", [3, b"a.mp4", ["a.mp4"], True, "a\0b"]), ("checkpoint", [None, 3, b"runs"]),
    ("steps", [3, b"a", [3], [b"a", b"b"], ["a", None], ["a", " "], {"a": 1}, True]),
    ("at", ["30", True, [30], float("nan"), 10 ** 9]), ("samples", [None, "5", 5.0, True, [5], 0]),
    ("horizon", [None, "3", 2.5, 10 ** 9]), ("seed", [None, "0", 1.5, -1]),
    ("device", [None, 0, torch.device("cpu")]), ("json", [3, b"o.json"]), ("figure", [True]),
    ("clip", [3]), ("text_embeddings", [np.zeros(3)]), ("keyframe_model", [None, 3])])
def test_arguments_of_other_types(name, values, monkeypatch):
    """Catches: a traceback from deep inside, or an answer for another list of steps."""
    monkeypatch.setattr(prediction, "open_model", None)
    for value in values:
        with pytest.raises(BadInput, match=f"^--{name.replace('_', '-')} .{{1,99}}: must be"):
            predict(**{"video": VIDEO, name: value})


def test_nan_is_no_forecast(monkeypatch, capsys):
    """Catches: a table of nan %, and status 0, where no --json is asked for."""
    monkeypatch.setattr("evaluation.inference.score_texts", lambda x, texts, tau: x[:, :5] * np.nan)
    assert "not finite" in fails(capsys, 1, "predict.py", "--device", "cpu")


def test_a_video_that_ends_early_is_one_line(monkeypatch, capsys):
    """Catches: a cut-off video without a word on --at, which reads what there is."""
    def cut(path, times, short_side=None):
        raise Unreadable(f"{path}: its video ends 3.0 s before the picture asked for")
    monkeypatch.setattr("files.video.read_frames", cut)
    line = fails(capsys, 2, "predict.py", VIDEO, "--steps", "own.txt")
    assert VIDEO in line and "ends 3.0 s before" in line and "--at SECONDS" in line


def test_a_short_observed_part_is_said(capsys):
    """Catches: windows of .6 s without a word; a word about every video."""
    for at, said in ((5, True), (15.9, True), (16.1, False)):
        content = run_predict("--at", str(at), "--samples", "2")
        assert ("part is short" in (content["warning"] or "")) == said
        assert (f"short, {at:.3g} s in 8 windows" in capsys.readouterr().out) == said
    both = run_predict(VIDEO, "--steps", "own.txt", "--at", "5", "--samples", "2")["warning"]
    assert "only the embedded world" in both and "part is short" in both


@pytest.mark.parametrize("view", [dict(image=32, frames=4, seconds=None),
                                  dict(image=24, frames=6, seconds=1.0)])
def test_clips_of_a_file_are_those_that_are_evaluated(view):
    """Catches: other frames, sizes or axes than evaluation reads; other windows or lengths."""
    encoder = SimpleNamespace(**view)
    own, whole = [[0, 9], [3.5, 4]], forecast_windows(duration(VIDEO))
    source = VideoSource([Video("a")], {"a": VIDEO}, view_of(encoder))
    for windows, clips in ((whole, read_clips(VIDEO, encoder)),
                           (np.array(own), read_clips(VIDEO, encoder, own))):
        F, H = view["frames"], view["image"]
        assert clips.shape == (len(windows), F, 3, H, H) and clips.dtype == torch.uint8
        assert torch.equal(clips, source.load([(0, windows)]).clips)
    with pytest.raises(Unreadable, match="broken.mp4"):
        read_clips("broken.mp4", encoder)
    for wrong in ([[9, 0]], [[0, 9, 5]], [0, 9]):
        with pytest.raises(ValueError, match=r"windows must be \(n, 2\) s"):
            read_clips(VIDEO, encoder, wrong)


@pytest.mark.parametrize("package, flags", [
    ("matplotlib", ["--figure", "a.png"]), ("diffusers", ["--keyframes", "frames"])])
def test_an_optional_package_that_is_missing(package, flags, monkeypatch, capsys):
    """Catches: an ImportError's traceback, or one that comes after the forecast."""
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(prediction, "open_model", None)
    assert f"pip install {package}" in fails(capsys, 2, "predict.py", *flags)
