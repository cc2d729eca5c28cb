"""docs/tour.ipynb: what the command would write now; it runs without a notebook package."""
import base64
import json
import sys
from pathlib import Path

import pytest
import torch

from experiments import notebook, tour
from support.flags import DEFAULT

PATH = notebook.ROOT / "docs/tour.ipynb"
CELLS = json.loads(PATH.read_text(encoding="utf-8"))["cells"]


def test_the_notebook_is_what_the_command_would_write():
    """Catches: a page or a function that changed, and a notebook that was not made anew."""
    made = notebook.make_cells(tour.PAGE.read_text(encoding="utf-8"),
                               tour.TourSettings(checkpoint=DEFAULT))
    assert made == [{key: cell[key] for key in ("cell_type", "id", "source", "metadata")}
                    for cell in CELLS]
    assert len({cell["id"] for cell in CELLS}) == len(CELLS) and PATH.stat().st_size < 1_000_000
    for cell in CELLS[1::2]:
        pictures = [output["data"]["image/png"] for output in cell["outputs"] if "data" in output]
        assert len(pictures) == "".join(cell["source"]).count("\nPicture("), cell["id"]
        assert all(base64.b64decode(picture).startswith(b"\x89PNG") for picture in pictures)


def test_the_notebook_runs_from_top_to_bottom(monkeypatch, capsys):
    """Catches: a name that moved, a cell that needs a later one, or a folder other than its own."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed").use("Agg")
    monkeypatch.chdir(PATH.parent)
    monkeypatch.setattr(sys, "path", [*sys.path])
    names = {}
    with torch.no_grad():                              # afterwards gradients are as before
        for cell in CELLS[1::2]:
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    assert Path.cwd() == notebook.ROOT and capsys.readouterr().out.startswith("observed: ")
    assert float(names["p"].sum()) == pytest.approx(1, abs=1e-4)


def test_the_notebook_alone_says_what_it_needs(tmp_path, monkeypatch):
    """Catches: a traceback of a missing module where the project is not."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="^The project is not here: clone it, .*folder.$"):
        exec("".join(CELLS[1]["source"]), {})
