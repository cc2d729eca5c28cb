"""Read annotations, features and text embeddings: K classes, N windows, D embedding; times in s."""
import json
import re
import reprlib
import zlib

import numpy as np

from data import CLIP_SECONDS, Step, Video
from files.listings import CLASSES, require_span
from files.text import read_json, read_text
from support.command import BadInput, require

# COIN.json -> here; some copies of the file write "validation" instead of "testing".
SUBSETS = {"training": "train", "testing": "test", "validation": "test"}
# Of an array of an npz file: kinds of its dtype, its dimensions, and both in words.
TEXT, FLOATS, NUMBERS = ("U", 1, "text (N,)"), ("f", 2, "floats (N, D)"), ("fiu", 1, "numbers (N,)")
RECORD = "U", 0, "a text of `python -m files teach`"


def load_coin(path):
    """COIN.json as [data.Video, ...], and the names of its classes, "" where no step has one."""
    database = read_json(path, "COIN.json, with a \"database\",").get("database")
    require(isinstance(database, dict) and database, f'{path}: no videos under "database"; needed '
            'is {"database": {video: {"subset", "recipe_type", "annotation"}}} as in COIN.json')
    videos, names = [], {}
    for name, entry in database.items():
        try:
            videos.append(coin_video(name, entry))
            for step in entry["annotation"]:
                known = names.setdefault(int(step["id"]) - 1, step["label"])
                require(plain(known) == plain(step["label"]), f"id {step['id']} is "
                        f"{step['label'][:80]!r}, but {known[:80]!r} before; one label is needed")
        except ValueError as error:                    # BadInput, or a name that is not Unicode
            text = read_text(path)
            key = re.search(re.escape(json.dumps(name)) + r"\s*:", text)
            line = f":{text.count(chr(10), 0, key.start()) + 1}" if key else ""
            raise BadInput(f"{path}{line}: video {name!r}: {error}") from None
    return videos, [names.get(label, "") for label in range(max(names, default=-1) + 1)]


def coin_video(name, entry):
    """One entry of the database as a Video. Its BadInput does not name the video."""
    subset, activity, steps = take(entry, ("subset", "recipe_type", "annotation"), "the entry")
    duration = entry.get("duration")
    require(subset in list(SUBSETS),                   # a list, since `subset` may be unhashable
            f"subset is {reprlib.repr(subset)}; it must be one of {', '.join(SUBSETS)}")
    require(type(activity) is int and 0 <= activity < CLASSES, f"recipe_type is "
            f"{reprlib.repr(activity)}; it must be an integer from 0 to {CLASSES - 1}")
    require(duration is None or is_seconds(duration), f"duration is {reprlib.repr(duration)}; it "
            "must be a finite number of seconds from 0")
    require(isinstance(steps, list), "annotation must be a list [{id, segment, label}, ...]")
    steps = [coin_step(step, f"step {i}") for i, step in enumerate(steps, start=1)]
    require(len({step[:2] for step in steps}) == len(steps),
            "two steps have the same segment; one label is needed")
    return Video(name, training_split(name) if subset == "training" else SUBSETS[subset],
                 activity, duration, tuple(sorted(steps, key=lambda step: step.start)))


def coin_step(step, where):
    """One annotation {"id", "segment", "label"} as a Step. Its BadInput begins with `where`."""
    number, segment, label = take(step, ("id", "segment", "label"), where)
    require(isinstance(number, str) and re.fullmatch("[1-9][0-9]{0,4}", number), f"{where}: id is "
            f'{reprlib.repr(number)}; it must be an integer as a string, "1" to "99999": class + 1')
    require(isinstance(label, str) and plain(label),
            f"{where}: label is {reprlib.repr(label)}; it must be the step's text")
    require(isinstance(segment, list) and len(segment) == 2 and all(map(is_seconds, segment)),
            f"{where}: segment is {reprlib.repr(segment)}; it must be [start, end], s from 0")
    start, end = map(float, segment)
    require_span(where, start, end)
    return Step(start, end, int(number) - 1)


def note_unnamed(names):
    """Print how many classes have no name."""
    if "" in names:
        print(f"unnamed: {names.count('')} of {len(names)} classes that no step has, the first id "
              f"{names.index('') + 1}: they compete with an empty text; a file given to train.py "
              "and evaluate.py as --steps names all")


def take(item, keys, where):
    """The values of the keys; BadInput unless `item` is a JSON object that has them all."""
    absent = [key for key in keys if key not in item] if isinstance(item, dict) else keys
    require(not absent, f"{where} has no {', '.join(absent)}; {', '.join(keys)} are needed")
    return [item[key] for key in keys]


def is_seconds(value):
    """Whether a JSON value can be a time. Python's json accepts NaN and Infinity."""
    return type(value) in (int, float) and 0 <= value <= 1e9


def training_split(name):
    """The split of a training video: "validation" for a tenth of them, by CRC-32, else "train"."""
    return "validation" if zlib.crc32(name.encode()) % 10 == 0 else "train"


def plain(name):
    """What two spellings of a class's name have in common: neither case nor white space counts."""
    return " ".join(name.casefold().split())


