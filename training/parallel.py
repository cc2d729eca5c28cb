"""One model on several GPUs: `torchrun --nproc-per-node 8 train.py ...`, a process for each.

Each process takes its share of an update's videos, and makes its own rows of h. After each backward
pass one all-reduce averages the gradients and the standardizer's statistics, so that all processes
keep the same model; DistributedDataParallel would expect one call of one module per update. Process
0 writes the files.
"""
import os

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from support.errors import require


def start(device):
    """Join the other processes if torchrun started several -> the device of this one."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return device
    place = int(os.environ["LOCAL_RANK"])
    if device.type == "cuda":
        count = torch.cuda.device_count()
        require(place < count, f"{count} GPUs for more processes; start torchrun with "
                f"--nproc-per-node {count}, or add --device cpu")
        device = torch.device("cuda", place)
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return device


def place():
    """(number of this process, how many there are)."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def average(model):
    """Give all processes the mean of the gradients and of the standardizer's statistics."""
    if place()[1] == 1:
        return
    parameters = [p for p in model.parameters() if p.grad is not None]
    tensors = [p.grad for p in parameters] + list(model.standardize.buffers())
    vector = parameters_to_vector(tensors)         # one message: gloo needs a millisecond for each
    dist.all_reduce(vector)
    vector_to_parameters(vector / place()[1], tensors)
