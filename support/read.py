"""Read text files, JSON and lists. What cannot be used is an InputError with the file and line."""
import csv
import json
import re
import unicodedata
import zipfile
import zlib
from contextlib import contextmanager
from pathlib import Path, PurePath

from support.errors import InputError, require

VIDEO_SUFFIXES = (".mp4", ".mkv", ".webm", ".avi", ".mov")
# A line of a phrase pool as released: `phrase,count,concreteness`, where the last may be empty.
COUNTED = re.compile(r'"?(.*?)"?,(\d+),(\d*(?:\.\d+)?)')
# A phrase has a letter, and no separator or mark of another format; no bullet stands before it.
PHRASE = re.compile(r'(?!\d+[.):]|[-*#(])[^;\t"_]*[^\W\d_][^;\t"_]*')
# What a wrong, absent, damaged or dishonest field of a file raises.
WRONG = (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError,
         MemoryError, EOFError, csv.Error, zipfile.BadZipFile, zlib.error)


@contextmanager
def fields_of(where, need):
    """A context manager: a wrong or absent field raises InputError "where: problem; need"."""
    try:
        yield
    except InputError:
        raise
    except WRONG as error:
        raise InputError(f"{where}: {error!r}; {need}") from None


def read_text(path):
    """The text of a UTF-8 file. InputError if it is empty, not UTF-8, or no file: a pipe could wait
    forever."""
    path = Path(path)
    require(path.is_file() or not path.exists(), f"{path}: a file is needed, no folder and no pipe")
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8; save it as UTF-8") from None
    require(text.strip(), f"{path}: the file is empty")
    return text


def read_json(path, need):
    """The content of a JSON file. InputError if it is none; need: what it should hold."""
    with fields_of(path, need):
        return json.loads(read_text(path))


def read_lines(path):
    """[("file:line", text), ...] of the lines that hold text, stripped."""
    lines = enumerate(read_text(path).split("\n"), start=1)
    return [(f"{path}:{number}", line.strip()) for number, line in lines if line.strip()]


def video_name(path):
    """The id of a video's file: its name without the suffix, with accents composed (NFC)."""
    path = PurePath(unicodedata.normalize("NFC", str(path)))
    return path.stem if path.suffix.lower() in VIDEO_SUFFIXES else path.name


# --- Phrases, and names of classes ---
def load_phrases(path):
    """The phrases of a pool, one per line: `phrase`, or `phrase,count,concreteness` as released. A
    header and empty lines are left out."""
    lines = read_text(path).rstrip().split("\n")
    phrases = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or (number == 1 and line.startswith("phrase,")):
            continue
        phrase = line.strip()
        counted = COUNTED.fullmatch(phrase)
        if counted:
            phrase = counted[1].strip()
        require(PHRASE.fullmatch(phrase), f"{path}:{number}: {line[:80]!r} is not `phrase` or "
                "`phrase,count,concreteness`")
        phrases.append(phrase)
    require(len(phrases) > 1, f"{path}: at least two phrases are needed")
    return phrases


def load_names(path):
    """The names of classes, as they are written: line i names class i. Two may be equal."""
    lines = read_text(path).rstrip().split("\n")
    names = [line.strip() for line in lines]
    for number, name in enumerate(names, start=1):
        require(name, f"{path}:{number}: the line is empty; line i must name class i")
    require(len(names) > 1, f"{path}: at least two names are needed")
    return names
