"""What cannot be used ends with status 2 and one line that names it; nothing is written."""
import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from commands import COIN, TINY, call, coin_flags, fails, make_coin, read_json
from support import parallel
from toy import source
from toy.teacher import write_weights


@pytest.fixture(autouse=True)
def files(trained, here, monkeypatch):
    """For each test: copies of the COIN files and of a run on them, a toy run, and lists."""
    monkeypatch.setattr(source, "TEACHER_FILE", source.TEACHER_FILE)     # put back after the test
    Path("coin").unlink()
    shutil.copytree(trained / "coin", "coin")
    shutil.copytree(trained / "coin-run", "run")
    Path("toy-run").symlink_to(trained / "diffusion")
    Path("caption.json").write_text(json.dumps({"a": {"start": [1], "end": [2], "text": ["cut"]}}))
    Path("phrases.txt").write_text("stir\ncut\n")


TRAIN = "train.py", *COIN, "--out"
MEASURE = "evaluate.py", *coin_flags(), "--checkpoint", "run/checkpoint.pt", "--json", "o.json"
# What reads each file; the first of its commands that is broken must say so.
READERS = {
    "coin/COIN.json": [(*TRAIN, "new"), MEASURE, ("files", "check", "--annotations",
                                                  "coin/COIN.json", "--json", "o.json")],
    "coin/features.npz": [(*TRAIN, "new"), MEASURE], "coin/texts.npz": [(*TRAIN, "new"), MEASURE],
    "run/checkpoint.pt": [MEASURE, ("predict.py", *MEASURE[-4:]), (
        "train.py", "--stage", "finetune", *coin_flags(), "--init", "run/checkpoint.pt", "--out",
        "new")],
    "run/config.json": [(*TRAIN, "run", "--resume")],
    "phrases.txt": [("train.py", *TINY, "--phrases", "phrases.txt", "--out", "new")],
    "caption.json": [("files", "phrases", "--captions", "caption.json", "--out", "o.json")]}


def replace(old, new):
    """A fault: other text in a file of text, once."""
    def change(path):
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))
    return change


def npz(**changes):
    """A fault: other arrays in an npz. A change maps the old array to the new one."""
    def change(path):
        table = dict(np.load(path))
        np.savez(path, **{key: changes.get(key, lambda a: a)(table[key]) for key in table})
    return change


def content(change):
    """A fault: other content of a checkpoint. A link is replaced, the file that it names stays."""
    def rewrite(path):
        whole = torch.load(path, weights_only=True)
        change(whole)
        path.unlink()
        torch.save(whole, path)
    return rewrite


GENERAL = {"missing": Path.unlink, "empty": lambda path: path.write_bytes(b""),
           "a folder": lambda path: (path.unlink(), path.mkdir()),
           "no text": lambda path: path.write_bytes(b"\xff\xfe\0" * 99),
           "cut off": lambda path: path.write_bytes(path.read_bytes()[:-200])}
BROKEN = [(file, name, fault, []) for file in READERS for name, fault in GENERAL.items()
          if name != "cut off" or not file.endswith(".txt")]
BROKEN += [("coin/COIN.json", *row) for row in [
    ("another JSON", lambda path: path.write_text("[1]"), ["database"]),
    ("NaN time", replace("15.0", "NaN"), ["COIN.json:3:", "segment"]),
    ("a key twice", replace('"recipe_type"', '"subset"'), ["'subset' is there 2 times"])]]
BROKEN += [("coin/features.npz", *row) for row in [
    ("milliseconds", npz(start=lambda a: a * 1e3, end=lambda a: a * 1e3), ["near", "milliseconds"]),
    ("wrong D", npz(embedding=lambda a: a[:, :5]), ["width 5", "texts.npz"]),
    ("no listed video", npz(video=lambda a: np.char.add(a, ".mp4")), ["no row"])]]
