"""Worker processes, which decode or render ahead of the update that needs it."""
import functools
import os
import shutil

import torch
from torch.utils.data import DataLoader, get_worker_info
from tqdm import tqdm

from support.errors import require

AHEAD = 2                 # items that a worker makes ahead
SHARED = "/dev/shm"       # where Linux keeps what processes share


def hand_over(make, item):
    """make(item), a worker's tensors in shared memory: torch's queue would hang if that fails."""
    made = make(item)
    if get_worker_info() and isinstance(made, tuple):
        for tensor in filter(torch.is_tensor, made):
            tensor.share_memory_()
    return made


def prefetch(make, items, workers, title=None, size=0):
    """Yield make(item) for each item, in order, made ahead by worker processes (0: none).

    title: of a progress bar, or None. size: bytes of an item's tensors, at most.
    """
    need = (AHEAD * workers + 1) * size * int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    text = (f"--workers {workers}: what they read ahead needs up to {need / 2 ** 30:.2g} GiB of "
            "shared memory; give more (Docker: --shm-size), or fewer --workers")
    if workers and os.path.isdir(SHARED):
        free = shutil.disk_usage(SHARED).free
        require(need <= free, f"{text}; {free / 2 ** 30:.2g} GiB are free in {SHARED}")
    loader = DataLoader(items, batch_size=None, num_workers=workers,
                        collate_fn=functools.partial(hand_over, make),
                        prefetch_factor=AHEAD if workers else None)
    try:
        yield from tqdm(loader, title, len(items), mininterval=1, disable=title is None)
    except RuntimeError as error:
        lost = "DataLoader worker (pid" in str(error) or "shared memory" in str(error)
        require(not lost, f"a worker process was killed, or could not hand over its batch; {text}")
        raise
