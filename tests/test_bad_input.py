"""What cannot be used ends with status 2 and one line of stderr, and writes no JSON: SPEC's table.

Everything runs in this process on small COIN files made up; each test breaks one thing.
"""
import json
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import data  # noqa: E402
from commands import (TINY, call, cannot_read, coin_flags, fails, flags_of,  # noqa: E402
                      make_coin)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """COIN files in coin/ and a run on them."""
    folder = tmp_path_factory.mktemp("bad")
    (folder / "coin").mkdir()
    make_coin(folder / "coin")
    handler, threads = signal.getsignal(signal.SIGTERM), torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        call("train.py", *TINY, *coin_flags(), "--out", "runs/coin")
    signal.signal(signal.SIGTERM, handler)
    yield folder
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def here(place, tmp_path, monkeypatch):
    """An empty folder with a copy of the COIN files; the run is ../runs/coin of `place`."""
    before = signal.getsignal(signal.SIGTERM)
    shutil.copytree(place / "coin", tmp_path / "coin")
    monkeypatch.chdir(tmp_path)
    yield
    signal.signal(signal.SIGTERM, before)


def change_npz(name, **changes):
    """Rewrite an npz of the COIN files; a change maps the old array to the new one."""
    path = Path("coin") / name
    table = dict(np.load(path))
    np.savez(path, **{key: changes.get(key, lambda a: a)(value) for key, value in table.items()})


def change_coin(old, new):
    path = Path("coin/COIN.json")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def put(row, value):
    """A change of one row of an array."""
    def change(array):
        array = array.copy()
        array[row] = value
        return array
    return change


def cut(name):
    path = Path("coin") / name
    path.write_bytes(path.read_bytes()[:-200])


BROKEN = {
    "no COIN.json": (lambda: Path("coin/COIN.json").unlink(), ["COIN.json", "No such file"]),
    "empty COIN.json": (lambda: Path("coin/COIN.json").write_text(""), ["COIN.json", "empty"]),
    "COIN.json cut off": (lambda: cut("COIN.json"), ["COIN.json:", "JSON"]),
    "another JSON": (lambda: Path("coin/COIN.json").write_text("[1]"), ["COIN.json", "database"]),
    "end before start": (lambda: change_coin("15.0", "1.0"), ["COIN.json:3:", "v", "before"]),
    "NaN time": (lambda: change_coin("15.0", "NaN"), ["COIN.json:3:", "segment"]),
    "class 0": (lambda: change_coin('"id": "1"', '"id": "0"'), ["COIN.json:", "id is '0'"]),
    "class too large": (lambda: change_coin('"id": "1"', '"id": "9"'), ["texts.npz", "class 9"]),
    "a folder": (lambda: (Path("coin/COIN.json").unlink(), Path("coin/COIN.json").mkdir()),
                 ["COIN.json", "directory"]),
    "no features": (lambda: Path("coin/features.npz").unlink(), ["features.npz", "No such file"]),
    "empty features": (lambda: Path("coin/features.npz").write_bytes(b""), ["features.npz"]),
    "features cut off": (lambda: cut("features.npz"), ["features.npz", "npz"]),
    "no start": (lambda: np.savez("coin/features.npz", video=["t0"], embedding=np.ones((1, 8))),
                 ["features.npz", "start, end"]),
    "object array": (lambda: np.savez("coin/features.npz", video=np.array(["a", 3], object)),
                     ["features.npz"]),
    "NaN feature": (lambda: change_npz("features.npz", embedding=put((7, 3), np.nan)),
                    ["features.npz", "row 7"]),
    "infinite feature": (lambda: change_npz("features.npz", embedding=put((9, 0), np.inf)),
                         ["features.npz", "row 9"]),
    "window ends early": (lambda: change_npz("features.npz", end=put(5, -1)),
                          ["features.npz", "row 5", "before"]),
    "wrong D": (lambda: change_npz("features.npz", embedding=lambda a: a[:, :5]),
                ["features.npz", "width 5", "texts.npz"]),
    "no listed video": (lambda: change_npz("features.npz", video=lambda a: np.char.add(a, ".mp4")),
                        ["features.npz", "no row"]),
    "no texts": (lambda: Path("coin/texts.npz").unlink(), ["texts.npz", "No such file"]),
    "NaN text": (lambda: change_npz("texts.npz", embeddings=put((2, 1), np.nan)),
                 ["texts.npz", "row 2"]),
    "zero text": (lambda: change_npz("texts.npz", embeddings=put(3, 0)), ["texts.npz", "row 3"]),
    "one class": (lambda: change_npz("texts.npz", names=lambda a: a[:1],
                                     embeddings=lambda a: a[:1]), ["texts.npz", "one class"]),
}


