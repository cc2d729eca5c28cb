"""support/command.py, device.py: the command line, one-line errors, exit statuses, whole files."""
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import FrozenInstanceError, fields
from math import inf
from pathlib import Path

import pytest

from evaluate import EvaluateSettings
from experiments.simulate import SimulateSettings
from files.commands import COMMANDS, TextSettings
from predict import PredictSettings
from support.command import (GROUPS, BadInput, Settings, flag_of, parse, run, write_atomically,
                             write_json)
from support.device import pick_device
from support.process import Interrupts, lock, locks
from train import FinetuneSettings, TrainSettings
from training import pretrain

ROOT = Path(__file__).resolve().parent.parent
MODULES = ["experiments.charts", "experiments.simulate", "experiments.reproduce",
           "experiments.benchmark", "toy.teacher"]
HELPS = [("train.py",), ("train.py", "--stage", "finetune"), ("evaluate.py",), ("predict.py",),
         ("pseudo_labels.py",), *(("data.py", name) for name in COMMANDS), *zip(MODULES)]
for module in MODULES:
    importlib.import_module(module)


def commands_of(cls):
    """The flags of all commands: the subclasses of Settings that have none themselves."""
    below = [leaf for sub in cls.__subclasses__() for leaf in commands_of(sub)]
    return below or [cls] * (not cls.__module__.startswith("test"))


CLASSES = pytest.mark.parametrize("cls", commands_of(Settings), ids=lambda cls: cls.__name__)


