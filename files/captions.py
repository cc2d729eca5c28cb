"""Read narrations from the layouts that people have: what was said in a video, and when.

    folder of ID.csv, rows of start,end,text; ID.srt or ID.vtt    a file is read when asked for
    caption.json or raw_caption.json, {ID: {start, end, text}}    read whole, at the start

Bytes that are not UTF-8 are replaced. Times are the file's: on YouTube neighbors overlap.
"""
import html
import os
import re
import reprlib
from contextlib import suppress
from locale import locale_alias
from pathlib import Path

from files.text import read_json, read_table, read_text
from support.command import require

COLUMNS = ("start", "end", "text")
SUFFIXES = (".csv", ".srt", ".vtt")         # of several files of one video, the first kind is read
NARRATION = "a narration (fetch it again, or remove the file)"
JSON = "a folder of narrations (ID.csv, ID.srt, ID.vtt) or a caption.json {ID: {start, end, text}}"
# ID.en.vtt, ID.pt-BR.srt, as downloaders name them; YouTube has some that Python does not list.
CODES = set(re.findall(r"\b[a-z]{2,3}(?=_)", " ".join(locale_alias)))
LANGUAGE = re.compile(rf"\.({'|'.join(CODES)}|ceb|co|hmn|jv|la|qu|sn|su)([-_][\w-]+)?$")
TIME = r"(?:(\d{1,4}):)?(\d\d?):(\d\d?(?:[.,]\d{1,3})?)"               # 01:02:03,400 or 02:03.400
CUE = re.compile(rf"\s*{TIME}\s*-->\s*{TIME}(?:\s.*)?")
NUMBER = re.compile(r"\n[ \t]*\d+\s*\Z")               # of a cue, above its times
TAG = re.compile(r"</?(b|c|em|font|i|lang|p|rt|ruby|s|span|strong|u|v)([\s.][^<>]*)?>|"
                 r"<(\d+:)+\d+[.,]\d+>|\{\\[^{}]*\}", re.I)    # <i>, </c>, <00:00:01.000>, {\an8}
SOUND = re.compile(r"\[[^\[\]]*\]|<br ?/?>", re.I)      # [Music]: not speech
ROLL = 2.0         # s after its end in which a line can still be on the screen above the next


class Captions(dict):
    """{video id: its file's name, or what the JSON has there}; narrations are read on demand."""

    def __init__(self, path):
        self.path = path = Path(path)
        data = list_folder(path) if path.is_dir() else read_json(path, JSON, errors="replace")
        require(data, f"{path}: no videos in it; {JSON} is needed")
        super().__init__(data)

    def sentences(self, name):
        """[(start s, end s, text), ...] of one video, by start. BadInput names file and line."""
        if not self.path.is_dir():
            rows = read_entry(f"{self.path}: video {name!r}", self[name])
        elif self[name].lower().endswith(".csv"):
            table = read_table(self.path / self[name], COLUMNS, NARRATION, errors="replace")
            rows = [spoken for where, row in table
                    for spoken in sentence(where, *map(row.get, COLUMNS))]
        else:
            rows = read_cues(self.path / self[name])
        return unroll(sorted(rows, key=lambda row: row[0]))


def unroll(sentences):
    """Remove the words by which a cue repeats the lines above it (YouTube's rolling captions):
    the last sentence, or more, ended up to ROLL s ago. If none are left, it lasts longer."""
    unrolled, words = [], []                # words[i] are those of unrolled[i]
    for start, end, text in sentences:
        new, above, repeated = text.split(), [], 0
        if unrolled and start <= unrolled[-1][1] + ROLL:
            for line in reversed(words):
                above = line + above
                if len(above) > len(new):
                    break
                if new[:len(above)] == above:
                    repeated = len(above)
        if repeated < len(new):
            words.append(new[repeated:])
            unrolled.append((start, end, " ".join(words[-1])))
        else:
            first, last, said = unrolled[-1]
            unrolled[-1] = (first, max(last, end), said)
    return unrolled


