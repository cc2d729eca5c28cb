"""Read checkpoint files, ours and others: tensors and plain types; nothing in a file is executed."""
import re
from pathlib import Path

import torch
from safetensors.torch import load_file

from support.command import BadInput, quiet


def read_content(path):
    """What a file of weights holds, ours or not: a run folder, a torch file or safetensors -> dict.

    Nothing in the file is executed: tensors and plain types are read, anything else is refused.
    Raises: BadInput if there is none, it is cut off, or it would have to run code.
    """
    path = Path(path)
    path = path / "checkpoint.pt" if path.is_dir() else path
    if not path.is_file():
        raise BadInput(f"{path}: no such checkpoint; make one with "
                       "`python train.py --stage pretrain`")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with quiet():                          # torch also warns of what it then refuses
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:                 # torch names no class for a file it cannot load
        code = re.search(r"(?<=GLOBAL )[\w.]+|TorchScript", str(error))
        if code:
            tensors = ("torch.jit.load(FILE).state_dict()" if code[0] == "TorchScript" else
                       "torch.load(FILE, weights_only=False)['model_state']")
            raise BadInput(f"{path}: holds {code[0]}, which only code can read, and a file's code "
                           "is never run here; if you trust the file, save its tensors alone: "
                           f"torch.save({tensors}, NEW)") from None
        raise BadInput(f"{path}: cannot be read as a checkpoint ({type(error).__name__}); "
                       "is it cut off, or not a file of tensors and plain types?") from None
