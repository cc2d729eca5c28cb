"""The paper's protocols: 68 s of history, CLIP fine-tuned, training videos held out; and a GPU."""
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import data
import weights
from commands import call, fails, read_json
from test_finetune import TUNE
from test_train import ONE, rows_of
from toy.__main__ import export

ROOT = Path(__file__).parents[1]


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
        assert weights.load(way).config.history == way
        assert all(by_distance == (way == "spaced") for _, by_distance in seen)
        assert all(n == 8 for n, _ in seen) == (way == "paper")
        seen.clear()
        call(*ask, way)
        assert read_json("a.json")["warning"] is None
        assert {by_distance for _, by_distance in seen} == {way == "spaced"}
    call(*ask, "paper", "--history", "spaced")
    assert "spaced; the checkpoint is tuned on paper" in read_json("a.json")["warning"]
    call("predict.py", "--checkpoint", "paper", "--at", "30", "--json", "p.json")
    assert len(read_json("p.json")["clips"]) == 8
    for command in ("train.py", *tune), ask[:1]:
        assert "--history: invalid choice" in fails(capsys, *command, "--history", "68")
    content = torch.load(trained / "diffusion" / "checkpoint.pt", weights_only=True)
    content["config"]["spacing"] = None                    # as of published weights
    torch.save(content, "published.pt")
    seen.clear()
    call(*ask, "published.pt")
    assert not any(by_distance for _, by_distance in seen)
    assert "--history paper" in fails(capsys, *ask, "published.pt", "--history", "spaced")


def test_a_share_held_out_is_not_trained_on(trained, here, capsys):
    """Catches: held-out videos trained on, or more than a share of them left out in silence; a
    tuned checkpoint scored on what it was tuned on; a share that is none; for other data."""
    export(here / "world", 30, 2)
    real = ("--data", "coin", "--annotations", "world/COIN.json", "--videos", "world", "--clip",
            "toy")
    tune = *TUNE, *real, "--epochs", ".2", "--init", trained / "diffusion", "--out"
    call("train.py", *tune, "all")
    call("train.py", *tune, "most", "--hold-out", ".3")
    trained_on = [json.loads(Path(run, "config.json").read_text())["settings"]["list of videos"]
                  for run in ("all", "most")]
    count = [int(text.split()[0]) for text in trained_on]
    assert count[0] == 30 and 15 < count[1] < 28
    ask = "evaluate.py", "--task", "classify", *real, "--split", "validation", "--json", "a.json"
    assert "--hold-out 0.1" in fails(capsys, *ask, "--checkpoint", "all")
    call(*ask, "--checkpoint", "most")
    assert read_json("a.json")["evaluated"] == 8 * (30 - count[1])
    for share in "1", "0", "2":
        line = fails(capsys, "train.py", *tune, "x", "--hold-out", share)
        assert "--hold-out" in line and "share" in line
    line = fails(capsys, "train.py", *TUNE, "--hold-out", ".1", "--init", trained / "diffusion")
    assert "--data toy has no --hold-out" in line


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


def test_compiled_blocks_keep_their_names(here, capsys, monkeypatch):
    """Catches: a flag that compiles nothing; a checkpoint with other names; a traceback where there
    is no compiler."""
    compiled = []
    monkeypatch.setattr(nn.Module, "compile", lambda block: compiled.append(type(block).__name__))
    call("train.py", *ONE, "--out", "plain")
    call("train.py", *ONE, "--compile", "--out", "run")
    assert sorted(compiled) == ["Block", "Block", "ResidualAttentionBlock"]
    assert rows_of("run")[0]["loss"] == rows_of("plain")[0]["loss"]
    assert [*weights.load("run").state_dict()] == [*weights.load("plain").state_dict()]
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "needs a C++ compiler" in fails(capsys, "train.py", *ONE, "--compile", "--out", "none")


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
