"""The folder of a training run: checkpoint.pt, config.json, metrics.jsonl, and who was skipped."""
import hashlib
import json
import math
import signal
import time
from pathlib import Path

import torch

import weights.checkpoint
from files.sources import require_readable
from support.errors import require
from support.write import write_atomically, write_json
from training import parallel

SAVE_EVERY = 600.0        # s between two checkpoints
FREE = ("out", "resume", "device", "workers", "max_unreadable", "micro_batch", "log_every", "skip")
PATHS = "videos", "features", "captions", "ids", "phrases", "annotations", "steps"     # may move


def learning_rate(update, first, last, peak):
    """The rate in a stage [first, last). It rises over 5% of the stage, then falls to 0."""
    updates = last - first
    return peak * min(1.0, (update - first + 1) / (0.05 * updates + 1),
                      (last - update) / (0.95 * updates))


class Run:
    """One run: its folder, and the checkpoint to go on from, {} at first.

    flags: {name: value} of the command line. Those that are not FREE make the run what it is: a
    checkpoint keeps them, and --resume with others is an InputError.
    """

    def __init__(self, flags):
        self.out, self.max_unreadable = flags["out"], flags["max_unreadable"]
        self.settings = {name: str(value) if isinstance(value, Path) else value
                         for name, value in flags.items() if name not in FREE}
        self.checkpoint, self.saved = {}, time.perf_counter()
        if (self.out / "checkpoint.pt").exists():
            require(flags["resume"], f"--out {self.out}: holds a checkpoint; continue it with "
                    "--resume, or choose another folder")
            self.checkpoint = weights.checkpoint.read(self.out)
        self.first = self.checkpoint.get("step", 0)        # updates that were made before
        self.rank, self.world = parallel.rank_and_world()  # process 0 writes the files

    def begin(self, source, **lists):
        """Make the folder, or go on in it and drop the rows of metrics.jsonl that are later than
        the checkpoint. InputError if the checkpoint's run had other settings, or other `lists`
        {name: lines}: the settings hold their digests."""
        lists["videos"] = [video.name for video in source.videos]
        for name, lines in lists.items():
            digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
            self.settings[f"list of {name}"] = f"{len(lines)} (sha256 {digest[:16]})"
        before = self.checkpoint.get("settings", self.settings)
        for name, value in self.settings.items():
            require(name in PATHS or before.get(name) == value, f"--resume: the run in {self.out} "
                    f"has {name} {before.get(name)}, not {value}; it must stay the same")
        if self.rank > 0:
            return
        write_json(self.out / "config.json", {
            "settings": self.settings, "torch": torch.__version__, "processes": self.world})
        metrics = self.out / "metrics.jsonl"
        metrics.touch()
        rows = [row for row in metrics.read_bytes().splitlines(keepends=True)
                if row.endswith(b"\n") and json.loads(row)["step"] <= self.first]
        write_atomically(metrics, lambda file: file.writelines(rows))
        if source.absent:
            path = self.out / "absent.json"
            print(f"{len(source.absent)} of {len(source.listed)} videos are absent; see {path}")
            write_json(path, source.absent)
        if source.silent or source.wrong_captions:
            write_json(self.out / "captions.json", {"without_words": source.silent,
                                                    "unreadable": source.wrong_captions})

    def due(self):
        """Whether it is time to save."""
        return time.perf_counter() - self.saved > SAVE_EVERY

    def log(self, bar, update, norm, row):
        """Write a row of metrics.jsonl, and its loss and shares to the bar. FloatingPointError
        unless the norm of the gradient is finite; if it is, the loss is finite, too."""
        if not torch.isfinite(norm):                       # waits for the GPU
            raise FloatingPointError(f"update {update}: the loss or its gradient is not finite; the"
                                     f" last checkpoint in {self.out} stays, if any; use a smaller "
                                     "--lr")
        shown = [name for name in ("loss", "match", "match_h") if row.get(name) is not None]
        bar.set_postfix({name: row[name] for name in shown}, refresh=False)
        if self.rank == 0:
            with open(self.out / "metrics.jsonl", "a", encoding="utf-8") as file:
                print(json.dumps({"step": update, **row}), file=file)

    def save(self, model, optimizer, update, source):
        """Write checkpoint.pt; if that fails, the one before stays. Then merge what each process
        could not read since it began. InputError if that is too much."""
        if self.rank == 0:
            weights.checkpoint.save(self.out / "checkpoint.pt", model, step=update,
                                    optimizer=optimizer.state_dict(), settings=self.settings)
        for unreadable in parallel.gather(source.unreadable):
            source.unreadable |= unreadable
        path = self.out / "unreadable.json"
        if (source.unreadable or path.exists()) and self.rank == 0:
            write_json(path, source.unreadable)
        require_readable(source, self.max_unreadable, path)
        self.saved = time.perf_counter()

    def end(self, update, updates):
        """Say that the run is complete, or end the program as Ctrl-C does."""
        path = self.out / "checkpoint.pt"
        if update < updates:
            raise KeyboardInterrupt(f"stopped; {path} is of update {update} of {updates}; add "
                                    "--resume")
        if self.rank == 0:
            print(f"{path}: {updates} updates")


class Metrics:
    """Means over the videos since the last row of metrics.jsonl, of all processes."""

    def __init__(self, names, device):
        self.names, self.began = names, time.perf_counter()
        self.sums = torch.zeros(len(names) + 2, device=device)         # and of videos and clips

    def add(self, clips, **values):
        """Add a micro-batch of so many clips: {name: (B,), or None if there is no such value}."""
        for i, name in enumerate(self.names):
            self.sums[i] += math.nan if values[name] is None else values[name].detach().sum()
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


def stop_signals():
    """A list to which Ctrl-C and SIGTERM append. The update under way is then finished and saved. A
    second Ctrl-C ends the run at once."""
    asked = []

    def ask(number, frame):
        asked.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)
    return asked
