"""The rows of the paper's tables, and runs of ours that stand below them: paper_tables.toml."""
import tomllib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Table:
    """Columns are (header, evaluation, key of its JSON); rows (label, number or None, ...)."""
    title: str
    columns: list
    paper: list
    ours: list


def load_tables():
    """{name: flags of train.py} of each recipe, and {name: Table}, as the file has them."""
    content = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return content.pop("recipes"), {name: Table(title=table.pop("title"), **{
        part: [tuple(None if cell == "-" else cell for cell in row) for row in rows]
        for part, rows in table.items()}) for name, table in content.items()}


RECIPES, TABLES = load_tables()
