"""A run that is struck, in a fork of this process, is resumed to the bits of a whole one."""
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

import losses
import train
from commands import COIN, TINY, call, fails, flip, log_and_save_every, same_run, struck
from data import Loaded
from evaluation import embedding, labeled
from support.command import parse
from training import pretrain, run
from toy.source import ToySource, load_teacher

ROOT = Path(__file__).parent.parent
FINE = ("--stage", "finetune", "--task", "forecast", "--toy-videos", "16", "--epochs", "0.3",
        "--batch", "8", "--device", "cpu")


@pytest.fixture(scope="module")
def source(workspace):
    """The videos of TINY, rendered once: every process begins as a copy of this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workspace)
        return ToySource("train", 16, 4, load_teacher("cpu"))


def log_and_save_every_two(patch, source):
    """Rows and checkpoints after every second step only, so that a kill costs steps."""
    for module in (pretrain, labeled):
        patch.setattr(module, "ToySource", lambda *args: source)
    log_and_save_every(2, patch)


@pytest.fixture(scope="module")
def runs(workspace, source, tmp_path_factory):
    """{command: an uninterrupted run of it}; fine-tuning starts from the first."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workspace)
        log_and_save_every_two(patch, source)
        call("train.py", *TINY, "--out", str(folder / "pretrain"))
        fine = *FINE, "--init", str(folder / "pretrain")
        call("train.py", *fine, "--out", str(folder / "finetune"))
        call("train.py", *COIN, "--out", str(folder / "coin"))
    return {TINY: folder / "pretrain", fine: folder / "finetune", COIN: folder / "coin"}


@pytest.fixture(autouse=True)
def every_two(here, source, monkeypatch):
    log_and_save_every_two(monkeypatch, source)


def fill_disk(whole, *args):
    """The next checkpoint is written to a disk that is full."""
    Path(f"struck/checkpoint.pt.{os.getpid()}.part").symlink_to("/dev/full")
    return whole(*args)


def poison(whole, *args):
    """The next gradients are NaN."""
    def spoil_gradients(optimizer, *_):
        for p in optimizer.param_groups[0]["params"]:
            p.grad.mul_(float("nan"))
    register_optimizer_step_pre_hook(spoil_gradients)
    return whole(*args)


def lose_video(whole, *args, **kwargs):
    """What is read now cannot be read; its last argument serves as its name."""
    result, nothing = whole(*args, **kwargs), torch.empty(0)
    loaded = Loaded([], nothing, nothing, {str(args[-1])[:9]: "cut off"})
    return loaded if isinstance(result, Loaded) else (loaded, [])


def at_step(step, place=0):
    """The call with this number of a step as an argument."""
    return lambda *args: args[place] == step


STEP = torch, "manual_seed"                            # called in the middle of a step
# Of 6 steps, three in each stage. In step 4 a strike comes off the schedule of saving.
SIGNALS = [(*STEP, at_step(1)),
           (pretrain.Pretraining, "make_optimizer", lambda run, stage: stage.name == "adamw"),
           (*STEP, at_step(4)), (*STEP, at_step(5))]
SAVED = [(*STEP, at_step(step)) for step in (1, 3, 5)]          # a checkpoint follows at once
READ = [(pretrain, "load_step", at_step(step, 3)) for step in (1, 4)]
FINE_READ = [(embedding, "load_samples", 2)]
# fault: what happens, the exit code, where in pre-training, where in fine-tuning
FAULTS = {"kill": (signal.SIGKILL, -signal.SIGKILL, SIGNALS, [*FINE_READ, (*STEP, at_step(2))]),
          "SIGTERM": (signal.SIGTERM, 143, SIGNALS, [*FINE_READ, (*STEP, at_step(2))]),
          "Ctrl-C": (signal.SIGINT, 130, SIGNALS, [*FINE_READ, (*STEP, at_step(2))]),
          "full disk": (fill_disk, 2, SAVED, SAVED[:1]), "NaN": (poison, 1, SAVED, SAVED[:1]),
          "unreadable video": (lose_video, 2, READ, FINE_READ)}


@pytest.mark.parametrize("stage", ["pretrain", "finetune"])
@pytest.mark.parametrize("fault, workers", [
    (fault, workers) for fault in FAULTS for workers in "01"
    if workers == "1" or fault in ("Ctrl-C", "unreadable video")])   # the others are alike
