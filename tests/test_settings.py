"""settings.py, program.py: the command line, its one-line errors, exit statuses, files whole or absent."""
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import train  # noqa: E402
from support.command import (BadInput, parse, pick_device, run, set_seed, write_atomically,  # noqa: E402
                     write_json)
from settings import EvaluateSettings, FinetuneSettings, TrainSettings  # noqa: E402
from settings_optional import FiguresSettings, PredictSettings  # noqa: E402

CLASSES = pytest.mark.parametrize("cls", [TrainSettings, FinetuneSettings, EvaluateSettings])


def error_of(capsys, cls, *argv):
    """The one line that a wrong command line ends with; checks that it is one, and status 2."""
    with pytest.raises(SystemExit) as end:
        parse(cls, list(argv))
    out, err = capsys.readouterr()
    assert end.value.code == 2 and out == ""
    assert err.startswith("train.py: error: ") and err.count("\n") == 1 and err.endswith("\n")
    return err


@pytest.fixture(autouse=True)
def program(monkeypatch):
    """Be called train.py; leave the process's handler of SIGTERM as it was."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(sys, "argv", ["/somewhere/train.py"])
    yield
    signal.signal(signal.SIGTERM, before)


# ---- the command line --------------------------------------------------------------------------
@pytest.mark.parametrize("script, flags", [("train.py", []), ("evaluate.py", []),
                                           ("train.py", ["--stage", "finetune"]),
                                           ("pseudo_labels.py", []), ("data.py", ["teach"]),
                                           ("predict.py", []), ("figures.py", [])])
def test_help_is_there_at_once(script, flags, tmp_path):
    """Catches: torch imported at the top of a script (4 s before --help), a wrong % in a help."""
    code = ("import runpy, sys\n"
            f"sys.argv = {[script, *flags, '--help']}\n"
            "try:\n"
            f"    runpy.run_path({str(ROOT / script)!r}, run_name='__main__')\n"
            "except SystemExit as end:\n"
            "    heavy = {'torch', 'open_clip', 'numpy', 'tqdm'} & set(sys.modules)\n"
            "    print('HEAVY', sorted(heavy), 'STATUS', end.code)\n")
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True,
                          text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    assert time.perf_counter() - began < 3             # s; 0.1 is usual on an idle machine
    assert done.stdout.endswith("HEAVY [] STATUS 0\n") and done.stderr == ""
    assert "--device" in done.stdout and "(default: auto)" in done.stdout
    assert list(tmp_path.iterdir()) == []


@CLASSES
def test_every_field_has_help_and_a_default(cls):
    """Catches: a flag without an explanation; a default that its own checks or type refuse."""
    for f in fields(cls):
        assert len(f.metadata["help"]) >= 4, f.name
        assert f.default is None or type(f.default) is f.type or isinstance(f.default, Path), f.name
        assert not f.metadata["choices"] or f.default in (None, *f.metadata["choices"]), f.name
    assert parse(cls, []) == cls()
    for name in ("seed", "device", "data"):
        assert hasattr(cls(), name)


def test_defaults_are_what_their_help_says():
    """Catches: another temperature or rate than the paper's where its own is promised; a share of
    the calibrated temperature, or that temperature, that the help does not know."""
    given, help_of = TrainSettings(), {f.name: f.metadata["help"] for f in fields(TrainSettings)}
    assert given.tau == 0.02 and help_of["tau"].endswith("; the paper's 0.02")
    assert given.sgd_lr == 5e-3 and help_of["sgd_lr"].endswith("; the release's 5e-3")
    assert given.teacher_tau is None and (f"{train.SHARPER} of the calibrated one: "
                                          f"{train.CALIBRATED_TAU} in") in help_of["teacher_tau"]


def test_values_arrive_with_their_types():
    """Catches: "3" for 3, str for Path, --order-lr that does not reach order_lr."""
    given = parse(TrainSettings, ["--toy-videos", "3", "--sgd-lr", "1e-4", "--out", "a/b"])
    assert (given.toy_videos, given.sgd_lr, given.out) == (3, 1e-4, Path("a/b"))
    with pytest.raises(FrozenInstanceError):
        given.toy_videos = 4


def test_flags_without_value():
    """Catches: type=bool, with which "--resume False" is True."""
    assert parse(TrainSettings, ["--resume"]).resume is True
    assert parse(TrainSettings, ["--no-resume"]).resume is False
    assert parse(TrainSettings, []).resume is False
    with pytest.raises(SystemExit):
        parse(TrainSettings, ["--resume", "False"])


def test_oracle_sets_samples():
    """Catches: --oracle 7 measured with 5 samples; --oracle 0."""
    assert parse(EvaluateSettings, ["--oracle", "7"]).samples == 7
    assert parse(EvaluateSettings, ["--samples", "3"]).samples == 3
    assert parse(EvaluateSettings, ["--samples", "3"]).oracle is None
    with pytest.raises(BadInput, match="--oracle 0"):
        EvaluateSettings(oracle=0)


@pytest.mark.parametrize("argv", [
    ["--toy-videos", "0"], ["--toy-videos", "1.5"], ["--batch", "-1"], ["--tau", "0"],
    ["--teacher-tau", "-1"], ["--lr", "nan"], ["--lr", "inf"], ["--sgd-lr", "0"],
    ["--epochs", "-1"], ["--epochs", "inf"], ["--sgd-epochs", "nan"], ["--weight-decay", "inf"],
    ["--save-every", "0"], ["--log-every", "0"], ["--seed", "-1"], ["--seed", "4294967296"],
    ["--workers", "-1"], ["--max-unreadable", "1.1"], ["--max-unreadable", "nan"],
    ["--order", "best"], ["--stage", "x"], ["--data", "imagenet"], ["--no-such-flag"],
    ["--video", "3"], ["--epochs"], ["stray"], ["--data", "coin"],
    ["--data", "coin", "--annotations", "a", "--features", "f"],
    ["--order", "none", "--data", "coin", "--annotations", "a", "--features", "f",
     "--text-embeddings", "t"]], ids=" ".join)
def test_wrong_values_are_one_line_and_status_2(argv, capsys):
    """Catches: usage blocks, tracebacks, values that fail after minutes of work (seeds, inf)."""
    line = error_of(capsys, TrainSettings, *argv)
    if argv[0] not in ("--no-such-flag", "stray", "--data", "--video"):
        assert argv[0] in line                         # the flag is named, as it is typed


@pytest.mark.parametrize("argv", [
    ["--samples", "0"], ["--toy-videos", "0"], ["--batch", "0"], ["--min-steps", "1"],
    ["--split", "all"], ["--task", "guess"], ["--oracle", "-5"], ["--seed", "-1"],
    ["--workers", "-1"], ["--max-unreadable", "-0.1"]], ids=" ".join)
def test_wrong_values_of_evaluate(argv, capsys):
    """Catches: a range that the help promises and nobody checks."""
    assert argv[0] in error_of(capsys, EvaluateSettings, *argv)


@pytest.mark.parametrize("cls, argv", [
    (TrainSettings, ["--size", "small"]), (TrainSettings, ["--features", "F.npz"]),
    (TrainSettings, ["--ids", "ids.txt"]), (EvaluateSettings, ["--steps", "steps.txt"]),
    (EvaluateSettings, ["--data", "epic", "--annotations", "a.csv", "--videos", "v", "--features",
                        "F.npz"])])
def test_flags_of_another_kind_of_data_are_refused(cls, argv, capsys):
    """Catches: a run of another size, or on other files, than its command line says."""
    line = error_of(capsys, cls, *argv)
    assert "no effect with --data" in line or "--videos is given as well" in line
    assert argv[-2] in line


@pytest.mark.parametrize("argv", [
    ["--samples", "0"], ["--horizon", "0"], ["--at", "0"], ["--at", "nan"], ["--at", "inf"],
    ["--seed", "-1"], ["--steps", "a", "--text-embeddings", "b"], ["--json", "nowhere/out.json"],
    ["--json", "."], ["--figure", "a.txt"], ["--figure", "nowhere/a.png"],
    ["--keyframes", "settings.py"]], ids=" ".join)
def test_wrong_values_of_predict(argv, capsys, monkeypatch):
    """Catches: a file that cannot be written, found out after the forecast."""
    monkeypatch.chdir(ROOT)
    assert argv[0] in error_of(capsys, PredictSettings, *argv)


def test_an_argument_by_its_place_may_be_left_out():
    """Catches: predict.py that needs a video; a video taken for a flag; any kind of figure."""
    assert parse(PredictSettings, []).video is None
    assert parse(PredictSettings, ["a/b.mp4", "--samples", "7"]).video == Path("a/b.mp4")
    assert parse(PredictSettings, ["--samples", "7", "b.mp4"]).samples == 7
    assert parse(FiguresSettings, ["training"]).out == Path("training.png")
    for argv in ([], ["tables"]):
        with pytest.raises(SystemExit):
            parse(FiguresSettings, argv)


def test_missing_coin_files_are_named(capsys):
    """Catches: `None: No such file` where a flag was forgotten."""
    line = error_of(capsys, TrainSettings, "--data", "coin", "--annotations", "a",
                    "--features", "f")
    assert "--text-embeddings" in line and "None" not in line


# ---- how a script ends -------------------------------------------------------------------------
@pytest.mark.parametrize("error, status", [
    (BadInput("the file\nis wrong"), 2), (OSError(28, "No space left on device"), 2),
    (FloatingPointError("step 3: the loss is nan"), 1), (KeyboardInterrupt(), 130)])
def test_exit_statuses(error, status, capsys):
    """Catches: a user's mistake that looks like our bug; a message on two lines."""
    def main(given):
        assert given == TrainSettings(toy_videos=4)
        raise error
    with pytest.raises(SystemExit) as end:
        run(main, TrainSettings, ["--toy-videos", "4"])
    assert end.value.code == status
    out, err = capsys.readouterr()
    assert out == ""
    if status != 130:
        assert err.startswith("train.py: error: ") and err.count("\n") == 1


