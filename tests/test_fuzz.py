"""Damaged videos, captions, lists, json and npz end in good data or in the promised one line.

    python -m pytest -q tests/test_fuzz.py                                            # a few cases
    FUZZ=100 python -m pytest -q tests/test_fuzz.py -o faulthandler_timeout=600       # thousands

A case damages one file as a disk, a download or an editor may, and reads it. Case N of a kind
damages the same file in the same way each time. The last case in a failure's output is the one that
failed. A crash or a hang of native code ends with its traceback.
"""
import io
import os
import random
import zipfile

import numpy as np
import pytest

import test_captions
import test_listings
import test_video
from commands import make_coin
from files.annotations import load_coin, load_features, load_text_embeddings
from files.captions import open_captions
from files.video import Unreadable, duration, read_frames
from support.command import BadInput

# --- Damage ---
PIECES = (b"-->", b'"', b",", b"\n", b"\n\n", b"\0", b"9" * 400, b"[{", b"}", b"nan", b"NaN", b"-",
          b" ", b"1e999", b"null", b"\xff", b"\xef\xbb\xbf")


def mutate(data, rng):
    """Bytes of a text: some changed, put in, taken out, said again or cut off."""
    data = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        i, j = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
        kind = rng.randrange(6)
        if kind == 0:
            data[i:i + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            data[i:i] = rng.choice(PIECES)
        elif kind == 2:
            del data[i:min(j, i + 9)]
        elif kind == 3:
            data[i:i] = data[i:min(j, i + 1000)]
        elif kind == 4:
            data[i:i + 1] = b"%d" % rng.randrange(10 ** rng.randint(1, 12))
        elif rng.random() < .3:
            del data[i:]
    return bytes(data)


def flip(data, rng):
    """Bytes of a binary file: bits flipped anywhere, near its start or near its end; cut off."""
    data = bytearray(data)
    low, high = rng.choice(((0, len(data)), (0, 1500), (len(data) - 3000, len(data))))
    for _ in range(rng.choice((1, 4, 40))):
        data[rng.randrange(max(low, 0), min(high, len(data)))] ^= 1 << rng.randrange(8)
    return bytes(data[:rng.randint(len(data) // 2, len(data))] if rng.random() < .25 else data)


def flip_npz(data, rng):
    """As `flip`; or within one array, in a zip file that is whole: checksums hide nothing then."""
    if rng.random() < .5:
        return flip(data, rng)
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    name, out = rng.choice(sorted(parts)), io.BytesIO()
    head = rng.random() < .7                           # 128 bytes: type and shape
    part = parts[name]
    parts[name] = mutate(part[:128], rng) + part[128:] if head else flip(part, rng)
    with zipfile.ZipFile(out, "w") as file:
        for name, part in parts.items():
            file.writestr(name, part)
    return out.getvalue()


# --- Readers: what good data is ---
def read_captions(path):
    found = open_captions(path if path.suffix == ".json" else path.parent)
    for start, end, text in (row for name in found for row in found.sentences(name)):
        assert 0 <= start <= end < float("inf") and text.split()


def read_coin(path):
    videos, names = load_coin(path)
    for step in (step for video in videos for step in video.steps):
        assert 0 <= step.start <= step.end < float("inf") and 0 <= step.label < len(names)


def read_features(path):
    features = load_features(path)
    assert np.isfinite(features.embedding).all() and np.isfinite(features.middle).all()
    rows = features.nearest(str(features.video[0]), np.array([1.0, 50.0]))
    assert (features.video[rows] == features.video[0]).all()


def read_texts(path):
    names, texts = load_text_embeddings(path)
    assert len(names) == len(texts) and np.isfinite(texts).all() and texts.any(1).all()


def read_video(path):
    assert 0 <= duration(path) < float("inf")
    pictures = read_frames(path, [0.3, 5.1, 1.7, 7.9, 2.0], short_side=24)
    assert pictures.shape[:2] == (5, 3)


def write_coin(folder, name):
    """A file of commands.make_coin, as bytes."""
    make_coin(folder)
    return (folder / name).read_bytes()


def write_video(folder, name, **options):
    """A video of test_video.write, as bytes."""
    return test_video.write(folder / name, count=200, container={"fflags": "bitexact"},
                            **options).read_bytes()


VIDEOS = {"a.mp4": {}, "a.mkv": {},
          "a.webm": {"codec": "libvpx", "options": {"deadline": "good", "cpu-used": "5"},
                     "gop": 20},
          "a.avi": {"codec": "mpeg4", "options": test_video.MPEG4, "gop": 12},
          "b.mov": {"codec": "mjpeg", "options": {}, "pixels": "yuvj420p"}}
# kind: (name of the file, its whole bytes from an empty folder, damage, reader)
KINDS = {f"video {name}": (name, lambda folder, name=name, options=options: write_video(
             folder, name, **options), flip, read_video) for name, options in VIDEOS.items()}
KINDS |= {f"captions {name}": (name, lambda _, text=text: text.encode(), mutate, read_captions)
          for name, text in test_captions.LAYOUTS.items()}
KINDS |= {f"list {name}": ("list", lambda _, text=text: text.encode(), mutate, read)
          for name, (read, text) in test_listings.READERS.items()}
KINDS |= {name: (name, lambda folder, name=name: write_coin(folder, name), damage, read)
          for name, damage, read in [("COIN.json", mutate, read_coin),
                                     ("features.npz", flip_npz, read_features),
                                     ("texts.npz", flip_npz, read_texts)]}
CASES = {"captions": 60, "list": 30, "video": 16}      # of each kind; 12 of the others


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_end_in_data_or_one_line(kind, tmp_path):
    """Catches: a traceback, wrong data or a hang on damage nobody thought of."""
    (name, make, damage, read), refused = KINDS[kind], 0
    path, whole = tmp_path / "damaged" / name, make(tmp_path)
    path.parent.mkdir()
    for number in range(CASES.get(kind.split()[0], 12) * int(os.environ.get("FUZZ", 1))):
        print(f"case {number} of {kind}")
        path.write_bytes(damage(whole, random.Random(f"{kind} {number}")))
        try:
            read(path)
        except (BadInput, Unreadable) as error:
            assert "\n" not in str(error) and str(error).startswith(str(path.parent)), repr(error)
            refused += 1
    assert refused                                     # the damage is felt
