"""annotations.py: each reader on small files in the real layout, and each error message."""
import json
import pickle

import numpy as np
import pytest
import torch

from commands import flip
from data import Step, Video
from files.annotations import (FeaturesFile, check_names, load_coin, load_features,
                               load_teacher_rows, load_text_embeddings, training_split)
from support.command import BadInput


def step(number="3", segment=(1.0, 2.5), label="whisk the egg"):
    return {"id": number, "segment": list(segment), "label": label}


def entry(*steps, subset="training", **changes):
    return {"duration": 60.5, "class": "Omelette", "video_url": "u", "start": 1.0, "end": 9.0,
            "subset": subset, "recipe_type": 7, "annotation": list(steps)} | changes


def write_coin(tmp_path, **videos):
    """A COIN.json with one line per video: the first is on line 3."""
    lines = [f"{json.dumps(name)}: {json.dumps(video)}" for name, video in videos.items()]
    path = tmp_path / "COIN.json"
    path.write_text('{\n"database": {\n' + ",\n".join(lines) + "\n}}\n")
    return path


def write_npz(tmp_path, **arrays):
    np.savez(tmp_path / "arrays.npz", **arrays)
    return tmp_path / "arrays.npz"


def features(**changes):
    """Arrays of a features file: 4 windows of 2 videos, D = 3."""
    arrays = {"video": np.array(["a", "a", "b", "b"]), "start": np.array([0., 2., 0., 2.]),
              "end": np.array([2., 4., 2., 4.]), "embedding": np.ones((4, 3), np.float16)}
    return arrays | changes


def test_load_coin_reads_the_layout(tmp_path):
    """Catches: labels off by one, unsorted steps, fields swapped; other spellings refused."""
    path = write_coin(tmp_path, zz=entry(step("3", (5, 6)), step("1", (1.5, 2), "crack the egg"),
                                         subset="testing"),
                      aa=entry(step("1", label="Crack  the egg "), step("4", (3, 4)),
                               subset="validation", duration=None))
    expected = [Video("zz", "test", 7, 60.5, (Step(1.5, 2.0, 0), Step(5.0, 6.0, 2))),
                Video("aa", "test", 7, None, (Step(1.0, 2.5, 0), Step(3.0, 4.0, 3)))]
    assert load_coin(path) == (expected, ["crack the egg", "", *2 * ["whisk the egg"]])
    path.write_text("\ufeff" + path.read_text(), encoding="utf-8")
    assert load_coin(path)[0] == expected
    path.write_text('{"database": {}}')
    with pytest.raises(BadInput, match='COIN.json: no videos under "database"'):
        load_coin(path)


def test_validation_split_never_changes(tmp_path):
    """Catches: another hash or modulus, which would move videos between train and validation."""
    known = {"CtVhc09PXt8": "validation", "w3j1hVnKVpA": "validation", "ey402cxltus": "validation",
             "eD6NEcqcCyc": "train", "JfuwHhfxN28": "train", "-egN4Fefi1u": "train"}
    path = write_coin(tmp_path, **{name: entry() for name in known})
    assert {video.name: video.split for video in load_coin(path)[0]} == known
    share = np.mean([training_split(f"video {i}") == "validation" for i in range(20_000)])
    assert share == pytest.approx(0.1, abs=0.01)       # 0.002 is one standard deviation


NAN, INF = float("nan"), float("inf")                  # json.dumps writes NaN and Infinity


