"""Narrations as people have them: what was said in a video, and when.

    given                             an entry is                           read
    folder of ID.csv                  a row of columns start,end,text       a file, when asked for
    folder of ID.srt or ID.vtt        a cue                                 a file, when asked for
    caption.json or raw_caption.json  item i of {ID: {start, end, text}}    whole, at the start

`sentences(ID)` of all of them: [(start s, end s, text), ...] by start, each with words. Bytes that
are not UTF-8 are replaced. Every problem is a BadInput that begins with the file and its line.

Times are the file's: YouTube shows a line until the next but one begins, so neighbours overlap.
Words are not said twice: see `unroll`.
"""
import csv
import html
import io
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from support.command import BadInput

COLUMNS = ("start", "end", "text")
SUFFIXES = (".csv", ".srt", ".vtt")         # of several files of one video the first kind is read
LANGUAGE = re.compile(r"\.[a-z]{2}(-\w+)?$")            # ID.en.vtt, as downloaders name them
TIME = r"(?:(\d{1,4}):)?(\d\d?):(\d\d?(?:[.,]\d{1,3})?)"               # 01:02:03,400 or 02:03.400
CUE = re.compile(rf"\s*{TIME}\s*-->\s*{TIME}(?:\s.*)?")
TAG = re.compile(r"<[^<>]*>|\{\\[^{}]*\}")              # <c>, <00:00:01.000>, {\an8}
SOUND = re.compile(r"\[[^\[\]]*\]")                     # [Music]: nobody says it
ROLL = 2.0         # s: for so long after it has ended a line can still stand above the next one


@dataclass(frozen=True, eq=False)
class Captions:
    """Narrations by video id. `len`, `in` and iteration over the ids read no narration.

    path: the folder or the JSON file. entries: id -> file name in it, or what the JSON has there.
    """
    path: Path
    entries: dict
    read: Callable                          # (path, id, entry) -> [(start, end, text), ...]

    def __iter__(self):
        return iter(self.entries)

    def __len__(self):
        return len(self.entries)

    def __contains__(self, name):
        return name in self.entries

    def sentences(self, name):
        """[(start s, end s, text), ...] of one video, by start. BadInput if it is malformed."""
        rows = self.read(self.path, name, self.entries[name])
        return unroll(sorted(rows, key=lambda row: row[0]))


def open_captions(path):
    """A folder (listed once, nothing in it opened) or a JSON file (read whole) -> Captions."""
    path = Path(path)
    if path.is_dir():
        return Captions(path, list_folder(path), read_file)
    return Captions(path, load_json(path), read_entry)


def unroll(sentences):
    """Leave out what a cue only repeats of the lines above it, as YouTube's rolling captions do.

    A cue that begins with the whole last sentence (or the last two, three, ...), not more than
    ROLL s after it, loses these words; where nothing else is left, the last sentence lasts longer.
    Words that recur otherwise were said twice and stay: "they get yellow", "yellow and soft".
    """
    kept, words = [], []                    # words[i] are those of kept[i]
    for start, end, text in sentences:
        new, shown, repeated = text.split(), [], 0
        if kept and start <= kept[-1][1] + ROLL:
            for line in reversed(words):
                shown = line + shown
                if len(shown) > len(new):
                    break
                if new[:len(shown)] == shown:
                    repeated = len(shown)
        if repeated < len(new):
            words.append(new[repeated:])
            kept.append((start, end, " ".join(words[-1])))
        else:
            kept[-1] = (kept[-1][0], max(kept[-1][1], end), kept[-1][2])
    return kept


# ------------------------------------------------------------------------------------------------
# Folders
# ------------------------------------------------------------------------------------------------
def list_folder(path):
    """{id: file name}, by id. The id is the name without suffix, and without .en of a subtitle.

    Of several files the first kind in SUFFIXES is taken, then English. A name that continues that
    of another (ID.steps.csv beside ID.csv) belongs to it and is no narration.
    """
    found = {}
    with os.scandir(path) as entries:
        for file in (entry.name for entry in entries):
            stem, suffix = os.path.splitext(file)
            suffix = suffix.lower()
            if suffix in SUFFIXES and not file.startswith("."):
                name = stem if suffix == ".csv" else LANGUAGE.sub("", stem)
                foreign = stem[len(name):][:3] not in ("", ".en")
                found[name] = min(found.get(name, (9,)), (SUFFIXES.index(suffix), foreign, file))
    if not found:
        raise BadInput(f"{path}: no {', '.join(SUFFIXES)} file in it; narrations are ID.csv with "
                       "columns start,end,text, ID.srt or ID.vtt, or one JSON file")
    return {name: found[name][-1] for name in sorted(found)
            if name.rpartition(".")[0] not in found}


def read_file(folder, name, file):
    """One file of a folder -> its sentences as they come."""
    return (read_csv if file.lower().endswith(".csv") else read_cues)(folder / file)


