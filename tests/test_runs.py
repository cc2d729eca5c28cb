"""The runs of train.py: stopped, resumed, refused, without what cannot be read."""
import multiprocessing
import os
import signal
import stat
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from commands import ONE, broken_source, call, fails, read_json, rows_of, same_run
from conftest import TINY, log_and_save_every

import train
import weights
from data import Read, Video
from support import run, tensors
from support.errors import InputError
from support.write import write_json, write_text
from toy import grammar
from toy.source import Toy

KILL = getattr(signal, "SIGKILL", signal.SIGTERM)      # Windows has none
LONG = "--toy-videos", "16", "--batch", "4", "--sgd-epochs", "1", "--epochs", "2"   # 12 updates
OWN = {"checkpoint.pt", "config.json", "metrics.jsonl"}                # files of a run


def names_in(folder):
    """The names of all files in a folder."""
    return {path.name for path in Path(folder).iterdir()}


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
    """Catches: draws that depend on the past, momenta lost; a row twice, or too late; a log that is
    damaged, a checkpoint cut off, a part of a file left, a traceback."""
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
    with open("run/metrics.jsonl", "ab") as file:
        file.write(b'{"step": 5}\n[1]\n\xff\n{"step": 4}\n{"step": 6')    # killed as it wrote
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", fill)
        assert "run/checkpoint.pt: cannot be written; is the disk full?" in fails(capsys, *argv)
    assert torch.load("run/checkpoint.pt", weights_only=True)["step"] == 4
    assert names_in("run") == OWN
    call(*argv)
    assert same_run("run", whole)


def test_a_damaged_log_is_kept_up_to_where_it_is_whole(tmp_path):
    """Catches: a traceback; rows after a damaged one, or of after the checkpoint; one cut off."""
    good = b'{"step": 1}\n{"step": 2}\n'
    for rest in (b"", b'{"step": 3}\n', b"[1]\n", b"{}\n", b'{"step": "1"}\n', b"\xff\n", b"\0\n",
                 b'{"step": 2}', b"[" * 9999 + b"\n"):
        Path(tmp_path, "log").write_bytes(good + rest)
        assert run.rows_until(2, tmp_path / "log") == good
    Path(tmp_path, "log").write_bytes(b"1\n" + good)
    assert run.rows_until(2, tmp_path / "log") == b""


def test_a_signal_saves_and_ends_the_run(here, monkeypatch, capsys, start_method, whole):
    """Catches: an update lost or cut in two; a worker that is left, or ends first and breaks the
    update; another status; draws that depend on workers; one of the two signals passed over;
    signals that stay caught, threads that stay limited."""
    log_and_save_every(2, monkeypatch)
    start_method("spawn")                              # such a worker has Python's own handlers
    monkeypatch.setattr(run, "FIRST_SAVE", 600.0)
    rate, sent = train.learning_rate, {1: signal.SIGTERM, 7: signal.SIGINT}
    before = [signal.getsignal(number) for number in sent.values()]
    threads = torch.get_num_threads()

    def interrupt(update, *stage):
        if update in sent:
            for process in [os.getpid(), *(one.pid for one in multiprocessing.active_children())]:
                os.kill(process, sent[update])         # as torchrun and a terminal do
        return rate(update, *stage)
    for update in 2, 8:
        torch.set_num_threads(3)
        with monkeypatch.context() as patch, pytest.raises(SystemExit, match="130"):
            patch.setattr(train, "learning_rate", interrupt)
            call("train.py", *LONG, "--out", "run", "--resume", "--workers", str(int(update == 2)))
        assert f"checkpoint.pt is of update {update} of 12; add --res" in capsys.readouterr().err
        assert not multiprocessing.active_children() and torch.get_num_threads() == 3
        assert [signal.getsignal(number) for number in sent.values()] == before
    torch.set_num_threads(threads)
    call("train.py", *LONG, "--out", "run", "--resume")
    assert same_run("run", whole)


def test_a_run_in_another_thread(here):
    """Catches: an error since only the main thread may catch signals."""
    argv = "train.py", *ONE, "--out", "run", "--workers", "1"
    thread = threading.Thread(target=call, args=argv)
    thread.start()
    thread.join(100)
    assert names_in("run") == OWN


