"""Processes that read or train: out of memory, ended by a bug, or several that share a run."""
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from commands import ONE, ROOT, broken_source, call, fails, rows_of
from conftest import TINY, log_and_save_every

import train
import weights
from data import LeftOut, Read, Unreadable
from support.errors import InputError
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
    asked = " ".join(f"train_{i:05}" for i in epoch_order(6, 0, 0)[:2])
    assert "error: unable to allocate shared memory(shm): No space left on device; " in line
    assert "--workers than 1" in line and "--shm-size" in line and f"--skip {asked}" in line
    assert not multiprocessing.active_children() and not Path("three").exists()


class Items:
    """Items are numbers; some are odd."""
    name = staticmethod(str)

    def __init__(self, odd=None):
        self.odd, self.failures = odd or {}, []

    def __getitem__(self, item):
        what = self.odd.get(item[1])
        if isinstance(what, Exception):
            self.failures.append(item)
            raise what
        if what == "passes" and len(self.failures) < 2:
            self.failures.append(item)
            raise Unreadable("no answer")
        if what == "hangs":
            time.sleep(1000)
        if isinstance(what, int):
            os.kill(os.getpid(), what)
        return Read(f"v{item[1]}", item[2], torch.ones(2))


def items_of(count):
    return [(0, i, i) for i in range(count)]


def test_a_video_is_unreadable_after_three_failures_in_a_row():
    """Catches: an error of a network that passes taken for a broken file; a file tried for ever; a
    reason that is lost; one that is left out tried again, or counted."""
    dataset = Items({0: "passes"})
    with read_ahead(dataset, items_of(1), 0) as reads:
        assert next(reads).failed is None and len(dataset.failures) == 2
    dataset = Items({0: Unreadable("cut off"), 1: LeftOut("no words")})
    with read_ahead(dataset, items_of(3), 0) as reads:
        cut, silent, good = reads
    assert (cut.name, cut.place, cut.failed, cut.left_out) == (str((0, 0, 0)), 0, "cut off", False)
    assert (silent.failed, silent.left_out, good.failed) == ("no words", True, None)
    assert [item[1] for item in dataset.failures] == [0, 0, 0, 1]


def test_a_bug_ends_its_own_processes_alone():
    """Catches: another's process killed; a bug told as a killed worker; a worker that is left."""
    child = multiprocessing.Process(target=time.sleep, args=(60,))
    child.start()
    try:
        for count in 0, 1:
            with ThreadPoolExecutor(1) as pool:
                reads = pool.submit(lambda: read_all(Items(), 3, count))
            assert [read.place for read in reads.result()] == [0, 1, 2]
            with pytest.raises(RuntimeError, match="a bug"):
                read_all(Items({1: RuntimeError("a bug")}), 3, count)
            with pytest.raises(KeyError), read_ahead(Items(), items_of(9), count) as reads:
                next(reads)
                raise KeyError                         # of the loop itself
            assert multiprocessing.active_children() == [child]
    finally:
        child.kill()
        child.join()


def read_all(dataset, count, workers):
    with read_ahead(dataset, items_of(count), workers) as reads:
        return list(reads)


@pytest.mark.parametrize("number", ["SIGKILL", "SIGBUS"])      # SIGBUS: of a full /dev/shm
def test_a_worker_that_dies_is_one_line(number):
    """Catches: a wait for good; another video named, or none; a worker that is left."""
    if not hasattr(signal, number):
        pytest.skip("there are no such signals here")
    with pytest.raises(InputError) as error:
        read_all(Items({5: getattr(signal, number)}), 40, 2)
    line = str(error.value)
    assert line.startswith("DataLoader worker") and "\n" not in line
    assert "--workers than 2" in line and "--shm-size" in line
    names = line.partition("--skip ")[2]
    assert str((0, 5, 5)) in names and names.count("(") <= 2 * 2       # each reads two ahead
    assert not multiprocessing.active_children()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="a process is not killed here")
def test_a_worker_that_dies_while_the_run_saves_is_one_line(here, capsys, monkeypatch):
    """Catches: a traceback, a full disk told instead; a checkpoint that is lost, a part left."""
    save, killed = torch.save, []

    def kill(content, file):
        if content.get("step") == 3:
            killed.extend(multiprocessing.active_children())
            killed[0].kill()
            time.sleep(0.5)
        save(content, file)
    monkeypatch.setattr(torch, "save", kill)
    line = fails(capsys, "train.py", *TINY, "--out", "run", "--workers", "2")
    assert "error: DataLoader worker" in line and "--shm-size" in line and "disk" not in line
    assert not any(process.is_alive() for process in killed) and len(killed) == 2
    assert weights.checkpoint.read("run")["step"] == 2 and len([*Path("run").iterdir()]) == 3


def test_a_worker_that_hangs_is_ended(monkeypatch):
    """Catches: a program that waits for ever at its end."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.5)      # s
    with pytest.raises(KeyError), read_ahead(Items({1: "hangs"}), items_of(9), 1) as reads:
        next(reads)
        time.sleep(0.5)
        raise KeyError
    assert not multiprocessing.active_children()


def test_a_run_is_the_same_whatever_processes_make_it(two, here, monkeypatch):
    """Catches: shares that overlap; a mean over processes; draws that depend on the process or the
    micro-batch; a stop or metrics of one process alone; one that waits for another for good."""
    process, folder = two
    assert process.wait(200) != 0                      # it was stopped
    log_and_save_every(2, monkeypatch)
    broken_source(monkeypatch, lambda name: name in LOST)
    call("train.py", *FLAGS)
    monkeypatch.chdir(folder)
    lines = Path("run/unreadable.txt").read_text().splitlines()    # once for each process
    assert {*lines} == {f"{name}\tcut off" for name in LOST} and len(lines) <= 2 * len(LOST)
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
