"""Make the runs of tables.toml, and write the tables: `python -m experiments.tables [NAME ...]`.

A run is trained, fine-tuned and evaluated once for all tables, in OUT/RECIPE-SEED; the command goes
on where it was interrupted. After each run its numbers go to results.json, {cell: {seed: number}}
or, of a difference, {"A - B": {"difference", "error", "seeds"}} by experiments/compare.py. The
tables of README.md and docs/ are written from it, between their marks `<!-- table: NAME -->` and
`<!-- end -->`. Numbers of older code stay until they are deleted there.
"""
import json
import os
import re
import statistics
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from experiments.compare import compare, verdict
from files.lists import read_text
from support.arguments import Parser, count
from support.errors import require, run
from support.write import write_json, write_text

ROOT = Path(__file__).resolve().parent.parent
SPECIFIED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
RECIPES, EVALUATIONS, LABELS, TABLES = (
    SPECIFIED[part] for part in ("recipes", "evaluations", "labels", "tables"))


# --- Cells ---
def cells_in(text):
    """The cells of ours in a text, as [recipe, evaluation, key]: one, or two if it is "A - B"; none
    if the text is shown as it is."""
    cells = [cell.split(" ") for cell in text.split(" - ")]
    ours = all(len(cell) == 3 and cell[0] in RECIPES and cell[1] in EVALUATIONS for cell in cells)
    return cells if ours else []


def rows_of(name):
    """The rows of a table. If it is `compared`, a row [label, A, B] gets "A - B"."""
    rows, compared = TABLES[name]["rows"], TABLES[name].get("compared")
    return [[*row, " - ".join(row[1:])] if compared else row for row in rows]


def cells_of(names):
    """The cells of ours in these tables."""
    return [cell for name in names for row in rows_of(name) for text in row
            for cell in cells_in(text)]


def column_of(key):
    """The column of experiments/compare.py that a number counts, and the part, None if all."""
    kind, name, *_ = f"{key}.".split(".")
    name = kind if kind == "look_alikes" else name
    return name, kind if kind in ("new", "held_out") else None


def collect(out, path):
    """Add the numbers of the runs in the folder `out` to results.json at `path` -> its content."""
    results = json.loads(read_text(path))

    def files_of(recipe, evaluation, _):
        return sorted(out.glob(f"{recipe}-[0-9]*/{evaluation}.json"))      # one for each seed
    for cell in cells_of(TABLES):
        for file in files_of(*cell):
            seed, at = file.parent.name.rpartition("-")[2], json.loads(read_text(file))
            for part in cell[2].split("."):                # "a.1" is ["a"][1]
                at = at[int(part)] if isinstance(at, list) else (at or {}).get(part)
            if at is not None:
                results.setdefault(" ".join(cell), {})[seed] = at
    for text in (text for name in TABLES for row in rows_of(name) for text in row):
        sides = [(files_of(*cell), *column_of(cell[2])) for cell in cells_in(text)]
        if len(sides) == 2 and sides[0][0] and sides[1][0]:
            (ours, column, part), (theirs, other, _) = sides
            found = compare(ours, theirs, column, other, part)
            results[text] = {name: found[name] for name in ("difference", "error", "seeds")}
    write_json(path, {cell: dict(sorted(results[cell].items())) for cell in sorted(results)})
    return results


# --- Runs ---
def commands(recipe, seed, folder, evaluations, args):
    """What makes these evaluations of a run: lists of arguments for python."""
    if recipe.startswith("coin"):
        coin = args.coin.resolve()
        return [["-m", "experiments.coin", "--annotations", coin / "COIN.json", "--texts",
                 coin / "texts.npz", "--seed", seed, "--device", args.device, "--json",
                 folder / "forecast.json", *RECIPES[recipe].split()]]
    train = ["train.py", "--resume", "--seed", seed, "--device", args.device]
    lines = [[*train, "--out", folder, *RECIPES[recipe].split()]]
    for name in evaluations:
        flags, checkpoint = EVALUATIONS[name].split(), folder
        if name in LABELS:
            checkpoint = folder / name
            lines.append([*train, "--stage", "finetune", *flags, "--labels", LABELS[name], "--init",
                          folder, "--out", checkpoint])
        lines.append(["evaluate.py", *flags, "--checkpoint", checkpoint, "--device", args.device,
                      "--json", folder / f"{name}.json"])
    return lines


