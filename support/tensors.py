"""Files of tensors: checkpoints and npz, read without running code; checkpoints written whole."""
import math
import zipfile
import zlib
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from support.errors import InputError, require
from support.write import write_atomically

DEFLATE = 1032            # bytes, at most, that one byte of a compressed file stands for


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


def part_of(content, key):
    """The dict that a file's content has under a key; {} if it has none."""
    part = content.get(key)
    if isinstance(part, dict):
        return part
    return {}


def require_whole(name, value):
    """InputError if a tensor promises more numbers than its file has."""
    stored = value.untyped_storage().nbytes() // value.element_size()
    require(value.numel() <= stored, f"{name} has {value.numel()} numbers, of which {stored} are "
            "stored")


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


def require_held(path, archive, entry):
    """ValueError if the array of an entry of an npz is larger than what the file can hold."""
    with archive.open(entry) as file:
        read_header = np.lib.format.read_array_header_2_0
        if np.lib.format.read_magic(file) == (1, 0):
            read_header = np.lib.format.read_array_header_1_0
        shape, _, dtype = read_header(file)
    held = min(entry.file_size, DEFLATE * entry.compress_size, DEFLATE * path.stat().st_size)
    if math.prod(shape) * dtype.itemsize > held:
        raise ValueError(f"{entry.filename} promises {shape}, which the file does not hold")


def read_npz(path, need):
    """{name: array} of an npz file. Nothing in it is executed. InputError, which ends with `need`,
    if it is no npz, is damaged, or promises more than it holds."""
    path = Path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                require_held(path, archive, entry)
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (EOFError, KeyError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path}: no npz, or damaged ({error}); {need}") from None