@pytest.mark.parametrize("program", ["train.py", "evaluate.py"])
@pytest.mark.parametrize("name", BROKEN)
def test_broken_files(place, capsys, program, name):
    """Catches: a traceback for a user's file, NaN that trains, files read in another order."""
    spoil, named = BROKEN[name]
    spoil()
    flags = {"train.py": ("--out", "run"),
             "evaluate.py": ("--checkpoint", str(place / "runs/coin"), "--json", "o.json")}[program]
    line = fails(capsys, 2, program, *coin_flags(), *flags)
    assert all(text in line for text in named), line
    assert not Path("o.json").exists() and not Path("run/checkpoint.pt").exists()


def test_the_same_command_works_after_the_mistake_is_mended(capsys):
    """Catches: a folder spoilt by the first try: refused, or with its config."""
    Path("coin/texts.npz").rename("texts.npz")
    fails(capsys, 2, "train.py", *TINY, *coin_flags(), "--out", "run")
    Path("texts.npz").rename("coin/texts.npz")
    call("train.py", *TINY, *coin_flags(), "--seed", "3", "--out", "run")
    assert json.loads(Path("run/config.json").read_text())["settings"]["seed"] == 3
    assert Path("run/checkpoint.pt").exists()


# ---- checkpoints -------------------------------------------------------------------------------
def test_no_checkpoint_names_the_train_command(capsys):
    """Catches: `runs/pretrain: No such file` on a reader's first command."""
    line = fails(capsys, 2, "evaluate.py", "--json", "o.json")
    assert "runs/pretrain" in line and "python train.py --stage pretrain" in line
    assert not Path("o.json").exists()


def spoiled(place, change):
    content = torch.load(place / "runs/coin/checkpoint.pt", weights_only=True)
    change(content)
    torch.save(content, "bad.pt")


