"""Worker processes, which decode or render ahead of the update that needs it."""
import os
import shutil

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
from tqdm import tqdm

from support.errors import InputError, require

AHEAD = 2                 # items that a worker makes ahead
SHARED = "/dev/shm"       # where Linux keeps what processes share


class Made(Dataset):
    """Item i is make(items[i]). A worker process itself puts its tensors into shared memory: an
    error there reaches the command, which would wait for good if torch's queue met it."""

    def __init__(self, make, items):
        self.make, self.items = make, items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        made = self.make(self.items[i])
        if get_worker_info() and isinstance(made, tuple):
            for tensor in filter(torch.is_tensor, made):
                tensor.share_memory_()
        return made


def as_it_is(item):
    """In place of torch's default, which makes tensors of NumPy's arrays."""
    return item


def prefetch(make, items, workers, title=None, size=0):
    """Yield make(item) for each item, in order, made ahead by worker processes (0: none).

    title: of a progress bar; None: no bar. size: bytes of an item's tensors, at most. What `make`
    raises is raised here. InputError if a worker is killed, or shared memory is too small.
    """
    need = (AHEAD * workers + 1) * size * int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    text = (f"--workers {workers}: what they read ahead needs up to {need / 2 ** 30:.2g} GiB of "
            "shared memory; give more (Docker: --shm-size), or fewer --workers")
    if workers and os.path.isdir(SHARED):
        free = shutil.disk_usage(SHARED).free
        require(need <= free, f"{text}; {free / 2 ** 30:.2g} GiB are free in {SHARED}")
    loader = DataLoader(Made(make, items), batch_size=None, num_workers=workers,
                        collate_fn=as_it_is, prefetch_factor=AHEAD if workers else None)
    try:
        yield from tqdm(loader, title, len(items), mininterval=1, disable=title is None)
    except RuntimeError as error:
        if "DataLoader worker (pid" in str(error) or "shared memory" in str(error):
            raise InputError(f"a worker process was killed, or could not hand over what it read; "
                             f"{text}") from None
        raise
