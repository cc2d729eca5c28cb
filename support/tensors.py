"""Files of tensors that come with the code: safetensors, with a digest as it has no checksums."""
import hashlib
import json

import numpy as np
from safetensors import safe_open
from safetensors.torch import save

from support.command import write_atomically


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


def write_tensors(path, tensors, metadata):
    """Write such a file, whole or not at all."""
    content = save(tensors, metadata)
    write_atomically(path, lambda file: file.write(content))
