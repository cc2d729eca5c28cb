"""The runs of train.py: stopped, resumed, refused; its worker processes and several processes."""
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import finetune
import train
import weights
from commands import call, fails, read_json
from conftest import TINY, log_and_save_every
from data import Unreadable
from support import encode, run
from support.workers import epoch_order, read_ahead
from test_train import ONE, rows_of, same_run
from toy import grammar
from toy.source import ToySource

ROOT = Path(__file__).parents[1]
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)      # Windows has none
LONG = "--toy-videos", "16", "--batch", "4", "--sgd-epochs", "1", "--epochs", "2"   # 12 updates
FOLDERS = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
ENV = os.environ | {"PYTHONPATH": os.pathsep.join(FOLDERS), "OMP_NUM_THREADS": "1"}


def command(before, *flags):
    """`python train.py FLAGS`, after these lines of code; every second update is a row."""
    code = (f"import sys, pytest, conftest, test_runs\npatch = pytest.MonkeyPatch()\n"
            f"conftest.log_and_save_every(2, patch)\n{before}\n"
            "from commands import call; call('train.py', *sys.argv[1:])")
    return [sys.executable, "-c", code, *map(str, flags)]


# --- Stopped and resumed ---
@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run of LONG, with a row of metrics for every second update."""
    out = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        log_and_save_every(2, patch)
        call("train.py", *LONG, "--out", out)
    return out


def test_a_killed_run_resumes_bit_exactly(here, monkeypatch, whole):
    """Catches: draws that depend on the past, momenta lost; a row twice, or of an update after the
    checkpoint."""
    process = subprocess.Popen(command("", *LONG, "--out", "run", "--workers", "1"), env=ENV)
    until = time.time() + 100
    while not Path("run/checkpoint.pt").exists() and time.time() < until:
        time.sleep(0.05)
    process.send_signal(KILL)
    process.wait(60)
    step = torch.load("run/checkpoint.pt", weights_only=True)["step"]
    log_and_save_every(2, monkeypatch)
    with open("run/metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(f'{{"step": {step + 1}}}\n{{"step": {step + 2}')        # killed while it wrote
    call("train.py", *LONG, "--out", "run", "--resume")
    assert same_run("run", whole)


def test_a_full_disk_leaves_the_last_checkpoint(here, capsys, monkeypatch, whole):
    """Catches: a checkpoint cut off, a traceback; a resumed run that differs."""
    log_and_save_every(2, monkeypatch)
    save_file, saved = torch.save, []

    def fill(content, file):
        saved.append(content["step"])
        if len(saved) == 4:
            file.write(b"part")
            raise OSError(28, "No space left on device")
        save_file(content, file)
    monkeypatch.setattr(torch, "save", fill)
    assert "No space left" in fails(capsys, "train.py", *LONG, "--out", "run")
    assert torch.load("run/checkpoint.pt", weights_only=True)["step"] == 6
    assert len(list(Path("run").iterdir())) == 3       # no part of a file is left
    call("train.py", *LONG, "--out", "run", "--resume")
    assert same_run("run", whole)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_ends_the_run(here, monkeypatch, capsys, start_method, whole, number):
    """Catches: an update lost or cut in two; a worker that is left, or ends first and breaks the
    update; another status; draws that depend on workers."""
    log_and_save_every(2, monkeypatch)
    start_method("spawn")                              # such a worker has Python's own handlers
    rate = train.learning_rate

    def interrupt(update, *stage):
        if update == 5:
            for process in [os.getpid(), *(one.pid for one in multiprocessing.active_children())]:
                os.kill(process, number)               # as torchrun and a terminal do
        return rate(update, *stage)
    with monkeypatch.context() as patch, pytest.raises(SystemExit, match="130"):
        patch.setattr(train, "learning_rate", interrupt)
        patch.setattr(run, "FIRST_SAVE", 600.0)
        call("train.py", *LONG, "--out", "run", "--workers", "1")
    assert "checkpoint.pt is of update 6 of 12; add --resume" in capsys.readouterr().err
    for process in multiprocessing.active_children():  # a busy machine takes its time
        process.join(60)
    assert not multiprocessing.active_children()
    call("train.py", *LONG, "--out", "run", "--resume")
    assert same_run("run", whole)


def test_a_run_is_not_mixed_with_another(trained, here, capsys):
    """Catches: a checkpoint overwritten, another run's settings taken; a run that cannot begin, or
    keeps the rows of one that ended before its first checkpoint; a pool that was changed in place;
    data that moved refused."""
    out = trained / "mask"
    flags = *TINY, "--order", "mask", "--out", out
    for flag, value in {"lr": .1, "order": "none", "toy-videos": 17, "init": "x",
                        "noise": "release"}.items():
        line = fails(capsys, "train.py", *flags, f"--{flag}", value, "--resume")
        assert f"has {flag.replace('-', '_')} " in line and f"not {value}" in line
    assert weights.load(out).config.order == "mask" and len(rows_of(out)) == 6
    Path("new").mkdir()
    Path("new/metrics.jsonl").write_text('{"step": 1}\n')
    Path("a.txt").write_text("\n".join(grammar.PHRASES))
    call("train.py", *ONE, "--out", "new", "--resume", "--phrases", "a.txt")
    assert len(rows_of("new")) == 1
    Path("a.txt").rename("b.txt")
    again = *ONE, "--out", "new", "--resume", "--phrases", "b.txt"
    call("train.py", *again)
    Path("b.txt").write_text("\n".join(reversed(grammar.PHRASES)))
    assert "has list of phrases 60 (sha256" in fails(capsys, "train.py", *again)


def test_a_folder_is_taken_from_the_first_second(here, capsys, monkeypatch):
    """Catches: two runs that write one folder, until the first of them has saved."""
    set_up, lines = train.set_up, []

    def meanwhile(*args):
        if not lines:
            lines.append(fails(capsys, "train.py", *ONE, "--out", "run"))
            assert [path.name for path in Path("run").iterdir()] == ["config.json"]
        return set_up(*args)
    monkeypatch.setattr(train, "set_up", meanwhile)
    call("train.py", *ONE, "--out", "run")
    assert "--out run: holds a run" in lines[0] and "--resume" in lines[0]
    assert len(rows_of("run")) == 1 and len(list(Path("run").iterdir())) == 3


def test_a_start_that_fails_leaves_nothing(here, capsys):
    """Catches: a folder that the next start is refused, by a start that made no update; files of
    somebody else's removed."""
    Path("mine").mkdir()
    Path("mine/notes.txt").touch()
    for out in "new/run", "mine":
        for flag, value, told in (("phrases", "none.txt", "none.txt"), ("init", "none.pt", "none.pt"),
                                  ("sgd-epochs", "0", "no update")):
            assert told in fails(capsys, "train.py", *ONE, f"--{flag}", value, "--out", out)
            assert [path.name for path in here.rglob("*")] == ["mine", "notes.txt"]
    assert "none.pt" in fails(capsys, "train.py", "--stage", "finetune", "--init", "none.pt")
    assert not Path("runs").exists()


