"""The doors: a data set and a task of one's own, each with a line of a table; flags that count."""
import copy
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import evaluate
import finetune
import sources
import toy.__main__
import train
import weights
from commands import ONE, call, fails, read_json
from data import classify_examples
from files.lists import count_coin
from files.sources import VideoSource
from support import encode
from support.errors import InputError
from support.workers import read_ahead
from weights import encoders
from weights.checkpoint import build, init_from, open_start

LABELED = ("--annotations", "world/COIN.json", "--videos", "world/videos", "--steps",
           "world/steps.txt")


class Folders(VideoSource):
    """A data set of one's own: each video is a folder of pictures, one each 2 s."""

    @staticmethod
    def duration_of(path):
        return 2.0 * len([*path.iterdir()])

    @staticmethod
    def pictures_of(path, times, short_side=None):
        pictures = [Image.open(path / f"{int(time / 2)}.png") for time in times]
        return torch.from_numpy(np.stack(pictures).transpose(0, 3, 1, 2))


def find_folders(folder):
    return {path.name: path for path in folder.iterdir()}


def test_a_data_set_is_a_source_and_a_line(here, monkeypatch):
    """Checked, pre-trained, fine-tuned and evaluated on. Catches: a name, a reader of files or a
    flag of --data that is fixed outside of the table; a hook of the source that no command asks."""
    def write_pictures(path, frames):
        path.with_suffix("").mkdir()
        for k, picture in enumerate(frames.transpose(0, 2, 3, 1)):
            picture = np.pad(picture, (toy.__main__.BORDER, toy.__main__.BORDER, (0, 0)), "edge")
            Image.fromarray(picture).save(path.with_suffix("") / f"{k}.png")
    monkeypatch.setattr(toy.__main__, "write_video", write_pictures)
    monkeypatch.setitem(sources.DATA, "own", sources.Data(                 # the line
        sources.Way(sources.narrated(Folders, find_folders, "videos"),
                    ("videos", "captions", "phrases")),
        sources.Way(sources.labeled(Folders, find_folders, "videos"),
                    ("videos", "annotations"), ("steps",)),
        has=sources.DATA["coin"].has, count=count_coin, kind=Folders, find=find_folders))
    call("toy", "export", "--out", "world", "--train", "8", "--test", "2")
    data, run = ("--data", "own"), ("--device", "cpu", "--epochs", "1", "--workers", "1")
    call("files", "check", *data, *LABELED[:4], "--json", "o.json")
    assert read_json("o.json")["classify"]["test"]["found"] == 2
    call("train.py", *data, *LABELED[2:4], "--captions", "world/captions", "--phrases",
         "world/phrases.txt", "--size", "small", "--init", "none", *run, "--batch", "4", "--clip",
         "toy", "--out", "run")
    assert read_json("run/config.json")["settings"]["list of videos"].startswith("10 (")
    call("train.py", "--stage", "finetune", *data, *LABELED, *run, "--init", "run", "--out",
         "tuned")
    for checkpoint, task, count in ("run", "forecast", 14), ("tuned", "classify", 16):
        call("evaluate.py", "--task", task, *data, *LABELED, "--checkpoint", checkpoint, "--json",
             "o.json")
        assert read_json("o.json")["evaluated"] == count


OWN_F = """
from torch import nn
from torch.nn import functional


class Colors(nn.Module):
    seconds = None

    def __init__(self, image=64, frames=2, width=8, dim=512):
        super().__init__()
        self.image, self.frames = image, frames
        self.patches = nn.Conv3d(3, width, (1, 4, 4), (1, 4, 4))
        self.norm = nn.BatchNorm3d(width)
        self.head = nn.Linear(width, dim)

    def forward(self, clips):
        x = self.norm(self.patches(clips)).relu().mean((2, 3, 4))
        return functional.normalize(self.head(x).to(clips.dtype), dim=-1)
"""


