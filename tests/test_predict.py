"""predict.py: one video in, steps and futures out; its JSON, its table, its warnings."""
from pathlib import Path

import pytest
import torch

import weights
from commands import call, fails, read_json
from evaluation.prediction import count_futures, observe_toy, rank_next, truth_of
from predict import predict
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
    rows = rank_next(torch.tensor([.1, .6, .3]), picks[:, 0], names)
    assert [(row["step"], row["share"]) for row in rows] == [("a", .75), ("c", .25), ("b", 0)]


def test_the_truth_is_that_of_the_steps_shown():
    """Catches: steps that are not observed yet; the futures of another video."""
    model = weights.load(Path(__file__).parents[1] / "toy" / "default.pt")
    observed = observe_toy(0, model, None, 3)
    steps = [grammar.STEPS[step.label] for step in observed.script.steps]
    truth = truth_of(observed, [{"steps": steps[-3:], "share": 1.0}])
    shown = [step.label for step in observed.script.steps[:-3]]
    assert truth["follows"] == steps[-3:]
    exact = grammar.Grammar()
    expected = exact.next_step(shown, True)
    assert {row["step"]: row["p"] for row in truth["next"]} == pytest.approx(
        {grammar.STEPS[k]: p for k, p in enumerate(expected) if p > 0})
    labels = [step.label for step in observed.script.steps[-3:]]
    assert truth["futures"][0]["share"] == pytest.approx(exact.chance(shown, True, labels))


def test_the_first_forecast_anyone_sees(here, capsys):
    """Catches: a true step that the table hides; a warning, or none; keys renamed."""
    call("predict.py", "--json", "a.json")
    out, content = capsys.readouterr().out, read_json("a.json")
    assert [*content] == ["video", "clips", "next", "futures", "warning", "truth"]
    assert len(content["clips"]) == 8 and len(content["next"]) == len(grammar.STEPS)
    assert [*content["clips"][0]] == ["start", "end", "steps"] and content["warning"] is None
    assert sum(future["share"] for future in content["futures"]) == pytest.approx(1)
    for row in content["truth"]["next"][:5]:
        assert any(line.strip().startswith(row["step"]) and f"{row['p']:.0%}" in line
                   for line in out.splitlines()), row
    assert predict() == content


def test_a_video_file_and_steps_of_ones_own(trained, here, capsys):
    """Catches: another part of the video, steps in another order, a warning that is not given."""
    video = grammar.make_video("test", 3)
    write_video(here / "v.mp4", render(video))
    checkpoint = trained / "diffusion"
    content = predict("v.mp4", steps=["crack egg", "pour oil"], checkpoint=checkpoint, samples=4,
                      horizon=2, at=40.0)
    assert content["clips"][-1]["end"] == 40 and content["truth"] is None
    assert {row["step"] for row in content["next"]} == {"crack egg", "pour oil"}
    assert "embedded world" in content["warning"]
    Path("steps.txt").write_text("crack egg\npour oil\n", encoding="utf-8")
    call("predict.py", "v.mp4", "--steps", "steps.txt", "--checkpoint", checkpoint, "--samples",
         "4", "--horizon", "2", "--at", "40", "--json", "a.json")
    assert read_json("a.json") == content
    assert "warning: " in capsys.readouterr().out
    short = predict("v.mp4", steps=["crack egg", "pour oil"], checkpoint=trained / "none", at=5.0)
    assert "less than 2 s" in short["warning"] and "without order" in short["warning"]
    assert short["next"] == short["futures"] == []
    for argv, words in ((("v.mp4", "--at", "500"), "ends at"),
                        (("v.mp4", "--steps", "one.txt"), "one.txt"),
                        (("--seed", "3", "--at", "1e9"), "ends at")):
        assert words in fails(capsys, "predict.py", *argv, "--checkpoint", checkpoint)
