"""The runs of train.py: stopped, resumed, refused; its worker processes and several processes."""
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
from support import errors
from test_train import ONE, START, random_start, rows_of, same_run
from toy import grammar
from toy.source import ToySource
from training import parallel, run, setup

ROOT = Path(__file__).parents[1]
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)      # Windows has none
LONG = "--toy-videos", "16", "--batch", "4", "--sgd-epochs", "1", "--epochs", "3"   # 16 updates
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
    assert run.SAVE_EVERY <= 600                       # s: a kill loses at most ten minutes
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
        if len(saved) == 4:
            file.write(b"part")
            raise OSError(28, "No space left on device")
        save_file(content, file)
    monkeypatch.setattr(torch, "save", fill)
    assert "No space left" in fails(capsys, "train.py", *LONG, "--out", "run")
    assert torch.load("run/checkpoint.pt", weights_only=True)["step"] == 9
    assert len(list(Path("run").iterdir())) == 3       # no part of a file is left
    monkeypatch.setattr(setup, "noise_levels", lambda D: torch.tensor([.4, .3, .2, .1]))
    for _ in range(2):
        call("train.py", *LONG, "--out", "run", "--resume")
        assert same_run("run", whole)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_ends_the_run(here, monkeypatch, capsys, start_method, whole, number):
    """Catches: an update lost or cut in two; a worker that is left, or ends first and breaks the
    update; another status; a handler that stays."""
    log_and_save_every(3, monkeypatch)
    start_method("spawn")                              # such a worker has Python's own handlers
    monkeypatch.setattr(train, "SAVE_EVERY", 600.0)
    rate, before = train.learning_rate, signal.getsignal(number)

    def interrupt(update, *stage):
        if update == 2:
            for process in [os.getpid(), *(one.pid for one in multiprocessing.active_children())]:
                os.kill(process, number)               # as torchrun and a terminal do
        return rate(update, *stage)
    with monkeypatch.context() as patch, pytest.raises(SystemExit, match="130"):
        patch.setattr(train, "learning_rate", interrupt)
        call("train.py", *LONG, "--out", "run", "--workers", "1", "--micro-batch", "16")
    assert "checkpoint.pt is of update 3 of 16; add --resume" in capsys.readouterr().err
    assert not multiprocessing.active_children() and signal.getsignal(number) == before
    call("train.py", *LONG, "--out", "run", "--resume")
    assert rows_of("run")[-1]["loss"] == pytest.approx(rows_of(whole)[-1]["loss"], rel=1e-3)


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


def test_resume_compares_content_and_not_paths(here, capsys):
    """Catches: a pool that was changed in place; data that moved refused."""
    Path("a.txt").write_text("\n".join(grammar.PHRASES))
    call("train.py", *ONE, "--out", "run", "--phrases", "a.txt")
    Path("a.txt").rename("b.txt")
    again = *ONE, "--out", "run", "--resume", "--phrases", "b.txt"
    call("train.py", *again)
    Path("b.txt").write_text("\n".join(reversed(grammar.PHRASES)))
    assert "has list of phrases 60 (sha256" in fails(capsys, "train.py", *again)


def test_a_loss_that_is_not_finite_ends_the_run(here, capsys, monkeypatch):
    """Catches: NaN in a checkpoint, also of an update without a row; training on; a status."""
    calls = []

    def broken(log_p, targets, counts):
        calls.append(1)
        return log_p.sum().expand(len(counts)) * (float("nan") if len(calls) == 3 else 1.0)
    monkeypatch.setattr(train, "xe_loss", broken)
    line = fails(capsys, "train.py", *LONG, "--out", "run", status=1)
    assert "update 3" in line and "--lr" in line
    content = torch.load("run/checkpoint.pt", weights_only=True)
    assert content["step"] == 2
    assert all(value.isfinite().all() for value in content["model"].values())


def broken_source(monkeypatch, fails):
    """The videos of the world, of which fails(name) tells whether one cannot be read now."""
    load = ToySource.load

    def load_some(self, requests, rng=None):
        name = self.videos[requests[0][0]].name
        loaded = load(self, requests, rng)
        return loaded._replace(requests=[], failed={name: "cut off"}) if fails(name) else loaded
    monkeypatch.setattr(ToySource, "load", load_some)


