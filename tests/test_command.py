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

import numpy as np
import pytest

import experiments
from evaluate import EvaluateSettings
from experiments.simulate import SimulateSettings
from files.__main__ import COMMANDS
from predict import PredictSettings
from support.command import (GROUPS, BadInput, Settings, flag_of, parse, run, write_atomically,
                             write_json)
from support.device import pick_device, write_arrays
from support.process import Interrupts, lock, locks, process_number
from toy import __main__ as toy_commands
from train import FinetuneSettings, TrainSettings
from training import pretrain

ROOT = Path(__file__).resolve().parent.parent
MODULES = [*(f"experiments.{name}" for name in experiments.COMMANDS), "files", "toy"]
HELPS = [("train.py",), ("train.py", "--stage", "finetune"), ("evaluate.py",), ("predict.py",),
         *(("files", name) for name in COMMANDS),
         *(("toy", name) for name in toy_commands.COMMANDS),
         *zip(MODULES)]
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
    capsys.readouterr()                                # notes of good ones
    with pytest.raises(SystemExit) as end:
        parse(cls, [*argv])
    out, err = capsys.readouterr()
    assert end.value.code == 2 and out == "", argv
    assert err.startswith("train.py: error: ") and err.count("\n") == 1 and err.endswith("\n")
    return err


@pytest.mark.parametrize("script, flags", [(script, flags) for script, *flags in HELPS])
def test_help_is_there_at_once(script, flags, tmp_path):
    """Catches: torch imported at the top of a script, a wrong % in a help, flags named nowhere."""
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
    assert script != "train.py" or flags or done.stdout.count("\n") <= 41      # its 40, and HEAVY
    assert script != "train.py" or flags or "--data coin adds --annotations, --f" in done.stdout
    assert time.perf_counter() - began < 3             # s; 0.1 is usual on an idle machine
    assert done.stdout.endswith("HEAVY [] STATUS 0\n") and done.stderr == "", done.stderr
    assert done.stdout.startswith("usage: ") and done.stdout.splitlines()[1] == ""
    assert list(tmp_path.iterdir()) == []


def test_the_experiments_are_listed():
    """Catches: a command without a line, a module that is none and ends with 0, as if it had run"""
    listed, refused, more = (
        subprocess.run([sys.executable, "-m", *name.split()], cwd=ROOT, text=True,
                       capture_output=True)
        for name in ("experiments", "experiments.tables", "experiments tour"))
    assert more.returncode == 2 and more.stderr.startswith("experiments: error: takes no flags")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == [*experiments.COMMANDS]
    assert refused.returncode == 2 and refused.stderr.startswith("tables: error: ")


@CLASSES
def test_every_flag_has_help_a_group_and_a_default(cls):
    """Catches: a flag without a help, a number without a range, a default that is refused."""
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
        yield from ["x", "", *(["1.5", 2 ** 64] if f.type is int else
                                ["nan", "inf", "-inf", 1e300])]
        yield from [end + way * small for end, way in ((declared["low"], -1), (declared["high"], 1),
                                                       (declared["above"], 0)) if abs(end) < inf]
    if declared["choices"]:
        yield "another"
    if declared["file"] is not None:
        yield from ["nowhere/x.png", ".", *(["x.txt"] if declared["file"] else [])]


def fitting(cls, f):
    """Values of other flags with which a flag has an effect."""
    return {other: (kinds or "x")[0] for other, kinds in f.metadata["only"].items()
            if kinds != (None,) and other in cls.__dataclass_fields__}


@CLASSES
def test_values_outside_of_what_a_flag_declares_are_refused(cls, capsys):
    """Catches: usage blocks, values that fail after minutes of work, an unchecked range."""
    for f in fields(cls):
        declared = f.metadata
        for value in wrong_values(f):
            assert flag_of(f.name) in error_of(capsys, cls, *argv_of(cls, **fitting(cls, f),
                                                                     **{f.name: value}))
        for end in (declared["low"], declared["high"]):
            if f.type in (int, float) and abs(end) < inf:
                settings = parse(cls, argv_of(cls, **fitting(cls, f), **{f.name: end}))
                assert getattr(settings, f.name) == end


