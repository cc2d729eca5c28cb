"""What evaluate.py scores and refuses; the paper's protocols, and a GPU."""
import os
import shutil
import subprocess
import sys

import pytest
import torch
from commands import ROOT, broken_source, call, fails, read_json, rows_of
from test_finetune import TUNE

import data
import evaluate
import weights
from support.arguments import INCLUDED
from toy.__main__ import export


@pytest.fixture
def seen(monkeypatch):
    """How many clips each history has that is cut, and whether by the training clips' distance."""
    cuts, cut = [], data.history_windows

    def watch(end, spacing=None):
        cuts.append((len(cut(end, spacing)), spacing is not None))
        return cut(end, spacing)
    monkeypatch.setattr(data, "history_windows", watch)
    return cuts


def test_a_history_of_the_paper_is_tuned_kept_and_told(trained, here, seen, capsys):
    """Catches: fine-tuning on other windows than it says; a checkpoint that forgets them, or is
    evaluated on others in silence; a default that is not the one it was tuned on."""
    tune = *TUNE, "--task", "forecast", "--epochs", ".2", "--init", trained / "diffusion"
    ask = "evaluate.py", "--toy-videos", "3", "--json", "a.json", "--checkpoint"
    for way in "paper", "spaced":
        seen.clear()
        call("train.py", *tune, "--history", way, "--out", way)
        call(*ask, way)
        assert weights.load(way).config.history == way and read_json("a.json")["warning"] is None
        assert {by_distance for _, by_distance in seen} == {way == "spaced"}
        assert all(n == 8 for n, _ in seen) == (way == "paper")
    call(*ask, "paper", "--history", "spaced")
    assert "spaced; the checkpoint is tuned on paper" in read_json("a.json")["warning"]
    call("predict.py", "--checkpoint", "paper", "--at", "30", "--json", "p.json")
    assert len(read_json("p.json")["clips"]) == 8
    content = torch.load(trained / "diffusion" / "checkpoint.pt", weights_only=True)
    content["config"]["spacing"] = None                    # as of published weights
    torch.save(content, "published.pt")
    seen.clear()
    call(*ask, "published.pt")
    assert not any(by_distance for _, by_distance in seen)
    assert "--history paper" in fails(capsys, *ask, "published.pt", "--history", "spaced")


def test_a_share_held_out_is_not_trained_on(trained, here, capsys):
    """Catches: held-out videos trained on; scores of what it was tuned on; a share of 0."""
    export(here / "world", 16, 2)
    real = ("--data", "coin", "--annotations", "world/COIN.json", "--videos", "world", "--steps",
            "world/steps.txt", "--clip", "toy")
    tune = (*TUNE[:2], *real, "--epochs", ".2", "--device", "cpu", "--init",
            trained / "diffusion", "--out")
    count = []
    for run, flags in ("all", ()), ("most", ("--hold-out", ".3")):
        call("train.py", *tune, run, *flags)
        settings = read_json(f"{run}/config.json")["settings"]
        count.append(int(settings["list of videos"].split()[0]))
    assert count[0] == 16 and 8 < count[1] < 15
    ask = "evaluate.py", "--task", "classify", *real, "--split", "validation", "--json", "a.json"
    assert "--hold-out 0.1" in fails(capsys, *ask, "--checkpoint", "all")
    call(*ask, "--checkpoint", "most")
    assert read_json("a.json")["evaluated"] == 8 * (16 - count[1])
    for share in "1", "0":
        line = fails(capsys, "train.py", *tune, "x", "--hold-out", share)
        assert "--hold-out" in line


def test_the_teacher_is_tuned(here, capsys):
    """Catches: f in place of the teacher, weights that are not kept; a forecast without h."""
    tune = "train.py", *TUNE, "--init", "teacher"
    call(*tune, "--epochs", "20", "--out", "run")
    losses = [row["loss"] for row in rows_of("run")]
    assert sum(losses[-16:]) < 0.8 * sum(losses[:16])
    assert not [*weights.load("run").encoder.parameters()]
    call("evaluate.py", "--task", "classify", "--toy-videos", "20", "--checkpoint", "run", "--json",
         "a.json")
    top1 = read_json("a.json")["top1"]
    assert top1["teacher"] > 40 and top1["ours"] != top1["teacher"] and top1["ours"] > 40
    assert "only with --task classify" in fails(capsys, *tune, "--task", "forecast")


