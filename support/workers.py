"""Worker processes, which decode or render ahead of the update that needs it."""
import functools
import multiprocessing
import os
import shutil
import signal

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
from tqdm import tqdm

from support.errors import require

AHEAD = 2                 # items that a worker makes ahead
SHARED = "/dev/shm"       # where Linux keeps what processes share
NAME = 200                # bytes of the name of what a worker is reading


def ignore(signals, worker):
    """Signals that are sent to all processes of a job end no worker. The main process may still
    finish an update, and ends its workers afterwards."""
    for number in signals:
        signal.signal(number, signal.SIG_IGN)


class Watched(Dataset):
    """Item: make(item). A worker notes its process and name(item) while it makes one, in pids
    (workers,) and names (workers, NAME), which the processes share."""

    def __init__(self, make, name, workers):
        self.make, self.name = make, name
        self.pids = torch.zeros(workers, dtype=torch.int64).share_memory_()
        self.names = torch.zeros(workers, NAME, dtype=torch.uint8).share_memory_()

    def __getitem__(self, item):
        worker = get_worker_info()
        if worker is None:
            return self.make(item)
        text = self.name(item).encode()[:NAME].ljust(NAME, b"\0")
        self.pids[worker.id] = os.getpid()
        self.names[worker.id] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        made = self.make(item)
        self.names[worker.id] = 0
        if isinstance(made, tuple):            # torch's queue would wait forever if this failed
            for tensor in filter(torch.is_tensor, made):
                tensor.share_memory_()
        return made

    def lost(self):
        """Whether a worker has ended; and the names of what such workers were reading."""
        for process in multiprocessing.active_children():
            process.join(0.2)                          # one that was killed may be ending
        alive = {process.pid for process in multiprocessing.active_children()}
        dead = [i for i, pid in enumerate(self.pids.tolist()) if pid and pid not in alive]
        texts = [bytes(self.names[i].tolist()).rstrip(b"\0").decode(errors="replace") for i in dead]
        return bool(dead), [text for text in texts if text]


def as_is(made):
    """What a Dataset gives is not changed; torch would make tensors of NumPy's arrays."""
    return made


def prefetch(make, items, workers, title=None, size=0, held=1, name=str, pin=False):
    """A torch DataLoader that yields make(item) for each item, in order, made ahead by worker
    processes (0: none). InputError if one is killed, or if shared memory is too small.

    title: of a progress bar, or None in training, where items may be any iterable. size: most
    bytes of one item's tensors; held: most items that the caller keeps at once. name(item): what to
    call an item that killed its worker. pin: whether tensors go to pinned memory, from which a GPU
    copies without waiting.
    """
    ignored = (signal.SIGINT,) if title else (signal.SIGINT, signal.SIGTERM)
    need = (AHEAD * workers + held) * size * int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    text = (f"--workers {workers}: what they read ahead needs up to {need / 2 ** 30:.2g} GiB of "
            "shared memory; give more (Docker: --shm-size), or fewer --workers")
    if workers and os.path.isdir(SHARED):
        free = shutil.disk_usage(SHARED).free
        require(need <= free, f"{text}; {free / 2 ** 30:.2g} GiB are free in {SHARED}")
    watched = Watched(make, name, workers)
    try:
        loader = DataLoader(watched, batch_size=None, sampler=items, collate_fn=as_is,
                            num_workers=workers, prefetch_factor=AHEAD if workers else None,
                            pin_memory=pin, worker_init_fn=functools.partial(ignore, ignored))
        child = getattr(signal, "SIGCHLD", None)       # Windows has none
        before = child and signal.getsignal(child)
        loaded = iter(loader)
        if workers and child and signal.getsignal(child) is not before:
            signal.signal(child, before)       # torch's would raise anywhere, not only in a read
        yield from tqdm(loaded, title, len(items), mininterval=1) if title else loaded
    except (RuntimeError, ConnectionError, EOFError) as error:     # the latter amid its last batch
        dead, reading = watched.lost()
        for process in multiprocessing.active_children():
            process.kill()                 # it ignores SIGTERM; at its end Python would wait for it
        lost = dead or str(error).startswith("DataLoader worker") or "shared memory" in str(error)
        require(not lost, "a worker process was killed, or could not hand over its batch"
                f"{', while it read '.join(['', *reading])}; {text}")
        raise
