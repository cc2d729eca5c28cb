"""The runs of train.py: stopped, resumed, refused, without what cannot be read."""
import multiprocessing
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import train
import weights
from commands import ONE, broken_source, call, fails, read_json, rows_of, same_run
from conftest import TINY, log_and_save_every
from support import run
from toy import grammar
from toy.source import Toy

KILL = getattr(signal, "SIGKILL", signal.SIGTERM)      # Windows has none
LONG = "--toy-videos", "16", "--batch", "4", "--sgd-epochs", "1", "--epochs", "2"   # 12 updates


# --- Stopped and resumed ---
@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run of LONG, with a row of metrics for every second update."""
    out = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        log_and_save_every(2, patch)
        call("train.py", *LONG, "--out", out)
    return out


def test_a_killed_run_resumes_bit_exactly_also_on_a_full_disk(here, capsys, forked, monkeypatch,
                                                              whole):
    """Catches: draws that depend on the past, momenta lost; a row twice, or too late; a checkpoint
    cut off, a part of a file left, a traceback."""
    log_and_save_every(2, monkeypatch)
    argv, rate = ("train.py", *LONG, "--out", "run", "--resume"), train.learning_rate

    def kill(update, *stage):
        if update == 5:
            os.kill(os.getpid(), KILL)
        return rate(update, *stage)

    def fill(content, file):
        file.write(b"part")
        raise RuntimeError("enforce fail at inline_container.cc: unexpected pos 64 vs 0")
    with monkeypatch.context() as patch:
        patch.setattr(train, "learning_rate", kill)
        process = multiprocessing.Process(target=call, args=argv)
        process.start()
        process.join(100)
    assert process.exitcode == -KILL
    with open("run/metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 5}\n{"step": 6')          # killed while it wrote
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", fill)
        assert "run/checkpoint.pt: cannot be written; is the disk full?" in fails(capsys, *argv)
    assert torch.load("run/checkpoint.pt", weights_only=True)["step"] == 4
    assert len(list(Path("run").iterdir())) == 3
    call(*argv)
    assert same_run("run", whole)


def test_a_signal_saves_and_ends_the_run(here, monkeypatch, capsys, start_method, whole):
    """Catches: an update lost or cut in two; a worker that is left, or ends first and breaks the
    update; another status; draws that depend on workers; one of the two signals passed over."""
    log_and_save_every(2, monkeypatch)
    start_method("spawn")                              # such a worker has Python's own handlers
    monkeypatch.setattr(run, "FIRST_SAVE", 600.0)
    rate, sent = train.learning_rate, {1: signal.SIGTERM, 7: signal.SIGINT}

    def interrupt(update, *stage):
        if update in sent:
            for process in [os.getpid(), *(one.pid for one in multiprocessing.active_children())]:
                os.kill(process, sent[update])         # as torchrun and a terminal do
        return rate(update, *stage)
    for update in 2, 8:
        with monkeypatch.context() as patch, pytest.raises(SystemExit, match="130"):
            patch.setattr(train, "learning_rate", interrupt)
            call("train.py", *LONG, "--out", "run", "--resume", "--workers", str(int(update == 2)))
        assert f"checkpoint.pt is of update {update} of 12; add --res" in capsys.readouterr().err
    for process in multiprocessing.active_children():  # a busy machine takes its time
        process.join(60)
    assert not multiprocessing.active_children()
    call("train.py", *LONG, "--out", "run", "--resume")
    assert same_run("run", whole)


def test_a_run_is_not_mixed_with_another(trained, here, capsys):
    """Catches: a checkpoint overwritten, another run's settings taken; a run that cannot begin, or
    keeps rows of before its first checkpoint; a pool that was changed; data that moved refused."""
    out = trained / "mask"
    for flag, value in {"lr": .1, "order": "none", "toy-videos": 17, "init": "x",
                        "noise": "release"}.items():
        line = fails(capsys, "train.py", *TINY, "--order", "mask", "--out", out, f"--{flag}", value,
                     "--resume")
        assert f"has {flag.replace('-', '_')} " in line and f"not {value}" in line
    assert weights.load(out).config.order == "mask" and len(rows_of(out)) == 6
    Path("new").mkdir()
    Path("new/metrics.jsonl").write_text('{"step": 1}\n')
    argv = "train.py", *ONE, "--out", "new", "--resume", "--phrases"
    for name in "a.txt", "b.txt":
        Path(name).write_text("\n".join(grammar.PHRASES))
        call(*argv, name)
        assert len(rows_of("new")) == 1
    Path("b.txt").write_text("\n".join(reversed(grammar.PHRASES)))
    assert "has list of phrases 60 (sha256" in fails(capsys, *argv, "b.txt")


def test_a_folder_is_taken_from_the_first_second(here, capsys, monkeypatch):
    """Catches: two runs that write one folder, until the first of them has saved."""
    set_up, lines = train.set_up, []

    def meanwhile(*args):
        if not lines:
            lines.append(fails(capsys, "train.py", *ONE, "--out", "run"))
        return set_up(*args)
    monkeypatch.setattr(train, "set_up", meanwhile)
    call("train.py", *ONE, "--out", "run")
    assert "--out run: holds a run" in lines[0] and "--resume" in lines[0]
    assert len(rows_of("run")) == 1 and len(list(Path("run").iterdir())) == 3


def test_a_start_that_fails_leaves_nothing(here, capsys):
    """Catches: a folder that refuses the next start; files of somebody else's removed."""
    Path("mine").mkdir()
    Path("mine/notes.txt").touch()
    for out in "new/run", "mine":
        for flag, value, told in (("phrases", "no.txt", "no.txt"), ("init", "no.pt", "no.pt"),
                                  ("sgd-epochs", "0", "no update")):
            assert told in fails(capsys, "train.py", *ONE, f"--{flag}", value, "--out", out)
            assert [path.name for path in here.rglob("*") if path.is_file()] == ["notes.txt"]
    assert "no.pt" in fails(capsys, "train.py", "--stage", "finetune", "--init", "no.pt")
    assert not [*Path("runs").glob("*/*")]


