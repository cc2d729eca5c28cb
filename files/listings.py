"""Read plain lists: csv files, step names, phrases, ids. Times are s; empty lines are skipped."""
import re
from itertools import takewhile
from math import inf

from data import Step, Video
from files.text import read_lines, read_table
from support.command import require

VIDEO_SUFFIXES = (".mp4", ".mkv", ".webm", ".avi", ".mov")
VERBS, NOUNS = 97, 300        # classes of EPIC-Kitchens-100
CLASSES = 10 ** 5             # at most: a typo must not become a list of a billion names
UNKNOWN = -1                  # label of a step whose class a list does not give
NUMBER = re.compile(r'[\s"]*([-+]?([\d.]+(e[-+]?\d+)?|nan|inf)%?)?[\s"]*', re.I)   # or no text


def load_released_csv(path, task):
    """Read a csv of ProcedureVRL or DistantSup (no header) -> [data.Video, ...] in its order. One
    for another task (`step`, `next`, `task` to the authors) would give scores that look real."""
    columns = "path label duration" + (" start end" if task != "activity" else "")
    require(task != "infill", f"{path}: holds no whole videos; --task infill needs COIN.json")
    rows, from_zero, spans = [], set(), set()
    for where, line in read_lines(path):
        parts = line.split()
        require(len(parts) == len(columns.split()), f"{where}: {len(parts)} columns; to {task}, "
                f"`{columns}` is needed, separated by spaces (no space within a path)")
        name, label = video_name(parts[0]), class_number(where, "label", parts[1])
        times = [seconds(where, text) for text in parts[2:]]
        duration, start, end = times if len(times) == 3 else (times[0], 0.0, times[0])
        require_span(where, start, end)
        span = name if task == "activity" else (name, start, end)
        require(span not in spans, f"{where}: {name} has a label for these times before; one is "
                "needed")
        spans.add(span)
        require(task != "forecast" or start == 0, f"{where}: starts at {start:g} s; in a list for "
                "forecasting (`next`) all histories start at 0; is it the list of steps?")
        require(task != "classify" or start > 0 or name not in from_zero, f"{where}: {name} from "
                "0 s again, as in a list for forecasting (`next`); the list of steps is needed")
        from_zero |= {name} if start == 0 else set()
        steps = {"classify": (Step(start, end, label),), "activity": (),
                 "forecast": (Step(0.0, end, UNKNOWN), Step(end, end, label))}[task]
        rows.append(Video(name, None, label, duration, steps))
    return rows


def load_epic(path):
    """EPIC_100_train.csv and the like -> [Video, ...]: of infinite length, since none is given."""
    videos = {}
    for where, row in read_table(path, ("video_id", "start_timestamp", "stop_timestamp")):
        start, end = (clock(where, row[key]) for key in ("start_timestamp", "stop_timestamp"))
        require_span(where, start, end)
        require(row["video_id"], f"{where}: no video_id")
        label = tuple(class_number(where, key, row.get(key, ""), classes) if "verb_class" in row
                      else None for key, classes in (("verb_class", VERBS), ("noun_class", NOUNS)))
        videos.setdefault(row["video_id"], []).append(Step(start, end, label))
    require(videos, f"{path}: nothing after the first line")
    return [Video(name, None, None, inf, tuple(actions)) for name, actions in videos.items()]


def epic_split(path):
    """Which split an official csv of EPIC-Kitchens-100 is, by its name; validation if unnamed."""
    return next((split for split in ("train", "test") if split in path.name), "validation")


def load_steps(path):
    """Names of the classes: line i is class i. Two may have the same name (COIN has 29)."""
    for i, (where, _) in enumerate(read_lines(path), start=1):
        require(where == f"{path}:{i}", f"{path}:{i}: no text, which leaves the class of every "
                "later line in doubt; remove the line, or name the class")
    return load_phrases(path, "class")


def load_phrases(path, kind="phrase"):
    """The phrases of a file of `phrase` or `phrase,count,concreteness` lines, in its order: csv if
    the first line names a column `phrase`. Else a phrase may hold commas: only numbers at the end,
    as many in every line, or empty, are columns."""
    rows, columns, phrases = read_lines(path), None, []
    if "phrase" in re.split(r'[\s"]*,[\s"]*', rows[0][1].lower().strip('"')):
        rows = [(where, row["phrase"]) for where, row in read_table(path, ["phrase"])]
    for where, line in rows:
        fields = re.split(r"[,;\t]", line)
        ends = [*takewhile(NUMBER.fullmatch, reversed(fields))]
        columns = len(ends) if columns is None else columns
        rest = fields[:len(fields) - len(ends)]
        require(rest and "\0" not in line and not any(map(NUMBER.fullmatch, rest)),
                f"{where}: {line[:80]!r} has no {kind}, or NUL, or a number before other text")
        require(len(ends) == columns, f"{where}: {len(ends)} columns of numbers at its end, but "
                f"{columns} in the first line; if that names the columns, one must be `phrase`")
        phrases.append(line[:len(line) - sum(len(end) + 1 for end in ends)].strip('" '))
    require(len(phrases) > 1, f"{path}: one {kind}: nothing to choose from; two are needed")
    return phrases


def load_ids(path):
    """Video ids, or names of their files, a line each: each id once, in the file's order."""
    return list(dict.fromkeys(video_name(line) for _, line in read_lines(path)))


def video_name(path):
    """The stem of a video's file; only known suffixes are taken off, since an id may hold a dot."""
    name = path.replace("\\", "/").rsplit("/", 1)[-1]
    return name[:name.rfind(".")] if name.lower().endswith(VIDEO_SUFFIXES) else name


def class_number(where, column, text, classes=CLASSES):
    """A class, 0 to classes - 1, as int."""
    require(re.fullmatch("[0-9]{1,9}", text) and int(text) < classes, f"{where}: {column} is "
            f"{text[:40]!r}; it must be an integer from 0 to {classes - 1}")
    return int(text)


def require_span(where, start, end):
    """BadInput if something ends, s, before it starts."""
    require(start <= end, f"{where}: its end, {end:g} s, is before its start, {start:g} s")


def seconds(where, text):
    """A time, s, as float."""
    require(re.fullmatch(r"\d{1,9}(\.\d*)?", text, re.ASCII),
            f"{where}: a time is {text[:40]!r}; it must be a number from 0")
    return float(text)


def clock(where, text):
    """HH:MM:SS.ss -> s."""
    parts = re.fullmatch(r"(\d{1,4}):([0-5]\d):([0-5]\d(?:\.\d*)?)", text, re.ASCII)
    require(parts, f"{where}: {text[:40]!r} is not a time HH:MM:SS.ss")
    return 3600 * int(parts[1]) + 60 * int(parts[2]) + float(parts[3])
