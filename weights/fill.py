"""Fill a new model with weights from a file: copy what fits, report what does not.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 4: f starts from a ViT of ImageNet.
"""
import math
import re
from collections import Counter

import torch
from torch.nn import functional

from support.command import BadInput, quiet
from weights.files import read_content
from weights.names import rename, tensors_of

TIMM = "vit_base_patch16_224.orig_in21k_ft_in1k"       # the start of the released TimeSformers


def shorten(names, every=()):
    """Names by kind: blocks.0.norm1.weight, blocks.1.norm1.weight -> "blocks.*.norm1.weight (2)".

    every: all names there are. A part all of whose names are given becomes "denoiser.* (48)".
    """
    split = {name.split(".")[0] for name in every if name not in names}

    def kind(name):
        part = name.split(".")[0]
        return f"{part}.*" if every and part not in split else re.sub(r"\.\d+(?=\.)", ".*", name)

    kinds = Counter(map(kind, names))
    return ", ".join(kind if n == 1 else f"{kind} ({n})" for kind, n in kinds.items())


def fit_positions(name, value, shape):
    """pos_embed or time_embed resized to another number of places by nearest neighbor.

    Patches form a square, after the class token: neighbors are those in the square. (The released
    code takes neighbors in the list of all rows, which mixes left and right.)
    Args:    value (1, places, W), shape (1, new places, W).
    Returns: a tensor of `shape`; None if the name is neither of the two or the widths differ.
    """
    if value.ndim != 3 or value.shape[::2] != tuple(shape)[::2]:
        return None
    if name.endswith("time_embed"):
        return functional.interpolate(value.transpose(1, 2), shape[1]).transpose(1, 2)
    if name.endswith("pos_embed"):
        old, new = (math.isqrt(n - 1) for n in (value.shape[1], shape[1]))
        if old ** 2 != value.shape[1] - 1 or new ** 2 != shape[1] - 1:
            return None
        square = value[:, 1:].transpose(1, 2).unflatten(2, (old, old))     # (1, W, old, old)
        places = functional.interpolate(square, (new, new)).flatten(2).transpose(1, 2)
        return torch.cat([value[:, :1], places], 1)
    return None


def block_example(tensors):
    """A tensor of block 0 and its shape, for an error message; else the first few names."""
    names = [name for name in tensors if ".blocks.0." in name]
    if names:
        return f"{max(names)} {tuple(tensors[max(names)].shape)}"
    return ", ".join(list(tensors)[:4]) or "none"


@torch.no_grad()
def fill(path, model, tensors):
    """Copy {name of ours: tensor} into the model's parameters where they fit; print what does not.

    Buffers are left alone: the texts and what follows from them are those of the new model.
    Returns: names of the model's parameters that were not filled, [] if all were.
    Raises:  BadInput if no block of f or h fits (a projection alone is no start), or a tensor is
             not finite.
    """
    own, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    tensors = {name: value for name, value in tensors.items() if name not in buffers}
    fitted = {name: value if value.shape == own[name].shape else
              fit_positions(name, value.float(), own[name].shape)
              for name, value in tensors.items() if name in own}
    taken = {name: value for name, value in fitted.items() if value is not None}
    if not any("blocks." in name for name in taken):
        raise BadInput(f"{path}: none of its {len(tensors)} tensors fits a block of f or h; it has "
                       f"{block_example(tensors)}, needed is {block_example(own)}")
    for name, value in taken.items():
        if not value.isfinite().all():
            raise BadInput(f"{path}: {name} holds NaN or infinity; get the file again")
        own[name].copy_(value)
    missing = [name for name in own if name not in fitted]
    unexpected = [name for name in tensors if name not in own]
    reshaped = [name for name in fitted if name not in taken]
    print(f"{path}: {len(taken)} of {len(own)} parameters taken")
    for what, names, every in (("missing in it", missing, own), ("unexpected", unexpected, tensors),
                               ("of another shape", reshaped, tensors)):
        if names:
            print(f"  {what}: {shorten(names, every)}")
    return missing + reshaped


def timm_weights():
    """The state dict of timm's ViT-B/16, downloaded once; BadInput without a network."""
    try:
        with quiet():                                            # the hub logs each retry
            import timm
            return timm.create_model(TIMM, pretrained=True).state_dict()
    except Exception as error:                 # of the network, the hub or the file
        reason = (str(error).strip().splitlines() or [""])[0][:200]
        raise BadInput(f"--init timm: {TIMM} cannot be had ({type(error).__name__}: {reason}); "
                       "without a network, download it elsewhere and give the file") from None


def video_from_image(tensors):
    """An image model's tensors for TimeSformer: temporal attention and its norm copy the spatial.

    temporal_fc stays the new model's: zero except in block 0, so that the other blocks start as
    those of the image model. The image classifier is left out.
    """
    copies = {re.sub(r"^(encoder\.blocks\.\d+\.)(attn|norm1)\.", r"\1temporal_\2.", name): value
              for name, value in tensors.items()}
    return {name: value for name, value in (copies | tensors).items()
            if not name.startswith(("encoder.head.", "encoder.pre_logits."))}


def open_start(source):
    """The tensors that --init of pre-training names, for `fill`.

    Args:    source: a run folder, a file of ours or from outside, or "timm".
    Returns: {name of ours: tensor}. A ViT without temporal attention (an image model, or
             TimeSformer's "joint" and "space only") gets it: see `video_from_image`.
    Raises:  BadInput if the source cannot be read.
    """
    content = timm_weights() if str(source) == "timm" else read_content(source)
    tensors = rename(tensors_of(content))
    block = "encoder.blocks.0.{}.qkv.weight"
    spatial = block.format("attn") in tensors and block.format("temporal_attn") not in tensors
    return video_from_image(tensors) if spatial else tensors
