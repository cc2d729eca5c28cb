"""The log of a run: means since the last row, and TensorBoard's events."""
import math
import time

import torch

from support import parallel
from support.errors import InputError


class Metrics:
    """Means over the videos since the last row of metrics.jsonl, of all processes."""

    def __init__(self, names, device):
        self.names, self.began = names, time.perf_counter()
        self.sums = torch.zeros(len(names) + 2, device=device)         # and of videos and clips

    def add(self, clips, **values):
        """Add a slice of so many clips: {name: (B,), or no tensor if there is no such value}."""
        for i, name in enumerate(self.names):
            if torch.is_tensor(values[name]):
                self.sums[i] += values[name].detach().sum()
            else:
                self.sums[i] += math.nan
        self.sums[-2] += len(values["loss"])
        self.sums[-1] += clips

    def row(self, **given):
        """Begin a new row -> {name: mean, or None without values}, what is given, clips_per_s."""
        sums = parallel.total(self.sums).tolist()                              # waits for the GPU
        videos, clips = sums[-2:]
        seconds = time.perf_counter() - self.began
        self.sums.zero_()
        self.began += seconds
        values = {}
        for name, value in zip(self.names, sums):
            values[name] = None
            if videos and not math.isnan(value):
                values[name] = value / videos
        return values | given | {"clips_per_s": clips / seconds}


def open_tensorboard():
    """torch's SummaryWriter, a class. InputError without TensorBoard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError("--tensorboard: TensorBoard is not installed: pip install tensorboard"
                         ) from None
    return SummaryWriter
