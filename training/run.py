"""A run: its folder, whether it may begin or go on there, and the loop that all stages share.

The checkpoint is model.py's. Nothing here knows the method: what a step's loss is made of is said
by train.py and finetune.py. Every random choice of a step is drawn from (seed, step).
"""
import json
import math
import os
import subprocess
import sys
import time
import zipfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from support import parallel
from support.command import (BadInput, Interrupts, mixed_precision, set_seed, write_atomically,
                     write_json)

NEWEST, BEFORE = "checkpoint.pt", "checkpoint_before.pt"         # the last two of a run


def prepare_run(settings):
    """Make the run folder and write config.json, or check that --resume may go on in it.

    Returns: the content of the checkpoint to resume from, or None.
    """
    config = {name: value if isinstance(value, (int, float, str, type(None))) else str(value)
              for name, value in asdict(settings).items() if name != "resume"}
    path = settings.out / "config.json"
    has = any((settings.out / name).exists() for name in (NEWEST, BEFORE))
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
        return last_checkpoint(settings.out)
    if has:
        raise BadInput(f"--out {settings.out}: holds a checkpoint; add --resume to go on, "
                       "or choose another folder")
    if parallel.PLACE[0] == 0:
        settings.out.mkdir(parents=True, exist_ok=True)
        write_json(path, {"settings": config, "versions": versions()})
    return None


def read_whole(path):
    """A checkpoint of ours whose bytes are as they were written, which torch does not look at."""
    from model import read_checkpoint
    content = read_checkpoint(path)
    try:
        with zipfile.ZipFile(path) as parts:
            damaged = parts.testzip()
    except zipfile.BadZipFile as error:
        damaged = error
    if damaged:
        raise BadInput(f"{path}: is damaged: its bytes are not those that were written")
    return content


def last_checkpoint(out):
    """The content of a run's newest checkpoint that is whole.

    Where checkpoint.pt is damaged, or a kill came between two renames, the one before takes its
    place, and this is said.
    """
    try:
        return read_whole(out / NEWEST)
    except BadInput as error:
        if not (out / BEFORE).exists():
            raise
        content = read_whole(out / BEFORE)
        reason = error if (out / NEWEST).exists() else f"{out / NEWEST}: is missing"
        print(f"{reason}; going on from {BEFORE}, step {content['step']}")
    parallel.everyone(None)                            # all processes have read it
    if parallel.PLACE[0] == 0:
        os.replace(out / BEFORE, out / NEWEST)
    return content


def earlier_unreadable(out):
    """{id: reason} of the videos that a run could not read before it was interrupted."""
    try:
        return json.loads((out / "unreadable.json").read_text())
    except (OSError, ValueError):                      # none, or cut off: they will be met again
        return {}


def count_unreadable(unreadable, failed, source, settings):
    """Add {id: reason}, write them to the run folder; BadInput if they are too many."""
    if failed.keys() <= unreadable.keys():
        return
    unreadable |= failed
    if parallel.PLACE[0] == 0:
        write_json(settings.out / "unreadable.json", unreadable)
    if len(unreadable) > settings.max_unreadable * len(source):
        raise BadInput(f"{len(unreadable)} of {len(source)} videos cannot be read, more than "
                       f"--max-unreadable {settings.max_unreadable}; see "
                       f"{settings.out}/unreadable.json")


def report_missing(source, settings):
    """Say how many of the listed videos are missing, and name them in the run folder."""
    if source.missing and parallel.PLACE[0] == 0:
        print(f"{len(source.missing)} of {len(source.listed)} videos are missing; see "
              f"{settings.out}/missing.json")
        write_json(settings.out / "missing.json", source.missing)


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
    """One line of metrics.jsonl, if the loss is finite; null for one that the stage has not.

    Reading them waits for the GPU.
    """
    values = {name: float(value.detach()) for name, value in terms.items()}
    row = {"step": step, "epoch": epoch, "loss": None, "xe": None, "mse": None, "mc": None,
           **values, "lr": lr, "clips_per_s": speed}
    if math.isfinite(values["loss"]):
        print(json.dumps(row), file=log, flush=True)


def schedule(step, steps):
    """Share of the peak learning rate: linear warm-up over 5 % of a stage, then linear decay."""
    return min(1.0, (step + 1) / (0.05 * steps + 1), (steps - step) / (0.95 * steps))


