"""The folder of a training run: checkpoint.pt, config.json, metrics.jsonl, and who was skipped."""
import hashlib
import json
import sys
import time
from pathlib import Path

import torch

import weights.checkpoint
from files.sources import require_readable
from support.errors import require
from support.write import write_atomically, write_json
from training import parallel

SAVE_EVERY = 600.0        # s between two checkpoints
FREE = "out", "resume", "device", "workers", "max_unreadable", "micro_batch", "log_every"
PATHS = "videos", "captions", "ids", "phrases", "annotations", "steps"         # may move


def settings_of(args, free=FREE):
    """The flags that make a run what it is: plain types, as they stand in its checkpoint."""
    return {name: str(value) if isinstance(value, Path) else value
            for name, value in vars(args).items() if name not in free}


def require_same(args, before, now):
    """InputError unless the checkpoint's run has the settings {name: value} of now."""
    for name, value in now.items():
        require(before.get(name) == value, f"--resume: the run in {args.out} has {name} "
                f"{before.get(name)}, not {value}; give the same")


def open_run(args):
    """The content of the checkpoint in --out, to go on from; {} if there is none."""
    if not (args.out / "checkpoint.pt").exists():
        return {}
    require(args.resume, f"--out {args.out}: holds a checkpoint; continue it with --resume, or "
            "choose another folder")
    content = weights.checkpoint.read(args.out)
    require_same(args, content["settings"], settings_of(args, FREE + PATHS))
    return content


def begin(args, content, source, **used):
    """Make the folder --out, or continue in it: of metrics.jsonl the rows until the checkpoint
    stay. InputError if the checkpoint's run used other videos, or other lists of lines `used`."""
    used["videos"] = [video.name for video in source.videos]
    args.used = {"processes": parallel.place()[1]}
    for name, lines in used.items():
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        args.used[f"list of {name}"] = f"{len(lines)} (sha256 {digest[:16]})"
    if content:
        require_same(args, content["settings"]["used"], args.used)
    if parallel.place()[0] > 0:
        return
    versions = {"python": sys.version.split()[0], "torch": torch.__version__}
    write_json(args.out / "config.json", {"settings": settings_of(args), "versions": versions})
    metrics = args.out / "metrics.jsonl"
    metrics.touch()
    rows = [row for row in metrics.read_bytes().splitlines(keepends=True) if row.endswith(b"\n")]
    rows = [row for row in rows if json.loads(row)["step"] <= content.get("step", 0)]
    write_atomically(metrics, lambda file: file.writelines(rows))
    if source.absent:
        path = args.out / "absent.json"
        print(f"{len(source.absent)} of {len(source.listed)} videos are absent; see {path}")
        write_json(path, source.absent)


def judge_unreadable(source, args):
    """Name the unreadable videos of all processes. InputError if there are too many."""
    for failed in parallel.gather(source.unreadable):
        source.unreadable |= failed
    if source.unreadable and parallel.place()[0] == 0:
        write_json(args.out / "unreadable.json", source.unreadable)
    require_readable(source, args.max_unreadable)


def tell_minutes(model, clips):
    """Print how long a CPU takes for an update of so many clips, as measured on one."""
    F, H = model.encoder.frames, model.encoder.image
    began = time.perf_counter()
    with torch.no_grad():
        model.encode(torch.zeros(1, F, 3, H, H, dtype=torch.uint8))
    minutes = 4 * clips * (time.perf_counter() - began) / 60   # f twice, and as much as two more
    print(f"f is large for a CPU: about {minutes:.0f} minutes per update of {clips} clips")


def learning_rate(update, first, last, peak):
    """Of an update in a stage [first, last): it rises over 5% of the stage, then falls to 0."""
    updates = last - first
    return peak * min(1.0, (update - first + 1) / (0.05 * updates + 1),
                      (last - update) / (0.95 * updates))


def require_finite(args, update, norm):
    """FloatingPointError unless the norm of the gradient is finite, as the loss then is."""
    if not torch.isfinite(norm):                       # waits for the GPU
        raise FloatingPointError(f"update {update}: the loss or its gradient is not finite; the "
                                 f"last checkpoint in {args.out} stays; try a smaller --lr")


def log(args, bar, source, update, norm, **values):
    """Write a row of metrics.jsonl, its loss and shares to the bar, and who is unreadable."""
    require_finite(args, update, norm)
    judge_unreadable(source, args)
    row = {"step": update, **values}
    row = {name: value.item() if torch.is_tensor(value) else value for name, value in row.items()}
    shown = [name for name in ("loss", "match", "match_h") if row.get(name) is not None]
    bar.set_postfix({name: f"{row[name]:.3g}" for name in shown}, refresh=False)
    if parallel.place()[0] == 0:
        with open(args.out / "metrics.jsonl", "a", encoding="utf-8") as file:
            print(json.dumps(row), file=file)


def last_checkpoint(args):
    """A line that says of which update the checkpoint is."""
    path = args.out / "checkpoint.pt"
    if not path.exists():
        return f"stopped; no {path} yet"
    return f"stopped; {path} is of update {weights.checkpoint.read(path)['step']}; add --resume"


def save(args, model, optimizer, update, norm):
    """Write checkpoint.pt: complete, or the one before stays."""
    require_finite(args, update, norm)
    if parallel.place()[0] == 0:
        weights.checkpoint.save(args.out / "checkpoint.pt", model, step=update,
                                optimizer=optimizer.state_dict(), settings=settings_of(args))
