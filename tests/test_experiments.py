"""experiments/: runs made once, means over seeds, tables; charts; what real orders tell."""
import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

import evaluate
import train
import weights
from commands import call, fails, read_json
from data import Example
from experiments import charts, tables
from experiments.tables import EVALUATIONS, RECIPES, TABLES
from support import metrics
from support.write import write_json, write_text
from toy.grammar import STEPS
from toy.source import ToySource, load_teacher

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A project with two pages of a table each, and no results."""
    for name, text in {"experiments/results.json": "{}",
                       "README.md": "a\n<!-- table: departures -->\nold\n<!-- end -->\nb\n",
                       "docs/results.md": "<!-- table: claims -->\n<!-- end -->\n"}.items():
        write_text(tmp_path / name, text)
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_runs_are_made_once(here, monkeypatch, capsys):
    """Catches: a run made again, also if it only lacks a score; one forgotten; a checkpoint of
    another run; a failure passed over."""
    ran, run = [], here / "out/mask-3"

    def fake(line, **options):
        ran.append(" ".join(line[1:]))
        if line[1] == "evaluate.py":
            write_json(Path(line[-1]), {})
        return SimpleNamespace(returncode=7 if "other" in ran[-1] else 0)
    monkeypatch.setattr(subprocess, "run", fake)
    monkeypatch.setattr(tables, "TABLES", {"t": {"title": "T", "columns": [*"abc"], "rows": [
        ["x", "mask classify top1.ours", "mask classify-25 top1.ours"]]}})
    again = "experiments/tables.py", "t", "--seeds", "3", "--out"
    call(*again, "out")
    train, score = ("train.py --resume --device auto --seed 3 --out",
                    "evaluate.py --task classify --device auto --checkpoint")
    tuned = run / "classify-25"
    assert ran == [
        f"{train} {run} --order mask", f"{score} {run} --json {run / 'classify.json'}",
        f"{train} {tuned} --stage finetune --task classify --labels 0.25 --init {run}",
        f"{score} {tuned} --json {tuned}.json"]
    (run / "classify.json").unlink()
    call(*again, "out")
    assert ran[4:] == ran[1:2]
    assert "train.py ended with 7; see " in fails(capsys, *again, "other")


def test_cells_are_means_over_seeds(here, monkeypatch):
    """Catches: seeds of another recipe, a range of one seed, null counted as 0, a difference
    without the error of both, or of other files or columns; a row without a number, a page's text
    changed."""
    row = ["m", "mask classify top1.ours", "mask classify top1.teacher", "mask forecast a.b", "8"]
    monkeypatch.setitem(TABLES, "departures", {"title": "T", "columns": [*"abcde"], "rows": [
        row, ["not measured", "mvit classify top1.ours", "-", "-", "-"]]})
    monkeypatch.setitem(TABLES, "claims", {
        "title": "T", "columns": [*"abcdef"], "compared": True, "rows": [
            ["x", "mask classify ours", "both classify ours"],
            ["x", "mask classify new.ours", "mask classify new.theirs"],
            ["x", "mask classify ours", "mvit classify ours"]]})
    for name, value in {"mask-1": 10.0, "mask-2": 20.0, "mask-30": 33.0, "mask-or-1": 99.0,
                        "both-1": 40.0, "both-2": 60.0}.items():
        right = torch.arange(10) < value // 10
        write_json(Path(f"out/{name}/classify.json"), {
            "top1": {"ours": value, "teacher": None}, "evaluated": 10, "run_seed": int(name[-1]),
            "right": metrics.pack({"ours": right, "theirs": ~right},
                                  [Example(video, None, 0, 0) for video in range(10)],
                                  {"new": torch.arange(10) % 2 == 0})})
    write_json(Path("out/mask-2/forecast.json"), {"a": {"b": 0.25}})
    Path("experiments/results.json").write_text('{"mask forecast a.b": {"9": 0.75}}')
    tables.publish(Path("out"))
    results = read_json("experiments/results.json")
    assert results[row[1]] == {"1": 10.0, "2": 20.0, "30": 33.0} and row[2] not in results
    page, compared = (re.sub(" +", " ", Path(name).read_text(encoding="utf-8"))
                      for name in ("README.md", "docs/results.md"))
    assert page.startswith("a\n<!-- table: departures -->\n**T**\n\n| a | b | c | d | e |\n|")
    assert page.endswith("- |\n| m | 21.0 (10.0-33.0) | not run | 0.5 (0.2-0.8) | 8 |\n\n"
                         "Seeds: 2 or 3.\n<!-- end -->\nb\n")
    assert compared.split("- |\n")[1] == (
        "| x | 20.0 | 50.0 | -30.0 ± 15.8 | undecided | 3 and 2 |\n"
        "| x | 26.7 | 73.3 | -46.7 ± 37.2 | undecided | 3 and 3 |\n<!-- end -->\n")


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
    """Catches: a curve of another run, or in another panel; a null."""
    for run, last in ("a", 6), ("b", None):
        row = dict(loss=1, xe=2, mse=3, mc=4, match=5, match_h=last, lr=9)
        write_text(Path(run, "metrics.jsonl"), "".join(
            json.dumps({"epoch": e, **row}) + "\n" for e in (.5, 1.)))
    call("experiments/charts.py", "--curves", "a", "b", "--out", "a.png")
    for axes, name, y in zip(drawn[0].axes, row, (1, 2, 3, 4, 5, 6)):
        assert axes.get_title("left") == name
        second = y if name != "match_h" else np.nan
        for line, expected in zip(axes.lines, (y, second), strict=True):
            np.testing.assert_equal(line.get_xydata(), [[.5, expected], [1, expected]])
    assert [text.get_text() for text in drawn[0].axes[0].get_legend().texts] == ["a", "b"]


def test_places_are_drawn(drawn, here):
    """Catches: places in the order of text, another column, a spread of one run."""
    for seed, h in (0, 60.0), (1, 64.0):
        write_json(Path(f"{seed}.json"), {"by_place": {str(k): {
            "zero_noise": h + k, "exact": 73.0, "set": 50.0, "evaluated": 9} for k in (10, 9, 1)}})
    call("experiments/charts.py", "--places", "0.json", "1.json", "--out", "a.png")
    lines = {bars.get_label(): bars for bars in drawn[0].axes[0].containers}
    assert [*lines] == ["exact", "h, zero noise", "what the set tells"]
    line, _, (spread,) = lines["h, zero noise"]
    assert line.get_xydata().tolist() == [[1, 63], [9, 71], [10, 72]]
    assert spread.get_segments()[0][:, 1].tolist() == [61, 65]


@torch.no_grad()
def test_look_alikes_are_drawn(drawn, here, trained, monkeypatch):
    """Catches: clips of another step or split; means of test videos; another run above a panel."""
    monkeypatch.setattr(charts, "VIDEOS", 12)
    call("experiments/charts.py", "--look-alikes", trained / "none", trained / "diffusion", "--out",
         "a.png")
    sources, right = [ToySource(split, range(12), 4) for split in ("train", "test")], []
    encoders = load_teacher("cpu").encode_clips, *(
        weights.load(trained / order).encode for order in ("none", "diffusion"))
    for encode in encoders:
        own, asked = ([[
            normalize(encode(source.clips(i, [(middle - 4.5, middle + 4.5)])[0])[0], dim=0)
            for i, video in enumerate(source.videos) for step in video.steps
            if STEPS[step.label] == name for middle in [(step.start + step.end) / 2]]
            for name in charts.PAIR] for source in sources)
        a, b = (torch.stack(clips).mean(0) for clips in own)
        hits = [(x - a).norm() < (x - b).norm() for x in asked[0]]
        hits += [(x - b).norm() < (x - a).norm() for x in asked[1]]
        right.append(f"{np.mean(hits):.0%} right")
    assert [axes.get_title() + axes.get_title("left") for axes in drawn[0].axes] == [
        f"{name}:\n{share}" for name, share in zip(
            ("teacher", "f, trained without order", "f, trained with order"), right)]
    for axes in drawn[0].axes:
        assert sum(bar.get_height() for bar in axes.patches) == len(hits) > 10
    assert len({axes.patches[0].get_x() for axes in drawn[0].axes}) == 3       # each its own f


def test_the_task_is_drawn(drawn, here, trained):
    """Catches: a wrong picture above a caption, a hidden clip shown, bars of other steps."""
    call("experiments/charts.py", "--task", trained / "diffusion")
    *clips, bars = drawn[0].axes
    assert Path("task.png").read_bytes().startswith(b"\x89PNG") and len(clips) == 9
    said = ["".join(text.get_text() for text in axes.texts) for axes in clips]
    assert said[charts.MISSING] == "?" and {*said[:charts.MISSING]} == {""}
    faint = [axes.images[0].get_alpha() < 1 for axes in clips]
    assert faint == [bool(text) for text in said]
    assert all(re.match(r"teacher: .+\n\d+%\n\n“", axes.get_xlabel()) for axes in clips)
    assert {label.get_text() for label in bars.get_yticklabels()} <= {*STEPS}


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
