"""Read annotations, features and text embeddings. An error line names the file and line or row.

    file                               function              gives
    COIN.json                          load_coin             [data.Video, ...] and class names
    text embeddings (npz)              load_text_embeddings  K names and (K, D); row i is class i
    features, a row per window (npz)   load_features         FeaturesFile: row by video and time
    teacher's features (npy)           load_teacher_rows     (n, D), row i is second i of one video
    K classes, N windows, D embedding. Times are in seconds. Rows of npz files count from 0.

A bad file is a BadInput, a ValueError, of one line that begins with the file's name.
"""
import json
import re
import zipfile
import zlib
from dataclasses import dataclass
from tokenize import TokenError

import numpy as np

from data import Step, Video
from files.text import read_json, read_text, require
from support.command import BadInput

SUBSETS = {"training": "train", "testing": "test", "validation": "test"}    # COIN.json -> here
ROWS_AT_ONCE = 4096        # rows whose values are checked together: 2 MB of temporary memory


def load_coin(path):
    """Read COIN.json: the videos in the file's order, and the names of the step classes.

    "training" is train, of which a tenth becomes validation (`training_split`); "testing" is test,
    and so is "validation", which some copies of the file write instead.

    Returns: ([data.Video, ...], [name, ...]). Name i is the first label in the file of class i, up
             to the largest class; "" if no step has that class, so that names[i] is class i.
    Raises:  BadInput naming the file, and the line and the video where it is about one.
    """
    data = read_json(path, "COIN.json")
    database = data.get("database") if isinstance(data, dict) else None
    require(isinstance(database, dict) and database, f'{path}: no videos under "database"; needed '
            'is {"database": {video: {"subset", "recipe_type", "annotation"}}} as in COIN.json')
    videos, names = [], {}
    for name, entry in database.items():
        try:
            videos.append(coin_video(name, entry))
        except ValueError as error:                    # BadInput, or a name that is not Unicode
            text = read_text(path)
            key = re.search(re.escape(json.dumps(name)) + r"\s*:", text)
            line = f":{text.count(chr(10), 0, key.start()) + 1}" if key else ""
            raise BadInput(f"{path}{line}: video {name!r}: {error}") from None
        for step in entry["annotation"]:
            names.setdefault(int(step["id"]) - 1, step["label"])
    return videos, [names.get(label, "") for label in range(max(names, default=-1) + 1)]


def coin_video(name, entry):
    """One entry of the database as a Video. Its BadInput does not name the video."""
    subset, activity, steps = take(entry, ("subset", "recipe_type", "annotation"), "the entry")
    duration = entry.get("duration")
    require(subset in list(SUBSETS),                   # a list, since `subset` may be unhashable
            f"subset is {subset!r}; it must be one of {', '.join(SUBSETS)}")
    require(type(activity) is int and activity >= 0,
            f"recipe_type is {activity!r}; it must be an integer from 0")
    require(duration is None or is_seconds(duration),
            f"duration is {duration!r}; it must be a finite number of seconds from 0")
    require(isinstance(steps, list), "annotation must be a list [{id, segment, label}, ...]")
    steps = [coin_step(step, f"step {i}") for i, step in enumerate(steps, start=1)]
    return Video(name, training_split(name) if subset == "training" else SUBSETS[subset],
                 activity, duration, tuple(sorted(steps, key=lambda step: step.start)))


def coin_step(step, where):
    """One annotation {"id", "segment", "label"} as a Step. Its BadInput begins with `where`."""
    number, segment, label = take(step, ("id", "segment", "label"), where)
    # At most 5 digits: a typo in one id must not become a list of a billion names.
    require(isinstance(number, str) and re.fullmatch("[1-9][0-9]{0,4}", number), f"{where}: id is "
            f'{number!r}; it must be an integer as a string, "1" to "99999": the class + 1')
    require(isinstance(label, str), f"{where}: label is {label!r}; it must be the step's text")
    require(isinstance(segment, list) and len(segment) == 2 and all(map(is_seconds, segment)),
            f"{where}: segment is {segment!r}; it must be [start, end], finite seconds from 0")
    start, end = map(float, segment)
    require(start <= end, f"{where}: its end, {end:g} s, is before its start, {start:g} s")
    return Step(start, end, int(number) - 1)


def take(item, keys, where):
    """The values of the keys; BadInput unless `item` is a JSON object that has them all."""
    absent = [key for key in keys if key not in item] if isinstance(item, dict) else keys
    require(not absent, f"{where} has no {', '.join(absent)}; {', '.join(keys)} are needed")
    return [item[key] for key in keys]


def is_seconds(value):
    """Whether a JSON value can be a time. Python's json accepts NaN and Infinity."""
    return type(value) in (int, float) and 0 <= value <= 1e9


def training_split(name):
    """The split of a training video: "validation" for a tenth of them, by CRC-32, else "train".

    The split does not depend on the machine (Python's own hash() does) or on other videos.
    """
    return "validation" if zlib.crc32(name.encode()) % 10 == 0 else "train"


