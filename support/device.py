"""Devices: which one, how precise, how many threads."""
import torch

from support.errors import require


def pick_device(name):
    """"auto" -> cuda if there is one, else cpu; another name -> that device, or InputError."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    there = torch.accelerator.current_accelerator(check_available=True)        # None without one
    require(name == "cpu" or there and name.startswith(there.type), f"--device {name}: not "
            "available here; use auto or cpu")
    return torch.device(name)


def limit_threads(image, device):
    """One thread on a CPU if f's pictures are small: threads of small products wait for each other.

    Two gain a third on idle cores, and lose a factor of four beside another busy process.
    """
    if device.type == "cpu" and image < 64:
        torch.set_num_threads(1)


def mixed_precision(device):
    """Within it matrix products run in bfloat16 on a GPU; elsewhere nothing changes."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
