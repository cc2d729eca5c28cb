"""Read the plain lists of the field; where one is wrong, say which file and which line.

    file                                           function       gives
    csv of ProcedureVRL and DistantSup, no header  load_released  [Listed, ...]
    csv of EPIC-Kitchens-100                       load_epic      [EpicSegment, ...]
    its table of verbs, or of nouns                load_classes   [name, ...], position i is class i
    step names, line i is class i                  load_steps     [name, ...]
    phrases, with or without counts                load_phrases   [Phrase, ...]
    concreteness of words (Brysbaert et al. 2014)  load_ratings   {word: 1 to 5}
    video ids, one per line                        load_ids       [id, ...]
    Times are seconds. Lines count from 1, classes from 0. Lines without text are passed over.

Every problem of a file is a BadInput, a ValueError, of one line that begins with the file's name.
"""
import csv
import io
import re
from dataclasses import dataclass
from pathlib import Path

from files.annotations import require
from support.command import BadInput

VIDEO_SUFFIXES = (".mp4", ".mkv", ".webm", ".avi", ".mov")
VERBS, NOUNS = 97, 300        # classes of EPIC-Kitchens-100
RELEASED = {"classify": "path label duration start end", "activity": "path label duration",
            "forecast": "path label duration start end"}                   # task: its columns


@dataclass(frozen=True)
class Listed:
    """One line of a released list: what is watched, from start to end in s, and the right label.

    To forecast, that is the history from 0 to the end of a step, and the label of the step after
    it. For an activity it is the whole video. `name` is the stem of the video's file.
    """
    name: str
    label: int
    duration: float
    start: float
    end: float


@dataclass(frozen=True)
class EpicSegment:
    """One action of EPIC-Kitchens-100, in s; verb and noun are None in the test list."""
    name: str                          # narration_id, P01_11_0
    video: str                         # P01_11
    start: float
    end: float
    verb: int | None
    noun: int | None


@dataclass(frozen=True)
class Phrase:
    """One line of a phrase file: its text, how often it was said, how concrete it is (1 to 5)."""
    text: str
    count: int | None = None
    concreteness: float | None = None


def load_released(path, task, classes=None):
    """Read a released list of COIN, or of HowTo100M.

    Args:
        task:    "classify" (their `step`), "forecast" (`next`) or "activity" (`task`). A list for
                 another task is refused: nothing in a line says which it is for, and to classify
                 from the history, or forecast a step that is shown, would look like a result.
        classes: K, if known.
    Returns: [Listed, ...] in the file's order.
    """
    columns, rows, from_zero = RELEASED[task], [], set()
    for where, line in read_lines(path):
        parts = line.split()
        require(len(parts) == len(columns.split()), f"{where}: {len(parts)} columns; to {task}, "
                f"`{columns}` is needed, separated by spaces (no space within a path)")
        name, label = video_name(parts[0]), class_number(where, "label", parts[1], classes)
        times = [seconds(where, text) for text in parts[2:]]
        duration, start, end = times if len(times) == 3 else (times[0], 0.0, times[0])
        require(start <= end, f"{where}: its end, {end:g} s, is before its start, {start:g} s")
        require(task != "forecast" or start == 0, f"{where}: starts at {start:g} s; in a list for "
                "forecasting (`next`) all histories start at 0; is it the list of steps?")
        require(task != "classify" or start > 0 or name not in from_zero, f"{where}: {name} from "
                "0 s again, as in a list for forecasting (`next`); that of steps is needed")
        from_zero |= {name} if start == 0 else set()
        rows.append(Listed(name, label, duration, start, end))
    return rows


def load_epic(path, verbs=VERBS, nouns=NOUNS):
    """Read EPIC_100_train.csv, _validation.csv or _test_timestamps.csv (8 columns, no labels).

    Only the timestamps are used: the frame numbers belong to frames cut out at a rate of their own.

    Returns: [EpicSegment, ...] in the file's order.
    """
    segments = []
    for where, row in read_table(path, ("narration_id", "video_id", "start_timestamp",
                                        "stop_timestamp")):
        start, end = (clock(where, row[key]) for key in ("start_timestamp", "stop_timestamp"))
        require(start <= end, f"{where}: its end, {end:g} s, is before its start, {start:g} s")
        labels = [None, None]
        if "verb_class" in row or "noun_class" in row:
            require("verb_class" in row and "noun_class" in row, f"{where}: verb_class or "
                    "noun_class alone; both are needed, or none as in the test list")
            labels = [class_number(where, key, row[key], classes)
                      for key, classes in (("verb_class", verbs), ("noun_class", nouns))]
        segments.append(EpicSegment(row["narration_id"], row["video_id"], start, end, *labels))
    return segments


def load_classes(path):
    """Names of EPIC_100_verb_classes.csv (97) or EPIC_100_noun_classes.csv (300): column `key`."""
    names = []
    for where, row in read_table(path, ("id", "key")):
        require(row["id"] == str(len(names)), f"{where}: id is {row['id']!r:.40}; it must be "
                f"{len(names)}: row by row from 0")
        names.append(row["key"])
    return names


