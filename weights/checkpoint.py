"""Checkpoints, ours and published: as models in eval mode, and as the start of a new model."""
import math
import re
from pathlib import Path
from textwrap import shorten

import timm
import torch
from safetensors.torch import load_file
from torch.nn import functional

from denoiser import Denoiser, MaskedDenoiser
from encoder import TimeSformer
from model import ProcedureModel
from support.errors import InputError, require
from support.write import write_atomically
from toy.grammar import VERSION as WORLD
from weights.adapter import Adapter
from weights.mvit import MViT
from weights.names import published, tensors_of

TIMM = "vit_base_patch16_224.orig_in21k_ft_in1k"       # from which the released models start
KINDS = {"timesformer": TimeSformer, "mvit": MViT, "adapter": Adapter}                   # of f
ORDERS = {"diffusion": Denoiser, "mask": MaskedDenoiser, "none": MaskedDenoiser}       # --order: h


def build(phrases, encoder, denoiser, order, **others):
    """A new ProcedureModel over phrases (K, D), of the arguments in a checkpoint. encoder: "kind",
    and the arguments of that class of KINDS; denoiser: those of that class of ORDERS, or None."""
    sizes, D = dict(encoder), phrases.shape[1]
    f = KINDS[sizes.pop("kind")](dim=D, **sizes)
    h = ORDERS[order](D, **denoiser) if denoiser else None
    return ProcedureModel(phrases, f, h, order, **others)


def rebuild(content):
    """The model that the content of a checkpoint file of ours holds."""
    model = build(content["model"]["phrases"].float(), **content["arguments"])
    model.load_state_dict(content["model"])
    return model


def save(path, model, **more):
    """Write a model for `load`, with its settings, which name its classes, and `more` (tensors and
    plain types). If writing fails, the file before stays."""
    content = {"arguments": model.arguments, "model": model.state_dict(),
               "settings": model.settings, **more}
    write_atomically(path, lambda file: torch.save(content, file))


def read(path):
    """The content (dict) of a run folder, torch file or safetensors; InputError if it has none, or
    was trained in an older toy world."""
    path = Path(path, "checkpoint.pt") if Path(path).is_dir() else Path(path)
    require(path.is_file(), f"{path}: no such checkpoint; `python train.py` makes one")
    try:
        if path.suffix == ".safetensors":      # torch 2.11 does not load them
            return load_file(path)
        content = dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:                 # torch documents no class for what it cannot load
        raise InputError(f"{path}: is cut off, or holds code, which is never run; get it again, or "
                         f"save its state_dict alone ({type(error).__name__})") from None
    settings = content.get("settings", {})
    require(settings.get("data") != "toy" or settings.get("world") == WORLD, f"{path}: was trained "
            f"in version {settings.get('world')} of the toy world; this code has {WORLD}")
    return content


def load(path):
    """A run folder, a file of ours, or one of TimeSformer, DistantSup or ProcedureVRL -> a
    ProcedureModel in eval mode; its `settings` are the flags of the run. InputError as `read`, and
    if tensors are absent, unexpected or of another shape."""
    content = read(path)
    try:
        model = rebuild(content if "arguments" in content else published(content))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        lines = " ".join(shorten(line, 200) for line in str(error).splitlines()[:5])
        raise InputError(f"{path}: does not fit the models of this code or of a release (image "
                         f"models are for --init): {lines}") from None
    model.settings, model.path = content.get("settings", {}), path
    return model.eval()


def download():
    """The tensors of timm's image model, from which the released models start. InputError if it
    cannot be fetched."""
    try:
        return timm.create_model(TIMM, pretrained=True).state_dict()
    except Exception as error:                 # of the network, the hub or the file
        raise InputError(f"--init timm: {TIMM} cannot be downloaded ({shorten(str(error), 200)}); "
                         f"fetch model.safetensors of https://huggingface.co/timm/{TIMM} elsewhere "
                         "and give --init FILE") from None


def open_start(source):
    """{name of ours: tensor} of a run, a file or "timm", for `fill`; None of "none". An image model
    has no temporal attention: copies of the spatial one and its norm stand in; time_embed is 0."""
    if str(source) == "none":
        return None
    content = download() if str(source) == "timm" else read(source)
    w = tensors_of(content)
    if "encoder.pos_embed" not in w or any("temporal_attn" in name for name in w):
        return w
    w = {name: value for name, value in w.items() if not name.startswith("encoder.head")}
    w |= {re.sub(r"\.(attn|norm1)\.", r".temporal_\1.", name): w[name] for name in w}
    return w | {"encoder.time_embed": torch.zeros(1, 1, w["encoder.pos_embed"].shape[-1])}


def resize(name, value, shape):
    """pos_embed (as a square) and time_embed (1, places, W) by nearest neighbor; others as is."""
    if value.shape == shape or value.shape[2:] != shape[2:] or not name.endswith("_embed"):
        return value
    if name.endswith("time_embed"):
        return functional.interpolate(value.mT, shape[1]).mT
    old, new = (math.isqrt(places - 1) for places in (value.shape[1], shape[1]))
    square = value[:, 1:].mT.unflatten(2, (old, old))     # (1, W, old, old); released: a list
    return torch.cat([value[:, :1], functional.interpolate(square, (new, new)).flatten(2).mT], 1)


def fill(source, model, tensors):
    """Copy tensors into the model's parameters, and print which; InputError if no block fits."""
    own = dict(model.named_parameters())
    fitted = {name: resize(name, tensors[name], own[name].shape) for name in own if name in tensors}
    taken = {name: fitted[name] for name in fitted if fitted[name].shape == own[name].shape}
    require(any("blocks." in name for name in taken), f"{source}: none of its {len(tensors)} "
            "tensors fits a block of f or h; give a model of this --encoder and --size")
    model.load_state_dict(taken, strict=False)
    resized = [name for name in taken if taken[name] is not tensors[name]]
    for what, names in ("taken", taken), ("resized", resized), ("new", own.keys() - taken.keys()):
        if names:
            print(f"{source}: {len(names)} {what}: {shorten(', '.join(sorted(names)), 200)}")
