"""Checkpoints: ours and published ones, as models in eval mode; weights in a new model.

One of ours holds "arguments" (plain types: how the model is built), "model" (its tensors) and what
a run needs to resume. A published one has arguments in the shapes of its tensors, and no texts.
"""
import math
import re
import reprlib
import textwrap
from collections import Counter

import torch
from torch.nn import functional

from denoiser import Denoiser
from encoder import TimeSformer
from model import ProcedureModel
from support.command import BadInput, quiet, require, write_atomically
from support.device import require_finite
from weights.mvit import MViT
from weights.names import (HEAD_WIDTH, fetching, join_classifiers, plain_tensors,
                           published_arguments, read_content, tensors_of)

TIMM = "vit_base_patch16_224.orig_in21k_ft_in1k"       # the start of the released TimeSformers
# Types of the arguments of ours; those of LISTS are lists of such values.
KINDS = {name: types for types, names in (
    ((int,), "image patch frames width depth heads kv_stride layers clips stages classes"),
    ((int, float), "tau seconds pixels alpha_bar dropout"),
    ((str,), "order task kind witness")) for name in names.split()}
LISTS = "stages", "classes", "pixels", "alpha_bar"
NEEDED = "tau", "order"                                        # the others may be None


# --- From plain arguments to a model ---
def check_arguments(arguments, count):
    """ValueError unless these can be the arguments of a model of `count` tensors: each of its type,
    a number above 0 and at most a million."""
    encoder, denoiser = arguments["encoder"] or {}, arguments["denoiser"] or {}
    for name, value in [*arguments.items(), *encoder.items(), *denoiser.items()]:
        values = value if name in LISTS else [value]
        if name in KINDS and (value is not None or name in NEEDED) and not (
                isinstance(values, (list, tuple)) and all(
                    type(one) in KINDS[name] and (type(one) is str or 0 < one <= 10 ** 6 or
                                                  one == 0 and name == "dropout")
                    for one in values)):
            raise ValueError(f"{name} is {reprlib.repr(value)}")
    levels = arguments.get("alpha_bar")
    blocks = encoder.get("depth", 0) + sum(encoder.get("stages", ())) + denoiser.get("layers", 0)
    for good, names in ((blocks <= count, "depth, stages or layers"),
                        (levels is None or [1, *levels, 0] == sorted({1, *levels, 0}, reverse=True)
                         and levels, "alpha_bar"),
                        (arguments["order"] in ("diffusion", "mask", "none"), "order"),
                        (bool(arguments.get("task")) == bool(arguments.get("classes")), "classes"),
                        (len(arguments["pixels"] or ()) == 2 * bool(encoder), "pixels")):
        if not good:
            raise ValueError(f"{names} cannot be those of these {count} tensors")


def build_model(phrases, encoder, denoiser, order, task=None, **others):
    """A ProcedureModel with new weights, from the arguments in its checkpoint.
    phrases: (K, D) float, embeddings of the pool; encoder: dict, arguments of TimeSformer, or with
    "kind": "mvit" of MViT, None: no f; denoiser: dict; others: further ones of ProcedureModel."""
    D, f, h = phrases.shape[1], None, None
    if encoder:
        sizes = {name: size for name, size in encoder.items() if name != "kind"}
        f = (MViT if encoder.get("kind") == "mvit" else TimeSformer)(dim=D, **sizes)
    if order != "none" or task in ("forecast", "activity"):
        h = Denoiser(dim=D, **denoiser)
    return ProcedureModel(phrases, f, h, order, task=task, **others)


def build_ours(path, content):
    """The model of the content of a file of ours, in float32; raises as `load_model`."""
    try:
        arguments = content["arguments"]
        tensors = plain_tensors(content["model"])
        check_arguments(arguments, len(tensors))
        with quiet(), torch.device("meta"):    # no memory: are names and shapes the same?
            build_model(tensors["phrases"], **arguments).load_state_dict(tensors)
        model = build_model(tensors["phrases"], **arguments)
        model.load_state_dict(tensors)
    except Exception as error:                 # of arguments, names or shapes
        raise BadInput(f"{path}: its weights do not fit this code: {type(error).__name__}: "
                       f"{textwrap.shorten(str(error), 300)}") from None
    require_finite(path, model.state_dict())
    return model


# --- Weights from a file in a new model (the release: those of a ViT of ImageNet) ---
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
    tensors = tensors_of(source, content)
    block = "encoder.blocks.0.{}.qkv.weight"
    if block.format("attn") not in tensors or block.format("temporal_attn") in tensors:
        return tensors
    copies = {re.sub(r"^(encoder\.blocks\.\d+\.)(attn|norm1)\.", r"\1temporal_\2.", name): value
              for name, value in tensors.items()}
    return {name: value for name, value in (copies | tensors).items()
            if not name.startswith(("encoder.head.", "encoder.pre_logits."))}


# --- Files ---
def save_checkpoint(path, model, arguments, before=None, **more):
    """Write model, arguments and `more` (tensors and plain types); as `write_atomically`."""
    content = {"arguments": arguments, "model": model.state_dict(), **more}
    write_atomically(path, lambda file: torch.save(content, file), before)


def convert_published(path, content, heads):
    """The content of a published file -> model, and its arguments; raises as `load_model`."""
    w, config = tensors_of(path, content), content.get("config")
    given = config.get("heads") if isinstance(config, dict) else None
    heads = heads or (given if type(given) is int and given > 0 else None)
    try:
        tensors, classes = join_classifiers(w)
        arguments = published_arguments(tensors, classes, heads)
        phrases = torch.zeros(0, len(w["encoder.head.weight"]))
        with torch.device("meta"):             # names and shapes alone
            own = dict(build_model(phrases, **arguments).named_parameters())
    except Exception as error:                 # names or shapes are not those of a video model
        raise BadInput(f"{path}: not a checkpoint of train.py, nor one of TimeSformer, DistantSup "
                       f"or ProcedureVRL ({type(error).__name__}: {error}, among {len(w)} tensors)"
                       "; image models are for --init of pre-training") from None
    absent = [name for name in own if name not in tensors or tensors[name].shape != own[name].shape]
    require(not absent, f"{path}: missing or of another shape: {group_names(absent)}; needed is an "
            f"MViT-v2 or a TimeSformer with divided space-time attention: {arguments}")
    model = build_model(phrases, **arguments)
    fill(path, model, tensors)
    if not heads and isinstance(model.encoder, TimeSformer):
        print(f"  it does not give the number of attention heads: {arguments['encoder']['heads']}, "
              f"each {HEAD_WIDTH} wide as in the release")
    return model, arguments


def load_model(path, heads=None):
    """A checkpoint, ours or published -> model in eval mode, its arguments, content of the file.
    heads: of a published TimeSformer, whose tensors do not give them; None: the file's
    config["heads"], else width / 64 as in all published ones. Raises BadInput as `read_content`,
    and if the weights are not finite, or do not fit the arguments or each other."""
    content = read_content(path)
    if {"arguments", "model"} <= content.keys():       # what each of ours holds
        model, arguments = build_ours(path, content), content["arguments"]
    else:
        model, arguments = convert_published(path, content, heads)
    return model.eval(), arguments, content


def load_released(path, heads=None):
    """`load_model`, for inference: the model alone, its parameters without gradients."""
    return load_model(path, heads)[0].requires_grad_(False)


def same_texts(then, now):
    """Whether embeddings (K, D) are of the same texts by the same teacher, up to rounding."""
    return then.shape == now.shape and bool(
        (functional.cosine_similarity(then.cpu(), now.cpu()) > 0.999).all())
