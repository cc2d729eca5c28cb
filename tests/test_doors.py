"""The doors: a data set and a task of one's own, each with a line of a table; flags that count."""
import json
from pathlib import Path

import pytest
import torch

import evaluate
import finetune
import sources
import train
import weights
from commands import ONE, call, fails, read_json
from data import classify_examples
from support import encode
from support.workers import read_ahead
from toy import grammar

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
            with fields_of(where, "needed is `number: name: step, step, ...`"):
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
                with fields_of(where, "needed is `step,start s,end s`"):
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


@pytest.mark.parametrize("part", [None, "denoiser", "encoder"])
def test_a_task_is_a_line(trained, here, capsys, monkeypatch, part):
    """Which step came before the one that is shown: fine-tuned and scored. Catches: a task's name,
    epochs or frames that are also written elsewhere."""
    monkeypatch.setitem(evaluate.TASKS, "previous", evaluate.Task(
        examples=lambda videos, spacing, min_steps: [
            one._replace(label=videos[one.video].steps[one.step - 1].label)
            for one in classify_examples(videos) if one.step > 0],
        read=evaluate.next_clip, trained=part, views=part != "denoiser", epochs=2.0,
        lines=lambda asked: evaluate.accuracies({"ours": evaluate.match_labels(
            asked.model, asked.x.mean(1), asked.texts)}, asked.labels),
        frames=6 if part == "encoder" else None))
    call("train.py", "--stage", "finetune", "--task", "previous", "--toy-videos", "8", "--init",
         trained / "diffusion", "--out", "run")
    assert weights.checkpoint.read("run")["step"] == 2     # of 56 examples each
    assert weights.load("run").encoder.frames == (6 if part == "encoder" else 4)
    score = "evaluate.py", "--toy-videos", "3", "--checkpoint", "run", "--json", "a.json", "--task"
    call(*score, "previous")
    assert {*read_json("a.json")["top1"]} == {"ours"} and read_json("a.json")["evaluated"] == 21
    assert "fine-tuned for previous" in fails(capsys, *score, "forecast")


def test_numbers_out_of_bounds_are_refused(here, capsys):
    """Catches: nought taken for a flag that is not given; a traceback far away, or memory for a
    number that nobody means."""
    for command, flags in {
            "train.py": "--batch --lr --tau --toy-videos --stride",
            "train.py --stage finetune": "--batch --epochs --labels --lr",
            "evaluate.py": "--samples --oracle --horizon --batch --repeats",
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

    def note(dataset, items, workers, size=0, held=1, pin=False):
        pins.append(pin)
        return read_ahead(dataset, items, workers, size, held)
    for module in train, finetune, encode:
        monkeypatch.setattr(module, "read_ahead", note)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    call("train.py", *ONE, "--device", "cpu", "--out", "run")
    monkeypatch.delattr(finetune, "learning_rate")     # that is far enough
    with pytest.raises(NameError):
        call("train.py", "--stage", "finetune", "--toy-videos", "2", "--device", "cpu", "--init",
             trained / "mask", "--out", "tuned")
    assert pins == [False] * 3