def load_steps(path):
    """Names of the classes: line i is class i. Two classes may have the same name (COIN has 29)."""
    lines = read_lines(path)
    for i, (where, _) in enumerate(lines):
        require(where == f"{path}:{i + 1}", f"{path}:{i + 1}: no text, which leaves the class of "
                "every later line in doubt; remove the line, or name the class")
    require(len(lines) > 1, f"{path}: one class: nothing to choose from; at least two are needed")
    return [line for _, line in lines]


def load_phrases(path):
    """Read `phrase` or `phrase,count,concreteness` per line; the last may be left empty.

    A phrase may hold commas (some of COIN's steps do): only numbers at the end are columns, and
    the first line says whether all lines have them.
    """
    phrases = []
    for where, line in read_lines(path):
        text, count, rating = re.fullmatch(r"(.*?)(?:,(\d{1,12}),([\d.]{0,9}))?", line).groups()
        require(text.strip(), f"{where}: no phrase before the first comma")
        require(not phrases or (count is None) == (phrases[0].count is None), f"{where}: "
                f"{line[:80]!r}: `phrase` on every line, or `phrase,count,concreteness` on every "
                "line, is needed; the lines before it have the other")
        rating = seconds(where, rating, "concreteness") if rating else None
        phrases.append(Phrase(text.strip(), None if count is None else int(count), rating))
    require(len(phrases) > 1, f"{path}: one phrase: nothing to choose from; at least two are "
            "needed")
    return phrases


def load_ratings(path):
    """Concreteness by word, in lower case, from a table with columns Word and Conc.M (1 to 5).

    Columns are separated by tabs, as published, or by commas.
    """
    first = read_text(path).split("\n", 1)[0]
    rows = read_table(path, ("Word", "Conc.M"), "\t" if "\t" in first else ",")
    return {row["Word"].lower(): seconds(where, row["Conc.M"], "Conc.M") for where, row in rows}


def load_ids(path):
    """Video ids, each once, in the file's order. A released list serves too: its first column."""
    ids = {}
    for _, line in read_lines(path):
        listed = re.fullmatch(r"(\S+) \d+ [\d.]+(?: [\d.]+ [\d.]+)?", line)
        ids[video_name(listed[1] if listed else line)] = True
    return list(ids)


# ------------------------------------------------------------------------------------------------
# Lines and fields
# ------------------------------------------------------------------------------------------------
def read_text(path):
    """A UTF-8 file without its byte order mark. BadInput if unreadable or without text."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; a readable file is needed") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: {error.reason} at byte {error.start}; save it as UTF-8") from None
    require(text.strip(), f"{path}: the file is empty")
    return text


def read_lines(path):
    """[("file:line", text), ...] of the lines with text."""
    lines = [line.strip() for line in re.split("\r\n|\r|\n", read_text(path))]
    return [(f"{path}:{i}", line) for i, line in enumerate(lines, start=1) if line]


def read_table(path, needed, delimiter=","):
    """[("file:line", {column: text}), ...] of a csv file whose first line names the columns."""
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True, delimiter=delimiter)
    rows = []
    try:
        header = [name.strip() for name in next(reader)]
        absent = [name for name in needed if name not in header]
        require(not absent, f"{path}:1: no column {', '.join(absent)}; {', '.join(needed)} are "
                "needed, named in the first line")
        for row in filter(None, reader):
            where = f"{path}:{reader.line_num}"
            require(len(row) == len(header),
                    f"{where}: {len(row)} columns, but the first line names {len(header)}")
            rows.append((where, dict(zip(header, map(str.strip, row)))))
    except csv.Error as error:
        raise BadInput(f"{path}:{reader.line_num}: not valid csv: {error}") from None
    require(rows, f"{path}: nothing after the first line")
    return rows


def video_name(path):
    """The stem of a video's file; only known suffixes are taken off, since an id may hold a dot."""
    name = path.replace("\\", "/").rsplit("/", 1)[-1]
    return name[:name.rfind(".")] if name.lower().endswith(VIDEO_SUFFIXES) else name


def class_number(where, column, text, classes):
    """A class as int. BadInput if it is none, or not below `classes` where that is known."""
    good = re.fullmatch("[0-9]{1,9}", text) and (classes is None or int(text) < classes)
    require(good, f"{where}: {column} is {text[:40]!r}; it must be an integer from 0"
            + (f" to {classes - 1}" if classes is not None else ""))
    return int(text)


def seconds(where, text, what="a time"):
    """A number from 0 as float: a time in s, or `what`."""
    require(re.fullmatch(r"\d{1,9}(\.\d*)?", text, re.ASCII),
            f"{where}: {what} is {text[:40]!r}; it must be a number from 0")
    return float(text)


def clock(where, text):
    """HH:MM:SS.ss -> s."""
    parts = re.fullmatch(r"(\d{1,4}):([0-5]\d):([0-5]\d(?:\.\d*)?)", text, re.ASCII)
    require(parts, f"{where}: {text[:40]!r} is not a time HH:MM:SS.ss")
    return 3600 * int(parts[1]) + 60 * int(parts[2]) + float(parts[3])
