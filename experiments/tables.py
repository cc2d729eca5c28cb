"""The tables of README.md and docs/, written from the numbers of the runs: see reproduce.py.

A cell of ours is "RECIPE EVALUATION KEY", such as "mask forecast top1.oracle"; "gain classify KEY"
is of gain.py. results.json holds {cell: {seed: number}}, and the digest of their embedded world.
"""
import re
import statistics
import tomllib
from contextlib import contextmanager
from math import isfinite
from pathlib import Path

from experiments.gain import KINDS, gain
from files.text import read_json
from support.command import BadInput, require, write_json
from toy import grammar
from toy.teacher import digest

SPECIFIED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
JSON = "a JSON file of evaluate.py"
RECIPES, EVALUATIONS, TABLES, CLAIMS = (
    SPECIFIED[part] for part in ("recipes", "evaluations", "tables", "claims"))
RESULTS = Path(__file__).with_name("results.json")


# --- Cells ---
def is_ours(cell):
    """Whether a cell is a number of ours; the benchmark's cells are "benchmark PART KEY"."""
    recipe, _, rest = str(cell).partition(" ")
    return recipe in ("benchmark", "gain") or (
        recipe in RECIPES and rest.split(" ")[0] in EVALUATIONS)


def our_cells(names):
    """The cells of ours in the tables named, each once."""
    return list(dict.fromkeys(cell for name in names for row in TABLES[name]["rows"] for cell in row
                              if is_ours(cell)))


def needs(names):
    """{recipe: its evaluations}, of the tables named."""
    needed = {}
    for recipe, evaluation, _ in (cell.split(" ", 2) for cell in our_cells(names)):
        if recipe in RECIPES and evaluation not in needed.setdefault(recipe, []):
            needed[recipe].append(evaluation)
    return needed


@contextmanager
def expecting(path):
    """Within it, a value of another type than expected is a BadInput that names the file."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise BadInput(f"{path}: {error}; {JSON} is needed") from None


def number_at(content, key):
    """The number of a JSON object at a key, or None: "a.1" is content["a"][1]. "by_class.seen" and
    "by_class.novel" are means over the embedded world's steps that occur, in the pool and not."""
    for part in key.split("."):
        if part in ("seen", "novel"):
            content = statistics.mean(
                value for step, value in zip(grammar.STEPS, content)
                if value is not None and (step not in grammar.HELD_OUT) == (part == "seen"))
        else:
            content = content[int(part)] if isinstance(content, list) else content.get(part)
        if content is None:
            return None
    if type(content) not in (int, float) or not isfinite(content):
        raise TypeError(f"{key} is no finite number")
    return content


def collect_gains(out):
    """{cell of gain.py: {seed: number}} of the runs in `out`, one number for all seeds together."""
    pairs = {}
    for file in sorted(out.glob("diffusion-*/classify.json")):
        seed = file.parent.name.removeprefix("diffusion-")
        other = out / f"matching-{seed}" / file.name
        pair = [read_json(path, JSON) for path in (file, other) if path.exists()]
        if ["by_video" in content for content in pair] == [True, True]:
            pairs[seed] = pair
    return {f"gain classify {kind}.{i}": dict.fromkeys(pairs, number)
            for kind, steps in KINDS.items() if pairs
            for i, number in enumerate(gain(pairs.values(), steps))}


def collect(out, path=None):
    """Put the numbers of the runs in the folder `out` into results.json (path None: none) -> its
    cells. BadInput if it holds numbers of another embedded world."""
    results = read_json(path, JSON) if path and path.exists() else {"world": digest()}
    world = str(results.pop("world", "unknown"))
    require(world == digest(), f"{path}: numbers of another embedded world, {world[:12]}, where "
            f"this is {digest()[:12]}; delete the file, and the runs will fill it again")
    with expecting(path):
        results = {cell: {seed: +number_at(values, seed) for seed in values}
                   for cell, values in results.items()}
    for cell in our_cells(TABLES):
        recipe, evaluation, key = cell.split(" ", 2)
        for file in out.glob(f"{recipe}-*/{evaluation}.json"):
            seed = file.parent.name.removeprefix(f"{recipe}-")         # "mask-1" of "coin-mask-1"
            with expecting(file):
                number = number_at(read_json(file, JSON), key) if seed.isdecimal() else None
            if number is not None:
                results.setdefault(cell, {})[seed] = number
    with expecting(f"{out}/*/classify.json"):
        results |= {cell: values for cell, values in collect_gains(out).items()
                    if len(values) >= len(results.get(cell, ()))}      # not those of fewer seeds
    if path:
        write_json(path, {"world": world} | {
            cell: dict(sorted(results[cell].items())) for cell in sorted(results)})
    return results


# --- Tables ---
def format_cell(values):
    """{seed: number} as text: mean ± standard deviation over seeds, or "not run"."""
    if not values:
        return "not run"
    mean = statistics.mean(values.values())
    digits = 1 if abs(mean) >= 10 else 2 if abs(mean) >= 1 else 3
    if len(set(values.values())) == 1:
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ± {statistics.stdev(values.values()):.{digits}f}"


def rows_of_claim(name):
    """Title and rows of a claim's picture, [(label, [number of each seed, ...]), ...]; those that
    have a run. BadInput if none has."""
    results = read_json(RESULTS, JSON)
    rows = [(label, [*results[cell].values()]) for label, cell in CLAIMS[name]["rows"]
            if results.get(cell)]
    require(rows, f"{RESULTS}: no run behind {name}; make it with experiments.reproduce")
    return CLAIMS[name]["title"], rows


def text_table(header, rows):
    """Aligned lines `| a | b |`, also Markdown. header (n,) and each row (n,): texts -> one text"""
    widths = [max(3, *map(len, column)) for column in zip(header, *rows)]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines)


def markdown(name, results):
    """A table as Markdown: its title, its rows, and the seeds that it was made from."""
    rows = [[format_cell(results.get(cell)) if is_ours(cell) else str(cell) for cell in row]
            for row in TABLES[name]["rows"]]
    text = f"**{TABLES[name]['title']}**\n\n{text_table(TABLES[name]['columns'], rows)}\n"
    seeds, runs = {}, {}                   # {"mask forecast": its seeds}, {seeds: [those runs]}
    for recipe, evaluation, cell in ((*cell.split(" ")[:2], cell) for cell in our_cells([name])):
        if recipe != "benchmark":
            seeds.setdefault(f"{recipe} {evaluation}", set()).update(results.get(cell, ()))
    for run, found in seeds.items():
        runs.setdefault(", ".join(sorted(found)) or "not run", []).append(run)
    line = "; ".join(f"{', '.join(same)}: {found}" for found, same in runs.items())
    return text + (f"\nRuns and their seeds: {line}.\n" if line else "")


def fill(page, results):
    """The text of a page with each table between its marks written anew."""
    return re.sub(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", lambda match:
                  match[1] + markdown(match[2], results) + match[3], page, flags=re.DOTALL)