@pytest.mark.parametrize("bad, message", [
    (entry(subset="dev"), "subset is 'dev'; it must be one of training, testing, validation"),
    (entry(subset=["testing"]), "subset is ['testing']"),
    (entry(recipe_type="7"), "recipe_type is '7'"),
    (entry(recipe_type=10 ** 9), "recipe_type is 1000000000"),
    (entry(step("0")), "step 1: id is '0'"), (entry(duration=NAN), "duration is nan"),
    (entry(annotation={}), "annotation must be a list"),
    ({"subset": "training"}, "the entry has no recipe_type, annotation"),
    ([], "the entry has no subset"),
    (entry(step(), {"id": "3", "label": "x"}), "step 2 has no segment"),
    (entry(step(segment=(2, 1))), "step 1: its end, 1 s, is before its start, 2 s"),
    (entry(step(segment=(-1, 2))), "step 1: segment is"),
    (entry(step(segment=("1", "2"))), "step 1: segment is"),
    (entry(step("1000000000")), "step 1: id is '1000000000'"), (entry(step(3)), "step 1: id is 3"),
    (entry(step(label=None)), "step 1: label is None"),
    (entry(step(label=" ")), "step 1: label is ' '"),
    (entry(step("1"), step("2")), "two steps have the same segment; one label"),
    (entry(step(), step(segment=(3, 4), label="fry it")),
     "id 3 is 'fry it', but 'whisk the egg' before; one")])
def test_coin_entry_at_fault_is_named(tmp_path, bad, message):
    """Catches: a bad value let through, or an error without the file, its line or the video."""
    path = write_coin(tmp_path, good=entry(step()), broken=bad)
    with pytest.raises(BadInput) as caught:
        load_coin(path)
    assert str(caught.value).startswith(f"{path}:4: video 'broken': {message}")
    assert "\n" not in str(caught.value)


def test_names_that_contradict_the_annotations():
    """Catches: rows of other classes scored; spelling, or one more row, refused."""
    check_names("T.npz", ["Stir ", "fold", "a", "b"], "COIN.json", ["stir", "", "A"])
    with pytest.raises(BadInput, match="T.npz: class 2 is 'fold', but 'fry' in COIN.json; row or"):
        check_names("T.npz", ["stir", "fold"], "COIN.json", ["stir", "fry"])


def texts(**changes):
    return {"names": np.array(["stir", "fold"]), "embeddings": np.eye(2, 3)} | changes


def test_text_embeddings_are_as_stored(tmp_path):
    """Catches: rows normalized or reordered, float64 passed on, other arrays in the way."""
    path = write_npz(tmp_path, **texts(embeddings=np.array([[3., 4.], [0., 2.]])), note=np.eye(2))
    names, embeddings = load_text_embeddings(path)
    assert names == ["stir", "fold"] and embeddings.dtype == np.float32
    np.testing.assert_array_equal(embeddings, [[3, 4], [0, 2]])


@pytest.mark.parametrize("arrays, message", [
    *[(texts(embeddings=np.array([[1., 2.], [value, 0.]])), "row 1 .*: all zeros or NaN, or its")
      for value in (1e300, 1e19, 9e-11, 1e-200, 0., NAN)],
    *[({"rows": np.array([[1., 2.], [value, 0.]]), "made": "clip"},
       r"row 1 \(counted from 0\): .*NaN") for value in (1e300, 1e19, 1e-11, 0, NAN)],
    *[(features(embedding=np.array([[1], [1], [value], [1]], np.float32)), "row 2 .*its length is")
      for value in (1e19, 9e-11, NAN)],
    (texts(embeddings=np.ones((3, 4))), r"embeddings is float64 \(3, 4\); .*the same N"),
    (texts(embeddings=np.ones((2, 4), int)), r"embeddings is int64 .*; floats \(N, D\) is needed"),
    (texts(embeddings=np.ones((2, 0))), r"\(2, 0\); .*, with N and D at least 1"),
    (texts(names=np.arange(2)), r"names is int64 \(2,\); text \(N,\) is needed"),
    (texts(names=np.array(["stir", "fold"], object)), "Object arrays .*without object arrays"),
    (features(start=np.array([0., 2., NAN, 2.])), "row 2 .*start and end must be"),
    (features(end=np.array([2., INF, 2., 4.])), "row 1 .*start and end must be"),
    (features(end=np.array([2., -1, 2., 4.])), "row 1 .*before"),
    (features(start=np.array([0., 2., -1, 2.])), "row 2 .*seconds from 0"),
    (features(start=np.zeros(3)), r"start is float64 \(3,\)"),
    (features(start=np.array(list("0123"))), "start is <U1"),
    (features(video=np.array(["a", "a", "b"])), r"start is float64 \(4,\); .*the same N"),
    (features(embedding=np.ones((4, 3))), "embedding is float64; save it as float16 or float32"),
    ({key: value[:0] for key, value in features().items()}, "at least 1")])