@CLASSES
def test_a_flag_without_effect_is_refused(cls, capsys):
    """Catches: a flag that nothing reads, and a run that looks as if it had it."""
    choices = {f.name: f.metadata["choices"] for f in fields(cls)}
    for f in fields(cls):
        values = choices[f.name] or ("x" if f.type in (str, Path) else "3")
        flag = f"{flag_of(f.name)}={min({*values} - {f.default})}"
        flag = f"--no-{f.name}" if f.type is bool else flag
        for other, kinds in f.metadata["only"].items():
            if other not in choices:
                continue
            for bad in {*(choices[other] or "3")} - {*kinds} if kinds else [None]:
                given = {**fitting(cls, f), other: bad}
                line = error_of(capsys, cls, flag, *argv_of(cls, **{
                    name: value for name, value in given.items() if value is not None}))
                told = f"with {flag_of(other)} {bad}" if kinds else f"without {flag_of(other)}"
                assert f"has no effect {told}" in line and flag_of(f.name) in line


COIN = ("--data", "coin", "--annotations", "a")
FEATURES = ("--features", "f", "--text-embeddings", "t")
READ = ("--videos", __file__, "--captions", __file__, "--phrases", __file__, "--ids", __file__)


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
    (PredictSettings, ["--steps", "a", "--text-embeddings", "b"], "--steps a: has no effect with"),
    (PredictSettings, ["--keyframes", __file__], "--keyframes"),
    (TrainSettings, ["--out", f"{__file__}/run"], "test_command.py is not a folder"),
    (EvaluateSettings, ["--checkpoint", ""], "--checkpoint '': is empty"),
    (TrainSettings, ["--out="], "'--out=': is empty"),
    (TrainSettings, ["--order", "none", "--clips", "clips"], "--clips clips: has no effect"),
    (TrainSettings, ["--sgd-epochs", "1", "--epochs", "0", "--lr", "1e-3"], "--lr 0.001: has no"),
    *((cls, [], argv_of(cls)[0][:-2]) for cls in COMMANDS.values() if argv_of(cls))])
def test_flags_that_do_not_fit_each_other(cls, argv, named, capsys):
    """Catches: usage blocks, `None: No such file` where a flag was forgotten, a shortened flag."""
    line = error_of(capsys, cls, *argv)
    assert named in line and "None" not in line


@pytest.mark.parametrize("cls, flag, argv", [
    *((TrainSettings, flag, ["--data", "howto100m", *READ]) for flag in READ[::2]),
    (EvaluateSettings, "--checkpoint", []), (TrainSettings, "--init", []),
    (FinetuneSettings, "--init", []), (EvaluateSettings, "--videos", ["--task", "features"]),
    *((PredictSettings, flag, []) for flag in ("--checkpoint", "--steps", "--text-embeddings")),
    (COMMANDS["shrink"], "--videos", ["--out", "a"]), (COMMANDS["check"], "--annotations", [])])
def test_files_that_are_read_exist(cls, flag, argv, capsys):
    """Catches: a missing file that is found out after an hour."""
    with pytest.raises(SystemExit) as end:
        run(pytest.fail, cls, [*argv, flag, "nowhere"])
    line = capsys.readouterr().err
    assert end.value.code == 2 and f"{flag} nowhere: no such file" in line
    assert line.count("\n") == 1
    run(lambda settings: None, cls, [*argv, flag, __file__])


def test_values_arrive_with_their_types():
    """Catches: "3" for 3, str for Path, "--resume False" that is True; another task's defaults."""
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
    assert parse(FinetuneSettings, []).clip == "ViT-B-16-quickgelu"      # as in older records


@pytest.mark.parametrize("cls, argv, refused", [
    (EvaluateSettings, "--data coin --annotations in/COIN.json --videos in/videos --json", [
        "in/COIN.json", "linked/COIN.json", "in/videos/a.mp4", "in/videos/new.json", "hard"]),
    (EvaluateSettings, "--checkpoint in/run --json", [
        "in/run/checkpoint.pt", "in/run/config.json", "hard.pt",
        str(ROOT / "toy/teacher.safetensors")]),
    (EvaluateSettings, "--data coin --annotations in/COIN.json --videos in/videos --checkpoint "
     "in/adopted --json", ["in/clip/a"]),
    (EvaluateSettings, "--checkpoint in/run/checkpoint.pt --json", ["in/run/checkpoint.pt"]),
    (PredictSettings, "in/videos/a.mp4 --json", ["in/videos/a.mp4"]),
    (PredictSettings, "in/videos/a.mp4 --steps in/steps.pdf --figure", ["in/steps.pdf"]),
    (PredictSettings, "in/videos/a.mp4 --checkpoint in/run --keyframes", ["in/run"]),
    (TrainSettings, "--data howto100m --videos in/videos --captions in --phrases in/steps.pdf "
     "--clip local-dir:in/run --out", ["in/new", "in/run", "linked/new", "in/videos/day1"]),
    (TrainSettings, "--phrases new/config.json --out", ["new"]),
    (FinetuneSettings, "--stage finetune --init in/run --out", ["in/run"]),
    (PredictSettings, "--figure both.pdf --json", ["both.pdf"]),
    (PredictSettings, "--keyframe-model in/clip --keyframes", ["in/clip"]),
    (COMMANDS["shrink"], "--videos in/videos --out", ["in/videos", "in/videos/day1",
                                                      "linked/videos"]),
    (COMMANDS["teach"], "--videos in/videos --clip-weights in/steps.pdf --out", ["in/videos/t"]),
    (COMMANDS["phrases"], "--captions in/COIN.json --spacy-model in/clip --out",
     ["in/COIN.json", "in/clip/meta.json"]),
    (COMMANDS["embed"], "--phrases in/steps.pdf --out", ["in/steps.pdf", "linked/steps.pdf"]),
    (COMMANDS["embed"], "--phrases texts.npz --out", ["texts.npz"]),       # the default of --out
    (SimulateSettings, "--annotations in/COIN.json --text-embeddings in/steps.pdf --out",
     ["in/steps.pdf"])])
