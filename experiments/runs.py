"""The runs that the paper's tables need: each made once, in OUT/RECIPE-SEED.

A run is trained, fine-tuned and evaluated by the commands of train.py and evaluate.py; its JSON
files lie in its folder as SPLIT.EVALUATION.json. What a recipe is, and which cells use it, is in
paper_tables.py.
"""
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tqdm import tqdm

from experiments import paper_tables
from experiments.paper_tables import RECIPES, TABLES
from support.command import BadInput, flag_of, write_json
from toy.source import load_teacher

ROOT = Path(__file__).parent.parent
MATCH_EPOCHS = 7          # the default 4 suits 6,000 videos; fewer videos are seen more often
LABELS = 0.25             # share of the training videos whose labels fine-tuning may use


def split_cell(cell, column):
    """What a cell asks for: recipe, evaluation, key."""
    recipe, _, key = cell.partition(" ")
    recipe, _, evaluation = recipe.partition("/")
    return recipe, evaluation or column[1], key or column[2]


def needs(names):
    """{recipe: its evaluations}, of the tables named."""
    needed = {}
    for name in names:
        if name == "open-vocabulary":
            cells = [("diffusion", paper_tables.CLASSIFY), ("diffusion", paper_tables.FORECAST)]
        else:
            table = TABLES.get(name)
            cells = [split_cell(cell, column)[:2] for _, *row in (table.ours if table else ())
                     for cell, column in zip(row, table.columns) if cell]
        for recipe, evaluation in cells:
            needed.setdefault(recipe, {})[evaluation] = True
    return {recipe: list(evaluations) for recipe, evaluations in needed.items()}


def result_path(settings, recipe, seed, evaluation):
    """The JSON file of an evaluation; it exists once that has been made."""
    return settings.out / f"{recipe}-{seed}" / f"{settings.split}.{evaluation}.json"


def commands(settings, recipe, seed, evaluation):
    """The command lines that make one evaluation, as lists: train, fine-tune, evaluate."""
    path = result_path(settings, recipe, seed, evaluation)
    common = ("--seed", seed, "--device", settings.device)
    if evaluation == paper_tables.PROBE:
        return [["-m", "experiments.probe", "--out", path.parent, "--labels", LABELS, "--split",
                 settings.split, "--toy-videos", settings.toy_videos, "--test-videos",
                 settings.test_videos, "--json", path, *common]]
    checkpoint, (task, _, tuned) = path.parent, evaluation.partition("-")
    flags = [text for name, value in RECIPES[recipe].items()
             for text in (flag_of(name), ROOT / value if name == "phrases" else value)]
    todo = [["train.py", "--toy-videos", settings.toy_videos, "--match-epochs", MATCH_EPOCHS,
             *flags, "--out", checkpoint, "--resume", *common]]
    if tuned:
        todo.append(["train.py", "--stage", "finetune", "--task", task, "--init", checkpoint,
                     "--out", checkpoint / task, "--labels", LABELS, "--toy-videos",
                     settings.toy_videos, "--resume", *common])
        checkpoint = checkpoint / task
    return [*todo, ["evaluate.py", "--task", task, "--checkpoint", checkpoint, "--split",
                    settings.split, "--toy-videos", settings.test_videos, "--json", path, *common]]


def make(settings, running, recipe, seed, evaluations):
    """One run, as far as it does not exist yet, with one thread; its output goes to log.txt.

    running: list of processes; those started here are added.
    """
    folder = settings.out / f"{recipe}-{seed}"
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    for evaluation in evaluations:
        if result_path(settings, recipe, seed, evaluation).exists():
            continue
        for script, *flags in commands(settings, recipe, seed, evaluation):
            script = [script] if script == "-m" else [str(ROOT / script)]
            with open(folder / "log.txt", "a", encoding="utf-8") as log:
                process = subprocess.Popen([sys.executable, *script, *map(str, flags)], stdout=log,
                                           stderr=log, env=environment)
                running.append(process)
                status = process.wait()
            if status:
                raise BadInput(f"{folder}: ended with {status}; see its log.txt")


def make_all(settings, seeds, needed):
    """Make what is missing, --jobs runs at a time; yields after each run."""
    todo = [(recipe, seed, evaluations) for seed in seeds for recipe, evaluations in needed.items()
            if not all(result_path(settings, recipe, seed, evaluation).exists()
                       for evaluation in evaluations)]
    if not todo:
        return
    load_teacher("cpu")                                # trained before several runs want it
    running = []
    with (tqdm(total=len(todo), desc="runs", smoothing=0) as bar,
          ThreadPoolExecutor(settings.jobs) as pool):
        try:
            for done in as_completed([pool.submit(make, settings, running, *job) for job in todo]):
                done.result()
                bar.update()
                yield
        except BaseException:                          # start no other run; these save, and end
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.terminate()
            raise


def require_same(settings):
    """BadInput if OUT holds runs of another size; else note the size of these."""
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
