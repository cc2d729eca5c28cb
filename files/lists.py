"""Read annotations and lists: COIN.json, EPIC's and the released csv, ids.

Times are s. A file that cannot be used is an InputError that names it and the line, from 1.
"""
import csv
import io
from math import inf, isfinite
from operator import attrgetter

from data import NOUNS, UNKNOWN, VERBS, Lists, Step, Video
from support.errors import require
from support.read import fields_of, read_json, read_lines, read_text, video_name

# COIN.json -> here. A copy without "testing" may write "validation" for it.
SUBSETS = {"training": "train", "testing": "test", "validation": "validation"}
COIN = ('expected {"database": {id: {"subset": "training" or "testing", "recipe_type": 0, '
        '"annotation": [{"id": "1", "segment": [start s, end s], "label": text}]}}}')
EPIC = "video_id", "start_timestamp", "stop_timestamp", "verb_class", "noun_class"
MOST_CLASSES = 100_000                # a number of a class is below


def read_table(path, columns):
    """[("file:line", {column: text}), ...] of a csv file whose first line names the columns."""
    reader = csv.DictReader(io.StringIO(read_text(path)))
    require(set(columns) <= set(reader.fieldnames), f"{path}:1: the first line must name "
            f"{','.join(columns)}; it is {','.join(reader.fieldnames)[:80]!r}")
    with fields_of(path, "a quote may be open"):
        rows = [(f"{path}:{reader.line_num}", row) for row in reader]
    for where, row in rows:
        same = None not in row and None not in row.values()
        require(same, f"{where}: another number of columns than in the first line; put a text with "
                "a comma in quotes")
    return rows


def clock(text):
    """HH:MM:SS.ss, MM:SS,ss or s -> s. Raises ValueError."""
    seconds = 0.0
    for part in text.replace(",", ".").split(":"):
        seconds = 60 * seconds + float(part)
    return seconds


# --- What a list may hold ---
def class_number(number, where):
    """A number of a class. InputError unless it is 0 to MOST_CLASSES - 1."""
    require(0 <= number < MOST_CLASSES, f"{where}: class {number}; classes count from 0, below "
            f"{MOST_CLASSES}")
    return number


def require_times(start, end, where):
    """InputError unless times are finite, and `start` is not before the video, s."""
    require(0 <= start and isfinite(start) and isfinite(end), f"{where}: a step from {start:g} to "
            f"{end:g} s; times must be finite, from 0")


def in_order(steps, where):
    """The steps, by start. Those that do not end after it are left out, and a line counts them."""
    kept = [step for step in steps if step.start < step.end]
    if len(kept) < len(steps):
        print(f"{where}: {len(steps) - len(kept)} steps do not end after their start: skipped")
    return tuple(sorted(kept, key=attrgetter("start")))


def add_name(names, number, text, what):
    """Add the name of a class to `names`, if it has one. InputError if it has another already."""
    known = names.get(number) or text
    same = known.casefold() == text.casefold()
    require(same or not text, f"{what} is {text!r}, before it was {known!r}")
    names[number] = known


# --- COIN ---
def load_coin(path):
    """Read COIN.json -> data.Lists, of all splits."""
    content = read_json(path, COIN)
    with fields_of(path, COIN):
        database = content["database"].items()
    videos, names, activities = [], {}, {}
    for name, entry in database:
        where = f"{path}: video {name}"
        with fields_of(where, COIN):
            steps = [coin_step(step, names, where) for step in entry["annotation"]]
            split = SUBSETS[entry["subset"]]
            activity = class_number(int(entry["recipe_type"]), f"{where}: recipe_type")
            add_name(activities, activity, entry.get("class") or "",
                     f"{where}: the class of recipe_type {activity}")
            duration = float(entry["duration"]) if entry.get("duration") else None
        require(duration is None or 0 < duration < inf, f"{where}: a duration of {duration} s")
        videos.append(Video(video_name(name), split, activity, duration, in_order(steps, where)))
    require(videos, f"{path}: no videos; {COIN}")
    if not any(video.split == "test" for video in videos):
        for i, video in enumerate(videos):
            if video.split == "validation":
                videos[i] = video._replace(split="test")
    return Lists(videos, names, activities)


def coin_step(step, names, where):
    """The Step of an annotation; its name goes to `names`. COIN counts classes from 1."""
    label = class_number(int(step["id"]) - 1, f"{where}: id {step['id']}, which counts from 1")
    add_name(names, label, step["label"].strip(), f"{where}: id {label + 1}")
    start, end = map(float, step["segment"])
    require_times(start, end, where)
    return Step(start, end, label)


def load_released_csv(path, task):
    """Read a csv of ProcedureVRL or DistantSup -> data.Lists, a video for each line; it has no
    header and no names. To forecast, start and end are those of the history, and the label is the
    next step's."""
    columns = {"forecast": "path label duration start end",
               "classify": "path label duration start end", "activity": "path label duration"}
    require(task in columns, f"{path}: no list is released for --task {task}; give a file in the "
            "layout of COIN.json")
    videos, starts = [], []
    for where, line in read_lines(path):
        with fields_of(where, f"to {task}, `{columns[task]}` is needed, separated by spaces"):
            row = dict(zip(columns[task].split(), line.split(), strict=True))
            label, duration = class_number(int(row["label"]), where), float(row["duration"])
            start, end = float(row.get("start", 0)), float(row.get("end", duration))
        require(0 < duration < inf, f"{where}: a duration of {duration} s")
        require_times(start, end, where)
        require(start < end, f"{where}: starts at {start:g} s and ends at {end:g} s")
        starts.append(start)
        steps = {"activity": (), "classify": (Step(start, end, label),),
                 "forecast": (Step(start, end, UNKNOWN), Step(end, end, label))}[task]
        videos.append(Video(video_name(row["path"]), None, label, duration, steps))
    require(task == "activity" or any(starts) == (task == "classify"), f"{path}:1: a list for "
            "another task: only lists to forecast start each row at 0 s")
    activities = {video.activity: "" for video in videos}
    return Lists(videos, {}, activities, path.stem)


# --- EPIC-Kitchens-100 ---
def load_epic(path):
    """Read EPIC_100_train.csv or the like -> data.Lists, with labels (verb, noun). Durations are
    infinite, since the file has none. An official csv is a split, by its name."""
    steps = {}
    for where, row in read_table(path, EPIC):
        with fields_of(where, "times HH:MM:SS.ss, and numbers of classes, are needed"):
            start, end = clock(row["start_timestamp"]), clock(row["stop_timestamp"])
            verb, noun = int(row["verb_class"]), int(row["noun_class"])
        require(0 <= verb < VERBS and 0 <= noun < NOUNS, f"{where}: verb {verb}, noun {noun}; the "
                f"classes are 0 to {VERBS - 1} and 0 to {NOUNS - 1}")
        require_times(start, end, where)
        steps.setdefault(row["video_id"], []).append(Step(start, end, (verb, noun)))
    require(steps, f"{path}: no action")
    videos = []
    for name, actions in steps.items():
        ordered = in_order(actions, f"{path}: video {name}")
        videos.append(Video(name, duration=inf, steps=ordered))
    split = "train" if "train" in path.stem.split("_") else "validation"
    return Lists(videos, split=split)


# --- Ids ---
def load_ids(path):
    """The video ids of a list, each once. A file name counts as its id."""
    return list(dict.fromkeys(video_name(line) for _, line in read_lines(path)))
