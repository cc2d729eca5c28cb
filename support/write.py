"""Whole files: a new one is complete, or the old one stays."""
import json
import os
from pathlib import Path


def write_atomically(path, write):
    """Call write(binary file beside `path`), then rename it to `path`."""
    temporary = Path(f"{path}.{os.getpid()}.part")
    try:
        with open(temporary, "wb") as file:
            write(file)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path, text):
    """Write a UTF-8 text file."""
    write_atomically(path, lambda file: file.write(text.encode()))


def write_json(path, content):
    """Write a JSON file. Raises FloatingPointError if a number is not finite."""
    try:
        text = json.dumps(content, indent=2, allow_nan=False)
    except ValueError as error:
        raise FloatingPointError(f"{path}: not written: {error}") from None
    write_text(path, text + "\n")