@pytest.mark.skipif(not shutil.which("nvidia-smi"), reason="no GPU")
def test_on_a_gpu_in_bfloat16(here):
    """Catches: a tensor on another device, a type that autocast does not have."""
    env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    for line in ("train.py --toy-videos 16 --epochs 1 --out run --device cuda",
                 "train.py --stage finetune --task forecast --toy-videos 16 --epochs 1 --init run "
                 "--out tuned --device cuda",
                 "evaluate.py --toy-videos 4 --checkpoint tuned --json a.json --device cuda"):
        script, *flags = line.split()
        subprocess.run([sys.executable, ROOT / script, *flags], env=env, check=True)
    assert read_json("a.json")["evaluated"] == 28


def test_the_included_checkpoint_forecasts(here, capsys):
    """Catches: weights, a scale or a spacing of another version; too many lines told."""
    call("evaluate.py", "--toy-videos", "40", "--json", "a.json")
    found, told = read_json("a.json"), capsys.readouterr().out
    top1, truth = found["top1"], found["truth"]
    assert 60 < top1["zero_noise"] <= truth["exact"] + 5 and top1["oracle"] > top1["zero_noise"]
    assert f"{top1['zero_noise']:.1f}" in told and "no runs/pretrain: the included" in told
    assert len(told.splitlines()) <= 20 and found["checkpoint"] == str(INCLUDED)


def test_what_a_checkpoint_cannot_do_is_one_line(trained, here, capsys, monkeypatch):
    """Catches: a traceback, or a score of a task it was not trained for; another teacher; NaN."""
    model = weights.load(trained / "mask")
    torch.nn.init.constant_(model.encoder.head.bias, torch.nan)
    weights.save("nan.pt", model)
    flags = "--toy-videos", "1", "--checkpoint", "nan.pt"
    assert "scores are not finite" in fails(capsys, "evaluate.py", *flags, status=1)
    model.phrases[0] = model.phrases[1]                # as another teacher embeds the first phrase
    weights.save("other.pt", model)
    epic = "--data", "epic", "--annotations", "other.pt", "--videos", "."
    for checkpoint, flags, words in (
            ("none", ("--task", "forecast"), "without h"),
            ("mask", ("--task", "activity"), "is not fine-tuned"),
            ("mask", ("--data", "coin"), "required: --videos, --annotations"),
            ("mask", ("--videos", "x"), "--videos: --data toy has no such flag"),
            ("mask", (*epic, "--task", "forecast"), "epic supports only classify"),
            ("mask", epic, "--task classify --data epic"),
            (here / "other.pt", ("--toy-videos", "1"), "another teacher")):
        assert words in fails(capsys, "evaluate.py", *flags, "--checkpoint", trained / checkpoint)
    monkeypatch.setattr(evaluate.Classify, "frames", 32)               # as actions are tuned on
    assert "is not fine-tuned" in fails(capsys, "evaluate.py", "--task", "classify",
                                        "--toy-videos", "1", "--checkpoint", trained / "mask")


def test_what_cannot_be_read_is_counted_and_not_scored(trained, here, capsys, monkeypatch):
    """Catches: a score of some videos that is called one of all; too many unreadable ones."""
    broken_source(monkeypatch, lambda name: name == "test_00001")
    flags = "--task", "classify", "--toy-videos", "2", "--checkpoint", trained / "mask"
    call("evaluate.py", *flags, "--max-unreadable", "0.5", "--json", "a.json")
    content = read_json("a.json")
    assert (content["evaluated"], content["listed"], content["unreadable"]) == (8, 16, 1)
    assert "cut off" in fails(capsys, "evaluate.py", *flags)
