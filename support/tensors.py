"""Checkpoint files: their content as a dict, read without running code, and written whole."""
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import load_file

from support.errors import InputError, require
from support.write import write_atomically


def read(path):
    """The content (dict) of a run folder, torch file or safetensors; InputError if it has none."""
    path = Path(path)
    if path.is_dir():
        path = path / "checkpoint.pt"
    require(path.is_file(), f"{path}: no such checkpoint; `python train.py` makes one")
    try:
        if path.suffix == ".safetensors":      # torch 2.11 does not load them
            return load_file(path)
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except PermissionError:
        raise
    except Exception as error:                 # torch documents no class for what it cannot load
        raise InputError(f"{path}: is no checkpoint, is cut off, or holds code, which is never "
                         "run; get it again, or save its state_dict alone "
                         f"({type(error).__name__})") from None


def save(path, model, **more):
    """Write a ProcedureModel for weights.load, with its settings and `more` (tensors and plain
    types). If writing fails, the file before stays."""
    content = {"config": asdict(model.config), "model": model.state_dict(),
               "settings": model.settings}
    content.update(more)
    try:
        write_atomically(path, lambda file: torch.save(content, file))
    except RuntimeError as error:              # what torch makes of a full disk
        raise OSError(f"{path}: cannot be written; is the disk full? ({error})") from None
