"""Write whole files: the new one is complete, or the old one stays."""
import json
import os
from pathlib import Path


def write_atomically(path, write):
    """Call write(binary file beside `path`), then rename it to `path`, whose folder may be new.

    A link stays a link: the file that it names is replaced. What is no regular file (a device, a
    pipe) cannot be replaced, so it is written to directly.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        with open(path, "wb") as file:
            write(file)
        return
    target = Path(os.path.realpath(path))
    part = Path(f"{target}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(part, "wb") as file:
            write(file)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def write_text(path, text):
    """Write a UTF-8 text file."""
    write_atomically(path, lambda file: file.write(text.encode()))


def write_json(path, content):
    """Write a JSON file. FloatingPointError if a number is not finite."""
    try:
        text = json.dumps(content, indent=2, allow_nan=False)
    except ValueError as error:
        raise FloatingPointError(f"{path}: not written: {error}") from None
    write_text(path, text + "\n")
