"""Worker processes: what is decoded or rendered is made ahead of the step that needs it."""
import os

import torch

from support.command import BadInput


class Lazy(torch.utils.data.Dataset):
    """Item i is make(items[i]), made when it is asked for (in a worker, where there are any)."""

    def __init__(self, make, items):
        self.make, self.items = make, items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        try:
            return self.make(self.items[i])
        except (BadInput, OSError) as error:           # raised in a worker it would lose its line
            return error


def as_it_is(made):
    """In place of what turns numpy into tensors."""
    return made


def stand_apart(worker):
    """A group of its own: what a job or a terminal sends to all of a group does not reach a worker.

    The main process decides: it finishes and saves its step, and then ends its workers. One that
    died first would end the run without that.
    """
    os.setpgid(0, 0)


def prefetch(make, items, workers):
    """Yield make(item) for each item, in order, made ahead by worker processes (0: none).

    Where there is a GPU, tensors come pinned, so that it fetches them by itself.

    Raises: what `make` raises; RuntimeError if a worker dies.
    """
    for made in torch.utils.data.DataLoader(Lazy(make, items), batch_size=None,
                                            num_workers=workers, collate_fn=as_it_is,
                                            worker_init_fn=stand_apart,
                                            pin_memory=torch.cuda.is_available()):
        if isinstance(made, Exception):
            raise made
        yield made
