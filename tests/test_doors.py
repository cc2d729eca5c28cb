"""The doors: a data set and a task of one's own, each with a line of a table; flags that count."""
import copy
import json
import sys
from pathlib import Path

import pytest
import torch
from commands import ONE, call, fails, read_json

import evaluate
import finetune
import sources
import train
import weights
from data import classify_examples
from support import encode
from support.errors import InputError
from support.workers import read_ahead
from toy import grammar
from toy.source import Toy
from weights import encoders
from weights.checkpoint import build, init_from, open_start

# A data set in the layout of CrossTask: what somebody writes to add one. A csv for each video, a
# list of tasks with their steps, and captions beside the videos.
CROSSTASK = '''
from data import Lists, Step, Video
from files.folder import VideoFolder, add_narration_flags
from files.lists import in_order, require_times
from support.arguments import existing
from support.read import fields_of, read_lines


class CrossTask(VideoFolder):
    """CrossTask: narrated videos of primary tasks, with the times of their steps."""
    narrated = True
    has = "steps", "names", "activities"

    @staticmethod
    def add_flags(add, command):
        VideoFolder.add_flags(add, command)
        add("--annotations", type=existing, required=True, help="folder of TASK_VIDEO.csv")
        add("--tasks", type=existing, required=True, help="tasks: number: name: step, step")
        add("--test-ids", type=existing, required=True, help="ids of the videos to test with")
        if command in ("pretrain", "check"):
            add_narration_flags(add, required=command == "pretrain")

    def read_lists(self, args, split):
        names, classes, activities, numbers = {}, {}, {}, {}
        for where, line in read_lines(args.tasks):
            with fields_of(where, "expected `number: name: step, step, ...`"):
                task, title, steps = line.split(": ")
            numbers[task] = len(activities)
            activities[numbers[task]] = title
            classes[task] = [names.setdefault(step, len(names)) for step in steps.split(", ")]
        test = {line for _, line in read_lines(args.test_ids)}
        videos = []
        for path in sorted(args.annotations.glob("*_*.csv")):
            task, name = path.stem.split("_", 1)
            steps = []
            for where, line in read_lines(path):
                with fields_of(where, "expected `step,start s,end s`"):
                    step, start, end = line.split(",")
                    label = classes[task][int(step) - 1]
                    start, end = float(start), float(end)
                require_times(start, end, where)
                steps.append(Step(start, end, label))
            part = "test" if name in test else "train"
            videos.append(Video(name, part, numbers[task], None, in_order(steps, path)))
        return Lists(videos, {label: name for name, label in names.items()}, activities)
'''


def write_crosstask(folder):
    """The exported world/ as CrossTask has its files -> the flags that name them."""
    (folder / "annotations").mkdir(parents=True)
    database = json.loads(Path("world/COIN.json").read_text())["database"]
    steps = {}                                         # {task: its steps}
    for name, entry in database.items():
        own = steps.setdefault(entry["recipe_type"], [])
        lines = []
        for step in entry["annotation"]:
            if step["label"] not in own:
                own.append(step["label"])
            lines.append(",".join(map(str, (own.index(step["label"]) + 1, *step["segment"]))))
        path = folder / "annotations" / f"{entry['recipe_type']}_{name}.csv"
        path.write_text("\n".join(lines))
    tasks = [f"{task}: {[*grammar.PROCEDURES][task]}: {', '.join(own)}"
             for task, own in sorted(steps.items())]
    (folder / "tasks.txt").write_text("\n".join(tasks))
    test = [name for name, entry in database.items() if entry["subset"] == "testing"]
    (folder / "test.txt").write_text("\n".join(test))
    return ("--data", "crosstask", "--videos", "world/videos", "--annotations",
            folder / "annotations", "--tasks", folder / "tasks.txt", "--test-ids",
            folder / "test.txt")


