"""One model on several GPUs: `torchrun --nproc-per-node 8 train.py ...`, a process for each.

Each process takes its share of an update's videos. The objective is a sum over videos, so after the
backward passes one all-reduce adds the gradients and the standardizer's sums, and all processes
make the same step. DistributedDataParallel would expect one call of one module per update.
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


def message(tensors, send):
    """Call send(vector) on all tensors as one vector, in place: gloo is slow with many."""
    vector = torch.cat([tensor.detach().flatten().float() for tensor in tensors])
    send(vector)
    for tensor, part in zip(tensors, vector.split([tensor.numel() for tensor in tensors])):
        tensor.data.copy_(part.view_as(tensor))


def share_weights(model):
    """Give all processes the model of process 0."""
    if rank_and_world()[1] > 1:
        message([*model.parameters(), *model.buffers()], lambda vector: dist.broadcast(vector, 0))


def add(model, *numbers):
    """Sum over all processes: the gradients, the standardizer's sums, and numbers, which are
    returned. A parameter without a gradient gets one of zeros."""
    if rank_and_world()[1] == 1:
        return numbers
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    extra = torch.tensor(numbers, dtype=torch.float32, device=model.phrases.device)
    message([*(p.grad for p in model.parameters()), model.standardize.sums, extra], dist.all_reduce)
    return extra.tolist()


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
