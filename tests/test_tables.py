"""experiments.tables: runs made once, the paper's rows, means over seeds, steps seen and novel."""
import json
import math
import re
import time
from collections import Counter
from pathlib import Path

import pytest

import evaluate
import train
from commands import call, fails, struck
from evaluation import metrics
from experiments import paper_tables, rows, runs, tables
from files.listings import load_phrases
from support.command import parse
from toy import grammar

ROOT = Path(__file__).resolve().parent.parent
PAPER = ROOT.parent / "shared" / "paper" / "paper.tex"
TINY = ("--toy-videos", "16", "--test-videos", "4", "--device", "cpu", "--out", "out")
pytestmark = pytest.mark.usefixtures("here")


# ---- The command ---------------------------------------------------------------------------------
def fake_commands(monkeypatch, code):
    """Every command of a run becomes this python code; its arguments are in sys.argv[1:]."""
    whole = runs.commands
    monkeypatch.setattr(runs, "commands", lambda *args: [
        ["-c", code, *line] for line in whole(*args)])


def test_runs_are_made_once_and_are_in_every_table(monkeypatch, capsys):
    """Catches: a run made again, one table's runs unknown to the next, a cell of another run or
    key, a run that is trained for each of its evaluations, a file of another size taken."""
    fake_commands(monkeypatch, """
import json, sys
print(sys.argv[1:])
if "--json" in sys.argv:
    path = sys.argv[sys.argv.index("--json") + 1]
    top = {"zero_noise": 12.34, "expectation": 23.45, "oracle": 34.56, "ours": 45.67}
    open(path, "w").write(json.dumps({"top1": top}))
""")
    call("tables.py", "inference,backbone", *TINY, "--seeds", "3,3")
    first = capsys.readouterr().out
    made = {path.relative_to("out").as_posix() for path in Path("out").glob("*/test.*.json")}
    assert made == {"mask-3/test.forecast.json", *(
        f"{recipe}-3/test.{task}.json" for recipe in ("diffusion", "mvit")
        for task in ("forecast", "classify"))}
    assert re.search(r"\| ours +\| ours +\| 12\.3 +\| 23\.4 +\| 34\.6 +\| 1 ", first)
    assert re.search(r"\| ours +\| MViT +\| 45\.7 +\| 12\.3 +\| 1 ", first)
    assert "**Table 5" in first and Path("out/tables.md").read_text() in first
    log = Path("out/diffusion-3/log.txt").read_text().splitlines()
    assert [Path(line.split("'")[1]).name for line in log] == ["train.py"] + 2 * ["evaluate.py"]
    monkeypatch.setattr(runs, "start", None)                               # none is made again
    call("tables.py", "inference,backbone", *TINY, "--seeds", "3")
    assert capsys.readouterr().out == first
    line = fails(capsys, 2, "tables.py", "inference", *TINY[2:], "--toy-videos", "17")
    assert "--toy-videos 17: the runs in out have 16" in line


def test_commands_are_accepted_by_the_scripts():
    """Catches: a flag or a value that train.py or evaluate.py refuses, a classifier that is
    fine-tuned from another run or evaluated elsewhere, a phrase pool that is not found; a recipe
    that does not exist, a run for a table that was not asked for."""
    settings = tables.TablesSettings(out=Path("out"), device="cpu")
    needed = runs.needs(paper_tables.TABLES)
    for recipe, evaluations in needed.items():
        Path(f"out/{recipe}-3").mkdir(parents=True)
        made, written = [], []
        for script, *flags in runs.commands(settings, recipe, 3, evaluations):
            flags = list(map(str, flags))
            given = parse(evaluate.EvaluateSettings if script.name == "evaluate.py"
                          else train.command_of(flags)[1], flags)
            assert given.seed == 3 and given.device == "cpu"
            assert getattr(given, "phrases", None) is None or given.phrases.is_file()
            assert getattr(given, "init", None) in (None, *made[:1])
            if script.name == "evaluate.py":
                assert given.checkpoint in made
                written.append(given.json)
            else:
                made.append(given.out)
        assert [path.name for path in written] == [f"test.{name}.json" for name in evaluations]
    assert set(needed) == set(paper_tables.RECIPES)
    assert sorted(needed["diffusion"]) == ["activity-tuned", "classify", "classify-tuned",
                                           "forecast", "forecast-tuned"]
    assert runs.needs(["backbone", "epic"]) == {
        "diffusion": ["classify", "forecast"], "mvit": ["classify", "forecast"]}


