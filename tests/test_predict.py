"""predict.py: one video in, steps and futures out; its JSON, its table, its warnings."""
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import weights
from commands import call, fails, read_json
from evaluation.inference import draw_noise, sample_in_turn
from evaluation.labeled import open_texts
from evaluation.prediction import count_futures, observe_toy, rank_steps
from predict import predict
from support.arguments import DEFAULT
from support.errors import InputError
from toy import grammar
from toy.export import write_video
from toy.render import render
from toy.source import ToySource
from weights.checkpoint import build_model, save


def test_futures_are_counted_and_steps_ranked():
    """Catches: p ranked above share; shares of another future; ties in another order."""
    names = ["a", "b", "c"]
    picks = torch.tensor([[0, 1], [2, 1], [0, 1], [0, 2]])
    assert [(future["steps"], future["share"]) for future in count_futures(picks, names)] == [
        (["a", "b"], 0.5), (["c", "b"], 0.25), (["a", "c"], 0.25)]
    rows = rank_steps(names, torch.tensor([.1, .6, .3]), torch.tensor([.75, 0, .25]))
    assert [(row["step"], row["share"]) for row in rows] == [("a", .75), ("c", .25), ("b", 0)]


def test_the_first_forecast_anyone_sees(here, capsys):
    """Catches: a true step or a column's name that is not printed; a warning, or none; keys
    renamed; another length of the history, noise of another seed, the mean of fewer samples; a
    truth of other steps."""
    call("predict.py", "--json", "a.json")
    out, content = capsys.readouterr().out, read_json("a.json")
    assert [*content] == ["video", "clips", "next", "futures", "warning", "truth"]
    assert len(content["clips"]) == 8 and len(content["next"]) == len(grammar.STEPS)
    assert [*content["clips"][0]] == ["start", "end", "steps"] and content["warning"] is None
    assert sum(future["share"] for future in content["futures"]) == pytest.approx(1)
    for row in content["truth"]["next"]:
        assert f"{row['step']} {row['p']:.0%}" in out
    assert [*content["next"][0]] == ["step", "p", "share"] and "\n  share    p  step\n" in out
    assert predict() == content
    model = weights.load(DEFAULT)
    observed, steps = observe_toy(0, model, None, 3), grammar.STEPS
    assert torch.equal(observed.clips, ToySource("test", 1, 4).load([(0, observed.windows)]).clips)
    _, texts = open_texts(steps, True, model, DEFAULT, None, None, "cpu")
    log_p, picks = sample_in_turn(model, model.encode(observed.clips), float(
        observed.windows.max() - observed.windows.min()), texts, draw_noise((3, 50, model.dim), 0))
    assert content["futures"] == count_futures(picks, steps)
    assert {row["step"]: row["p"] for row in content["next"]} == pytest.approx(
        dict(zip(steps, log_p.exp().mean(0).tolist())))
    exact, labels = grammar.Grammar(), [step.label for step in observed.script.steps]
    p = exact.next_step(labels[:-3], True)
    assert {row["step"]: row["p"] for row in content["truth"]["next"]} == {
        steps[k]: p[k] for k in p.nonzero()[0]}
    assert content["truth"]["follows"] == [steps[label] for label in labels[-3:]]
    for future in content["truth"]["futures"]:
        named = [steps.index(step) for step in future["steps"]]
        assert future["share"] == exact.chance(labels[:-3], True, named)


