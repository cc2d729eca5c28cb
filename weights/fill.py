"""Fill a new model with weights from a file (the release: a ViT of ImageNet); report the rest."""
import math
import re
import textwrap
from collections import Counter

import torch
from torch.nn import functional

from support.command import BadInput, require
from support.device import require_finite
from weights.names import fetching, read_content, tensors_of

TIMM = "vit_base_patch16_224.orig_in21k_ft_in1k"       # the start of the released TimeSformers


def group_names(names):
    """blocks.0.norm1.weight, blocks.1.norm1.weight -> "blocks.*.norm1.weight (2)"."""
    kinds = Counter(re.sub(r"\.\d+(?=\.)", ".*", name) for name in names)
    return ", ".join(kind if n == 1 else f"{kind} ({n})" for kind, n in kinds.items())


def fit_positions(name, value, shape):
    """pos_embed or time_embed (1, places, W) resized to `shape` by nearest neighbor, in the square
    (the release: in the list of its rows, which mixes left and right); None where it cannot be."""
    if value.ndim != 3 or value.shape[::2] != shape[::2] or not name.endswith("_embed"):
        return None
    if name.endswith("time_embed"):
        return functional.interpolate(value.transpose(1, 2), shape[1]).transpose(1, 2)
    old, new = (math.isqrt(places - 1) for places in (value.shape[1], shape[1]))
    if old ** 2 != value.shape[1] - 1:
        return None
    square = value[:, 1:].transpose(1, 2).unflatten(2, (old, old))         # (1, W, old, old)
    places = functional.interpolate(square, (new, new)).flatten(2).transpose(1, 2)
    return torch.cat([value[:, :1], places], 1)


def example(tensors):
    """The name and shape of a tensor, of block 0 if there is one, for an error message."""
    name = max(tensors, key=lambda name: (".blocks.0." in name, name), default=None)
    return f"{name} {tuple(tensors[name].shape)}" if name else "none"


@torch.no_grad()
def fill(path, model, tensors):
    """Copy {name of ours: tensor} into the model's parameters where they fit; print the rest."""
    own, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    tensors = {name: value for name, value in tensors.items() if name not in buffers}
    fitted = {name: value if value.shape == own[name].shape else
              fit_positions(name, value, own[name].shape)
              for name, value in tensors.items() if name in own}
    taken = {name: value for name, value in fitted.items() if value is not None}
    require(any("blocks." in name for name in taken), f"{path}: none of its {len(tensors)} tensors "
            f"fits a block of f or h; it has {example(tensors)}, needed is {example(own)}")
    require_finite(path, taken)
    for name, value in taken.items():
        own[name].copy_(value)
    print(f"{path}: {len(taken)} of {len(own)} parameters taken")
    for what, names in (("missing in it", [name for name in own if name not in fitted]),
                        ("unexpected", [name for name in tensors if name not in own]),
                        ("of another shape", [name for name in fitted if name not in taken])):
        if names:
            print(f"  {what}: {group_names(names)}")


def open_start(source):
    """{name of ours: tensor} of --init of pre-training, for `fill`: a run, a file, or "timm".
    Without temporal attention (an image model, TimeSformer's "joint" and "space only") it and its
    norm copy the spatial ones, and the classifier is left out. temporal_fc stays new, zero except
    in block 0: the other blocks start as those of the image."""
    if str(source) == "timm":
        try:
            with fetching():
                import timm
                content = timm.create_model(TIMM, pretrained=True).state_dict()
        except Exception as error:             # of the network, the hub or the file
            raise BadInput(f"--init timm: {TIMM} cannot be downloaded ({type(error).__name__}: "
                           f"{textwrap.shorten(str(error), 200)}); without a network, download it "
                           "elsewhere and give the file") from None
    else:
        content = read_content(source)
    tensors = tensors_of(content)
    block = "encoder.blocks.0.{}.qkv.weight"
    if block.format("attn") not in tensors or block.format("temporal_attn") in tensors:
        return tensors
    copies = {re.sub(r"^(encoder\.blocks\.\d+\.)(attn|norm1)\.", r"\1temporal_\2.", name): value
              for name, value in tensors.items()}
    return {name: value for name, value in (copies | tensors).items()
            if not name.startswith(("encoder.head.", "encoder.pre_logits."))}
