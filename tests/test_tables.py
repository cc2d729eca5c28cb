"""tables.py: runs made once, the paper's rows, means over seeds, steps seen and novel."""
import itertools
import json
import math
import re
import statistics
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import data  # noqa: E402
from experiments import charts  # noqa: E402
from evaluation import metrics  # noqa: E402
from experiments import paper_tables  # noqa: E402
from experiments import runs  # noqa: E402
from experiments import tables  # noqa: E402
from toy import grammar  # noqa: E402
from commands import call, fails, make_teacher  # noqa: E402
from files.listings import load_phrases, load_steps  # noqa: E402
from settings_optional import TablesSettings  # noqa: E402

SHARED = ROOT.parent / "shared"
STEPS, POOL = SHARED / "coin" / "steps.txt", SHARED / "phrases" / "ht100m_asr_verb_phrase.txt"
PAPER = SHARED / "paper" / "paper.tex"
TINY = ("--toy-videos", "16", "--test-videos", "4", "--device", "cpu", "--out", "out")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ------------------------------------------------------------------------------------------------
# The command
# ------------------------------------------------------------------------------------------------
def test_runs_are_made_once_and_stand_in_every_table(here, monkeypatch, capsys):
    """Catches: a run made again, one table's runs unknown to the next, a cell of another run or
    key, a file of another size taken for the same, a size that is not noted."""
    make_teacher(here)
    small = {"order_epochs": 1.0, "order_batch": 8, "batch": 8, "match_epochs": 1.0}
    monkeypatch.setattr(runs, "RECIPES", {"diffusion": small,
                                                "mask": {**small, "order": "mask"}})
    call("tables.py", "inference,open-vocabulary", *TINY, "--seeds", "3", "--jobs", "1")
    first = capsys.readouterr().out
    made = {path.relative_to(here / "out").as_posix() for path in here.glob("out/*/test.*.json")}
    assert made == {"diffusion-3/test.forecast.json", "diffusion-3/test.classify.json",
                    "mask-3/test.forecast.json"}
    content = json.loads((here / "out/diffusion-3/test.forecast.json").read_text())
    assert content["seed"] == 3 and content["split"] == "test"
    top = content["top1"]
    cells = [f"{top[key]:.1f}" for key in ("zero_noise", "expectation", "oracle")]
    assert re.search(r"\| ours +\| ours +\| " + r" +\| ".join(map(re.escape, cells)), first)
    assert "**Table 5" in first and (here / "out/tables.md").read_text() in first
    monkeypatch.setattr(runs, "ProcessPoolExecutor", None)                 # none is made again
    call("tables.py", "inference,open-vocabulary", *TINY, "--seeds", "3")
    assert capsys.readouterr().out == first
    line = fails(capsys, 2, "tables.py", "inference", *TINY[2:], "--toy-videos", "17")
    assert "--toy-videos 17: the runs in out have 16" in line


def test_rows_of_files_stand_beside_the_papers(capsys):
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
    call("tables.py", "epic", "--rows", "a.json", "--out", "out")            # beside what is there
    assert out.split("**Table 2")[0] in Path("out/tables.md").read_text()
    assert "a.json" not in capsys.readouterr().out


WRONG = [
    (("nothing",), "nothing: no such table; there are forecasting, "),
    (("--seeds", "1,x"), "--seeds 1,x: must be numbers"),
    (("--jobs", "0"), "--jobs 0: must be at least 1"),
    (("--steps", "steps.txt"), "--steps steps.txt: give --steps and --phrases together"),
    (("--out", "no/where"), "--out no/where: there is no folder no"),
    (("--rows", "gone.json"), "gone.json: FileNotFoundError; a JSON file is needed"),
    (("--rows", "list.json"), "list.json: without task, data, setting, order, top1; a JSON file of"),
    (("open-vocabulary", "--rows", "few.json"), "few.json: 2 classes, but there are 40 steps"),
]


@pytest.mark.parametrize("flags, line", WRONG)
def test_what_is_wrong_is_one_line(capsys, flags, line):
    """Catches: a traceback, or a set of runs begun before the flags are checked."""
    Path("list.json").write_text("[]")
    Path("few.json").write_text(json.dumps({"task": "classify", "setting": "zero-shot", "top1": {},
                                            "data": "coin", "order": "mask", "by_class": [1, 2]}))
    more = () if "--out" in flags else ("--out", "out")
    assert line in fails(capsys, 2, "tables.py", *flags, *more)


