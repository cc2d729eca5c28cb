"""The paper's tables by one command, ours beside them: `python tables.py`.

    name             paper                                         ours, in the embedded world
    forecasting      Table 1, zero-shot and fine-tuned             and bigram, oracle of a softmax
    classification   Table 2, zero-shot and fine-tuned             and a linear layer on the teacher
    epic             Table 3                                       - (rows of --rows)
    ablation         Table 4: matching, mask, diffusion            the same
    inference        Table 5: zero noise, expectation, oracle      the same
    activity         Table A                                       the same
    concepts         Table B: phrases that are near a new step     the steps held out
    open-vocabulary  Fig. A: steps by BLEU-1 with the phrases      the same
    step-source      Table C: wikiHow or narrations                how-to sentences, howto.txt
    backbone         Table D: TimeSformer or MViT                  the same
    targets          -                                             teacher: vision, with narration

A run is made once (table_runs.py), and stands in every table that names its recipe
(paper_tables.py). Stopped, the same command goes on. All recipes of a seed come before the next, so
that the tables of an unfinished set are whole, of fewer seeds.
"""
import statistics

from experiments import paper_tables
from experiments.paper_tables import NOVEL, TABLES
from support.command import BadInput, run, write_atomically, write_json
from settings_optional import TablesSettings
from experiments.runs import make_all, needs, read_json, require_same, result_path, split_cell

OPEN = ("concepts", "open-vocabulary")
SMALL_WORDS = frozenset("a an and for from in into my of off on or out the to up with your".split())


# ------------------------------------------------------------------------------------------------
# Rows: (whose, label, a list of values or a text for each column)
# ------------------------------------------------------------------------------------------------
def look_up(content, key):
    """content["a"]["b"] for the key "a.b"; None where there is none."""
    for part in key.split("."):
        content = content.get(part) if isinstance(content, dict) else None
    return content


def paper_rows(rows):
    """The paper's rows: one value for each column, as it is printed."""
    return [("paper", label, [[] if cell is None else [cell] for cell in cells])
            for label, *cells in rows]


def our_rows(table, results):
    """Each cell: the values of its number over the seeds that are there.

    results: {(recipe, seed, evaluation): content}.
    """
    rows = []
    for label, *cells in table.ours:
        row = []
        for cell, column in zip(cells, table.columns):
            recipe, evaluation, key = split_cell(cell, column) if cell else (None, None, "")
            row.append([value for (r, _, e), content in results.items()
                        if (r, e) == (recipe, evaluation)
                        and (value := look_up(content, key)) is not None])
        rows.append(("ours", label, row))
    return [row for row in rows if any(row[2])]


def evaluation_of(content):
    """Which evaluation a JSON file of evaluate.py holds."""
    if content["data"] == "epic":
        return paper_tables.EPIC
    return content["task"] + "-tuned" * (content["setting"] == "fine-tuned")


def file_rows(table, files):
    """A row for each file that has a number for one of the table's columns."""
    rows = []
    for name, content in files.items():
        values = [look_up(content, key) if evaluation == evaluation_of(content) else None
                  for _, evaluation, key in table.columns]
        if any(value is not None for value in values):
            rows.append((name, content["order"], [[] if v is None else [v] for v in values]))
    return rows


def shown(values):
    """Values of a cell -> text: mean ± standard deviation over seeds; "-" where there is none."""
    if not values or isinstance(values[0], str):
        return values[0] if values else "-"
    mean = statistics.mean(values)
    text = f"{mean:.1f}" if abs(mean) >= 1 or not mean else f"{mean:.2g}"
    return text + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def markdown(title, columns, rows):
    """A table as text. The last column counts the seeds of a row of ours."""
    header, lines = ["", "", *columns, "seeds"], []
    for whose, label, cells in rows:
        seeds = max(sum(not isinstance(value, str) for value in values) for values in cells)
        lines.append([whose, label, *map(shown, cells),
                      str(seeds) if whose == "ours" and seeds else ""])
    widths = [max(len(line[i]) for line in (header, *lines)) for i in range(len(header))]
    lines = [[text.ljust(width) for text, width in zip(line, widths)] for line in
             (header, ["-" * max(width, 3) for width in widths], *lines)]
    return "\n".join([f"**{title}**", "", *("| " + " | ".join(line) + " |" for line in lines), ""])


# ------------------------------------------------------------------------------------------------
# Steps that pre-training had no phrase for
# ------------------------------------------------------------------------------------------------
def vocabulary(settings):
    """Steps, the pool of phrases, and the BLEU-1 of each step with the nearest phrase."""
    from toy import grammar
    from files.listings import load_phrases, load_steps
    from evaluation.metrics import largest_bleu1
    steps, pool = grammar.STEPS, grammar.PHRASES
    if settings.steps:
        steps = load_steps(settings.steps)
        pool = [phrase.text for phrase in load_phrases(settings.phrases)]
    return steps, pool, largest_bleu1(steps, pool)


def concept_rows(steps, pool, bleu, most=3):
    """Novel steps, and the phrases that share the most words with them, earlier ones first.

    The paper's steps where they are in the label set, else the first ten.
    """
    novel = [step for step, score in zip(steps, bleu) if score < NOVEL]
    same = [step for step, _ in paper_tables.CONCEPTS if step in novel]
    rows = []
    for step in same or novel[:10]:
        words = set(step.lower().split()) - SMALL_WORDS
        shared = [len(words & set(phrase.lower().split())) for phrase in pool]
        near = sorted(range(len(pool)), key=lambda i: (-shared[i], i))[:most]
        rows.append(("ours", step, [[", ".join(pool[i] for i in near if shared[i]) or "--"]]))
    return rows