@pytest.fixture(autouse=True)
def program(monkeypatch, tmp_path):
    """Be called train.py, in an empty folder; leave what a signal changes as it was."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setattr(sys, "argv", ["/somewhere/train.py"])
    for name in ("excepthook", "unraisablehook"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    monkeypatch.chdir(tmp_path)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def argv_of(cls, **given):
    """The shortest valid command line of a command, and further flags with their values."""
    must = {f.name: (f.metadata["choices"] or ["x"])[0] for f in fields(cls)
            if f.metadata["required"] or (cls.__name__, f.name) == ("CheckSettings", "annotations")}
    return [f"{flag_of(name)}={value}" for name, value in {**must, **given}.items()]


def error_of(capsys, cls, *argv):
    """The line that a wrong command line ends with; checks that it is one, and status 2."""
    with pytest.raises(SystemExit) as end:
        parse(cls, [*argv])
    out, err = capsys.readouterr()
    assert end.value.code == 2 and out == "", argv
    assert err.startswith("train.py: error: ") and err.count("\n") == 1 and err.endswith("\n")
    return err


# ---- every flag of every command ---------------------------------------------------------------
@pytest.mark.parametrize("script, flags", [(script, flags) for script, *flags in HELPS])
def test_help_is_there_at_once(script, flags, tmp_path):
    """Catches: torch imported at the top of a script (4 s before --help), a wrong % in a help, a
    usage that fills the screen."""
    start = f"path({str(ROOT / script)!r}" if script.endswith(".py") else f"module({script!r}"
    code = ("import runpy, sys\n"
            f"sys.argv = {[script, *flags, '--help']}\n"
            "try:\n"
            f"    runpy.run_{start}, run_name='__main__')\n"
            "except SystemExit as end:\n"
            "    heavy = {'torch', 'open_clip', 'numpy', 'tqdm'} & set(sys.modules)\n"
            "    print('HEAVY', sorted(heavy), 'STATUS', end.code)\n")
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"})
    assert script != "train.py" or flags or done.stdout.count("\n") <= 40         # one screen
    assert time.perf_counter() - began < 3             # s; 0.1 is usual on an idle machine
    assert done.stdout.endswith("HEAVY [] STATUS 0\n") and done.stderr == "", done.stderr
    assert done.stdout.startswith("usage: ") and done.stdout.splitlines()[1] == ""
    assert list(tmp_path.iterdir()) == []


@CLASSES
def test_every_flag_has_help_a_group_and_a_default(cls):
    """Catches: a flag without an explanation, a number without a range, a default that its own
    checks or type refuse, --help that hides a flag."""
    for f in fields(cls):
        declared = f.metadata
        assert len(declared["help"]) >= 4 and declared["group"] in GROUPS, f.name
        assert f.default is None or isinstance(f.default, f.type), f.name
        assert f.type not in (int, float) or max(declared["low"], declared["above"]) > -inf, f.name
    assert parse(cls, argv_of(cls)) is not None


def wrong_values(f):
    """Values outside of what a flag declares."""
    declared, small = f.metadata, 1 if f.type is int else 1e-3
    if f.type in (int, float):
        yield from ["x", "", *(["1.5"] if f.type is int else ["nan", "inf", "-inf"])]
        yield from [end + way * small for end, way in ((declared["low"], -1), (declared["high"], 1),
                                                       (declared["above"], 0)) if abs(end) < inf]
    if declared["choices"]:
        yield "another"
    if declared["file"] is not None:
        yield from ["nowhere/x.png", ".", *(["x.txt"] if declared["file"] else [])]


@CLASSES
def test_values_outside_of_what_a_flag_declares_are_refused(cls, capsys):
    """Catches: usage blocks, tracebacks, values that fail after minutes of work (seeds, inf, a file
    that cannot be written); a range that is declared and not checked, or shut at its end."""
    kinds = {f.name: f.metadata["choices"] for f in fields(cls)}.get("data", ())
    for f in fields(cls):
        declared, valid = f.metadata, f.metadata["data"][:1]
        for value in wrong_values(f):
            argv = argv_of(cls, **{f.name: value}, **({"data": valid[0]} if valid else {}))
            line = error_of(capsys, cls, *argv)
            assert flag_of(f.name) in line
        for end in (declared["low"], declared["high"]):
            if abs(end) < inf:
                assert getattr(parse(cls, argv_of(cls, **{f.name: end})), f.name) == end
        for kind in {*kinds} - {*(declared["data"] or kinds)}:
            other = {*(declared["choices"] or "x")} - {f.default}
            given = argv_of(cls, **{"data": kind, f.name: min(other)})
            line = error_of(capsys, cls, *given[:-1], f"--no-{f.name}" if f.type is bool else
                            given[-1])
            assert f"no effect with --data {kind}" in line and flag_of(f.name) in line


# ---- the command line --------------------------------------------------------------------------
COIN = ("--data", "coin", "--annotations", "a")
FEATURES = ("--features", "f", "--text-embeddings", "t")


@pytest.mark.parametrize("cls, argv, named", [
    *((TrainSettings, argv, argv[-1]) for argv in (["--no-such-flag"], ["stray"], ["--lr"],
                                                   ["--toy-video", "3"], ["--resume", "False"])),
    (TrainSettings, [*COIN, "--features", "f"], "--text-embeddings"),
    (TrainSettings, ["--data", "howto100m", "--videos", "v"], "--captions"),
    (TrainSettings, [*COIN, *FEATURES, "--order", "none"], "--order none"),
    (TrainSettings, [*COIN, *FEATURES, "--encoder", "mvit"], "--encoder mvit"),
    (EvaluateSettings, [*COIN, "--videos", "v", "--features", "f"], "--features f"),
    (EvaluateSettings, ["--data", "epic", "--annotations", "a"], "--videos"),
    (FinetuneSettings, ["--data", "epic", "--task", "forecast"], "--task forecast"),
    (PredictSettings, ["--steps", "a", "--text-embeddings", "b"], "--steps a"),
    (PredictSettings, ["--keyframes", __file__], "--keyframes"),
    (TrainSettings, ["--out", f"{__file__}/run"], "test_command.py is not a folder"),
    (FinetuneSettings, ["--out", f"{__file__}/run"], "test_command.py is not a folder"),
    (EvaluateSettings, ["--data"], "argument --data: expected one argument"),
    (EvaluateSettings, ["--videos", "v"], "--videos v: has no effect with --data toy"),
    *((EvaluateSettings, flags, f"{flags[0]} {flags[1]}: has no effect with --task")
      for flags in (["--ids", "a"], ["--stride", "3.0"], ["--horizon", "2", "--task", "infill"],
                    ["--min-steps", "3", "--task", "classify"])),
    *((cls, [], argv_of(cls)[0][:-2]) for cls in COMMANDS.values() if argv_of(cls))])
def test_flags_that_do_not_fit_each_other(cls, argv, named, capsys):
    """Catches: usage blocks, `None: No such file` where a flag was forgotten, a shortened flag."""
    line = error_of(capsys, cls, *argv)
    assert named in line and "None" not in line


def test_values_arrive_with_their_types():
    """Catches: "3" for 3, str for Path, --sgd-epochs that does not reach sgd_epochs; type=bool,
    with which "--resume False" is True; folder and epochs of another task."""
    given = parse(TrainSettings, ["--toy-videos", "3", "--sgd-epochs", "1e-4", "--out", "a/b"])
    assert (given.toy_videos, given.sgd_epochs, given.out) == (3, 1e-4, Path("a/b"))
    assert given.resume is False and parse(TrainSettings, ["--resume"]).resume is True
    with pytest.raises(FrozenInstanceError):
        given.toy_videos = 4
    for argv in (["a/b.mp4", "--samples", "7"], ["--samples", "7", "a/b.mp4"]):
        given = parse(PredictSettings, argv)
        assert (given.video, given.samples) == (Path("a/b.mp4"), 7)
    assert parse(PredictSettings, []).video is None
    assert parse(EvaluateSettings, ["--oracle", "7"]).samples == 7
    tasks = [FinetuneSettings(task=task) for task in ("classify", "forecast", "activity")]
    assert [given.epochs for given in tasks] == [15, 15, 60]
    assert tasks[2].out == Path("runs/finetune-activity")
    assert parse(FinetuneSettings, ["--task", "activity", "--epochs", "2"]).epochs == 2
    with pytest.raises(BadInput, match="--samples 0"):           # without a command line
        EvaluateSettings(samples=0)
    assert pretrain.TAU == 0.02                                  # the paper's


# ---- how a command ends ------------------------------------------------------------------------
@pytest.mark.parametrize("cls, argv, refused", [
    (EvaluateSettings, "--data coin --annotations in/COIN.json --videos in/videos --json", [
        "in/COIN.json", "linked/COIN.json", "in/videos/a.mp4", "in/videos/new.json", "hard"]),
    (EvaluateSettings, "--checkpoint in/run --json", ["in/run/checkpoint.pt",
                                                      "in/run/config.json"]),
    (EvaluateSettings, "--checkpoint in/run/checkpoint.pt --json", ["in/run/checkpoint.pt"]),
    (PredictSettings, "in/videos/a.mp4 --json", ["in/videos/a.mp4"]),
    (PredictSettings, "in/videos/a.mp4 --steps in/steps.pdf --figure", ["in/steps.pdf"]),
    (PredictSettings, "in/videos/a.mp4 --checkpoint in/run --keyframes", ["in/run"]),
    (TrainSettings, "--data howto100m --videos in/videos --captions in --phrases in/steps.pdf "
     "--clip local-dir:in/run --out", ["in/new", "in/run", "linked/new", "in/videos/day1"]),
    (FinetuneSettings, "--stage finetune --init in/run --out", ["in/run"]),
    (COMMANDS["shrink"], "--videos in/videos --out", ["in/videos", "in/videos/day1", "linked/videos"]),
    (COMMANDS["teach"], "--videos in/videos --clip-weights in/steps.pdf --out", ["in/videos/t"]),
    (COMMANDS["phrases"], "--captions in/COIN.json --out", ["in/COIN.json"]),
    (TextSettings, "--phrases in/steps.pdf --out", ["in/steps.pdf", "linked/steps.pdf"]),
    (SimulateSettings, "--annotations in/COIN.json --text-embeddings in/steps.pdf --out",
     ["in/steps.pdf"])])
def test_no_output_takes_the_place_of_an_input(cls, argv, refused, tmp_path, monkeypatch, capsys):
    """Catches: an annotation file, a video or a checkpoint lost to --json, also through a link; a
    copy beside the videos, which is taken for one of them later; a result that a run may hold,
    refused."""
    monkeypatch.chdir(tmp_path)
    Path("in/run").mkdir(parents=True)
    Path("in/videos").mkdir()
    for name in ("COIN.json", "steps.pdf", "videos/a.mp4", "run/checkpoint.pt", "run/config.json"):
        Path("in", name).write_text("{}")
    Path("linked").symlink_to("in")
    os.link("in/COIN.json", "hard")
    for place in refused:
        with pytest.raises(SystemExit):
            parse(cls, [*argv.split(), place])
        assert "nothing that is read is replaced" in capsys.readouterr().err
    if argv.endswith("--json"):
        parse(cls, [*argv.split(), "in/run/forecast.json" if "in/run" in argv else "o.json"])


@pytest.mark.parametrize("error, status", [
    (BadInput("the file\nis wrong"), 2), (OSError(28, "No space left on device"), 2),
    (FloatingPointError("step 3: the loss is nan"), 1), (KeyboardInterrupt(), 130),
    (MemoryError(), 2), (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"), 2),
    (BrokenPipeError(), 141),
    (signal.SIGTERM, 143), (ValueError("a bug"), None), (RuntimeError("a bug"), None)])
def test_exit_statuses(error, status, capsys, monkeypatch):
    """Catches: invalid input that looks like our bug, or a bug without its traceback; a message on
    two lines; a scheduler's SIGTERM that skips `finally`, so that .part files stay behind."""
    ended = []

    def main(given):
        assert given == TrainSettings(toy_videos=4)
        try:
            if error is signal.SIGTERM:
                os.kill(os.getpid(), error)
                time.sleep(5)
            raise error
        finally:
            ended.append(True)
    monkeypatch.setattr(os, "dup2", lambda *_: None)   # of pytest's own output
    with pytest.raises(SystemExit if status else type(error)) as end:
        run(main, TrainSettings, ["--toy-videos", "4"])
    assert ended and (end.value is error if status is None else end.value.code == status)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and len(lines) == (status in (1, 2))
    assert all(line.startswith("train.py: error: ") for line in lines)
    assert ("--micro-batch" in err) == ("memory" in str(error) or isinstance(error, MemoryError))


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_that_is_swallowed_still_ends_the_command(number, status):
    """Catches: a command that goes on after Ctrl-C in a callback of C code, and renames half a
    file."""
    def main(given):
        def write(file):
            with suppress(KeyboardInterrupt):
                os.kill(os.getpid(), number)
                time.sleep(5)
        write_atomically(Path("copy"), write)
    signal.signal(signal.SIGINT, signal.default_int_handler)       # ignored in a background job
    with pytest.raises(SystemExit) as end:
        run(main, TrainSettings, [])
    assert end.value.code == status and os.listdir() == []