def test_a_failed_run_ends_the_others(monkeypatch, capsys):
    """Catches: a failure that is passed over or waits for the rest, a process left running."""
    fake_commands(monkeypatch, "import sys, time\n"
                  "time.sleep(60) if 'out/mask-3' in sys.argv else sys.exit(7)")
    began = time.time()
    with pytest.raises(SystemExit, match="2"):
        call("tables.py", "inference", *TINY, "--seeds", "3")
    assert capsys.readouterr().err.endswith("out/diffusion-3: ended with 7; see its log.txt\n")
    assert time.time() - began < 50


@pytest.mark.parametrize("number, status", [(2, 130), (15, 143)])
def test_a_signal_ends_all_runs(monkeypatch, number, status):
    """Catches: Ctrl-C or SIGTERM that leaves a process behind, starts the next, or ends with 0."""
    fake_commands(monkeypatch, "import time\ntime.sleep(2)\nopen('survived', 'w')")
    assert struck(number, runs, "start", 2, "tables.py", "inference", *TINY, "--seeds",
                  "3,4") == status
    time.sleep(2.5)
    assert not Path("survived").exists()


def test_rows_of_files_stand_below_the_papers(capsys):
    """Catches: a fine-tuned file among zero-shot numbers, a file of another task, a run made."""
    common = {"data": "coin", "order": "diffusion", "top1": {"zero_noise": 12.34}}
    for name, setting in (("a", "zero-shot"), ("b", "fine-tuned")):
        Path(f"{name}.json").write_text(json.dumps({**common, "task": "forecast",
                                                    "setting": setting}))
    call("tables.py", "forecasting,classification", "--rows", "a.json,b.json", "--out", "out")
    out = capsys.readouterr().out
    assert re.search(r"\| a\.json +\| diffusion +\| 12\.3 +\| - ", out)
    assert re.search(r"\| b\.json +\| diffusion +\| - +\| 12\.3 ", out)
    assert out.count(".json |") == 2 and [*Path("out").glob("*-*")] == []
    call("tables.py", "epic", "--rows", "a.json", "--out", "out")              # the others stay
    assert out.split("**Table 2")[0] in Path("out/tables.md").read_text()
    assert "a.json" not in capsys.readouterr().out


@pytest.mark.parametrize("flags, line", [
    (("nothing",), "nothing: no such table; there are forecasting, "),
    (("--seeds", "1,x"), "--seeds 1,x: must be numbers"),
    (("--steps", "steps.txt"), "--steps steps.txt: give --steps and --phrases together"),
    (("--out", "/dev/null/a"), "--out /dev/null/a: /dev/null is not a folder"),
    (("--rows", "gone.json"), "gone.json: No such file or directory; a JSON file of evaluate.py"),
    (("--rows", "list.json"), "list.json: no object with task, data, setting, order, top1; a JSON"),
    (("open-vocabulary", "--rows", "few.json"), "few.json: 2 classes, but there are 40 steps")])
def test_bad_input_is_one_line(capsys, flags, line):
    """Catches: a traceback, or a set of runs begun before the flags are checked."""
    Path("list.json").write_text("[]")
    Path("few.json").write_text(json.dumps({"task": "classify", "setting": "zero-shot", "top1": {},
                                            "data": "coin", "order": "mask", "by_class": [1, 2]}))
    more = () if "--out" in flags else ("--out", "out")
    assert line in fails(capsys, 2, "tables.py", *flags, *more)


# ---- The paper's rows, and ours ------------------------------------------------------------------
@pytest.mark.skipif(not PAPER.is_file(), reason="no paper.tex")
@pytest.mark.parametrize("name", [name for name, table in paper_tables.TABLES.items() if table.paper
                                  and name not in ("inference", "open-vocabulary")])
def test_the_papers_rows_are_the_papers(name):
    """Catches: a digit mistyped, a row left out or moved."""
    text = PAPER.read_text(encoding="utf-8")
    rows = [re.findall(r"\d+\.\d+", line.split("Kinetics")[-1]) for line in
            re.sub(r"\n(?=& -- )", "", re.sub(r" \n& ", " & ", text)).split("\n")
            if re.search(r"\\\\", line) and re.search(r"\d+\.\d", line) and "&" in line]
    numbers = [[f"{cell}" for cell in cells if cell is not None]
               for _, *cells in paper_tables.TABLES[name].paper]
    places = [i for i in range(len(rows)) if rows[i:i + len(numbers)] == numbers]
    assert places, f"{name}: these rows do not stand in the paper in this order"


