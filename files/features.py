"""Features of videos, instead of their frames, as `evaluate.py --task features` writes them.

A file is an npz of R rows, as NEED says. It needs `teacher` if the embeddings are not CLIP's. A
video has m rows and n windows.
"""
import functools
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from data import Example, Lists, Unreadable, Video, averaging_weights, window_around
from files.coin import add_label_flags, read_labels
from files.folder import VideoFolder, add_narration_flags
from files.video import SLACK
from support.arguments import existing
from support.encode import encode_examples
from support.errors import require
from support.read import fields_of, video_name
from support.tensors import read_npz
from support.write import write_atomically

NEED = ("expected video (R,) text, start and end (R,) s, embedding (R, F) and, if any, teacher "
        "(R, D), floats, saved by np.savez, the rows of a video one after the other")
ROUNDING = 1e-3           # s, of times in float32
ROW_SECONDS, ROWS = 4.0, 8         # of a row that is written; rows that are read at once
KEPT = 8000               # narrations kept in memory: cleaning one takes longer than training on it


class Rows(NamedTuple):
    """The m rows of one video."""
    path: Path                     # of the file
    spans: np.ndarray              # (m, 2) s
    embedding: np.ndarray          # (m, F): for f
    teacher: np.ndarray            # (m, D): for the teacher


def find_rows(path):
    """{id: Rows} of a file. InputError if it is not as above; nothing in it is executed."""
    arrays = read_npz(path, NEED)
    with fields_of(path, NEED):
        video, embedding = arrays["video"], arrays["embedding"]
        spans = np.stack([arrays["start"], arrays["end"]], 1).astype(float)
        teacher = arrays.get("teacher", embedding)
    fits = all(matrix.ndim == 2 and len(matrix) == len(video) and matrix.dtype.kind == "f"
               for matrix in (spans, embedding, teacher))
    require(fits and len(video) and video.dtype.kind == "U", f"{path}: other types or shapes; "
            f"{NEED}")
    require(np.isfinite(spans).all() and (spans[:, 0] <= spans[:, 1]).all(), f"{path}: a row does "
            f"not end after its start, or never; {NEED}")
    first = np.flatnonzero(np.append(True, video[1:] != video[:-1]))       # row of each video
    found = {}
    for begin, end in pairwise(first.tolist() + [len(video)]):
        own = slice(begin, end)
        found[video_name(video[begin])] = Rows(path, spans[own], embedding[own], teacher[own])
    require(len(found) == len(first), f"{path}: the rows of a video are in two places; {NEED}")
    return found


def read_rows(rows, windows):
    """What f and the teacher read of windows (n, 2) s: (n, F) and (n, D) float32.

    It is the mean of the rows whose middle lies in a window, else the nearest row. Only rows that
    end before the window ends are used; if none does, the row that ends first. Raises Unreadable.
    """
    ends, end = rows.spans[:, 1], windows.max()
    if ends.min() > end + ROUNDING:
        raise Unreadable(f"{rows.path}: no row ends before {end:.1f} s")
    if windows[:, 0].max() >= ends.max() + SLACK:
        raise Unreadable(f"{rows.path}: ends before {end:.1f} s; times must be seconds")
    ended = ends <= np.maximum(windows[:, 1:], ends.min()) + ROUNDING              # (n, m)
    weights = averaging_weights(rows.spans, windows, ended)                        # (n, m)
    used = weights.any(0)                                # a row of later may be NaN: 0 * NaN is NaN
    means = [torch.from_numpy(weights[:, used] @ matrix[used]).float()
             for matrix in (rows.embedding, rows.teacher)]
    if not all(mean.isfinite().all() for mean in means):
        raise Unreadable(f"{rows.path}: a number is not finite")
    return means


class Features(VideoFolder):
    """Features of narrated or labeled videos, in place of their pictures."""
    narrated = True
    has = "steps", "names", "activities"
    side = 0
    size = "small"
    encoder = "adapter"
    flag = "features"
    find = staticmethod(find_rows)
    narration = functools.lru_cache(KEPT)(VideoFolder.narration)

    @staticmethod
    def add_flags(add, command):
        add("--features", type=existing, required=True,
            help="npz of features, as evaluate.py --task features writes")
        if command in ("pretrain", "check"):
            add_narration_flags(add, required=command == "pretrain")
        if command != "pretrain":
            add_label_flags(add, command, required=command != "check")

    def __init__(self, args):
        super().__init__(args)
        first = next(iter(self.paths.values()))
        self.widths = first.embedding.shape[1], first.teacher.shape[1]

    def read_lists(self, args, split):
        """See Source.read_lists: of --annotations; without, the videos with a narration."""
        if getattr(args, "annotations", None):
            return read_labels(args)
        return Lists([Video(name) for name in self.ids(args)])

    def duration(self, i):
        """When the last row of video i ends, s."""
        return float(self.path(i).spans.max())

    def clips(self, i, windows, rng=None):
        """See Source.clips, and `read_rows`. Nothing is drawn at random."""
        return read_rows(self.path(i), windows)

    def read_end(self, i, end):
        """See VideoFolder.read_end: all rows up to `end` s."""
        self.clips(i, np.array([[0.0, end]]))


def write_features(args, model, teacher, source):
    """Write a file for --data features, a row for each ROW_SECONDS of all videos of a source. With
    a teacher it has its features, too, from which one can train."""
    require(model.encoder.image, f"{model.path}: reads features; --task features needs a "
            "checkpoint that reads pictures")
    examples = []
    for i in range(len(source.videos)):
        try:
            source.require_used(i)
            end = source.duration(i)
        except Unreadable:
            end = 0.0                                      # `encode_examples` counts it
        middles = np.arange(ROW_SECONDS / 2, max(end, ROW_SECONDS), ROW_SECONDS)
        windows = np.array([window_around(m, m, ROW_SECONDS, end) for m in middles])
        for first in range(0, len(windows), ROWS):
            examples.append(Example(i, windows[first:first + ROWS], 0, 0))
    x, n, seen, examples, unreadable = encode_examples(model, teacher, source, examples, args)
    own = torch.arange(x.shape[1], device=x.device) < n[:, None]               # (M, N)
    windows = np.concatenate([example.windows for example in examples])
    names = []
    for example in examples:
        names += [source.videos[example.video].name] * len(example.windows)
    rows = {"video": names, "start": windows[:, 0], "end": windows[:, 1],
            "embedding": x[own].cpu().numpy()}
    if teacher:
        rows["teacher"] = seen[own].cpu().numpy()
    write_atomically(args.out, lambda file: np.savez(file, **rows))
    print(f"{args.out}: {len(windows)} windows; {len(unreadable)} of {len(source.videos)} videos "
          "unreadable")