def test_a_run_saves_after_a_minute_and_then_for_a_hundredth_of_the_time(tmp_path, monkeypatch):
    """Catches: a long first wait, more than ten minutes that a kill loses; a large model, of which
    saving takes a minute, saved all the time; the period counted from the start."""
    clock, saved = [1000.0], []                        # s
    monkeypatch.setattr(run, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def save(*args, step, **more):
        saved.append(step)
        clock[0] += 2.0 if len(saved) == 1 else 30.0   # that this takes
    monkeypatch.setattr(weights.checkpoint, "save", save)
    args = train.parse(["--out", f"{tmp_path}/run"])
    args.log_every, model = 1, torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    with run.Run(args) as folder:
        folder.start("", ToySource("train", range(2), 4), 1000, 10, ["loss"], "cpu")
        for update, wait in enumerate([59, 2, 198, 3, 599, 2], start=1):
            clock[0] += wait
            assert not folder.after(update, torch.ones(()), model, optimizer)
    assert saved == [2, 4, 6]


def test_a_loss_that_is_not_finite_ends_the_run(here, capsys, monkeypatch):
    """Catches: NaN in a checkpoint, training on; another status."""
    calls = []

    def broken(targets, log_p):                        # of f, then of h
        calls.append(1)
        return log_p.sum(2) * (float("nan") if len(calls) == 5 else 1.0)
    monkeypatch.setattr(train, "cross_entropy", broken)
    line = fails(capsys, "train.py", *LONG, "--out", "run", status=1)
    assert "update 3" in line and "--lr" in line
    content = torch.load("run/checkpoint.pt", weights_only=True)
    assert content["step"] == 2
    assert all(value.isfinite().all() for value in content["model"].values())


# --- Videos that cannot be read ---
def broken_source(monkeypatch, fails):
    """The videos of the world, of which fails(name) tells whether one cannot be read now."""
    clips = ToySource.clips

    def read(self, i, windows, rng=None):
        if fails(self.videos[i].name):
            raise Unreadable("cut off")
        return clips(self, i, windows, rng)
    monkeypatch.setattr(ToySource, "clips", read)


def test_unreadable_videos_are_counted_and_named(here, capsys, monkeypatch):
    """Catches: an unreadable video that ends the run, or is not named or told; a run that ends
    without its checkpoint; one that can be read again, in the run or resumed, counted still."""
    flags = "train.py", *ONE, "--batch", "3", "--sgd-epochs", "2", "--resume", "--max-unreadable"
    with monkeypatch.context() as patch:
        broken_source(patch, lambda name: name == "train_00000")
        call(*flags, "0.17", "--out", "one")
        assert "unreadable: train_00000: cut off" in capsys.readouterr().out
        line = fails(capsys, *flags, "0.15", "--out", "two")
    assert "1 of 6 videos are unreadable" in line and "two/unreadable.json; repair or" in line
    assert read_json("two/unreadable.json") == {"train_00000": "cut off"}
    assert torch.load("two/checkpoint.pt", weights_only=True)["step"] < 4
    call(*flags, "0", "--out", "two")
    assert rows_of("two")[-1]["step"] == rows_of("one")[-1]["step"] == 4
    failures = ["train_00000"]                         # once: its disk is there again
    broken_source(monkeypatch, lambda name: name in failures and not failures.remove(name))
    call(*flags, "0.17", "--out", "three")
    assert not failures and read_json("three/unreadable.json") == {}


# --- Workers and memory ---
def test_too_little_memory_is_one_line(here, capsys, monkeypatch, forked):
    """Catches: a traceback for too little memory of a GPU, or for a worker that cannot hand over
    what it read; a run that waits for it for good; need that counts other items."""
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


def test_a_killed_worker_is_named_with_its_video(here, capsys, monkeypatch, forked):
    """Catches: a video that ends its decoder's process, and is not named, or another that a worker
    is reading named; a run that waits for good."""
    first = f"train_{epoch_order(6, 0, 0)[0]:05}"
    broken_source(monkeypatch, lambda name: os.kill(os.getpid(), KILL) if name == first else
                  time.sleep(30))
    line = fails(capsys, "train.py", *ONE, "--workers", "2", "--out", "run")
    reading = f"while it read {first} (leave it out with --skip {first})"
    assert f"could not hand over what it read, {reading}; --workers 2" in line


class Broken:
    """Items are rows of one number; 3 and 4 are bugs."""
    name = staticmethod(str)

    def __getitem__(self, item):
        if item > 2:
            raise {3: RuntimeError, 4: TypeError}[item]("a bug")
        return torch.tensor([item])


@pytest.mark.parametrize("count", [0, 1])
def test_reading_in_any_thread_ends_its_own_processes_alone(count):
    """Catches: signals set outside of the main thread; a process that was there before, killed; a
    bug told as a killed worker."""
    child = multiprocessing.Process(target=time.sleep, args=(60,))
    child.start()
    try:
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


def test_a_bug_ends_the_command():
    """Catches: Python that waits at its end for a worker, which ignores SIGTERM."""
    code = "from test_runs import Broken, read_ahead\n[*read_ahead(Broken(), [0, 4], 1)]"
    end = subprocess.run([sys.executable, "-c", code], env=ENV, timeout=60, capture_output=True)
    assert end.returncode == 1 and b"TypeError: a bug" in end.stderr


def test_memory_is_pinned_for_a_gpu_alone(trained, here, monkeypatch):
    """Catches: pinned memory, which needs the GPU's driver, under --device cpu."""
    pins = []

    def note(dataset, items, workers, size=0, held=1, pin=False):
        pins.append(pin)
        return read_ahead(dataset, items, workers, size, held)
    for module in train, finetune, encode:
        monkeypatch.setattr(module, "read_ahead", note)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    call("train.py", *ONE, "--device", "cpu", "--out", "run")
    monkeypatch.delattr(finetune, "learning_rate")     # that is far enough
    with pytest.raises(NameError):
        call("train.py", "--stage", "finetune", "--toy-videos", "2", "--device", "cpu", "--init",
             trained / "mask", "--out", "tuned")
    assert pins == [False] * 3


# --- Processes ---
FLAGS = ("--toy-videos", "12", "--batch", "6", "--sgd-epochs", "1.5", "--epochs", "1.5", "--out",
         "run", "--max-unreadable", ".5", "--device", "cpu")           # 6 updates, of 2 in an epoch
LOST = [f"train_{i:05}" for i in epoch_order(12, 0, 0)[3:6]]           # of the second process


@pytest.fixture(scope="module", autouse=True)
def two(tmp_path_factory):
    """A run of two processes, beside the other tests -> (Popen, folder). Each has a worker, and
    reads two videos and then the third; all those of the second process' first update are
    unreadable; and it is asked to stop in the fourth update."""
    before = """
import os, signal, train
rank, rate = int(os.environ["RANK"]), train.learning_rate
def interrupt(update, *stage):
    if (update, rank) == (3, 1):
        os.kill(os.getpid(), signal.SIGTERM)
    return rate(update, *stage)
train.learning_rate = interrupt
test_runs.broken_source(patch, lambda name: name in test_runs.LOST)"""
    folder = tmp_path_factory.mktemp("two")
    torchrun = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"
    process = subprocess.Popen([sys.executable, *torchrun, *command(
        before, *FLAGS, "--workers", "1", "--micro-batch", "20")], env=ENV, cwd=folder)
    yield process, folder
    process.terminate()
    process.wait(60)


def test_a_run_is_the_same_whatever_processes_make_it(two, here, monkeypatch):
    """Catches: shares that overlap; a mean over processes or readable videos; draws that depend on
    the process or the micro-batch; a stop that one process alone sees; metrics of one process; a
    process that waits for one that has no video, or reads it twice."""
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
    for name, value in ("RANK", "1"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "2"):
        monkeypatch.setenv(name, value)
    assert "in one process" in fails(capsys, "train.py", "--stage", "finetune", "--init",
                                     trained / "mask")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(train, "pick_device", lambda name: torch.device("cuda"))
    assert "1 GPUs" in fails(capsys, "train.py", *ONE, "--out", "three")
