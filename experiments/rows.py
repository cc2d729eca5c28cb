"""The rows of the tables: the paper's, our runs', and those of JSON files of evaluate.py.

A row is (source, label, cells). source: "paper", "ours" or a file's name. A cell: a list of values,
one for each seed, or of one text; empty: a dash. S steps.
"""
import statistics

from evaluation.metrics import largest_bleu1
from experiments import charts, paper_tables
from experiments.paper_tables import CLASSIFY, FORECAST, NOVEL, TABLES, split_cell
from experiments.runs import read_json, result_path
from experiments.text_table import text_table
from files.listings import load_phrases, load_steps
from support.command import BadInput, write_json, write_text
from toy import grammar

SMALL_WORDS = frozenset("a an and for from in into my of off on or out the to up with your".split())


# ------------------------------------------------------------------------------------------------
# Rows of numbers
# ------------------------------------------------------------------------------------------------
def look_up(content, key):
    """content["a"]["b"] for the key "a.b"; None if there is none."""
    for part in key.split("."):
        content = content.get(part) if isinstance(content, dict) else None
    return content


def paper_rows(rows):
    """The paper's rows: one value for each column, as it is printed."""
    return [("paper", label, [[] if cell is None else [cell] for cell in cells])
            for label, *cells in rows]


def our_rows(table, results):
    """Each cell: the values of its number over the seeds that exist.

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
    return rows


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


# ------------------------------------------------------------------------------------------------
# Steps that pre-training had no phrase for
# ------------------------------------------------------------------------------------------------
def vocabulary(settings):
    """Steps, the pool of phrases, and the BLEU-1 of each step with the nearest phrase."""
    steps, pool = grammar.STEPS, grammar.PHRASES
    if settings.steps:
        steps, pool = load_steps(settings.steps), load_phrases(settings.phrases)
    return steps, pool, largest_bleu1(steps, pool)


def concept_rows(steps, pool, bleu, most=3):
    """Novel steps, and the phrases that share the most words with them, earlier ones first.

    The paper's steps if they are in the label set, else the first ten.
    """
    novel = [step for step, score in zip(steps, bleu) if score < NOVEL]
    same = [step for step, _ in TABLES["concepts"].paper if step in novel]
    rows = []
    for step in same or novel[:10]:
        words = set(step.lower().split()) - SMALL_WORDS
        shared = [len(words & set(phrase.lower().split())) for phrase in pool]
        near = sorted(range(len(pool)), key=lambda i: (-shared[i], i))[:most]
        rows.append(("ours", step, [[", ".join(pool[i] for i in near if shared[i]) or "--"]]))
    return rows


def open_rows(results, bleu):
    """Accuracy of seen and of novel steps: the mean over the steps of a group that occur.

    results: {("diffusion", seed or file, evaluation): content}; bleu (S,).
    """
    for (_, name, evaluation), content in results.items():
        values = content.get("by_class")
        if evaluation in (CLASSIFY, FORECAST) and values and len(values) != len(bleu):
            raise BadInput(f"{name}: {len(values)} classes, but there are {len(bleu)} steps; give "
                           "the --steps it was evaluated on")
    rows = []
    for source, label, (_, *cells) in our_rows(TABLES["open-vocabulary"], results):
        group = [(b >= NOVEL) == label.startswith("seen") for b in bleu]
        means = [[statistics.mean(known) for values in cell if
                  (known := [v for v, member in zip(values, group) if member and v is not None])]
                 for cell in cells]
        if any(means) or "," not in label:             # the exact distribution is the toy world's
            rows.append((source, label, [[str(sum(group))], *means]))
    return rows


def draw_open(path, results, bleu):
    """The chart of Fig. A: the mean accuracy of each step over the runs."""
    accuracy = {}
    _, _, (_, *cells) = our_rows(TABLES["open-vocabulary"], results)[0]
    for title, runs in zip(("classification", "forecasting"), cells):
        known = [[value for value in values if value is not None] for values in zip(*runs)]
        if runs:
            accuracy[title] = [statistics.mean(values) / 100 if values else float("nan")
                               for values in known]
    if not accuracy:
        return
    try:
        charts.save(charts.plot_open_vocabulary(bleu, accuracy), path)
    except BadInput as error:                              # matplotlib is optional
        print(f"{path} is not drawn: {error}")


# ------------------------------------------------------------------------------------------------
# Tables
# ------------------------------------------------------------------------------------------------
def build(settings, seeds, needed, files, draw=False):
    """All tables, of the results that exist: {name: {"title", "columns", "rows"}}.

    needed: from `runs.needs`; files: {name: content} of --rows; draw: the chart of Fig. A as well.
    """
    results = {(recipe, seed, evaluation): read_json(path, ("top1",)) for seed in seeds
               for recipe, evaluations in needed.items() for evaluation in evaluations
               if (path := result_path(settings, recipe, seed, evaluation)).exists()}
    tables = {}
    for name in settings.names():
        table = TABLES[name]
        if name == "concepts":
            rows = concept_rows(*vocabulary(settings))
        elif name == "open-vocabulary":
            steps, pool, bleu = vocabulary(settings)
            read = {("diffusion", file, evaluation_of(content)): content
                    for file, content in files.items()} or results
            rows = open_rows(read, bleu)
            if draw:
                draw_open(settings.out / "open-vocabulary.png", read, bleu)
        else:
            rows = [row for row in our_rows(table, results) if any(row[2])]
            rows += file_rows(table, files)
        tables[name] = {"title": table.title, "columns": [column[0] for column in table.columns],
                        "rows": paper_rows(table.paper) + rows}
    return tables


def format_cell(values):
    """Values of a cell -> text: mean ± standard deviation over seeds; "-" for none."""
    if not values or isinstance(values[0], str):
        return values[0] if values else "-"
    mean = statistics.mean(values)
    text = f"{mean:.1f}" if abs(mean) >= 1 or not mean else f"{mean:.2g}"
    return text + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def markdown(title, columns, rows):
    """A table as text. The last column counts the seeds of a row of ours."""
    lines = []
    for source, label, cells in rows:
        seeds = max(sum(not isinstance(value, str) for value in values) for values in cells)
        lines.append([source, label, *map(format_cell, cells),
                      str(seeds) if source == "ours" and seeds else ""])
    return f"**{title}**\n\n{text_table(['', '', *columns, 'seeds'], lines)}\n"


def save(settings, tables):
    """Add the tables to tables.json and tables.md. Returns: their text."""
    path = settings.out / "tables.json"
    saved = {**(read_json(path, ()) if path.exists() else {}), **tables}
    write_json(path, saved)
    write_text(settings.out / "tables.md",
               "\n".join(markdown(**saved[name]) for name in TABLES if name in saved))
    return "\n".join(markdown(**table) for table in tables.values())
