"""One model on several GPUs: `torchrun --nproc-per-node 8 train.py ...`, a process for each.

Each process encodes its share of a step's clips, receives the embeddings of all others, and
computes the whole objective, as one process would. --batch counts the videos of all together.
DistributedDataParallel is not used. It averages gradients as well, but leaves the gathering of
embeddings to be done. And it expects one call of one module in each step: here f is called once per
micro-batch, or never by a process whose videos cannot be read, and h and matching come after it.
"""
import os

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from support.command import require


def start(device):
    """Join the other processes if torchrun started several; each takes its own GPU."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return
    cuda = torch.cuda.is_available() and device != "cpu"
    if cuda:
        place, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        require(place < count, f"{count} GPUs; start no more processes, or add --device cpu")
        torch.cuda.set_device(place)
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")


def place():
    """(number of this process, how many there are)"""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def is_first():
    """Whether this process writes the files."""
    return place()[0] == 0


def share(items, place):
    """The part of a list that belongs to the process at `place`; about equally many for each."""
    rank, world = place
    return items[rank * len(items) // world:(rank + 1) * len(items) // world]


def gather_objects(mine):
    """[the object of each process], in their order. In main memory: no GPU is waited for."""
    objects = [mine] * place()[1]
    if len(objects) > 1:
        dist.all_gather_object(objects, mine)
    return objects


def gather(rows, counts):
    """(C, ...) rows of each process -> those of all, in their order. Gradients flow back to its own
    rows alone, times the number of processes: it cancels the mean of `average_gradients`.
    counts: how many rows each process has."""
    rank, world = place()
    if world == 1:
        return rows
    padded = rows.new_zeros(max(counts), *rows.shape[1:])
    padded[:len(rows)] = rows.detach()
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded)
    parts = [part[:count] for part, count in zip(parts, counts)]
    if rows.requires_grad:
        rows.register_hook(lambda grad: grad * world)
        parts[rank] = rows
    return torch.cat(parts)


def average_gradients(optimizer):
    """Give every process the mean of all gradients, so that all keep the same weights: as one
    vector, since gloo needs a millisecond for each message."""
    world = place()[1]
    if world == 1:
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for p in parameters:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad      # it had no clips
    gradients = parameters_to_vector(p.grad for p in parameters)
    dist.all_reduce(gradients)
    vector_to_parameters(gradients / world, [p.grad for p in parameters])
