"""Read annotations and lists: COIN.json, EPIC's and the released csv, step names, phrases, ids.

Times are s. A file that cannot be used is an InputError that names it and the line, from 1.
"""
import csv
import io
import json
import re
import unicodedata
import zlib
from contextlib import contextmanager
from itertools import pairwise
from math import inf
from pathlib import Path, PurePath
from statistics import mean

from data import NOUNS, VERBS, Step, Video
from support.errors import InputError, require

VIDEO_SUFFIXES = (".mp4", ".mkv", ".webm", ".avi", ".mov")
# COIN.json -> here. A copy without "testing" may write "validation" for it.
SUBSETS = {"training": "train", "testing": "test", "validation": "validation"}
HELD_OUT = 0.1                # share of the training videos that stand in for a validation split
COIN = ('needed is {"database": {id: {"subset": "training" or "testing", "recipe_type": 0, '
        '"annotation": [{"id": "1", "segment": [start s, end s], "label": text}]}}}')
EPIC = "video_id", "start_timestamp", "stop_timestamp", "verb_class", "noun_class"
UNKNOWN = -1                  # label of a step whose class a list does not give
# `phrase` or `phrase,count,concreteness`; a phrase has a letter, and may have commas. No number or
# mark stands before it.
PHRASE = re.compile(r'(?!\d+[\W_]|[-*#(])"?([^;\t"_]*[^\W\d_][^;\t"_]*?)"?(?:,\s*[\d.]*){0,2}')


# --- Text, csv, JSON ---
def read_text(path):
    """The text of a UTF-8 file. InputError if it is empty, or not UTF-8."""
    try:
        text = Path(path).read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8; save it as UTF-8") from None
    require(text.strip(), f"{path}: the file is empty")
    return text


def read_lines(path):
    """[("file:line", text), ...] of the lines that hold text, stripped."""
    lines = enumerate(read_text(path).split("\n"), start=1)
    return [(f"{path}:{number}", line.strip()) for number, line in lines if line.strip()]


def read_table(path, columns):
    """[("file:line", {column: text}), ...] of a csv file whose first line names the columns."""
    reader = csv.DictReader(io.StringIO(read_text(path)))
    require(set(columns) <= set(reader.fieldnames), f"{path}:1: the first line must name "
            f"{','.join(columns)}; it is {','.join(reader.fieldnames)[:80]!r}")
    with fields_of(path, "a quote may be open"):
        rows = [(f"{path}:{reader.line_num}", row) for row in reader]
    for where, row in rows:
        require(None not in (*row, *row.values()), f"{where}: another number of columns than in "
                "the first line; put a text with a comma in quotes")
    return rows


@contextmanager
def fields_of(where, need):
    """Within it, a wrong or absent field raises InputError: "where: problem; need"."""
    try:
        yield
    except InputError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise InputError(f"{where}: {error!r}; {need}") from None


def clock(text):
    """HH:MM:SS.ss, MM:SS,ss or s -> s. Raises ValueError."""
    seconds = 0.0
    for part in text.replace(",", ".").split(":"):
        seconds = 60 * seconds + float(part)
    return seconds


def video_name(path):
    """The id of a video's file: its name without the suffix, with accents composed (NFC)."""
    path = PurePath(unicodedata.normalize("NFC", str(path)))
    return path.stem if path.suffix.lower() in VIDEO_SUFFIXES else path.name


# --- Annotations ---
def load_coin(path):
    """Read COIN.json -> [data.Video, ...] and the name of each class, "" if no step has it."""
    with fields_of(path, COIN):
        database = json.loads(read_text(path))["database"].items()
    videos, names = [], {}
    for name, entry in database:
        where, steps = f"{path}: video {name}", []
        with fields_of(where, COIN):
            for step in entry["annotation"]:
                label, text = int(step["id"]) - 1, step["label"].strip()
                known = names.setdefault(label, text)
                require(known.casefold() == text.casefold(), f"{where}: id {label + 1} is {text!r},"
                        f" before it was {known!r}")
                steps.append(Step(*map(float, step["segment"]), label))
            split, activity = SUBSETS[entry["subset"]], int(entry["recipe_type"])
            duration = float(entry["duration"]) if entry.get("duration") else None
        videos.append(Video(video_name(name), split, activity, duration, in_order(steps, where)))
    require(videos and min(names, default=0) >= 0, f"{path}: no videos, or an id of 0; {COIN}")
    if not any(video.split == "test" for video in videos):
        videos = [video._replace(split="test") if video.split == "validation" else video
                  for video in videos]
    return videos, [names.get(label, "") for label in range(max(names, default=-1) + 1)]


def in_order(steps, where):
    """The steps, by start. Those that do not end after it are left out, and a line counts them."""
    kept = sorted((step for step in steps if step.start < step.end), key=lambda step: step.start)
    if len(kept) < len(steps):
        print(f"{where}: {len(steps) - len(kept)} steps do not end after their start: skipped")
    return tuple(kept)


def load_released_csv(path, task):
    """Read a csv of ProcedureVRL or DistantSup: a data.Video for each line; it has no header. To
    forecast, start and end are those of the history, and the label is the next step's."""
    require(task in ("forecast", "classify", "activity"), f"{path}: no list is released for --task "
            f"{task}; give a file in the layout of COIN.json")
    columns = "path label duration" + (" start end" if task != "activity" else "")
    videos, starts = [], []
    for where, line in read_lines(path):
        with fields_of(where, f"to {task}, `{columns}` is needed, separated by spaces"):
            row = dict(zip(columns.split(), line.split(), strict=True))
            label, duration = int(row["label"]), float(row["duration"])
            start, end = float(row.get("start", 0)), float(row.get("end", 0))
        starts.append(start)
        steps = {"activity": (), "classify": (Step(start, end, label),),
                 "forecast": (Step(start, end, UNKNOWN), Step(end, end, label))}[task]
        videos.append(Video(video_name(row["path"]), None, label, duration, steps))
    require(task == "activity" or any(starts) == (task == "classify"), f"{path}:1: a list for "
            "another task: only lists to forecast start each row at 0 s")
    return videos