def test_no_output_takes_the_place_of_an_input(cls, argv, refused, tmp_path, monkeypatch, capsys):
    """Catches: an input lost to an output, also through a link; a result in a run refused."""
    monkeypatch.chdir(tmp_path)
    for name in ("COIN.json", "steps.pdf", "videos/a.mp4", "run/checkpoint.pt", "run/config.json",
                 "../new/config.json", "clip/a", "adopted/config.json"):
        Path("in", name).parent.mkdir(parents=True, exist_ok=True)
        Path("in", name).write_text("{}")
    Path("in/adopted/config.json").write_text(
        '{"settings": {"clip": "local-dir:in/clip", "clip_weights": null}}')
    Path("linked").symlink_to("in")
    Path("texts.npz").write_text("stir\ncut\n")
    os.link("in/COIN.json", "hard")
    os.link("in/run/checkpoint.pt", "hard.pt")
    for place in refused:
        with pytest.raises(SystemExit):
            run(pytest.fail, cls, [*argv.split(), place])
        assert "nothing is replaced" in capsys.readouterr().err
    if argv.endswith("--json"):
        run(lambda settings: None, cls, [
            *argv.split(), "in/run/forecast.json" if "in/run" in argv else "o.json"])


@pytest.mark.parametrize("error, status", [
    (BadInput("the file\nis wrong"), 2), (OSError(28, "No space left on device"), 2),
    (FloatingPointError("step 3: the loss is nan"), 1), (KeyboardInterrupt(), 130),
    (MemoryError(), 2), (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"), 2),
    (BrokenPipeError(), 141),
    (signal.SIGTERM, 143), (ValueError("a bug"), None), (RuntimeError("a bug"), None)])
def test_exit_statuses(error, status, capsys, monkeypatch):
    """Catches: bad input that looks like a bug, or the reverse; SIGTERM that skips `finally`."""
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
    """Catches: a command that goes on after Ctrl-C in a callback, and renames half a file."""
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
            assert interrupts.status == 130 and capfd.readouterr().err == (
                "\ntrain.py: this step is finished and saved first; a second Ctrl-C ends at once\n")
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
            pytest.fail("the step went on")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(SystemExit) as end:
        run(main, TrainSettings, [])
    assert end.value.code == 130


@pytest.mark.parametrize("argv, closed, other, status", [
    ("-m files --help", "stdout", "stderr", [141]), ("-m toy nothing", "stderr", "stdout", [2]),
    ("train.py --help", "stdout", "stderr", [0, 141])])        # argparse may ignore it
def test_a_closed_pipe_is_silent(argv, closed, other, status):
    """Catches: `Exception ignored ... BrokenPipeError`, a traceback, a status of 120."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, *argv.split()], cwd=ROOT,
                          **{closed: writing, other: subprocess.PIPE})
    os.close(writing)
    assert done.returncode in status and getattr(done, other) == b""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream(closed, tmp_path):
    """Catches: an error's line in the output, a file that gets the number of a closed stream."""
    code = ("import os\nfrom support.command import BadInput, Settings, run\n"
            "def main(settings):\n"
            "    from tqdm import tqdm\n"
            "    with open('file', 'w') as file:\n"
            "        assert file.fileno() > 2 and sum(tqdm([1])) == 1\n"
            "        print('printed')\n"
            "        raise BadInput('a problem')\n"
            "run(main, Settings, [])")
    done = subprocess.run(["bash", "-c", f"exec {sys.executable} -c \"$0\" {closed}", code],
                          env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
                          text=True)
    assert done.returncode == 2 and Path("file").read_text() == ""
    assert done.stdout == ("" if ">&- " in f"{closed} " and "2>&-" != closed else "printed\n")
    assert done.stderr.endswith("-c: error: a problem\n") or "2>&-" in closed


SECOND = dict(RANK="1", LOCAL_RANK="1", WORLD_SIZE="2", MASTER_ADDR="a", MASTER_PORT="9")


@pytest.mark.parametrize("given, number", [
    ({}, 0), ({"RANK": "0"}, 0), ({"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}, 0),
    (SECOND, 1), *(({name: SECOND[name]}, None) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")),
    *((SECOND | {name: value}, None) for name, value in [
        ("RANK", "2"), ("RANK", "one"), ("MASTER_PORT", ""), ("MASTER_PORT", "65536"),
        ("MASTER_ADDR", ""), ("LOCAL_RANK", "-1"), ("WORLD_SIZE", "9" * 5000)])])
def test_the_environment_of_torchrun(given, number, monkeypatch, capsys):
    """Catches: a KeyError, or silence, where a scheduler sets some of torchrun's variables."""
    for name in SECOND:
        monkeypatch.setenv(name, given[name]) if name in given else monkeypatch.delenv(name, False)
    if number is None:
        with pytest.raises(SystemExit) as end:
            run(print, TrainSettings, [])
        err = capsys.readouterr().err
        assert end.value.code == 2 and "torchrun" in err and err.count("\n") == 1 and len(err) < 300
    else:
        assert process_number() == number


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


@pytest.mark.parametrize("error, said", [
    (OSError(28, "disk full"), "disk full: .*checkpoint.pt"), (KeyboardInterrupt(), None)])
def test_the_old_file_survives_a_failed_write(tmp_path, error, said):
    """Catches: the last checkpoint lost because the next one did not fit on the disk; an error that
    torch.save raises after the disk's, in its place."""
    path = tmp_path / "checkpoint.pt"
    path.write_text("old")

    def write(file):
        file.write(b"half")
        assert path.read_text() == "old" and Path(file.name).parent == tmp_path
        try:
            raise error
        finally:
            if said:
                raise RuntimeError("unexpected pos 64 vs 32")
    with open(path) as reader:                         # who reads meanwhile has the old one, whole
        with pytest.raises(type(error), match=said):
            write_atomically(path, write)
        assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
        write_atomically(path, lambda file: file.write(b"new"))
        assert reader.read() == "old" and path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_pipes_and_links_stay_what_they_are(tmp_path):
    """Catches: a device or a link replaced by a file; a suffix asked of a pipe."""
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
        for file in (path, None):
            with pytest.raises(FloatingPointError, match="a.json" if file else "not finite"):
                write_json(file, {"top1": bad})
        with pytest.raises(FloatingPointError, match="a.npz: x: not finite"):
            write_arrays(tmp_path / "a.npz", names=np.array(["a"]), x=np.array([1., bad]))
    assert not path.exists() and not (tmp_path / "a.npz").exists()
    write_json(path, {"top1": None, "name": "crème", "part": {"x": 12.5}})
    assert json.loads(path.read_text()) == {"top1": None, "name": "crème", "part": {"x": 12.5}}


def test_devices():
    """Catches: a traceback of torch's for `--device gpu`; a device that computes nothing."""
    assert pick_device("cpu").type == "cpu" and pick_device("auto").type in ("cpu", "cuda")
    for name in ("gpu", "cuda:99", "meta", "hpu", "xpu", "mps:3", "privateuseone", "", "opengl"):
        with pytest.raises(BadInput, match=f"--device {name}: "):
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
    *((config, [], ("ViT-B-16-quickgelu", None)) for config in (
        None, {}, [3], 3, {"clip": 3, "clip_weights": None}, {"clip": ["RN50"], "clip_weights": {}},
        {"clip": None, "clip_weights": "w.pt"}, {"clip": "RN50", "clip_weights": [[]]}))])
def test_the_teacher_is_that_of_the_run(config, given, expected, tmp_path):
    """Catches: flags that must be given again, or are overruled; a strange config's traceback."""
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps({"settings": config}))
    for cls, flag, path in ((EvaluateSettings, "--checkpoint", tmp_path / "checkpoint.pt"),
                            (FinetuneSettings, "--init", tmp_path)):
        settings = parse(cls, [flag, str(path), *COIN, "--videos", "v", *given])
        assert (settings.clip, settings.clip_weights) == expected
