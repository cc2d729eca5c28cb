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
from support.arguments import Parser
from support.errors import require, run_command
from support.read import read_text
from support.write import write_json, write_text

ROOT = Path(__file__).resolve().parent.parent
RECIPES, EVALUATIONS, TABLES = tomllib.loads(read_text(ROOT / "experiments/tables.toml")).values()


def cells(names):
    """The cells of ours in these tables: {"RECIPE EVALUATION KEY": its three words}."""
    found = {}
    for name in names:
        for row in TABLES[name]["rows"]:
            for text in row[1:]:
                words = text.split(" ")
                if words[0] in RECIPES:
                    found[text] = words
    return found


def number_at(content, key):
    """The number of a JSON's content at "a.b", ["a"]["b"]; None if there is none."""
    for name in key.split("."):
        if not isinstance(content, dict):
            return None
        content = content.get(name)
    return content if isinstance(content, (int, float)) else None


def collect_numbers(out, results):
    """Add the numbers of the runs in the folder `out` to results: of each cell and, where a row
    compares two, what compare.py finds."""
    ours, files = cells(TABLES), {}
    for text, (recipe, evaluation, key) in ours.items():
        files[text] = sorted(out.glob(f"{recipe}-[0-9]*/{evaluation}.json"))   # one for each seed
        for file in files[text]:
            number, seed = number_at(json.loads(read_text(file)), key), file.parent.name
            if number is not None:
                results.setdefault(text, {})[seed.rpartition("-")[2]] = number
    for table in TABLES.values():
        if not table.get("compared"):
            continue
        for a, b in (row[2:4] for row in table["rows"]):
            if files[a] and files[b]:
                results[f"{a} - {b}"] = compare_cells(files[a], files[b], ours[a][2], ours[b][2])


def compare_cells(ours, theirs, column, with_column):
    """What compare.py finds of two lists of files, and the same without look-alikes ("distinct"),
    None for a column that is already of a part of the examples."""
    found = compare(ours, theirs, column, with_column)
    found["distinct"] = None
    if column != "look_alikes" and "." not in column:
        found["distinct"] = compare(ours, theirs, f"distinct.{column}", f"distinct.{with_column}")
    return found


def publish(out):
    """Add the numbers of the runs in the folder `out` to results.json, and write the tables."""
    path = ROOT / "experiments/results.json"
    results = json.loads(read_text(path))
    collect_numbers(out, results)
    write_json(path, dict(sorted(results.items())))
    mark = rf"(?s)(<!-- table: ({'|'.join(TABLES)}) -->\n).*?(?=<!-- end -->)"

    def filled(at):
        """A table where a page has its mark."""
        return at[1] + markdown(at[2], results)
    pages = [ROOT / "README.md"] + list((ROOT / "docs").glob("*.md"))
    for page in pages:
        text = page.read_text(encoding="utf-8")
        write_text(page, re.sub(mark, filled, text))


def evaluation_command(name, checkpoint):
    """The command line that makes an evaluation of a checkpoint, without what `make_run` adds."""
    flags = EVALUATIONS[name].split()
    if name == "probes":
        return ["-m", "experiments.probes", checkpoint] + flags
    return ["evaluate.py", "--checkpoint", checkpoint] + flags


def missing_commands(recipe, seed, args):
    """The command lines that make what a run still lacks: [["train.py", ...], ...]."""
    folder, lines = args.out.resolve() / f"{recipe}-{seed}", []
    train = ["train.py", "--resume", "--device", args.device, "--seed", seed, "--out"]
    made = [name for name in EVALUATIONS if (folder / f"{name}.json").exists()]
    if not made:                               # the run may be incomplete
        lines.append(train + [folder] + RECIPES[recipe].split())
    asked = [evaluation for owner, evaluation, _ in cells(args.tables).values() if owner == recipe]
    for name in dict.fromkeys(asked):
        if name in made:
            continue
        (task, _, labels), checkpoint = name.partition("-"), folder
        if labels:
            checkpoint = folder / name
            lines.append(train + [checkpoint, "--stage", "finetune", "--task", task, "--labels",
                                  int(labels) / 100, "--init", folder])
        file = folder / f"{name}.json"
        line = evaluation_command(name, checkpoint)
        lines.append(line + ["--device", args.device, "--json", file])
    return lines


