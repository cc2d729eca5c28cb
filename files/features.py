"""Features of videos, instead of their frames, as `evaluate.py --task features` writes them.

A file is an npz of R rows, as NEED says; teacher, if the embeddings are not CLIP's own. A video has
m rows and n windows.
"""
import functools
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from files.lists import fields_of, video_name
from files.sources import VideoSource, shares
from files.video import SLACK
from support.errors import require

NEED = ("needed are video (R,) text, start and end (R,) s, embedding (R, F) and, if any, teacher "
        "(R, D), floats, saved by np.savez, the rows of a video one after the other")
ROUNDING = 1e-3           # s, of times in float32
KEPT = 8000               # narrations kept in memory: cleaning one takes longer than training on it


class Rows(NamedTuple):
    """The m rows of one video."""
    path: Path                     # of the file
    spans: np.ndarray              # (m, 2) s
    embedding: np.ndarray          # (m, F): for f
    teacher: np.ndarray            # (m, D): for the teacher


def find_rows(path):
    """{id: Rows} of a file. InputError if it is not as above; nothing in it is executed."""
    require(zipfile.is_zipfile(path), f"{path}: no such file, no npz, or cut off; {NEED}")
    with fields_of(path, NEED), np.load(path, allow_pickle=False) as file:
        video, spans = file["video"], np.stack([file["start"], file["end"]], 1).astype(float)
        embedding = file["embedding"]
        teacher = file["teacher"] if "teacher" in file.files else embedding
    fits = all(matrix.ndim == 2 and len(matrix) == len(video) and matrix.dtype.kind == "f"
               for matrix in (spans, embedding, teacher))
    require(fits and len(video) and video.dtype.kind == "U" and (spans[:, 0] <= spans[:, 1]).all(),
            f"{path}: other types, shapes or times; {NEED}")
    first = np.flatnonzero(np.append(True, video[1:] != video[:-1]))       # row of each video
    parts = zip(*(np.split(array, first[1:]) for array in (spans, embedding, teacher)))
    found = {video_name(video[i]): Rows(path, *part) for i, part in zip(first, parts)}
    require(len(found) == len(first), f"{path}: the rows of a video are in two places; {NEED}")
    return found


def read_rows(rows, windows):
    """What f and the teacher read of windows (n, 2) s: (n, F) and (n, D) float32.

    It is the mean of the rows whose middle lies in a window, else the nearest row. Only rows that
    end before the window ends are used; if none does, the row that ends first. Raises InputError.
    """
    ends, end = rows.spans[:, 1], windows.max()
    require(ends.min() <= end + ROUNDING, f"{rows.path}: no row ends before {end:.1f} s")
    require(windows[:, 0].max() < ends.max() + SLACK,
            f"{rows.path}: ends before {end:.1f} s; times must be seconds")
    ended = ends <= np.maximum(windows[:, 1:], ends.min()) + ROUNDING              # (n, m)
    share = shares(rows.spans, windows, ended)                                     # (n, m)
    used = share.any(0)                                # a row of later may be NaN: 0 * NaN is NaN
    means = [torch.from_numpy(share[:, used] @ matrix[used]).float()
             for matrix in (rows.embedding, rows.teacher)]
    require(all(mean.isfinite().all() for mean in means), f"{rows.path}: a number is not finite")
    return means


def require_widths(found, width, dim=None):
    """F of {id: Rows}. InputError if f reads rows of another `width`, or if the texts have another
    `dim` than what the teacher sees. None: not compared."""
    path, _, embedding, teacher = next(iter(found.values()))
    F, D = embedding.shape[1], teacher.shape[1]
    require(width in (None, F), f"{path}: embedding is (R, {F}), the checkpoint reads (R, {width})")
    require(dim in (None, D), f"{path}: teacher is (R, {D}), (R, {dim}) of --clip is needed")
    return F


class FeatureSource(VideoSource):
    """Listed videos of a file of features: its `paths` are {id: Rows}."""
    find = staticmethod(find_rows)
    sentences = functools.lru_cache(KEPT)(VideoSource.sentences)

    def duration(self, i):
        """When the last row of video i ends, s. Raises InputError."""
        return self.read(i, lambda rows: rows.spans.max())

    def clips(self, i, windows, rng):
        """`read_rows` of video i."""
        return self.read(i, read_rows, windows)
