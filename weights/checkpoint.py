"""Checkpoints: ours and published ones, as models in eval mode.

A checkpoint of ours holds "arguments" (plain types: how the model is built), "model" (its tensors)
and what else a run needs to resume. A published one becomes a weights.released.Released: its
tensors get the names of ours, its sizes are read from their shapes, and its arguments are
{"released": sizes}.

    model = load_released("procedurevrl.pyth")
    x = model.encode(clips)                 # (B, 3, F, H, W) float, normalized -> (B, D)
    x_hat = model.forecast(x)               # (B, 8, D) -> (B, D), the clip after these eight
"""
import zipfile

import torch
from torch.nn import functional

from denoiser import Denoiser
from encoder import TimeSformer
from model import ProcedureModel
from support.command import BadInput, write_atomically
from weights.files import read_content
from weights.fill import fill, shorten
from weights.mvit import MViT
from weights.names import HEAD_WIDTH, heads_of, released_sizes, rename, tensors_of
from weights.released import Released, ReleasedDenoiser

SAME = 0.999              # least cosine of a text's embeddings by one teacher on two machines
# What building or filling a model raises if arguments, names or shapes are not those of a model.
MISFITS = (LookupError, ArithmeticError, ValueError, TypeError, AttributeError, AssertionError,
           RuntimeError)


# ------------------------------------------------------------------------------------------------
# From plain arguments to a model
# ------------------------------------------------------------------------------------------------
def build_encoder(dim, kind="timesformer", **sizes):
    """f: a TimeSformer, or with kind "mvit" an MViT; sizes: their arguments."""
    return MViT(dim=dim, **sizes) if kind == "mvit" else TimeSformer(dim=dim, **sizes)


def build_model(phrases, encoder, denoiser, order, task=None, **others):
    """A ProcedureModel with new weights, from the arguments in its checkpoint.

    Args:
        phrases: (K, D) float, embeddings of the phrase pool.
        encoder, denoiser: dict, sizes of f (see `build_encoder`; None: no f) and of h.
        others:  further arguments of ProcedureModel.
    """
    D = phrases.shape[1]
    f = build_encoder(D, **encoder) if encoder else None
    h = (Denoiser(dim=D, **denoiser) if order != "none" or task in ("forecast", "activity")
         else None)
    return ProcedureModel(phrases, f, h, order, task=task, **others)


def build_published(encoder, denoiser=None, task=None, classes=()):
    """A Released with new weights, from the sizes in its checkpoint."""
    h = ReleasedDenoiser(**denoiser) if denoiser else None
    return Released(build_encoder(**encoder), h, encoder["dim"], task, classes)


# ------------------------------------------------------------------------------------------------
# Files
# ------------------------------------------------------------------------------------------------
def save_checkpoint(path, model, arguments, before=None, **more):
    """Write model, arguments and `more` (tensors and plain types) to path, whole or not at all.

    before: where to move the checkpoint that was there; None: it is replaced.
    """
    content = {"arguments": arguments, "model": model.state_dict(), **more}
    write_atomically(path, lambda file: torch.save(content, file), before)


def is_ours(content):
    """Whether the content of a file was written by `save_checkpoint`."""
    return isinstance(content, dict) and {"arguments", "model"} <= content.keys()


def read_whole(path):
    """The content of a checkpoint of ours, to resume from; its checksums are verified.

    torch.load does not verify them: a flipped bit would become a weight.
    Raises: BadInput as `read_content`, and if the file is damaged or not one of ours.
    """
    content = read_content(path)
    if not is_ours(content):
        raise BadInput(f"{path}: not a checkpoint of train.py: it has no arguments and model")
    try:
        with zipfile.ZipFile(path) as parts:
            damaged = parts.testzip()
    except zipfile.BadZipFile as error:
        damaged = error
    if damaged:
        raise BadInput(f"{path}: is damaged: its bytes are not those that were written")
    return content


def convert_published(path, content, heads):
    """The content of a published file -> Released, and its arguments.

    Args:    heads: see `load_model`.
    Raises:  BadInput if it is not a video model, or a tensor is missing or has the wrong shape.
    """
    w, heads = rename(tensors_of(content)), heads or heads_of(content)
    try:
        sizes = released_sizes(w, heads)
        model = build_published(**sizes)
    except MISFITS as error:
        raise BadInput(f"{path}: not a checkpoint of train.py, nor one of TimeSformer, DistantSup "
                       f"or ProcedureVRL ({type(error).__name__}: {error}, among {len(w)} tensors)"
                       "; image models are for --init of pre-training") from None
    absent, f = fill(path, model, w), sizes["encoder"]
    if absent:
        raise BadInput(f"{path}: missing or of another shape: {shorten(absent)}; needed is a "
                       f"{type(model.encoder).__name__} of width {f['width']} (a TimeSformer with "
                       f"divided space-time attention), and heads on its embedding of {f['dim']}")
    if not heads and isinstance(model.encoder, TimeSformer):
        print(f"  it does not give the number of attention heads: {f['heads']}, each {HEAD_WIDTH} "
              "wide as in the release")
    return model, {"released": sizes}


def load_model(path, heads=None):
    """A checkpoint, ours or published -> model in eval mode, its arguments, content of the file.

    Args:   heads: of a published TimeSformer, whose tensors do not give them. None: the file's
            config["heads"], else width / 64 as in all published ones.
    Raises: BadInput as `read_content`, and if the weights do not fit the arguments or each other.
    """
    content = read_content(path)
    if not is_ours(content):
        model, arguments = convert_published(path, content, heads)
        return model.eval(), arguments, content
    try:
        arguments = content["arguments"]
        model = (build_published(**arguments["released"]) if "released" in arguments else
                 build_model(content["model"]["phrases"], **arguments))
        model.load_state_dict(content["model"])
    except MISFITS as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise BadInput(f"{path}: its weights do not fit this code: {lines[-1].strip()}") from None
    return model.eval(), arguments, content


def load_released(path, heads=None):
    """A published checkpoint, or what `python -m weights` made of it -> Released, for inference.

    It computes what it computed where it was published; see the header. In eval mode, its
    parameters without gradients. heads and Raises: as `load_model`.
    """
    model = load_model(path, heads)[0]
    if not isinstance(model, Released):
        raise BadInput(f"{path}: a checkpoint of ours; weights.checkpoint.load_model reads it")
    return model.requires_grad_(False)


def same_texts(then, now):
    """Whether embeddings (K, D) are of the same texts by the same teacher, up to rounding."""
    return then.shape == now.shape and bool(
        (functional.cosine_similarity(then.cpu(), now.cpu()) > SAME).all())
