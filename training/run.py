"""A training run: its folder, whether it may begin or resume there, logging and checkpoints."""
import json
import math
import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from files.text import read_json
from support import parallel
from support.command import BadInput, check, require, write_atomically, write_json
from support.process import Interrupts, lock
from toy.teacher import digest
from weights.checkpoint import build_ours, save_checkpoint
from weights.names import read_content

NEWEST, BEFORE = "checkpoint.pt", "checkpoint_before.pt"         # the last two of a run
MAY_CHANGE = "device", "out", "workers", "max_unreadable"        # when a run is resumed
LOG_EVERY, SAVE_EVERY = 20, 500           # steps between two rows of metrics.jsonl, two checkpoints
ROW = re.compile(rb'\{"step": (\d{1,9})(, "\w+": (null|[-+.\de]+))+\}\n')       # of metrics.jsonl


@dataclass(frozen=True)
class Stage:
    """Consecutive steps with one optimizer: `span`, counted over the whole run."""
    name: str
    span: range
    batch: int                 # videos (or samples) per step
    lr: float                  # peak learning rate
    epochs: float = 1.0        # that were asked for: the last step ends them


# --- The run folder ---
def prepare_run(settings):
    """Make the run folder, or continue in it: the content of the checkpoint to resume, or None."""
    config, path = config_of(settings), settings.out / "config.json"
    if parallel.is_first():
        settings.out.mkdir(parents=True, exist_ok=True)
        lock(settings.out)
        for part in settings.out.glob(f"{NEWEST}.*.part"):     # of a run that was killed
            part.unlink()
    has = any((settings.out / name).exists() for name in (NEWEST, BEFORE))
    if settings.resume and has:
        require_same(path, read_json(path, "a run's {\"settings\": {..}}"), config)
        return last_checkpoint(settings.out, config)
    check(not has, "out", settings.out, "holds a checkpoint; --resume it, or choose another folder")
    if parallel.is_first():
        write_json(path, {"settings": config, "versions": versions()})
    return None


def config_of(settings):
    """The settings that a run begins with, as in config.json and in its checkpoints."""
    config = json.loads(json.dumps(asdict(settings), default=str))
    del config["resume"]
    return config


def require_same(path, content, config, advice="resume it with its settings", part=str):
    """BadInput unless a file of a run has these settings; part: what of a value is compared."""
    before = content.get("settings")
    require(isinstance(before, dict), f"{path}: no settings of a run in it; nothing to resume")
    for name, value in config.items():
        check(part(value) == part(before.get(name)) or name in MAY_CHANGE, name, value,
              f"{path} is of another run, with {before.get(name)}; {advice}")


def last_checkpoint(out, config):
    """A run's newest checkpoint, whole and finite; the one before if it is damaged or missing."""
    path = out / NEWEST
    try:
        content = read_content(path)
    except BadInput:
        path = out / BEFORE
        if not path.exists():
            raise
        content = read_content(path)
    require(type(content.get("step")) is int
            and {"arguments", "model", "stage", "optimizer"} <= content.keys(),
            f"{path}: was not saved by a training run; nothing to resume")
    require_same(path, content, config)
    content["model"] = build_ours(path, content)
    if path.name == BEFORE:
        print(f"{out / NEWEST}: missing or damaged; going on from {BEFORE}, step {content['step']}")
        parallel.gather_objects(None)                  # all processes have read it
        if parallel.is_first():
            os.replace(path, out / NEWEST)
    return content


def load_optimizer(optimizer, resumed, out):
    """Take over the momenta of a checkpoint, but not its rates; BadInput unless they fit."""
    good, names = False, ({"momentum_buffer"} if "momentum" in optimizer.defaults else
                          {"step", "exp_avg", "exp_avg_sq"})
    with suppress(Exception):                          # of a type that it cannot have
        optimizer.load_state_dict(optimizer.state_dict() | {"state": resumed["optimizer"]["state"]})
        good = all(state.keys() == names and all(
            value.shape in (p.shape, ()) and value.isfinite().all() for value in state.values())
            for p, state in optimizer.state.items())
    require(good, f"--resume: the optimizer in the checkpoint in {out} does not fit the weights or "
            "is not finite; begin again in another folder")


def versions():
    """Versions of python, torch and numpy, the commit, and the embedded world's digest."""
    commit, command = None, ["git", "-C", Path(__file__).parent, "rev-parse", "HEAD"]
    with suppress(OSError):                            # no git here
        commit = subprocess.run(command, capture_output=True, text=True).stdout.strip() or None
    return {"python": sys.version.split()[0], "torch": torch.__version__,
            "numpy": np.__version__, "commit": commit, "world": digest()}


def report_missing(source, settings):
    """Print how many of the listed videos are missing, and name them in the run folder."""
    path = settings.out / "missing.json"
    if source.missing and parallel.is_first():
        print(f"{len(source.missing)} of {len(source.listed)} videos are missing; see {path}")
        write_json(path, source.missing)


