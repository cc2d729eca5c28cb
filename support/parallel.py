"""One model on several GPUs: `torchrun --nproc-per-node 8 train.py ...`, a process for each.

A step is what it is in one process, divided: each process reads and encodes its share of the clips,
is told the embeddings of all others, and computes the whole objective on all of them. Means over
the batch, and the noise, are therefore those of one process, however the clips are shared out. The
gradients that come back to one's own clips are summed over the processes. What every process does
is h and the matching, little beside f. (DistributedDataParallel would average the gradients of one
objective per process: another one, where their numbers of clips differ.)

--batch is that of all processes together. Process 0 writes the run folder. gloo carries what is
in main memory, nccl what is on GPUs. With one process nothing here does anything.
"""
import os
import sys

PLACE = 0, 1                  # which process this is, of how many; set by `start`


def start(device):
    """Join the other processes, where torchrun has started several; each takes its own GPU.

    Before torch is imported: of the others' progress bars and prints nothing is shown.
    device: as in the settings.
    """
    global PLACE
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return
    if os.environ["RANK"] != "0":
        os.environ["TQDM_DISABLE"], sys.stdout = "1", open(os.devnull, "w")
    import torch
    import torch.distributed as dist
    cuda = torch.cuda.is_available() and device != "cpu"
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    PLACE = dist.get_rank(), dist.get_world_size()


def share(items, place):
    """Those of a list that fall to the process at `place`: neighbours, about as many for each."""
    rank, world = place
    return items[rank * len(items) // world:(rank + 1) * len(items) // world]


def everyone(mine):
    """[what each process has here], in their order. In main memory: no GPU is waited for."""
    if PLACE[1] == 1:
        return [mine]
    import torch.distributed as dist
    found = [None] * PLACE[1]
    dist.all_gather_object(found, mine)
    return found


def gather(rows):
    """(C, ...) rows of each process -> those of all, in their order.

    Gradients come back to one's own rows alone, times the number of processes: for the mean of
    `average_gradients`.
    """
    if PLACE[1] == 1:
        return rows
    import torch
    import torch.distributed as dist
    rank, world = PLACE
    counts = everyone(len(rows))
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
    """Give every process the mean of all gradients, so that all go on with the same weights."""
    if PLACE[1] == 1:
        return
    import torch
    import torch.distributed as dist
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad      # it had no clips
            dist.all_reduce(p.grad)
            p.grad /= PLACE[1]