BROKEN += [("coin/texts.npz", *row) for row in [
    ("other names", npz(names=lambda a: a[::-1]), [
        "texts.npz: class 1 is 'step 5', but 'step 0' in coin/COIN.json"]),
    ("class out of range", npz(names=lambda a: a[:5], embeddings=lambda a: a[:5]),
     ["5 names", "6 classes"]),
    ("one class", npz(names=lambda a: a[:1], embeddings=lambda a: a[:1]), ["one class"])]]
BROKEN += [("run/checkpoint.pt", *row) for row in [
    ("a tensor", lambda path: torch.save(torch.ones(3), path), []),
    ("code", lambda path: torch.save({"model": Path("x"), "arguments": print}, path), []),
    ("others' weights", lambda path: torch.save({"model": {}, "arguments": {}}, path), []),
    ("another shape", content(lambda whole: whole["model"].update(
        {key: value[..., :-1] for key, value in whole["model"].items() if value.ndim > 1})), []),
    ("weights lost", content(lambda whole: whole["model"].popitem()), []),
    *((f"{name} {value}", content(lambda whole, changes={name: value}: whole["arguments"][
        "denoiser"].update(changes)), ["checkpoint.pt"]) for name, value in [
            ("heads", 7), ("heads", -4), ("heads", 0), ("heads", "4"), ("layers", 100_000),
            ("clips", 10 ** 12), ("clips", 2 ** 18), ("clips", {"a": [1]}), ("width", 64),
            ("dropout", -1.0)]),
    *((f"{name} {value}", content(lambda whole, changes={name: value}: whole["arguments"].update(
        changes)), ["checkpoint.pt", name]) for name, value in [
            ("tau", 0), ("order", "other"), ("alpha_bar", 0.5), ("tau", None), ("alpha_bar", []),
            ("alpha_bar", [.1, .5]), ("alpha_bar", [1, 1]),
            ("classes", [3]), ("witness", 5), ("pixels", [1.0])]),
    *((f"{value} weight", content(lambda whole, value=value: whole["model"][
        "denoiser.position.weight"][3].fill_(value)), ["denoiser.position.weight holds NaN"])
      for value in (np.nan, -np.inf)),
    *((f"phrases {table.shape}", content(lambda whole, table=table: whole["model"].update(
        phrases=table)), []) for table in (torch.ones(3), torch.zeros(1, 1).expand(2 ** 40, 16)))]]
BROKEN += [("phrases.txt", "one phrase", lambda path: path.write_text("stir\n"), ["two"])]


@pytest.mark.parametrize("file, fault, spoil, named", BROKEN,
                         ids=[f"{file}: {fault}" for file, fault, *_ in BROKEN])
def test_a_broken_file(capsys, file, fault, spoil, named):
    """Catches: a traceback, code in a file that is run, NaN that trains, a result of nothing."""
    spoil(Path(file))
    for command in READERS[file]:
        line = fails(capsys, 2, *command)
        assert all(text in line for text in [file.removeprefix("coin/"), *named]), line
        assert not Path("o.json").exists() and not Path("new/checkpoint.pt").exists()


def test_the_same_command_works_once_the_file_is_there(capsys):
    """Catches: a folder spoilt by the first try: refused, or with its config."""
    Path("coin/texts.npz").rename("texts.npz")
    fails(capsys, 2, *TRAIN, "new")
    Path("texts.npz").rename("coin/texts.npz")
    call(*TRAIN, "new", "--seed", "3")
    assert read_json("new/config.json")["settings"]["seed"] == 3
    assert Path("new/checkpoint.pt").exists()


# --- Files that are good but do not fit each other, or what is asked ---
def other_teacher():
    """A teacher whose texts lie elsewhere than in the training, which would cost points unseen."""
    model = source.load_teacher("cpu").model
    model.text_projection.add_(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)),
                               alpha=0.05)
    source.TEACHER_FILE = Path("other.safetensors")    # `files` puts it back
    write_weights(source.TEACHER_FILE, model)


