"""predict.py: one video in, steps and futures out; its JSON, its table, its warnings."""
from pathlib import Path

import pytest
import torch

import weights
from commands import call, fails, read_json
from evaluation.prediction import count_futures, observe_toy, rank_steps, truth_of
from predict import predict
from support.arguments import DEFAULT
from toy import grammar
from toy.export import write_video
from toy.render import render


def test_futures_are_counted_and_steps_ranked():
    """Catches: p ranked above share; shares of another future; ties in another order."""
    names = ["a", "b", "c"]
    picks = torch.tensor([[0, 1], [2, 1], [0, 1], [0, 2]])
    assert count_futures(picks, names) == [{"steps": ["a", "b"], "share": 0.5},
                                           {"steps": ["c", "b"], "share": 0.25},
                                           {"steps": ["a", "c"], "share": 0.25}]
    rows = rank_steps(names, torch.tensor([.1, .6, .3]), torch.tensor([.75, 0, .25]))
    assert [(row["step"], row["share"]) for row in rows] == [("a", .75), ("c", .25), ("b", 0)]


def test_the_truth_is_that_of_the_steps_shown():
    """Catches: steps that are not observed yet; the futures of another video."""
    observed, exact = observe_toy(0, weights.load(DEFAULT), None, 3), grammar.Grammar()
    labels = [step.label for step in observed.script.steps]
    follows = [grammar.STEPS[label] for label in labels[-3:]]
    truth = truth_of(observed, [{"steps": follows, "share": 1.0}])
    assert truth["follows"] == follows
    p = exact.next_step(labels[:-3], True)
    assert {row["step"]: row["p"] for row in truth["next"]} == {
        grammar.STEPS[k]: p[k] for k in p.nonzero()[0]}
    assert truth["futures"][0]["share"] == exact.chance(labels[:-3], True, labels[-3:])


def test_the_first_forecast_anyone_sees(here, capsys):
    """Catches: a true step that is not printed; a warning, or none; keys renamed."""
    call("predict.py", "--json", "a.json")
    out, content = capsys.readouterr().out, read_json("a.json")
    assert [*content] == ["video", "clips", "next", "futures", "warning", "truth"]
    assert len(content["clips"]) == 8 and len(content["next"]) == len(grammar.STEPS)
    assert [*content["clips"][0]] == ["start", "end", "steps"] and content["warning"] is None
    assert sum(future["share"] for future in content["futures"]) == pytest.approx(1)
    for row in content["truth"]["next"]:
        assert f"{row['step']} {row['p']:.0%}" in out
    assert predict() == content


def test_a_video_file_and_steps_of_ones_own(trained, here, capsys):
    """Catches: another part of the video, steps in another order, a warning that is not given."""
    write_video(here / "v.mp4", render(grammar.make_video("test", 3)))
    steps, checkpoint = ["crack egg", "pour oil"], trained / "diffusion"
    content = predict("v.mp4", steps=steps, checkpoint=checkpoint, samples=4, horizon=2, at=40.0)
    assert content["clips"][-1]["end"] == 40 and content["truth"] is None
    assert {row["step"] for row in content["next"]} == {*steps}
    assert "embedded world" in content["warning"]
    Path("steps.txt").write_text("crack egg\npour oil\n", encoding="utf-8")
    call("predict.py", "v.mp4", "--steps", "steps.txt", "--checkpoint", checkpoint, "--samples",
         "4", "--horizon", "2", "--at", "40", "--json", "a.json")
    assert read_json("a.json") == content and "warning: " in capsys.readouterr().out
    content = predict("v.mp4", steps=steps, checkpoint=trained / "none")
    assert "without order" in content["warning"] and content["next"] == content["futures"] == []
    for argv in (("v.mp4", "--at", "500"), ("--seed", "3", "--at", "1e9")):
        assert "ends at" in fails(capsys, "predict.py", *argv, "--checkpoint", checkpoint)
