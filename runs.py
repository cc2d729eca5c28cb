"""A run folder: config.json, metrics.jsonl, and whether a run may begin or go on in it.

The checkpoint is model.py's. Nothing here knows the method.
"""
import json
import math
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from settings import BadInput, write_atomically, write_json


def prepare_run(settings):
    """Make the run folder and write config.json, or check that --resume may go on in it.

    Returns: the content of the checkpoint to resume from, or None.
    """
    from model import read_checkpoint
    config = {name: value if isinstance(value, (int, float, str, type(None))) else str(value)
              for name, value in asdict(settings).items() if name != "resume"}
    path = settings.out / "config.json"
    has = (settings.out / "checkpoint.pt").exists()
    if settings.resume and has:
        try:
            before = json.loads(path.read_text())["settings"]
        except (ValueError, KeyError, OSError):
            raise BadInput(f"{path}: missing or not readable; it is needed to resume") from None
        other = [name for name in config if config[name] != before.get(name)
                 and name not in ("device", "out", "workers", "max_unreadable")]
        if other:
            name = other[0]
            raise BadInput(f"--{name.replace('_', '-')} {config[name]}: this run has "
                           f"{before.get(name)}; resume it with the settings in {path}")
        return read_checkpoint(settings.out)
    if has:
        raise BadInput(f"--out {settings.out}: holds a checkpoint; add --resume to go on, "
                       "or choose another folder")
    settings.out.mkdir(parents=True, exist_ok=True)
    write_json(path, {"settings": config, "versions": versions()})
    return None


def earlier_unreadable(out):
    """{id: reason} of the videos that a run could not read before it was interrupted."""
    try:
        return json.loads((out / "unreadable.json").read_text())
    except (OSError, ValueError):                      # none, or cut off: they will be met again
        return {}


def versions():
    """What the run was made with: versions of python, torch and numpy, and the commit."""
    import numpy
    import torch
    try:
        commit = subprocess.run(["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"],
                                capture_output=True, text=True, check=False).stdout.strip()
    except OSError:                                    # no git here
        commit = ""
    return {"python": sys.version.split()[0], "torch": torch.__version__,
            "numpy": numpy.__version__, "commit": commit or None}


def keep_metrics(path, step):
    """Drop the rows of metrics.jsonl after the checkpoint's step, and one that a kill cut off."""
    kept = []
    for row in path.read_text().splitlines() if path.exists() else []:
        try:
            if json.loads(row)["step"] <= step:
                kept.append(row + "\n")
        except ValueError:
            break
    write_atomically(path, lambda file: file.write("".join(kept).encode()))


def log_row(log, step, epoch, terms, lr, speed):
    """One line of metrics.jsonl, if it is finite; null for a loss that the stage has not.

    Returns: the loss. Reading it waits for the GPU.
    """
    values = {name: float(value.detach()) for name, value in terms.items()}
    row = {"step": step, "epoch": epoch, "loss": None, "xe": None, "mse": None, "mc": None,
           **values, "lr": lr, "clips_per_s": speed}
    if math.isfinite(values["loss"]):
        print(json.dumps(row), file=log, flush=True)
    return values["loss"]
