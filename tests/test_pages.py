"""README.md and docs/: what they name exists, their commands parse, their code runs."""
import ast
import importlib
import json
import re
import shlex
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

import denoiser
from commands import call
from data import Step, Video
from files.features import read_clips
from files.lists import load_coin
from predict import predict

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
COMMAND = re.compile(r"^ {4,}(?:torchrun --nproc-per-node \d+|python) (.+)$", re.M)
COMMANDS = sorted({line for text in TEXTS.values() for line in COMMAND.findall(text)
                   if not line.startswith("-m pytest")})


def code_after(page, begin):
    """The indented block of a page that begins with `begin`, without its indent."""
    text = TEXTS[page]
    first = text.rindex("\n", 0, text.index(begin)) + 1
    block = re.match(r"(?:(?: {4}.*)?\n)+", text[first:])[0]
    return textwrap.dedent(block)


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_of_the_pages_parse(line, capsys):
    """Catches: a flag or a module that is gone."""
    script, *argv = shlex.split(line, comments=True)
    if script == "-m":
        script, *argv = argv
        script += ".__main__" if "." not in script else ""
    importlib.import_module(script.removesuffix(".py")).parse(argv)


def test_what_the_pages_name_exists():
    """Catches: a function, a test, a page or a picture that was renamed or moved."""
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("*.py"))
    for page, text in TEXTS.items():
        for name in re.findall(r"`(test_\w+)`", text):
            assert f"def {name}(" in tests, (page, name)
        for file, name in re.findall(r"`([\w/]+\.py):(\w+)`", text):
            body = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
            assert name in {node.name for node in body if hasattr(node, "name")}, (page, name)
        for link in re.findall(r"\]\(([^():#]+)[)#]", text):
            assert (ROOT / page).parent.joinpath(link).exists(), (page, link)


def test_f_and_h_in_ten_lines(here):
    """Catches: a name that moved, axes that no longer fit, other pixels than predict.py's."""
    call("toy", "export", "--out", "world", "--train", "1", "--test", "1")
    code = code_after("README.md", "import torch")
    code = code.replace("VIDEO.mp4", "world/videos/test_00000.mp4")
    assert len(code.strip().splitlines()) <= 14
    checkpoint = str(ROOT / "toy/default.pt")
    exec(compile(code.replace("toy/default.pt", checkpoint), "README.md", "exec"), found := {})
    phrases = ["crack egg", "pour oil"]
    clips = predict("world/videos/test_00000.mp4", steps=phrases, checkpoint=checkpoint)["clips"]
    shown = found["model"].match(found["x"], found["texts"]).exp()
    for row, clip in zip(shown, clips, strict=True):
        assert dict(zip(phrases, row.tolist())) == pytest.approx(
            {step["step"]: step["p"] for step in clip["steps"]}, abs=1e-4)
    assert len(found["x_hat"][0].unique(dim=0)) == 5


def test_a_folder_of_features_becomes_a_file(here):
    """Catches: lines that write what is not read; rows of another video or second."""
    Path("FOLDER").mkdir()
    for name, rows in ("b", np.ones((3, 4))), ("a", np.arange(8.).reshape(2, 4)):
        np.save(f"FOLDER/{name}.npy", rows)
    exec(code_after("docs/data.md", "from pathlib"), {})
    found = read_clips("F.npz", "a", np.array([[0., 1.], [1., 2.]]))
    assert found.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_another_h_fits_the_shapes():
    """Catches: arguments of h that the page's example lacks."""
    exec(code_after("docs/training.md", "class Denoiser"), found := dict(vars(denoiser)))
    h, B, N, D = found["Denoiser"](32), 3, 9, 32
    z_hat = h(torch.zeros(B, D), torch.zeros(B, N, D), torch.arange(N).expand(B, N) < 8,
              torch.full((B,), 8), torch.zeros(B, dtype=torch.int64))
    assert z_hat.shape == (B, D)


def test_ten_lines_score_videos_of_ones_own(tmp_path):
    """Catches: an example of COIN.json, or of a loader, that is not read."""
    (tmp_path / "COIN.json").write_text(code_after("docs/data.md", '{"database"'), encoding="utf-8")
    videos, names = load_coin(tmp_path / "COIN.json")
    assert [len(video.steps) for video in videos] == [3] and len(names) == 3
    (tmp_path / "v.csv").write_text("3,31,38.5\n1,12,20.5\n")
    exec(code_after("docs/data.md", "def load_folder"), found := {"Step": Step, "Video": Video})
    videos, _ = found["load_folder"](tmp_path, names, "test")
    assert videos == [Video("v", "test", 0, None, (Step(12, 20.5, 0), Step(31, 38.5, 2)))]


def test_the_notebook_runs_and_shows_what_it_stores(monkeypatch, capsys):
    """Catches: a name that moved, a cell that needs a later one, outputs of another version of the
    cells."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed").use("Agg")
    from matplotlib import pyplot
    cells = json.loads((ROOT / "docs/tour.ipynb").read_text(encoding="utf-8"))["cells"]
    monkeypatch.chdir(ROOT / "docs")
    monkeypatch.setattr(sys, "path", [*sys.path])
    names = {}
    with torch.no_grad(), pyplot.rc_context():             # afterwards both are as before
        for cell in cells:
            if cell["cell_type"] == "code":
                pyplot.close("all")
                exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
                printed = "".join("".join(output.get("text", "")) for output in cell["outputs"])
                shown = [output for output in cell["outputs"] if "data" in output]
                assert printed == capsys.readouterr().out, cell["id"]
                assert len(shown) == len(pyplot.get_fignums()), cell["id"]
