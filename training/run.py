"""The folder of a training run: checkpoint.pt, config.json, metrics.jsonl, and who was skipped."""
import hashlib
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch

import weights.checkpoint
from files.sources import require_readable
from support.errors import require
from support.write import write_atomically, write_json
from training import parallel

SAVE_EVERY = 600.0        # s between two checkpoints
FREE = ("out", "resume", "device", "workers", "max_unreadable", "micro_batch", "log_every", "skip",
        "compile")
PATHS = "videos", "features", "captions", "ids", "phrases", "annotations", "steps"     # may move
TERMS = "xe", "mse", "mc", "match", "match_h"          # of train.py's objective, of each video


# --- Begin, or go on ---
def settings_of(args, free=FREE):
    """The flags that make a run what it is: plain types, as they stand in its checkpoint."""
    return {name: str(value) if isinstance(value, Path) else value
            for name, value in vars(args).items() if name not in free}


def require_same(args, before, now):
    """InputError unless the checkpoint's run has the settings {name: value} of now."""
    for name, value in now.items():
        require(before.get(name) == value, f"--resume: the run in {args.out} has {name} "
                f"{before.get(name)}, not {value}; it must stay the same")


def open_run(args):
    """The checkpoint in --out, to go on from; {} if there is none."""
    if not (args.out / "checkpoint.pt").exists():
        return {}
    require(args.resume, f"--out {args.out}: holds a checkpoint; continue it with --resume, or "
            "choose another folder")
    checkpoint = weights.checkpoint.read(args.out)
    require_same(args, checkpoint["settings"], settings_of(args, FREE + PATHS))
    return checkpoint


def commit():
    """The commit of this code, "-dirty" if files were changed since; None outside a repository."""
    command = "git describe --always --abbrev=40 --dirty --exclude *".split()
    try:
        return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True,
                              check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def begin(args, checkpoint, source, **used):
    """Make the folder --out, or go on in it and drop the rows of metrics.jsonl that are later than
    the checkpoint -> the settings of the run, which its checkpoints hold. InputError if the
    checkpoint's run used other videos, or other lists of lines `used`."""
    used["videos"] = [video.name for video in source.videos]
    for name, lines in used.items():
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        used[name] = f"{len(lines)} (sha256 {digest[:16]})"
    if checkpoint:
        before = checkpoint["settings"]["used"]
        require_same(args, {f"list of {name}": before.get(name) for name in used},
                     {f"list of {name}": lines for name, lines in used.items()})
    settings, unreadable = settings_of(args) | {"used": used}, args.out / "unreadable.json"
    if checkpoint and unreadable.exists():
        before = json.loads(unreadable.read_bytes())
        source.unreadable = {name: before[name] for name in before if name not in args.skip}
    source.shared = dict(source.unreadable)    # what any process could not read at the last save
    if parallel.rank_and_world()[0] > 0:
        return settings
    versions = {"python": sys.version.split()[0], "torch": torch.__version__, "commit": commit()}
    write_json(args.out / "config.json", {"settings": settings, "versions": versions,
                                          "processes": parallel.rank_and_world()[1]})
    metrics = args.out / "metrics.jsonl"
    metrics.touch()
    rows = [row for row in metrics.read_bytes().splitlines(keepends=True) if row.endswith(b"\n")]
    rows = [row for row in rows if json.loads(row)["step"] <= checkpoint.get("step", 0)]
    write_atomically(metrics, lambda file: file.writelines(rows))
    if source.absent:
        path = args.out / "absent.json"
        print(f"{len(source.absent)} of {len(source.listed)} videos are absent; see {path}")
        write_json(path, source.absent)
    if source.silent or source.wrong_captions:
        write_json(args.out / "captions.json", {"without_words": source.silent,
                                                "unreadable": source.wrong_captions})
    return settings