def videos_of_step(step, count, batch, seed):
    """(batch,) int: which of `count` videos step number `step` takes; every epoch a new order."""
    import numpy as np
    per_epoch = max(count // batch, 1)
    epoch, place = divmod(step, per_epoch)
    order = np.random.default_rng((seed, 1, epoch)).permutation(count)
    return order[place * batch:(place + 1) * batch]


def require_finite(loss, model, step, stage, settings):
    """FloatingPointError that names the step unless the loss and all weights are finite."""
    if not (math.isfinite(loss) and all(bool(p.isfinite().all()) for p in model.parameters())):
        raise FloatingPointError(
            f"step {step}, batch {step - 1} of --seed {settings.seed}, stage {stage}: the loss "
            f"({loss}) or a weight is not finite; the last checkpoint in {settings.out} is kept; "
            "try a smaller learning rate (--lr and the like)")


class Run:
    """A training run between its first and its last step: a log, a bar, checkpoints, the loop.

    Ctrl-C and SIGTERM let a step end, save, and then end the program; between two stages they end
    it at once, since a stage is saved at its end.

    Args:
        first: steps that are done already; the rows of metrics.jsonl after them are dropped.
        total: steps of all stages.
        count: videos (or samples) in an epoch.
    """

    def __init__(self, settings, model, device, first, total, count):
        self.settings, self.model, self.device, self.count = settings, model, device, count
        self.first, self.total, self.clips = first, total, 0

    def __enter__(self):
        from tqdm import tqdm
        path = self.settings.out / "metrics.jsonl" if parallel.PLACE[0] == 0 else Path(os.devnull)
        if parallel.PLACE[0] == 0:
            keep_metrics(path, self.first)
        with ExitStack() as stack:
            self.log = stack.enter_context(open(path, "a", encoding="utf-8"))
            self.bar = stack.enter_context(tqdm(total=self.total, initial=self.first, desc="train",
                                                mininterval=1))
            self.stack = stack.pop_all()
        self.began = time.perf_counter()
        return self

    def __exit__(self, *exception):
        return self.stack.__exit__(*exception)

    def train(self, stage, span, batch, optimizer, batches, terms_of):
        """One stage, or what is left of it.

        Args:
            stage:    its name, kept in the checkpoint.
            span:     range of its steps; those before `first` are done.
            batch:    videos (or samples) per step.
            optimizer: its groups have a peak learning rate, "peak".
            batches:  iterable, one item for each step that is left.
            terms_of: callable, step and item -> the losses by name, "loss" among them (None: this
                      step has nothing to learn from), and how many clips were read.
        """
        self.model.train()
        with Interrupts() as stop:
            for step, ready in zip(range(max(self.first, span.start), span.stop), batches):
                in_stage = step - span.start
                for group in optimizer.param_groups:
                    group["lr"] = group["peak"] * schedule(in_stage, len(span))
                set_seed(self.settings.seed * 1_000_003 + step)
                with mixed_precision(self.device):
                    terms, read = terms_of(step, ready)
                if terms:
                    optimizer.zero_grad(set_to_none=True)
                    terms["loss"].backward()
                    parallel.average_gradients(optimizer)
                    optimizer.step()
                    self.clips = self.clips + read             # a tensor: not waited for here
                self.bar.update()
                status = max(parallel.everyone(stop.status))
                self.record(stage, step + 1, (in_stage + 1) * batch / self.count, terms, optimizer,
                            step + 1 == span.stop, status != 0)
                if status:
                    sys.exit(status)

    def record(self, stage, done, epoch, terms, optimizer, ends, stops):
        """After a step: a row and a checkpoint, where it is time for them.

        ends: this was the stage's last step. stops: the run is interrupted: a checkpoint, but no
        row that the run would not have had otherwise.
        """
        from model import save_checkpoint
        settings = self.settings
        saves = ends or done % settings.save_every == 0
        if saves or done % settings.log_every == 0:
            if terms:
                speed = float(self.clips) / (time.perf_counter() - self.began)
                log_row(self.log, done, epoch, terms, optimizer.param_groups[-1]["lr"], speed)
        elif not stops:
            return
        loss = float(terms["loss"].detach()) if terms else 0.0
        require_finite(loss, self.model, done, stage, settings)
        if (saves or stops) and parallel.PLACE[0] == 0:
            save_checkpoint(settings.out / NEWEST, self.model, settings.out / BEFORE, step=done,
                            stage=stage, optimizer=optimizer.state_dict())