# ------------------------------------------------------------------------------------------------
# The paper's rows, and ours
# ------------------------------------------------------------------------------------------------
@pytest.mark.skipif(not PAPER.is_file(), reason="no paper.tex")
@pytest.mark.parametrize("name", [name for name, table in paper_tables.TABLES.items()
                                  if table.paper and name != "inference"])
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


def test_our_cells_name_what_there_is():
    """Catches: a recipe without settings, settings that train.py has not, a column without a cell,
    a key that evaluate.py does not write."""
    for recipe, flags in paper_tables.RECIPES.items():
        assert set(flags) <= {"order", "phrases", "targets", "encoder"}, recipe
    for table in paper_tables.TABLES.values():
        for _, *cells in (*table.paper, *table.ours):
            assert len(cells) == len(table.columns)
        for _, *cells in table.ours:
            for cell, column in zip(cells, table.columns):
                recipe, _, key = runs.split_cell(cell, column) if cell else (None, None, "")
                assert recipe in (None, "clip", *paper_tables.RECIPES), cell
                assert key.split(".")[0] in ("", "top1", "baselines", "deviation"), cell
    assert len(load_phrases(ROOT / "howto.txt")) == len(grammar.PHRASES)


def test_cells_are_means_over_seeds():
    """Catches: seeds of another recipe or task in a cell, a deviation of one seed, of M for M - 1,
    a number that is None counted as 0."""
    table = paper_tables.TABLES["ablation"]
    results = {("mask", seed, "classify"): {"top1": {"ours": value}}
               for seed, value in ((1, 10.0), (2, 20.0), (3, 33.0))}
    results |= {("mask", 1, "forecast"): {"top1": {"zero_noise": 5.0}},
                ("mask", 1, "classify-tuned"): {"top1": {"ours": None}},
                ("diffusion", 1, "forecast-tuned"): {"top1": {"ours": 7.0}}}      # no such key
    rows = tables.our_rows(table, results)
    assert rows == [("ours", "matching + ordering, mask", [[10.0, 20.0, 33.0], [5.0], [], []])]
    text = tables.markdown("T", [column[0] for column in table.columns], rows)
    deviation = math.sqrt(((10 - 21) ** 2 + (20 - 21) ** 2 + (33 - 21) ** 2) / 2)
    cells = [cell.strip() for cell in text.split("\n")[4].split("|")[3:-1]]
    assert cells == [f"21.0 ± {deviation:.1f}", "5.0", "-", "-", "3"]


def test_needs_are_those_of_the_cells():
    """Catches: a run for a table that was not asked for, an evaluation left out."""
    assert runs.needs(["backbone"]) == {"diffusion": ["classify", "forecast"],
                                          "mvit": ["classify", "forecast"]}
    assert runs.needs(["concepts", "epic"]) == {}
    needed = runs.needs([*paper_tables.TABLES, "open-vocabulary"])
    assert set(needed) == {"clip", *paper_tables.RECIPES}
    assert sorted(needed["diffusion"]) == ["activity-tuned", "classify", "classify-tuned",
                                           "forecast", "forecast-tuned"]