# --- The folder ---
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
    Path("new/config.json").touch()                    # killed before its first checkpoint
    Path("new/metrics.jsonl").write_text('{"step": 1}\n')
    argv = "train.py", *ONE, "--out", "new", "--resume", "--phrases"
    for name in "a.txt", "b.txt":
        Path(name).write_text("\n".join(grammar.PHRASES))
        call(*argv, name)
        assert len(rows_of("new")) == 1
    Path("b.txt").write_text("\n".join(reversed(grammar.PHRASES)))
    assert "has list of phrases 60 (sha256" in fails(capsys, *argv, "b.txt")


@pytest.mark.parametrize("name", [*run.WRITTEN, "checkpoint.pt.part", "events.out.tfevents.1.x.2"])
def test_nobodys_files_are_touched(here, capsys, name):
    """Catches: a file that the run did not write, overwritten, removed, or taken for one of a run;
    also by a start that fails, and with --resume."""
    Path("mine").mkdir()
    Path("mine", name).write_text("{}")
    for more, told in (([], f"holds {name}"), (["--resume"], f"holds {name}"),
                       (["--resume", "--phrases", "no.txt"], "no.txt: no such file")):
        line = fails(capsys, "train.py", *ONE, "--out", "mine", *more)
        assert told in line
        assert names_in("mine") == {name} and Path("mine", name).read_text() == "{}"


def test_a_checkpoint_that_is_of_no_run_is_not_resumed(trained, here, capsys):
    """Catches: a traceback, or a model that is overwritten."""
    Path("run").mkdir()
    Path("run/config.json").write_text((trained / "mask/config.json").read_text())
    weights.save("run/checkpoint.pt", weights.load(trained / "mask"))
    assert "is not of a run" in fails(capsys, "train.py", *TINY, "--out", "run", "--resume")
    Path("file").touch()
    assert "--out file: is no folder" in fails(capsys, "train.py", *ONE, "--out", "file")


def test_the_faster_of_two_runs_has_the_folder(here, capsys, monkeypatch):
    """Catches: two runs that write one folder; files of the faster one removed by the other."""
    set_up = train.set_up_pretraining

    def meanwhile(*args):
        monkeypatch.setattr(train, "set_up_pretraining", set_up)
        call("train.py", *ONE, "--out", "run")
        return set_up(*args)
    monkeypatch.setattr(train, "set_up_pretraining", meanwhile)
    line = fails(capsys, "train.py", *ONE, "--out", "run")
    assert "--out run: holds config.json" in line and "--resume" in line
    assert len(rows_of("run")) == 1 and names_in("run") == OWN
    assert "holds config.json" in fails(capsys, "train.py", *ONE, "--out", "run")


def test_a_start_that_fails_leaves_nothing(here, capsys, monkeypatch):
    """Catches: a folder that refuses the next start; files of somebody else's removed."""
    Path("mine").mkdir()
    Path("mine/notes.txt").touch()

    def broken(*args):
        raise OSError("the disk is full")

    def interrupted(*args):
        signal.raise_signal(signal.SIGTERM)            # is caught, once
        signal.raise_signal(signal.SIGINT)
    for out in "new/run", "mine":
        flags = "train.py", *ONE, "--out", out
        for flag, value, told in (("phrases", "no.txt", "no.txt"), ("init", "no.pt", "no.pt"),
                                  ("sgd-epochs", "0", "no update")):
            assert told in fails(capsys, *flags, f"--{flag}", value)
            assert [path.name for path in here.rglob("*") if path.is_file()] == ["notes.txt"]
        for module, name in ((run, "rows_until"), (run, "Metrics"), (train, "objective")):
            with monkeypatch.context() as patch:       # amid the claim, after it, in an update
                patch.setattr(module, name, broken)
                assert "the disk is full" in fails(capsys, *flags)
            assert [path.name for path in here.rglob("*") if path.is_file()] == ["notes.txt"]
        with monkeypatch.context() as patch, pytest.raises(SystemExit, match="130"):
            patch.setattr(train, "objective", interrupted)
            call(*flags)
        assert not Path("new/run").exists() and names_in("mine") == {"notes.txt"}
    for name in "config.json", "metrics.jsonl":        # killed before its first checkpoint
        Path("mine", name).touch()
    with monkeypatch.context() as patch:
        patch.setattr(train, "objective", broken)
        assert "the disk is full" in fails(capsys, *flags, "--resume")
    assert names_in("mine") == {"config.json", "metrics.jsonl", "notes.txt"}
    call(*flags, "--resume")
    assert names_in("mine") == {*OWN, "notes.txt"}
    assert "no.pt" in fails(capsys, "train.py", "--stage", "finetune", "--init", "no.pt")
    assert not Path("runs").exists()


