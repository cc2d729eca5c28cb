"""experiments.reproduce: runs made once, the paper's rows, means over seeds, the pages' tables."""
import json
import random
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import evaluate
import train
from commands import call, fails, read_json, struck
from experiments import gain, reproduce, runs, tables
from experiments.tables import EVALUATIONS, RECIPES, TABLES
from files.annotations import load_features
from files.listings import load_phrases
from support.command import BadInput, parse
from toy import grammar, teacher
from training.run import prepare_run

ROOT = Path(__file__).resolve().parent.parent
PAPER = ROOT.parent / "shared" / "paper" / "paper.tex"
TINY = ("--device", "cpu", "--out", "out", "--pages", ".")
pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture(autouse=True)
def pages(here):
    """A README.md with two tables, in the current folder."""
    Path("experiments").mkdir()
    Path("README.md").write_text("a\n<!-- table: table-5 -->\nold\n<!-- end -->\nb\n"
                                 "<!-- table: table-D -->\n<!-- end -->\n")


# ---- The runs ------------------------------------------------------------------------------------
def begin(line):
    """What train.py does before its first step, by its command line."""
    flags = list(map(str, line[1:]))
    prepare_run(parse(train.command_of(flags)[1], flags))


def fake_commands(monkeypatch, code):
    """Every command of a run becomes this python code; its arguments are in sys.argv[1:]."""
    whole = runs.start

    def start(folder, line):
        if line[0].name == "train.py":
            begin(line)
        return whole(folder, ["-c", code, *line])
    monkeypatch.setattr(runs, "start", start)


FAKE = """
import json, sys
print(sys.argv[1:])
if "--json" in sys.argv:
    path = sys.argv[sys.argv.index("--json") + 1]
    top = {"zero_noise": 12.34, "expectation": 23.45, "oracle": 34.56, "ours": 45.67}
    open(path, "w").write(json.dumps({"top1": top}))
"""


def test_runs_are_made_once_and_fill_every_table(monkeypatch):
    """Catches: a run or its training made again, a cell of another, a page's text changed."""
    fake_commands(monkeypatch, FAKE)
    call("reproduce.py", "table-5,table-D", *TINY, "--seeds", "3,3")
    first = Path("README.md").read_text()
    made = {path.relative_to("out").as_posix() for path in Path("out").glob("*/*.json")
            if path.name != "config.json"}
    assert made == {"mask-3/forecast.json", *(f"{recipe}-3/{task}.json" for task in (
        "forecast", "classify") for recipe in ("diffusion", "mvit"))}
    assert re.search(r"\| ours +\| 12\.3 +\| 23\.4 +\| 34\.6 +\|", first)
    assert re.search(r"\| MViT +\| 45\.7 +\| 12\.3 +\|", first)
    assert first.startswith("a\n") and "old" not in first and "<!-- end -->\nb\n" in first
    assert ("Runs and their seeds: diffusion classify, diffusion forecast, mvit classify, mvit "
            "forecast: 3.\n") in first
    call("reproduce.py", "recognition", *TINY, "--seeds", "3")
    log = Path("out/mask-3/log.txt").read_text().splitlines()      # trained once, evaluated twice
    assert [Path(line.split("'")[1]).name for line in log] == ["train.py"] + 2 * ["evaluate.py"]
    monkeypatch.setattr(runs, "start", None)                               # none is made again
    call("reproduce.py", "table-5,table-D", *TINY, "--seeds", "3")
    assert Path("README.md").read_text() == first