@pytest.fixture
def own_f(here, monkeypatch):
    """An f of one's own, with a BatchNorm: a module of the current folder, and a line."""
    (here / "own_f.py").write_text(OWN_F)
    monkeypatch.syspath_prepend(here)
    monkeypatch.delitem(sys.modules, "own_f", raising=False)
    monkeypatch.setitem(encoders.ENCODERS, "own", encoders.Line(           # the line
        "own_f:Colors", dict(image=32, frames=4, width=16), dict(image=224, width=64)))


def test_an_encoder_is_a_class_and_a_line(own_f):
    """Pre-trained, started from, fine-tuned and evaluated. Catches: a name, a size or what is read
    that is fixed outside of the table; statistics of a BatchNorm that are lost on the way from one
    to the next, or changed where f must stay as it is; a model that only blocks make."""
    call("train.py", *ONE, "--epochs", "3", "--encoder", "own", "--set", "encoder.width=24",
         "--out", "run")
    run = weights.load("run")
    norm, clips = run.encoder.norm, torch.randint(256, (3, 4, 3, 32, 32), dtype=torch.uint8)
    assert norm.num_batches_tracked > 1 and norm.running_mean.abs().min() > 0
    assert run.config.encoder == dict(kind="own", image=32, frames=4, width=24)
    again = build(run.config, torch.randn(7, 64)).eval()
    start = open_start("run")
    start["phrases"] = torch.ones(7, 64)
    pool = again.phrases.clone()
    init_from("run", again, start)
    torch.testing.assert_close(again.encode(clips), run.encode(clips), rtol=0, atol=0)
    assert torch.equal(again.phrases, pool) and again.denoiser is not None
    tune = "train.py", "--stage", "finetune", "--toy-videos", "8", "--epochs", "1", "--init", "run"
    score = "evaluate.py", "--toy-videos", "3", "--json", "a.json", "--task"
    for task in "classify", "forecast":
        call(*tune, "--task", task, "--out", task)
        tuned = weights.load(task)
        torch.testing.assert_close(tuned.encode(clips), run.encode(clips), rtol=0, atol=0)
        for checkpoint in task, "run":
            call(*score, task, "--checkpoint", checkpoint)
            assert read_json("a.json")["evaluated"] == {"classify": 24, "forecast": 21}[task]


class Odd(torch.nn.Module):
    """An f of features that makes what it is told; with what draws, counts and stays in eval."""
    image, frames, seconds, features = 0, 0, None, 6

    def __init__(self, make=None):
        super().__init__()
        self.make = make
        self.layers = torch.nn.Sequential(torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.5))
        self.frozen = torch.nn.BatchNorm1d(6).eval()

    def forward(self, clips):
        x = self.frozen(self.layers(clips)) + torch.rand(6)
        return self.make(x) if self.make else torch.nn.functional.normalize(x[:, :4], dim=-1)


@pytest.mark.parametrize("make, told", [
    (lambda x: x[0], r"Odd makes of one clip torch.Size\(\[6\]\); needed is a tensor \(1, 4\)"),
    (lambda x: x[:, :3], r"torch.Size\(\[1, 3\]\); needed"), (lambda x: (x, x), "tuple"),
    (lambda x: x[:, :4] / x[:, :4].norm() * 2, "Odd makes a vector of length 2; needed is 1"),
    (lambda x: x[:, :4] * float("nan"), "length nan"),
    (lambda x: x.view(5), r"Odd cannot read a clip \(1, 6\): ")])
def test_an_f_that_is_none_is_one_line(make, told):
    """Catches: an f without length 1, whose match is no cosine; a traceback far away."""
    with pytest.raises(InputError, match=f"^.*{told}.*$"):
        encoders.check_encoder(Odd(make), 4)