def load_epic(path):
    """Read EPIC_100_train.csv or the like: [data.Video, ...] with labels (verb, noun), of infinite
    duration, since the file has none."""
    steps = {}
    for where, row in read_table(path, EPIC):
        with fields_of(where, "times HH:MM:SS.ss, and numbers of classes, are needed"):
            start, end = clock(row["start_timestamp"]), clock(row["stop_timestamp"])
            label = verb, noun = int(row["verb_class"]), int(row["noun_class"])
        require(0 <= verb < VERBS and 0 <= noun < NOUNS, f"{where}: verb {verb}, noun {noun}; the "
                f"classes are 0 to {VERBS - 1} and 0 to {NOUNS - 1}")
        steps.setdefault(row["video_id"], []).append(Step(start, end, label))
    return [Video(name, None, None, inf, in_order(actions, f"{path}: video {name}"))
            for name, actions in steps.items()]


def epic_split(path):
    """Which split an official csv of EPIC-Kitchens-100 is, by its name."""
    return "train" if "train" in path.stem.split("_") else "validation"


def is_held_out(video, share):
    """Whether a video of the training split is in the share held out, by the CRC-32 of its id."""
    return zlib.crc32(video.name.encode()) % 1000 < 1000 * share


def of_split(videos, split, config, path):
    """The videos of a split of COIN.json. If it has no validation split, a share of the training
    videos takes its place: the share that a fine-tuned checkpoint left out. Fine-tuning trains
    on the rest. InputError if a fine-tuned checkpoint left out none."""
    if split == "validation" and not any(video.split == "validation" for video in videos):
        require(not config.task or config.hold_out, f"{path}: has no validation videos, and the "
                "checkpoint was tuned on all training videos; fine-tune it with --hold-out "
                f"{HELD_OUT}, or give --split test")
        split, share = "train", config.hold_out or HELD_OUT
        videos = [video for video in videos if is_held_out(video, share)]
    return [video for video in videos if video.split == split]


def list_labeled(args, task, split, config):
    """The videos that --annotations lists, in COIN's layout, and the names of their classes; None
    for a Task without names. A csv holds no names: they come from --steps, or from the checkpoint,
    whose model.Config is `config`."""
    path, tuned = args.annotations, config.names
    if path.suffix == ".csv":                          # a released list holds one split, no names
        videos = load_released_csv(path, args.task)
        labels = [""] * (1 + max(video.activity for video in videos))
    else:
        videos, labels = load_coin(path)
        videos = [video for video in of_split(videos, split, config, path) if video.steps]
        require(videos, f"{path}: no video of subset {split} has steps")
    left_out = getattr(args, "hold_out", None)         # of fine-tuning
    videos = [video for video in videos if not left_out or not is_held_out(video, left_out)]
    if "names" not in task.needs:
        return videos, None
    names = load_phrases(args.steps) if args.steps else labels if all(labels) else tuned or labels
    require(all(names), f"{path}: {names.count('')} of {len(names)} classes have no name; add "
            "--steps FILE")
    check_names(args.steps or "the checkpoint", names, path, labels)
    return videos, names


# --- What a list holds, for `files check`: videos, captions, facts, {id: reason} of bad ones ---
def seconds_between_steps(videos):
    """The mean time from the start of a step to that of the next, s; None without any."""
    apart = [then.start - now.start for video in videos for now, then in pairwise(video.steps)]
    return mean(apart) if apart else None


def count_coin(args):
    """COIN.json, or another file in its layout."""
    videos, names = load_coin(args.annotations)
    apart = seconds_between_steps(videos)
    facts = {"classes": len(names), "distinct_texts": len(set(names)),
             "seconds_between_steps": apart and round(apart, 1)}
    return [video for video in videos if video.steps], None, facts, {}


def count_epic(args):
    """EPIC's csv."""
    videos = load_epic(args.annotations)
    segments = {epic_split(args.annotations): sum(len(video.steps) for video in videos)}
    return videos, None, {"segments": segments, "verbs": VERBS, "nouns": NOUNS}, {}


# --- Names ---
def load_phrases(path):
    """The phrases, or names of classes: line i is that of class i. Two may be equal. A header is
    left out."""
    lines = read_text(path).rstrip().split("\n")
    header, phrases = lines[0].startswith("phrase,"), []
    for number, line in enumerate(lines[header:], start=1 + header):
        found = PHRASE.fullmatch(line.strip())
        require(found, f"{path}:{number}: {line[:80]!r} is not `phrase` or `phrase,count,...`")
        phrases.append(found[1].strip())
    require(len(phrases) > 1, f"{path}: at least two phrases are needed")
    return phrases


def load_ids(path):
    """The video ids of a list, each once. A file name counts as its id."""
    return list(dict.fromkeys(video_name(line) for _, line in read_lines(path)))


def check_names(path, names, annotation_file, labels):
    """InputError if the names in `path` contradict the labels of the annotations, "" where unknown.
    There may be more names than labels: the last classes may have no step."""
    need = f"in {annotation_file}; line i must be class i"
    require(len(names) >= len(labels),
            f"{path}: {len(names)} names, but {len(labels)} classes {need}")
    for i, (name, label) in enumerate(zip(names, labels), start=1):
        same = name.casefold().split() == label.casefold().split()
        require(same or not label, f"{path}:{i}: class {i} is {name!r}, but {label!r} {need}")