def test_commands_are_accepted_by_the_scripts():
    """Catches: a flag that a script refuses, a pool that is not found, a run not asked for."""
    settings = reproduce.ReproduceSettings(out=Path("out"), coin=Path("coin"), device="cpu")
    needed = tables.needs(TABLES)
    for recipe, evaluations in needed.items():
        folder = Path(f"out/{recipe}-3")
        folder.mkdir(parents=True)
        made, written = [], []
        for script, *flags in runs.commands(settings, folder, recipe, 3, evaluations):
            flags = list(map(str, flags))
            given = parse(evaluate.EvaluateSettings if script.name == "evaluate.py"
                          else train.command_of(flags)[1], flags)
            assert given.device == "cpu" and given.data == ("coin" if "coin" in recipe else "toy")
            assert given.data == "toy" or given.features.parent == Path("coin")
            assert getattr(given, "phrases", None) is None or given.phrases.is_file()
            assert getattr(given, "init", None) in (None, *made[:1])
            if script.name == "evaluate.py":
                assert given.checkpoint in made
                written.append(given.json)
            else:
                assert given.seed == 3
                made.append(given.out)
        assert [path.stem for path in written] == evaluations
    assert set(needed) == set(RECIPES)
    assert set().union(*needed.values()) == set(EVALUATIONS)


def files():
    """{path: bytes} of all files in the current folder."""
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def test_a_trial_writes_nothing_outside_its_folder(monkeypatch, capsys):
    """Catches: pages or results.json with a trial's numbers; tables that are nowhere, or stale."""
    fake_commands(monkeypatch, FAKE)
    before, trial = files(), ("table-5", *TINY[:-2], "--toy-videos", "16", "--seeds")
    call("reproduce.py", *trial, "3")
    assert capsys.readouterr().out.endswith("out/tables.md\n")
    made = files()
    assert {path for path in made if made[path] != before.get(path)} == {
        Path("out/tables.md"), *Path("out").glob("*-3/*")} and before.keys() <= made.keys()
    assert "--toy-videos', '16'" in Path("out/mask-3/log.txt").read_text()
    table = Path("out/tables.md").read_text()
    assert re.search(r"\| ours +\| 12\.3 +\| 23\.4 +\| 34\.6 +\|", table) and "Table D" not in table
    Path("out").rename("old")
    call("reproduce.py", *trial, "4")
    assert Path("out/tables.md").read_text() == table.replace("forecast: 3;", "forecast: 4;")


def edit(path, change):
    """Write a JSON file anew after change(content)."""
    content = json.loads(Path(path).read_text())
    change(content)
    Path(path).write_text(json.dumps(content))


RUN, TUNED = "out/coin-mask-1/config.json", "out/diffusion-1/classify-25/config.json"
HERE = teacher.digest()[:12]


@pytest.mark.parametrize("flags, change, line", [
    ((), lambda: edit(RUN, lambda content: content["settings"].update(lr=.002)),
     "--lr 0.001: out/coin-mask-1/config.json is of another run, with 0.002; move it away, or "
     "choose another --out"),
    ((), lambda: edit(RUN, lambda content: content["settings"].update(features="a/b-4.9.npz")),
     "--features features-2.95.npz: out/coin-mask-1/config.json is of another run, with a/b-4.9"),
    ((), lambda: edit(TUNED, lambda content: content["settings"].pop("epochs")),
     "--epochs 15.0: out/diffusion-1/classify-25/config.json is of another run, with None; "),
    (("--toy-videos", "30"), lambda: None, "--toy-videos 30: out/diffusion-1/config.json is of "
     "another run, with 6000; "),
    ((), lambda: edit(TUNED, lambda content: content["versions"].update(world="abc")),
     f"out/diffusion-1/classify-25: a run of another embedded world, abc, where this is {HERE}; "),
    ((), lambda: Path("out/diffusion-1/config.json").unlink(), "out/diffusion-1/config.json: "),
    ((), lambda: edit("out/diffusion-1/config.json", lambda content: content.update(settings=[])),
     "out/diffusion-1/config.json: no settings of a run in it; "),
    ((), lambda: Path("experiments/results.json").write_text(json.dumps(
        {"world": teacher.digest(), "mask infill top1.ours": {"1": "2"}})),
     "experiments/results.json: 1 is no finite number; "),
    *(((), lambda content=content: Path("out/diffusion-1/forecast.json").write_text(content),
       "out/diffusion-1/forecast.json: ") for content in (
           "[]", '{"top1": 3}', '{"top1": {"zero_noise": "1"}}')),
    ((), lambda: Path("experiments/results.json").write_text('{"world": "abc"}'), "experiments/"
     f"results.json: numbers of another embedded world, abc, where this is {HERE}; delete the "),
    ((), lambda: Path("experiments/results.json").write_text('{"mask infill top1.ours": {"1": 2}}'),
     "experiments/results.json: numbers of another embedded world, unknown, where this is ")])