@pytest.mark.filterwarnings("error")
def test_arrays_at_fault(tmp_path, arrays, message):
    """Catches: values that end as NaN, shapes that would broadcast, arrays of different lengths."""
    path = write_npz(tmp_path, **arrays)
    with pytest.raises(BadInput, match=message) as caught:
        (load_text_embeddings if "names" in arrays else
         load_teacher_rows if "rows" in arrays else load_features)(path)
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


def test_npz_that_is_not_one(tmp_path):
    """Catches: zlib.error as a traceback; a pickle loaded; an absent array as a KeyError."""
    np.savez_compressed(tmp_path / "flipped.npz", **features())
    flip(tmp_path / "flipped.npz", 100)                # inside the first array
    np.save(tmp_path / "one.npy", np.ones((2, 3)))
    for content in (pickle.dumps(features()), *(
            (tmp_path / name).read_bytes() for name in ("flipped.npz", "one.npy"))):
        (tmp_path / "broken.npz").write_bytes(content)
        with pytest.raises(BadInput, match="broken.npz: .*; an npz file with .* is needed"):
            load_features(tmp_path / "broken.npz")
    with pytest.raises(BadInput, match=r"arrays.npz: no array names, embeddings \(it has start"):
        load_text_embeddings(write_npz(tmp_path, start=np.ones(3)))


def test_other_layouts_of_arrays_are_read_alike(tmp_path):
    """Catches: a byte order or layout that torch refuses; float16 at twice the memory."""
    arrays, rows = features(), np.arange(12.0).reshape(4, 3) + 1
    for embedding in (rows.astype("<f2"), rows.astype(">f2"), np.asfortranarray(rows, "f2"),
                      rows.astype(">f4")):
        video, start = arrays["video"].astype(">U9"), arrays["start"].astype(">i8")
        file = load_features(write_npz(tmp_path, **arrays | dict(
            video=video, start=start, embedding=embedding)))
        assert torch.equal(torch.from_numpy(file.embedding).double(), torch.from_numpy(rows))
        assert file.embedding.itemsize == embedding.itemsize and file.middle.dtype == np.float64
        assert file.rows.keys() == {"a", "b"} and file.middle.tolist() == [1, 3, 1, 3]
        taught, made = load_teacher_rows(write_npz(tmp_path, rows=embedding, made="clip"))
        assert taught.dtype == np.float32 and made == "clip"


def test_nearest_equals_a_slow_loop():
    """Catches: rows of another video or side, the ends left out; ties by the order of rows."""
    rng = np.random.default_rng(0)
    video = rng.permutation(np.repeat([f"v{i}" for i in range(30)], rng.integers(1, 40, size=30)))
    middle = rng.integers(50, size=len(video)) * 2.0
    file = FeaturesFile(video, middle, np.zeros((len(video), 1), np.float32))
    for name in sorted(set(video)):
        times = rng.integers(-20, 120, (10, 5))        # many of them are ties
        slow = [[min((abs(m - time), m, row) for row, (v, m) in enumerate(zip(video, middle))
                     if v == name)[-1] for time in line] for line in times]
        rows = file.nearest(name, times)
        assert rows.dtype == np.int64 and rows.tolist() == slow
        assert file.nearest(name, times[0, 0]) == slow[0][0]
    assert file.nearest("v0", []).shape == (0,)
    with pytest.raises(KeyError, match="v3x"):         # no features: not another video's row
        file.nearest("v3x", [1.0])
