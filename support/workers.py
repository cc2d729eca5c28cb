"""Worker processes, which decode or render ahead of the step that needs it."""
import functools
import os
import signal
import sys

import torch
from tqdm import tqdm

from support.process import BadInput, end_if_signaled, locks


def attempt(make, kept, item):
    """make(item), or its error: raised in a worker, it would lose its one line."""
    try:
        return make(item)
    except (BadInput, OSError, MemoryError, *kept) as error:
        return error


def leave_group(worker):
    """Let the main process alone end a worker, also after Ctrl-C: it finishes its step first."""
    os.setpgid(0, 0)
    sys.excepthook = lambda *exception: None           # of a thread whose reader has ended
    while locks:                                       # they would outlive a killed main process
        os.close(locks.popitem()[1])


def prefetch(make, items, workers, title=None, kept=()):
    """Yield make(item) for each item, in order, made ahead by worker processes (0: none); if there
    is a GPU, tensors are pinned. title: of the bar. Raises what `make` raises, but errors of the
    classes `kept` are yielded in place of a result; RuntimeError if a worker dies."""
    # without a batch size, collate_fn gets one item at a time, in the worker
    loader = torch.utils.data.DataLoader(items, batch_size=None, num_workers=workers,
                                         collate_fn=functools.partial(attempt, make, kept),
                                         worker_init_fn=leave_group,
                                         pin_memory=torch.cuda.is_available())
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        ahead = iter(loader)                           # a worker begins without Ctrl-C
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    for made in tqdm(ahead, title, len(items), mininterval=1, disable=title is None):
        end_if_signaled()
        if isinstance(made, Exception) and not isinstance(made, kept):
            raise made
        yield made
