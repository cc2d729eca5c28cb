"""experiments/: runs made once, means over seeds, tables; charts; real orders; comparisons."""
import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from commands import ROOT, call, fails, read_json

import evaluate
import train
from data import Example
from experiments import charts, compare, probes, tables
from experiments.tables import EVALUATIONS, RECIPES, TABLES
from support import metrics
from support.write import write_json, write_text
from toy.grammar import LOOK_ALIKES, STEPS


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
    """Catches: a run made again or forgotten; a checkpoint of another; a failure passed over."""
    ran, run = [], here / "out/mask-3"

    def fake(line, **options):
        ran.append(" ".join(line[1:]))
        if line[1] != "train.py":
            write_json(Path(line[-1]), {})
        return SimpleNamespace(returncode=7 if "other" in ran[-1] else 0)
    monkeypatch.setattr(subprocess, "run", fake)
    monkeypatch.setattr(tables, "TABLES", {"t": {"title": "T", "columns": [*"abc"], "rows": [
        ["x", "mask classify top1.ours", "mask classify-25 top1.ours"],
        ["y", "mask probes similar.top1", "-"]]}})
    again = "experiments/tables.py", "t", "--seeds", "3", "--out"
    call(*again, "out")
    train, to = "train.py --resume --device auto --seed 3 --out", "--device auto --json"
    tuned = run / "classify-25"
    assert ran == [
        f"{train} {run} --order mask",
        f"evaluate.py --checkpoint {run} --task classify {to} {run / 'classify.json'}",
        f"{train} {tuned} --stage finetune --task classify --labels 0.25 --init {run}",
        f"evaluate.py --checkpoint {tuned} --task classify {to} {tuned}.json",
        f"-m experiments.probes {run} {EVALUATIONS['probes']} {to} {run / 'probes.json'}"]
    (run / "classify.json").unlink()
    call(*again, "out")
    assert ran[5:] == ran[1:2]
    assert "train.py ended with 7; see " in fails(capsys, *again, "other")


def test_cells_are_means_over_seeds(here, monkeypatch):
    """Catches: seeds of another recipe, null counted as 0, a difference without the error of both,
    or of other columns; a row without a number left out, a page's text changed."""
    row = ["m", "mask classify top1.ours", "mask classify top1.teacher", "mask forecast a.b", "8"]
    monkeypatch.setitem(TABLES, "departures", {"title": "T", "columns": [
        *"abcde", "seeds"], "rows": [
        row, ["not measured", "mvit classify top1.ours", "-", "-", "-"]]})
    monkeypatch.setitem(TABLES, "claims", {
        "title": "T", "columns": [*"abcdefgh"], "compared": True, "rows": [
            ["x", "37", "mask classify ours", "both classify ours"],
            ["x", "40", "mask classify new.ours", "mask classify new.theirs"],
            ["x", "40", "mask classify ours", "mask classify ours", "equal"],
            ["x", "40", "mask classify ours", "mvit classify ours"]]})
    for name, value in {"mask-1": 10.0, "mask-2": 20.0, "mask-30": 33.0, "mask-or-1": 99.0,
                        "both-1": 40.0, "both-2": 60.0}.items():
        right = torch.arange(10) < value // 10
        write_json(Path(f"out/{name}/classify.json"), {
            "top1": {"ours": value, "teacher": None}, "evaluated": 10, "run_seed": int(name[-1]),
            "right": metrics.pack({"ours": right, "theirs": ~right},
                                  [Example(video, None, 0, 0) for video in range(10)],
                                  {"new": torch.arange(10) % 2 == 0,
                                   "distinct": torch.arange(10) < 5})})
    write_json(Path("out/mask-2/forecast.json"), {"a": {"b": 0.25}})
    Path("experiments/results.json").write_text('{"mask forecast a.b": {"9": 0.75}}')
    tables.publish(Path("out"))
    results = read_json("experiments/results.json")
    assert results[row[1]] == {"1": 10.0, "2": 20.0, "30": 33.0} and row[2] not in results
    page, compared = (re.sub(" +", " ", Path(name).read_text(encoding="utf-8"))
                      for name in ("README.md", "docs/results.md"))
    assert page.startswith("a\n<!-- table: departures -->\n**T**\n\n| a | b | c | d | e | seeds |")
    assert page.endswith("- |\n| m | 21.0 (10.0-33.0) | not run | 0.5 (0.2-0.8) | 8 | 2-3 |\n"
                         "| not measured | not run | - | - | - | |\n<!-- end -->\nb\n")
    assert compared.split("- |\n")[1] == (
        "| x | 37 | 20.0 | 50.0 | -30.0 ± 80.3 | -50.0 ± 50.6: undecided | not shown: undecided | "
        "3 and 2 |\n"
        "| x | 40 | 26.7 | 73.3 | -46.7 ± 84.2 | - | not shown: undecided | 3 and 3 |\n"
        "| x | 40 | 20.0 | 20.0 | +0.0 ± 0.0 | +0.0 ± 0.0: equal | shown | 3 and 3 |\n"
        "<!-- end -->\n")