def test_a_run_saves_after_a_minute_and_then_for_a_hundredth_of_the_time(tmp_path, monkeypatch):
    """Catches: a long first wait, more than ten minutes that a kill loses; a large model, of which
    saving takes a minute, saved all the time; the period counted from the start."""
    clock, saved, model = [1000.0], [], torch.nn.Linear(1, 1)              # s
    monkeypatch.setattr(run, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def save(*args, step, **more):
        saved.append(step)
        clock[0] += 2.0 if len(saved) == 1 else 30.0   # that this takes
    monkeypatch.setattr(weights.checkpoint, "save", save)
    args = train.parse(["--out", f"{tmp_path}/run"])
    args.log_every, optimizer = 1, torch.optim.SGD(model.parameters())
    with run.Run(args) as folder:
        folder.start("", Toy.of("train", range(2), 4), 1000, 10, ["loss"], "cpu")
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
def test_unreadable_videos_are_counted_and_named(here, capsys, monkeypatch):
    """Catches: a video that ends the run, or is not named; one that is readable again, counted."""
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


def test_unreadable_videos_are_not_forgotten_at_a_stop(here, capsys, monkeypatch):
    """Catches: a run stopped and resumed that passes with more unreadable videos than one that was
    not; a run whose videos are there again, ended for those of before."""
    flags = "train.py", *ONE, "--sgd-epochs", "3", "--resume", "--out", "run", "--max-unreadable"
    with monkeypatch.context() as patch:
        broken_source(patch, lambda name: name == "train_00000")
        assert "1 of 6 videos" in fails(capsys, *flags, "0")
        assert read_json("run/unreadable.json") == {"train_00000": "cut off"}
        assert "1 of 6 videos" in fails(capsys, *flags, "0.1")
    call(*flags, "0")
    assert read_json("run/unreadable.json") == {}


def test_a_run_that_reads_nothing_is_none(here, capsys, monkeypatch):
    """Catches: updates without a clip that count, and an untrained model called a run; a device
    that is not there, or no name of one, as a traceback."""
    with monkeypatch.context() as patch:
        broken_source(patch, lambda name: True)
        assert "6 of 6 videos are unreadable" in fails(capsys, "train.py", *ONE, "--out", "run")
    assert not [*Path("run").iterdir()]
    for name in "foo", *([] if torch.cuda.is_available() else ["cuda"]):
        assert f"--device {name}: " in fails(capsys, "train.py", *ONE, "--device", name)


def test_sigterm_before_the_first_update_leaves_nothing(here, monkeypatch):
    """Catches: a folder that refuses the next start, since the signal came too early."""
    monkeypatch.setattr(train, "set_up", lambda *args: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit):
        call("train.py", *ONE, "--out", "run")
    assert not [*Path("run").iterdir()]
