"""predict.py: one video in, steps and futures out; its JSON, table, warnings, figure."""
import itertools
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import call, fails, read_json
from torch.nn.functional import normalize

import weights
from data import history_windows
from predict import predict
from support import figures
from support.errors import InputError
from toy import grammar
from toy.__main__ import write_video
from toy.render import render
from toy.source import Toy, load_teacher
from weights.checkpoint import build

STEPS = [*grammar.STEPS]
PAIRS = {step: f"{a} or {b}" for a, b in grammar.LOOK_ALIKES for step in (a, b)}
NAMES = [PAIRS.get(step, step) for step in STEPS]          # as they are printed


def test_the_first_forecast_anyone_sees(trained, here, capsys):
    """Catches: keys renamed; another part of the video, noise of another seed, the mean of fewer
    samples; steps ranked by p before share; a truth of other steps; a checkpoint not announced."""
    shutil.copytree(trained / "diffusion", "runs/pretrain")
    call("predict.py", "--seed", "3", "--json", "a.json")
    out, content = capsys.readouterr().out, read_json("a.json")
    assert "checkpoint: runs/pretrain; the included one" in out
    assert [*content] == ["video", "clips", "next", "futures", "warning", "truth"]
    model, source = weights.load("runs/pretrain"), Toy.of("test", [3], 4)
    steps, end = source.videos[0].steps, content["clips"][-1]["end"]
    windows = history_windows(end, model.config.spacing)

    def as_one(p):
        """p of each printed name, of p (40,) of the steps."""
        sums = dict.fromkeys(NAMES, 0.0)
        for name, value in zip(NAMES, p.tolist()):
            sums[name] += value
        return sums
    with torch.no_grad():
        texts = load_teacher("cpu").encode_phrases(STEPS)
        x = model.encode(source.clips(0, windows)[0])
        for clip, window, p in zip(content["clips"], windows.tolist(),
                                   model.match(x, texts).exp(), strict=True):
            top = sorted(as_one(p).items(), key=lambda row: -row[1])[:5]
            assert clip == {"start": window[0], "end": window[1], "steps": [
                {"step": step, "p": pytest.approx(value)} for step, value in top]}
        noise = torch.randn(3, 50, model.dim, generator=torch.Generator().manual_seed(3))
        x_hat = model.forecast_next(x[None], torch.cat([noise[:1], noise[:1, :1] * 0], 1))[0]
        *drawn, zero = model.match(x_hat, texts).exp()                                 # (40,) each
    best = [max(NAMES, key=as_one(p).get) for p in drawn]
    mean, zero = as_one(sum(drawn) / 50), as_one(zero)
    assert len(content["next"]) == len(mean) == 37
    order = [(row["share"], row["p"]) for row in content["next"]]
    assert order == sorted(order, reverse=True)
    for row in content["next"]:
        step = row["step"]
        assert row == {"step": step, "p": pytest.approx(mean[step], 1e-3), "key_frame": None,
                       "zero_noise": pytest.approx(zero[step], 1e-3),
                       "share": pytest.approx(best.count(step) / 50)}
    for row in content["next"][:5]:
        assert f"{row['p']:4.0%} {row['zero_noise']:4.0%}  {row['step']}\n" in out
    futures = futures_of(model, x, texts, noise, as_one)
    shares = [row["share"] for row in content["futures"]]
    assert shares == [futures.count(row["steps"]) / 50 for row in content["futures"]]
    assert sum(shares) == pytest.approx(1) and shares == sorted(shares, reverse=True)

    truth, exact = content["truth"], grammar.Grammar()
    begun = sum(step.end <= end for step in steps)
    before = [step.label for step in steps[:begun] if step.end - windows[0, 0] >= 1]
    known = before, len(before) == begun
    assert {row["step"]: row["p"] for row in truth["next"]} == pytest.approx({
        step: chance for step, chance in as_one(exact.next_step(*known)).items() if chance})
    assert truth["follows"] == [NAMES[step.label] for step in steps[begun:]] and 1 <= begun <= 5
    for row in truth["futures"]:
        meant = [[k for k in range(40) if NAMES[k] == step] for step in row["steps"]]
        assert row["share"] == pytest.approx(sum(
            exact.chance(*known, [*ids]) for ids in itertools.product(*meant)))
    shown = [[NAMES[step.label] for step in steps if step.start <= middle < step.end]
             for middle in windows.mean(1)]
    assert truth["clips"] == [names[0] if names else None for names in shown]
    assert all(f"{row['step']} {row['p']:.0%}" in out for row in truth["next"])