def read_text(path):
    """A text file without its byte order mark; BadInput if it is not there or has only blanks."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; a folder of narrations (ID.csv, ID.srt, ID.vtt) "
                       "or a caption.json is needed") from None
    if not text.strip():
        raise BadInput(f"{path}: the file is empty; remove it, or fetch the narration again")
    return text


def read_csv(path):
    """Rows start,end,text; other columns (an index) are passed over."""
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    rows = []
    try:
        header = [name.strip().lower() for name in next(reader)]
        if not set(COLUMNS) <= set(header):
            raise BadInput(f"{path}:1: columns {','.join(header)[:80]!r}; start,end,text are "
                           "needed, named in the first line")
        start, end, text = (header.index(name) for name in COLUMNS)
        for row in filter(None, reader):
            where = f"{path}:{reader.line_num}"
            if len(row) != len(header):
                raise BadInput(f"{where}: {len(row)} columns, but the first line names "
                               f"{len(header)}; a text with a comma must stand in quotes")
            rows += sentence(where, row[start], row[end], row[text])
    except csv.Error as error:
        raise BadInput(f"{path}:{reader.line_num}: not valid csv: {error}") from None
    return rows


def read_cues(path):
    """Cues of an srt or vtt file, without tags."""
    text = read_text(path)
    cues, lines = [], None                  # lines: of the cue that is being read
    for number, line in enumerate(re.split("\r\n|\r|\n", text), start=1):
        if "-->" in line:
            times = CUE.fullmatch(line)
            if not times:
                raise BadInput(f"{path}:{number}: {line.strip()[:80]!r} is not a time as in "
                               "00:01:02,500 --> 00:01:04,000")
            if lines and lines[-1].strip().isdigit() and not "".join(lines[-2:-1]).strip():
                lines.pop()                 # the next cue's number, after a line of blanks
            lines = []
            cues.append((number, times.groups(), lines))
        elif not line:                      # a line of blanks ends nothing: YouTube writes them
            lines = None
        elif lines is not None:
            lines.append(line)
    if not cues and not text.startswith("WEBVTT"):
        raise BadInput(f"{path}:1: no line as 00:01:02,500 --> 00:01:04,000 in it: no subtitles")
    rows = []
    for number, times, lines in cues:
        start, end = (60 * (60 * int(hours or 0) + int(minutes)) + float(seconds.replace(",", "."))
                      for hours, minutes, seconds in (times[:3], times[3:]))
        spoken = html.unescape(TAG.sub("", " ".join(lines)))
        rows += sentence(f"{path}:{number}", start, end, spoken)
    return rows


def sentence(where, start, end, text):
    """[(start, end, text)], or [] where no word is said; BadInput, opened by `where`, if wrong."""
    text = " ".join(SOUND.sub(" ", text).split())
    if text.lower() == "nan" or not any(map(str.isalnum, text)):
        return []
    try:
        start, end = float(start), float(end)
    except (ValueError, OverflowError):
        raise BadInput(f"{where}: start {str(start)[:40]!r}, end {str(end)[:40]!r}; seconds are "
                       "needed") from None
    if not 0 <= start <= end <= 1e9:        # false for NaN
        raise BadInput(f"{where}: start {start:g} s, end {end:g} s; both must be finite and from "
                       "0, and the end not before the start")
    return [(start, end, text)]


# ------------------------------------------------------------------------------------------------
# One JSON file
# ------------------------------------------------------------------------------------------------
def load_json(path):
    """The content of a caption.json, of which only the outermost layer has been checked."""
    text = read_text(path)
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadInput(f"{path}:{error.lineno}: not valid JSON (cut off?): {error.msg} at column "
                       f"{error.colno}; {{ID: {{start, end, text}}}} is needed") from None
    except (RecursionError, ValueError):    # lists in lists without end, a number of 5,000 digits
        raise BadInput(f"{path}: not a caption.json; {{ID: {{start, end, text}}}} is "
                       "needed") from None
    if not isinstance(data, dict) or not data:
        raise BadInput(f"{path}: no videos in it; {{ID: {{start, end, text}}}} is needed")
    return data


def read_entry(path, name, entry):
    """One video's {"start": [], "end": [], "text": []} -> its sentences as they come."""
    where = f"{path}: video {name!r}"
    lists = [entry.get(key) for key in COLUMNS] if isinstance(entry, dict) else [None]
    if not all(isinstance(part, list) for part in lists) or len(set(map(len, lists))) > 1:
        raise BadInput(f"{where}: lists start, end and text of one length are needed")
    rows = []
    for i, (start, end, text) in enumerate(zip(*lists)):
        if text is None or text != text:    # None or NaN: nothing was said
            continue
        if not isinstance(text, str) or not {type(start), type(end)} <= {int, float}:
            raise BadInput(f"{where}, entry {i} (counted from 0): start, end, text are "
                           f"{[start, end, text]!r:.120}; two numbers and a text are needed")
        rows += sentence(f"{where}, entry {i} (counted from 0)", start, end, text)
    return rows
