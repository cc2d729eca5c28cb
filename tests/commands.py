"""What the tests of commands share: run one in this process; videos that cannot be read."""
import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

from data import Unreadable
from support.errors import run_command
from toy.source import Toy

ROOT = Path(__file__).parents[1]
ONE = "--toy-videos", "6", "--batch", "6", "--sgd-epochs", "1", "--epochs", "0"     # one update


def call(program, *argv):
    """Run `python PROGRAM ...` in this process; of "files", files/__main__.py."""
    name, argv = program.removesuffix(".py").replace("/", "."), [*map(str, argv)]
    module = importlib.import_module(name if program.endswith(".py") else f"{name}.__main__")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [f"/somewhere/{program}", *argv])
        return run_command(module.main, lambda: module.parse(argv))


def fails(capsys, program, *argv, status=2):
    """The one line of stderr that a command ends with."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        call(program, *argv)
    line = capsys.readouterr().err.rstrip("\n").split("\n")[-1].split("\r")[-1]
    assert end.value.code == status and "error: " in line, line
    return line


def read_json(path):
    """Strict JSON: no NaN, no Infinity."""
    return json.loads(Path(path).read_text(encoding="utf-8"),
                      parse_constant=lambda text: pytest.fail(text))


def broken_source(monkeypatch, fails):
    """The videos of the world, of which fails(name) tells whether one cannot be read now."""
    clips = Toy.clips

    def read(self, i, windows, rng=None):
        if fails(self.videos[i].name):
            raise Unreadable("cut off")
        return clips(self, i, windows, rng)
    monkeypatch.setattr(Toy, "clips", read)


def rows_of(out):
    """metrics.jsonl of a run."""
    return [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]


def same_run(a, b):
    """Whether two runs have the same losses and, bit for bit, the same weights and momenta."""
    ours, theirs = (torch.load(Path(out) / "checkpoint.pt", weights_only=True) for out in (a, b))
    tensors = [[*content["model"].values(), *(value for state in content["optimizer"][
        "state"].values() for value in state.values())] for content in (ours, theirs)]
    losses = [[(row["step"], row["loss"], row["lr"]) for row in rows_of(out)] for out in (a, b)]
    return losses[0] == losses[1] and ours["step"] == theirs["step"] and all(
        map(torch.equal, *tensors))
