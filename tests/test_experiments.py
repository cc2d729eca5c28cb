"""experiments/: runs made once, means over seeds, tables; charts; what real orders tell."""
import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import evaluate
import train
from commands import call, fails, read_json
from data import Example
from evaluation import metrics
from experiments import tables
from experiments.tables import EVALUATIONS, RECIPES, TABLES
from support.write import write_json

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A project with a page of two tables, and no results. Commands only check their order, make
    their file, and are listed; they fail if there is a file "fail"."""
    (tmp_path / "experiments").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "experiments/results.json").write_text("{}")
    (tmp_path / "README.md").write_text("a\n<!-- table: departures -->\nold\n<!-- end -->\nb\n"
                                        "<!-- table: gone -->\nkept\n<!-- end -->\n")
    (tmp_path / "docs/results.md").write_text("<!-- table: claims -->\n<!-- end -->\n")
    ran, made, cells = [], [], tables.cells(TABLES).values()
    right = {key.rpartition(".")[2]: "80" for *_, key in cells}
    right |= {"per_video": [1, 1], "parts": dict.fromkeys(("new", "held_out", "look_alikes"), "80")}

    def fake(line, **options):
        given = dict(zip(line, [*line[1:], ""]))
        ran.append(line[1])
        if line[1] == "train.py":
            assert given["--seed"] == "3" and "--resume" in given
            if given.get("--stage") == "finetune":
                name = f"{given['--task']}-{100 * float(given['--labels']):.0f}"
                assert given["--init"] in made and Path(given["--out"]).name == name
            made.append(given["--out"])
        else:
            assert given["--checkpoint"] in made
            write_json(Path(given["--json"]), {
                "top1": {"zero_noise": 12.3, "oracle": 23.4, "ours": 34.5}, "evaluated": 2,
                "run_seed": 3, "right": right})
        return SimpleNamespace(returncode=7 if Path("fail").exists() else 0)
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(subprocess, "run", fake)
    monkeypatch.chdir(tmp_path)
    return ran


def test_runs_are_made_once_and_fill_the_pages(here, capsys):
    """Catches: a run made again, one forgotten, a checkpoint of another run, a cell of another, a
    page's text changed, another table's mark taken, a failure passed over."""
    flags = "--seeds", "3", "--out", "out"
    call("experiments/tables.py", "departures", *flags)
    page = Path("README.md").read_text()
    assert len([*Path("out").glob("*/*.json")]) == 3 * 8 and len(here) == 5 * 8
    assert "| `--stride 1` | 12.3 | 23.4 | 34.5 | 34.5 | not run |" in re.sub(" +", " ", page)
    assert page.startswith("a\n") and "old" not in page and "\nSeeds: 1.\n<!-- end -->\nb\n" in page
    assert page.endswith("b\n<!-- table: gone -->\nkept\n<!-- end -->\n")
    del here[:]
    call("experiments/tables.py", "departures", *flags)
    assert not here and Path("README.md").read_text() == page
    call("experiments/tables.py", *flags)
    assert Path("docs/results.md").read_text().count("| one run |") == len(TABLES["claims"]["rows"])
    made = {(path.parent.name, path.stem) for path in Path("out").glob("*/*.json")}
    assert made == {(f"{recipe}-3", name) for recipe, name, _ in tables.cells(TABLES).values()}
    assert [len({*part}) for part in zip(*made)] == [len(RECIPES), len(EVALUATIONS)]
    Path("fail").touch()
    line = fails(capsys, "experiments/tables.py", *flags, "--out", "other")
    assert "train.py ended with 7; see " in line
    assert "nothing: no such table" in fails(capsys, "experiments/tables.py", "nothing")


def test_cells_are_means_over_seeds(here, monkeypatch):
    """Catches: seeds of another recipe, a range of one seed, null counted as 0, a difference
    without the error of both, or of other files; a row without a number."""
    row = ["m", "mask classify top1.ours", "mask classify top1.teacher", "mask forecast a.b", "8"]
    rows = [["x", f"mask classify {key}", f"both classify {key}"] for key in ("ours", "new.ours")]
    rows.append(["x", "mask classify ours", "paper classify ours"])
    monkeypatch.setitem(TABLES, "departures", {"title": "T", "columns": [*"abcde"], "rows": [
        row, ["not measured", "mvit classify top1.ours", "-", "-", "-"]]})
    monkeypatch.setitem(TABLES, "claims", {"title": "T", "columns": [*"abcdef"], "compared": True,
                                           "rows": rows})
    examples = [Example(video, None, 0, 0) for video in range(10)]
    for name, value in {"mask-1": 10.0, "mask-2": 20.0, "mask-30": 33.0, "mask-or-1": 99.0,
                        "both-1": 40.0, "both-2": 60.0}.items():
        write_json(Path(f"out/{name}/classify.json"), {
            "top1": {"ours": value, "teacher": None}, "evaluated": 10, "run_seed": int(name[-1]),
            "right": metrics.pack({"ours": torch.arange(10) < value // 10}, examples,
                                  {"new": torch.arange(10) % 2 == 0})})
    write_json(Path("out/mask-2/forecast.json"), {"a": {"b": 0.25}})
    Path("experiments/results.json").write_text('{"mask forecast a.b": {"9": 0.75}}')
    tables.publish(Path("out"))
    results = read_json("experiments/results.json")
    assert results[row[1]] == {"1": 10.0, "2": 20.0, "30": 33.0} and row[2] not in results
    page, compared = ([[cell.strip() for cell in line.split("|")[1:-1]]
                       for line in Path(file).read_text().split("- |\n")[1].split("\n")]
                      for file in ("README.md", "docs/results.md"))
    assert page[:2] == [["m", "21.0 (10.0-33.0)", "not run", "0.5 (0.2-0.8)", "8"], []]
    assert compared[0] == ["x", "20.0", "50.0", "-30.0 ± 15.8", "undecided", "3 and 2"]
    assert compared[1][1:3] == ["26.7", "50.0"] and compared[2] == []          # 1, 1, 2; 2, 3 of 5


def test_tables_are_whole_and_on_the_pages():
    """Catches: a flag that a script refuses; a row without a cell, a cell taken for text, a figure
    typed by hand, a table that was measured again and not written."""
    for parse, lines in (train.parse, RECIPES), (evaluate.parse, EVALUATIONS):
        for flags in lines.values():
            parse(flags.split())
    ours, results = tables.cells(TABLES), read_json(ROOT / "experiments/results.json")
    pages = "".join(path.read_text(encoding="utf-8") for path in (
        ROOT / "README.md", *(ROOT / "docs").glob("*.md")))
    assert all(name in EVALUATIONS for _, name, _ in ours.values())
    for name, table in TABLES.items():
        size = 3 if table.get("compared") else len(table["columns"])
        assert {len(row) for row in table["rows"]} == {size}
        assert all(text in ours or not re.match("[a-z]", text)
                   for _, *texts in table["rows"] for text in texts)
        if any(text in results for text in tables.cells([name])):
            text = f"<!-- table: {name} -->\n{tables.markdown(name, results)}<!-- end -->"
            assert pages.count(text) == 1, name


def test_curves_of_runs_are_drawn(drawn, here):
    """Catches: a curve of another run, or in another panel; a null, a row that is cut off."""
    for run, last in ("a", 6), ("b", None):
        Path(run).mkdir()
        row = dict(loss=1, xe=2, mse=3, mc=4, match=5, match_h=last, lr=9)
        Path(run, "metrics.jsonl").write_text("".join(
            json.dumps({"epoch": e, **row}) + "\n" for e in (.5, 1.)) + '{"epoch": 1.5, "lo')
    call("experiments/charts.py", "--curves", "a", "b", "--out", "a.png")
    for axes, name, y in zip(drawn[0].axes, row, (1, 2, 3, 4, 5, 6)):
        assert axes.get_title("left") == name
        curves, both = [line.get_xydata().tolist() for line in axes.lines], [[.5, y], [1, y]]
        assert curves == [both, both if name != "match_h" else []]
    assert [text.get_text() for text in drawn[0].axes[0].get_legend().texts] == ["a", "b"]


def test_places_are_drawn(drawn, here):
    """Catches: places in the order of text, another column, a spread of one run, labels that cover
    each other."""
    for seed, h in (0, 60.0), (1, 64.0):
        write_json(Path(f"{seed}.json"), {"by_place": {str(k): {
            "zero_noise": h + k, "exact": 73.0, "set": 50.0, "evaluated": 9} for k in (10, 9, 1)}})
    call("experiments/charts.py", "--places", "0.json", "1.json", "--out", "a.png")
    call("experiments/charts.py", "--places", "1.json", "--out", "b.png")
    lines = {bars.get_label(): bars for bars in drawn[0].axes[0].containers}
    assert [*lines] == ["exact", "h, zero noise", "what the set tells"]
    line, _, (spread,) = lines["h, zero noise"]
    assert line.get_xydata().tolist() == [[1, 63], [9, 71], [10, 72]]
    assert spread.get_segments()[0][:, 1].tolist() == [61, 65]
    heights = sorted(text.get_position()[1] for text in drawn[0].axes[0].texts)
    assert heights == [50, 66.5, 73]
    assert [line[0].get_ydata()[0] for line in drawn[1].axes[0].containers] == [73, 65, 50]


def test_orders_are_told_from_what_is_known(tmp_path, capsys):
    """Catches: an answer learned from its own video, steps of another task or not in order, a set
    that backs off to the last step, a context that does not back off."""
    videos = [(1, 2, 3)] * 10 + [(2, 1, 4)] * 10 + [(0, 2, 1, 5)] * 10
    for i, steps in enumerate([*videos, (5, 2, 1), (6, 2, 7), (8,), (9, 2)]):  # the last of task 2
        lines = [f"{step},{9.5 + n},{10 + n}" for n, step in enumerate(steps)]
        name = f"{2 if steps == (9, 2) else 1}_v_{i:02}.csv"
        (tmp_path / name).write_text("\n".join(lines[::-1]) + "\n")
    call("experiments/orders.py", tmp_path)
    row = [cell.strip() for cell in capsys.readouterr().out.split("\n")[2].split("|")[1:-1]]
    # 75 forecasts. After (5), (6) and (9) the most frequent step, 2 of task 1, is right twice. By
    # the last step, 1 always follows 2, and 2 follows 1: 40, and (5, 2). The last two miss what
    # follows (0, 2, 1); the set what follows {1, 2} in that order, and {5, 2}, which is new.
    right = 40 + 1 + 2, 60 + 1 + 2, 60 + 2, 70 + 1 + 2, 70 + 1 + 2
    assert row == ["33", "75", *(f"{100 * n / 75:.1f}" for n in right)]
    assert "ten videos" in fails(capsys, "experiments/orders.py", tmp_path.parent)