def test_unreadable_videos_are_counted_and_named(here, capsys, monkeypatch):
    """Catches: an unreadable video that ends the run, or is not named or told; one of another
    process that is not counted; a run that ends without its checkpoint; one that a resumed run
    forgets; one that was read since, and is counted still."""
    broken = grammar.make_video("train", 0).name
    broken_source(monkeypatch, lambda name: name == broken)
    flags = "--toy-videos", "8", "--batch", "1", "--sgd-epochs", "1", "--epochs", "0"
    call("train.py", *flags, "--max-unreadable", "0.2", "--out", "run")
    assert read_json("run/unreadable.json") == {broken: "cut off"} and len(rows_of("run")) == 8
    assert f"unreadable: {broken}: cut off" in capsys.readouterr().out
    with monkeypatch.context() as patch:
        patch.setattr(parallel, "gather", lambda failed: [failed, {"b": "no", "c": "video"}])
        patch.setattr(train, "SAVE_EVERY", 999.)
        line = fails(capsys, "train.py", *flags, "--max-unreadable", "0.3", "--out", "two")
    assert "of 8 videos are unreadable" in line and "two/unreadable.json; the first, " in line
    assert read_json("two/unreadable.json").keys() >= {"b", "c"}
    assert torch.load("two/checkpoint.pt", weights_only=True)["step"] == 8
    args, source = train.parse([*flags, "--out", "two", "--resume"]), ToySource("train", 8, 4)
    for args.skip, left in ([], {broken, "b", "c"}), (["b"], {broken, "c"}):
        run.begin(args, run.open_run(args), source, phrases=grammar.PHRASES)
        assert source.unreadable.keys() == left
    source = SimpleNamespace(unreadable={}, shared={"a": "", "b": ""}, videos=[0] * 9)
    model = SimpleNamespace(task="classify")
    for found in [{"a": "", "c": ""}, {"b": "", "c": ""}], [{"a": ""}]:
        monkeypatch.setattr(parallel, "gather", lambda failed: found)
        monkeypatch.setattr(run, "require_readable", lambda *args: None)
        monkeypatch.setattr(run.weights.checkpoint, "save", lambda *args, **more: None)
        run.save(train.parse(["--out", "new"]), model, torch.optim.SGD([torch.zeros(1)]), 1, {},
                 source)
        assert source.unreadable == ({"c": ""} if len(found) > 1 else {"a": ""})


def test_a_run_that_read_no_video_leaves_no_checkpoint(here, capsys, monkeypatch):
    """Catches: an untrained checkpoint, with which --resume would find the run complete."""
    flags = "--toy-videos", "16", "--sgd-epochs", "0.5", "--epochs", "0", "--out", "run"
    with monkeypatch.context() as patch:               # the eight videos of the only update
        broken_source(patch, lambda name: True)
        assert "nothing is saved" in fails(capsys, "train.py", *flags, "--max-unreadable", "1")
    call("train.py", *flags, "--resume")
    assert rows_of("run")[-1]["loss"] and read_json("run/unreadable.json") == {}


def test_reads_that_fail_now_and_then_end_no_run(here, monkeypatch):
    """Catches: a video that counts as unreadable for good after one failure: 0.5% of the reads
    would end a run of thirty epochs."""
    rng = np.random.default_rng(0)
    failed = []
    broken_source(monkeypatch, lambda name: rng.random() < .005 and not failed.append(name))
    monkeypatch.setattr(train, "objective", cheap_objective)
    log_and_save_every(15, monkeypatch)
    call("train.py", "--toy-videos", "20", "--batch", "4", "--sgd-epochs", "0", "--epochs", "30",
         "--out", "run")
    assert len({*failed}) > 1 and len(rows_of("run")) == 10


def cheap_objective(model, group, features, update, args):
    """An objective of f's head alone."""
    x = model.standardize.mean + model.encoder.head.bias.expand(len(features), -1)
    zero = x.sum() * torch.zeros(len(group.requests))
    return {"xe": zero, "mse": zero, "mc": zero}, x


