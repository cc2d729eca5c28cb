"""Read narrations, what was said in a video and when: a folder of ID.csv (start,end,text), ID.srt
or ID.vtt, each read when asked for; or caption.json, {ID: {start, end, text}}, read at the start.
The id is the name of the video's file: `Title [id].en.vtt` belongs to `Title [id].mp4`."""
import html
import itertools
import math
import os
import re
from operator import itemgetter
from pathlib import Path

from files.lists import clock, read_table
from support.errors import require
from support.read import fields_of, read_json, read_text, video_name

COLUMNS = ("start", "end", "text")
SUFFIXES = (".csv", ".srt", ".vtt")
# ID.LANGUAGE, as yt-dlp (en, en-orig, pt-BR) and others (eng) write it; not lasagna.raw.
LANGUAGE = re.compile(r"(.+)\.((?:[a-z]{2}|eng)(?:[-_]\w+)?)", re.I)
PLAIN, ENGLISH, OTHER_ENGLISH, OTHER = range(4)        # of several files of a video, the first wins
# The times of a cue, and its lines up to an empty one. Lines of blanks (YouTube) do not end it.
CUE = re.compile(r"^(.*?)\s*-->\s*(\S*).*\n?((?:.+\n?)*)", re.M)
# Tags <i>, </c>, <00:00:01.000>, {\an8}, and sounds [Music].
NOT_SPEECH = re.compile(r"</?[a-z\d][^<>]*>|\{\\[^{}]*\}|\[[^\[\]]*\]", re.I)
ROLL = 2.0         # s for which a line that has ended can still be on the screen above the next
MAX_UNREADABLE = 0.05          # share of the narrations
SHOWN_CUES = 30         # earlier cues that may still be on the screen; some cues add only a word


class Captions(dict):
    """The narrations of a folder or of a caption.json, by id. InputError if there is none. Only
    names of files are read before a narration is asked for.

    videos: the ids of the videos that are there, which decide whose a file is: see `id_of`.
    """

    def __init__(self, path, videos=()):
        self.path = path = Path(path)
        need = "a folder of ID.csv, ID.srt or ID.vtt is needed, or {ID: {start, end, text}}"
        self.is_folder = path.is_dir()
        if self.is_folder:
            super().__init__(list_folder(path, videos))
        else:
            entries = read_json(path, need)
            with fields_of(path, need):
                super().__init__({video_name(name): entry for name, entry in entries.items()})
        require(self, f"{path}: no narrations; {need}")

    def sentences(self, name):
        """[(start s, end s, text), ...] of one video, by start. Tags, sounds like [Music], padding,
        and what a cue repeats are removed. InputError names file and line."""
        sentences = []
        for where, start, end, text in self.rows(name):
            text = " ".join(html.unescape(NOT_SPEECH.sub("", str(text))).split())
            if text.lower() in ("nan", "none") or not any(map(str.isalnum, text)):
                continue                               # pandas writes NaN where there is no text
            with fields_of(where, "times must be numbers of s, or HH:MM:SS"):
                start, end = clock(str(start)), clock(str(end))
            require(0 <= start <= end < math.inf,
                    f"{where}: starts at {start:g} s and ends at {end:g} s")
            sentences.append((start, end, text))
        return unroll(sorted(sentences, key=itemgetter(0)))

    def rows(self, name):
        """[("file:line", start, end, text), ...] of one video, as they are written."""
        if self.is_folder:
            return rows_of(self.path / self[name])
        where, entry = f"{self.path}: video {name}", self[name]
        with fields_of(where, "lists start, end and text of one length are needed"):
            start, end, text = (entry[column] for column in COLUMNS)
            same = itertools.repeat(where, len(text))
            return list(zip(same, start, end, text, strict=True))


def rows_of(file):
    """[("file:line", start, end, text), ...] of a csv, srt or vtt file, as they are written."""
    if file.suffix.lower() == ".csv":
        table = read_table(file, COLUMNS)
        return [(where, row["start"], row["end"], row["text"]) for where, row in table]
    text, rows = read_text(file), []
    for cue in CUE.finditer(text):
        line = text.count("\n", 0, cue.start()) + 1
        rows.append((f"{file}:{line}", cue[1], cue[2], cue[3]))
    require(rows or text.startswith("WEBVTT"), f"{file}:1: no srt and no vtt")
    return rows


def list_folder(folder, videos):
    """{id: name of its file}, by id. Of several files of an id the one without a language wins,
    then .en, then other English, then another language; of equals the first by name."""
    best = {}
    for name in sorted(os.listdir(folder)):            # looks at no file: there may be a million
        stem, suffix = os.path.splitext(name)
        if suffix.lower() not in SUFFIXES:
            continue
        video, rank = id_of(video_name(stem), videos)
        if video not in best or rank < best[video][0]:
            best[video] = rank, name
    return {video: name for video, (_, name) in sorted(best.items())}


def id_of(stem, videos):
    """Whose narration a file is, by its name without the suffix -> id, rank of its language. It is
    that of the video of the very same name, if there is one: cake.hd.srt of cake.hd.mp4. Else
    what looks like a language is none of the id."""
    found = LANGUAGE.fullmatch(stem)
    if stem in videos or not found:
        return stem, PLAIN
    name, language = found[1], found[2].lower()
    if language == "en":
        return name, ENGLISH
    if language.startswith("en"):
        return name, OTHER_ENGLISH
    return name, OTHER


def repeated_of(text, shown):
    """The longest run of lines, to the last of those that are shown, with which a text begins."""
    for k, line in enumerate(shown):
        if text.startswith(line):
            lines = " ".join(shown[k:])
            if f"{text} ".startswith(f"{lines} "):
                return lines
    return ""


def unroll(sentences):
    """Remove the words by which a cue repeats the lines above it: YouTube's rolling captions. A cue
    without new words prolongs the last one."""
    unrolled = []
    for start, end, text in sentences:
        repeated = ""
        if unrolled and start <= unrolled[-1][1] + ROLL:
            repeated = repeated_of(text, [line for _, _, line in unrolled[-SHOWN_CUES:]])
        if repeated != text:
            unrolled.append((start, end, text[len(repeated):].strip()))
        else:
            first, last, line = unrolled[-1]
            unrolled[-1] = first, max(last, end), line
    return unrolled