def futures_of(model, x, texts, noise, as_one):
    """The printed names of each future of noise (3, 50, D), with a loop over the samples."""
    futures = []
    with torch.no_grad():
        for eps in noise.transpose(0, 1):                  # (3, D)
            clips, future = x[None], []
            for one in eps:
                x_hat = model.forecast_next(clips, one[None, None])            # (1, 1, D)
                p = model.match(x_hat[0, 0], texts).exp()
                future.append(max(NAMES, key=as_one(p).get))
                clips = torch.cat([clips, normalize(x_hat, dim=-1)], 1)[:, -8:]
            futures.append(future)
    return futures


def test_look_alikes_that_labels_or_ones_own_steps_tell_apart(trained, here):
    """Catches: a pair joined where it has one name, or where a model is fine-tuned to two; a share
    of a joined future that is of one look-alike alone."""
    run = trained / "diffusion"
    steps = ["melt butter", "heat pan", "melt butter"]
    content = predict(steps=steps, checkpoint=run, samples=2)
    assert sorted(row["step"] for row in content["next"]) == sorted(steps)
    steps = ["melt butter", "heat pan", "crack egg", "cool pan"]
    content = predict(steps=steps, checkpoint=run, samples=2)
    assert sorted(row["step"] for row in content["next"]) == [
        "crack egg", "heat pan or cool pan", "melt butter"]
    start = weights.load(run)
    model = build(replace(start.config, task="forecast", classes=[4], names=steps), start.phrases)
    model.load_state_dict(start.state_dict(), strict=False)
    weights.save("tuned.pt", model)
    content = predict(checkpoint="tuned.pt", samples=2)
    assert {row["step"] for row in content["next"]} == {*steps}
    assert not any(" or " in row["step"] for row in content["truth"]["next"])
    source = Toy.of("test", [0], 4)
    windows = history_windows(source.videos[0].steps[0].end)
    joined = {step: "heat pan or cool pan" for step in ("heat pan", "cool pan")}
    with pytest.MonkeyPatch.context() as patch:
        chances = {(STEPS.index("heat pan"),): .25, (STEPS.index("cool pan"),): .5}
        patch.setattr(grammar.Grammar(), "chance", lambda steps, start, ids: (
            chances.get(tuple(ids), 0.0)), raising=False)
        futures = [{"steps": ["heat pan or cool pan"]}, {"steps": ["crack egg"]}]
        truth = source.truth.of_forecast(windows, futures, joined)
    assert [row["share"] for row in truth["futures"]] == [.75, 0]


def test_json_never_replaces_what_is_read(trained, here, capsys):
    """Catches: a video, a list of steps, a checkpoint or labels lost by a slip."""
    Path("steps.json").write_text("add salt\nmelt butter\n")
    Path("a.mp4").write_bytes(b"a video")
    for name, words in (("steps.json", "the command reads this file"), (".", "is a folder"),
                        ("a.mp4", "exists and is no .json file")):
        line = fails(capsys, "predict.py", "a.mp4", "--checkpoint", trained / "diffusion",
                     "--steps", "steps.json", "--json", name)
        assert f"--json {name}: {words}" in line
    assert Path("steps.json").read_text() == "add salt\nmelt butter\n"


def test_a_video_file_and_steps_of_ones_own(trained, here, drawn, capsys):
    """Catches: another part of the video, a warning not given."""
    write_video(here / "v.mp4", render(grammar.make_video("test", 3)))
    steps, checkpoint = ["crack egg", "pour oil"], trained / "diffusion"
    content = predict("v.mp4", steps=steps, checkpoint=checkpoint, samples=4, horizon=2, at=40.0)
    assert content["clips"][-1]["end"] == 40 and content["truth"] is None
    assert {row["step"] for row in content["next"]} == {*steps}
    assert "toy world" in content["warning"]
    Path("steps.txt").write_text("crack egg\npour oil\n")
    call("predict.py", "v.mp4", "--steps", "steps.txt", "--checkpoint", checkpoint, "--samples",
         "4", "--horizon", "2", "--at", "00:40", "--json", "a.json")
    assert read_json("a.json") == content and "warning: " in capsys.readouterr().out
    content = predict("v.mp4", steps=steps, checkpoint=trained / "none", figure=Path("a.svg"))
    assert Path("a.svg").read_bytes().startswith(b"<?xml")
    assert "without h" in content["warning"] and content["next"] == content["futures"] == []
    for argv in (("v.mp4", "--at", "500"), ("v.mp4", "--at", "0"), ("--seed", "3", "--at", "1e9")):
        line = fails(capsys, "predict.py", *argv, "--checkpoint", checkpoint)
        assert "must be above 0 and at most" in line