def test_our_own_bugs_keep_their_traceback():
    """Catches: every ValueError taken for the user's mistake, its place in the code lost."""
    def main(given):
        raise ValueError("a bug")
    with pytest.raises(ValueError, match="a bug"):
        run(main, TrainSettings, [])


def test_sigterm_ends_with_143():
    """Catches: a scheduler's SIGTERM that skips `finally`, so that .part files stay behind."""
    tidied = []

    def main(given):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        finally:
            tidied.append(True)
    with pytest.raises(SystemExit) as end:
        run(main, TrainSettings, [])
    assert end.value.code == 143 and tidied


# ---- files -------------------------------------------------------------------------------------
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_the_old_file_survives_a_failed_write(tmp_path, error):
    """Catches: the last checkpoint lost because the next one did not fit on the disk."""
    path = tmp_path / "checkpoint.pt"
    path.write_text("old")

    def write(file):
        file.write(b"half")
        assert path.read_text() == "old" and Path(file.name).parent == tmp_path
        raise error
    with pytest.raises(type(error)):
        write_atomically(path, write)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    with open(path) as reader:                         # who reads meanwhile has the old one, whole
        write_atomically(path, lambda file: file.write(b"new"))
        assert reader.read() == "old"
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_json_never_holds_nan(tmp_path):
    """Catches: NaN in a JSON, which other programs cannot read; half a file after that."""
    path = tmp_path / "a.json"
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError):
            write_json(path, {"top1": bad})
    assert not path.exists()
    write_json(path, {"top1": None, "name": "crème", "part": {"x": 12.5}})
    assert json.loads(path.read_text()) == {"top1": None, "name": "crème", "part": {"x": 12.5}}


# ---- seeds and devices -------------------------------------------------------------------------
def test_seed_fixes_all_three_generators():
    """Catches: one of python, numpy and torch left unseeded."""
    import random

    import numpy as np
    import torch

    def draw(seed):
        set_seed(seed)
        return random.random(), np.random.random(), torch.rand(1).item()
    first, again, other = draw(5), draw(5), draw(6)
    assert first == again and all(a != b for a, b in zip(first, other))
    draw(2 ** 32 - 1)


def test_unknown_device_is_bad_input():
    """Catches: a traceback of torch's for `--device gpu`."""
    assert pick_device("cpu").type == "cpu"
    assert pick_device("auto").type in ("cpu", "cuda")
    for name in ("gpu", "cuda:99"):
        with pytest.raises(BadInput, match=f"--device {name}"):
            pick_device(name)
