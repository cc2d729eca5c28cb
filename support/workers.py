"""Worker processes, which decode or render ahead of the update that needs it."""
import functools
import multiprocessing
import os
import shutil
import signal

import torch
from torch.utils.data import DataLoader, get_worker_info
from tqdm import tqdm

from support.errors import require

AHEAD = 2                 # items that a worker makes ahead
SHARED = "/dev/shm"       # where Linux keeps what processes share


def ignore(signals, worker):
    """Signals that are sent to all processes of a job end no worker. The main process may still
    finish an update, and ends its workers afterwards."""
    for number in signals:
        signal.signal(number, signal.SIG_IGN)


def hand_over(make, items, reading, number):
    """make(items[number]); a worker's tensors go to shared memory, since torch's queue would wait
    forever if that failed. reading (workers, 2): its process, and the number while it reads."""
    worker = get_worker_info()
    if worker is None:
        return make(items[number])
    reading[worker.id] = torch.tensor([os.getpid(), number])
    made = make(items[number])
    reading[worker.id, 1] = -1
    if isinstance(made, tuple):
        for tensor in filter(torch.is_tensor, made):
            tensor.share_memory_()
    return made


def prefetch(make, items, workers, title=None, size=0, held=1, name=str, pin=False):
    """Yield make(item) for each item, in order, made ahead by worker processes (0: none).

    title: of a progress bar, or None in training. size: most bytes of one item's tensors; held:
    most items that the caller keeps at once. name(item): what to call an item that
    killed its worker. pin: whether tensors go to pinned memory, from which a GPU copies
    without waiting.
    """
    ignored = (signal.SIGINT,) if title else (signal.SIGINT, signal.SIGTERM)
    need = (AHEAD * workers + held) * size * int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    text = (f"--workers {workers}: what they read ahead needs up to {need / 2 ** 30:.2g} GiB of "
            "shared memory; give more (Docker: --shm-size), or fewer --workers")
    if workers and os.path.isdir(SHARED):
        free = shutil.disk_usage(SHARED).free
        require(need <= free, f"{text}; {free / 2 ** 30:.2g} GiB are free in {SHARED}")
    reading = torch.zeros(workers, 2, dtype=torch.int64)
    try:
        loader = DataLoader(range(len(items)), batch_size=None, num_workers=workers,
                            collate_fn=functools.partial(hand_over, make, items,
                                                         reading.share_memory_()),
                            prefetch_factor=AHEAD if workers else None, pin_memory=pin,
                            worker_init_fn=functools.partial(ignore, ignored))
        child = getattr(signal, "SIGCHLD", None)       # Windows has none
        before = child and signal.getsignal(child)
        loaded = iter(loader)
        if workers and child and signal.getsignal(child) is not before:
            signal.signal(child, before)       # torch's would raise anywhere, not only in a read
        yield from tqdm(loaded, title, len(items), mininterval=1, disable=title is None)
    except (RuntimeError, ConnectionError, EOFError) as error:     # the latter amid its last batch
        for process in multiprocessing.active_children():
            process.join(0.2)                          # one that was killed may be ending
        alive = {process.pid for process in multiprocessing.active_children()}
        dead = [i for pid, i in reading.tolist() if pid and pid not in alive]
        read = [name(items[i]) for i in dead if i >= 0]
        lost = dead or str(error).startswith("DataLoader worker") or "shared memory" in str(error)
        require(not lost, "a worker process was killed, or could not hand over its batch"
                f"{', while it read '.join(['', *read])}; {text}")
        raise
