"""What both loops share: a run's folder, its log, its saves, how it is stopped and resumed.

A folder has checkpoint.pt, config.json and metrics.jsonl; left_out.json, if videos are not used;
unreadable.txt, if some could not be read, or have no words; and the events that --tensorboard asks
for.
"""
import hashlib
import json
import signal
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from tqdm import tqdm, trange

from support import parallel, tensors
from support.errors import InputError, require, require_readable, too_many
from support.log import Metrics, open_tensorboard
from support.write import write_atomically, write_json

FIRST_SAVE, MOST_BETWEEN = 60.0, 600.0             # s: after which it saves first; then, at most
PER_SAVE = 100            # time between two saves / time that a save takes
ENOUGH = 20               # videos that must be tried before the share of unreadable ones is judged
FREE = ("out", "resume", "device", "workers", "max_unreadable", "micro_batch", "log_every", "skip",
        "compile", "tensorboard")                  # flags that --resume may change
WRITTEN = "config.json", "checkpoint.pt", "metrics.jsonl", "left_out.json", "unreadable.txt"
EVENTS = "events.out.tfevents.*"                   # TensorBoard's


def learning_rate(update, first, last, peak, cuts=()):
    """The rate in a stage [first, last). It rises over 5% of the stage, then falls to 0. With
    `cuts`, shares of the stage, it is constant, but cut to a tenth after each of them (release)."""
    done, updates = update - first, last - first
    if cuts:
        return peak * 0.1 ** sum(done / updates >= cut for cut in cuts)
    return peak * min(1.0, (done + 1) / (0.05 * updates + 1), (last - update) / (0.95 * updates))