def test_the_probe_learns_what_the_teacher_shows(here, monkeypatch):
    """Catches: labels or features of another sample, a classifier that is not trained or is tested
    on training videos, views that are not averaged."""
    class Source(data.ToySource):
        def __init__(self, split, count):
            self.videos = [grammar.make_video(split, i) for i in range(count)]
            self.teacher = SimpleNamespace(encode_phrases=lambda steps: torch.zeros(len(steps), 40))

        def load(self, requests, rng=None):
            read.append({video for video, _ in requests})
            looks = [self.videos[video].steps[k // 3] for video, group in
                     itertools.groupby(requests, lambda request: request[0])
                     for k in range(3 * len(list(group)))]
            return data.Loaded(requests, None, torch.eye(40)[looks], {})

        def teach(self, looks):
            return looks
    asked, read = [], []
    monkeypatch.setattr(data, "open_toy", lambda split, count, *_: asked.append((split, count)) or
                        Source(split, count))
    settings = TablesSettings(toy_videos=200, test_videos=9, split="validation", device="cpu")
    runs.probe(settings, 0, here / "probe.json")
    content = json.loads((here / "probe.json").read_text())
    assert asked == [("train", 200), ("validation", 9)]
    assert len(read[0]) == 50 and read[1] == set(range(9))              # a quarter of the labels
    assert content["top1"]["ours"] > 95
    assert content["evaluated"] == sum(len(grammar.make_video("validation", i).steps) for i in range(9))


# ------------------------------------------------------------------------------------------------
# Open vocabulary
# ------------------------------------------------------------------------------------------------
def slow_bleu1(step, phrase):
    words, others = step.lower().split(), phrase.lower().split()
    shared = sum(min(count, others.count(word)) for word, count in Counter(words).items())
    return min(1, math.exp(1 - len(others) / len(words))) * shared / len(words)


def test_bleu1_equals_counting():
    """Catches: a word counted oftener than the phrase has it, no penalty for a shorter step, the
    phrases taken together, a difference of case."""
    steps = ["Stir the Egg", "the the the", "fry", "knead dough", "add salt"]
    pool = ["stir the egg", "the the", "fry the egg now", "Fry an egg", "pour egg stir",
            "add add salt"]
    slow = [max(slow_bleu1(step, phrase) for phrase in pool) for step in steps]
    assert metrics.largest_bleu1(steps, pool) == pytest.approx(slow)
    assert metrics.largest_bleu1(["1 2 3 4 5 6 7 8 9 0"], ["1 2 3 4 5 6 7 a b c"]) == [0.7]
    assert slow[0] == 1 and slow[1] == 2 / 3 and 0 < slow[2] < .2 and slow[3] == 0


@pytest.mark.skipif(not (STEPS.is_file() and POOL.is_file()), reason="no real lists")
def test_bleu1_splits_the_real_steps():
    """Catches: another way to split words or to match, by its counts on the released lists (the
    paper has 103 and 675)."""
    bleu = metrics.largest_bleu1(load_steps(STEPS), [p.text for p in load_phrases(POOL)])
    assert Counter(b >= paper_tables.NOVEL for b in bleu) == {True: 100, False: 678}


def test_seen_and_novel_steps_by_loops():
    """Catches: a step that does not occur counted as wrong, runs averaged step by step, groups
    exchanged, a step at 0.7 taken for novel."""
    bleu = [1.0, .7, .69, 0.0]
    found = {"classify": [[100.0, 50.0, None, 20.0], [80.0, None, 10.0, 30.0]], "forecast": []}
    assert tables.open_rows(bleu, found) == [
        ("ours", "seen", [["2"], [75.0, 80.0], []]), ("ours", "novel", [["2"], [20.0, 20.0], []])]
    runs = [("a", "forecast", {"by_class": [1] * 4, "by_class_bayes": [60.0, 40.0, 30.0, None]}),
            ("b", "classify", {"by_class": [1] * 4})]
    exact = tables.by_task(runs, range(4), "by_class_bayes")
    assert tables.open_rows(bleu, exact, ", exact") == [
        ("ours", "seen, exact", [["2"], [], [50.0]]), ("ours", "novel, exact", [["2"], [], [30.0]])]
    assert tables.open_rows(bleu, found, ", exact")[0][2] == [["2"], [75.0, 80.0], []]
    assert tables.open_rows(bleu, {"classify": [], "forecast": []}, ", exact") == []
    rows = tables.concept_rows(["fry egg", "add salt", "x"], ["fry onion", "add salt", "eat egg"],
                               [.5, 1.0, 0.0])
    assert rows == [("ours", "fry egg", [["fry onion, eat egg"]]), ("ours", "x", [["--"]])]


def test_the_chart_has_the_means_over_the_runs(monkeypatch, capsys):
    """Catches: percent for fractions, a step that does not occur drawn at 0, a task without runs
    drawn, no line where matplotlib is missing."""
    drawn = []
    monkeypatch.setattr(charts, "plot_open_vocabulary", lambda *args: drawn.append(args))
    monkeypatch.setattr(charts, "save", lambda figure, path: None)
    found = {"classify": [[100.0, None, 20.0], [50.0, None, None]], "forecast": []}
    tables.draw_open("out.png", [1, 0, 0], found)
    (bleu, accuracy), = drawn
    assert bleu == [1, 0, 0] and accuracy.keys() == {"classification"}
    assert accuracy["classification"] == pytest.approx([.75, math.nan, .2], nan_ok=True)
    monkeypatch.setattr(charts, "save", lambda figure, path: charts.require())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    tables.draw_open("out.png", [1, 0, 0], found)
    assert "out.png is not drawn: figures need matplotlib" in capsys.readouterr().out


def test_the_embedded_world_has_five_novel_steps():
    """Catches: a step held out that the pool holds, or one that the pool should hold missing."""
    bleu = metrics.largest_bleu1(grammar.STEPS, grammar.PHRASES)
    assert {step for step, b in zip(grammar.STEPS, bleu) if b < paper_tables.NOVEL} == set(grammar.HELD_OUT)
    assert statistics.mean(bleu) < 1