def test_a_video_file_and_steps_of_ones_own(trained, here, capsys, monkeypatch):
    """Catches: another part of the video, a history of another length, a warning not given; a
    forecast that is made and lost, as its figure cannot be drawn."""
    lengths = []
    monkeypatch.setattr("predict.sample_in_turn", lambda model, x, seconds, *more: lengths.append(
        seconds) or sample_in_turn(model, x, seconds, *more))
    write_video(here / "v.mp4", render(grammar.make_video("test", 3)))
    steps, checkpoint = ["crack egg", "pour oil"], trained / "diffusion"
    content = predict("v.mp4", steps=steps, checkpoint=checkpoint, samples=4, horizon=2, at=40.0)
    assert content["clips"][-1]["end"] == 40 and content["truth"] is None
    assert {row["step"] for row in content["next"]} == {*steps}
    assert "toy world" in content["warning"]
    Path("steps.txt").write_text("crack egg\npour oil\n")
    call("predict.py", "v.mp4", "--steps", "steps.txt", "--checkpoint", checkpoint, "--samples",
         "4", "--horizon", "2", "--at", "00:40", "--json", "a.json")
    assert lengths == [40, 40]
    assert read_json("a.json") == content and "warning: " in capsys.readouterr().out
    content = predict("v.mp4", steps=steps * 2, checkpoint=checkpoint, samples=4, at=4.0)
    assert "only 4.0 s are observed" in content["warning"]
    assert "2 of 4 names are those of other classes" in capsys.readouterr().out
    content = predict("v.mp4", steps=steps, checkpoint=trained / "none")
    assert "without order" in content["warning"] and content["next"] == content["futures"] == []
    for argv in (("v.mp4", "--at", "500"), ("--seed", "3", "--at", "1e9")):
        assert "ends at" in fails(capsys, "predict.py", *argv, "--checkpoint", checkpoint)
    line = fails(capsys, "predict.py", "--figure", "out.jpg", "--json", "b.json")
    assert "out.jpg: must end in .png, .pdf or .svg" in line and not Path("b.json").exists()


def test_a_model_that_is_fine_tuned_to_forecast(trained, here, capsys):
    """Catches: texts matched in place of its classes; classes that are not the lines of --steps, or
    not its own without --steps."""
    start, steps = weights.load(trained / "diffusion"), ["crack egg", "pour oil"]
    for task in ("forecast", "classify"):
        model = build_model(start.phrases, **start.arguments | {"task": task, "classes": [2]})
        model.load_state_dict(start.state_dict(), strict=False)
        model.classifier.weight.data.zero_()
        model.classifier.bias.data = torch.tensor([0., .5])
        save(f"{task}.pt", model, settings=start.settings | {"classes": steps})
    flags = dict(steps=steps, samples=4, horizon=2)
    content = predict(checkpoint="forecast.pt", **flags)
    assert content == predict(checkpoint="forecast.pt", **flags | {"steps": None})
    assert content["futures"] == [{"steps": ["pour oil"] * 2, "share": 1.0}]
    assert content["next"][0]["p"] == pytest.approx(torch.tensor(.5 / start.tau).sigmoid().item())
    assert content["clips"] == predict(checkpoint=trained / "diffusion", **flags)["clips"]
    with pytest.raises(InputError, match="to other classes, or in another order: crack egg, pour"):
        predict(checkpoint="forecast.pt", **flags | {"steps": steps[::-1]})
    with pytest.raises(InputError, match="fine-tuned to 2 classes, there are 4 here"):
        predict(checkpoint="forecast.pt", **flags | {"steps": 2 * steps})
    assert "is fine-tuned for classify" in fails(capsys, "predict.py", "--checkpoint",
                                                 "classify.pt")


@pytest.mark.parametrize("unbuffered, work, status", [
    ("1", "print(1)", 141), ("", "print(1)", 141), ("", "print('1' * 10 ** 6)", 141),
    ("", "(i for i in ()).throw(BrokenPipeError(1))", 2)])
def test_a_pipe_that_nobody_reads_ends_quietly(unbuffered, work, status):
    """Catches: a traceback, or status 0, after `| head`; silence about the pipe to a worker."""
    code = f"from support.errors import *; run(lambda args: {work}, lambda: None)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, cwd=DEFAULT.parents[1],
                               env={**os.environ, "PYTHONUNBUFFERED": unbuffered})
    if status == 141:
        process.stdout.close()
    assert process.stderr.read() == (b"" if status == 141 else b"-c: error: 1\n")
    assert process.wait() == status