def test_f_is_asked_without_a_trace():
    """Catches: f in another mode, with other statistics; random numbers that go on elsewhere."""
    f = Odd()
    state, training = copy.deepcopy(f.state_dict()), [part.training for part in f.modules()]
    torch.manual_seed(0)
    encoders.check_encoder(f, 4)
    drawn = torch.rand(3)
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(3))
    assert [part.training for part in f.modules()] == training and len({*training}) == 2
    torch.testing.assert_close(f.state_dict(), state, rtol=0, atol=0)


class Previous(evaluate.Task):
    """Which step came before the one that is shown."""
    needs = "steps", "names"

    def examples(self, videos, spacing, min_steps):
        return [one._replace(label=videos[one.video].steps[one.step - 1].label)
                for one in classify_examples(videos) if one.step > 0]

    def lines(self, asked):
        log_p = evaluate.match_labels(asked.model, asked.x.mean(1), asked.texts)
        return evaluate.accuracies({"ours": log_p}, asked.labels)


@pytest.mark.parametrize("part", ["classifier", "denoiser", "encoder"])
def test_a_task_is_a_class_and_a_line(trained, here, capsys, monkeypatch, part):
    """Fine-tuned and scored. Catches: a task's name, epochs or frames that are also written
    elsewhere."""
    h, frames = part == "denoiser", 6 if part == "encoder" else None
    monkeypatch.setitem(evaluate.TASKS, "previous", type("Previous", (Previous,), {
        "trained": part, "forecasts": h, "needs_h": h, "frames": frames}))     # the line
    call("train.py", "--stage", "finetune", "--task", "previous", "--toy-videos", "8", "--init",
         trained / "diffusion", "--out", "run")
    assert weights.checkpoint.read("run")["step"] == 15    # epochs, of 56 examples each
    assert weights.load("run").encoder.frames == (6 if part == "encoder" else 4)
    score = "evaluate.py", "--toy-videos", "3", "--checkpoint", "run", "--json", "a.json", "--task"
    call(*score, "previous")
    assert {*read_json("a.json")["top1"]} == {"ours"} and read_json("a.json")["evaluated"] == 21
    assert "fine-tuned for previous" in fails(capsys, *score, "forecast")
    monkeypatch.setattr(evaluate.TASKS["previous"], "word", "guess")
    monkeypatch.setattr(evaluate.TASKS["previous"], "needs", ("steps", "names", "pairs"))
    monkeypatch.setitem(sources.DATA, "own", sources.DATA["toy"]._replace(
        has=("steps", "names", "pairs")))                  # what this --data alone has
    call(*score, "guess", "--data", "own")
    assert "own can only forecast, classify, guess" in fails(capsys, *score, "activity", "--data",
                                                             "own")
    assert "toy can only forecast, classify, activity" in fails(capsys, *score, "guess")


def test_nought_is_refused(here, capsys):
    """Catches: nought taken for a flag that is not given; a traceback far away."""
    for command, flags in {
            "train.py": "--batch --lr --tau --toy-videos --stride",
            "train.py --stage finetune": "--batch --epochs --labels --lr",
            "evaluate.py": "--samples --oracle --batch --repeats",
            "experiments/probes.py": "--samples --horizon --toy-videos",
            "predict.py": "--samples --horizon"}.items():
        for flag in flags.split():
            line = fails(capsys, *command.split(), flag, "0")
            assert flag in line and "0: must be above 0" in line


def test_memory_is_pinned_for_a_gpu_alone(trained, here, monkeypatch):
    """Catches: pinned memory, which needs the GPU's driver, under --device cpu."""
    pins = []

    def note(dataset, items, workers, pin=False):
        pins.append(pin)
        return read_ahead(dataset, items, workers)
    for module in train, finetune, encode:
        monkeypatch.setattr(module, "read_ahead", note)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    call("train.py", *ONE, "--device", "cpu", "--out", "run")
    monkeypatch.delattr(finetune, "learning_rate")     # that is far enough
    with pytest.raises(NameError):
        call("train.py", "--stage", "finetune", "--toy-videos", "2", "--device", "cpu", "--init",
             trained / "mask", "--out", "tuned")
    assert pins == [False] * 3