def test_runs_of_other_settings_or_worlds_are_refused(monkeypatch, capsys, flags, change, line):
    """Catches: another experiment's run, two worlds in a mean; a file written before the error."""
    settings = reproduce.ReproduceSettings(out=Path("out"), coin=Path("elsewhere"), device="cuda")
    for folder, evaluations in (("coin-mask-1", ["forecast"]),
                                ("diffusion-1", ["classify-25", "forecast"])):
        folder = Path("out", folder)
        folder.mkdir(parents=True)
        for made in runs.commands(settings, folder, folder.name[:-2], 1, evaluations):
            if made[0].name == "train.py":
                begin(made)
        for name in evaluations:
            (folder / f"{name}.json").write_text('{"top1": {}}')
    monkeypatch.setattr(runs, "start", None)
    edit(RUN, lambda content: content["versions"].update(world="of no effect"))
    runs.require_same(reproduce.ReproduceSettings(out=Path("out")))
    change()
    before = files()
    error = fails(capsys, 2, "reproduce.py", "table-5", *TINY[:-2 if flags else None],
                  *flags).split("error: ")[1]
    assert error.startswith(line)
    assert files() == before


def test_a_failed_run_ends_the_others(monkeypatch, capsys):
    """Catches: a failure that is passed over or waits for the rest, a process left running."""
    fake_commands(monkeypatch, "import sys, time\n"
                  "time.sleep(60) if 'out/mask-3' in sys.argv else sys.exit(7)")
    began = time.time()
    assert fails(capsys, 2, "reproduce.py", "table-5", *TINY, "--seeds", "3").endswith(
        "out/diffusion-3: ended with 7; see its log.txt")
    assert time.time() - began < 50


@pytest.mark.parametrize("number, status", [(2, 130), (15, 143)])
def test_a_signal_ends_all_runs(monkeypatch, number, status):
    """Catches: Ctrl-C or SIGTERM that leaves a process behind, starts the next, or ends with 0."""
    fake_commands(monkeypatch, "import time\ntime.sleep(2)\nopen('survived', 'w')")
    assert struck(number, runs, "start", 2, "reproduce.py", "table-5", *TINY, "--seeds",
                  "3,4") == status
    time.sleep(2.5)
    assert not Path("survived").exists()


@pytest.mark.parametrize("flags, line", [
    (("nothing",), "nothing: no such table; there are summary, "),
    (("--seeds", "1,x"), "--seeds 1,x: must be numbers"),
    (("--pages", "gone"), "No such file or directory: ")])
def test_bad_input_is_one_line(capsys, flags, line):
    """Catches: a traceback, or a set of runs begun before the flags are checked."""
    assert line in fails(capsys, 2, "reproduce.py", *TINY, *flags)


# ---- The paper's rows, and ours ------------------------------------------------------------------
@pytest.mark.skipif(not PAPER.is_file(), reason="no paper.tex")
@pytest.mark.parametrize("name", [name for name in TABLES if re.match(r"table-[^5]", name)])
def test_the_papers_rows_are_the_papers(name):
    """Catches: a digit mistyped, a row left out or moved."""
    text = PAPER.read_text(encoding="utf-8")
    rows = [re.findall(r"\d+\.\d+", line.split("Kinetics")[-1]) for line in
            re.sub(r"\n(?=& -- )", "", re.sub(r" \n& ", " & ", text)).split("\n")
            if re.search(r"\\\\", line) and re.search(r"\d+\.\d", line) and "&" in line]
    numbers = [[f"{cell}" for cell in cells if cell != "-"] for label, *cells in
               TABLES[name]["rows"] if label.startswith("paper: ")]
    places = [i for i in range(len(rows)) if rows[i:i + len(numbers)] == numbers]
    assert places, f"{name}: these rows do not stand in the paper in this order"