class Stop:
    """Ctrl-C or SIGTERM during a run sets `asked` to True. The update under way is then finished
    and saved. A second Ctrl-C ends the run at once."""

    def __enter__(self):
        self.asked = False
        main = threading.current_thread() is threading.main_thread()
        signals = (signal.SIGINT, signal.SIGTERM) if main else ()
        self.before = {number: signal.signal(number, self.ask) for number in signals}
        return self

    def ask(self, number, frame):
        """What a signal calls."""
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt("stopped at once; the last checkpoint stays")
        self.asked = True

    def __exit__(self, *error):
        for number, handler in self.before.items():
            signal.signal(number, handler)


# --- While it goes on ---
def learning_rate(update, first, last, peak):
    """The rate in a stage [first, last). It rises over 5% of the stage, then falls to 0."""
    updates = last - first
    return peak * min(1.0, (update - first + 1) / (0.05 * updates + 1),
                      (last - update) / (0.95 * updates))


class Metrics:
    """Means over the videos since the last row of metrics.jsonl, of all processes."""

    def __init__(self, names, device):
        self.names, self.device, self.counted = names, device, set()
        self.begin()

    def begin(self):
        """Begin a new row."""
        self.sums = torch.zeros(len(self.names) + 2, device=self.device)
        self.began = time.perf_counter()

    def add(self, terms, clips):
        """Add a group: its terms {name: (V,)}, and how many clips it has."""
        self.counted |= terms.keys()
        videos, zero = len(terms["loss"]), self.sums.new_zeros(())
        sums = [terms[name].detach().sum() if name in terms else zero for name in self.names]
        self.sums += torch.stack([*sums, zero + videos, zero + clips])

    def row(self, **given):
        """{name: mean, or None if it was never added}, with what is given and clips_per_s."""
        *sums, videos, clips = parallel.total(self.sums).tolist()              # waits for the GPU
        values = {name: value / max(videos, 1) if name in self.counted else None
                  for name, value in zip(self.names, sums)}
        given["clips_per_s"] = clips / (time.perf_counter() - self.began)
        self.begin()
        return values | given


def log(args, bar, update, norm, **values):
    """Write a row of metrics.jsonl, and its loss and shares to the bar. FloatingPointError unless
    the norm of the gradient is finite; if it is, the loss is finite, too."""
    if not torch.isfinite(norm):                       # waits for the GPU
        raise FloatingPointError(f"update {update}: the loss or its gradient is not finite; the "
                                 f"last checkpoint in {args.out} stays, if any; use a smaller --lr")
    row = {"step": update, **values}
    shown = [name for name in ("loss", "match", "match_h") if row.get(name) is not None]
    bar.set_postfix({name: f"{row[name]:.3g}" for name in shown}, refresh=False)
    if parallel.rank_and_world()[0] == 0:
        with open(args.out / "metrics.jsonl", "a", encoding="utf-8") as file:
            print(json.dumps(row), file=file)


def save(args, model, optimizer, update, settings, source):
    """Write checkpoint.pt; if that fails, the one before stays. Then merge what each process could
    not read. InputError if that is too much; also if pre-training has read no clip, so
    that nothing is saved."""
    learned = model.task or model.standardize.updates > 0  # published weights come with 0 updates
    if parallel.rank_and_world()[0] == 0 and learned:
        weights.checkpoint.save(args.out / "checkpoint.pt", model, step=update,
                                optimizer=optimizer.state_dict(), settings=settings)
    found = parallel.gather(source.unreadable)
    read = {name for name in source.shared for failed in found if name not in failed}
    source.unreadable = {name: reason for failed in found for name, reason in failed.items()
                         if name not in read}
    source.shared = dict(source.unreadable)
    path = args.out / "unreadable.json"
    if (source.unreadable or path.exists()) and parallel.rank_and_world()[0] == 0:
        write_json(path, source.unreadable)
    require_readable(source, args.max_unreadable, path)
    require(learned, f"no video could be read, so nothing is saved; see {path}")


def ended(args, update, updates):
    """Say that the run is complete, or end the program as Ctrl-C does."""
    path = args.out / "checkpoint.pt"
    if update < updates:
        raise KeyboardInterrupt(f"stopped; {path} is of update {update} of {updates}; add --resume")
    print(f"{path}: {updates} updates")
