"""Worker processes, which decode or render ahead of the update that needs it."""
import torch
from tqdm import tqdm


def prefetch(make, items, workers, title=None):
    """Yield make(item) for each item, in order, made ahead by worker processes (0: none).

    title: of a progress bar; None: no bar. What `make` raises is raised here.
    """
    # Without a batch size, collate_fn gets one item at a time, in the worker.
    loader = torch.utils.data.DataLoader(items, batch_size=None, num_workers=workers,
                                         collate_fn=make)
    return tqdm(loader, title, len(items), mininterval=1, disable=title is None)