def make_run(recipe, seed, args):
    """Make what is missing of a run. InputError if a command fails; its output is in log.txt."""
    folder = args.out.resolve() / f"{recipe}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    for line in missing_commands(recipe, seed, args):
        command = [sys.executable] + [str(word) for word in line]
        with open(folder / "log.txt", "a", encoding="utf-8") as log:
            ended = subprocess.run(command, cwd=ROOT, stdout=log, stderr=log,
                                   env=os.environ | {"OMP_NUM_THREADS": "1"})
        script = line[1] if line[0] == "-m" else line[0]
        require(ended.returncode == 0, f"{script} ended with {ended.returncode}; see {log.name}")


def spread_of(numbers):
    """"mean (lowest-highest)" of the numbers of several seeds, or the one number."""
    spread = f" ({min(numbers):.1f}-{max(numbers):.1f})" if len(set(numbers)) > 1 else ""
    return f"{mean(numbers):.1f}{spread}"


def compared_row(label, of, found, claimed):
    """A row of what `compare_cells` found: both shares, the differences with their margins, whether
    it is what is `claimed` ("above" or "equal"), how many seeds."""
    verdict = "shown"
    if found["verdict"] != claimed:
        verdict = f"not shown: {found['verdict']}"
    distinct = "-"
    if found["distinct"]:
        distinct = f"{difference_of(found['distinct'])}: {found['distinct']['verdict']}"
    return [label, of, f"{found['ours']:.1f}", f"{found['theirs']:.1f}", difference_of(found),
            distinct, verdict, found["seeds"]]


def difference_of(found):
    """The difference that compare.py found, with its margin."""
    return f"{found['difference']:+.1f} ± {found['margin']:.1f}"


def plain_row(label, texts, results, seeds):
    """A row of cells: ours as means over seeds (the lowest-the highest), "not run" without numbers;
    others as they are. seeds: whether it ends with how many seeds our numbers have."""
    row, counts = [label], []
    for text in texts:
        if text in results:
            numbers = list(results[text].values())
            counts.append(len(numbers))
            row.append(spread_of(numbers))
        elif text.split(" ")[0] in RECIPES:
            row.append("not run")
        else:
            row.append(text)
    if seeds:
        fewest, most = min(counts, default=""), max(counts, default="")
        count = str(most) if fewest == most else f"{fewest}-{most}"
        row.append(count)
    return row


def markdown(name, results):
    """A table as Markdown."""
    table, rows = TABLES[name], []
    for row in table["rows"]:
        if not table.get("compared"):
            rows.append(plain_row(row[0], row[1:], results, "seeds" in table["columns"]))
            continue
        label, of, a, b = row[:4]
        claimed = row[4] if len(row) > 4 else "above"
        if f"{a} - {b}" in results:
            rows.append(compared_row(label, of, results[f"{a} - {b}"], claimed))
    return f"**{table['title']}**\n\n{text_table(table['columns'], rows)}\n"


def text_table(header, rows):
    """Lines `| a | b |`, a table of Markdown, of texts: header (n,) and each row (n,)."""
    lines = [header, ["---"] * len(header)] + rows
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(args):
    """Make the runs that are missing; after each, write its numbers and the tables."""
    publish(args.out)
    recipes = dict.fromkeys(cell[0] for cell in cells(args.tables).values())
    runs = list(itertools.product(args.seeds.split(","), recipes))
    for seed, recipe in tqdm(runs, desc="runs"):
        make_run(recipe, seed, args)
        publish(args.out)


def parse(argv=None):
    """The command line."""
    parser = Parser("Make the runs behind the tables, each once, and write the tables.")
    add = parser.add_argument
    add("tables", nargs="*", metavar="NAME", default=list(TABLES), help="tables of tables.toml")
    add("--seeds", default="300,301,302,303,304", help="of the runs")
    add("--out", type=Path, default=Path("runs/tables"), help="folder of the runs")
    add("--device", default="auto", help="cpu, cuda or mps; auto: a GPU if any")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run_command(main, parse)