def test_a_second_ctrl_c_ends_a_step(capfd):
    """Catches: a step that nothing but a kill ends; a first Ctrl-C that says nothing."""
    def main(given):
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
            assert interrupts.status == 130 and "second Ctrl-C" in capfd.readouterr().err
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
            pytest.fail("the step went on")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(SystemExit) as end:
        run(main, TrainSettings, [])
    assert end.value.code == 130


@pytest.mark.parametrize("argv, closed, other, status", [
    ("data.py --help", "stdout", "stderr", [141]), ("data.py nothing", "stderr", "stdout", [2]),
    ("train.py --help", "stdout", "stderr", [0, 141])])        # argparse may ignore it
def test_a_closed_pipe_is_silent(argv, closed, other, status):
    """Catches: `Exception ignored ... BrokenPipeError`, a traceback, a status of 120."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, ROOT / argv.split()[0], argv.split()[1]],
                          **{closed: writing, other: subprocess.PIPE})
    os.close(writing)
    assert done.returncode in status and getattr(done, other) == b""


def test_a_folder_has_one_command_at_a_time():
    """Catches: two runs in one folder; a lock that outlives a killed process."""
    code = "import sys, time; from support.process import lock; lock('.'); print(); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-uc", code], stdout=subprocess.PIPE,
                          env={**os.environ, "PYTHONPATH": str(ROOT)}) as other:
        other.stdout.readline()
        for _ in range(2):
            with pytest.raises(BadInput, match="another process"):
                lock(Path())
        other.kill()
    lock(Path())
    lock(Path())
    os.close(locks.popitem()[1])


# ---- files, seeds and devices ------------------------------------------------------------------
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_the_old_file_survives_a_failed_write(tmp_path, error):
    """Catches: the last checkpoint lost because the next one did not fit on the disk."""
    path = tmp_path / "checkpoint.pt"
    path.write_text("old")

    def write(file):
        file.write(b"half")
        assert path.read_text() == "old" and Path(file.name).parent == tmp_path
        raise error
    with open(path) as reader:                         # who reads meanwhile has the old one, whole
        with pytest.raises(type(error)):
            write_atomically(path, write)
        assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
        write_atomically(path, lambda file: file.write(b"new"))
        assert reader.read() == "old" and path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_names_the_file():
    """Catches: a traceback of torch.save, which raises an error of its own after the disk's."""
    def write(file):
        try:
            raise OSError(28, "No space left on device")
        finally:
            raise RuntimeError("unexpected pos 64 vs 32")
    with pytest.raises(OSError, match="No space left on device: .*a.pt"):
        write_atomically(Path("a.pt"), write)


