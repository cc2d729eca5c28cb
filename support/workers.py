"""Worker processes, which decode or render ahead of the update that needs it."""
import multiprocessing
import os
import signal

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info
from tqdm import tqdm

from support.errors import require

AHEAD = 2                 # items that a worker makes ahead; torch's default
NOTE = 200                # bytes of a worker's note


def ignore_signals(worker):
    """Signals that are sent to all processes of a job end no worker. The main process may still
    finish an update, and ends its workers afterwards."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


class Watched(Dataset):
    """Item: make(item). Each worker has a note that all processes can read: its process and, while
    it makes an item, name(item)."""

    def __init__(self, make, name, workers):
        self.make, self.name = make, name
        self.notes = [multiprocessing.RawArray("c", NOTE) for _ in range(workers)]

    def __getitem__(self, item):
        worker = get_worker_info()
        if worker is None:
            return self.make(item)
        note, pid = self.notes[worker.id], str(os.getpid())
        note.value = f"{pid} {self.name(item)}".encode()[:NOTE]
        made = self.make(item)
        note.value = pid.encode()
        if isinstance(made, tuple):            # torch's queue would wait forever if this failed
            for tensor in filter(torch.is_tensor, made):
                tensor.share_memory_()
        return made

    def lost(self):
        """What each worker that has ended was making: [name, "" for nothing]."""
        for process in multiprocessing.active_children():
            process.join(0.2)                          # one that was killed may be ending
        alive = {str(process.pid) for process in multiprocessing.active_children()}
        notes = [note.value.decode(errors="replace").partition(" ") for note in self.notes]
        return [name for pid, _, name in notes if pid and pid not in alive]


def prefetch(make, items, workers, title=None, size=0, held=1, name=str, pin=False):
    """A torch DataLoader that yields make(item) for each item, in order, made ahead by worker
    processes (0: none). InputError if one is killed, or if shared memory is too small.

    title: of a progress bar, or None in training, where items may be any iterable. size: most
    bytes of one item's tensors; held: most items that the caller keeps at once. name(item): what to
    call an item that killed its worker. pin: whether tensors go to pinned memory, from which a GPU
    copies without waiting.
    """
    watched = Watched(make, name, workers)
    loader = DataLoader(watched, batch_size=None, sampler=items, num_workers=workers,
                        collate_fn=nn.Identity(),      # NumPy's arrays do not become tensors
                        pin_memory=pin, worker_init_fn=ignore_signals)
    try:
        loaded = iter(loader)
        if workers and os.name == "posix":     # torch's handler would raise outside of reads, too
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        yield from tqdm(loaded, title, len(items), mininterval=1) if title else loaded
    except (RuntimeError, ConnectionError, EOFError) as error:     # the latter amid its last batch
        lost = watched.lost()
        for process in multiprocessing.active_children():
            process.kill()                 # it ignores SIGTERM; at its end Python would wait for it
        need = (AHEAD * workers + held) * size * int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        reading = "".join(f", while it read {name}" for name in filter(None, lost))
        known = lost or str(error).startswith("DataLoader worker") or "shared memory" in str(error)
        require(not known, "a worker process was killed, or could not hand over its batch"
                f"{reading}; --workers {workers}: what they read ahead needs up to "
                f"{need / 2 ** 30:.2g} GiB of shared memory; give more (Docker: --shm-size), or "
                "fewer --workers")
        raise