CHECKPOINTS = {
    "empty": lambda place: Path("bad.pt").write_bytes(b""),
    "cut off": lambda place: Path("bad.pt").write_bytes(
        (place / "runs/coin/checkpoint.pt").read_bytes()[:-1000]),
    "text": lambda place: Path("bad.pt").write_text("hello\n"),
    "a tensor": lambda place: torch.save(torch.ones(3), "bad.pt"),
    "code": lambda place: torch.save({"model": Path("x"), "arguments": print}, "bad.pt"),
    "others' weights": lambda place: torch.save({"model": {}, "arguments": {}}, "bad.pt"),
    "other shape": lambda place: spoiled(place, lambda content: content["model"].update(
        {key: value[..., :-1] for key, value in content["model"].items() if value.ndim > 1})),
    "weights lost": lambda place: spoiled(place, lambda content: content["model"].popitem()),
    "impossible arguments": lambda place: spoiled(
        place, lambda content: content["arguments"]["denoiser"].update(heads=7)),
    "phrases not a table": lambda place: spoiled(
        place, lambda content: content["model"].update(phrases=torch.ones(3))),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_broken_checkpoints(place, capsys, name):
    """Catches: a traceback for a file that is not ours, or code in it that is run."""
    CHECKPOINTS[name](place)
    line = fails(capsys, 2, "evaluate.py", *coin_flags(), "--checkpoint", "bad.pt", "--json",
                 "o.json")
    assert "bad.pt" in line and not Path("o.json").exists()


def test_a_checkpoint_of_another_width(place, capsys):
    """Catches: a shape error from a matrix product."""
    Path("wide").mkdir()
    make_coin(Path("wide"), D=12)
    line = fails(capsys, 2, "evaluate.py", *coin_flags("wide"), "--checkpoint",
                 str(place / "runs/coin"))
    assert "8" in line and "12" in line


def test_a_checkpoint_of_the_other_data(place, capsys):
    """Catches: AttributeError of an encoder that is not there; features read as pixels."""
    line = fails(capsys, 2, "evaluate.py", "--checkpoint", str(place / "runs/coin"))
    assert "--data" in line
    from model import ProcedureModel, save_checkpoint
    from train import SIZES
    model = ProcedureModel(torch.eye(8), SIZES["small"]["encoder"], SIZES["small"]["denoiser"],
                           "diffusion", 0.02, (.4, .25))
    save_checkpoint("toy.pt", model)
    line = fails(capsys, 2, "evaluate.py", *coin_flags(), "--checkpoint", "toy.pt")
    assert "--data" in line


def test_features_of_a_checkpoint_that_has_no_encoder(place, capsys):
    """Catches: AttributeError of an encoder that is not there."""
    flags = ("--task", "features", *coin_flags(), "--checkpoint", str(place / "runs/coin"))
    assert "encoder" in fails(capsys, 2, "evaluate.py", *flags)


@pytest.mark.parametrize("flag, path", [("--json", "coin"), ("--json", "no/o.json"),
                                        ("--out", "no/f.npz"), ("--submission", "coin")])
def test_a_result_without_a_place_is_said_before_it_is_made(place, capsys, flag, path):
    """Catches: an hour of measuring, and then no file."""
    line = fails(capsys, 2, "evaluate.py", *coin_flags(), flag, path, "--checkpoint", "none")
    assert f"{flag} {path}" in line


def test_texts_that_are_all_the_same(capsys):
    """Catches: a division by their spread, 0, that ends as a loss of NaN."""
    change_npz("texts.npz", embeddings=lambda a: np.repeat(a[:1], len(a), 0))
    assert "texts.npz" in fails(capsys, 2, "train.py", *TINY, *coin_flags(), "--out", "run")


def test_a_damaged_checkpoint_is_not_resumed(place, capsys):
    """Catches: --resume that starts again from nothing over a checkpoint it cannot read."""
    call("train.py", *TINY, *coin_flags(), "--out", "run")
    Path("run/checkpoint_before.pt").unlink()          # with it: test_resume.py
    path = Path("run/checkpoint.pt")
    path.write_bytes(path.read_bytes()[:-1000])
    again = (*TINY, *coin_flags(), "--out", "run", "--resume")
    assert "checkpoint" in fails(capsys, 2, "train.py", *again)
    Path("run/config.json").write_text("{")
    assert "config.json" in fails(capsys, 2, "train.py", *again)


# ---- what cannot be done -----------------------------------------------------------------------
def test_forecasts_of_matching_alone_are_refused(place, capsys):
    """Catches: numbers for a model without h."""
    spoiled(place, lambda content: (
        content["arguments"].update(order="none"),
        [content["model"].pop(key) for key in list(content["model"]) if "denoiser" in key]))
    line = fails(capsys, 2, "evaluate.py", *coin_flags(), "--checkpoint", "bad.pt")
    assert "none" in line


def test_nothing_to_train_or_to_measure(place, capsys):
    """Catches: an empty list of parameters, no step, no sample: errors from deep inside."""
    line = fails(capsys, 2, "train.py", *TINY, *coin_flags(), "--order", "none", "--out", "run")
    assert "--order none" in line
    line = fails(capsys, 2, "train.py", *TINY, *coin_flags(), *flags_of("epochs", 0), "--out", "b")
    assert "epochs" in line
    line = fails(capsys, 2, "evaluate.py", *coin_flags(), "--min-steps", "9", "--checkpoint",
                 str(place / "runs/coin"))
    assert "9" in line


def test_places_that_cannot_be_written(place, capsys):
    """Catches: an hour of measuring before the JSON's folder turns out not to be there."""
    Path("file").write_text("")
    fails(capsys, 2, "train.py", *TINY, *coin_flags(), "--out", "file/run")
    line = fails(capsys, 2, "evaluate.py", *coin_flags(), "--checkpoint", str(place / "runs/coin"),
                 "--json", "no/such/o.json")
    assert "no/such" in line


@pytest.mark.parametrize("names, share", [(["t2"], None), (["t0", "t1", "t2", "t3"], "1")])
def test_too_many_unreadable_videos(place, capsys, monkeypatch, names, share):
    """Catches: a score of the few files that can be read; a traceback where there is none."""
    cannot_read(monkeypatch, data.FeatureSource, *names)
    flags = () if share is None else ("--max-unreadable", share)
    for task in ("forecast", "classify"):
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            call("evaluate.py", *coin_flags(), "--task", task, "--checkpoint",
                 str(place / "runs/coin"), "--json", "o.json", *flags)
        err = capsys.readouterr().err
        assert end.value.code == 2 and err.count("error: ") == 1 and "cut off" in err
        assert f"{len(names)} of 4 videos" in err and not Path("o.json").exists()


def test_missing_videos_are_named_in_the_run_folder(place):
    """Catches: listed videos without features left out in silence."""
    assert "unseen" in "".join(path.read_text(errors="replace") for path in
                             (place / "runs/coin").iterdir() if path.suffix != ".pt")


def test_videos_without_steps_are_skipped():
    """Catches: a batch whose only video has no clips (nothing to concatenate)."""
    data = json.loads(Path("coin/COIN.json").read_text())
    first = next(iter(data["database"].values()))
    first["annotation"] = []
    Path("coin/COIN.json").write_text(json.dumps(data))
    call("train.py", *TINY, *coin_flags(), *flags_of("batch", 1), "--out", "run")
    assert Path("run/checkpoint.pt").exists()