def test_tables_are_whole_and_on_the_pages():
    """Catches: a flag that is refused; a row without a cell; a figure typed by hand, or stale."""
    for flags in RECIPES.values():
        train.parse(flags.split())
    for name in EVALUATIONS:
        if name == "probes":
            probes.parse(tables.evaluation_command(name, "run")[2:])
        else:
            evaluate.parse(tables.evaluation_command(name, "run")[1:])
    ours, results = tables.cells(TABLES), read_json(ROOT / "experiments/results.json")
    pages = "".join(path.read_text(encoding="utf-8") for path in (
        ROOT / "README.md", *(ROOT / "docs").glob("*.md")))
    assert all(name in EVALUATIONS for _, name, _ in ours.values())
    for name, table in TABLES.items():
        columns = [column for column in table["columns"] if column != "seeds"]
        sizes = {4, 5} if table.get("compared") else {len(columns)}
        assert {len(row) for row in table["rows"]} <= sizes
        assert all(text in ours or text == "equal" or not re.match("[a-z]", text)
                   for _, *texts in table["rows"] for text in texts)
        if any(text in results for text in tables.cells([name])):
            text = f"<!-- table: {name} -->\n{tables.markdown(name, results)}<!-- end -->"
            assert pages.count(text) == 1, name


def test_orders_are_told_from_what_is_known(tmp_path, capsys):
    """Catches: an answer learned from its own video, another task, a wrong back-off."""
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


def test_the_charts_are_drawn(drawn, here, trained, monkeypatch):
    """Catches: another run or panel; a null; places in the order of text, a spread of one run; a
    wrong picture above a caption, a hidden clip shown, bars of other steps."""
    chart = "experiments/charts.py", "--out", "a.png"
    row = dict(loss=1, xe=2, mse=3, mc=4, match=5)
    for run, last in ("a", 6), ("b", None):
        write_text(Path(run, "metrics.jsonl"), json.dumps(
            {"epoch": .5, **row, "match_h": last, "lr": 9}) + "\n")
    call(*chart, "--curves", "a", "b")
    for axes, (name, y) in zip(drawn[0].axes, [*row.items(), ("match_h", 6)]):
        assert axes.get_title("left") == name
        expected = [y, np.nan if name == "match_h" else y]
        np.testing.assert_equal([line.get_xydata()[0, 1] for line in axes.lines], expected)
    for seed, h in (0, 60.0), (1, 64.0):
        write_json(Path(f"{seed}.json"), {"by_place": {str(k): {
            "zero_noise": h + k, "exact": 73.0, "set": 50.0, "evaluated": 9} for k in (10, 9, 1)}})
    write_json(Path("p.json"), {"similar": {"by_place": {
        str(k): {"similar": 40.0 + k, "evaluated": 9} for k in (10, 9, 1)}}})
    call(*chart, "--places", "0.json", "1.json", "p.json")
    lines = {bars.get_label(): bars for bars in drawn[1].axes[0].containers}
    similar = lines["similar histories"][0].get_xydata()
    assert len(lines) == 4 and similar.tolist() == [[1, 41], [9, 49], [10, 50]]
    line, _, (spread,) = lines["h, zero noise"]
    assert line.get_xydata().tolist() == [[1, 63], [9, 71], [10, 72]]
    assert spread.get_segments()[0][:, 1].tolist() == [61, 65]
    monkeypatch.setattr(charts, "VIDEOS", 12)
    call(*chart, "--look-alikes", trained / "none", trained / "diffusion")
    titles = [axes.get_title() + axes.get_title("left") for axes in drawn[2].axes]
    assert [re.sub(r"\d+", "N", title) for title in titles] == [
        f"{name}:\nN% right" for name in ("teacher", "f without h", "f, the default")]
    assert len({axes.patches[0].get_x() for axes in drawn[2].axes}) == 3       # each its own f
    call(*chart, "--task", trained / "diffusion")
    clips, bars = drawn[3].axes[:9], drawn[3].axes[9:]
    said = ["".join(text.get_text() for text in axes.texts) for axes in clips]
    assert len(said) == 9 and {*said[:charts.MISSING]} == {""} and said[charts.MISSING] == "?"
    assert [axes.images[0].get_alpha() < 1 for axes in clips] == [bool(text) for text in said]
    assert all(re.match(r".+\n.+ \d+%\n.+ \d+%$", axes.get_xlabel()) for axes in clips)
    shown = [axes.get_xlabel().split("\n")[0] for axes in clips]
    with_lamp = sum(LOOK_ALIKES, ())
    assert [len(axes.lines) for axes in clips] == [name in with_lamp for name in shown]
    assert {*charts.PAIR} <= {*shown}                      # each with a square around its lamp
    assert all(re.match(r"clip \d\n“", axes.get_title("left")) for axes in clips)
    named = [[label.get_text() for label in axes.get_yticklabels()] for axes in bars]
    told = {part for name in sum(named, []) for part in name.split(" or\n")}
    assert told <= {*STEPS} and "melt butter" in named[0] and named[0] != named[1]