def test_a_data_set_is_a_class_and_a_line(here, monkeypatch, capsys):
    """Checked, pre-trained, fine-tuned and evaluated on. Catches: a name, a reader of files, a
    flag, a split or a path that may move which is written anywhere but in its class."""
    call("toy", "export", "--out", "world", "--train", "8", "--test", "2")
    Path("crosstask.py").write_text(CROSSTASK)
    monkeypatch.syspath_prepend(here)
    monkeypatch.setitem(sources.SOURCES, "crosstask", "crosstask:CrossTask")       # the line
    data, narrated = write_crosstask(Path("first")), ("--captions", "world/captions")
    run = "--device", "cpu", "--epochs", "1", "--workers", "1"
    call("files", "check", *data, *narrated, "--json", "o.json")
    found = read_json("o.json")
    assert found["classify"]["test"]["found"] == 2 and found["captions"] == 10
    assert found["stride"] == 2 and found["classify"]["train"]["listed"] == 64

    start = ("train.py", *data, *narrated, "--phrases", "world/phrases.txt", "--size", "small",
             "--init", "none", *run, "--batch", "4", "--clip", "toy", "--out", "run")
    call(*start)
    settings = read_json("run/config.json")["settings"]
    assert settings["list of videos"].startswith("8 (")                    # of 10: two are to test
    moved = write_crosstask(Path("moved"))
    call(*[dict(zip(data, moved)).get(word, word) for word in start], "--resume", "--skip",
         "train_00003")
    assert read_json("run/left_out.json") == {"train_00003": ["skipped", "left out by --skip"]}

    call("train.py", "--stage", "finetune", *data, *run, "--init", "run", "--hold-out", ".3",
         "--out", "tuned")
    call("train.py", "--stage", "finetune", "--task", "activity", *data, *run, "--init", "run",
         "--out", "activity")
    tasks = [line.split(": ")[1] for line in Path("first/tasks.txt").read_text().splitlines()]
    assert weights.load("activity").config.names == tasks
    for checkpoint, flags, count in (
            ("run", ("--task", "forecast"), 14), ("run", ("--task", "classify"), 16),
            ("tuned", ("--task", "classify"), 16), ("activity", ("--task", "activity"), 2),
            ("tuned", ("--task", "classify", "--split", "validation"), None)):
        call("evaluate.py", *flags, *data, "--checkpoint", checkpoint, "--json", "o.json")
        content = read_json("o.json")
        assert content["evaluated"] == (count or content["listed"]) > 0
        assert content["split"] == (flags[-1] if count is None else "test")
    assert "crosstask" in fails(capsys, "evaluate.py", "--tasks", "first/tasks.txt")
    Path("first/annotations/0_x.csv").write_text("1,2,x")
    assert "0_x.csv:1: ValueError" in fails(capsys, "files", "check", *data)


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
    (lambda x: x[0], r"Odd makes of one clip torch.Size\(\[6\]\); expected a tensor \(1, 4\)"),
    (lambda x: x[:, :3], r"torch.Size\(\[1, 3\]\); expected"), (lambda x: (x, x), "tuple"),
    (lambda x: x[:, :4] / x[:, :4].norm() * 2, "Odd makes a vector of length 2; expected 1"),
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


class Pairs(Toy):
    """The toy world, as a data set that alone has pairs."""
    has = "steps", "names", "pairs"


class Previous(evaluate.Task):
    """Which step came before the one that is shown."""
    needs = "steps", "names"

    def examples(self, videos, spacing, min_steps):
        return [one._replace(label=videos[one.video].steps[one.step - 1].label)
                for one in classify_examples(videos) if one.step > 0]

    def numbers(self, inputs):
        log_p = evaluate.match_labels(inputs.model, inputs.x.mean(1), inputs.texts)
        return evaluate.accuracies({"ours": log_p}, inputs.labels)


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
    monkeypatch.setitem(sources.SOURCES, "own", "test_doors:Pairs")
    call(*score, "guess", "--data", "own")
    line = fails(capsys, *score, "activity", "--data", "own")
    assert "own supports only forecast, classify" in line and "guess" in line
    assert "guess: --data toy supports only forecast" in fails(capsys, *score, "guess")


def test_numbers_out_of_bounds_are_refused(here, capsys):
    """Catches: nought taken for a flag that is not given; a traceback far away, or memory for a
    number that nobody means."""
    for command, flags in {
            "train.py": "--batch --lr --tau --toy-videos --stride",
            "train.py --stage finetune": "--batch --epochs --labels --lr",
            "evaluate.py": "--samples --oracle --batch --repeats",
            "experiments/probes.py": "--samples --horizon --toy-videos",
            "predict.py": "--samples --horizon"}.items():
        for flag in flags.split():
            line = fails(capsys, *command.split(), flag, "0")
            assert flag in line and "0: " in line and "above 0" in line
    for command, flags in {
            "train.py": "--sgd-epochs=1e308 --lr=inf --lr=nan --workers=-3 --seed=-1 --seed=1e30 "
                        f"--micro-batch={10 ** 20} --max-unreadable=1.5 --device=xpu --device=meta",
            "train.py --stage finetune": "--labels=1.5 --hold-out=1",
            "evaluate.py": f"--samples={10 ** 12} --batch={10 ** 20} --min-steps=0",
            "predict.py": f"--horizon={10 ** 12} --seed=-1 --device=mps"}.items():
        for flag in flags.split():
            if flag != "--device=mps" or not torch.backends.mps.is_available():
                line = fails(capsys, *command.split(), flag)
                assert flag.split("=")[0] in line and flag.split("=")[1][:4] in line, line


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