def test_pipes_and_links_stay_what_they_are(tmp_path):
    """Catches: a device replaced by a file; a link replaced, with the old content at its target; a
    suffix asked of a pipe."""
    os.mkfifo("pipe")
    settings = PredictSettings(json=Path("pipe"), figure=Path("pipe"))
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_json(settings.json, {"a": 1})
    assert json.loads(os.read(reader, 99)) == {"a": 1} and Path("pipe").is_fifo()
    os.close(reader)
    Path("below").mkdir()
    for target in ("old", "below/new"):
        Path("old").write_text("old")
        Path("link").unlink(missing_ok=True)
        Path("link").symlink_to(target)
        write_json(Path("link"), [1])
        assert Path("link").is_symlink() and json.loads(Path(target).read_text()) == [1]
    assert sorted(os.listdir()) == ["below", "link", "old", "pipe"]


def test_json_never_holds_nan(tmp_path):
    """Catches: NaN in a JSON, which other programs cannot read; half a file after that."""
    path = tmp_path / "a.json"
    for bad in (float("nan"), inf):
        with pytest.raises(BadInput, match="a.json"):
            write_json(path, {"top1": bad})
    assert not path.exists()
    write_json(path, {"top1": None, "name": "crème", "part": {"x": 12.5}})
    assert json.loads(path.read_text()) == {"top1": None, "name": "crème", "part": {"x": 12.5}}


