"""predict.py: one video in, steps and futures out; its JSON, its table, its warnings."""
import shutil
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

import weights
from commands import call, fails, read_json
from data import history_windows
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
    not announced; torch left with one thread."""
    shutil.copytree(trained / "diffusion", "runs/pretrain")
    call("predict.py", "--seed", "3", "--json", "a.json")
    out, content = capsys.readouterr().out, read_json("a.json")
    assert "checkpoint: runs/pretrain, after 6 updates" in out
    assert [*content] == ["video", "clips", "next", "futures", "warning", "truth"]
    assert [*content["clips"][0]] == ["start", "end", "steps"] and content["warning"] is None
    torch.set_num_threads(2)
    try:
        assert predict(seed=3) == content and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)

    model, source = weights.load("runs/pretrain"), ToySource("test", 4, 4)
    steps, end = source.videos[3].steps, content["clips"][-1]["end"]
    windows = history_windows(end, model.pitch)
    assert [(clip["start"], clip["end"]) for clip in content["clips"]] == [*map(tuple, windows)]
    with torch.no_grad():
        texts = load_teacher("cpu").encode_phrases(STEPS)
        x = model.encode(source.load([(3, windows)]).clips)
        for clip, p in zip(content["clips"], model.match(x, texts).exp().tolist(), strict=True):
            assert clip["steps"] == [{"step": step, "p": pytest.approx(value)} for value, step in
                                     sorted(zip(p, STEPS), key=lambda row: -row[0])[:5]]
        futures, shares, mean = [], torch.zeros(40), torch.zeros(40)
        noise = torch.randn(3, 50, model.dim, generator=torch.Generator().manual_seed(3))
        for eps in noise.transpose(0, 1):              # of one future
            own, future = x, []
            for step in range(3):                      # at most eight clips are observed
                x_hat = model.forecast_next(own[None], eps[None, step:step + 1])[0]
                p = model.match(x_hat[0], texts).exp()
                future.append(STEPS[p.argmax()])
                mean += p / 50 * (step == 0)
                own = torch.cat([own, normalize(x_hat, dim=-1)])[-8:]
            shares[STEPS.index(future[0])] += .02
            futures.append(future)
    rows = sorted(zip(shares.tolist(), mean.tolist(), STEPS), reverse=True)
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
    """Catches: another part of the video, a warning not given; a forecast that is made and lost, as
    its figure cannot be drawn."""
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
    content = predict("v.mp4", steps=steps * 2, checkpoint=checkpoint, samples=4, at=4.0)
    assert "only 4.0 s are observed" in content["warning"]
    assert "2 of 4 names are those of other classes" in capsys.readouterr().out
    content = predict("v.mp4", steps=steps, checkpoint=trained / "none")
    assert "without order" in content["warning"] and content["next"] == content["futures"] == []
    for argv in (("v.mp4", "--at", "500"), ("--seed", "3", "--at", "1e9")):
        assert "ends at" in fails(capsys, "predict.py", *argv, "--checkpoint", checkpoint)
    line = fails(capsys, "predict.py", "--figure", "out.jpg", "--json", "b.json")
    assert "out.jpg: must end in .png, .pdf or .svg" in line and not Path("b.json").exists()


def test_a_forecast_is_drawn(trained, here):
    """Catches: a figure that is not written; axes that only fit futures, or eight clips."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    for order in "diffusion", "none":
        call("predict.py", "--checkpoint", trained / order, "--at", "30", "--figure", "a.svg")
        assert Path("a.svg").read_bytes().startswith(b"<?xml")
        Path("a.svg").unlink()


def test_a_model_that_is_fine_tuned_to_forecast(trained, here, capsys):
    """Catches: texts matched in place of its classes; classes that are not the lines of --steps, or
    not its own without --steps."""
    start, steps = weights.load(trained / "diffusion"), ["crack egg", "pour oil"]
    for task in ("forecast", "classify"):
        model = build(start.phrases, **start.arguments | {"task": task, "classes": [2]})
        model.load_state_dict(start.state_dict(), strict=False)
        model.classifier.weight.data.zero_()
        model.classifier.bias.data = torch.tensor([0., .5])
        model.settings = start.settings | {"classes": steps}
        weights.save(f"{task}.pt", model)
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