# --- compare.py ---
@pytest.mark.parametrize("apart, paired", [(0, False), (.45, False), (0, True)])
def test_the_difference_is_that_of_a_slow_version(apart, paired):
    """Catches: examples taken for independent, a video cut elsewhere, an error left out or counted
    twice, sides paired or not, the freedom of another side, the quantile of the neighbor."""
    rng, M, spans = np.random.default_rng(1), 40, [(a, a + 8) for a in range(0, 40, 8)]
    ours, theirs = ((rng.random((S, M)) < .5 + apart * np.linspace(-1, 1, S)[:, None]).astype(float)
                    for S in (3, 2 + paired))              # the seeds of a side are so far apart
    share = [[100 * sum(line) / M for line in side] for side in (ours, theirs)]
    sides = [[a - b for a, b in zip(*share)]] if paired else share
    mean = [sum(side) / len(side) for side in share]
    each = [100 * (sum(ours[:, m]) / 3 - sum(theirs[:, m]) / len(theirs)) for m in range(M)]
    videos = sum(sum(each[m] - mean[0] + mean[1] for m in range(*at)) ** 2 for at in spans) / M ** 2
    squares = [np.var(side, ddof=1) / len(side) for side in sides]
    seeds = sum(squares)
    freedom = seeds ** 2 / sum(a ** 2 / (len(side) - 1) for a, side in zip(squares, sides))  # Welch
    t, low = (12.71, 4.30, 3.18, 2.78), int(freedom)       # of 1 to 4 degrees, as books print it
    t_seeds = t[low - 1] + (freedom - low) * (t[low] - t[low - 1])
    error = (videos + seeds) ** .5
    assert compare.paired_difference(ours, theirs, range(0, 41, 8), paired) == pytest.approx(
        (mean[0] - mean[1], error, max(2.78 * error, t_seeds * seeds ** .5)))
    assert paired or (t_seeds * seeds ** .5 > 2.78 * error) == bool(apart)     # each decides once


def test_verdicts_and_the_command(tmp_path, capsys):
    """Catches: the rule of another order; bits of another column; runs paired by their names."""
    for given, said in {(3, 2): "above", (-3, 2): "below", (.5, .4): "above", (.3, .6): "equal",
                        (1.5, 2): "undecided", (.1, 1): "undecided"}.items():
        assert compare.verdict(*given, 2) == said, given
        assert compare.verdict(*given, 1) == "one run"
    examples = [Example(video, None, 0, 0) for video in (0, 0, 0, 1, 1, 4, 4, 4, 4, 4, 4)]
    bits = torch.tensor([1, 0, 1, 1, 0, 0, 0, 1, 1, 0, 1], dtype=torch.bool)
    part = torch.tensor([1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1], dtype=torch.bool)
    for name, seed, right in ("a", 100, bits), ("b", 99, ~bits), ("c", 99, ~bits), ("d", 100, bits):
        (tmp_path / f"{name}.json").write_text(json.dumps({
            "evaluated": 11, "seed": 0, "run_seed": seed, "right": metrics.pack(
                {"zero_noise": right, "pair": ~right}, examples, {"new": part, "pair": part})}))
    files = [tmp_path / f"{name}.json" for name in "abcd"]
    call("experiments/compare.py", *files[:2], "--with", *files[2:])
    said = capsys.readouterr().out
    assert said.startswith("50.0 and 50.0% right of 11 examples in 3 videos, 2 and 2 seeds\n")
    assert "difference +0.00 ± 0.00" in said               # by seed: a and d, b and c
    for column, shares in (("zero_noise", "54.5 and 45.5% right of 11"), (
            "new.zero_noise", "66.7 and 33.3% right of 3"), ("pair", "33.3 and 66.7% right of 3")):
        call("experiments/compare.py", files[0], "--with", files[1], "--column", column)
        assert shares in capsys.readouterr().out
    once = "experiments/compare.py", files[0], "--with", files[1]
    assert "given twice" in fails(capsys, *once, files[2])
    files[1].write_text(files[1].read_text().replace("[3, 2, 6]", "[3, 3, 5]"))
    assert "other videos" in fails(capsys, *once)