def test_devices():
    """Catches: a traceback of torch's for `--device gpu`; a device that computes nothing."""
    assert pick_device("cpu").type == "cpu" and pick_device("auto").type in ("cpu", "cuda")
    for name in ("gpu", "cuda:99", "meta"):
        with pytest.raises(BadInput, match=f"--device {name}"):
            pick_device(name)


def test_a_folder_that_may_not_be_written_is_refused_at_once(monkeypatch, tmp_path, capsys):
    """Catches: hours of work, and then no place for it: above a new folder, or of a file."""
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    for cls, argv in ((TrainSettings, ["--out", f"{tmp_path}/a/b"]),
                      (PredictSettings, ["--figure", f"{tmp_path}/a.png"])):
        assert f"{tmp_path} is not a folder that may be written" in error_of(capsys, cls, *argv)


@pytest.mark.parametrize("config, given, expected", [
    ({"clip": "RN50", "clip_weights": "w.pt"}, [], ("RN50", "w.pt")),
    ({"clip": "RN50", "clip_weights": "w.pt"}, ["--clip", "ViT-L-14"], ("ViT-L-14", None)),
    ({"clip": "RN50", "clip_weights": "w.pt"}, ["--clip-weights", "v.pt"], ("RN50", "v.pt")),
    (None, [], ("ViT-B-16-quickgelu", None)), ({}, [], ("ViT-B-16-quickgelu", None))])
def test_the_teacher_is_that_of_the_run(config, given, expected, tmp_path):
    """Catches: flags of the training that must be given again; a flag that is overruled; the
    weights of another model."""
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps({"settings": config}))
    for cls, flag, path in ((EvaluateSettings, "--checkpoint", tmp_path / "checkpoint.pt"),
                            (PredictSettings, "--checkpoint", tmp_path),
                            (FinetuneSettings, "--init", tmp_path)):
        settings = parse(cls, [flag, str(path), *given])
        assert (settings.clip, settings.clip_weights) == expected