def test_tables_are_whole():
    """Catches: a row without a cell, a cell taken for text, a table on no page or on two; a picture
    that results.md does not show, or of a cell that no table has."""
    for table in TABLES.values():
        assert all(len(row) == len(table["columns"]) for row in table["rows"])
        assert all(tables.is_ours(cell) for _, *cells in table["rows"] for cell in cells
                   if re.match(r"[a-z]", str(cell)))
    assert len(load_phrases(ROOT / "experiments" / "howto.txt")) == len(grammar.PHRASES)
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    shown = [name for page in pages for name in re.findall(r"<!-- table: (\S+) -->",
                                                           page.read_text(encoding="utf-8"))]
    assert sorted(shown) == sorted(TABLES)
    cells, page = tables.our_cells(TABLES), (ROOT / "docs/results.md").read_text(encoding="utf-8")
    for name, claim in tables.CLAIMS.items():
        assert f"(figures/{name}.png)" in page and {cell for _, cell in claim["rows"]} <= {*cells}


def test_the_pages_tables_are_those_of_the_runs():
    """Catches: a figure typed by hand, or measured again and not written to the page."""
    results = json.loads((ROOT / "experiments/results.json").read_text())
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        assert tables.fill(text, results) == text, page


def test_cells_are_means_over_seeds(monkeypatch):
    """Catches: seeds of another recipe or task, a deviation of one seed, M for M - 1, None as 0."""
    row = ["mask", "mask classify top1.ours", "mask forecast top1.zero_noise",
           "mask classify top1.teacher", "mask infill by_position.1"]
    monkeypatch.setitem(TABLES, "table-D", {"title": "T", "columns": list("abcde"), "rows": [row]})
    for recipe in ("mask", "coin-mask"):
        for seed, value in (("1", 10.0), ("2", 20.0), ("30", 33.0)):
            folder = Path(f"out/{recipe}-{seed}")
            folder.mkdir(parents=True)
            (folder / "classify.json").write_text(json.dumps(
                {"top1": {"ours": value + (recipe != "mask"), "teacher": None}}))
            (folder / "infill.json").write_text('{"by_position": [1, 0.25, 3]}')
    Path("out/mask-1/forecast.json").write_text('{"top1": {"zero_noise": 5}}')
    results = tables.collect(Path("out"), Path("experiments/results.json"))
    assert results[row[1]] == {"1": 10.0, "2": 20.0, "30": 33.0} and row[3] not in results
    text = tables.markdown("table-D", results)
    assert [cell.strip() for cell in text.split("\n")[4].split("|")] == [
        "", "mask", "21.0 ± 11.5", "5.00", "not run", "0.250", ""]
    assert text.endswith(": mask classify, mask infill: 1, 2, 30; mask forecast: 1.\n")


def measured(outcomes):
    """JSON of --task classify: outcomes [[(step, right), ...] of each video]."""
    return {"top1": {}, "by_video": [" ".join(f"{grammar.STEP_ID[step]}:{right:d}"
                                              for step, right in video) for video in outcomes]}


def test_the_gain_is_of_all_seeds_that_have_both_runs():
    """Catches: runs of other seeds paired, the sign, other steps of a kind, points for shares; a
    traceback for a file that another program wrote."""
    seen, new = "crack egg", "fry egg"
    for name, rights in {"diffusion-1": (1, 1, 1, 0), "matching-1": (0, 1, 1, 0),
                         "diffusion-2": (1, 1, 1, 1), "matching-2": (1, 0, 0, 1),
                         "diffusion-3": (0, 0, 0, 0), "matching-40": (1, 1, 1, 1)}.items():
        folder, (a, b, c, d) = Path("out", name), rights
        folder.mkdir(parents=True)
        (folder / "classify.json").write_text(json.dumps(measured(
            [[(seen, a)], [(seen, b), (new, c)], [("open jar", d)]])))
    results = tables.collect(Path("out"), Path("experiments/results.json"))
    means = {kind: results[f"gain classify {kind}.0"] for kind in gain.KINDS}
    assert means == {"all": {"1": 37.5, "2": 37.5}, "held_out": {"1": 50, "2": 50},
                     "motion_only": {"1": 0, "2": 0}}
    assert results["gain classify motion_only.2"] == {"1": 0, "2": 0}
    line = tables.markdown("gain", results).split("\n")[4]
    assert re.search(r"\| not run +\| not run +\| 37\.5 +\| 0\.000 +\| [\d.]+ +\|$", line)
    assert read_json("experiments/results.json").pop("world") == teacher.digest()
    Path("out/matching-2/classify.json").unlink()
    again = tables.collect(Path("out"), Path("experiments/results.json"))
    assert again == results
    Path("out/matching-1/classify.json").write_text(json.dumps(measured([[(new, 1)]] * 3)))
    with pytest.raises(ValueError, match="evaluated on different videos"):
        tables.collect(Path("out"))
    for bad in ('{"by_video": 3}', '{"by_video": ["a:b"]}'):
        Path("out/matching-1/classify.json").write_text(bad)
        with pytest.raises(BadInput, match="classify.json: .*a JSON file of evaluate.py is needed"):
            tables.collect(Path("out"))


