"""Make the runs of tables.toml, and write the tables: `python -m experiments.tables [NAME ...]`.

A run is made once for all tables, in OUT/RECIPE-SEED; the command resumes where it stopped. Its
numbers go to results.json, {cell: {seed: number}}, or {"A - B": what compare.py finds}, and stay
until deleted there; tables, to README.md and docs/, between `<!-- table: X -->` and `<!-- end -->`.
"""
import itertools
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from statistics import mean

from tqdm import tqdm

from experiments.compare import compare
from files.lists import read_text
from support.arguments import Parser
from support.errors import require, run
from support.write import write_json, write_text

ROOT = Path(__file__).resolve().parent.parent
RECIPES, EVALUATIONS, TABLES = tomllib.loads(read_text(ROOT / "experiments/tables.toml")).values()


def cells(names):
    """The cells of ours in these tables: {"RECIPE EVALUATION KEY": its three words}."""
    texts = (text for name in names for row in TABLES[name]["rows"] for text in row[1:])
    return {text: text.split(" ") for text in texts if text.split(" ")[0] in RECIPES}


def publish(out):
    """Add the numbers of the runs in the folder `out` to results.json, and write the tables."""
    path, ours = ROOT / "experiments/results.json", cells(TABLES)
    results = json.loads(read_text(path))
    files = {text: sorted(out.glob(f"{recipe}-[0-9]*/{evaluation}.json"))      # one for each seed
             for text, (recipe, evaluation, _) in ours.items()}
    for text, file in ((text, file) for text in files for file in files[text]):
        number = json.loads(read_text(file))
        for name in ours[text][2].split("."):              # "a.b" is ["a"]["b"]
            number = (number or {}).get(name)
        if isinstance(number, (int, float)):
            results.setdefault(text, {})[file.parent.name.rpartition("-")[2]] = number
    for _, a, b in sum((table["rows"] for table in TABLES.values() if table.get("compared")), []):
        if files[a] and files[b]:
            results[f"{a} - {b}"] = compare(files[a], files[b], ours[a][2], ours[b][2])
    write_json(path, dict(sorted(results.items())))
    mark = rf"(?s)(<!-- table: ({'|'.join(TABLES)}) -->\n).*?(?=<!-- end -->)"
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        page = path.read_text(encoding="utf-8")
        write_text(path, re.sub(mark, lambda at: at[1] + markdown(at[2], results), page))


def make(recipe, seed, args):
    """Make what is missing of a run. InputError if a command fails; its output is in log.txt."""
    folder, lines = args.out.resolve() / f"{recipe}-{seed}", []
    train = ["train.py", "--resume", "--device", args.device, "--seed", seed, "--out"]
    if not any((folder / f"{name}.json").exists() for name in EVALUATIONS):    # none: incomplete
        lines.append([*train, folder, *RECIPES[recipe].split()])
    for name in dict.fromkeys(cell[1] for cell in cells(args.tables).values() if cell[0] == recipe):
        (task, _, labels), file = name.partition("-"), folder / f"{name}.json"
        checkpoint = folder / name if labels else folder
        if labels and not file.exists():
            lines.append([*train, checkpoint, "--stage", "finetune", "--task", task, "--labels",
                          int(labels) / 100, "--init", folder])
        if not file.exists():
            lines.append(["evaluate.py", *EVALUATIONS[name].split(), "--device", args.device,
                          "--checkpoint", checkpoint, "--json", file])
    folder.mkdir(parents=True, exist_ok=True)
    for line in lines:
        with open(folder / "log.txt", "a", encoding="utf-8") as log:
            ended = subprocess.run([sys.executable, *map(str, line)], cwd=ROOT, stdout=log,
                                   stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})
        require(ended.returncode == 0, f"{line[0]} ended with {ended.returncode}; see {log.name}")


def spread_of(numbers):
    """"mean (lowest-highest)" of the numbers of several seeds, or the one number."""
    spread = f" ({min(numbers):.1f}-{max(numbers):.1f})" if len({*numbers}) > 1 else ""
    return f"{mean(numbers):.1f}{spread}"


def markdown(name, results):
    """A table as Markdown: means over seeds (the lowest-the highest), and how many seeds."""
    rows, ours = [], cells([name])
    for label, *texts in TABLES[name]["rows"]:
        found = results.get(" - ".join(texts))
        if found and TABLES[name].get("compared"):
            row = "{ours:.1f}|{theirs:.1f}|{difference:+.1f} ± {error:.1f}|{verdict}|{seeds}"
            rows.append([label, *row.format(**found).split("|")])
        elif not TABLES[name].get("compared"):
            numbers = [[*results.get(text, {}).values()] for text in texts]
            row = [spread_of(row) if row else "not run" if text in ours else text
                   for text, row in zip(texts, numbers)]
            counts = sorted({len(row) for row in numbers if row})
            seeds = ["-".join(map(str, counts[:1] + counts[-1:][len(counts) == 1:]))]
            rows.append([label, *row, *(seeds if "seeds" in TABLES[name]["columns"] else [])])
    return f"**{TABLES[name]['title']}**\n\n{text_table(TABLES[name]['columns'], rows)}\n"


def text_table(header, rows):
    """Lines `| a | b |`, a table of Markdown, of texts: header (n,) and each row (n,)."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def main(args):
    """Make the runs that are missing; after each, write its numbers and the tables."""
    publish(args.out)
    recipes = dict.fromkeys(cell[0] for cell in cells(args.tables).values())
    for seed, recipe in tqdm([*itertools.product(args.seeds.split(","), recipes)], desc="runs"):
        make(recipe, seed, args)
        publish(args.out)


def parse(argv=None):
    """The command line."""
    parser = Parser("Make the runs behind the tables, each once, and write the tables.")
    add = parser.add_argument
    add("tables", nargs="*", metavar="NAME", default=[*TABLES], help="tables of tables.toml")
    add("--seeds", default="300,301,302,303,304", help="of the runs")
    add("--out", type=Path, default=Path("runs/tables"), help="folder of the runs")
    add("--device", default="auto", help="cpu, cuda or mps; auto: a GPU if any")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main, parse)
