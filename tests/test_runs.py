"""The runs of train.py: stopped, resumed, refused; its worker processes and several processes."""
import copy
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import train
import weights
from commands import call, fails, read_json
from conftest import TINY, log_and_save_every
from data import Video
from support import errors
from test_train import (ONE, START, assert_one_update, random_start, rows_of, same_run,
                        terms_by_loops)
from toy import grammar
from toy.source import ToySource
from training import batches, parallel, run

ROOT = Path(__file__).parents[1]
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)      # Windows has none
LONG = "--toy-videos", "16", "--batch", "4", "--sgd-epochs", "1", "--epochs", "3"   # 16 updates
ONE_OF_NINE = *START, "--toy-videos", "9", "--batch", "8", "--device", "cpu"        # one update
FOLDERS = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
ENV = os.environ | {"PYTHONPATH": os.pathsep.join(FOLDERS), "OMP_NUM_THREADS": "1"}


# --- Stopped and resumed ---
@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run of LONG, with a row of metrics for every third update."""
    out = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        log_and_save_every(3, patch)
        call("train.py", *LONG, "--out", out)
    return out


def command(before, *flags):
    """`python train.py FLAGS`, after this line of code."""
    code = f"{before}; import train; from support.errors import run; run(train.main, train.parse)"
    return [sys.executable, "-c", code, *map(str, flags)]


def test_a_killed_run_resumes_bit_exactly(here, monkeypatch, whole):
    """Catches: draws that depend on the past, momenta lost; a row twice, or of an update after the
    checkpoint."""
    every = "import pytest, conftest; conftest.log_and_save_every(3, pytest.MonkeyPatch())"
    process = subprocess.Popen(command(every, *LONG, "--out", "run", "--workers", "1"), env=ENV)
    until = time.time() + 100
    while not Path("run/checkpoint.pt").exists() and time.time() < until:
        time.sleep(0.05)
    process.send_signal(KILL)
    process.wait(60)
    step = torch.load("run/checkpoint.pt", weights_only=True)["step"]
    log_and_save_every(3, monkeypatch)
    with open("run/metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(f'{{"step": {step + 1}}}\n{{"step": {step + 2}')        # killed while it wrote
    call("train.py", *LONG, "--out", "run", "--resume")
    assert same_run("run", whole)


def test_a_full_disk_leaves_the_last_checkpoint(here, capsys, monkeypatch, whole):
    """Catches: a checkpoint cut off, a traceback; a resumed run that differs, also if the source
    has another noise schedule by then, or if it had ended."""
    log_and_save_every(3, monkeypatch)
    save_file, saved = torch.save, []

    def fill(content, file):
        saved.append(content["step"])
        if len(saved) == 6:
            file.write(b"part")
            raise OSError(28, "No space left on device")
        save_file(content, file)
    monkeypatch.setattr(torch, "save", fill)
    assert "No space left" in fails(capsys, "train.py", *LONG, "--out", "run")
    assert torch.load("run/checkpoint.pt", weights_only=True)["step"] == 5
    assert len(list(Path("run").iterdir())) == 3       # no part of a file is left
    monkeypatch.setattr(train, "noise_levels", lambda D: torch.tensor([.4, .3, .2, .1]))
    for _ in range(2):
        call("train.py", *LONG, "--out", "run", "--resume")
        assert same_run("run", whole)


def test_checkpoints_come_by_the_clock(here, monkeypatch):
    """Catches: a checkpoint of every update, or of the last alone."""
    now, saved = iter(np.arange(0, 1e6, 100.)), []     # s, at each look at the clock
    monkeypatch.setattr(train, "SAVE_EVERY", 600.0)
    monkeypatch.setattr(train, "save", lambda args, model, optimizer, update, norm:
                        saved.append(update))
    monkeypatch.setattr(train.time, "perf_counter", lambda: next(now))
    call("train.py", *LONG, "--out", "run")
    assert 2 < len(saved) < 9 and saved[-1] == 16 and set(np.diff(saved[:-1])) < {2, 3, 4}


def test_a_run_is_not_mixed_with_another(trained, here, capsys):
    """Catches: a checkpoint overwritten, another run's settings taken; a run that cannot begin, or
    keeps the rows of one that ended before its first checkpoint."""
    out = trained / "mask"
    flags = *TINY, "--order", "mask", "--out", out
    line = fails(capsys, "train.py", *flags)
    assert "--resume" in line and "choose another" in line
    for flag, value in {"lr": .1, "seed": 1, "rows": "paper", "targets": "both", "order": "none",
                        "tau": .1, "batch": 2, "epochs": 9., "sgd-epochs": 9., "init": "x",
                        "toy-videos": 17, "context": "random", "encoder": "mvit",
                        "clip": "x"}.items():
        line = fails(capsys, "train.py", *flags, f"--{flag}", value, "--resume")
        assert f"has {flag.replace('-', '_')} " in line and f"not {value}" in line
    assert weights.load(out).order == "mask" and len(rows_of(out)) == 6
    assert "no update" in fails(capsys, "train.py", *ONE[:4], "--sgd-epochs", "0", "--epochs", "0")
    Path("new").mkdir()
    Path("new/metrics.jsonl").write_text('{"step": 1}\n')
    call("train.py", *ONE, "--out", "new", "--resume")
    assert len(rows_of("new")) == 1


def test_resume_compares_content_and_not_paths(here, capsys, monkeypatch):
    """Catches: a pool or a list that was changed in place; data that moved refused; a run of two
    processes that goes on with one."""
    Path("a.txt").write_text("\n".join(grammar.PHRASES))
    call("train.py", *ONE, "--out", "run", "--phrases", "a.txt")
    Path("a.txt").rename("b.txt")
    again = *ONE, "--out", "run", "--resume", "--phrases", "b.txt"
    call("train.py", *again)
    Path("b.txt").write_text("\n".join(reversed(grammar.PHRASES)))
    assert "has list of phrases 60 (sha256" in fails(capsys, "train.py", *again)
    args, content = train.parse([*again]), weights.checkpoint.read("run")
    videos = [Video(f"train_{i:05d}") for i in range(6)]
    source = SimpleNamespace(absent=[])
    for others in videos + [Video("new")], videos[::-1], videos[:-1]:
        source.videos = others
        with pytest.raises(ValueError, match=f"has list of videos 6 .*, not {len(others)} "):
            run.begin(args, content, source, phrases=grammar.PHRASES)
    source.videos = videos
    monkeypatch.setattr(parallel, "place", lambda: (0, 2))
    with pytest.raises(ValueError, match="has processes 1, not 2"):
        run.begin(args, content, source, phrases=grammar.PHRASES)


def test_a_loss_that_is_not_finite_ends_the_run(here, capsys, monkeypatch):
    """Catches: NaN in a checkpoint, also of an update without a row; training on; a status."""
    calls = []

    def broken(log_p, targets):
        calls.append(1)
        return log_p.sum() * (float("nan") if len(calls) == 3 else 1.0)
    monkeypatch.setattr(train, "xe_loss", broken)
    log_and_save_every(20, monkeypatch)
    line = fails(capsys, "train.py", *LONG, "--out", "run", status=1)
    assert "update 3" in line and "--lr" in line
    content = torch.load("run/checkpoint.pt", weights_only=True)
    assert content["step"] == 2
    assert all(value.isfinite().all() for value in content["model"].values())


def test_skipped_videos_are_counted_and_named(here, capsys, monkeypatch):
    """Catches: an unreadable video that ends the run, or is not named; one of another process that
    is not named, or not counted."""
    broken, load = grammar.make_video("train", 0).name, ToySource.load

    def load_some(self, requests, rng=None):
        kept = [request for request in requests if self.videos[request[0]].name != broken]
        failed = {broken: "cut off"} if len(kept) < len(requests) else {}
        loaded = load(self, kept or [(1, np.array([[0., 9.]]))], rng)
        return loaded._replace(failed=failed, requests=loaded.requests if kept else [])
    monkeypatch.setattr(ToySource, "load", load_some)
    flags = "--toy-videos", "8", "--batch", "1", "--sgd-epochs", "1", "--epochs", "0"
    call("train.py", *flags, "--max-unreadable", "0.2", "--out", "run")
    assert read_json("run/unreadable.json") == {broken: "cut off"} and len(rows_of("run")) == 8
    monkeypatch.setattr(parallel, "gather", lambda failed: [failed, {"b": "no", "c": "video"}])
    line = fails(capsys, "train.py", *flags, "--max-unreadable", "0.3", "--out", "two")
    assert "of 8 videos are unreadable" in line
    assert read_json("two/unreadable.json").keys() >= {"b", "c"}


# --- Workers and memory ---
@pytest.fixture
def forked():
    """Worker processes are forked: what is patched holds in them."""
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("worker processes cannot be forked here")
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("fork", force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


def test_too_little_memory_and_killed_workers_are_one_line(here, capsys, monkeypatch, forked):
    """Catches: a traceback for too little memory, for a killed worker, or for one that cannot hand
    over what it read; a run that waits for it for good; need that is not counted at the start."""
    def full(*args):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    with monkeypatch.context() as patch:
        patch.setattr(train, "encode_parts", full)
        line = fails(capsys, "train.py", *ONE, "--out", "run")
    assert "--micro-batch" in line and "--batch" in line

    def caught(args):
        raise RuntimeError("Caught RuntimeError in DataLoader worker process 0.\nTraceback\n"
                           "RuntimeError: can't allocate memory: 9 bytes")
    with pytest.raises(SystemExit, match="2"):
        errors.run(caught, lambda: None)
    assert "can't allocate memory: 9 bytes; the memory is too small" in capsys.readouterr().err
    if os.path.isdir("/dev/shm"):
        usage, size = shutil.disk_usage("/"), 5 * 6 * 16 * 4 * 3 * 2 * 32 * 32     # 2 workers
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=size - 1))
            line = fails(capsys, "train.py", *ONE, "--workers", "2", "--out", "one")
        assert "0.011 GiB of shared memory" in line

    def no_space(tensor):
        raise RuntimeError("unable to allocate shared memory(shm): No space left on device (28)")
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "share_memory_", no_space)
        line = fails(capsys, "train.py", *ONE, "--workers", "1", "--out", "three")
    assert "--shm-size" in line and "GiB" in line and "--workers" in line
    load = ToySource.load

    def killed(self, requests, rng=None):
        if torch.utils.data.get_worker_info():
            os.kill(os.getpid(), KILL)
        return load(self, requests, rng)
    monkeypatch.setattr(ToySource, "load", killed)
    assert "--workers" in fails(capsys, "train.py", *ONE, "--workers", "1", "--out", "two")


# --- Processes ---
@pytest.fixture(scope="module", autouse=True)
def two(tmp_path_factory):
    """One update by two processes, with a spawned worker each, in the folder of start.pt. It goes
    on beside the other tests: (process, folder)."""
    folder = tmp_path_factory.mktemp("two")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        random_start("diffusion")
    spawn = "import multiprocessing; multiprocessing.set_start_method('spawn')"
    torchrun = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"
    process = subprocess.Popen([sys.executable, *torchrun, *command(
        spawn, *ONE_OF_NINE, "--out", "two", "--workers", "1")], env=ENV, cwd=folder)
    yield process, folder
    process.terminate()
    process.wait(60)


def test_two_processes_train_one_model(two, monkeypatch):
    """Catches: shares that overlap, also in spawned workers; gradients of one process;
    one noise or one standardizer's statistics for all; a checkpoint that holds other tensors."""
    process, folder = two
    monkeypatch.chdir(folder)
    assert process.wait(100) == 0
    model, teacher = random_start("diffusion")
    after, losses = weights.load("two"), []
    models = [copy.deepcopy(after).train() for _ in range(2)]
    source = ToySource("train", 9, 4)
    for rank, before in enumerate(models):
        before.load_state_dict(model.state_dict())
        batch = batches.load_batch(source, 3, 8, 16, rank, 2, 0)
        features = teacher.watch(source).encode_clips(batch.views)
        losses.append(terms_by_loops(before, batch, features, "steps", False, 3, rank))
        losses[-1]["loss"].backward()
    first, second = models
    for p, q in zip(first.parameters(), second.parameters()):
        p.grad = (p.grad + q.grad) / 2
    row, = rows_of("two")
    assert row["loss"] == pytest.approx(float(losses[0]["loss"].detach()), rel=1e-4)
    assert_one_update(first, after, row["lr"])
    for name, value in after.standardize.named_buffers():
        mean = (first.standardize.get_buffer(name) + second.standardize.get_buffer(name)) / 2
        torch.testing.assert_close(value, mean)
    call("train.py", *ONE_OF_NINE, "--out", "one")
    one, two = (Path(out, "checkpoint.pt").stat().st_size for out in ("one", "two"))
    assert abs(one - two) < 0.01 * one


