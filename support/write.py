"""Write whole files: the new one is complete, or the old one stays."""
import json
from pathlib import Path


def write_atomically(path, write):
    """Call write(binary file beside `path`), then rename it to `path`. Its folder may be new."""
    part = Path(f"{path}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(part, "wb") as file:
            write(file)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path, text):
    """Write a UTF-8 text file."""
    write_atomically(path, lambda file: file.write(text.encode()))


def write_json(path, content):
    """Write a JSON file. FloatingPointError if a number is not finite."""
    try:
        write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")
    except ValueError as error:
        raise FloatingPointError(f"{path}: not written: {error}") from None
