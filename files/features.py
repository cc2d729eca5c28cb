"""Features of videos, instead of their frames, as `evaluate.py --task features` writes them.

A file is an npz of R rows. The rows of a video follow each other. Its arrays: video (R,) text;
start, end (R,) s; embedding (R, F); and teacher (R, D), if the embeddings are not CLIP's own. The
file is read video by video, so it may be larger than memory. A video has m rows and n windows.
"""
import functools
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from data import forecast_windows
from files.lists import fields_of, video_name
from files.sources import VideoSource, shares
from files.video import SLACK
from support.errors import require

NEED = ("needed are video (R,) text, start and end (R,) s, embedding (R, F) and, if any, teacher "
        "(R, D), floats, saved by np.savez, the rows of a video one after the other")
ROUNDING = 1e-3           # s, of times in float32
KEPT = 8000               # narrations kept in memory: cleaning one takes longer than training on it


class Rows(NamedTuple):
    """The rows of one video."""
    path: Path
    spans: np.ndarray              # (m, 2) s
    first: int                     # number of the first one in the file
    matrices: tuple                # embedding and what the teacher sees: (offset, width, dtype)

    def read(self, offset, width, dtype):
        """The video's rows of a matrix that begins at byte `offset`: (m, width)."""
        m, offset = len(self.spans), offset + self.first * width * dtype.itemsize
        return np.fromfile(self.path, dtype, m * width, offset=offset).reshape(m, width)


def find_matrix(path, archive, name, R):
    """Where the matrix `name` of R rows begins: (byte, width, dtype). Raises InputError."""
    info = archive.getinfo(f"{name}.npy")
    require(info.compress_type == zipfile.ZIP_STORED, f"{path}: {name} is compressed; {NEED}")
    with archive.open(info) as file:
        version, _ = np.lib.format.read_magic(file)
        shape, fortran, dtype = getattr(np.lib.format, f"read_array_header_{version}_0")(file)
        header = file.tell()
    require(len(shape) == 2 and shape[0] == R and shape[1] and dtype.kind == "f" and not fortran,
            f"{path}: {name} is {dtype} {shape}{' in columns' * fortran}; {NEED}")
    with open(path, "rb") as file:                     # zip's own header: 30 bytes and two texts
        file.seek(info.header_offset + 26)
        texts = sum(int.from_bytes(file.read(2), "little") for _ in range(2))
    return info.header_offset + 30 + texts + header, shape[1], dtype


def find_rows(path):
    """{id: Rows} of a file. InputError if it is not as above; nothing in it is executed."""
    require(zipfile.is_zipfile(path), f"{path}: no such file, no npz, or cut off; {NEED}")
    with fields_of(path, NEED), np.load(path, allow_pickle=False) as file:
        video, spans = file["video"], np.stack([file["start"], file["end"]], 1).astype(float)
        require(len(video) and video.dtype.kind == "U" and spans.shape == (*video.shape, 2) and
                (spans[:, 0] <= spans[:, 1]).all() and np.isfinite(spans).all(),
                f"{path}: other video, start or end; {NEED}")
        matrices = tuple(find_matrix(path, file.zip, name, len(video)) for name in (
            "embedding", "teacher" if "teacher" in file.files else "embedding"))
    first = np.flatnonzero(np.append(True, video[1:] != video[:-1]))       # row of each video
    found = {video_name(video[i]): Rows(path, spans_of, int(i), matrices)
             for i, spans_of in zip(first, np.split(spans, first[1:]))}
    require(len(found) == len(first), f"{path}: the rows of a video are in two places; {NEED}")
    return found


def read_rows(rows, windows):
    """What f and the teacher read of windows (n, 2) s: the mean of the rows whose middle lies in a
    window, else the nearest row. Only rows that end before the window ends are used. If no row
    does, the row that ends first is used.

    Returns: (n, F) and (n, D) float32.
    Raises:  InputError if no row ends before the windows end; if a window begins after the last
             row; if a number is not finite.
    """
    ends, end = rows.spans[:, 1], windows.max()
    require(ends.min() <= end + ROUNDING, f"{rows.path}: no row ends before {end:.1f} s")
    require(windows[:, 0].max() < ends.max() + SLACK, f"{rows.path}: ends at {ends.max():.1f} s, "
            f"before the window that begins at {windows[:, 0].max():.1f} s; times must be seconds")
    ended = ends <= np.maximum(windows[:, 1:], ends.min()) + ROUNDING              # (n, m)
    share = shares(rows.spans, windows, ended)
    used = share.any(0)
    means = [torch.from_numpy(share[:, used] @ rows.read(*matrix)[used]).float()
             for matrix in rows.matrices]
    require(all(mean.isfinite().all() for mean in means), f"{rows.path}: a number that is not "
            f"finite, before {end:.1f} s")
    return means


def read_clips(path, name, windows=None):
    """Like files.video.read_clips, for video `name` of a file of features -> (n, F) float32."""
    rows = find_rows(path)[name]
    windows = forecast_windows(rows.spans.max()) if windows is None else windows
    return read_rows(rows, windows)[0]


def require_widths(found, width, dim=None):
    """F of {id: Rows}. InputError if f reads another width, or if the texts are not as wide as the
    teacher's features. A width of None fits any."""
    path, _, _, ((_, F, _), (_, D, _)) = next(iter(found.values()))
    require(width in (None, F), f"{path}: rows of embedding have {F} numbers, the checkpoint reads "
            f"{width}; give the features that it was trained on")
    require(dim in (None, D), f"{path}: what the teacher sees has {D} numbers, its texts {dim}; "
            f"needed is teacher (R, {dim}), the image features of --clip")
    return F


class FeatureSource(VideoSource):
    """Listed videos of a file of features: its `paths` are {id: Rows}."""
    find = staticmethod(find_rows)

    @functools.lru_cache(KEPT)
    def sentences(self, i):
        """As VideoSource.sentences."""
        return super().sentences(i)

    def duration(self, i):
        """When the last row of video i ends, s. Raises InputError."""
        return self.read(i, lambda rows: rows.spans.max())

    def clips(self, i, windows, rng):
        """`read_rows` of video i."""
        return self.read(i, read_rows, windows)