def by_task(results, steps, key="by_class"):
    """{evaluation: [(S,) percent or None, one for each run]} of zero-shot results."""
    found = {paper_tables.CLASSIFY: [], paper_tables.FORECAST: []}
    for name, evaluation, content in results:
        if evaluation in found and (values := look_up(content, key)) is not None:
            if len(values) != len(steps):
                raise BadInput(f"{name}: {len(values)} classes, but there are "
                               f"{len(steps)} steps; give the --steps it was evaluated on")
            found[evaluation].append(values)
    return found


def open_rows(bleu, found, whose=""):
    """Accuracy of seen and of novel steps: the mean over the steps of a group that occur."""
    seen, rows = [b >= NOVEL for b in bleu], []
    for name, group in (("seen", seen), ("novel", [not b for b in seen])):
        cells = [[statistics.mean(values) for run in runs if
                  (values := [v for v, member in zip(run, group) if member and v is not None])]
                 for runs in found.values()]
        rows.append(("ours", name + whose, [[str(sum(group))], *cells]))
    return [row for row in rows if not whose or any(row[2][1:])]


def draw_open(path, bleu, found):
    """The chart of Fig. A: of each step the mean accuracy over the runs."""
    from experiments import charts
    accuracy = {}
    for title, runs in zip(("classification", "forecasting"), found.values()):
        known = [[value for value in values if value is not None] for values in zip(*runs)]
        if runs:
            accuracy[title] = [statistics.mean(values) / 100 if values else float("nan")
                               for values in known]
    try:
        charts.save(charts.plot_open_vocabulary(bleu, accuracy), path)
    except BadInput as error:                              # matplotlib is optional
        print(f"{path} is not drawn: {error}")


# ------------------------------------------------------------------------------------------------
# The command
# ------------------------------------------------------------------------------------------------
def open_vocabulary(settings, words, results, files, draw):
    """The table of Fig. A, of --rows or else of the diffusion's runs; draw: the chart as well."""
    steps, _, bleu = words
    runs = [(name, evaluation_of(content), content) for name, content in files.items()] or [
        (recipe, evaluation, content) for (recipe, _, evaluation), content in results.items()
        if recipe == "diffusion"]
    found, exact = by_task(runs, steps), by_task(runs, steps, "by_class_bayes")
    if draw and any(found.values()):
        draw_open(settings.out / "open-vocabulary.png", bleu, found)
    return ("Fig. A: steps by BLEU-1 with the phrases, seen from 0.7, zero-shot",
            ["steps", "classification", "forecasting"],
            paper_rows(paper_tables.OPEN_VOCABULARY) + open_rows(bleu, found)
            + open_rows(bleu, exact, ", forecast by the exact distribution"))


def build(settings, names, seeds, needed, files, draw=False):
    """All tables from what is there: {name: (title, columns, rows)}."""
    results = {(recipe, seed, evaluation): read_json(path, ("top1",)) for seed in seeds
               for recipe, evaluations in needed.items() for evaluation in evaluations
               if (path := result_path(settings, recipe, seed, evaluation)).exists()}
    tables, words = {}, vocabulary(settings) if set(OPEN) & set(names) else None
    for name in names:
        if name == "open-vocabulary":
            tables[name] = open_vocabulary(settings, words, results, files, draw)
        elif name == "concepts":
            tables[name] = ("Table B: new steps", ["phrases that share a verb or a noun"],
                            paper_rows(paper_tables.CONCEPTS) + concept_rows(*words))
        else:
            table = TABLES[name]
            rows = paper_rows(table.paper) + our_rows(table, results) + file_rows(table, files)
            tables[name] = table.title, [column[0] for column in table.columns], rows
    return tables


def save(settings, tables):
    """Write tables.json and tables.md, beside the other tables that are there; gives the text."""
    path, there = settings.out / "tables.json", {}
    if path.exists():
        there = read_json(path, ())
    there |= {name: {"title": title, "columns": columns, "rows": rows}
              for name, (title, columns, rows) in tables.items()}
    write_json(path, there)
    text = "\n".join(markdown(**there[name]) for name in (*TABLES, *OPEN) if name in there)
    write_atomically(settings.out / "tables.md", lambda file: file.write(text.encode()))
    return "\n".join(markdown(*table) for table in tables.values())


def main(settings):
    """Make the runs that are missing, and print the tables."""
    names = [*TABLES, *OPEN] if settings.tables == "all" else settings.tables.split(",")
    unknown = [name for name in names if name not in (*TABLES, *OPEN)]
    if unknown:
        raise BadInput(f"{unknown[0]}: no such table; there are {', '.join((*TABLES, *OPEN))}")
    seeds = [int(seed) for seed in settings.seeds.split(",")]
    files = {name: read_json(name, ("task", "data", "setting", "order", "top1"))
             for name in (settings.rows.split(",") if settings.rows else ())}
    needed = {} if settings.steps else needs(names)
    require_same(settings)
    for _ in make_all(settings, seeds, {} if files else needed):
        save(settings, build(settings, names, seeds, needed, files))
    print(save(settings, build(settings, names, seeds, needed, files, draw=True)))
    print(f"{settings.out}/tables.md, tables.json")


if __name__ == "__main__":
    run(main, TablesSettings)