# --- Workers and memory ---
def test_too_little_memory_is_one_line(here, capsys, monkeypatch, forked):
    """Catches: a traceback for too little memory, or for a worker that cannot hand over what it
    read; a run that waits for it for good; need that is not counted at the start."""
    def full(*args):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    with monkeypatch.context() as patch:
        patch.setattr(train, "objective", full)
        line = fails(capsys, "train.py", *ONE, "--out", "run")
    assert "--micro-batch" in line and "--batch" in line

    def caught(args):
        raise RuntimeError("Caught RuntimeError in DataLoader worker process 0.\nTraceback\n"
                           "RuntimeError: can't allocate memory: 9 bytes")
    with pytest.raises(SystemExit, match="2"):
        errors.run(caught, lambda: None)
    assert "can't allocate memory: 9 bytes; the memory is too small" in capsys.readouterr().err
    if os.path.isdir("/dev/shm"):
        usage, size = shutil.disk_usage("/"), 10 * 16 * 4 * 3 * 2 * 32 * 32      # 2 x 2, 6
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=size - 1))
            line = fails(capsys, "train.py", *ONE, "--workers", "2", "--out", "one")
        assert "0.0037 GiB of shared memory" in line

    def no_space(tensor):
        raise RuntimeError("unable to allocate shared memory(shm): No space left on device (28)")
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "share_memory_", no_space)
        line = fails(capsys, "train.py", *ONE, "--workers", "1", "--out", "three")
    assert "--shm-size" in line and "GiB" in line and "--workers" in line


# --- Processes ---
FLAGS = *START, "--batch", "3", "--sgd-epochs", "1.4", "--epochs", "0.6", "--device", "cpu"
# Of so many processes: 6 updates, of which 4 by SGD; and 2 updates.
MORE = {2: ["--toy-videos", "9"], 3: ["--toy-videos", "2", "--init", "none"]}


@pytest.fixture(scope="module", autouse=True)
def many(tmp_path_factory):
    """Runs of 2 and of 3 processes, beside the other tests: {processes: (Popen, folder)}. The one
    of two is stopped in its fourth update, and has a spawned worker for each process."""
    rows = "import conftest, pytest; conftest.log_and_save_every(2, pytest.MonkeyPatch())"
    found = {}
    stop = (f"{rows}; import multiprocessing, os, signal, train; rate = train.learning_rate; "
            "multiprocessing.set_start_method('spawn'); train.learning_rate = lambda update, *of: ("
            "os.kill(os.getpid(), signal.SIGTERM) if (update, os.environ['RANK']) == (3, '1') else "
            "None) or rate(update, *of)")
    seed = (f"{rows}; import os, torch; seed = torch.manual_seed; torch.manual_seed = lambda n: "
            "seed(n + int(os.environ['RANK']))")       # other first weights in each process
    for world, before in (2, stop), (3, seed):
        folder = tmp_path_factory.mktemp(f"of-{world}")
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            random_start("diffusion")
        torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world),
                    "--no-python")
        found[world] = subprocess.Popen([sys.executable, *torchrun, *command(
            before, *FLAGS, *MORE[world], "--out", "run", "--workers", str(3 - world))], env=ENV,
            cwd=folder), folder
    yield found
    for process, _ in found.values():
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize("world", [2, 3])
def test_a_run_is_the_same_whatever_processes_make_it(many, monkeypatch, world):
    """Catches: shares that overlap, also in spawned workers; a mean over processes; draws, first
    weights or statistics that depend on them; a stop that one process alone sees; metrics of one
    process; a run of two that one cannot go on with; a process without a video."""
    process, folder = many[world]
    assert (process.wait(100) == 0) == (world == 3)
    monkeypatch.chdir(folder)
    log_and_save_every(2, monkeypatch)
    flags = *FLAGS, *MORE[world]
    if world == 2:
        assert [row["step"] for row in rows_of("run")] == [2, 4]
        call("train.py", *flags, "--out", "run", "--resume")
    call("train.py", *flags, "--out", "one")
    for ours, theirs in zip(rows_of("run"), rows_of("one"), strict=True):
        for name in ("loss", "xe", "mse", "mc", "match", "match_h", "lr"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-5), name
    ours, theirs = (torch.load(Path(out) / "checkpoint.pt", weights_only=True)["model"]
                    for out in ("run", "one"))
    for name, value in ours.items():       # AdamW steps by the sign of a gradient of nearly 0
        apart = (value - theirs[name]).norm()
        assert apart <= 1e-3 * theirs[name].norm(), name
    sizes = [Path(out, "checkpoint.pt").stat().st_size for out in ("run", "one")]
    assert abs(sizes[0] - sizes[1]) < 0.01 * sizes[1]


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
