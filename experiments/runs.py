"""The runs that the paper's tables need: each made once, in OUT/RECIPE-SEED.

A run is trained, fine-tuned and evaluated by the commands of train.py and evaluate.py; its JSON
files lie in its folder as SPLIT.EVALUATION.json. What a recipe is, and which cells use it, is in
paper_tables.py.
"""
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tqdm import tqdm

from experiments.paper_tables import RECIPES, TABLES, split_cell
from support.command import BadInput, Interrupts, flag_of, write_json
from support.device import pick_device
from toy.source import load_teacher

HERE = Path(__file__).parent
MATCH_EPOCHS = 7          # the default 4 suits 6,000 videos; fewer videos are seen more often
LABELS = 0.25             # share of the training videos whose labels fine-tuning may use


def needs(names):
    """{recipe: its evaluations}, of the tables named."""
    needed = {}
    for name in names:
        cells = [split_cell(cell, column)[:2] for _, *row in TABLES[name].ours
                 for cell, column in zip(row, TABLES[name].columns) if cell]
        for recipe, evaluation in cells:
            needed.setdefault(recipe, {})[evaluation] = True
    return {recipe: list(evaluations) for recipe, evaluations in needed.items()}


def result_path(settings, recipe, seed, evaluation):
    """The JSON file of an evaluation; it exists once that has been made."""
    return settings.out / f"{recipe}-{seed}" / f"{settings.split}.{evaluation}.json"


def commands(settings, recipe, seed, evaluations):
    """The command lines that make these evaluations of a run: lists of arguments for python."""
    folder = settings.out / f"{recipe}-{seed}"
    common = ["--seed", seed, "--device", settings.device]
    training = ["--toy-videos", settings.toy_videos, *common]
    results = {evaluation: ["--split", settings.split, *common, "--json",
                            result_path(settings, recipe, seed, evaluation)]
               for evaluation in evaluations}
    if recipe not in RECIPES:                          # a classifier on the teacher
        return [["-m", "experiments.probe", "--out", folder, "--labels", LABELS, "--toy-videos",
                 settings.toy_videos, "--test-videos", settings.test_videos, *more]
                for more in results.values()]
    flags = [text for name, value in RECIPES[recipe].items()
             for text in (flag_of(name), HERE / value if name == "phrases" else value)]
    lines = [[HERE.parent / "train.py", "--match-epochs", MATCH_EPOCHS, *flags, "--out", folder,
              "--resume", *training]]
    for evaluation, more in results.items():
        task, _, tuned = evaluation.partition("-")
        checkpoint = folder / task if tuned else folder
        if tuned:
            lines.append([HERE.parent / "train.py", "--stage", "finetune", "--task", task, "--init",
                          folder, "--out", checkpoint, "--labels", LABELS, "--resume", *training])
        lines.append([HERE.parent / "evaluate.py", "--task", task, "--checkpoint", checkpoint,
                      "--toy-videos", settings.test_videos, *more])
    return lines


def start(folder, line):
    """Start python with these arguments and one thread; its output goes to log.txt -> Popen."""
    path = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    with open(folder / "log.txt", "a", encoding="utf-8") as log:
        return subprocess.Popen([sys.executable, *map(str, line)], stdout=log, stderr=log,
                                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path})


def make_all(settings, seeds, needed):
    """Make what is missing, --jobs runs at a time; yields after each run.

    Ctrl-C and SIGTERM, and a run that fails, end those that are running: each saves its training.
    """
    todo = []
    for seed in seeds:
        for recipe, evaluations in needed.items():
            missing = [evaluation for evaluation in evaluations
                       if not result_path(settings, recipe, seed, evaluation).exists()]
            if missing:
                folder = settings.out / f"{recipe}-{seed}"
                folder.mkdir(exist_ok=True)
                todo.append((folder, commands(settings, recipe, seed, missing)))
    if not todo:
        return
    load_teacher(pick_device(settings.device))         # trained before several runs need it
    running, waiting = {}, todo[::-1]                  # {Popen: (folder, its further lines)}
    with Interrupts() as stop, tqdm(total=len(todo), desc="runs", smoothing=0) as bar:
        try:
            while (waiting or running) and not stop.status:
                while waiting and len(running) < settings.jobs:
                    folder, lines = waiting.pop()
                    running[start(folder, lines[0])] = folder, lines[1:]
                time.sleep(0.1)
                for process in [process for process in running if process.poll() is not None]:
                    folder, lines = running.pop(process)
                    if stop.status:
                        break
                    if process.returncode:
                        raise BadInput(f"{folder}: ended with {process.returncode}; see its "
                                       "log.txt")
                    if lines:
                        running[start(folder, lines[0])] = folder, lines[1:]
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
    size = {name: getattr(settings, name) for name in ("toy_videos", "test_videos")}
    settings.out.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write_json(path, size)
    for name, value in read_json(path, size).items():
        if value != size[name]:
            raise BadInput(f"{flag_of(name)} {size[name]}: the runs in {settings.out} "
                           f"have {value}; give the same, or another --out")


def read_json(path, keys):
    """A JSON object that has these keys; BadInput if the file holds none."""
    try:
        content = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: {type(error).__name__}; a JSON file is needed, as evaluate.py "
                       "--json writes it") from None
    if not isinstance(content, dict) or not set(keys) <= content.keys():
        raise BadInput(f"{path}: without {', '.join(keys) or 'an object'}; a JSON file of "
                       "evaluate.py is needed")
    return content