def test_struck_in_every_stage_and_resumed(runs, fault, stage, workers):
    """Catches: another status; a step twice or left out; noise or momentum that starts again."""
    what, status, *places = FAULTS[fault]
    flags = *next(flags for flags, out in runs.items() if out.name == stage), "--workers", workers
    for place in places[stage == "finetune"]:
        code = struck(what, *place, "train.py", *flags, "--out", "struck", "--resume")
        assert code == status, place
        assert not list(Path("struck").glob("*.part")) or fault == "kill"
    call("train.py", *flags, "--out", "struck", "--resume")
    assert same_run("struck", runs[flags[:-2]]) and not list(Path("struck").glob("*.part"))


@pytest.mark.parametrize("fault, status", [
    (signal.SIGKILL, -signal.SIGKILL), (lambda *args: os.rmdir("struck"), 2)])
@pytest.mark.parametrize("renamed", [run.BEFORE, run.NEWEST])
def test_struck_while_a_checkpoint_is_renamed(runs, fault, status, renamed):
    """Catches: the last checkpoint lost to a kill, or to a folder that has become read-only."""
    there = Path("struck", run.NEWEST if renamed == run.BEFORE else run.BEFORE)
    flags = *COIN, "--out", "struck"
    code = struck(fault, os, "replace", lambda old, new: new == Path("struck", renamed)
                  and there.exists(), "train.py", *flags)
    assert code == status
    assert torch.load(there, weights_only=True)["step"] == 2
    call("train.py", *flags, "--resume")
    assert same_run("struck", runs[COIN])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_modules_are_imported(number):
    """Catches: a run that goes on with half a module: imports may swallow any exception."""
    Path("torch.py").write_text(f"import os\ntry:\n    os.kill(os.getpid(), {int(number)})\n"
                                "    import time\n    time.sleep(9)\nexcept BaseException: pass\n")
    end = subprocess.run([sys.executable, ROOT / "train.py"], capture_output=True, text=True,
                         env={**os.environ, "PYTHONPATH": "."}, preexec_fn=lambda: signal.signal(
                             signal.SIGINT, signal.default_int_handler))
    assert (end.returncode, end.stderr) == (128 + number, "")


def test_an_error_in_the_loop_leaves_no_handler(runs, monkeypatch):
    """Catches: a generator that stays open, with the signals that it holds back."""
    monkeypatch.setattr(losses, "xe_loss", lambda *args: 1 / 0)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError) as error:    # its traceback refers to the loop
        train.main(parse(train.TrainSettings, COIN))
    assert signal.getsignal(signal.SIGINT) is before, error


def cut(path):
    """What a full disk or a power failure leaves of a file."""
    path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])


@pytest.mark.parametrize("spoil", [
    Path.unlink, cut, lambda path: flip(path, path.stat().st_size // 2)])      # a bit of a weight
def test_a_damaged_checkpoint_falls_back_to_the_one_before(runs, spoil, capsys):
    """Catches: a damaged checkpoint continued, or in the whole one's place; a fresh start."""
    shutil.copytree(runs[COIN], "run")
    spoil(Path("run", run.NEWEST))
    flags = *COIN, "--out", "run"
    call("train.py", *flags, "--resume")
    printed = capsys.readouterr().out
    assert f"run/{run.NEWEST}" in printed and "step 2" in printed
    assert same_run("run", runs[COIN]) and not list(Path("run").glob("*.part"))
    for name in (run.NEWEST, run.BEFORE):
        cut(Path("run", name))
    left = Path("run", run.NEWEST).read_bytes()
    assert "run/" in fails(capsys, 2, "train.py", *flags, "--resume")
    assert Path("run", run.NEWEST).read_bytes() == left


def test_a_micro_batch_that_follows_the_memory_is_no_other_setting(monkeypatch, capsys):
    """Catches: a run that is never resumed, since it chose its --micro-batch itself."""
    monkeypatch.setattr(pretrain, "memory_of", lambda device: 2 ** 20)
    call("train.py", *TINY, "--out", "run")
    assert "f encodes all" not in capsys.readouterr().out
    call("train.py", *TINY, "--out", "run", "--resume")


def test_damaged_rows_are_dropped_and_counted(runs, capsys):
    """Catches: a traceback for a list, a number, null or a bad byte; a row that was whole lost."""
    shutil.copytree(runs[COIN], "run")
    os.replace("run/checkpoint_before.pt", "run/checkpoint.pt")        # a step is left
    path, bad = Path("run", "metrics.jsonl"), [
        b"3", b"null", b'{"step": "1"}', b'{"step": NaN}', b'{"step": 1, "loss": "\xff"}',
        b'{"step": 1, "l', b"[",
        b'{"step": ' + 5000 * b"9" + b', "loss": 1.0}']
    path.write_bytes(b"\n".join([*bad, path.read_bytes()]))
    call("train.py", *COIN, "--out", "run", "--resume")
    assert same_run("run", runs[COIN])
    assert "8 damaged rows dropped" in capsys.readouterr().out