def test_sigterm_before_the_run_begins_leaves_nothing(here, forked, monkeypatch):
    """Catches: a folder that refuses the next start, since the signal came too early."""
    monkeypatch.setattr(train, "set_up_pretraining",
                        lambda *args: os.kill(os.getpid(), signal.SIGTERM))
    process = multiprocessing.Process(target=call, args=("train.py", *ONE, "--out", "run"))
    process.start()
    process.join(100)
    assert process.exitcode == -signal.SIGTERM and not Path("run").exists()


# --- What it writes ---
def test_a_run_saves_after_a_minute_and_then_for_a_hundredth_of_the_time(tmp_path, monkeypatch):
    """Catches: a long first wait, more than ten minutes that a kill loses; a large model, of which
    saving takes a minute, saved all the time; the period counted from the start."""
    clock, saved, model = [1000.0], [], torch.nn.Linear(1, 1)              # s
    monkeypatch.setattr(run, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def save(*args, step, **more):
        saved.append(step)
        clock[0] += 2.0 if len(saved) == 1 else 30.0   # that this takes
    monkeypatch.setattr(tensors, "save", save)
    args = train.parse(["--out", f"{tmp_path}/run"])
    args.log_every, optimizer = 1, torch.optim.SGD(model.parameters())
    one, source = run.Run(args), Toy.of("train", range(2), 4)
    with pytest.raises(KeyboardInterrupt), one.begin("", source, 1000, 10, ["loss"], "cpu"):
        one.readable([Read("train_00000", 0)])
        for update, wait in enumerate([59, 2, 198, 3, 599, 2], start=1):
            clock[0] += wait
            assert not one.after(update, torch.ones(()), model, optimizer)
    assert saved == [2, 4, 6]


def test_tensorboard_has_the_metrics_or_is_missed_at_once(here, capsys, monkeypatch):
    """Catches: another number, step or folder; rows that a resumed run makes again; a traceback, a
    folder that is claimed; another run since one looks at it."""
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "tensorboard", None)
        patch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
        line = fails(capsys, "train.py", *ONE, "--out", "none", "--tensorboard")
    assert "pip install tensorboard" in line and not Path("none").exists()
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    flags, save = ("train.py", *TINY, "--out", "run", "--order", "none", "--resume"), torch.save

    def fill(content, file):
        if content["step"] == 4:
            raise OSError("the disk is full")
        save(content, file)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", fill)
        fails(capsys, *flags, "--tensorboard")
    call(*flags, "--tensorboard")                      # the fourth update is made again
    call(*flags)
    events = EventAccumulator("run").Reload()
    rows = rows_of("run")
    assert len(rows) == 6 and "mse" not in events.Tags()["scalars"]
    for name in "loss", "match", "lr":
        found = [(event.step, event.value) for event in events.Scalars(name)]
        assert found == [(row["step"], pytest.approx(row[name])) for row in rows]


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


def test_files_are_written_through_links_and_into_pipes(tmp_path):
    """Catches: a link that becomes a file; a pipe that is replaced; a part of a file left, or the
    old one lost, if writing fails."""
    Path(tmp_path, "other").mkdir()
    target, link, new = (tmp_path / name for name in ("other/a.json", "link", "new"))
    target.write_text("old")
    link.symlink_to(target)
    new.symlink_to(tmp_path / "other/b.json")          # which is not there yet
    write_json(link, [1])
    write_json(new, [2])
    assert link.is_symlink() and new.is_symlink()
    assert read_json(target) == [1] and read_json(tmp_path / "other/b.json") == [2]
    with pytest.raises(FloatingPointError):
        write_json(link, [float("nan")])
    assert read_json(target) == [1] and names_in(target.parent) == {"a.json", "b.json"}
    if not hasattr(os, "mkfifo"):
        pytest.skip("there are no such pipes here")
    os.mkfifo(tmp_path / "pipe")
    link.unlink()
    link.symlink_to(tmp_path / "pipe")
    for path in tmp_path / "pipe", link:
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        write_text(path, "text")
        assert os.read(reader, 99) == b"text"
        os.close(reader)
        assert stat.S_ISFIFO(path.stat().st_mode) and link.is_symlink()