def list_folder(path):
    """{id: file name}, by id, the name without .srt and .en; of several one without a language."""
    choices = {}            # id: (has a language, kind, not English, file name), the least so far
    for file in [entry.name for entry in os.scandir(path) if entry.is_file()]:
        stem, suffix = os.path.splitext(file)
        suffix = suffix.lower()
        if suffix in SUFFIXES and not file.startswith("."):
            name = stem if suffix == ".csv" else LANGUAGE.sub("", stem)
            foreign = stem[len(name):][:3] not in ("", ".en")
            choice = name != stem, SUFFIXES.index(suffix), foreign, file
            choices[name] = min(choices.get(name, choice), choice)
    return {name: choices[name][-1] for name in sorted(choices)
            if not (name.endswith(".steps") and name[:-6] in choices)}


def read_cues(path):
    """Cues of an srt or vtt file -> its sentences, without tags, in the file's order."""
    text = read_text(path, NARRATION, errors="replace")
    vtt, lines, rows = text.startswith("WEBVTT"), text.split("\n"), []
    while lines[2:] and not any(map(str.strip, lines[1::2])):          # all line ends are doubled
        lines = lines[::2]
    cues = [i for i, line in enumerate(lines) if "-->" in line]
    require(cues or vtt, f"{path}:1: no line as 00:01:02,500 --> 00:01:04,000 in it: no subtitles")
    numbered = cues and NUMBER.search("\n".join(["", *lines[:cues[0]]]))
    for i, after in zip(cues, [*cues[1:], None]):
        where, times = f"{path}:{i + 1}", CUE.fullmatch(lines[i])
        require(times, f"{where}: {lines[i].strip()[:80]!r} is not a time as 1:02,500 --> 1:04,000")
        start, end = (3600 * int(hours or 0) + 60 * int(minutes) + float(seconds.replace(",", "."))
                      for hours, minutes, seconds in (times.groups()[:3], times.groups()[3:]))
        shown = "\n".join(["", *lines[i + 1:after], ""])
        if vtt and "\n\n" in shown:          # an empty line ends a cue; YouTube writes blanks
            shown, _, _ = shown.partition("\n\n")
        elif numbered and after:
            shown = NUMBER.sub("", shown)
        rows += sentence(where, start, end, html.unescape(TAG.sub("", shown)))
    return rows


def sentence(where, start, end, text):
    """[(start, end, text)], or [] if it has no words. A BadInput begins with `where`."""
    text = " ".join(SOUND.sub(" ", text).split())
    if text.lower() == "nan" or not any(map(str.isalnum, text)):
        return []
    times = -1, -1
    with suppress(ValueError, OverflowError):
        times = float(start), float(end)
    require(0 <= times[0] <= times[1] <= 1e9,          # false for NaN
            f"{where}: start {str(start)[:40]!r}, end {str(end)[:40]!r}; finite seconds from 0 are "
            "needed, the end not before the start")
    return [(*times, text)]


def read_entry(where, entry):
    """One video's {"start": [], "end": [], "text": []} -> its sentences in the file's order."""
    lists = [entry.get(key) for key in COLUMNS] if isinstance(entry, dict) else [None]
    require(all(isinstance(part, list) for part in lists) and len(set(map(len, lists))) == 1,
            f"{where}: lists start, end and text of one length are needed")
    rows = []
    for i, (start, end, text) in enumerate(zip(*lists)):
        if text is not None and text == text:          # not None or NaN: something was said
            item = f"{where}, entry {i} (counted from 0)"
            require(isinstance(text, str) and {type(start), type(end)} <= {int, float}, f"{item}: "
                    f"{reprlib.repr([start, end, text])}; two numbers and a text are needed")
            rows += sentence(item, start, end, text)
    return rows