def test_gradients_are_averaged_over_processes(monkeypatch):
    """Catches: a sum, which clipping would hide; a gradient where there was none."""
    weight, unused = (torch.nn.Parameter(torch.zeros(size)) for size in (2, 3))
    weight.grad, space = torch.tensor([1., 2.]), torch.nn.Module()
    monkeypatch.setattr(parallel, "place", lambda: (0, 2))
    monkeypatch.setattr(parallel.dist, "all_reduce", lambda vector: vector.mul_(4))
    parallel.average(SimpleNamespace(parameters=lambda: [unused, weight], standardize=space))
    assert weight.grad.tolist() == [2, 4] and unused.grad is None


def test_processes_that_do_not_fit_are_one_line(here, capsys, monkeypatch, trained):
    """Catches: a traceback for WORLD_SIZE of a cluster, fine-tuning in several processes, or more
    processes than GPUs."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "unset WORLD_SIZE" in fails(capsys, "train.py", *ONE, "--out", "three")
    for name in "LOCAL_RANK", "RANK":
        monkeypatch.setenv(name, "1")
    assert "in one process" in fails(capsys, "train.py", "--stage", "finetune", "--init",
                                     trained / "mask")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(train, "pick_device", lambda name: torch.device("cuda"))
    assert "1 GPUs" in fails(capsys, "train.py", *ONE, "--out", "three")
