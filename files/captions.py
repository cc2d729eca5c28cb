"""Read narrations: what was said in a video, and when.

    folder of ID.csv (start,end,text), ID.srt or ID.vtt           a file is read when asked for
    caption.json or raw_caption.json, {ID: {start, end, text}}    read whole, at the start

The id is the name of the video's file: `Title [id].en.vtt` belongs to `Title [id].mp4`.
"""
import html
import json
import re
from pathlib import Path

from tqdm import tqdm

from files.lists import clock, fields_of, read_table, read_text
from support.errors import InputError, require

COLUMNS = ("start", "end", "text")
SUFFIXES = (".csv", ".srt", ".vtt")
LANGUAGE = re.compile(r"\.([a-z]{2,3}([-_]\w+)?|steps)$")    # ID.en-orig.vtt; steps: of CrossTask
# The times of a cue; its lines, up to an empty one: lines of blanks, as on YouTube, do not end it.
CUE = re.compile(r"^(.*?)\s*-->\s*(\S*).*\n?((?:.+\n?)*)", re.M)
# <i>, </c>, <00:00:01.000>, {\an8}, [Music]
NOT_SPEECH = re.compile(r"</?[a-z\d][^<>]*>|\{\\[^{}]*\}|\[[^\[\]]*\]", re.I)
ROLL = 2.0         # s after its end in which a line can still be on the screen above the next
SHOWN = 30         # cues above, of which the screen may still show words: some cues add a word


class Captions(dict):
    """The narrations of a folder or of a caption.json, by ids. InputError if there is none."""

    def __init__(self, path):
        self.path = path = Path(path)
        need = "a folder of ID.csv, ID.srt or ID.vtt is needed, or {ID: {start, end, text}}"
        with fields_of(path, need):
            super().__init__(list_folder(path) if path.is_dir() else json.loads(read_text(path)))
        require(self, f"{path}: no narrations; {need}")

    def sentences(self, name):
        """Return [(start s, end s, text), ...] of one video, by start. InputError: file and line.
        """
        if not self.path.is_dir():
            where, entry = f"{self.path}: video {name}", self[name]
            with fields_of(where, "lists start, end and text of one length are needed"):
                rows = [(where, *row) for row in zip(*map(entry.get, COLUMNS), strict=True)]
        elif self[name].suffix.lower() == ".csv":
            table = read_table(self[name], COLUMNS)
            rows = [(where, *map(row.get, COLUMNS)) for where, row in table]
        else:
            text = read_text(self[name])
            rows = [(f"{self[name]}:{text.count(chr(10), 0, cue.start()) + 1}", *cue.groups())
                    for cue in CUE.finditer(text)]
            require(rows or text.startswith("WEBVTT"), f"{self[name]}:1: no srt and no vtt")
        return unroll(clean(rows))

    def readable(self, unreadable):
        """Yield (id, sentences) of each narration; put {id: reason} of the others into a dict."""
        for name in tqdm(self, "captions", mininterval=1):
            try:
                yield name, self.sentences(name)
            except InputError as error:
                unreadable[name] = str(error)


def list_folder(folder):
    """{id: file}, sorted by id: of several files without a language, or in English, csv first."""
    best = {}
    for file in folder.iterdir():
        if file.suffix.lower() in SUFFIXES:
            name = LANGUAGE.sub("", file.stem)
            foreign = file.stem[len(name):][:3] not in ("", ".en")
            rank = foreign, SUFFIXES.index(file.suffix.lower()), file.name, file
            best[name] = min(rank, best.get(name, rank))
    return {name: best[name][-1] for name in sorted(best)}


def clean(rows):
    """[(where, start, end, text), ...] -> [(start s, end s, text), ...], of those with words.

    Tags, sounds as [Music] and padding are removed. pandas writes NaN where there is no text.
    """
    sentences = []
    for where, start, end, text in rows:
        text = " ".join(html.unescape(NOT_SPEECH.sub("", str(text))).split())
        if text.lower() in ("nan", "none") or not any(map(str.isalnum, text)):
            continue
        with fields_of(where, "times must be numbers of s, or HH:MM:SS"):
            start, end = clock(str(start)), clock(str(end))
        require(0 <= start <= end, f"{where}: starts at {start:g} s and ends at {end:g} s")
        sentences.append((start, end, text))
    return sorted(sentences, key=lambda sentence: sentence[0])


def unroll(sentences):
    """Remove the words by which a cue repeats the lines above it: YouTube's rolling captions.

    A cue without new words makes the last sentence longer.
    """
    unrolled, words = [], []                # words[i] are those of unrolled[i]
    for start, end, text in sentences:
        new = text.split()
        above = words[-SHOWN:] if unrolled and start <= unrolled[-1][1] + ROLL else []
        above = [sum(above[k:], []) for k in range(len(above))]    # all, ..., the last line
        repeated = max((len(line) for line in above if new[:len(line)] == line), default=0)
        if repeated < len(new):
            words.append(new[repeated:])
            unrolled.append((start, end, " ".join(words[-1])))
        else:
            first, last, line = unrolled[-1]
            unrolled[-1] = first, max(last, end), line
    return unrolled
