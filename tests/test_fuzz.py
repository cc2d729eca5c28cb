"""Damaged files end in good data or in the promised one line: a few cases, or thousands by

    FUZZ=100 python -m pytest -q tests/test_fuzz.py -o faulthandler_timeout=600

Case N of a kind is damaged alike each time; the last one in a failure's output has failed."""
import io
import json
import os
import random
import time

import numpy as np
import pytest
import test_captions
import test_checkpoint
import test_listings
import test_video
import torch
from commands import make_coin

from files.annotations import load_coin, load_features, load_text_embeddings
from files.captions import Captions
from files.video import Unreadable, duration, read_frames
from support.command import BadInput
from weights.checkpoint import load_model, save_checkpoint

CASES = {"captions": 60, "list": 30, "video": 16}      # of each kind; 12 of the others
FUZZ = int(os.environ.get("FUZZ", 1))                  # times as many
PIECES = (b"-->", b'"', b",", b"\n", b"\n\n", b"\0", b"9" * 400, b"[{", b"}", b"nan", b"NaN", b"-",
          b" ", b"1e999", b"null", b"\xff", b"\xef\xbb\xbf")


def mutate(data, rng):
    """Bytes of a text: some replaced by others, by a copy of the next ones or by nothing; cut."""
    for _ in range(rng.randint(1, 6)):
        i, j = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
        new = rng.choice((bytes([rng.randrange(256)]), rng.choice(PIECES), b"", data[i:j][:1000],
                          b"%d" % rng.randrange(10 ** rng.randint(1, 12))))
        data = data[:i] + new + data[i + rng.choice((0, 1, min(j - i, 9))):]
    return data[:rng.randrange(len(data) + 1)] if rng.random() < .1 else data


def flip(data, rng):
    """Bytes of a binary file: bits flipped anywhere, near its start or near its end; cut off."""
    data = bytearray(data)
    low, high = rng.choice(((0, len(data)), (0, 1500), (len(data) - 3000, len(data))))
    for _ in range(rng.choice((1, 4, 40))):
        data[rng.randrange(max(low, 0), min(high, len(data)))] ^= 1 << rng.randrange(8)
    return bytes(data[:rng.randint(len(data) // 2, len(data))] if rng.random() < .25 else data)


NESTED = json.loads("[" * 300 + "]" * 300)
VALUES = (None, True, 0, -1, 3, 0.5, 1e9, -1e300, 10 ** 12, 10 ** 300, float("nan"), float("inf"),
          "", "3", [], [3, 4], {}, {"a": {"b": 1}}, NESTED)
TENSORS = (lambda x: x.half(), lambda x: x.bfloat16(), lambda x: x.long(), lambda x: x.double(),
           lambda x: x * float("nan"), lambda x: x * float("inf"), lambda x: x[None],
           lambda x: x[:-1], lambda x: x.reshape(-1), lambda x: x.flatten()[:1].expand(2 ** 40),
           lambda x: x.mT.contiguous().mT if x.ndim > 1 else -x, lambda x: x.to_sparse(),
           lambda x: 1e30 * x)


def change(tree, rng):
    """Dicts and lists within each other, in which one value becomes another, or is lost."""
    key = rng.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
    value = tree[key]
    if isinstance(value, (dict, list)) and value and rng.random() < .9:
        change(value, rng)
    elif isinstance(value, torch.Tensor) and value.ndim and rng.random() < .8:
        tree[key] = rng.choice(TENSORS)(value)
    elif rng.random() < .2:
        del tree[key]
    else:
        tree[key] = rng.choice(VALUES)


def change_checkpoint(data, rng):
    """Another value in a checkpoint, or another byte."""
    content, out = torch.load(io.BytesIO(data), weights_only=True), io.BytesIO()
    if rng.random() < .2:
        return flip(data, rng)
    change(content, rng)
    torch.save(content, out)
    return out.getvalue()


def read_captions(path):
    found = Captions(path if path.suffix == ".json" else path.parent)
    for start, end, text in (row for name in found for row in found.sentences(name)):
        assert 0 <= start <= end < float("inf") and text.split()


def read_coin(path):
    videos, names = load_coin(path)
    for step in (step for video in videos for step in video.steps):
        assert 0 <= step.start <= step.end < float("inf") and 0 <= step.label < len(names)


def read_features(path):
    features = load_features(path)
    assert np.isfinite(features.embedding).all() and np.isfinite(features.middle).all()
    assert torch.from_numpy(features.embedding).any(1).all() and (features.middle >= 0).all()
    rows = features.nearest(str(features.video[0]), np.array([1.0, 50.0]))
    assert (features.video[rows] == features.video[0]).all()


def read_texts(path):
    names, texts = load_text_embeddings(path)
    assert len(names) == len(texts) and np.isfinite(texts).all() and texts.any(1).all()


def read_checkpoint(path):
    model = load_model(path)[0]
    assert all(value.isfinite().all() and value.dtype == torch.float32
               for value in model.state_dict().values())
    test_checkpoint.outputs(model)


def read_video(path):
    assert 0 <= duration(path) < float("inf")
    pictures = read_frames(path, [0.3, 5.1, 1.7, 7.9, 2.0], short_side=24)
    assert pictures.shape[:2] == (5, 3)


def write_video(path):
    """A video of test_video.FILES."""
    test_video.write(path, count=200, container={"fflags": "bitexact"},
                     **test_video.FILES[path.name])


# kind: (name of the file, what writes it whole, damage, reader)
KINDS = {f"video {name}": (name, write_video, flip, read_video) for name in (
    "b_frames.mp4", "open_gop.mkv", "vp8.webm", "mpeg4.avi", "mjpeg.mov")}
KINDS |= {name: (name, lambda path: make_coin(path.parent), damage, read)
          for name, damage, read in (("COIN.json", mutate, read_coin),
                                     ("features.npz", flip, read_features),
                                     ("texts.npz", flip, read_texts))}
KINDS |= {f"values {name}": ("checkpoint.pt", lambda path, encoder=encoder: save_checkpoint(
              path, *test_checkpoint.build(encoder)), change_checkpoint, read_checkpoint)
          for name, encoder in (("f", test_checkpoint.F), ("mvit", test_checkpoint.VIT),
                                ("h", None))}
KINDS |= {f"captions {name}": (name, lambda path, text=text: path.write_text(text), mutate,
                               read_captions) for name, text in test_captions.LAYOUTS.items()}
KINDS |= {f"list {name}": ("list", lambda path, text=text: path.write_text(text), mutate, read)
          for name, (read, text) in test_listings.READERS.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_end_in_data_or_one_line(kind, tmp_path):
    """Catches: a traceback, wrong data or a hang on damage nobody thought of."""
    name, write, damage, read = KINDS[kind]
    write(tmp_path / name)
    (tmp_path / "damaged").mkdir()
    whole, path, refused = (tmp_path / name).read_bytes(), tmp_path / "damaged" / name, 0
    for number in range(CASES.get(kind.split()[0], 12) * FUZZ):
        print(f"case {number} of {kind}")
        began = time.perf_counter()
        path.write_bytes(damage(whole, random.Random(f"{kind} {number}")))
        try:
            read(path)
        except (BadInput, Unreadable) as error:
            assert "\n" not in str(error) and str(error).startswith(f"{path.parent}"), error
            refused += 1
        assert time.perf_counter() - began < 60
    assert refused                                     # the damage is felt