def drop_later_rows(path, step):
    """Drop the rows of metrics.jsonl after the checkpoint's step, and the damaged ones."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    rows = list(filter(None, map(ROW.fullmatch, lines)))
    if len(rows) < len(lines):
        print(f"{path}: {len(lines) - len(rows)} damaged rows dropped")
    write_atomically(path, lambda file: file.writelines(row[0] for row in rows
                                                        if int(row[1]) <= step))


# --- The loop ---
def learning_rate(step, stage):
    """Of a step: it rises linearly over 5 % of the stage, then it falls linearly to 0."""
    step, steps = step - stage.span.start, len(stage.span)
    return stage.lr * min(1.0, (step + 1) / (0.05 * steps + 1), (steps - step) / (0.95 * steps))


def videos_of_step(step, count, batch, seed):
    """(batch,) int: which of `count` videos step number `step` takes; every epoch a new order."""
    per_epoch = max(count // batch, 1)
    epoch, place = divmod(step, per_epoch)
    order = np.random.default_rng((seed, 1, epoch)).permutation(count)
    return order[place * batch:(place + 1) * batch]


class Run:
    """The steps of a training run: seeds, logging, checkpoints and interrupts.

    On Ctrl-C or SIGTERM the current step is finished and saved, and the program ends. Between two
    stages it ends at once: a stage is saved at its end. arguments: how the model is built, for its
    checkpoints; resumed: as `prepare_run` returns it.
    """

    def __init__(self, settings, model, arguments, stages, resumed):
        self.settings, self.model, self.arguments = settings, model, arguments
        self.config = config_of(settings)              # as given: --micro-batch is chosen later
        self.stages, self.resumed = stages, resumed
        self.first, name = (resumed["step"], resumed["stage"]) if resumed else (0, None)
        begun, last = [s.name for s in stages if self.first - 1 in s.span], stages[-1].span.stop
        require(begun == ([name] if resumed else []), f"--resume: the checkpoint in {settings.out} "
                f"is of step {self.first}, stage {name!r:.40}, which this run does not have; were "
                "videos added or removed since?")
        if self.first == last:
            print(f"{settings.out}/{NEWEST}: finished before, {last} steps")
        self.clips, self.began = 0, time.perf_counter()
        self.unreadable = {}               # {id: reason}; after resuming all of them fail again
        if last < 10:
            print(f"note: {last} steps of --batch {settings.batch} are too few to learn anything")

    def steps(self, stage, optimizer, items_of):
        """Yield (step, item) for the steps left of a stage; the caller calls `log` in each. Its
        exception closes this generator, and so its hold on signals. items_of: steps -> items."""
        left = range(max(self.first, stage.span.start), stage.span.stop)
        if not left:                                   # done before the run was interrupted
            return
        if self.resumed and self.resumed["stage"] == stage.name:
            load_optimizer(optimizer, self.resumed, self.settings.out)
        if parallel.is_first():
            drop_later_rows(self.settings.out / "metrics.jsonl", left.start)
        self.model.train()
        self.optimizer = optimizer
        self.bar = tqdm(zip(items_of(left), left, strict=True), stage.name, len(stage.span),
                        initial=left.start - stage.span.start, mininterval=1)
        with Interrupts() as interrupts, self.bar:
            for item, step in self.bar:
                torch.manual_seed(self.settings.seed * 1_000_003 + step)
                self.terms = {}                        # a step without a clip learns nothing
                yield step, item
                status = max(parallel.gather_objects(interrupts.status))
                self.record(stage, step + 1, status != 0)
                if status:
                    sys.exit(status)
        if stage is self.stages[-1]:
            print(f"{self.settings.out}/{NEWEST}: {stage.span.stop} steps, "
                  f"{time.perf_counter() - self.began:.0f} s")

    def add_unreadable(self, failed, source):
        """Add {id: reason} of videos to unreadable.json; BadInput if there are too many."""
        if failed.keys() <= self.unreadable.keys():
            return
        self.unreadable |= failed
        path, most = self.settings.out / "unreadable.json", self.settings.max_unreadable
        if parallel.is_first():
            write_json(path, self.unreadable)
        count = len(self.unreadable)
        require(count <= most * len(source), f"{count} of {len(source)} videos cannot be read, "
                f"more than --max-unreadable {most}; see {path}")

    def log(self, clips, **terms):
        """What the step read, how many clips, and its losses by name: "loss" and its parts."""
        self.terms, self.clips = terms, self.clips + clips

    def record(self, stage, done, stops):
        """Write a row and a checkpoint if they are due, or a checkpoint alone if the run stops."""
        saves = done == stage.span.stop or done % SAVE_EVERY == 0
        logs, out = saves or done % LOG_EVERY == 0, self.settings.out
        if not (logs or stops):
            return
        values = {name: float(value.detach()) for name, value in self.terms.items()}
        loss = values.get("loss", 0.0)
        self.bar.set_postfix({name: f"{value:.3g}" for name, value in values.items()},
                             refresh=False)
        steps, left = done - self.first, self.stages[-1].span.stop - done
        minutes = left * (time.perf_counter() - self.began) / steps / 60
        if steps <= LOG_EVERY and done % LOG_EVERY == 0 and minutes >= 1:      # once
            self.bar.write(f"about {minutes:.0f} min for the {left} steps left")
        if logs and values and math.isfinite(loss) and parallel.is_first():
            epoch = stage.epochs * (done - stage.span.start) / len(stage.span)
            row = {"step": done, "epoch": epoch,       # null: a term that the stage does not have
                   **dict.fromkeys(("loss", "xe", "mse", "mc")), **values,
                   "lr": self.optimizer.param_groups[-1]["lr"],
                   "clips_per_s": self.clips / (time.perf_counter() - self.began)}
            with open(out / "metrics.jsonl", "a", encoding="utf-8") as metrics:
                print(json.dumps(row), file=metrics)
        if not (math.isfinite(loss) and all(p.isfinite().all() for p in self.model.parameters())):
            raise FloatingPointError(
                f"step {done}, batch {done - 1} of --seed {self.settings.seed}, stage {stage.name}:"
                f" the loss ({loss}) or a weight is not finite; the last checkpoint in {out} is "
                "whole; try a smaller learning rate (--lr and the like)")
        if (saves or stops) and parallel.is_first():
            save_checkpoint(out / NEWEST, self.model, self.arguments, out / BEFORE, step=done,
                            stage=stage.name, optimizer=self.optimizer.state_dict(),
                            settings=self.config)
