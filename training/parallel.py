"""One model on several GPUs: `torchrun --nproc-per-node 8 train.py ...`, a process for each.

Each process takes its share of an update's videos, and makes its own rows of h. After each backward
pass one all-reduce averages the gradients and the standardizer's statistics;
DistributedDataParallel would expect one call of one module per update.
"""
import os

import torch
import torch.distributed as dist

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
        require(place < count, f"{count} GPUs for more processes; start torchrun with "
                f"--nproc-per-node {count}, or add --device cpu")
        device = torch.device("cuda", place)
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return device


def end():
    """Leave the other processes."""
    if dist.is_initialized():
        dist.destroy_process_group()


def place():
    """(number of this process, how many there are). Process 0 writes the files."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def average(model):
    """Give all processes the mean of the gradients and of the standardizer's statistics."""
    if place()[1] == 1:
        return
    tensors = [p.grad for p in model.parameters() if p.grad is not None]
    tensors += model.standardize.buffers()
    vector = torch.cat([tensor.flatten() for tensor in tensors])       # one message: gloo is slow
    dist.all_reduce(vector)
    parts = (vector / place()[1]).split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts):
        tensor.copy_(part.view_as(tensor))             # a view of `vector` would be saved with it


def gather(value):
    """The values of all processes, a list."""
    values = [value] * place()[1]
    if place()[1] > 1:
        dist.all_gather_object(values, value)
    return values
