"""A run that was killed goes on exactly, from the newest checkpoint that is whole."""
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import data  # noqa: E402
from evaluation import inference  # noqa: E402
from training import cache  # noqa: E402
import model  # noqa: E402
from training import run  # noqa: E402
import train  # noqa: E402
from commands import TINY, call, coin_flags, fails, make_coin, make_teacher, struck  # noqa: E402

EVERY = "--save-every", "2", "--log-every", "2"          # so that a kill costs steps


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A working folder with a teacher, COIN files, and uninterrupted runs in whole/ and coin/run.

    One thread: every process then adds in the same order.
    """
    threads, folder = torch.get_num_threads(), tmp_path_factory.mktemp("resume")
    torch.set_num_threads(1)
    make_teacher(folder)
    (folder / "coin").mkdir()
    make_coin(folder / "coin")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        call("train.py", *TINY, *EVERY, "--out", "whole")
        call("train.py", *TINY, *EVERY, *coin_flags(), "--order-epochs", "3", "--out", "coin/run")
    yield folder
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def source(place):
    """The videos of TINY, rendered once: processes begin as copies of this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        return data.ToySource("train", 16, 4, data.toy_teacher("cpu"), False)


@pytest.fixture(autouse=True)
def here(place, source, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.chdir(place)
    monkeypatch.setattr(data, "ToySource", lambda *args: source)
    yield
    signal.signal(signal.SIGTERM, before)


def outcome(out):
    """Weights and momenta of the last checkpoint, and metrics.jsonl but for what a clock says."""
    content = torch.load(Path(out) / "checkpoint.pt", weights_only=True)
    rows = [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]
    state = [value for entry in content["optimizer"]["state"].values() for value in entry.values()]
    return ([*content["model"].values(), *state],
            [{name: row[name] for name in row if name != "clips_per_s"} for row in rows])


def same(a, b):
    """Bit for bit."""
    (ours, rows), (theirs, other) = outcome(a), outcome(b)
    return rows == other and len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


KILL, TERM, CTRL_C = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
STEP = run, "set_seed"
AGAIN = {                     # of 12 steps, 3 in each stage; signal, where, at which call of it
    "0": [(KILL, *STEP, 2), (KILL, os, "replace", 5),          # between the renames of step 3
          (TERM, *STEP, 3), (KILL, train, "make_optimizer", 3), (CTRL_C, cache, "load_grid", 3),
          (TERM, cache, "load_grid", 3), (KILL, cache, "load_grid", 3), (KILL, *STEP, 2)],
    "2": [(TERM, *STEP, 2), (KILL, *STEP, 4), (CTRL_C, *STEP, 2)],
}


@pytest.mark.parametrize("workers", [*AGAIN])
def test_killed_again_and_again(workers):
    """Catches: a step done twice or left out, noise, views, order of videos, momentum or rate that
    starts anew, kept embeddings that differ; rows of metrics that are lost or stay. In each of the
    four stages, mid-epoch, with steps since the last checkpoint; while it is renamed, between two
    stages, and while videos are embedded, which ends at once."""
    flags = (*TINY, *EVERY, "--workers", workers, "--out", f"killed-{workers}", "--resume")
    for number, *where in AGAIN[workers]:
        code = struck(number, *where, "train.py", *flags)
        assert code == (-KILL if number == KILL else 128 + number), (number, where)
    call("train.py", *flags)
    assert same(f"killed-{workers}", "whole")


def copied(name):
    """The finished COIN run in a new folder, with its last two checkpoints, of steps 6 and 4."""
    shutil.copytree("coin/run", name)
    assert [torch.load(f"{name}/{file}", weights_only=True)["step"]
            for file in (run.NEWEST, run.BEFORE)] == [6, 4]


def spoil(path, how):
    """What a power failure, a full disk or a kill leaves."""
    whole = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(whole[:len(whole) // 2])
    else:                                              # one byte of a weight, in the middle
        at = len(whole) // 2
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:])


@pytest.mark.parametrize("how", ["missing", "cut", "bit"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(how, capsys):
    """Catches: one checkpoint cache, a damaged one that is gone on from or ends the run, nothing
    said; the whole one lost when the next is saved."""
    copied(how)
    spoil(Path(how, run.NEWEST), how)
    flags = (*TINY, *EVERY, *coin_flags(), "--order-epochs", "3", "--out", how)
    assert "--resume" in fails(capsys, 2, "train.py", *flags)
    capsys.readouterr()
    call("train.py", *flags, "--resume")
    said = capsys.readouterr().out
    assert f"{how}/{run.NEWEST}" in said and "step 4" in said
    assert same(how, "coin/run") and not list(Path(how).glob("*.part"))


def test_two_damaged_checkpoints_end_with_2(capsys):
    """Catches: a run that begins anew over what is left of a month."""
    copied("both")
    for name in (run.NEWEST, run.BEFORE):
        spoil(Path("both", name), "cut")
    left = Path("both", run.NEWEST).read_bytes()
    line = fails(capsys, 2, "train.py", *TINY, *EVERY, *coin_flags(), "--order-epochs", "3",
                 "--out", "both", "--resume")
    assert "both" in line and Path("both", run.NEWEST).read_bytes() == left


@pytest.mark.parametrize("moment", ["write", "first rename", "second rename"])
def test_a_disk_that_fails_while_saving_leaves_a_whole_checkpoint(moment, capsys):
    """Catches: the last checkpoint lost to a full disk or a folder that has become read-only."""
    replace, save, count = os.replace, torch.save, {"save": 0, "rename": 0}

    def fail(kind, at, real, *args):
        if kind == "save" or str(args[-1]).endswith((run.NEWEST, run.BEFORE)):
            count[kind] += 1
            if count[kind] == at:
                raise OSError(28, "No space left on device")
        return real(*args)
    out = f"disk-{moment}"
    flags = (*TINY, *EVERY, *coin_flags(), "--order-epochs", "3", "--out", out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "save", lambda *args: fail(
            "save", 2 if moment == "write" else 0, save, *args))
        patch.setattr(os, "replace", lambda *args: fail(
            "rename", {"first rename": 2, "second rename": 3}.get(moment, 0), replace, *args))
        with pytest.raises(SystemExit) as end:
            call("train.py", *flags)
    assert end.value.code == 2 and "error: [Errno 28] No space left" in capsys.readouterr().err
    assert sum((Path(out) / name).exists() for name in (run.NEWEST, run.BEFORE)) == 1
    call("train.py", *flags, "--resume")
    assert same(out, "coin/run")


@pytest.mark.parametrize("out", ["/proc/run", "coin/COIN.json/run"])
def test_a_folder_that_cannot_be_written_ends_with_2(out, capsys):
    """Catches: a traceback, or an hour of training before the folder is found to be read-only."""
    assert out.split("/")[1] in fails(capsys, 2, "train.py", *TINY, *coin_flags(), "--out", out)
    assert model.read_checkpoint("coin/run")["step"] > 2


def test_fine_tuning_that_is_struck():
    """Catches: a Ctrl-C that waits until all clips are encoded; fine-tuning that goes on from
    another batch, rate or momentum."""
    flags = ("--stage", "finetune", "--task", "classify", "--init", "whole", "--toy-videos", "16",
             "--epochs", "0.3", "--batch", "8", "--log-every", "1", *EVERY, "--device", "cpu",
             "--out")
    call("train.py", *flags, "fine")
    for number, *where in ((CTRL_C, inference, "load_samples", 2), (KILL, *STEP, 4),
                           (TERM, *STEP, 2)):
        code = struck(number, *where, "train.py", *flags, "fine-struck", "--resume")
        assert code == (-KILL if number == KILL else 128 + number), (number, where)
    call("train.py", *flags, "fine-struck", "--resume")
    assert same("fine-struck", "fine")
