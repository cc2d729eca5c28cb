"""Checkpoints: ours and published ones, as models in eval mode.

A checkpoint of ours holds "arguments" (plain types: how the model is built), "model" (its tensors)
and whatever else the run needs, so that torch.load(weights_only=True) reads it. A published one is
renamed, its sizes are read from its tensors, and it becomes a weights.released.Released:

    model = load_released("procedurevrl.pyth")
    x = model.encode(clips)                 # (B, 3, F, H, W) float, normalized -> (B, D)
    x_hat = model.forecast(x)               # (B, 8, D) -> (B, D), the clip after these eight
"""
import zipfile
from pathlib import Path

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


# ------------------------------------------------------------------------------------------------
# From plain arguments to a model
# ------------------------------------------------------------------------------------------------
def build_encoder(dim, kind="timesformer", **sizes):
    """f: a TimeSformer, or with kind "mvit" the other backbone of the paper's appendix."""
    return MViT(dim=dim, **sizes) if kind == "mvit" else TimeSformer(dim=dim, **sizes)


def build_model(phrases, encoder, denoiser, order, task=None, **others):
    """A ProcedureModel with new weights, from the arguments that its checkpoint stores.

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
    """A Released with new weights, from the sizes that its checkpoint stores."""
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
    """The content of a checkpoint of ours whose bytes are as written, which torch does not check.

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


def load_model(path):
    """A checkpoint, ours or published -> model in eval mode, its arguments, content of the file.

    Raises: BadInput as `read_content`, and if the weights do not fit the arguments.
    """
    content = read_content(path)
    if not is_ours(content):
        return *convert_released(path, content), content
    try:
        arguments = content["arguments"]
        model = (build_published(**arguments["released"]) if "released" in arguments else
                 build_model(content["model"]["phrases"], **arguments))
        model.load_state_dict(content["model"])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise BadInput(f"{path}: its weights do not fit this code: {lines[-1].strip()}") from None
    return model.eval(), arguments, content


def convert_released(path, content, heads=None):
    """The content of a published file -> Released in eval mode, and its arguments.

    Args:    heads: of TimeSformer, if neither the file nor the release's 64 per head gives it.
    Raises:  BadInput if it is no video model, or its tensors do not fit each other.
    """
    w, heads = rename(tensors_of(content)), heads or heads_of(content)
    try:
        sizes = released_sizes(w, heads)
        model = build_published(**sizes)
    except (LookupError, ArithmeticError, ValueError, TypeError, AssertionError,
            RuntimeError) as error:
        raise BadInput(f"{path}: not a checkpoint of train.py, nor one of TimeSformer, DistantSup "
                       f"or ProcedureVRL ({type(error).__name__}: {error}, among {len(w)} tensors)"
                       "; image models are for --init of pre-training") from None
    missing, _, reshaped = fill(path, model, w)
    f = sizes["encoder"]
    if missing or reshaped:
        raise BadInput(f"{path}: missing or of another shape: {shorten([*missing, *reshaped])}; "
                       f"needed is a {f.get('kind', 'timesformer')} of width {f['width']} with "
                       f"divided space-time attention, and heads on its embedding of {f['dim']}")
    if not heads and "kind" not in f:
        print(f"  it does not give the number of attention heads: {f['heads']}, each {HEAD_WIDTH} "
              "wide as in the release")
    return model.eval(), {"released": sizes}


def load_released(path, heads=None):
    """A published checkpoint -> Released, computing what it computed there; see the header.

    In eval mode, its parameters without gradients. Sizes are read from the tensors. The number of
    TimeSformer's heads is not in them: it is the file's config["heads"] if that is written, else
    width / 64, as all published ones have it; `heads` sets it. A file that `python -m weights`
    wrote is read as well.
    Raises: BadInput, one line, if the file is none or cannot be read.
    """
    content = read_content(path)
    model = (load_model(path) if is_ours(content) else convert_released(path, content, heads))[0]
    if not isinstance(model, Released):
        raise BadInput(f"{path}: a checkpoint of ours; weights.checkpoint.load_model reads it")
    return model.requires_grad_(False)


def same_texts(then, now):
    """Whether embeddings (K, D) are of the same texts by the same teacher, up to rounding."""
    return then.shape == now.shape and bool(
        (functional.cosine_similarity(then.cpu(), now.cpu()) > SAME).all())
