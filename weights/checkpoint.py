"""Checkpoints, ours and published: as models in eval mode, and as the start of a new model."""
import math
import re
from textwrap import shorten

import torch
from torch.nn import functional

from denoiser import Denoiser, MaskedDenoiser
from model import Config, ProcedureModel
from support.arguments import INCLUDED
from support.errors import InputError, require
from support.tensors import part_of, require_whole
from support.tensors import read as read
from support.tensors import save as save
from weights.bounds import check_config
from weights.encoders import TEACHER, check_encoder, make, make_encoder
from weights.names import convert_released, lacks_time, tensors_of, with_time

TIMM = "vit_base_patch16_224.orig_in21k_ft_in1k"       # from which the released models start
DENOISERS = {"diffusion": Denoiser, "mask": MaskedDenoiser, "none": MaskedDenoiser}    # --order
LEAST = 0.1               # share of the numbers of f, or of h, that a start must give


# --- Models ---
def build(config, phrases):
    """The only way to make a ProcedureModel: from a Config and phrases (K, D). InputError if f is
    not what data.Encoder says. Phrases on the device meta: an outline, of shapes without numbers.
    """
    D, h = phrases.shape[1], None
    f = make_encoder(config.encoder, D)
    if config.denoiser is not None:
        arguments = dict(config.denoiser, dim=D, levels=len(config.alpha_bar))
        h = make(DENOISERS[config.order], arguments)
    if config.encoder["kind"] != TEACHER and not phrases.is_meta:
        check_encoder(f, D)                            # TEACHER reads what another made of a clip
    return ProcedureModel(config, phrases, f, h)


def require_tensors(config, w):
    """InputError or RuntimeError unless tensors `w` are those of a config's model. Nothing is
    allocated, since a file may ask for any size."""
    for name, value in w.items():
        require(torch.is_tensor(value), f"{name} is no tensor")
        require_whole(name, value)
    try:
        with torch.device("meta"):
            outline = build(config, w["phrases"].to("meta"))
    except InputError:                                 # an f that needs numbers when it is made, or
        return                                         # what `build` will name
    outline.load_state_dict(w, assign=True)


def rebuild(content, frames=None):
    """The model that the content of a file holds, ours or published. InputError if a tensor is
    absent, unexpected or of another shape, or a value of its config out of bounds. frames: as in
    `convert_released`."""
    try:
        if "encoder" not in part_of(content, "config"):
            content = convert_released(content, frames)
        w, config = content["model"], Config(**content["config"])
        check_config(config)
        require_tensors(config, w)
        model = build(config, w["phrases"].float())
        model.load_state_dict(w)
    except InputError:
        raise
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        lines = [shorten(line, 200) for line in str(error).splitlines()[:5]]
        raise InputError("does not fit the models of this code or of a release (image models are "
                         f"for --init): {' '.join(lines)}") from None
    model.settings = part_of(content, "settings")
    return model


def load(path=None):
    """A run folder, a file of ours, or one of TimeSformer, DistantSup or ProcedureVRL -> a
    ProcedureModel in eval mode; its `settings` are the flags of the run. None: the checkpoint that
    comes with the code. InputError as `read` and `rebuild`."""
    if path is None:
        path = INCLUDED
    return rebuild_from(path, read(path))


def rebuild_from(path, content, frames=None):
    """`rebuild`, in eval mode, of the content of a file that errors name."""
    try:
        model = rebuild(content, frames)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    model.path = path
    return model.eval()


# --- What a model starts from ---
def download():
    """The tensors of timm's image model, from which the released models start. InputError if it
    cannot be fetched."""
    import timm
    try:
        return timm.create_model(TIMM, pretrained=True).state_dict()
    except Exception as error:                 # of the network, the hub or the file
        raise InputError(f"--init timm: {TIMM} cannot be downloaded ({shorten(str(error), 200)}); "
                         f"fetch model.safetensors of https://huggingface.co/timm/{TIMM} elsewhere "
                         "and give --init FILE") from None


def content_of(source):
    """The content of a run, a file or "timm"."""
    if str(source) == "timm":
        return download()
    return read(source)


def load_init(source, frames):
    """What fine-tuning starts from -> a ProcedureModel as `load` has it. A ViT of ImageNet, "timm"
    or a file, becomes an f that reads `frames` frames. InputError as `load`."""
    return rebuild_from(source, content_of(source), frames)


def open_start(source, world=None):
    """{name of ours: tensor} of a run, a file or "timm", for `init_from`; None for "none".

    world: version of a world that is made up; InputError for a run in another one.
    """
    if str(source) == "none":
        return None
    content = content_of(source)
    before = part_of(content, "settings").get("world", world)
    require(None in (world, before) or before == world, f"--init {source}: was trained in version "
            f"{before} of the --data; this code has {world}")
    w = tensors_of(content)
    if lacks_time(w):
        return with_time(w)
    return w


def resize(name, value, shape):
    """pos_embed (as a square), time_embed (1, places, W), MViT's rel_pos_t, _h, _w (places, W) by
    nearest neighbor; others as is."""
    if re.search(r"rel_pos_[thw]$", name) and value.shape[1:] == shape[1:]:
        return functional.interpolate(value.T[None], shape[0])[0].T
    if value.shape == shape or value.shape[2:] != shape[2:] or not name.endswith("_embed"):
        return value
    if name.endswith("time_embed"):
        return functional.interpolate(value.mT, shape[1]).mT
    old, new = math.isqrt(value.shape[1] - 1), math.isqrt(shape[1] - 1)
    if 1 + old ** 2 != value.shape[1]:                    # no square: of another kind of model
        return value
    square = value[:, 1:].mT.unflatten(2, (old, old))     # (1, W, old, old); released: a list
    return torch.cat([value[:, :1], functional.interpolate(square, (new, new)).flatten(2).mT], 1)


def share_taken(part, taken, own):
    """The share of the numbers of a part of a model, "encoder" or "denoiser", that are taken."""
    count = given = 0
    for name, value in own.items():
        if name.startswith(f"{part}."):
            count += value.numel()
            given += value.numel() if name in taken else 0
    return given / max(count, 1)


def init_from(source, model, tensors):
    """Copy tensors into the model, buffers too, but not into the pool, and print which. InputError
    if hardly one fits."""
    own = {name: value for name, value in model.state_dict().items() if name != "phrases"}
    taken, resized = {}, []
    for name in own:
        if name not in tensors:
            continue
        value = resize(name, tensors[name], own[name].shape)
        if value.shape == own[name].shape:
            taken[name] = value
            if value.shape != tensors[name].shape:
                resized.append(name)
    most = max(share_taken("encoder", taken, own), share_taken("denoiser", taken, own))
    require(most >= LEAST, f"{source}: its {len(tensors)} tensors give less than a tenth of f, and "
            "of h; give a model of this --encoder and --size")
    model.load_state_dict(taken, strict=False)
    new = [name for name in own if name not in taken]
    for what, names in ("taken", taken), ("resized", resized), ("new", new):
        if names:
            print(f"{source}: {len(names)} {what}: {shorten(', '.join(sorted(names)), 200)}")
