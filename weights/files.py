"""Read files of weights, ours and others: tensors and plain types. No code in a file is run."""
import re
from pathlib import Path

import torch
from safetensors.torch import load_file

from support.command import BadInput, quiet


def read_content(path):
    """The content of a file of weights, ours or not: a run folder, a torch file or safetensors.

    Returns: dict as a rule; a torch file may hold any plain type.
    Raises:  BadInput if the file is absent, is cut off, or could only be read by running code.
    """
    path = Path(path)
    path = path / "checkpoint.pt" if path.is_dir() else path
    if not path.is_file():
        raise BadInput(f"{path}: no such checkpoint; make one with "
                       "`python train.py --stage pretrain`")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with quiet():                          # torch warns of a file before it refuses it
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:                 # torch documents no class for what it cannot load
        code = re.search(r"(?<=GLOBAL )[\w.]+|TorchScript", str(error))
        if code:
            tensors = ("torch.jit.load(FILE).state_dict()" if code[0] == "TorchScript" else
                       "torch.load(FILE, weights_only=False)['model_state']")
            raise BadInput(f"{path}: holds {code[0]}, which only code can read, and a file's code "
                           "is never run here; if you trust the file, save its tensors alone: "
                           f"torch.save({tensors}, NEW)") from None
        raise BadInput(f"{path}: cannot be read as a checkpoint ({type(error).__name__}); "
                       "is it cut off, or not a file of tensors and plain types?") from None