def check_names(path, names, annotation_file, labels):
    """BadInput if the names in `path` contradict the annotations' labels; "" contradicts none."""
    require(len(labels) <= len(names), f"{path}: {len(names)} names, but {annotation_file} has "
            f"{len(labels)} classes; row or line i must be class i")
    for number, (name, label) in enumerate(zip(names, labels), start=1):
        require(plain(label) in ("", plain(name)), f"{path}: class {number} is {name[:80]!r}, but "
                f"{label[:80]!r} in {annotation_file}; row or line i must be class i")


def load_text_embeddings(path):
    """Names and embeddings of the K >= 2 classes: ([name, ...], (K, D) float32, not normalized)."""
    names, embeddings = read_rows(path, names=TEXT, embeddings=FLOATS)
    require(len(names) > 1, f"{path}: one class: nothing to choose from; at least two are needed")
    return names.tolist(), as_float32(path, embeddings)


def load_texts_of(labels, path, annotation_file):
    """`load_text_embeddings` of the classes of `load_coin`: the embeddings (K, D)."""
    names, embeddings = load_text_embeddings(path)
    check_names(path, names, annotation_file, labels)
    return embeddings


class FeaturesFile:
    """Embeddings of windows of videos, rows in any order.
    video: (N,) str; middle: (N,) float64, s; embedding: (N, D) float16 or float32, as stored."""

    def __init__(self, video, middle, embedding):
        self.video, self.middle, self.embedding = video, middle, embedding
        names, which, count = np.unique(video, return_inverse=True, return_counts=True)
        order = np.lexsort((middle, which))            # (N,) by video, middle, place
        self.rows = dict(zip(names.tolist(), np.split(order, np.cumsum(count[:-1]))))

    def nearest(self, name, times):
        """Rows (...) of video `name` nearest to `times` (...), s; a tie goes to the earlier row."""
        rows = self.rows[name]
        distance = np.abs(self.middle[rows] - np.asarray(times)[..., None])    # (..., n)
        return rows[distance.argmin(-1)]

    def covers(self, name, times):
        """Whether video `name` has a row at most CLIP_SECONDS from each of `times` (...), s."""
        return name in self.rows and np.all(
            np.abs(self.middle[self.nearest(name, times)] - times) <= CLIP_SECONDS)


def load_features(path):
    """Read a features file: video (N,), start (N,), end (N,), embedding (N, D) -> FeaturesFile."""
    video, start, end, embedding = read_rows(path, video=TEXT, start=NUMBERS, end=NUMBERS,
                                             embedding=FLOATS)
    require(embedding.dtype.itemsize <= 4,
            f"{path}: embedding is {embedding.dtype}; save it as float16 or float32")
    start, end = start.astype(np.float64), end.astype(np.float64)
    check_rows(path, (0 <= start) & (start <= end) & (end <= 1e9),
               "start and end must be seconds from 0, the end not before the start")
    check_lengths(path, embedding)
    return FeaturesFile(video, (start + end) / 2, embedding)


def load_teacher_rows(path):
    """The file that `files teach` writes of a video: (n, D) float32, a row a second; its record."""
    rows, made = read_rows(path, rows=FLOATS, made=RECORD)
    return as_float32(path, rows), str(made)


def read_rows(path, **needed):
    """The arrays `needed` of an npz file, in that order: of these kinds, of N rows each."""
    try:                                               # np.load would also accept an npy file
        with np.lib.npyio.NpzFile(path, allow_pickle=False) as file:
            absent = [key for key in needed if key not in file.files]
            require(not absent, f"no array {', '.join(absent)} (it has {', '.join(file.files)})")
            arrays = [np.asarray(file[key]) for key in needed]
            arrays = [np.asarray(array, array.dtype.newbyteorder("="), "C") for array in arrays]
    except Exception as error:                         # numpy has no class for a damaged file
        raise BadInput(f"{path}: {getattr(error, 'strerror', None) or error}; an npz file with "
                       f"{', '.join(needed)} is needed, without object arrays") from None
    for (key, (kinds, dimensions, words)), array in zip(needed.items(), arrays):
        require(array.dtype.kind in kinds and array.ndim == dimensions and array.size > 0
                and array.shape[:1] in ((), arrays[0].shape[:1]), f"{path}: {key} is {array.dtype} "
                f"{array.shape}; {words} is needed, with N and D at least 1, the same N everywhere")
    return arrays


def as_float32(path, rows):
    """Rows (N, D) as float32, in which their lengths are checked."""
    with np.errstate(over="ignore"):                   # float64 beyond float32 becomes infinite
        rows = rows.astype(np.float32)
    check_lengths(path, rows)
    return rows


def check_lengths(path, rows):
    """BadInput unless float32 can square, and F.normalize (eps 1e-12) normalize, rows (N, D)."""
    length = np.sqrt(np.einsum("nd,nd->n", rows, rows, dtype=np.float64, casting="same_kind"))
    check_rows(path, (length >= 1e-10) & (length <= 1e18), "all zeros or NaN, or its length is not "
               "between 1e-10 and 1e18, as float32 needs; make the embeddings again")


def check_rows(path, good, problem):
    """BadInput naming the first row where `good` (N,) is False."""
    require(good.all(), f"{path}: row {good.argmin()} (counted from 0): {problem}")
