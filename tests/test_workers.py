"""Processes that read or train: out of memory, ended by a bug, or several that share a run."""
import multiprocessing
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import train
from commands import ONE, ROOT, broken_source, call, fails, read_json, rows_of
from conftest import log_and_save_every
from support.workers import epoch_order, read_ahead

FOLDERS = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
ENV = os.environ | {"PYTHONPATH": os.pathsep.join(FOLDERS), "OMP_NUM_THREADS": "1"}
FLAGS = ("--toy-videos", "12", "--batch", "6", "--sgd-epochs", "1.5", "--epochs", "1.5", "--out",
         "run", "--max-unreadable", ".5", "--device", "cpu")           # 6 updates, of 2 in an epoch
LOST = [f"train_{i:05}" for i in epoch_order(12, 0, 0)[3:6]]           # of the second process
STOPPED = f"""
import os, pytest, signal, sys, commands, conftest, train
patch, rate = pytest.MonkeyPatch(), train.learning_rate
conftest.log_and_save_every(2, patch)
def interrupt(update, *stage):
    if (update, os.environ["RANK"]) == (3, "1"):
        os.kill(os.getpid(), signal.SIGTERM)
    return rate(update, *stage)
train.learning_rate = interrupt
commands.broken_source(patch, lambda name: name in {LOST})
commands.call("train.py", *sys.argv[1:])"""


@pytest.fixture(scope="module", autouse=True)
def two(tmp_path_factory):
    """A run of two processes, beside the other tests -> (Popen, folder). Each has a worker, and
    reads two videos and then the third; all of the second process' first update are unreadable; and
    it is asked to stop in the fourth update."""
    folder = tmp_path_factory.mktemp("two")
    process = subprocess.Popen([
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "--no-python", sys.executable, "-c", STOPPED, *FLAGS, "--workers", "1", "--micro-batch",
        "20"], env=ENV, cwd=folder)
    yield process, folder
    process.terminate()
    process.wait(60)


def test_too_little_memory_is_one_line(here, capsys, monkeypatch, forked):
    """Catches: a traceback; a run that waits for a worker for good; need of other items."""
    def full(*args):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    with monkeypatch.context() as patch:
        patch.setattr(train, "objective", full)
        line = fails(capsys, "train.py", *ONE, "--out", "run")
    assert "--micro-batch" in line and "--batch" in line

    def no_space(tensor):
        if tensor.ndim > 2:                            # clips, of a worker
            raise RuntimeError("unable to allocate shared memory(shm): No space left on device")
        return tensor
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "share_memory_", no_space)
        line = fails(capsys, "train.py", *ONE, "--workers", "1", "--out", "three")
    need = (2 + 6) * 9 * 3 * 4 * 2 * 32 * 32 / 2 ** 30          # two read ahead, a batch of six
    assert f"needs up to {need:.2g} GiB" in line and "--shm-size" in line and "--workers" in line


class Broken:
    """Items are rows of one number; 3 and 4 are bugs."""
    name = staticmethod(str)

    def __getitem__(self, item):
        if item > 2:
            raise {3: RuntimeError, 4: TypeError}[item]("a bug")
        return torch.tensor([item])


def test_a_bug_ends_its_own_processes_alone():
    """Catches: another's process killed; a bug told as a killed worker; a wait at the end."""
    child = multiprocessing.Process(target=time.sleep, args=(60,))
    child.start()
    try:
        for count in 0, 1:
            with ThreadPoolExecutor(1) as pool:
                reads = pool.submit(lambda: [*read_ahead(Broken(), [0, 1, 2], count)])
            assert reads.result() == [0, 1, 2]
            with pytest.raises(RuntimeError, match="a bug"):
                [*read_ahead(Broken(), [0, 3], count)]
        child.join(0.2)                                # a killed one may be ending
        assert child.is_alive()
    finally:
        child.kill()
        child.join()
    code = "from test_workers import Broken, read_ahead\n[*read_ahead(Broken(), [0, 4], 1)]"
    end = subprocess.run([sys.executable, "-c", code], env=ENV, timeout=60, capture_output=True)
    assert end.returncode == 1 and b"TypeError: a bug" in end.stderr


def test_a_run_is_the_same_whatever_processes_make_it(two, here, monkeypatch):
    """Catches: shares that overlap; a mean over processes; draws that depend on the process or the
    micro-batch; a stop or metrics of one process alone; one that waits for another for good."""
    process, folder = two
    assert process.wait(200) != 0                      # it was stopped
    log_and_save_every(2, monkeypatch)
    broken_source(monkeypatch, lambda name: name in LOST)
    call("train.py", *FLAGS)
    monkeypatch.chdir(folder)
    assert read_json("run/unreadable.json").keys() == {*LOST}
    assert [row["step"] for row in rows_of("run")] == [2, 4]
    call("train.py", *FLAGS, "--resume")
    for ours, theirs in zip(rows_of("run"), rows_of(here / "run"), strict=True):
        for name in ("loss", "xe", "mse", "mc", "match", "match_h", "lr"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-5), name
    ours, theirs = (torch.load(Path(out, "checkpoint.pt"), weights_only=True)["model"]
                    for out in ("run", here / "run"))
    ours, theirs = (torch.cat([*map(torch.flatten, one.values())]) for one in (ours, theirs))
    assert (ours - theirs).norm() < 1e-4 * theirs.norm()


def test_processes_that_do_not_fit_are_one_line(here, capsys, monkeypatch, trained):
    """Catches: fine-tuning in several processes, a traceback for more processes than GPUs."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")     # as torchrun does
    for name, value in ("RANK", "1"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "2"), (
            "LOCAL_WORLD_SIZE", "2"):
        monkeypatch.setenv(name, value)
    assert "in one process" in fails(capsys, "train.py", "--stage", "finetune", "--init",
                                     trained / "mask")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(train, "pick_device", lambda name: torch.device("cuda"))
    assert "1 GPUs" in fails(capsys, "train.py", *ONE, "--out", "three")