def test_cells_name_what_exists():
    """Catches: a column without a cell, a key that evaluate.py does not write, phrases missing."""
    for table in paper_tables.TABLES.values():
        assert all(len(cells) == len(table.columns) for _, *cells in (*table.paper, *table.ours))
        keys = {cell.partition(" ")[2] or own for _, *cells in table.ours
                for cell, (_, _, own) in zip(cells, table.columns) if cell}
        assert {key.split(".")[0] for key in keys} <= {"top1", "baselines", "deviation", "by_class",
                                                       "by_class_bayes"}
    assert len(load_phrases(ROOT / "experiments" / "howto.txt")) == len(grammar.PHRASES)


def test_cells_are_means_over_seeds():
    """Catches: seeds of another recipe or task in a cell, a deviation of one seed, of M for M - 1,
    a number that is None counted as 0."""
    table = paper_tables.TABLES["ablation"]
    results = [("mask", "classify", {"top1": {"ours": value}}) for value in (10.0, 20.0, 33.0)]
    results += [("mask", "forecast", {"top1": {"zero_noise": 5.0}}),
                ("mask", "classify-tuned", {"top1": {"ours": None}}),
                ("diffusion", "forecast-tuned", {"top1": {"ours": 7.0}})]         # no such key
    ours = rows.our_rows(table, results)
    assert ours[1] == ("ours", "matching + ordering, mask", [[10.0, 20.0, 33.0], [5.0], [], []])
    assert not any(ours[0][2] + ours[2][2])
    text = rows.markdown("T", [column[0] for column in table.columns], ours[1:2])
    deviation = math.sqrt(((10 - 21) ** 2 + (20 - 21) ** 2 + (33 - 21) ** 2) / 2)
    cells = [cell.strip() for cell in text.split("\n")[4].split("|")[3:-1]]
    assert cells == [f"21.0 ± {deviation:.1f}", "5.0", "-", "-", "3"]


# ---- Open vocabulary -----------------------------------------------------------------------------
def slow_bleu1(step, phrase):
    words, others = step.lower().split(), phrase.lower().split()
    shared = sum(min(count, others.count(word)) for word, count in Counter(words).items())
    return min(1, math.exp(1 - len(others) / len(words))) * shared / len(words)


def test_bleu1_equals_counting():
    """Catches: a word counted oftener than the phrase has it, no penalty for a shorter step, the
    phrases taken together, a difference of case; a step held out that the pool holds."""
    steps = ["Stir the Egg", "the the the", "fry", "knead dough", "add salt"]
    pool = ["stir the egg", "the the", "fry the egg now", "Fry an egg", "pour egg stir",
            "add add salt"]
    slow = [max(slow_bleu1(step, phrase) for phrase in pool) for step in steps]
    assert metrics.largest_bleu1(steps, pool) == pytest.approx(slow)
    assert metrics.largest_bleu1(["1 2 3 4 5 6 7 8 9 0"], ["1 2 3 4 5 6 7 a b c"]) == [0.7]
    assert slow[0] == 1 and slow[1] == 2 / 3 and 0 < slow[2] < .2 and slow[3] == 0
    toy = zip(grammar.STEPS, metrics.largest_bleu1(grammar.STEPS, grammar.PHRASES))
    assert {step for step, b in toy if b < rows.NOVEL} == set(grammar.HELD_OUT)


RESULTS = [("diffusion", "classify", {"by_class": [100.0, 50.0, None, 20.0]}),
           ("diffusion", "classify", {"by_class": [80.0, None, 10.0, 30.0]}),
           ("diffusion", "classify-tuned", {"by_class": [1.0]})]
EXACT = [("diffusion", "forecast", {"by_class": [1.0] * 4,
                                    "by_class_bayes": [60.0, 40.0, 30.0, None]})]


def test_seen_and_novel_steps_by_loops():
    """Catches: a step that does not occur counted as wrong, runs averaged step by step, groups
    exchanged, a step at 0.7 taken for novel."""
    bleu = [1.0, .7, .69, 0.0]
    assert rows.open_rows(RESULTS, bleu) == [("ours", "seen", [["2"], [75.0, 80.0], []]),
                                             ("ours", "novel", [["2"], [20.0, 20.0], []])]
    assert [cells for _, _, cells in rows.open_rows(EXACT, bleu)] == [
        [["2"], [], [1.0]], [["2"], [], [1.0]], [["2"], [], [50.0]], [["2"], [], [30.0]]]
    assert [cells[1:] for _, _, cells in rows.open_rows([], bleu)] == [[[], []]] * 2
