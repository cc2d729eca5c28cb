"""Devices; tensors: whether they are finite, and files of them, with a digest in the metadata."""
import hashlib
import json
import os
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save

from support.command import BadInput, require, write_atomically


def require_finite(path, tensors):
    """BadInput naming the file and the first of {name: tensor} whose squares are not finite."""
    for name, value in tensors.items():
        require(value.float().square().isfinite().all(), f"{path}: {name} holds NaN, infinity or "
                "numbers too large for float32; remove or replace the file")


def end_unless_finite(what, value):
    """FloatingPointError if results, a tensor, hold NaN or infinity."""
    if not value.isfinite().all():
        raise FloatingPointError(f"{what}: not finite; look for NaN in the data, and for large "
                                 "weights in the checkpoint")


def write_arrays(path, **arrays):
    """An npz file of finite results, written atomically."""
    for name in [name for name, value in arrays.items() if value.dtype.kind == "f"]:
        end_unless_finite(f"{path}: {name}", torch.from_numpy(arrays[name]))
    write_atomically(path, lambda file: np.savez(file, **arrays))


def mixed_precision(device):
    """Within it matrix products run in bfloat16 on a GPU; elsewhere nothing changes."""
    kind = torch.device(device).type
    return torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda")


def send(x, device):
    """A tensor to the device, from pinned memory, so that a GPU is not waited for."""
    x = x.pin_memory() if torch.device(device).type == "cuda" and x.device.type == "cpu" else x
    return x.to(device, non_blocking=True)


def memory_of(device):
    """Bytes of memory of a GPU; else of the machine, or of the container."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    limit = Path("/sys/fs/cgroup/memory.max")
    limit = limit.read_text().strip() if limit.exists() else ""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(whole, int(limit)) if limit.isdigit() else whole


def pick_device(name):
    """"auto" -> cuda if there is one; else the device named. BadInput if it is not available."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).cpu()              # on "meta" nothing can be read
        return torch.device(name)
    except Exception as error:                         # of several classes
        raise BadInput(f"--device {name}: cannot be used here ({str(error):.120}); use auto, cpu, "
                       "cuda or mps") from None


def digest_of(tensors, said):
    """SHA-256 (hex) of {name: tensor}, and of what is said about them: plain types and arrays."""
    found = hashlib.sha256(json.dumps(said, sort_keys=True, default=np.ndarray.tolist).encode())
    for name in sorted(tensors):
        found.update(f"{name} {[*tensors[name].shape]}".encode() + tensors[name].numpy().tobytes())
    return found.hexdigest()


def read_tensors(path):
    """A safetensors file -> {name: tensor}, and its metadata {name: text}."""
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}


def write_tensors(path, tensors, metadata=None):
    """Write such a file, whole or not at all."""
    content = save({name: value.contiguous() for name, value in tensors.items()}, metadata)
    write_atomically(path, lambda file: file.write(content))
