"""The video encoders f by name, a line for each; how f and h are made; their arguments by --set.

What f must be is data.Encoder. To add one, write its class and a line of ENCODERS: `--encoder` has
its name then, `--set` its arguments, and checkpoints of it load. A class is imported when it is
asked for.
"""
import inspect
import json
import math
from pkgutil import resolve_name
from textwrap import shorten
from typing import NamedTuple

import torch

from denoiser import Denoiser
from support.errors import InputError, require
from weights.bounds import LARGEST, are_numbers

TEACHER = "teacher"       # the teacher in place of f, CLIP's row of Table 2; not for --encoder
SETTLED = "dim", "features", "clips", "levels"     # arguments that the teacher, data, N and T give
# What a module raises whose arguments or input do not fit.
FAILURES = (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError)


class Line(NamedTuple):
    """A video encoder f."""
    where: str                         # its class, as "module:Class"
    small: dict                        # its arguments at --size small; others have their defaults
    base: dict                         # and at --size base


ENCODERS = {
    "timesformer": Line("encoder:TimeSformer",
                        dict(image=32, patch=16, frames=4, width=64, depth=2, heads=2),
                        dict(image=224, patch=16, frames=8, width=768, depth=12, heads=12)),
    "mvit": Line("weights.mvit:MViT",
                 dict(image=32, frames=4, seconds=None, width=16, heads=1, stages=(1, 1, 1),
                      kv_stride=4),
                 dict(image=224, frames=16, seconds=3.2)),
    "adapter": Line("weights.adapter:Adapter", dict(), dict(width=2048)),
    TEACHER: Line("weights.adapter:TeacherFeatures", dict(frames=4), dict(frames=8)),
}


# --- What is made ---
def sizes_of(kind, size, chosen=None):
    """Config.encoder: the kind of f and its arguments at a --size. chosen: those of --set."""
    sizes = {"kind": kind} | getattr(ENCODERS[kind], size)
    return sizes | chosen_of("encoder", chosen)


def make(kind, arguments):
    """An f or h: kind(**arguments). InputError if its class cannot be made with them."""
    try:
        return kind(**arguments)
    except FAILURES as error:
        raise InputError(f"{kind.__name__} cannot be made with {arguments}: "
                         f"{shorten(str(error), 200)}") from error


def make_encoder(sizes, dim=512):
    """f of a Config.encoder; dim: D. InputError if it cannot be made."""
    kind = sizes["kind"]
    require(kind in ENCODERS, f"encoder {kind}: not one of {', '.join(ENCODERS)}")
    arguments = {name: value for name, value in sizes.items() if name != "kind"}
    arguments["dim"] = dim
    return make(resolve_name(ENCODERS[kind].where), arguments)


def check_encoder(f, dim):
    """InputError unless f turns one clip into a vector (1, dim) of length 1. f is asked in eval
    mode, and stays in its mode; torch's random numbers go on as if it had not been asked."""
    shape = (1, 3, f.frames, f.image, f.image)
    if f.image == 0:
        shape = (1, f.features)
    clip = torch.linspace(-1, 1, math.prod(shape)).view(shape)
    training = {module: module.training for module in f.modules()}
    name = type(f).__name__
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            x = f.eval()(clip)
    except FAILURES as error:
        raise InputError(f"{name} cannot read a clip {shape}: {shorten(str(error), 200)}"
                         ) from error
    for module, mode in training.items():
        module.training = mode
    require(torch.is_tensor(x) and x.shape == (1, dim), f"{name} makes of one clip "
            f"{getattr(x, 'shape', type(x))}; expected a tensor (1, {dim})")
    length = x.norm().item()
    require(abs(length - 1) < 1e-3, f"{name} makes a vector of length {length:.4g}; expected 1")


# --- --set ---
def arguments_of(kind):
    """The names of the arguments of a class that --set has."""
    names = []
    for name, parameter in inspect.signature(kind).parameters.items():
        is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if is_named and name not in SETTLED:
            names.append(name)
    return names


def value_of(text):
    """A number, true, false, null, or a list of numbers, as JSON -> its value; ValueError."""
    value = json.loads(text)
    if value is None or isinstance(value, bool):
        return value
    items = value if isinstance(value, list) else [value]
    if not are_numbers(items, -LARGEST, LARGEST):
        raise ValueError(text)
    return value


def overrides(given, kind, order):
    """--set NAME=VALUE ... -> {NAME: value}, of an f of this --encoder and an h of this --order.
    InputError for an unknown name, or a value that is none."""
    known = [f"encoder.{name}" for name in arguments_of(resolve_name(ENCODERS[kind].where))]
    if order != "none":
        known += [f"denoiser.{name}" for name in arguments_of(Denoiser)]
    values = {}
    for text in given:
        name, _, value = text.partition("=")
        require(name in known, f"--set {text}: expected NAME=VALUE, of {', '.join(known)}")
        try:
            values[name] = value_of(value)
        except (ValueError, RecursionError):
            raise InputError(f"--set {text}: the value must be a number of at most {LARGEST}, "
                             "true, false, null, or a list of numbers, like [1,2]; the names are "
                             f"{', '.join(known)}") from None
    return values


def chosen_of(part, chosen):
    """The arguments of a part, "encoder" or "denoiser", among those of --set: {name: value}."""
    prefix, found = f"{part}.", {}
    for name, value in (chosen or {}).items():
        if name.startswith(prefix):
            found[name.removeprefix(prefix)] = value
    return found
