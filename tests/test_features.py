"""Features: made of videos, read from files, and all commands from training to a forecast."""
import json
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from commands import call, fails, read_json
from test_lists import coin, entry
from test_teacher import Malice

import evaluate
import weights
from data import history_windows
from files.features import find_rows, read_rows
from files.video import read_clips
from predict import predict
from sources import open_labeled


def write(save=np.savez, **changes):
    """f.npz of two videos, a of 30 rows of 2 s and b of 10, with a teacher's."""
    rng, start = np.random.default_rng(0), np.append(np.arange(0, 60, 2.), np.arange(0, 20, 2.))
    content = dict(video=np.array(["a"] * 30 + ["b"] * 10), start=start, end=start + 2,
                   embedding=rng.random((40, 5)), teacher=rng.random((40, 3))) | changes
    save("f.npz", **{name: value for name, value in content.items() if value is not None})


def damaged(path, **arrays):
    """One byte is another, so that a checksum is wrong."""
    np.savez(path, **arrays)
    content = bytearray(Path(path).read_bytes())
    content[content.index(b"embedding.npy") + 300] ^= 1
    Path(path).write_bytes(content)


def dishonest(path, **arrays):
    """A header says that there are 10^15 rows."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array_header_1_0(file, {
                    "descr": array.dtype.str, "fortran_order": False,
                    "shape": (10 ** 15, *array.shape[1:])})
                file.write(array.tobytes())


def test_no_row_of_a_history_ends_after_it(here):
    """Catches: rows chosen by their middle alone, of other videos, or of what follows."""
    rng, own = np.random.default_rng(1), range(30, 40)
    for case in range(40):
        start, kinds = rng.uniform(0, 60, 40), (rng.random((40, 5)), rng.random((40, 3)))
        end = start + rng.uniform(0, (2, 20)[case % 2], 40)
        edges = np.linspace(0, rng.uniform(min(end[30:]), max(end[30:])), 9)
        seen = [np.where(end[:, None] > edges[-1] + 1e-3, np.nan, kind) for kind in kinds]
        write(start=start, end=end, embedding=seen[0].astype(np.float32), teacher=seen[1])
        found = read_rows(find_rows("f.npz")["b"], np.stack([edges[:-1], edges[1:]], 1))
        for k, (a, b) in enumerate(zip(edges, edges[1:])):
            ended = [i for i in own if end[i] <= b + 1e-3] or [min(own, key=lambda i: end[i])]
            middle = {i: (start[i] + end[i]) / 2 for i in ended}
            used = [i for i in ended if a <= middle[i] <= b] or [
                min(ended, key=lambda i: abs(middle[i] - (a + b) / 2))]
            for rows, kind in zip(found, kinds, strict=True):
                np.testing.assert_allclose(rows[k], kind[used].mean(0), rtol=1e-5)


@pytest.mark.parametrize("changes, words", [
    (dict(save=lambda path, **_: Path(path).write_bytes(b"PK")), "no npz, or damaged"),
    (dict(end=None), "end.*expected"),
    (dict(teacher=np.ones((39, 3))), "other types or shapes"),
    (dict(end=np.zeros(40)), "a row does not end after"),
    (dict(end=np.full(40, np.inf)), "a row does not end after its start, or never"),
    (dict(save=damaged), "Bad CRC-32.*expected"), (dict(save=dishonest), ".*expected"),
    (dict(video=np.array(["a", "b"] * 20)), "two"),
    (dict(video=np.array([Malice()] * 40)), "Object arrays cannot be loaded"),
    (dict(teacher=np.full((40, 3), np.nan)), "a number is not finite"),
    (dict(start=np.full(40, 9), end=np.full(40, 10)), "no row ends before 4.0 s"),
    (dict(start=np.full(40, -9), end=np.full(40, -8)), "ends before 4.0 s; times must be")])
def test_a_file_that_cannot_be_read_is_one_line(here, changes, words):
    """Catches: a traceback; something unpickled; rows of another video or time, or NaN, used."""
    write(**changes)
    with pytest.raises(ValueError, match=f"^f.npz: .*{words}"):
        read_rows(find_rows("f.npz")["a"], np.array([[0., 4.]]))
    assert not Path("executed").exists()


def test_from_features_to_a_forecast(trained, here, capsys):
    """Catches: rows of another step or command; an adapter lost; what does not fit taken."""
    ids, start = [f"v{i:02}" for i in range(60)], np.arange(0, 80, 4.)
    steps = [(str(step), [20. * k, 20. * k + 20], f"text {step}") for k, step in enumerate("3142")]
    Path("COIN.json").write_text(coin(**{name: entry(
        *steps, subset="testing" if name >= "v50" else "training", duration=80) for name in ids}))
    texts, noise = np.eye(4, 32), np.random.default_rng(0).normal(0, 0.5 / 32 ** 0.5, (1200, 32))
    np.savez("T.npz", names=[f"text {k + 1}" for k in range(4)], embeddings=texts)
    rows = texts[np.tile(np.repeat([2, 0, 3, 1], 5), 60)] + noise
    for file, embedding in ("F.npz", rows), ("wide.npz", np.pad(rows, ((0, 0), (0, 1)))):
        np.savez(file, video=np.repeat(ids, 20), start=np.tile(start, 60),
                 end=np.tile(start + 4, 60), embedding=embedding)          # rows of 4 s
    Path("phrases.txt").write_text("text 1\ntext 2\ntext 3\ntext 4\n")
    said = np.arange(0, 80, 4.5)                       # somebody speaks all the time
    spoken = {"start": [*said], "end": [*(said + 4.5)],
              "text": [f"{k} {'word ' * 12}" for k in range(len(said))]}
    Path("caption.json").write_text(json.dumps({name: spoken for name in ids[:50]}))
    data = "--data", "features", "--features", "F.npz", "--annotations", "COIN.json"
    train = ("train.py", *data[:4], "--captions", "caption.json", "--phrases", "phrases.txt",
             "--clip", "T.npz", "--tau", "0.1", "--epochs", "5", "--out")
    call(*train, "run")
    call(*train, "more", "--init", "run", "--epochs", "0.1", "--workers", "1")
    assert " taken: " in (told := capsys.readouterr().out) and " new: " not in told
    tune, test = ("train.py", "--stage", "finetune"), ("evaluate.py", *data, "--checkpoint")
    call(*tune, "--task", "forecast", *data, "--init", "run", "--epochs", "5", "--out", "tuned")
    for checkpoint in "run", "tuned":
        call(*test, checkpoint, "--json", "o.json")
        assert min(read_json("o.json")["top1"].values()) > 95
    model, forecast = weights.load("run"), (
        "predict.py", "F.npz", "--steps", "phrases.txt", "--checkpoint", "run")
    content = predict("F.npz", steps="phrases.txt", checkpoint="run", name="v55.mp4")
    clips, _ = read_rows(find_rows("F.npz")["v55"], history_windows(80., model.config.spacing))
    p = model.match(model(clips)).exp().amax(1)
    assert [clip["steps"][0]["p"] for clip in content["clips"]] == pytest.approx(p.tolist())
    for argv, words in (
            ((*train, "x", "--targets", "narration"), "not the table T.npz"),
            (("train.py", "--size", "base"), "toy: f cannot read it"),
            ((*test, "run", "--features", "wide.npz"), "33), the checkpoint reads (R, 32)"),
            (("evaluate.py", "--checkpoint", "run"), "run: reads features, not --data toy"),
            ((*test, trained / "mask"), "reads pictures of 32 pixels, not --data features"),
            (forecast, "reads features: give F.npz"),
            ((*forecast, "--video", "v1", "--figure", "a.png"), "features have no pictures")):
        assert words in fails(capsys, *argv), argv


def test_features_of_videos(trained, here, capsys):
    """Catches: a window twice or not at all, embeddings of other windows or videos; real videos
    through an f of the toy world without a word."""
    call("toy", "export", "--out", "world", "--train", "1", "--test", "1")
    flags = "--task", "features", "--videos", "world/videos", "--checkpoint", trained / "none"
    call("evaluate.py", *flags, "--out", "f.npz")
    assert "warning: this checkpoint knows only the toy world" in capsys.readouterr().out
    model = weights.load(trained / "none")
    args = evaluate.parse(["--task", "features", "--videos", "world/videos", "--device", "cpu",
                           "--checkpoint", str(trained / "none")])
    task = SimpleNamespace(needs=(), frames=None)      # that needs no labels
    source, *nothing = open_labeled(args, task, model, "cpu", "test")
    assert [video.name for video in source.videos] == ["test_00000", "train_00000"]
    assert nothing == [None] * 3 and source.split == "all"
    for name in "train_00000", "test_00000":
        path, own = here / f"world/videos/{name}.mp4", find_rows("f.npz")[name]
        windows = own.spans
        assert np.allclose(np.diff(windows.mean(1)[2:-2]), 4) and windows[0, 0] == 0
        assert len(windows) == np.ceil((windows.max() - 2) / 4) > 8
        x = model.encode(read_clips(path, model.encoder, windows)).detach()
        np.testing.assert_allclose(x, own.embedding, atol=1e-5)
        path.write_bytes(b"damaged")
    assert "2 of 2 videos are unreadable" in fails(capsys, "evaluate.py", *flags)
    assert "required: --videos" in fails(capsys, "evaluate.py", *flags[:2])
    assert "must end in .npz" in fails(capsys, "evaluate.py", *flags, "--out", path)
    call("evaluate.py", *flags[:2], *flags[4:], "--data", "toy", "--toy-videos", "1", "--split",
         "train", "--out", "toy.npz")
    assert [*find_rows("toy.npz")] == ["train_00000"]
