"""The rows of the tables: the paper's, our runs', and those of JSON files of evaluate.py.

A result is (recipe or file, evaluation, JSON object of evaluate.py). A row is (source, label,
cells): "paper", "ours" or a file; a cell is a list of values, one for each seed, or of one text.
"""
import statistics

from evaluation.metrics import largest_bleu1
from experiments.paper_tables import TABLES
from experiments.runs import read_object, result_path
from files.listings import load_phrases, load_steps
from support.command import require, write_json, write_text
from toy import grammar

NOVEL = 0.7               # BLEU-1 with the nearest phrase below which the paper calls a step novel


# ---- Rows of numbers -----------------------------------------------------------------------------
def find_values(results, source, evaluation, key):
    """A cell: content["a"]["b"], for the key "a.b", of each such result that has it."""
    values = []
    for name, kind, content in results:
        if (name, kind) == (source, evaluation):
            for part in key.split("."):
                content = content.get(part) if isinstance(content, dict) else None
            values += [content] * (content is not None)
    return values


def our_rows(table, results):
    """The rows of our runs; each cell has the values of the seeds that exist."""
    def cell_of(cell, column):
        recipe, _, key = (cell or "").partition(" ")
        return find_values(results, recipe, column[1], key or column[2])
    return [("ours", label, list(map(cell_of, cells, table.columns)))
            for label, *cells in table.ours]


def evaluation_of(content):
    """Which evaluation a JSON file of evaluate.py holds."""
    kind = "epic" if content["data"] == "epic" else content["setting"]
    return content["task"] + {"epic": "-epic", "fine-tuned": "-tuned"}.get(kind, "")


# ---- Steps that pre-training had no phrase for ---------------------------------------------------
def open_rows(results, bleu):
    """Accuracy of seen and of novel steps: the mean over those that occur. bleu: (S,), BLEU-1."""
    rows = []
    for source, label, (_, *cells) in our_rows(TABLES["open-vocabulary"], results):
        group = [(b >= NOVEL) == label.startswith("seen") for b in bleu]
        means = [[statistics.mean(known) for values in cell if
                  (known := [v for v, member in zip(values, group) if member and v is not None])]
                 for cell in cells]
        if any(means) or "," not in label:             # files have no exact distribution
            rows.append((source, label, [[str(sum(group))], *means]))
    return rows


# ---- Tables --------------------------------------------------------------------------------------
def build(settings, seeds, needed, contents):
    """All tables, of the results that exist: {name: {"title", "columns", "rows"}}.

    needed: from `runs.needs`; contents: {name: content} of --rows.
    """
    files = [(name, evaluation_of(content), content) for name, content in contents.items()]
    results = [(recipe, evaluation, read_object(path, ("top1",))) for seed in seeds
               for recipe, evaluations in needed.items() for evaluation in evaluations
               if (path := result_path(settings, recipe, seed, evaluation)).exists()]
    steps, pool = grammar.STEPS, grammar.PHRASES
    if settings.steps:
        steps, pool = load_steps(settings.steps), load_phrases(settings.phrases)
    tables = {}
    for name in settings.names():
        table = TABLES[name]
        if name == "open-vocabulary":
            for file, _, content in files:
                count = len(content.get("by_class") or steps)
                require(count == len(steps), f"{file}: {count} classes, but there are {len(steps)} "
                        "steps; give the --steps it was evaluated on")
            read = [("diffusion", *file[1:]) for file in files] or results
            rows = open_rows(read, largest_bleu1(steps, pool))
        else:
            rows = our_rows(table, results) + [
                (file, content["order"], [find_values(files, file, *column[1:])
                                          for column in table.columns])
                for file, _, content in files]
            rows = [row for row in rows if any(row[2])]
        paper = [("paper", label, [[] if cell is None else [cell] for cell in cells])
                 for label, *cells in table.paper]
        tables[name] = {"title": table.title, "columns": [column[0] for column in table.columns],
                        "rows": paper + rows}
    return tables


def text_table(header, rows):
    """Aligned lines `| a | b |`, also Markdown. header (n,) and each row (n,): texts -> one text"""
    widths = [max(3, *map(len, column)) for column in zip(header, *rows)]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines)


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
    saved = {**(read_object(path, ()) if path.exists() else {}), **tables}
    write_json(path, saved)
    write_text(settings.out / "tables.md",
               "\n".join(markdown(**saved[name]) for name in TABLES if name in saved))
    return "\n".join(markdown(**table) for table in tables.values())
