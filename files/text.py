"""Read text, csv and JSON files: UTF-8, with or without a byte order mark, any line ends.

A file that cannot be used is a BadInput: its name, the line (from 1), the problem, and `need`.
"""
import csv
import io
import json
from collections import Counter
from pathlib import Path

from support.command import BadInput, require


def read_text(path, need="a readable text file", errors="strict"):
    """The text of a file, not only white space; errors="replace" replaces what is not UTF-8."""
    try:
        text = Path(path).read_text("utf-8-sig", errors)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; {need} is needed") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: {error.reason} at byte {error.start}; save it as UTF-8") from None
    require(text.strip(), f"{path}: the file is empty; {need} is needed")
    return text


def read_lines(path):
    """[("file:line", text), ...] of the lines with text, stripped."""
    lines = enumerate(read_text(path).split("\n"), start=1)
    return [(f"{path}:{i}", line.strip()) for i, line in lines if line.strip()]


def read_table(path, columns, need="a csv file", errors="strict"):
    """[("file:line", {column in lower case: text}), ...] of a csv file that names all `columns`."""
    reader = csv.reader(io.StringIO(read_text(path, need, errors)), strict=True)
    rows = []
    try:
        header = [name.strip().lower() for name in next(reader)]
        wrong = [name for name in columns if header.count(name) != 1]
        require(not wrong, f"{path}:1: no column {', '.join(wrong)}, or two; the first line must "
                f"name {', '.join(columns)}; it is {','.join(header)[:80]!r}")
        for row in filter(None, reader):
            where = f"{path}:{reader.line_num}"
            require(len(row) == len(header), f"{where}: {len(row)} columns, but the first line "
                    f"names {len(header)}; a text with a comma must be in quotes")
            rows.append((where, dict(zip(header, map(str.strip, row)))))
    except csv.Error as error:
        raise BadInput(f"{path}:{reader.line_num}: not valid csv: {error}") from None
    return rows


def without_repeats(pairs):
    """A JSON object as a dict; ValueError if a key is there twice, since only one would count."""
    found = dict(pairs)
    if len(found) < len(pairs):
        (key, times), = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {key[:80]!r} is there {times} times, in one object")
    return found


def read_json(path, need, errors="strict"):
    """The content of a JSON file that holds an object: a dict."""
    text = read_text(path, need, errors)
    try:
        content = json.loads(text, object_pairs_hook=without_repeats)
    except (RecursionError, ValueError) as error:      # nested too deeply, a number of 4301 digits
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise BadInput(f"{path}{line}: not valid JSON: {error}; {need} is needed") from None
    require(isinstance(content, dict), f"{path}: no JSON object; {need} is needed")
    return content
