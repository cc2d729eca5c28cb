"""How a batch is made: which items it has, and the worker processes that read them ahead."""
import functools
import itertools
import multiprocessing
import signal
from contextlib import contextmanager

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from data import ORDER, LeftOut, Read, Unreadable
from support.errors import InputError

TRIES = 3                 # failures in a row after which a video is unreadable
LOST = ("DataLoader worker (pid", "unable to allocate shared memory",      # what torch says of it
        "unable to open shared memory")


@functools.lru_cache(1)
def epoch_order(count, seed, epoch):
    """A new order of `count` videos or examples in every epoch: (count,) int."""
    return np.random.default_rng((ORDER, seed, epoch)).permutation(count)


def items(updates, count, batch, places, seed):
    """Yield the items (epoch, number, place) of `updates` (a range), each of `batch` of `count`
    videos or examples, each once in an epoch. places: of this process in a batch."""
    for update in updates:
        epoch, k = divmod(update, count // batch)
        order = epoch_order(count, seed, epoch)
        for place in places:
            yield epoch, int(order[k * batch + place]), place


class Attempts(Dataset):
    """A dataset of which every item gives a Read. If an item (epoch, number, place in a batch) is
    Unreadable TRIES times in a row, since network errors pass, its Read says why."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __getitem__(self, item):
        for _ in range(TRIES):
            try:
                return self.dataset[item]
            except LeftOut as error:
                reason, left_out = str(error), True
                break
            except Unreadable as error:
                reason, left_out = str(error), False
        return Read(self.dataset.name(item), item[2], failed=reason, left_out=left_out)


def share_memory(read):
    """A Read, whose tensors are in shared memory from now on if this is a worker. torch would move
    them there later, in a thread whose errors are only printed, and all would wait forever. It is
    DataLoader's collate_fn, whose own one would make tensors of NumPy's arrays."""
    if get_worker_info() is not None:
        for value in read:
            if torch.is_tensor(value):
                value.share_memory_()
    return read


def ignore_signals(worker):
    """Signals that are sent to all processes of a job end no worker. The main process may still
    finish an update, and ends its workers afterwards."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def iterate(loader):
    """A context manager -> an iterator over a DataLoader, whose workers are ended afterwards.

    torch lets them finish an item, for some seconds; one that still reads then is killed. They
    ignore SIGTERM, by which Python itself ends them when it exits: it would wait forever.
    """
    reads, others, processes = None, set(multiprocessing.active_children()), set()
    try:
        try:
            reads = iter(loader)
        finally:                                       # also if Ctrl-C comes between two of them
            processes = set(multiprocessing.active_children()) - others
        yield reads
    finally:
        try:
            if reads is not None and loader.num_workers > 0:
                reads._shutdown_workers()
        finally:
            for process in processes:
                process.kill()
                process.join()


def what_was_lost(error):
    """What torch says of a worker that died, or of too little shared memory, as one line; "" if an
    error is another."""
    text = " ".join(str(error).split())
    for part in LOST:
        if part in text:
            return text[text.rindex(part):].removesuffix(" )").rstrip(". ")
    if isinstance(error, (ConnectionError, EOFError)):
        return f"DataLoader worker died while it handed over what it read ({type(error).__name__})"
    return ""


@contextmanager
def read_ahead(dataset, items, workers, pin=False):
    """A context manager -> an iterator over the Read of each item, in order. Worker processes (0:
    none) begin to read at once, and none of them is left afterwards.

    InputError if one dies, or cannot hand over what it read. torch reports this in the main thread,
    at any time, even while nothing is read; so the whole loop belongs within it.

    dataset: gives a Read for an item (epoch, number, place in a batch), or raises Unreadable; has
    name(item), too. pin: whether tensors go to pinned memory, from which a GPU copies without
    waiting.
    """
    asked, left = itertools.tee(items)                 # left: those whose Read was not given yet
    loader = DataLoader(Attempts(dataset), batch_size=None, sampler=asked, num_workers=workers,
                        collate_fn=share_memory, pin_memory=pin, worker_init_fn=ignore_signals)
    try:
        with iterate(loader) as reads:
            yield (read for read, _ in zip(reads, left))
    except (RuntimeError, OSError, EOFError) as error:
        told = what_was_lost(error)
        if workers == 0 or not told:
            raise
        ahead = itertools.islice(left, workers * loader.prefetch_factor)
        names = dict.fromkeys(dataset.name(item) for item in ahead)
        raise InputError(f"{told}; use fewer --workers than {workers}, or more shared memory "
                         "(Docker: --shm-size); if a video that was being read is at fault, leave "
                         f"it out: --skip {' '.join(names)}") from None


def join(parts, device):
    """Tensors (C_k, ...), each copied from pinned memory without waiting, as one on the device."""
    return torch.cat([part.to(device, non_blocking=True) for part in parts])


def send(tensor, device):
    """A tensor on the device. A GPU copies it from pinned memory, so that nothing waits for it."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