make_wide = partial(make_coin, Path("wide"), D=12)
# What the line names, the command, what is prepared.
MISFITS = [
    (["runs/pretrain", "python train.py --stage pretrain"], ("evaluate.py", *coin_flags()), 0),
    (["width 12", "16"], ("train.py", *coin_flags("wide"), "--out", "new"), make_wide),
    (["16", "12", "run"], ("evaluate.py", *coin_flags("wide"), "--checkpoint", "run"), make_wide),
    (["--data"], (*MEASURE[:-3], "toy-run"), 0),
    (["encoder"], ("evaluate.py", "--task", "features", "--checkpoint", "run"), 0),
    (["texts.npz"], (*TRAIN, "new"), lambda: npz(
        embeddings=lambda a: np.repeat(a[:1], len(a), 0))(Path("coin/texts.npz"))),
    (["run", "not fit"], (*TRAIN, "run", "--resume"), lambda: content(
        lambda whole: whole["model"].popitem())(Path("run/checkpoint.pt"))),
    *((["run", *named], (*TRAIN, "run", "--resume"), lambda change=change: content(change)(
        shutil.move("run/checkpoint_before.pt", Path("run/checkpoint.pt")))) for named, change in [
            (["nothing to resume"], lambda whole: whole.pop("optimizer")),
            (["nothing to resume"], lambda whole: whole.update(step="3")),
            (["another run", "lr"], lambda whole: whole["settings"].update(lr=0.5)),
            (["nothing to resume"], lambda whole: whole.update(settings=[])),
            (["step 9"], lambda whole: whole.update(step=9)),
            (["stage 'sgd'"], lambda whole: whole.update(stage="sgd")),
            (["optimizer"], lambda whole: whole["optimizer"]["state"][0].pop("exp_avg")),
            (["optimizer"], lambda whole: whole["optimizer"]["state"][1]["exp_avg"].fill_(np.nan)),
            (["optimizer"], lambda whole: whole.update(optimizer=[])),
            (["role.weight"], lambda whole: whole["model"]["denoiser.role.weight"].fill_(np.nan))]),
    (["toy-run", "another teacher"], ("evaluate.py", *TINY[:2], "--checkpoint", "toy-run"),
     other_teacher),
    (["toy-run", "another teacher"], ("predict.py", "--checkpoint", "toy-run"), other_teacher),
    (["other phrases"], (*TRAIN, "run", "--resume"), lambda: npz(
        embeddings=lambda a: a[::-1])(Path("coin/texts.npz"))),
    (["run", "--resume"], (*TRAIN, "run"), 0),
    (["--lr 0.5", "config.json"], (*TRAIN, "run", "--resume", "--lr", "0.5"), 0),
    (["epochs"], (*TRAIN, "new", "--epochs", "0"), 0),
    (["--min-steps 9"], (*MEASURE, "--min-steps", "9"), 0),
    (["proc"], (*TRAIN, "/proc/run"), 0), (["phrases.txt"], (*TRAIN, "phrases.txt/run"), 0),
    (["--split train"], ("evaluate.py", "--task", "features", "--videos", "coin", "--split",
                         "train"), 0), (["8 processes"], ("train.py", *TINY, "--out", "new"), 8),
    (["without torchrun"], ("train.py", "--stage", "finetune", "--init", "run", "--out", "new"), 8),
]


@pytest.mark.parametrize("named, command, prepare", MISFITS)
def test_what_does_not_fit(monkeypatch, capsys, named, command, prepare):
    """Catches: an error from deep inside, or late; a run overwritten, or resumed with others."""
    if callable(prepare):
        prepare()
    elif prepare:
        monkeypatch.setattr(parallel, "place", lambda: (0, prepare))
        monkeypatch.setattr(parallel, "start", lambda device: None)
        for name, value in (("RANK", 0), ("LOCAL_RANK", 0), ("WORLD_SIZE", prepare),
                            ("MASTER_ADDR", "localhost"), ("MASTER_PORT", 1)):
            monkeypatch.setenv(name, str(value))
    before = Path("run/checkpoint.pt").read_bytes()
    line = fails(capsys, 2, *command)
    assert all(text in line for text in named), line
    assert not Path("o.json").exists() and not Path("new/checkpoint.pt").exists()
    assert Path("run/checkpoint.pt").read_bytes() == before
