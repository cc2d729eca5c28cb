"""predict.py: one video in, steps and futures out; its JSON, its table, its warnings."""
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import weights
from commands import call, fails, read_json
from data import history_windows
from model import sample_in_turn
from predict import predict
from support.errors import InputError
from toy import grammar
from toy.__main__ import write_video
from toy.render import render
from toy.source import ToySource, load_teacher
from weights.checkpoint import build

STEPS = [*grammar.STEPS]


def test_the_first_forecast_anyone_sees(trained, here, capsys):
    """Catches: keys renamed; another part of the video, noise of another seed, the mean of fewer
    samples; steps ranked by p before share; a truth of other steps; a default checkpoint that is
    not announced."""
    shutil.copytree(trained / "diffusion", "runs/pretrain")
    call("predict.py", "--seed", "3", "--json", "a.json")
    out, content = capsys.readouterr().out, read_json("a.json")
    assert "checkpoint: runs/pretrain, after 6 updates" in out
    assert [*content] == ["video", "clips", "next", "futures", "warning", "truth"]
    assert [*content["clips"][0]] == ["start", "end", "steps"] and content["warning"] is None
    assert predict(seed=3) == content

    model, source = weights.load("runs/pretrain"), ToySource("test", [3], 4)
    steps, end = source.videos[0].steps, content["clips"][-1]["end"]
    windows = history_windows(end, model.config.spacing)
    assert [(clip["start"], clip["end"]) for clip in content["clips"]] == [*map(tuple, windows)]
    with torch.no_grad():
        texts = load_teacher("cpu").encode_phrases(STEPS)
        x = model.encode(source.clips(0, windows)[0])
        for clip, p in zip(content["clips"], model.match(x, texts).exp().tolist(), strict=True):
            assert clip["steps"] == [{"step": step, "p": pytest.approx(value)} for value, step in
                                     sorted(zip(p, STEPS), key=lambda row: -row[0])[:5]]
        noise = torch.randn(3, 50, model.dim, generator=torch.Generator().manual_seed(3))
        p = model.match(model.forecast_next(x[None], noise[:1])[0], texts).exp()       # (50, 40)
        _, picks = sample_in_turn(model, x, texts, noise)
    futures = [[STEPS[k] for k in future] for future in picks.tolist()]
    shares = p.argmax(1).bincount(minlength=40) / 50
    rows = sorted(zip(shares.tolist(), p.mean(0).tolist(), STEPS), reverse=True)
    for row, (share, p, step) in zip(content["next"], rows, strict=True):
        assert row == {"step": step, "p": pytest.approx(p, 1e-3), "share": pytest.approx(share)}
    shares = [row["share"] for row in content["futures"]]
    assert shares == [futures.count(row["steps"]) / 50 for row in content["futures"]]
    assert sum(shares) == pytest.approx(1) and shares == sorted(shares, reverse=True)

    begun, exact = sum(step.end <= end for step in steps), grammar.Grammar()
    before = [step.label for step in steps[:begun] if step.end - windows[0, 0] >= 1]
    p = exact.next_step(before, len(before) == begun)
    truth = content["truth"]
    assert {row["step"]: row["p"] for row in truth["next"]} == dict(
        (step, chance) for step, chance in zip(STEPS, p) if chance)
    assert truth["follows"] == [STEPS[step.label] for step in steps[begun:]] and 1 <= begun <= 5
    for row in truth["futures"]:
        named = [STEPS.index(step) for step in row["steps"]]
        assert row["share"] == exact.chance(before, len(before) == begun, named)
    assert truth["clips"] == [next((STEPS[step.label] for step in steps
                                    if step.start <= middle < step.end), None)
                              for middle in windows.mean(1)]
    assert all(f"{row['step']} {row['p']:.0%}" in out for row in truth["next"])


def test_a_video_file_and_steps_of_ones_own(trained, here, capsys):
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
    content = predict("v.mp4", steps=steps, checkpoint=trained / "none")
    assert "without order" in content["warning"] and content["next"] == content["futures"] == []
    for argv in (("v.mp4", "--at", "500"), ("v.mp4", "--at", "0"), ("--seed", "3", "--at", "1e9")):
        assert " ends " in fails(capsys, "predict.py", *argv, "--checkpoint", checkpoint)


def test_a_forecast_is_drawn(trained, here):
    """Catches: a figure that is not written; axes that only fit futures, or eight clips."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    for order in "diffusion", "none":
        predict(checkpoint=trained / order, at=30.0, figure=Path(f"{order}.svg"))
        assert Path(f"{order}.svg").read_bytes().startswith(b"<?xml")


def test_a_model_that_is_fine_tuned_to_forecast(trained, here, capsys):
    """Catches: texts matched in place of its classes; classes that are not the lines of --steps, or
    not its own without --steps."""
    start, steps = weights.load(trained / "diffusion"), ["crack egg", "pour oil"]
    for task in ("forecast", "classify"):
        config = replace(start.config, task=task, classes=[2], names=steps)
        model = build(config, start.phrases)
        model.load_state_dict(start.state_dict(), strict=False)
        model.classifier.weight.data.zero_()
        model.classifier.bias.data = torch.tensor([0., .5])
        weights.save(f"{task}.pt", model)
    flags = dict(steps=steps, samples=4, horizon=2)
    content = predict(checkpoint="forecast.pt", **flags)
    assert content == predict(checkpoint="forecast.pt", **flags | {"steps": None})
    assert content["futures"] == [{"steps": ["pour oil"] * 2, "share": 1.0}]
    assert content["next"][0]["p"] == pytest.approx(torch.tensor(.5 / start.tau).sigmoid().item())
    assert content["clips"] == predict(checkpoint=trained / "diffusion", **flags)["clips"]
    for other in steps[::-1], 2 * steps:
        with pytest.raises(InputError, match="is fine-tuned to 2 classes, crack egg, pour oil ..."):
            predict(checkpoint="forecast.pt", **flags | {"steps": other})
    assert "is fine-tuned for classify" in fails(capsys, "predict.py", "--checkpoint",
                                                 "classify.pt")
