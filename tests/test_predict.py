"""predict.py: futures sampled one step after another, the truth beside them, the command."""
import json
import sys
from pathlib import Path

import av
import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import data  # noqa: E402
from evaluation import forecasting  # noqa: E402
import predict  # noqa: E402
import settings_optional as s  # noqa: E402
import tasks  # noqa: E402
from files import commands  # noqa: E402
from toy import grammar  # noqa: E402
from toy import render  # noqa: E402
from commands import call, fails, make_teacher  # noqa: E402
from model import ProcedureModel, save_checkpoint  # noqa: E402
from support.command import BadInput  # noqa: E402
from weights.released import Released  # noqa: E402

F = dict(image=32, patch=16, frames=2, width=8, depth=1, heads=2)
H = dict(width=16, layers=1, heads=2)
TOY = render.MEAN, render.STD
REAL = 0.45, 0.225                     # pixels of a checkpoint that was trained on video files
KEYS = ["video", "clips", "next", "futures", "warning"]
VIDEO, CLIP = "ex/videos/test_00000.mp4", ("--clip", "local-dir:ex/clip")
SHARED = ROOT.parent / "shared" / "videos"


def save_model(folder, pixels, order="diffusion", encoder=F, dim=64, **more):
    """A run folder with a model whose parameters are all random."""
    torch.manual_seed(0)
    model = ProcedureModel(torch.randn(6, dim), encoder, H, order, 0.02, pixels, **more)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    folder.mkdir(parents=True)
    save_checkpoint(folder / "checkpoint.pt", model)


