"""One model on several GPUs: `torchrun --nproc-per-node 8 train.py ...`, a process for each."""
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from support.errors import require


def processes():
    """How many processes torchrun started; 1 without it."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    require(world == 1 or "LOCAL_RANK" in os.environ, f"WORLD_SIZE is {world}, but torchrun did "
            "not start this process; use torchrun, or unset WORLD_SIZE")
    return world


def start(device):
    """Join the other processes if torchrun started several -> the device of this one."""
    if processes() == 1:
        return device
    if device.type == "cuda":
        place, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        require(place < count, f"more processes than {count} GPUs; start torchrun with "
                f"--nproc-per-node {count}, or add --device cpu")
        device = torch.device("cuda", place)
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return device


def end():
    """Leave the other processes."""
    if dist.is_initialized():
        dist.destroy_process_group()


def rank_and_world():
    """(number of this process, how many there are). Process 0 writes the files."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def share(batch):
    """The places of this process in a batch: a range. InputError if they do not divide it."""
    rank, world = rank_and_world()
    require(batch % world == 0, f"--batch: {batch} videos, which {world} processes do not divide")
    return range(rank * batch // world, (rank + 1) * batch // world)


def any_of(device, *flags):
    """For each flag, whether it is true in any process."""
    if rank_and_world()[1] == 1:
        return flags                                       # without waiting for a GPU
    return total(torch.tensor(flags, dtype=torch.float, device=device)).bool().tolist()


def total(vector):
    """The sum of a vector over all processes."""
    if rank_and_world()[1] > 1:
        dist.all_reduce(vector)
    return vector


def gather(value):
    """The values of all processes, a list."""
    values = [value] * rank_and_world()[1]
    if len(values) > 1:
        dist.all_gather_object(values, value)
    return values


def wrap(objective, model):
    """objective(model, ...) as a module; with several processes, their gradients are averaged."""
    net = OneCall(objective, model)
    if rank_and_world()[1] > 1:
        net = DistributedDataParallel(net)
        net.broadcast_buffers = False                      # phrases stay as they are
    return net


class OneCall(nn.Module):
    """objective(model, ...) as one module, which DistributedDataParallel calls. Without a batch it
    is zero, as if no video could be read."""

    def __init__(self, objective, model):
        super().__init__()
        self.objective, self.model = objective, model

    def forward(self, *batch):
        if not batch:
            return sum(0 * p.sum() for p in self.parameters())
        return self.objective(self.model, *batch)