# --- Videos that cannot be read ---
def test_unreadable_videos_are_named_once_and_judged_after_a_save(here, capsys, monkeypatch):
    """Catches: a video that ends the run, is not named, or named in every epoch; a run that ends
    without a save; one that cannot be continued."""
    flags = "train.py", *ONE, "--batch", "3", "--sgd-epochs", "3", "--resume", "--max-unreadable"
    with monkeypatch.context() as patch:
        broken_source(patch, lambda name: name == "train_00000")
        call(*flags, "0.17", "--out", "one")
        assert capsys.readouterr().out.count("unreadable: train_00000: cut off") == 1
        line = fails(capsys, *flags, "0.15", "--out", "two")
    assert "1 of 6 videos are unreadable" in line and "two/unreadable.txt; repair or" in line
    for out in "one", "two":
        assert Path(out, "unreadable.txt").read_text() == "train_00000\tcut off\n"
    assert 2 <= torch.load("two/checkpoint.pt", weights_only=True)["step"] < 6
    call(*flags, "0", "--out", "two")                  # its disk is there again
    assert rows_of("two")[-1]["step"] == rows_of("one")[-1]["step"] == 6


def judge(tmp_path, reads, videos=100, share=0.05, left_out=()):
    """Whether a run ends that read these videos: {number: outcome}, in turn."""
    out = tmp_path / str(len(names_in(tmp_path)))
    args = train.parse(["--out", str(out), "--max-unreadable", str(share)])
    names = [Video(f"v{i}") for i in range(videos)]
    source = SimpleNamespace(videos=names, listed=names, left_out={
        f"v{i}": ("skipped", "") for i in left_out})
    one, model = run.Run(args), torch.nn.Linear(1, 1)
    optimizer, told = torch.optim.SGD(model.parameters()), ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors, "save", lambda *args, **more: None)
        try:
            with one.begin("", source, 1, 1, ["loss"], "cpu"):
                for i, outcome in reads:
                    failed = None if outcome == "read" else "cut\noff"
                    one.readable([Read(f"v{i}", 0, failed=failed, left_out=outcome == "left")])
                    if not failed:
                        one.metrics.add(1, loss=torch.ones(1))
                one.after(1, torch.ones(()), model, optimizer)
        except InputError as error:
            told = str(error)
    path = out / "unreadable.txt"
    return told, path.read_text().splitlines() if path.exists() else []


def test_too_many_are_a_share_of_those_that_were_tried(tmp_path):
    """Catches: the share of a few, or of all that are listed; one that was read later counted; a
    video of --skip, or a silent one, that counts as tried or as a failure, or is not named; a line
    of unreadable.txt that belongs to no video."""
    good = [(i, "read") for i in range(19)]
    bad = [(90, "bad"), (91, "bad")]
    assert "2 of 21 videos are unreadable, more than" in judge(tmp_path, good + bad)[0]
    assert judge(tmp_path, good[:17] + bad)[0] == ""                      # 19 were tried
    assert "2 of 6 videos" in judge(tmp_path, [*good[:4], (4, "bad"), (5, "bad")], videos=6)[0]
    told, named = judge(tmp_path, good + bad + [(90, "read"), (90, "read")])
    assert told == "" and named == ["v90\tcut off", "v91\tcut off"]
    silent = [(i, "left") for i in range(50, 60)]
    told, named = judge(tmp_path, good[:17] + bad + silent)
    assert told == "" and len(named) == 12
    told, named = judge(tmp_path, good + bad + silent, left_out=range(50, 60))
    assert "2 of 21" in told and len(named) == 2
    assert judge(tmp_path, good + silent, share=0.0)[0] == ""


def test_all_processes_end_if_one_cannot_read(tmp_path, monkeypatch):
    """Catches: processes that wait for ever for one that has ended."""
    monkeypatch.setattr(run.parallel, "any_of", lambda *flags: [len(flags) == 1] * len(flags))
    told, _ = judge(tmp_path, [(0, "read")])
    assert told.startswith("another process could not read too many videos")


def test_a_run_that_reads_nothing_is_none(here, capsys, monkeypatch):
    """Catches: updates without a clip that count, and an untrained model called a run; a device
    that is not there, or no name of one, as a traceback."""
    with monkeypatch.context() as patch:
        broken_source(patch, lambda name: True)
        assert "3 of 3 videos are unreadable" in fails(capsys, "train.py", *ONE, "--batch", "3",
                                                       "--out", "run")
    assert not Path("run").exists()
    for name in "foo", *([] if torch.cuda.is_available() else ["cuda"]):
        assert f"--device {name}: " in fails(capsys, "train.py", *ONE, "--device", name)