def cut_off(source, target):
    """Copy a video into an mkv and leave out the second half of it; its header still says all."""
    with av.open(str(source)) as old, av.open(str(target), "w") as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        for packet in old.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                new.mux(packet)
    whole = target.read_bytes()
    target.write_bytes(whole[:len(whole) // 2])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the exported world in ex/, checkpoints of several kinds, a list of steps."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("predict")
    make_teacher(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        commands.export_toy(s.ExportSettings(out=Path("ex"), train=0, test=1))
    save_model(folder / "runs/pretrain", TOY)
    save_model(folder / "real", REAL)
    save_model(folder / "none", REAL, order="none")
    save_model(folder / "mask", REAL, order="mask")
    save_model(folder / "tuned", REAL, task="forecast", classes=[5])
    save_model(folder / "features", None, encoder=None)
    save_model(folder / "narrow", REAL, dim=32)
    released = Released({**F, "dim": 64}, {"dim": 64, "layers": 2, "clips": 9})
    save_checkpoint(folder / "released.pt", released)
    (folder / "own.txt").write_text("feed the bird\nsing a song\npour egg\nfeed the bird\n")
    (folder / "one.txt").write_text("feed the bird\n")
    (folder / "broken.mp4").write_bytes(b"no video")
    cut_off(folder / VIDEO, folder / "cut.mkv")
    yield folder
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def here(place, monkeypatch):
    """Work in that folder."""
    monkeypatch.chdir(place)


# ---- the answer ------------------------------------------------------------------------------
def test_futures_are_counted_and_steps_ranked():
    """Catches: shares that do not sum to 1, a rank turned round, ties not in the list's order."""
    futures = predict.shared(torch.tensor([[0, 1], [2, 2], [2, 2], [1, 0]]), ["a", "b", "c"])
    assert futures == [{"steps": ["c", "c"], "share": 0.5}, {"steps": ["a", "b"], "share": 0.25},
                       {"steps": ["b", "a"], "share": 0.25}]
    rows = predict.ranked(torch.tensor([0.25, 0.5, 0.25]), ["a", "b", "c"])
    assert [(row["step"], row["p"]) for row in rows] == [("b", 0.5), ("a", 0.25), ("c", 0.25)]
    assert predict.ranked(torch.tensor([0.25, 0.75]), ["a", "b"], 1) == [{"step": "b", "p": 0.75}]


# ---- the embedded world --------------------------------------------------------------------------
def observed_toy(seed=0, horizon=3, at=None):
    """Test video `seed`, as the encoder of runs/pretrain reads it."""
    given = s.PredictSettings(seed=seed, horizon=horizon, at=at)
    return predict.observe_toy(given, predict.open_model(given, torch.device("cpu"))[0])


def test_the_embedded_video_is_read_as_it_is_evaluated():
    """Catches: other frames than evaluate.py takes; a forecast that is not in the middle."""
    source = data.ToySource("test", 3, F["frames"], progress=False)
    for seed in range(3):
        seen = observed_toy(seed)
        assert torch.equal(source.load([(seed, seen.windows)]).clips, seen.clips)
        ends = [end for _, end in source.videos[seed].segments]
        assert seen.windows[-1, 1] == ends[max(len(ends) - 4, 0)]
        assert seen.pictures.shape == (8, 3, 32, 32)


def test_the_truth_is_that_of_evaluate():
    """Catches: the steps counted one off; steps before the window counted as shown."""
    videos = [grammar.make_video("test", seed) for seed in range(6)]
    for seed, script in enumerate(videos):
        seen = observed_toy(seed)
        k = next(k for k, (_, end) in enumerate(script.segments) if end == seen.windows[-1, 1])
        sample = tasks.Sample(0, seen.windows, 0, k + 1)
        _, expected, _, _ = forecasting.toy_truth([sample], [script])
        truth = predict.truth_of(seen, [])
        p = dict.fromkeys(grammar.STEPS, 0.0) | {row["step"]: row["p"] for row in truth["next"]}
        assert np.allclose(list(p.values()), expected[0])
        assert truth["follows"] == [grammar.STEPS[step] for step in script.steps[k + 1:]]
        middle = seen.windows[-1].mean()
        if script.segments[k][0] < middle:
            assert truth["clips"][-1] == grammar.STEPS[script.steps[k]]


def test_chances_of_futures_are_products():
    """Catches: a chance that forgets the first step, or goes on after the end of a video."""
    grammar, shown = grammar.Grammar(), [grammar.STEP_ID["wash pan"]]
    first = grammar.next_step(shown, True)
    total = 0.0
    for a in np.flatnonzero(first):
        for b in range(len(grammar.STEPS)):
            p = grammar.chance(shown, True, [a, b])
            assert p == pytest.approx(first[a] * grammar.next_step([*shown, a], True)[b])
            total += p
    assert total == pytest.approx(1) and shown == [grammar.STEP_ID["wash pan"]]
    assert grammar.chance(shown, True, [-1, 0]) == 0
    bake = grammar.STEP_ID["bake dough"]                           # the last step of a pizza
    assert grammar.chance([grammar.STEP_ID["add cheese"]], False, [bake, 0]) == 0


@pytest.mark.parametrize("at, empty", [(1.0, False), (1e9, None), ("end", True)])
def test_any_moment_of_the_embedded_video(at, empty):
    """Catches: a traceback where nothing was shown yet, or nothing follows."""
    script = grammar.make_video("test", 0)
    if empty is None:
        with pytest.raises(BadInput, match="--at"):
            observed_toy(at=at)
        return
    truth = predict.truth_of(observed_toy(at=script.duration if at == "end" else at),
                             [{"steps": ["crack egg"], "share": 1.0}])
    assert (truth["follows"] == []) is empty and (truth["next"] == []) is empty
    if not empty:
        assert sum(row["p"] for row in truth["next"]) == pytest.approx(1)
        assert truth["futures"][0]["share"] == pytest.approx(
            {row["step"]: row["p"] for row in truth["next"]}["crack egg"])


# ---- the command ---------------------------------------------------------------------------------
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
    p = [row["p"] for row in content["next"]]
    assert sum(p) == pytest.approx(1, abs=1e-4) and p == sorted(p, reverse=True)
    assert sum(future["share"] for future in content["futures"]) == pytest.approx(1)
    for future in content["futures"]:
        assert set(future["steps"]) <= set(names) and len(future["steps"]) == horizon
        assert future["share"] * samples == pytest.approx(round(future["share"] * samples))


def test_without_a_video(capsys):
    """Catches: a truth that is not printed; another answer for the same seed; a false warning."""
    content = run_predict("--seed", "3", "--samples", "7", "--horizon", "2")
    check_content(content, grammar.STEPS, 7, 2)
    assert content["video"] == "test_00003" and content["warning"] is None
    assert list(content["truth"]) == ["clips", "next", "futures", "follows"]
    assert len(content["truth"]["futures"]) == len(content["futures"])
    out = capsys.readouterr().out
    assert "test_00003 of the embedded world" in out and "what follows: " in out
    assert out.count("truth") == 3 and "s to forecast" in out
    assert run_predict("--seed", "3", "--samples", "7", "--horizon", "2") == content


def test_a_file_any_steps_and_the_warning(capsys):
    """Catches: SPEC's keys changed; equal texts with unequal chances; no warning that the forecast
    means nothing; --at not obeyed; the function that answers otherwise than the command."""
    content = run_predict(VIDEO, "--steps", "own.txt", "--at", "30", "--samples", "5")
    names = ["feed the bird", "sing a song", "pour egg", "feed the bird"]
    check_content(content, names, 5, 3)
    assert list(content) == KEYS and content["video"] == VIDEO
    assert content["clips"][-1]["end"] == 30 and content["clips"][0]["start"] == 0
    assert "only the embedded world" in content["warning"]
    assert content["warning"] in capsys.readouterr().out
    birds = [row["p"] for row in content["next"] if row["step"] == "feed the bird"]
    assert birds[0] == birds[1]
    assert predict.predict(VIDEO, steps=names, at=30.0, samples=5, device="cpu") == content
    first = predict.predict(VIDEO, steps="own.txt", at=30.0, samples=5, device="cpu")
    assert first == content


def test_real_checkpoints_with_their_teacher(monkeypatch):
    """Catches: the toy's teacher for a checkpoint of real videos; embeddings from a file that give
    another answer than the teacher itself; a warning where there is nothing to warn of."""
    monkeypatch.setattr(data, "toy_teacher", None)
    content = run_predict(VIDEO, "--checkpoint", "real", "--steps", "own.txt", *CLIP)
    check_content(content, ["feed the bird", "sing a song", "pour egg", "feed the bird"], 50, 3)
    assert content["warning"] is None
    call("pseudo_labels.py", "--phrases", "own.txt", "--out", "own.npz", *CLIP)
    again = run_predict(VIDEO, "--checkpoint", "real", "--text-embeddings", "own.npz")
    assert again == content
    released = run_predict(VIDEO, "--checkpoint", "released.pt", "--steps", "own.txt", *CLIP)
    check_content(released, ["feed the bird", "sing a song", "pour egg", "feed the bird"], 50, 3)


def test_the_mask_model_has_one_future():
    """Catches: samples that differ where nothing is drawn."""
    content = run_predict(VIDEO, "--checkpoint", "mask", "--steps", "own.txt", *CLIP)
    assert len(content["futures"]) == 1 and content["futures"][0]["share"] == 1


def test_matching_alone_recognises_and_forecasts_nothing():
    """Catches: a crash, or a made-up forecast, where a checkpoint has no h."""
    content = run_predict(VIDEO, "--checkpoint", "none", "--steps", "own.txt", *CLIP)
    assert content["next"] == content["futures"] == [] and len(content["clips"]) == 8
    assert "without order" in content["warning"]


@pytest.mark.parametrize("argv, says", [
    (["nowhere.mp4"], "nowhere.mp4: no such file"),
    (["broken.mp4"], "broken.mp4: cannot be read"),
    (["own.txt"], "own.txt"),
    (["."], "no such file"),
    (["cut.mkv"], "--at SECONDS"),
    ([VIDEO, "--at", "900"], "--at 900"),
    ([VIDEO, "--steps", "nowhere.txt"], "nowhere.txt: No such file"),
    ([VIDEO, "--steps", "one.txt"], "one class"),
    ([VIDEO, "--checkpoint", "nowhere"], "train.py --stage pretrain"),
    ([VIDEO, "--checkpoint", "real"], "--steps is missing"),
    (["--checkpoint", "real"], "VIDEO is missing"),
    ([VIDEO, "--checkpoint", "tuned", "--steps", "own.txt"], "fine-tuned for --task forecast"),
    ([VIDEO, "--checkpoint", "features", "--steps", "own.txt"], "has no encoder"),
    ([VIDEO, "--checkpoint", "narrow", "--steps", "own.txt", *CLIP], "embeddings of width 32"),
    ([VIDEO, "--device", "gpu"], "--device gpu")], ids=str)
def test_bad_input_is_one_line(argv, says, capsys):
    """Catches: a traceback for a user's mistake; a JSON beside an error."""
    Path("out.json").unlink(missing_ok=True)
    assert says in fails(capsys, 2, "predict.py", *argv, "--json", "out.json")
    assert not Path("out.json").exists()


def test_a_list_of_one_step():
    """Catches: a softmax over one step, which is always sure."""
    with pytest.raises(BadInput, match="one step"):
        predict.predict(VIDEO, steps=["feed the bird"], device="cpu")


@pytest.mark.parametrize("package, flags", [
    ("matplotlib", ["--figure", "a.png"]), ("diffusers", ["--keyframes", "frames"])])
def test_what_an_optional_package_is_for(package, flags, monkeypatch, capsys):
    """Catches: an ImportError's traceback, or one that comes after the forecast."""
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(predict, "forecast", None)
    assert f"pip install {package}" in fails(capsys, 2, "predict.py", *flags)


@pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/videos")
@pytest.mark.parametrize("name", ["cockatoo.mp4", "flipping_a_pancake.mkv"])
def test_real_videos(name):
    """Catches: a container whose stated length no frame reaches."""
    content = run_predict(str(SHARED / name), "--steps", "own.txt", "--samples", "5")
    assert "only the embedded world" in content["warning"] and content["clips"][-1]["end"] > 9