def load_text_embeddings(path):
    """Names and embeddings of the K >= 2 classes: ([name, ...], (K, D) float32, not normalised).

    BadInput if an array is absent or has another shape, or a row is NaN, infinite or all zeros.
    """
    names, embeddings = read_arrays(path, ("names", "embeddings"))
    check_table(path, "names", names, "embeddings", embeddings)
    require(len(names) > 1, f"{path}: one class: nothing to choose from; at least two are needed")
    with np.errstate(over="ignore"):          # a float64 too large becomes inf, refused below
        embeddings = embeddings.astype(np.float32)
    check_rows(path, finite_rows(embeddings), "embeddings holds NaN or infinity")
    check_rows(path, embeddings.any(axis=1), "embeddings is all zeros, which has no direction")
    return names.tolist(), embeddings


@dataclass(eq=False)
class FeaturesFile:
    """Embeddings of windows of videos, rows in any order.

    video (N,) str; middle (N,) float64, s; embedding (N, D) float16 or float32, as stored.
    """
    video: np.ndarray
    middle: np.ndarray
    embedding: np.ndarray

    def __post_init__(self):
        """Index the rows once: by video, then by middle. Of equal middles, the first row counts."""
        names, which = np.unique(self.video, return_inverse=True)            # (V,), (N,)
        order = np.lexsort((self.middle, which))       # (N,)  stable: equal middles in file order
        repeated = (np.diff(which[order]) == 0) & (np.diff(self.middle[order]) == 0)   # (N - 1,)
        order = order[np.append(True, ~repeated)]
        first = np.searchsorted(which[order], np.arange(1, len(names)))      # of video 1, 2, ...
        self.rows = dict(zip(names.tolist(), np.split(order, first)))

    def nearest(self, name, times):
        """Rows (...) int64 of video `name` whose middles are nearest to `times` (...), s.

        A tie goes to the earlier row. KeyError if the video has no row.
        """
        middle = self.middle[self.rows[name]]          # increasing
        borders = (middle[1:] + middle[:-1]) / 2       # a time up to border i belongs to row i
        return self.rows[name][np.searchsorted(borders, times)]


def load_features(path):
    """Read a features file: video (N,), start (N,), end (N,), embedding (N, D) -> FeaturesFile.

    BadInput if an array is absent, has a wrong shape, type or value, or ends before it starts.
    """
    video, start, end, embedding = read_arrays(path, ("video", "start", "end", "embedding"))
    check_table(path, "video", video, "embedding", embedding)
    require(embedding.dtype.itemsize <= 4,
            f"{path}: embedding is {embedding.dtype}; save it as float16 or float32")
    for key, times in (("start", start), ("end", end)):
        require(times.shape == video.shape and times.dtype.kind in "fiu", f"{path}: {key} is "
                f"{times.dtype} {times.shape}; numbers {video.shape}, as of video, are needed")
        check_rows(path, np.isfinite(times), f"{key} is NaN or infinite")
    start, end = start.astype(np.float64), end.astype(np.float64)
    check_rows(path, start <= end, "end is before start")
    check_rows(path, finite_rows(embedding), "embedding holds NaN or infinity")
    return FeaturesFile(video, (start + end) / 2, embedding)


def load_teacher_rows(path, width):
    """The teacher's features of one video, (n, D) float32, a row per second: see `data.py teach`.

    BadInput unless the file is an npy of finite float rows, D = `width`.
    """
    try:
        rows = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise BadInput(f"{path}: {error}; remove it, or make it again with data.py teach") from None
    require(rows.dtype.kind == "f" and rows.ndim == 2 and len(rows) and rows.shape[1] == width,
            f"{path}: {rows.dtype} {rows.shape}; floats (n, {width}) are needed, n at least 1: was "
            "it made with another --clip?")
    check_rows(path, finite_rows(rows), "holds NaN or infinity")
    return rows.astype(np.float32)


def read_arrays(path, keys):
    """The arrays `keys` of an npz file, in that order. Its other arrays are not read."""
    try:               # ZipFile refuses what np.load would accept and we cannot: .npy and pickles
        with (open(path, "rb") as raw, zipfile.ZipFile(raw),
              np.load(path, allow_pickle=False) as file):
            absent = [key for key in keys if key not in file.files]
            require(not absent, f"no array {', '.join(absent)} (it has {', '.join(file.files)})")
            return [np.asarray(file[key]) for key in keys]
    except (OSError, ValueError, EOFError, MemoryError, RuntimeError, TokenError,
            zipfile.BadZipFile, zlib.error) as error:
        raise BadInput(f"{path}: {getattr(error, 'strerror', None) or error}; an npz file with "
                         f"{', '.join(keys)} is needed, without object arrays") from None


def check_table(path, text_key, text, float_key, table):
    """BadInput unless `text` is (N,) str and `table` (N, D) floats, with N and D at least 1."""
    require(text.dtype.kind == "U" and table.dtype.kind == "f" and table.ndim == 2
            and text.shape == table.shape[:1] and table.size > 0,
            f"{path}: {text_key} is {text.dtype} {text.shape}, {float_key} {table.dtype} "
            f"{table.shape}; text (N,) and floats (N, D) are needed, with N and D at least 1")


def finite_rows(table):
    """(N,) bool: which rows of (N, D) have no NaN or infinity. Needs little memory."""
    parts = range(0, len(table), ROWS_AT_ONCE)
    return np.concatenate([np.isfinite(table[i:i + ROWS_AT_ONCE]).all(axis=1) for i in parts])


def check_rows(path, good, problem):
    """BadInput naming the first row where `good` (N,) is False."""
    require(good.all(), f"{path}: row {good.argmin()} (counted from 0): {problem}")
