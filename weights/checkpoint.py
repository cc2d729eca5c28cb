"""Checkpoints, ours and published: as models in eval mode, and as the start of a new model."""
import math
import re
from textwrap import shorten

import timm
import torch
from torch.nn import functional

from denoiser import Denoiser, MaskedDenoiser
from encoder import TimeSformer
from model import Config, ProcedureModel
from support.errors import InputError, require
from support.tensors import read as read, save as save
from weights.adapter import Adapter, TeacherFeatures
from weights.mvit import MViT
from weights.names import convert_released, tensors_of

TIMM = "vit_base_patch16_224.orig_in21k_ft_in1k"       # from which the released models start
ENCODERS = {"timesformer": TimeSformer, "mvit": MViT, "adapter": Adapter,              # of f
            "teacher": TeacherFeatures}
DENOISERS = {"diffusion": Denoiser, "mask": MaskedDenoiser, "none": MaskedDenoiser}    # --order
OLDER = {"pitch": "spacing", "witness": "first_phrase"}            # names in older files of ours


def build(config, phrases):
    """The only way to make a ProcedureModel: from a Config and phrases (K, D)."""
    sizes, D = dict(config.encoder), phrases.shape[1]
    f = ENCODERS[sizes.pop("kind")](dim=D, **sizes)
    h = DENOISERS[config.order](D, **config.denoiser) if config.denoiser else None
    return ProcedureModel(config, phrases, f, h)


def rebuild(content):
    """The model that the content of a checkpoint file of ours holds."""
    config, settings = content.get("config"), content.get("settings", {})
    if config is None:                         # of an older file
        config = {OLDER.get(name, name): value for name, value in content["arguments"].items()}
        config |= {"clip": "toy" if settings.get("data") == "toy" else settings.get("clip"),
                   "clip_weights": settings.get("clip_weights"), "names": settings.get("classes"),
                   "stride": settings.get("stride", 2)}
        if len(config["classes"]) > 1:         # EPIC's verbs and nouns
            config["task"] = "actions"
    model = build(Config(**config), content["model"]["phrases"].float())
    model.load_state_dict(content["model"])
    model.settings = settings
    return model


def load(path):
    """A run folder, a file of ours, or one of TimeSformer, DistantSup or ProcedureVRL -> a
    ProcedureModel in eval mode; its `settings` are the flags of the run. InputError as `read`, and
    if tensors are absent, unexpected or of another shape."""
    content = read(path)
    try:
        ours = "arguments" in content or "tau" in content.get("config", {})
        model = rebuild(content if ours else convert_released(content))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        lines = " ".join(shorten(line, 200) for line in str(error).splitlines()[:5])
        raise InputError(f"{path}: does not fit the models of this code or of a release (image "
                         f"models are for --init): {lines}") from None
    model.path = path
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


def open_start(source, world=None):
    """{name of ours: tensor} of a run, a file or "timm", for `init_from`; None for "none". An image
    model has no temporal attention: copies of the spatial one and its norm stand in; time_embed and
    temporal_fc are 0, so f starts as this model.
    world: version of a world that is made up; InputError for a run in another one."""
    if str(source) == "none":
        return None
    content = download() if str(source) == "timm" else read(source)
    before = content.get("settings", {}).get("world", world)
    require(None in (world, before) or before == world, f"--init {source}: was trained in version "
            f"{before} of the --data; this code has {world}")
    w = tensors_of(content)
    if "encoder.pos_embed" not in w or any("temporal_attn" in name for name in w):
        return w
    w = {name: value for name, value in w.items() if not name.startswith("encoder.head")}
    w |= {re.sub(r"\.(attn|norm1)\.", r".temporal_\1.", name): w[name] for name in w}
    w |= {name.replace(".attn.proj.", ".temporal_fc."): torch.zeros_like(w[name]) for name in w
          if ".attn.proj." in name}
    return w | {"encoder.time_embed": torch.zeros(1, 1, w["encoder.pos_embed"].shape[-1])}


def resize(name, value, shape):
    """pos_embed (as a square), time_embed (1, places, W), MViT's rel_pos_t, _h, _w (places, W) by
    nearest neighbor; others as is."""
    if re.search(r"rel_pos_[thw]$", name) and value.shape[1:] == shape[1:]:
        return functional.interpolate(value.T[None], shape[0])[0].T
    if value.shape == shape or value.shape[2:] != shape[2:] or not name.endswith("_embed"):
        return value
    if name.endswith("time_embed"):
        return functional.interpolate(value.mT, shape[1]).mT
    old, new = (math.isqrt(places - 1) for places in (value.shape[1], shape[1]))
    square = value[:, 1:].mT.unflatten(2, (old, old))     # (1, W, old, old); released: a list
    return torch.cat([value[:, :1], functional.interpolate(square, (new, new)).flatten(2).mT], 1)


def init_from(source, model, tensors):
    """Copy tensors into the model's parameters, and print which; InputError if no block fits."""
    own = dict(model.named_parameters())
    fitted = {name: resize(name, tensors[name], own[name].shape) for name in own if name in tensors}
    taken = {name: fitted[name] for name in fitted if fitted[name].shape == own[name].shape}
    require(any("blocks." in name for name in taken), f"{source}: none of its {len(tensors)} "
            "tensors fits a block of f or h; give a model of this --encoder and --size")
    model.load_state_dict(taken, strict=False)
    resized = [name for name in taken if taken[name].shape != tensors[name].shape]
    for what, names in ("taken", taken), ("resized", resized), ("new", own.keys() - taken.keys()):
        if names:
            print(f"{source}: {len(names)} {what}: {shorten(', '.join(sorted(names)), 200)}")
