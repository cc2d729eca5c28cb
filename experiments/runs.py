"""The runs behind the tables, each made once, in OUT/RECIPE-SEED: see reproduce.py."""
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from experiments.tables import EVALUATIONS, RECIPES
from files.text import read_json
from support.command import flag_of, parse, require
from support.device import digest_of, write_tensors
from support.flags import DEFAULT, FEATURES
from support.process import Interrupts
from toy.teacher import digest
from train import TrainSettings, command_of
from training import run
from weights.checkpoint import load_model

ROOT = Path(__file__).parent.parent


def commands(settings, folder, recipe, seed, evaluations):
    """The command lines that make these evaluations of a run: lists of arguments for python."""
    def flags(values):
        coin = settings.coin or Path()
        folders = dict.fromkeys(FEATURES, coin) | {"phrases": ROOT / "experiments"}
        return [text for name, value in values.items() if value is not None for text in
                (flag_of(name), folders[name] / value if name in folders else value)]
    toy_videos = None if "data" in RECIPES[recipe] else settings.toy_videos
    common = {"device": settings.device, "toy_videos": toy_videos}
    data = common | {name: value for name, value in RECIPES[recipe].items()
                     if name in ("data", *FEATURES)}
    train = [ROOT / "train.py", "--resume", "--seed", seed]
    lines = [[*train, "--out", folder, *flags(common | RECIPES[recipe])]]
    for evaluation in evaluations:
        task = dict(EVALUATIONS[evaluation])
        labels, checkpoint = task.pop("labels", None), folder
        if labels:
            checkpoint = folder / evaluation
            lines.append([*train, "--stage", "finetune", "--task", task["task"], "--labels", labels,
                          "--init", folder, "--out", checkpoint, *flags(data)])
        lines.append([ROOT / "evaluate.py", "--checkpoint", checkpoint, "--json",
                      folder / f"{evaluation}.json", *flags(task | data)])
    return lines


def require_same(settings):
    """BadInput unless each run in OUT has the settings that its recipe gives it now."""
    for folder in sorted(settings.out.glob("*-*")):
        recipe, _, seed = folder.name.rpartition("-")
        made = [name for name in EVALUATIONS if (folder / f"{name}.json").exists()]
        if recipe in RECIPES and seed.isdecimal() and (made or (folder / "config.json").exists()):
            for script, *flags in commands(settings, folder, recipe, seed, made):
                if script.name == "train.py":
                    flags = list(map(str, flags))
                    require_settings(parse(command_of(flags)[1], flags))


def require_settings(wanted):
    """BadInput unless the run in wanted.out has these settings, and is of this embedded world."""
    path, advice = wanted.out / "config.json", "move it away, or choose another --out"
    content = read_json(path, 'the {"settings": {..}, "versions": {..}} of train.py')
    run.require_same(path, content, run.config_of(wanted), advice,      # folders may move
                     lambda value: Path(str(value)).name)
    versions = content.get("versions")
    world = str(versions.get("world", "unknown") if isinstance(versions, dict) else "unknown")
    require(world == digest() or wanted.data != "toy", f"{wanted.out}: a run of another embedded "
            f"world, {world[:12]}, where this is {digest()[:12]}; {advice}")


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
            folder = settings.out / f"{recipe}-{seed}"
            missing = [name for name in evaluations if not (folder / f"{name}.json").exists()]
            if missing and (settings.coin or "data" not in RECIPES[recipe]):
                folder.mkdir(parents=True, exist_ok=True)
                trained = any((folder / f"{name}.json").exists() for name in EVALUATIONS)
                lines = commands(settings, folder, recipe, seed, missing)
                waiting.append((folder, lines[1:] if trained else lines))
    if not waiting:
        return
    with Interrupts("each run finishes and saves its step first") as stop:
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
                        print(f"{folder}: done; {len(waiting) + len(running)} to go", flush=True)
                        yield
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait()


def write_default(folder):
    """Write the checkpoint that comes with the code: the weights of a run of the default, seed 0.

    The metadata: how the model is built, the settings, the world, metrics.jsonl, and a digest.
    """
    require_settings(TrainSettings(out=folder))
    model, arguments, _ = load_model(folder)
    settings = read_json(folder / "config.json", "of train.py")["settings"]
    kept = {name: value for name, value in settings.items() if name not in run.MAY_CHANGE}
    said = {"arguments": json.dumps(arguments), "settings": json.dumps(kept), "world": digest(),
            "metrics": (folder / "metrics.jsonl").read_text()}
    weights = model.state_dict()
    write_tensors(DEFAULT, weights, said | {"digest": digest_of(weights, said)})
    print(DEFAULT)
