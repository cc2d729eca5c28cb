"""What both loops share: a run's folder, its metrics, the learning rate, and how it is stopped.

A folder has checkpoint.pt, config.json and metrics.jsonl; left_out.json, if videos cannot be used;
and unreadable.json, if some could not be read.
"""
import hashlib
import json
import math
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import torch
from tqdm import tqdm, trange

import weights.checkpoint
from support import parallel
from support.errors import InputError, require, require_readable
from support.write import write_atomically, write_json

FIRST_SAVE, LAST_SAVE, SHARE = 60.0, 600.0, 100    # s; a save may take a hundredth of the time
FREE = ("out", "resume", "device", "workers", "max_unreadable", "micro_batch", "log_every", "skip",
        "compile")


def learning_rate(update, first, last, peak):
    """The rate in a stage [first, last). It rises over 5% of the stage, then falls to 0."""
    updates = last - first
    return peak * min(1.0, (update - first + 1) / (0.05 * updates + 1),
                      (last - update) / (0.95 * updates))


class Run:
    """One run and its folder, which it claims as soon as it begins: `with Run(args) as run`.

    A folder that holds a run is refused without --resume. If a new run ends before its first
    update, it leaves none of its files. checkpoint: what to continue from, {} at first. unreadable:
    {id: reason} of the videos that could not be read when they were last tried; `told`: of all
    processes, when the run was last saved; `before`: those not yet tried again since --resume.
    """

    def __init__(self, args):
        flags = vars(args)
        self.out, self.log_every = args.out, args.log_every
        self.max_unreadable = args.max_unreadable
        self.settings = {name: str(value) if isinstance(value, Path) else value
                         for name, value in flags.items() if name not in FREE}
        self.rank, self.world = parallel.rank_and_world()  # process 0 writes the files
        self.checkpoint, self.unreadable, self.told, self.before = {}, {}, {}, set()
        self.silent = set()                                # ids of videos without words, as named
        self.paths = {name for name, value in flags.items() if isinstance(value, Path)}
        self.resumed, self.updated, self.stop = args.resume, False, False
        self.saved, self.period = time.perf_counter(), FIRST_SAVE

    def __enter__(self):
        """Take the folder. InputError if it holds another run."""
        signal.signal(signal.SIGTERM, signal.default_int_handler)      # so that __exit__ is called
        config, checkpoint = self.out / "config.json", self.out / "checkpoint.pt"
        self.began = not config.exists()
        if self.rank == 0:
            self.out.mkdir(parents=True, exist_ok=True)
            try:
                config.open("a" if self.resumed else "x").close()
            except FileExistsError:
                raise InputError(f"--out {self.out}: holds a run; continue it with --resume, or "
                                 "choose another folder") from None
        if self.resumed and checkpoint.exists():
            self.checkpoint = weights.checkpoint.read(self.out)
            with suppress(FileNotFoundError):
                self.told = json.loads((self.out / "unreadable.json").read_text("utf-8"))
            self.unreadable, self.before = dict(self.told), {*self.told}
            self.require_same()
        self.first = self.checkpoint.get("step", 0)        # updates that were made before
        return self

    def __exit__(self, *error):
        """Leave no file of a run that began here and has made no update."""
        if self.rank == 0 and self.began and not self.updated:
            for name in "config.json", "left_out.json", "unreadable.json", "metrics.jsonl":
                (self.out / name).unlink(missing_ok=True)

    def require_same(self):
        """InputError if the checkpoint's run had other settings."""
        before = self.checkpoint.get("settings", self.settings)
        for name, value in self.settings.items():
            same = name in self.paths or before.get(name) == value
            require(same, f"--resume: the run in {self.out} has {name} {before.get(name)}, not "
                    f"{value}; it must stay the same")

    def begin(self, source, **lists):
        """Write what the run is and what is left out; drop the rows of metrics.jsonl that are later
        than the checkpoint. InputError if the checkpoint's run had other settings, or other `lists`
        {name: lines}: the settings hold their digests."""
        lists["videos"] = [video.name for video in source.videos]
        for name, lines in lists.items():
            digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
            self.settings[f"list of {name}"] = f"{len(lines)} (sha256 {digest[:16]})"
        self.require_same()
        if self.rank > 0:
            return
        write_json(self.out / "config.json", {
            "settings": self.settings, "torch": torch.__version__, "processes": self.world})
        metrics = self.out / "metrics.jsonl"
        metrics.touch()
        rows = [row for row in metrics.read_bytes().splitlines(keepends=True)
                if row.endswith(b"\n") and json.loads(row)["step"] <= self.first]
        write_atomically(metrics, lambda file: file.writelines(rows))
        if source.left_out:
            kinds = Counter(kind for kind, _ in source.left_out.values())
            path, told = self.out / "left_out.json", [f"{kinds[kind]} {kind}" for kind in kinds]
            print(f"of {len(source.listed)} videos are left out: {', '.join(told)}; see {path}")
            write_json(path, source.left_out)

    def readable(self, reads):
        """The data.Read of a slice that could be read. The others are named once, and kept in
        `unreadable` until they can be read."""
        for read in reads:
            self.before.discard(read.name)
            if read.failed is None:
                self.unreadable.pop(read.name, None)
            elif read.left_out:                        # --skip, or without words: not counted
                if read.name not in self.source.left_out and read.name not in self.silent:
                    tqdm.write(f"left out: {read.name}: {read.failed}")
                    self.silent.add(read.name)
            elif read.name not in self.unreadable:
                tqdm.write(f"unreadable: {read.name}: {read.failed}")
                self.unreadable[read.name] = read.failed
        return [read for read in reads if read.failed is None]

    def start(self, title, source, updates, per_epoch, names, device):
        """Begin the loop: its bar, over the updates that are left. names: of `metrics`."""
        self.source, self.updates, self.per_epoch = source, updates, per_epoch
        self.done = self.first
        self.metrics = Metrics(names, device)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.ask_to_stop)
        self.bar = trange(self.first, updates, desc=title, mininterval=1, disable=self.rank > 0)
        return self.bar

    def ask_to_stop(self, number, frame):
        """Ctrl-C and SIGTERM: the update under way is finished and saved. A second Ctrl-C ends the
        run at once."""
        self.stop = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def after(self, done, norm, model, optimizer):
        """Log and save after `done` updates, if it is time -> whether to stop. norm:
        of the gradient."""
        self.done = done
        due = self.rank == 0 and time.perf_counter() - self.saved > self.period
        asked, due = parallel.any_of(self.stop, due)
        end = asked or done == self.updates
        if end or done % self.log_every == 0:
            self.log(norm, optimizer.param_groups[0]["lr"])
            if end or due:
                self.save(model, optimizer)
        return asked

    def log(self, norm, lr):
        """Write a row of metrics.jsonl, and its loss and shares to the bar. FloatingPointError
        unless the norm of the gradient is finite; if it is, the loss is finite, too."""
        if not torch.isfinite(norm):                       # waits for the GPU
            raise FloatingPointError(f"update {self.done}: the loss or its gradient is not finite; "
                                     f"the last checkpoint in {self.out} stays, if any; use a "
                                     "smaller --lr")
        row = self.metrics.row(epoch=self.done / self.per_epoch, lr=lr)
        if row["loss"] is None:                # no video could be read since the last row
            require_readable(self.source, self.unreadable, self.max_unreadable)
        self.updated = True
        shown = [name for name in ("loss", "match", "match_h") if row.get(name) is not None]
        self.bar.set_postfix({name: row[name] for name in shown}, refresh=False)
        if self.rank == 0:
            with open(self.out / "metrics.jsonl", "a", encoding="utf-8") as file:
                print(json.dumps({"step": self.done, **row}), file=file)

    def save(self, model, optimizer):
        """Write checkpoint.pt; if that fails, the one before stays. Then merge what each process
        cannot read. InputError if that is too much."""
        began = time.perf_counter()
        if self.rank == 0:
            weights.checkpoint.save(self.out / "checkpoint.pt", model, step=self.done,
                                    optimizer=optimizer.state_dict(), settings=self.settings)
        found, path = parallel.gather(self.unreadable), self.out / "unreadable.json"
        self.told = {name: part[name] for part in found for name in part   # since then not read
                     if name not in self.told or all(name in other for other in found)}
        self.unreadable = dict(self.told)
        if (self.told or path.exists()) and self.rank == 0:
            write_json(path, self.told)
        judged = {name: self.told[name] for name in self.told     # those of before: at the end
                  if name not in self.before or self.done == self.updates}
        require_readable(self.source, judged, self.max_unreadable, path)
        self.saved = time.perf_counter()
        self.period = min(SHARE * (self.saved - began), LAST_SAVE)

    def end(self):
        """Say that the run is complete, or end the program as Ctrl-C does."""
        parallel.end()
        path = self.out / "checkpoint.pt"
        if self.done < self.updates:
            raise KeyboardInterrupt(f"stopped; {path} is of update {self.done} of {self.updates}; "
                                    "add --resume")
        if self.rank == 0:
            print(f"{path}: {self.updates} updates")


class Metrics:
    """Means over the videos since the last row of metrics.jsonl, of all processes."""

    def __init__(self, names, device):
        self.names, self.began = names, time.perf_counter()
        self.sums = torch.zeros(len(names) + 2, device=device)         # and of videos and clips

    def add(self, clips, **values):
        """Add a slice of so many clips: {name: (B,), or no tensor if there is no such value}."""
        for i, name in enumerate(self.names):
            absent = not torch.is_tensor(values[name])
            self.sums[i] += math.nan if absent else values[name].detach().sum()
        self.sums[-2] += len(values["loss"])
        self.sums[-1] += clips

    def row(self, **given):
        """Begin a new row -> {name: mean, or None without values}, what is given, clips_per_s."""
        *sums, videos, clips = parallel.total(self.sums).tolist()              # waits for the GPU
        seconds = time.perf_counter() - self.began
        self.sums.zero_()
        self.began += seconds
        values = {name: None if math.isnan(value) or not videos else value / videos
                  for name, value in zip(self.names, sums)}
        return values | given | {"clips_per_s": clips / seconds}

