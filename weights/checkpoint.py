"""Checkpoints: ours and published ones, as models in eval mode.

One of ours holds "arguments" (plain types: how the model is built), "model" (its tensors) and what
a run needs to resume. A published one has arguments in the shapes of its tensors, and no texts.
"""
import reprlib
import textwrap

import torch
from torch.nn import functional

from denoiser import Denoiser
from encoder import TimeSformer
from model import ProcedureModel
from support.command import BadInput, quiet, require, write_atomically
from support.device import require_finite
from weights.fill import fill, group_names
from weights.mvit import MViT
from weights.names import (HEAD_WIDTH, join_classifiers, plain_tensors, published_arguments,
                           read_content, tensors_of)

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
    blocks = encoder.get("depth", 0) + sum(encoder.get("stages", ())) + denoiser.get("layers", 0)
    for good, names in ((blocks <= count, "depth, stages or layers"),
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


# --- Files ---
def save_checkpoint(path, model, arguments, before=None, **more):
    """Write model, arguments and `more` (tensors and plain types); as `write_atomically`."""
    content = {"arguments": arguments, "model": model.state_dict(), **more}
    write_atomically(path, lambda file: torch.save(content, file), before)


def convert_published(path, content, heads):
    """The content of a published file -> model, and its arguments; raises as `load_model`."""
    w, config = tensors_of(content), content.get("config")
    given = config.get("heads") if isinstance(config, dict) else None
    heads = heads or (given if isinstance(given, int) and given > 0 else None)
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
