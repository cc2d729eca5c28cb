"""docs/tour.ipynb runs with the present code, without a notebook package."""
import json
import sys
from pathlib import Path

import pytest
import torch

PATH = Path(__file__).resolve().parents[1] / "docs/tour.ipynb"


def test_the_notebook_runs_and_shows_what_it_stores(monkeypatch, capsys):
    """Catches: a name that moved, a cell that needs a later one, outputs of another version of the
    cells."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed").use("Agg")
    from matplotlib import pyplot
    cells = json.loads(PATH.read_text(encoding="utf-8"))["cells"]
    monkeypatch.chdir(PATH.parent)
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
