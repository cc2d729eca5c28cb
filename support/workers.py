"""Worker processes, which decode or render ahead of the step that needs it."""
import functools
import os

import torch

from support.command import BadInput


def attempt(make, item):
    """make(item), or its error: raised in a worker, it would lose its one line."""
    try:
        return make(item)
    except (BadInput, OSError) as error:
        return error


def leave_group(worker):
    """Move a worker to a group of its own: a terminal sends Ctrl-C to the main process's group.

    It finishes and saves its step; a worker that died first would end the run before that.
    """
    os.setpgid(0, 0)


def prefetch(make, items, workers):
    """Yield make(item) for each item, in order, made ahead by worker processes (0: none).

    If there is a GPU, tensors are pinned, so that copies to it do not block.

    Raises: what `make` raises; RuntimeError if a worker dies.
    """
    # without a batch size, collate_fn gets one item at a time, in the worker
    for made in torch.utils.data.DataLoader(items, batch_size=None, num_workers=workers,
                                            collate_fn=functools.partial(attempt, make),
                                            worker_init_fn=leave_group,
                                            pin_memory=torch.cuda.is_available()):
        if isinstance(made, Exception):
            raise made
        yield made
