"""Read narrations, what was said in a video and when: a folder of ID.csv (start,end,text), ID.srt
or ID.vtt, each read when asked for; or caption.json, {ID: {start, end, text}}, read at the start.
The id is the name of the video's file: `Title [id].en.vtt` belongs to `Title [id].mp4`."""
import html
import json
import math
import re
from itertools import pairwise
from pathlib import Path
from statistics import mean

from tqdm import tqdm

from data import STRIDE, Video
from files.lists import (clock, fields_of, load_coin, read_table, read_text,
                         seconds_between_steps, video_name)
from support.errors import InputError, require

COLUMNS = ("start", "end", "text")
SUFFIXES = (".csv", ".srt", ".vtt")
LANGUAGE = re.compile(r"\.[a-z]{2}([-_]\w+)?$")              # ID.en-orig.vtt; not lasagna.raw.srt
# The times of a cue, and its lines up to an empty one. Lines of blanks (YouTube) do not end it.
CUE = re.compile(r"^(.*?)\s*-->\s*(\S*).*\n?((?:.+\n?)*)", re.M)
# Tags <i>, </c>, <00:00:01.000>, {\an8}, and sounds [Music].
NOT_SPEECH = re.compile(r"</?[a-z\d][^<>]*>|\{\\[^{}]*\}|\[[^\[\]]*\]", re.I)
ROLL = 2.0         # s for which a line that has ended can still be on the screen above the next
MAX_UNREADABLE = 0.05          # share of the narrations, or of the videos
SHOWN = 30         # earlier cues that may still be on the screen; some cues add only a word


class Captions(dict):
    """The narrations of a folder or of a caption.json, by id. InputError if there is none."""

    def __init__(self, path):
        self.path = path = Path(path)
        need = "a folder of ID.csv, ID.srt or ID.vtt is needed, or {ID: {start, end, text}}"
        with fields_of(path, need):
            found = list_folder(path) if path.is_dir() else json.loads(read_text(path))
            super().__init__({video_name(name): found[name] for name in found})
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
        return unroll(sorted(sentences, key=lambda sentence: sentence[0]))

    def rows(self, name):
        """[("file:line", start, end, text), ...] of one video, as they are written."""
        if not self.path.is_dir():
            where, entry = f"{self.path}: video {name}", self[name]
            with fields_of(where, "lists start, end and text of one length are needed"):
                return [(where, *row) for row in zip(*map(entry.get, COLUMNS), strict=True)]
        file = self[name]
        if file.suffix.lower() == ".csv":
            return [(where, *map(row.get, COLUMNS)) for where, row in read_table(file, COLUMNS)]
        text, rows = read_text(file), []
        for cue in CUE.finditer(text):
            line = text.count("\n", 0, cue.start()) + 1
            rows.append((f"{file}:{line}", *cue.groups()))
        require(rows or text.startswith("WEBVTT"), f"{file}:1: no srt and no vtt")
        return rows

    def readable(self, names, wrong):
        """Yield (id, sentences) of narrations; put {id: reason} of the unreadable into `wrong`."""
        for name in tqdm(names, "captions", mininterval=1):
            try:
                yield name, self.sentences(name)
            except InputError as error:
                wrong[name] = str(error)


def list_folder(folder):
    """{id: file}, by id. If an id has several files, it is the last one in English or without a
    language, else the first."""
    files = {}
    for file in sorted(folder.iterdir()):
        name = LANGUAGE.sub("", file.stem)
        english = file.stem == name or file.stem.startswith(f"{name}.en")
        if file.suffix.lower() in SUFFIXES and (english or name not in files):
            files[name] = file
    return dict(sorted(files.items()))


def unroll(sentences):
    """Remove the words by which a cue repeats the lines above it: YouTube's rolling captions. A cue
    without new words prolongs the last one."""
    unrolled = []
    for start, end, text in sentences:
        shown = unrolled[-SHOWN:] if unrolled and start <= unrolled[-1][1] + ROLL else []
        above = [" ".join(line for *_, line in shown[k:])
                 for k in range(len(shown)) if text.startswith(shown[k][2])]
        repeated = next((lines for lines in above if f"{text} ".startswith(f"{lines} ")), "")
        if repeated != text:
            unrolled.append((start, end, text[len(repeated):].strip()))
        else:
            first, last, line = unrolled[-1]
            unrolled[-1] = first, max(last, end), line
    return unrolled


def count_narrations(args):
    """What a folder or caption.json holds, for `python -m files check`: as lists.count_coin. With
    --annotations in COIN's layout also the --stride by which clips are about a step apart."""
    captions, wrong, silent = Captions(args.captions), {}, []
    sentences, end, apart = 0, 0.0, []
    for name, said in captions.readable(captions, wrong):          # all do not fit in memory
        sentences, end = sentences + len(said), end + max((row[1] for row in said), default=0.0)
        apart += [then[0] - now[0] for now, then in pairwise(said)]
        if not said:
            silent.append(name)
    between = mean(apart) if apart else None
    steps = seconds_between_steps(load_coin(args.annotations)[0]) if args.annotations else None
    stride = max(1, round(steps / between)) if steps and between else None
    clips = sentences / (stride or STRIDE) / max(1, len(captions) - len(wrong) - len(silent))
    facts = {"captions": len(captions), "unreadable_captions": len(wrong), "sentences": sentences,
             "seconds_between_captions": between and round(between, 1),
             "seconds_between_steps": steps and round(steps, 1), "stride": stride,
             "clips_per_video": round(clips, 1), "hours": round(end / 3600, 2),
             "silent_ids": silent}
    return [Video(name) for name in captions], captions, facts, wrong
