"""How a batch is made: which items it has, and the worker processes that read them ahead."""
import atexit
import functools
import multiprocessing
import os
import signal
import tempfile
import threading
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

from data import ORDER, LeftOut, Read, Unreadable
from support.errors import require

AHEAD = 2                 # items that a worker reads ahead; torch's default


@functools.lru_cache(1)
def epoch_order(count, seed, epoch):
    """A new order of `count` videos or examples in every epoch: (count,) int."""
    return np.random.default_rng((ORDER, seed, epoch)).permutation(count)


def items(updates, count, batch, share, seed):
    """Yield the items (epoch, number, place) of `updates` (a range), each of `batch` of `count`
    videos or examples, each once in an epoch. share: the places of this process in a batch."""
    for update in updates:
        epoch, k = divmod(update, count // batch)
        order = epoch_order(count, seed, epoch)
        yield from ((epoch, int(order[k * batch + place]), place) for place in share)


def ignore_signals(worker):
    """Signals that are sent to all processes of a job end no worker. The main process may still
    finish an update, and ends its workers afterwards."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def kill(processes):
    """End worker processes. They ignore SIGTERM, so Python would wait for them when it exits."""
    for process in processes:
        process.kill()


class Watched(Dataset):
    """A dataset whose workers say what they read: while one reads an item, a file of `folder` that
    is named by its process id holds the item's name. What is Unreadable becomes a Read, too."""

    def __init__(self, dataset, folder):
        self.dataset, self.folder = dataset, folder

    def __getitem__(self, item):
        if get_worker_info() is None:
            return self.read(item)
        note = Path(self.folder, str(os.getpid()))
        note.write_text(self.dataset.name(item), "utf-8")
        read = self.read(item)
        for tensor in filter(torch.is_tensor, read):   # torch's queue would wait forever if this
            tensor.share_memory_()                     # failed
        note.unlink()
        return read

    def read(self, item):
        """The Read of an item."""
        try:
            return self.dataset[item]
        except Unreadable as error:
            return Read(self.dataset.name(item), item[2], failed=str(error),
                        left_out=isinstance(error, LeftOut))


def read_ahead(dataset, items, workers, size=0, held=1, pin=False):
    """Yield the data.Read of each item, in order, read ahead by worker processes (0: none).
    InputError if one is killed, or if shared memory is too small.

    dataset: gives a Read for an item (epoch, number, place in a batch), or raises Unreadable; has
    name(item), too. size: most bytes of one item's tensors; held: most items that the
    caller keeps at once. pin: whether tensors go to pinned memory, from which a GPU copies without
    waiting.
    """
    before = {*multiprocessing.active_children()}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        loader = DataLoader(Watched(dataset, folder), batch_size=None, sampler=items,
                            num_workers=workers, pin_memory=pin, worker_init_fn=ignore_signals,
                            collate_fn=nn.Identity())      # NumPy's arrays do not become tensors
        try:
            reads = iter(loader)
            atexit.register(kill, {*multiprocessing.active_children()} - before)       # of a bug
            if workers and os.name == "posix" and threading.current_thread() is (
                    threading.main_thread()):      # torch's handler would raise outside of reads
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            yield from reads
        except (RuntimeError, ConnectionError, EOFError) as error:     # the latter amid an item
            readers = {*multiprocessing.active_children()} - before
            for process in readers:
                process.join(0.2)                      # one that was killed may be ending
            alive = {str(process.pid) for process in readers if process.is_alive()}
            kill(readers)
            names = [note.read_text("utf-8") for note in Path(folder).iterdir()
                     if note.name not in alive]
            reading = "".join(f", while it read {name} (leave it out with --skip {name})"
                              for name in names)
            told = "DataLoader worker (pid" in str(error) or "shared memory" in str(error)
            need = (AHEAD * workers + held) * size * int(os.environ.get("LOCAL_WORLD_SIZE", 1))
            require(not told and not names, "a worker process was killed, or could not hand over "
                    f"what it read{reading}; --workers {workers}: what they read ahead needs up to "
                    f"{need / 2 ** 30:.2g} GiB of shared memory; give more (Docker: --shm-size), "
                    "or fewer --workers")
            raise


def join(parts, device):
    """Tensors (C_k, ...), each copied from pinned memory without waiting, as one on the device."""
    return torch.cat([part.to(device, non_blocking=True) for part in parts])