def test_a_model_that_is_fine_tuned_to_forecast(trained, here, capsys):
    """Catches: texts matched in place of its classes; classes that are not those of --steps."""
    start, steps = weights.load(trained / "diffusion"), ["crack egg", "pour oil"]
    for task in "forecast", "classify":
        config = replace(start.config, task=task, classes=[2], names=steps)
        model = build(config, start.phrases)
        model.load_state_dict(start.state_dict(), strict=False)
        model.classifier.weight.data.zero_()
        model.classifier.bias.data = torch.tensor([0., .5])
        weights.save(f"{task}.pt", model)
    flags = dict(checkpoint="forecast.pt", samples=4, horizon=2)
    content = predict(steps=steps, **flags)
    assert content == predict(**flags)
    assert content["futures"] == [{"steps": ["pour oil"] * 2, "share": 1.0}]
    assert content["next"][0]["p"] == pytest.approx(torch.tensor(.5 / start.tau).sigmoid().item())
    flags["checkpoint"] = trained / "diffusion"
    assert content["clips"] == predict(steps=steps, **flags)["clips"]
    for other in steps[::-1], 2 * steps:
        with pytest.raises(InputError, match="is fine-tuned to 2 classes, such as '"):
            predict(checkpoint="forecast.pt", steps=other)
    assert "is fine-tuned for cl" in fails(capsys, "predict.py", "--checkpoint", "classify.pt")


def test_the_figure_shows_what_is_forecast(drawn, tmp_path):
    """Catches: a wrong frame above a caption, forecast and truth exchanged, a true step lost."""
    shares = {"a": .6, "b": .3, "c": .1}
    futures = {("a", "c"): .4, ("b", "b"): .3}
    content = {"video": "a $x.mp4", "clips": [
        {"start": i, "end": i + 1, "steps": [{"step": f"step {i}", "p": 0.5}]} for i in range(3)],
        "next": [{"step": step, "share": share} for step, share in shares.items()],
        "futures": [{"steps": [*steps], "share": share} for steps, share in futures.items()],
        "truth": {"clips": [None, "a", None],
                  "next": [{"step": "f", "p": .9}, {"step": "a", "p": .1}],
                  "futures": [{"steps": ["a", "c"], "share": .25}]}}
    pictures = np.random.default_rng(0).integers(0, 256, (3, 3, 6, 8), dtype=np.uint8)
    figures.save_figure(tmp_path / "a.png", figures.plot_forecast, content, pictures)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    *strip, bars, tree = drawn[0].axes
    assert all(np.array_equal(axes.images[0].get_array(), picture.transpose(1, 2, 0))
               for axes, picture in zip(strip, pictures, strict=True))
    assert strip[1].get_xlabel() == "step 1\n50%\ntrue: a"
    assert [label.get_text() for label in bars.get_yticklabels()] == [*"abcf"]
    assert [bar.get_width() for bar in bars.patches] == [.6, .3, .1, 0, .1, 0, 0, .9]
    assert [bar.get_width() for bar in tree.patches] == [.4, .3, .25, 0]


@pytest.mark.parametrize("part, value", [("encoder", torch.nan), ("denoiser", 1e30)])
def test_a_forecast_that_is_not_finite_is_an_error(trained, here, capsys, part, value):
    """Catches: `nan%`, and a future "in 100% of the samples"."""
    model = weights.load(trained / "diffusion")
    for parameter in model.get_submodule(part).parameters():
        parameter.data.fill_(value)
    weights.save("x.pt", model)
    line = fails(capsys, "predict.py", "--checkpoint", "x.pt", "--json", "a.json", status=1)
    assert "x.pt: its forecast is not finite" in line and not Path("a.json").exists()


def test_matplotlib_that_is_absent_is_one_line(tmp_path, monkeypatch):
    """Catches: a traceback in place of the pip line."""
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match="pip install matplotlib$"):
        figures.save_figure(tmp_path / "a.png", None)
