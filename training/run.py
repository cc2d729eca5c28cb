"""The folder of a training run: checkpoint.pt, config.json, metrics.jsonl, and who was skipped."""
import json
import math
import sys
from pathlib import Path

import torch

import weights.checkpoint
from files.sources import require_readable
from support.errors import require
from support.write import write_atomically, write_json
from training import parallel

LOG_EVERY, SAVE_EVERY = 20, 500        # updates between two rows of metrics, and two checkpoints
FREE = "out", "resume", "device", "workers", "max_unreadable", "micro_batch"   # may change


def settings_of(args):
    """The flags that make a run what it is: plain types, as they stand in its checkpoint."""
    return {name: str(value) if isinstance(value, Path) else value
            for name, value in vars(args).items() if name not in FREE}


def open_run(args):
    """Make the folder --out, or continue in it -> the content of its checkpoint, {} if new.

    Of metrics.jsonl only the rows until the checkpoint stay.
    """
    content, settings = {}, settings_of(args)
    if (args.out / "checkpoint.pt").exists():
        require(args.resume, f"--out {args.out}: holds a checkpoint; continue it with --resume, or "
                "choose another folder")
        content = weights.checkpoint.read(args.out)
        before = content.get("settings", {})
        for name, value in settings.items():
            require(before.get(name) == value, f"--resume: the run in {args.out} has --"
                    f"{name.replace('_', '-')} {before.get(name)}, not {value}; give the same")
    if parallel.place()[0] == 0:
        args.out.mkdir(parents=True, exist_ok=True)
        versions = {"python": sys.version.split()[0], "torch": torch.__version__}
        write_json(args.out / "config.json", {"settings": settings, "versions": versions})
        metrics = args.out / "metrics.jsonl"
        metrics.touch()
        kept = math.ceil(content.get("step", 0) / LOG_EVERY)
        rows = metrics.read_bytes().splitlines(keepends=True)[:kept]
        write_atomically(metrics, lambda file: file.writelines(rows))
    return content


def report_absent(source, args):
    """Say how many listed videos are absent, and name them in the run folder."""
    if source.absent and parallel.place()[0] == 0:
        path = args.out / "absent.json"
        print(f"{len(source.absent)} of {len(source.listed)} videos are absent; see {path}")
        write_json(path, source.absent)


def note_unreadable(failed, source, args):
    """Add {id: reason} of videos to the source's. Raises InputError if there are too many."""
    if not failed.keys() <= source.unreadable.keys():
        source.unreadable |= failed
        if parallel.place()[0] == 0:
            write_json(args.out / "unreadable.json", source.unreadable)
        require_readable(source, args.max_unreadable)


def learning_rate(update, first, last, peak):
    """Of an update in a stage [first, last): it rises over 5% of the stage, then falls to 0."""
    updates = last - first
    return peak * min(1.0, (update - first + 1) / (0.05 * updates + 1),
                      (last - update) / (0.95 * updates))


def log(args, bar, update, norm, **values):
    """Write a row of metrics.jsonl, and its loss and shares to the bar.

    Raises: FloatingPointError unless the norm of the gradient is finite, as the loss then is.
    """
    if not torch.isfinite(norm):
        raise FloatingPointError(f"update {update}: the loss or its gradient is not finite; the "
                                 f"last checkpoint in {args.out} stays; try a smaller --lr")
    row = {"step": update, **values}
    row = {name: value.item() if torch.is_tensor(value) else value for name, value in row.items()}
    shown = [name for name in ("loss", "match", "match_h") if row.get(name) is not None]
    bar.set_postfix({name: f"{row[name]:.3g}" for name in shown}, refresh=False)
    if parallel.place()[0] == 0:
        with open(args.out / "metrics.jsonl", "a", encoding="utf-8") as file:
            print(json.dumps(row), file=file)


def save(args, model, optimizer, update):
    """Write checkpoint.pt: complete, or the one before stays."""
    if parallel.place()[0] == 0:
        weights.checkpoint.save(args.out / "checkpoint.pt", model, step=update,
                                optimizer=optimizer.state_dict(), settings=settings_of(args))
