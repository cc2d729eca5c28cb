"""The rows of the paper's tables, and which runs of ours stand below them: see paper_tables.toml."""
import tomllib
from dataclasses import dataclass
from pathlib import Path

# name: the flags of train.py that differ from the defaults. howto.txt is in this file's folder.
RECIPES = {
    "diffusion": {},
    "mask": {"order": "mask"},
    "matching": {"order": "none"},
    "howto": {"phrases": "howto.txt"},
    "distant": {"order": "none", "phrases": "howto.txt", "targets": "narration"},
    "both": {"targets": "both"},
    "mvit": {"encoder": "mvit"},
}
CLASSIFY, FORECAST, EPIC = "classify", "forecast", "classify-epic"     # some of the evaluations
NOVEL = 0.7               # BLEU-1 with the nearest phrase below which the paper calls a step novel


@dataclass(frozen=True)
class Table:
    """One table: columns are (header, evaluation, key of its JSON); rows (label, cell, ...).

    None: there is no such number.
    """
    title: str
    columns: list
    paper: list
    ours: list


def load_tables():
    """{name: Table} of the file, in its order."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return {name: Table(title=table.pop("title"), **{
        part: [tuple(None if cell == "-" else cell for cell in row) for row in rows]
        for part, rows in table.items()}) for name, table in tomllib.loads(text).items()}


TABLES = load_tables()
