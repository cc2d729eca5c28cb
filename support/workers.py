"""Worker processes, which decode or render ahead of the step that needs it."""
import os

import torch

from support.command import BadInput


class Lazy(torch.utils.data.Dataset):
    """Item i is make(items[i]), made on demand (in a worker, if there are any)."""

    def __init__(self, make, items):
        self.make, self.items = make, items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        try:
            return self.make(self.items[i])
        except (BadInput, OSError) as error:           # raised in a worker it would lose its line
            return error


def identity(made):
    """Replaces DataLoader's collation, which would turn numpy into tensors."""
    return made


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
    for made in torch.utils.data.DataLoader(Lazy(make, items), batch_size=None,
                                            num_workers=workers, collate_fn=identity,
                                            worker_init_fn=leave_group,
                                            pin_memory=torch.cuda.is_available()):
        if isinstance(made, Exception):
            raise made
        yield made
