"""README.md and docs/: what they name exists, their commands parse, their code runs."""
import ast
import importlib
import json
import re
import shlex
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from commands import ROOT, call

from predict import predict
from toy.source import load_teacher

TEXTS = {path: path.read_text(encoding="utf-8")
         for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
COMMAND = r"(?m)^ {4,}(?:torchrun --nproc-per-node \d+|python) ((?!-m pytest).+)$"
COMMANDS = sorted({line for text in TEXTS.values()
                   for line in re.findall(COMMAND, text.replace("\\\n", ""))})


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_of_the_pages_parse(line, monkeypatch):
    """Catches: a flag or a module that is gone."""
    monkeypatch.setattr(Path, "exists", lambda path: True)     # VIDEOS, CAPTIONS ... are examples
    script, *argv = shlex.split(line, comments=True)
    if script == "-m":
        script, *argv = argv
        script += ".__main__" if "." not in script else ""
    importlib.import_module(script.removesuffix(".py")).parse(argv)


def anchors(path):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ (.+)$", path.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_what_a_page_names_exists(page):
    """Catches: a function, a test, a page, a heading or a picture that was renamed or moved."""
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("*.py"))
    for name in re.findall(r"`(test_\w+)`", TEXTS[page]):
        assert f"def {name}(" in tests, name
    for file, name in re.findall(r"`([\w/]+\.py):(\w+)`", TEXTS[page]):
        body = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
        assert name in {node.name for node in body if hasattr(node, "name")}, name
    for link, anchor in re.findall(r"\]\(([^():#]*)#?([^():]*)\)", TEXTS[page]):
        target = page.parent / link if link else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), f"{link}#{anchor}"


def test_the_lines_of_python(trained, here):
    """Catches: a name that moved, axes that no longer fit, other pixels than predict.py's."""
    call("toy", "export", "--out", "world", "--train", "1", "--test", "1")
    video, run = "world/videos/test_00000.mp4", trained / "diffusion"
    lines = re.search(r"(?m)^    import torch(.*\n)+?\n", TEXTS[ROOT / "README.md"])[0]
    code = textwrap.dedent(lines).replace("VIDEO.mp4", video)
    code = re.sub(r'weights\.load\(".*?"\)', f'weights.load("{run}")', code)
    code = re.sub(r'open_teacher\(".*?"\)', 'load_teacher("cpu")', code)
    exec(compile(code, "README.md", "exec"), found := {"load_teacher": load_teacher})
    phrases = ["crack egg", "pour oil"]
    clips = predict(video, steps=phrases, checkpoint=run)["clips"]
    shown = found["model"].match(found["x"], found["texts"]).exp()
    for row, clip in zip(shown, clips, strict=True):
        assert dict(zip(phrases, row.tolist())) == pytest.approx(
            {step["step"]: step["p"] for step in clip["steps"]}, abs=1e-4)
    assert len(found["x_hat"][0].unique(dim=0)) == len(found["x_hat"][0]) > 1


def test_the_notebook_runs(monkeypatch):
    """Catches: a name that moved, a cell that needs a later one."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed").use("Agg")
    from matplotlib import pyplot
    cells = json.loads((ROOT / "docs/tour.ipynb").read_text(encoding="utf-8"))["cells"]
    monkeypatch.chdir(ROOT / "docs")
    monkeypatch.setattr(sys, "path", [*sys.path])
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    with torch.no_grad(), pyplot.rc_context():             # afterwards both are as before
        exec("\n".join(code), {})