def make(recipe, seed, args):
    """Make what is missing of a run. InputError if a command fails; its output is in log.txt."""
    folder = args.out.resolve() / f"{recipe}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    there = {name for name in EVALUATIONS if (folder / f"{name}.json").exists()}
    needed = dict.fromkeys(cell[1] for cell in cells_of(args.tables) if cell[0] == recipe)
    left = [name for name in needed if name not in there]
    lines = commands(recipe, seed, folder, left, args) if left else []
    for line in lines[1:] if there else lines:             # if one is there, it was trained
        with open(folder / "log.txt", "a", encoding="utf-8") as log:
            ended = subprocess.run([sys.executable, *map(str, line)], cwd=ROOT, stdout=log,
                                   stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
        require(ended.returncode == 0, f"{folder}: {line[0]} ended with {ended.returncode}; see "
                "its log.txt")
    return folder


# --- Tables ---
def format_cell(text, results):
    """A cell as the page shows it. Ours: the mean over seeds ± their standard deviation; of a
    difference, what experiments/compare.py says."""
    cells = cells_in(text)
    if not cells:
        return text
    if text not in results:
        return "not run"
    if len(cells) == 2:
        return "{difference:+.1f} ± {error:.1f}".format(**results[text])
    sample = [*results[text].values()]
    mean = statistics.mean(sample)
    digits = 1 if abs(mean) >= 10 else 2 if abs(mean) >= 1 else 3
    spread = statistics.stdev(sample) if len(sample) > 1 else 0.0
    return f"{mean:.{digits}f}" + (f" ± {spread:.{digits}f}" if spread else "")


def text_table(header, rows):
    """Aligned lines `| a | b |`, also Markdown, of texts: header (n,) and each row (n,)."""
    widths = [max(3, *map(len, column)) for column in zip(header, *rows)]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines)


def span(seeds):
    """Sorted seeds as text: "100-104", or "100, 102"."""
    if len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1:
        return f"{seeds[0]}-{seeds[-1]}"
    return ", ".join(map(str, seeds))


def is_measured(row, results):
    """True if all differences of a row were run or, if it has none, any number; or none is ours."""
    ours = [text for text in row if cells_in(text)]
    run = [text in results for text in ours if " - " in text]
    return not ours or (all(run) if run else any(text in results for text in ours))


def markdown(name, results):
    """A table as Markdown: its title, the rows that were measured and the seeds behind them, unless
    the table says no."""
    rows, header = [], TABLES[name]["columns"]
    for row in rows_of(name):
        if is_measured(row, results):
            shown = [format_cell(text, results) for text in row]
            if cells_in(row[-1]) and len(shown) < len(header):
                shown.append(verdict(**results[row[-1]]))
            rows.append(shown + [""] * (len(header) - len(shown)))             # of a heading
    rows = [row for row, after in zip(rows, [*rows[1:], ["**"]])           # no heading without rows
            if not (row[0].startswith("**") and after[0].startswith("**"))]
    found = {}                     # {recipe: {evaluation: its seeds}}
    for recipe, evaluation, key in cells_of([name]):
        seeds = results.get(f"{recipe} {evaluation} {key}", {})
        found.setdefault(recipe, {}).setdefault(evaluation, set()).update(map(int, seeds))
    line = []
    for recipe, evaluations in found.items():
        groups = {}                # {seeds: evaluations}
        for evaluation, seeds in evaluations.items():
            groups.setdefault(span(sorted(seeds)), []).append(evaluation)
        groups.pop("", None)
        line += [f"{recipe} {seeds}" + (f" ({', '.join(same)})" if len(groups) > 1 else "")
                 for seeds, same in groups.items()]
    seeds = f"\nSeeds: {'; '.join(line)}.\n" if TABLES[name].get("seeds", True) else ""
    return f"**{TABLES[name]['title']}**\n\n{text_table(header, rows)}\n{seeds}"


def replace(page, name, text):
    """A page with the text between the marks of a table written anew."""
    pattern = rf"(<!-- table: {re.escape(name)} -->\n).*?(<!-- end -->)"
    return re.sub(pattern, lambda match: match[1] + text + match[2], page, flags=re.DOTALL)


def write_pages(out):
    """Collect the numbers, and write all tables into README.md and the pages of docs/."""
    results = collect(out, ROOT / "experiments/results.json")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        page = path.read_text(encoding="utf-8")
        for name in TABLES:
            page = replace(page, name, markdown(name, results))
        write_text(path, page)


def main(args):
    """Make the runs that are missing; after each, write its numbers and the tables."""
    for name in args.tables:
        require(name in TABLES, f"{name}: no such table; there are {', '.join(TABLES)}")
    write_pages(args.out)
    recipes = dict.fromkeys(recipe for recipe, _, _ in cells_of(args.tables))
    runs = [(recipe, seed) for seed in args.seeds for recipe in recipes
            if args.coin or not recipe.startswith("coin")]
    with ThreadPoolExecutor(args.jobs) as pool:            # a failure cancels those not begun
        for done in pool.map(lambda one: make(*one, args), runs):
            write_pages(args.out)
            print(f"{done}: done", flush=True)


def parse(argv=None):
    """The command line."""
    parser = Parser("Make the runs behind the tables, each once, and write the tables.")
    add = parser.add_argument
    add("tables", nargs="*", metavar="NAME", help="tables of tables.toml; without one all")
    add("--seeds", default="100,101,102,103,104", help="of the runs")
    add("--jobs", type=count, default=1, help="runs at a time, with one thread each")
    add("--out", type=Path, default=Path("runs/tables"), help="folder of the runs")
    add("--coin", type=Path, help="folder of COIN.json and texts.npz, for the runs of coin.py")
    add("--device", default="auto", help="cpu, cuda or mps; auto: a GPU if any")
    args = parser.parse_args(argv)
    args.tables, args.seeds = args.tables or [*TABLES], args.seeds.split(",")
    return args


if __name__ == "__main__":
    run(main, parse)