@contextmanager
def signals_to(handler):
    """A context manager: Ctrl-C and SIGTERM call handler(number, frame); afterwards they mean what
    they did before. Python lets the main thread alone do so: in another, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = signal.SIGINT, signal.SIGTERM
    before = [signal.signal(number, handler) for number in numbers]
    try:
        yield
    finally:
        for number, meant in zip(numbers, before):
            if meant is not None:                  # None: it was not Python that set it
                signal.signal(number, meant)


def is_config(path):
    """Whether a file is the config.json of a run. It is empty if the run was killed just then."""
    try:
        text = path.read_text("utf-8")
        return not text or "settings" in json.loads(text)
    except (OSError, ValueError, TypeError):
        return False


def rows_until(update, path):
    """The lines (bytes) of metrics.jsonl up to those of an update. The first that is no whole row,
    since it was being written or is damaged, ends them."""
    rows = []
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            whole = line.endswith(b"\n") and json.loads(line)["step"] <= update
        except (ValueError, TypeError, LookupError, RecursionError):
            whole = False
        if not whole:
            break
        rows.append(line)
    return b"".join(rows)


class Run:
    """A run and its folder, in two moments.

    `Run(args)` only reads: it refuses a folder that holds a run, or with --resume one of another
    run. Then all is made that may fail. The run begins with `with run.begin(...)`, which takes the
    folder; it ends with this block. If it made no update, it leaves none of its files.

    checkpoint: what to continue from, {} at first; first: updates that were made before.
    unreadable: {id: reason} of the videos in unreadable.txt: those that this process could not
        read, and those in which nothing is said.
    """

    def __init__(self, args, rank=0, world=1):
        self.out, self.resumed, self.log_every = args.out, args.resume, args.log_every
        self.max_unreadable = args.max_unreadable
        self.rank, self.world = rank, world                # as parallel.start gives them
        self.settings, self.checkpoint, self.unreadable, self.tried = {}, {}, {}, {}
        self.made, self.writer = [], None
        self.stop = self.logged = False
        self.tensorboard = open_tensorboard() if args.tensorboard else None
        self.require_usable()
        parallel.wait()                            # no process takes it before all have looked
        if self.resumed and (self.out / "checkpoint.pt").exists():
            self.checkpoint = tensors.read(self.out)
            require({"model", "optimizer", "settings", "step"} <= self.checkpoint.keys(),
                    f"--resume: {self.out / 'checkpoint.pt'} is not of a run")
        self.first = self.checkpoint.get("step", 0)
        for name, value in vars(args).items():
            if isinstance(value, Path) and name not in FREE:
                self.settings[name] = str(value)   # it may move: see `require_same_list`
            elif name not in FREE:
                self.settings[name] = value
                self.require_same(name)

    # --- What must hold before it begins ---
    def require_usable(self):
        """InputError if the folder holds what a run writes: without --resume, of any run; with it,
        what was not written by one."""
        require(self.out.is_dir() or not self.out.exists(), f"--out {self.out}: is no folder")
        held = [path.name for path in self.out.glob(EVENTS)]
        for name in WRITTEN:
            for path in self.out / name, self.out / f"{name}.part":
                if path.exists():
                    held.append(path.name)
        if held and self.resumed:
            require(is_config(self.out / "config.json"), f"--resume: {self.out} holds {held[0]}, "
                    "but no config.json of a run; choose another --out")
        elif held:
            self.refuse(held[0])

    def refuse(self, name):
        """Raise InputError: the folder holds a file of this name."""
        raise InputError(f"--out {self.out}: holds {name}, as a run does; continue the run with "
                         "--resume, or choose another folder")

    def require_same(self, name):
        """InputError if the checkpoint's run had another value of a setting."""
        value = self.settings[name]
        before = self.checkpoint.get("settings", self.settings).get(name)
        require(before == value, f"--resume: the run in {self.out} has {name} {before}, not "
                f"{value}; it must stay the same")

    def require_same_list(self, name, lines):
        """Keep the digest of what a file or a folder holds among the settings. InputError if the
        checkpoint's run had another."""
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        self.settings[f"list of {name}"] = f"{len(lines)} (sha256 {digest[:16]})"
        self.require_same(f"list of {name}")

    # --- It begins, and ends ---
    @contextmanager
    def begin(self, title, source, updates, per_epoch, names, device):
        """A context manager that takes the folder -> the updates that are left, with a bar. names:
        of `metrics`.

        Ctrl-C and SIGTERM: the update under way is finished and saved; `after` then returns True,
        and the program ends as it does by Ctrl-C. A second Ctrl-C ends it at once.
        """
        self.source, self.updates, self.per_epoch = source, updates, per_epoch
        self.done, self.count = self.first, len({video.name for video in source.videos})
        with signals_to(self.ask_to_stop):
            try:
                if self.rank == 0:
                    self.claim()
                parallel.wait()                    # no process writes before the folder is taken
                for name in self.unreadable:
                    self.append_unreadable(name)
                self.metrics = Metrics(names, device)
                self.saved, self.period = time.perf_counter(), FIRST_SAVE
                with trange(self.first, updates, desc=title, mininterval=1,
                            disable=self.rank > 0) as self.bar:
                    yield self.bar
            finally:
                self.leave()
        parallel.end()
        path = self.out / "checkpoint.pt"
        if self.done < updates:
            raise KeyboardInterrupt(f"stopped; {path} is of update {self.done} of {updates}; "
                                    "add --resume")
        if self.rank == 0:
            print(f"{path}: {updates} updates")

    def ask_to_stop(self, number, frame):
        """What a signal does."""
        self.stop = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def claim(self):
        """Create the files of the folder, and write what the run is and which videos it leaves out.
        Rows of metrics.jsonl that are later than the checkpoint go. InputError if another run
        was faster."""
        if not self.out.exists():
            self.out.mkdir(parents=True)
            self.made.append(self.out)
        write_json(self.create("config.json"), {
            "settings": self.settings, "torch": torch.__version__, "processes": self.world})
        metrics = self.create("metrics.jsonl")
        rows = rows_until(self.first, metrics)
        write_atomically(metrics, lambda file: file.write(rows))
        left_out = self.source.left_out
        if left_out:
            kinds = Counter(kind for kind, _ in left_out.values())
            told = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
            path = self.create("left_out.json")
            write_json(path, left_out)
            print(f"{len(left_out)} of {len(self.source.listed)} videos are left out: {told}; see "
                  f"{path}")
        if self.tensorboard:
            before = set(self.out.glob(EVENTS))
            self.writer = self.tensorboard(str(self.out), purge_step=self.first + 1)
            self.made += set(self.out.glob(EVENTS)) - before

    def create(self, name):
        """The path of a file of the folder, which is new, or of the run that is resumed."""
        path = self.out / name
        try:
            path.open("x").close()
            self.made.append(path)
        except FileExistsError:
            if not self.resumed:
                self.refuse(name)
        return path

    def leave(self):
        """Close what is open. If the run made no update, remove what it made itself."""
        if self.writer:
            self.writer.close()
        if self.logged or self.first > 0:
            return
        for path in reversed(self.made):           # the folder is the last, config.json before it
            if path.is_dir():
                with suppress(OSError):            # it is not empty
                    path.rmdir()
            else:
                path.unlink(missing_ok=True)

    # --- Its videos ---
    def readable(self, reads):
        """The data.Read of a slice that could be read. The others are counted, and named once."""
        good = []
        for read in reads:
            if read.failed is None:
                self.tried[read.name] = "read"
                good.append(read)
                continue
            outcome = "left out" if read.left_out else "unreadable"
            self.tried[read.name] = outcome
            skipped = read.name in self.source.left_out            # left_out.json names it
            if not skipped and read.name not in self.unreadable:
                tqdm.write(f"{outcome}: {read.name}: {read.failed}")
                self.unreadable[read.name] = read.failed
                self.append_unreadable(read.name)
        return good

    def append_unreadable(self, name):
        """Add a video to unreadable.txt, to which all processes add."""
        path, reason = self.out / "unreadable.txt", " ".join(self.unreadable[name].split())
        if not path.exists():
            self.made.append(path)
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{name}\t{reason}\n")

    def judge_videos(self, least):
        """InputError, in all processes, if one of them has tried all its videos, or at least so
        many, and too many could not be read when they were last tried."""
        kinds = Counter(self.tried.values())
        tried = kinds["read"] + kinds["unreadable"]
        judged = tried >= least or len(self.tried) == self.count
        bad = judged and too_many(kinds["unreadable"], tried, self.max_unreadable)
        [anywhere] = parallel.any_of(bad)
        path = self.out / "unreadable.txt"
        if bad:
            failed = {name: self.unreadable[name] for name, outcome in self.tried.items()
                      if outcome == "unreadable"}
            require_readable(failed, tried, self.max_unreadable, path)
        require(not anywhere, f"another process could not read too many videos: see {path}")

    # --- Its updates ---
    def after(self, done, norm, model, optimizer):
        """Log and save after `done` updates, if it is time -> whether to stop. norm:
        of the gradient."""
        self.done = done
        due = self.rank == 0 and time.perf_counter() - self.saved > self.period
        stop, due = parallel.any_of(self.stop, due)
        end = stop or done == self.updates
        if end or done % self.log_every == 0:
            self.log(norm, optimizer.param_groups[0]["lr"])
            if end or due:
                self.save(model, optimizer)
        return stop

    def log(self, norm, lr):
        """Write a row of metrics.jsonl, and its loss and shares to the bar. FloatingPointError
        unless the norm of the gradient is finite; if it is, the loss is finite, too. InputError if
        there are no values since no video could be read."""
        if not torch.isfinite(norm):                       # waits for the GPU
            raise FloatingPointError(f"update {self.done}: the loss or its gradient is not finite; "
                                     f"the last checkpoint in {self.out} stays, if any; use a "
                                     "smaller --lr")
        row = {"step": self.done} | self.metrics.row(epoch=self.done / self.per_epoch, lr=lr)
        if row["loss"] is None:
            self.judge_videos(1)
        self.logged = True
        shown = [name for name in ("loss", "match", "match_h") if row.get(name) is not None]
        self.bar.set_postfix({name: row[name] for name in shown}, refresh=False)
        if self.rank == 0:
            with open(self.out / "metrics.jsonl", "a", encoding="utf-8") as file:
                print(json.dumps(row), file=file)
        if self.writer:
            for name, value in row.items():
                if value is not None:
                    self.writer.add_scalar(name, value, self.done)

    def save(self, model, optimizer):
        """Write checkpoint.pt; if that fails, the one before stays. Then judge what was read."""
        began = time.perf_counter()
        if self.rank == 0:
            tensors.save(self.out / "checkpoint.pt", model, step=self.done,
                         optimizer=optimizer.state_dict(), settings=self.settings)
        self.saved = time.perf_counter()
        self.period = min(PER_SAVE * (self.saved - began), MOST_BETWEEN)
        self.judge_videos(ENOUGH)
