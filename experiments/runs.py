"""The runs that the paper's tables need: each is made once, in OUT/RECIPE-SEED.

A run is trained, fine-tuned and evaluated by train.py and evaluate.py, which write SPLIT.EVALUATION
.json into its folder. Recipes, and the cells that use them, are in paper_tables.toml.
"""
import os
import subprocess
import sys
import time
from pathlib import Path

from tqdm import tqdm

from experiments.paper_tables import RECIPES, TABLES
from files.text import read_json
from support.command import check, flag_of, require, write_json
from support.device import pick_device
from support.process import Interrupts
from toy.source import load_teacher

ROOT = Path(__file__).parent.parent
EPOCHS = 8                # the default 5 suits 6,000 videos; fewer videos are seen more often
LABELS = 0.25             # share of the training videos whose labels fine-tuning may use


def needs(names):
    """{recipe: its evaluations}, of the tables named."""
    needed = {}
    for table in map(TABLES.get, names):
        for _, *cells in table.ours:
            for cell, (_, evaluation, _) in zip(cells, table.columns):
                if cell and evaluation not in needed.setdefault(cell.split()[0], []):
                    needed[cell.split()[0]].append(evaluation)
    return needed


def result_path(settings, recipe, seed, evaluation):
    """The JSON file of an evaluation; it exists once that has been made."""
    return settings.out / f"{recipe}-{seed}" / f"{settings.split}.{evaluation}.json"


def commands(settings, recipe, seed, evaluations):
    """The command lines that make these evaluations of a run: lists of arguments for python."""
    folder = settings.out / f"{recipe}-{seed}"
    common = ["--seed", seed, "--device", settings.device]
    train = [ROOT / "train.py", "--resume", "--toy-videos", settings.toy_videos, *common]
    evaluate = [ROOT / "evaluate.py", "--split", settings.split, "--toy-videos",
                settings.test_videos, *common]
    lines = [[*train, "--out", folder, "--epochs", EPOCHS]]
    for name, value in RECIPES[recipe].items():
        lines[0] += [flag_of(name), ROOT / "experiments" / value if name == "phrases" else value]
    for evaluation in evaluations:
        task, _, tuned = evaluation.partition("-")
        checkpoint = folder / task if tuned else folder
        if tuned:
            lines.append([*train, "--stage", "finetune", "--task", task, "--init", folder, "--out",
                          checkpoint, "--labels", LABELS])
        lines.append([*evaluate, "--task", task, "--checkpoint", checkpoint, "--json",
                      result_path(settings, recipe, seed, evaluation)])
    return lines


def start(folder, line):
    """Start python with these arguments and one thread; its output goes to log.txt -> Popen."""
    with open(folder / "log.txt", "a", encoding="utf-8") as log:
        return subprocess.Popen([sys.executable, *map(str, line)], stdout=log, stderr=log,
                                env={**os.environ, "OMP_NUM_THREADS": "1"})


def make_all(settings, seeds, needed):
    """Make what is missing, --jobs runs at a time; yields after each. The first error ends all."""
    waiting, running = [], {}                # [(folder, lines)], {Popen: (folder, further lines)}
    for seed in seeds:
        for recipe, evaluations in needed.items():
            missing = [evaluation for evaluation in evaluations
                       if not result_path(settings, recipe, seed, evaluation).exists()]
            if missing:
                folder = settings.out / f"{recipe}-{seed}"
                folder.mkdir(exist_ok=True)
                waiting.append((folder, commands(settings, recipe, seed, missing)))
    if not waiting:
        return
    load_teacher(pick_device(settings.device))         # trained before several runs need it
    with Interrupts() as stop, tqdm(total=len(waiting), desc="runs", smoothing=0) as bar:
        try:
            while (waiting or running) and not stop.status:
                while waiting and len(running) < settings.jobs:
                    folder, (line, *further) = waiting.pop(0)
                    running[start(folder, line)] = folder, further
                time.sleep(0.1)
                for process in [process for process in running if process.poll() is not None]:
                    folder, further = running.pop(process)
                    require(not process.returncode or stop.status,
                            f"{folder}: ended with {process.returncode}; see its log.txt")
                    if further:
                        waiting.insert(0, (folder, further))
                    else:
                        bar.update()
                        yield
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait()


def require_same(settings):
    """BadInput if OUT holds runs of another size; else write size.json."""
    path = settings.out / "size.json"
    size = {"toy_videos": settings.toy_videos, "test_videos": settings.test_videos}
    settings.out.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write_json(path, size)
    before = read_object(path, size)
    for name, value in size.items():
        check(before[name] == value, name, value, f"the runs in {settings.out} have "
              f"{before[name]}; give the same, or another --out")


def read_object(path, keys, need="a JSON file of evaluate.py"):
    """A JSON object that has these keys; BadInput if the file holds none."""
    content = read_json(path, need)
    require(isinstance(content, dict) and set(keys) <= content.keys(),
            f"{path}: no object with {', '.join(keys)}; {need} is needed")
    return content
