"""Flags that several commands share, and what --device means."""
import argparse
import json
import math
from pathlib import Path

import torch

from support.errors import InputError, require

OWN = Path("runs/pretrain")                                    # the run of `python train.py`
INCLUDED = Path(__file__).parents[1] / "toy" / "default.pt"    # the checkpoint beside the code
FILES = "videos", "features", "captions", "annotations", "steps", "skip"


class Help(argparse.ArgumentDefaultsHelpFormatter):
    """Help that shows a default only if it tells something."""

    def _get_help_string(self, action):
        hidden = action.default is None or isinstance(action.default, bool)
        return action.help if hidden else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are InputErrors: one line, without the usage."""

    def __init__(self, description, **options):        # options: what add_subparsers gives
        super().__init__(description=description, allow_abbrev=False, formatter_class=Help,
                         **options)

    def error(self, message):
        """Raise InputError."""
        raise InputError(message)


class Noise(argparse.Action):
    """--noise FIRST LAST | release -> (first, last), two levels that fall, or "release"."""

    def __call__(self, parser, args, given, flag):
        """Set the flag. InputError for anything else."""
        levels = given[0]
        if given != ["release"]:
            try:
                levels = first, last = tuple(map(float, given))
            except ValueError:
                first = last = math.nan
            require(math.inf > first > last > 0, f"{flag} {' '.join(given)}: needed are two numbers "
                    "above 0 that fall, like 1.5 0.3; or: release")
        setattr(args, self.dest, levels)


def add_run_flags(parser):
    """Add the flags of all commands that read clips and run f."""
    add = parser.add_argument
    add("--seed", type=int, default=0, help="of all that is random")
    add("--device", default="auto", help="cpu, cuda or mps; auto: a GPU if any")
    add("--micro-batch", type=int, metavar="CLIPS", help="at once through f, to save memory; 0: "
        "all (default: as many as hold 192 pictures of 224 pixels)")
    add("--workers", type=int, default=0, help="processes that read ahead")
    add("--max-unreadable", type=float, default=0.05, metavar="SHARE",
        help="share of the videos that may be unreadable")


def refuse_other_paths(args):
    """InputError if files are given to --data toy, the default, which reads none."""
    for name in FILES:
        require(args.data != "toy" or not getattr(args, name, None), f"--data toy reads no --{name}"
                "; add --data howto100m, coin, epic or features")


def default_checkpoint():
    """--checkpoint or --init if not given: runs/pretrain, else the one that comes with the code."""
    if not (OWN / "checkpoint.pt").exists():
        print(f"no {OWN}: the included checkpoint, {INCLUDED}, trained on the toy world")
        return INCLUDED
    last = (OWN / "metrics.jsonl").read_bytes().splitlines()[-1]
    print(f"checkpoint: {OWN}, after {json.loads(last)['step']} updates; the included one is "
          f"--checkpoint {INCLUDED}")
    return OWN


def pick_device(name):
    """"auto" -> cuda if there is one, else cpu; another name -> that device."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def limit_threads(image, device):
    """Use one thread on a CPU if f reads small pictures, or features. Two threads gain a third on
    idle cores, but lose a factor of four beside another busy process."""
    if device.type == "cpu" and image < 64:
        torch.set_num_threads(1)


def mixed_precision(device):
    """Within it matrix products run in bfloat16 on a GPU; elsewhere nothing changes."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