def test_the_bootstrap_by_loops():
    """Catches: steps resampled for videos, seeds not, videos weighted alike, another interval."""
    S, V, rng = 3, 60, np.random.default_rng(1)
    size = rng.integers(1, 9, V)
    more = np.array([rng.binomial(size, .8 + .03 * s) - rng.binomial(size, .1) for s in range(S)])
    draw, means = random.Random(2), []
    for _ in range(10_000):
        seeds, videos = draw.choices(range(S), k=S), draw.choices(range(V), k=V)
        total = sum(int(more[s, v]) for s in seeds for v in videos)
        means.append(total / sum(int(size[v]) for s in seeds for v in videos))
    mean, *interval = gain.bootstrap(more, size)
    assert mean == pytest.approx(more.sum() / (S * size.sum()))
    assert interval == pytest.approx(np.quantile(means, [.025, .975]), abs=.004)
    assert gain.bootstrap(np.full((1, 4), 2.), np.full(4, 8)) == (.25, .25, .25)


def test_seen_and_novel_steps_by_loops():
    """Catches: a step that does not occur counted as wrong, the two groups exchanged."""
    values = [None if i % 7 == 0 else float(i) for i in range(len(grammar.STEPS))]
    for novel, name in ((True, "novel"), (False, "seen")):
        own = [value for step, value in zip(grammar.STEPS, values)
               if value is not None and (step in grammar.HELD_OUT) == novel]
        assert tables.number_at({"by_class": values}, f"by_class.{name}") == pytest.approx(
            sum(own) / len(own))


def test_simulated_features_lie_around_the_texts_of_their_steps(capsys):
    """Catches: a window of another step, noise of another length, a refused row; other classes."""
    database = {name: {"subset": "testing", "recipe_type": 0, "duration": 20.0, "annotation": [
        {"id": str(i), "segment": [4.0 * i, 4.0 * i + 4], "label": f"step {i}"}]}
        for i, name in enumerate("ab", start=1)}
    Path("COIN.json").write_text(json.dumps({"database": database}))
    texts = np.random.default_rng(1).standard_normal((3, 400)).astype(np.float32)
    flags = "--annotations", "COIN.json", "--text-embeddings", "T.npz"
    np.savez("T.npz", names=np.array(["step 2", "step 1", ""]), embeddings=texts)
    fails(capsys, 2, "simulate.py", *flags)
    np.savez("T.npz", names=np.array(["step 1", "step 2", ""]), embeddings=texts)
    call("simulate.py", *flags, "--noise", "0.2", "--out", "F.npz")
    texts = torch.nn.functional.normalize(torch.from_numpy(texts), dim=1)
    file = load_features("F.npz")
    for i, name in enumerate("ab"):
        x = torch.from_numpy(file.embedding[file.nearest(name, np.arange(2., 20, 4))]).float()
        for k, row in enumerate(x):
            true = texts[i] if k == i + 1 else texts.mean(0)
            assert abs(torch.cosine_similarity(row, true, dim=0) - 1 / 1.04 ** .5) < .01
