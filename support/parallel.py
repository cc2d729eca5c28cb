"""One run in several processes: `torchrun --nproc-per-node 8 train.py ...`, one for each GPU."""
import os

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from support.errors import require


def start(device):
    """Join the other processes if torchrun started this one -> the device of this one, its number
    (process 0 writes the files), and how many there are."""
    if not dist.is_torchelastic_launched():
        return device, 0, 1
    backend = "gloo"
    if device.type == "cuda":
        count = torch.cuda.device_count()
        require(int(os.environ["LOCAL_WORLD_SIZE"]) <= count, f"more processes than {count} GPUs; "
                f"start torchrun with --nproc-per-node {count}, or add --device cpu")
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    return device, dist.get_rank(), dist.get_world_size()


def end():
    """Leave the other processes."""
    if dist.is_initialized():
        dist.destroy_process_group()


def own_places(batch, rank, world):
    """The places in a batch of process `rank` of `world`: a range. InputError if they do not divide
    it."""
    require(batch % world == 0, f"--batch: {batch} videos, which {world} processes do not divide")
    return range(rank * batch // world, (rank + 1) * batch // world)


def total(tensor):
    """The sum of a tensor over all processes, in place."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def any_of(*flags):
    """For each flag, whether it is true in any process. Does not wait for the GPU."""
    return total(torch.tensor(flags, dtype=torch.int)).bool().tolist()


def wait():
    """Wait for the other processes."""
    any_of(False)


def add_gradients(model):
    """Sum the gradients of all processes. Where no video could be read, they are 0."""
    if not dist.is_initialized():
        return
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    grads = [p.grad for p in model.parameters()]
    vector_to_parameters(total(parameters_to_vector(grads)), grads)        # all at once: one wait
