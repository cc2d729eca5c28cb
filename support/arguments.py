"""Flags that several commands share, and what --device means."""
import argparse
import importlib.util
import json
import math
import os
import shutil
from pathlib import Path

import torch
from torch import nn

from data import STRIDE
from support.errors import InputError, require

OWN = Path("runs/pretrain")                                    # the run of `python train.py`
INCLUDED = Path(__file__).parents[1] / "toy" / "default.pt"    # the checkpoint beside the code


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


def positive(kind):
    """The type of a flag: an int or a float above 0."""
    def parse(text):
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text}: must be above 0")
        return value
    return parse


def share(text):
    """The type of a flag: a share, above 0 and below 1."""
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a share, above 0 and below 1")
    return value


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
            require(math.inf > first > last > 0, f"{flag} {' '.join(given)}: needed are two "
                    "numbers above 0 that fall, like 1.5 0.3; or: release")
        setattr(args, self.dest, levels)


def add_run_flags(parser):
    """Add the flags of all commands that read clips and run f."""
    add = parser.add_argument
    add("--seed", type=int, default=0, help="of all that is random")
    add("--device", default="auto", help="cpu, cuda or mps; auto: a GPU if any")
    add("--micro-batch", type=int, metavar="CLIPS", help="at once through f, to save memory; 0: "
        "all (default: as many as hold 192 pictures of 224 pixels; on a GPU, per 24 GB)")
    add("--workers", type=int, default=0, help="processes that read ahead")
    add("--max-unreadable", type=float, default=0.05, metavar="SHARE",
        help="share of the videos that may be unreadable")


def compile_blocks(device, *modules):
    """Compile the blocks of Transformers; names in a state_dict stay. InputError if
    there is no compiler."""
    compilers = [os.environ.get("CXX", "g++"), "c++", "clang++", "cl"]
    require(any(map(shutil.which, compilers)), "--compile: needs a C++ compiler, such as g++")
    require(device.type != "cuda" or importlib.util.find_spec("triton"), "--compile: needs triton "
            "on a GPU: pip install triton")
    for module in modules:
        for part in module.modules():
            if isinstance(part, (nn.ModuleList, nn.Sequential)) and len(part) and "Block" in type(
                    part[0]).__name__:
                for block in part:
                    block.compile()


def add_narrated_flags(parser, kinds):
    """Add --data, of these kinds, and the flags for what it reads, to pre-training."""
    add = parser.add_argument
    add("--data", choices=kinds, default="toy",
        help="howto100m: narrated videos; features: their features instead of pictures")
    add("--toy-videos", type=positive(int), default=6000, help="training videos of the toy world")
    add("--videos", type=Path, help="folder of videos, ID.mp4 and the like")
    add("--features", type=Path, help="npz of features, as evaluate.py --task features writes")
    add("--captions", type=Path, help="folder of ID.csv, ID.srt or ID.vtt; or caption.json")
    add("--ids", type=Path, help="use only these videos: an id per line")
    add("--phrases", type=Path, help="the phrase pool, one phrase per line")
    add("--skip", nargs="+", default=[], metavar="ID", help="videos that are never opened")
    add("--stride", type=positive(int), default=STRIDE, help="every so many sentences give a clip; "
        "choose it so that clips are about a step apart")
    add("--clip", help="teacher: open_clip's model or local-dir:DIR (default: the paper's; toy: "
        "its own)")
    add("--clip-weights", help="its weights: a tag of open_clip (default openai), or a file")


def add_labeled_flags(parser, kinds):
    """Add --data, of these kinds, and the flags for what it reads, to a command with labels."""
    add = parser.add_argument
    add("--data", choices=kinds, default="toy", help="coin: COIN, or videos in its layout; "
        "features: of such videos; epic: EPIC-Kitchens-100, verbs and nouns")
    add("--annotations", type=Path, help="COIN.json or a released csv, or EPIC's csv")
    add("--videos", type=Path, help="folder of videos, ID.mp4 and the like")
    add("--features", type=Path, help="npz of features, as evaluate.py --task features writes")
    add("--steps", type=Path, help="line i names class i (default: the names in COIN.json)")
    add("--skip", nargs="+", default=[], metavar="ID", help="videos that are never opened")
    add_teacher_flags(parser)


def add_history_flag(parser):
    """Add --history."""
    parser.add_argument("--history", choices=["spaced", "paper"], help="a forecast observes at "
                        "most eight clips as far apart as in training; or, as in the paper, 68 s "
                        "in eight (default: as it was fine-tuned; else spaced; published: paper)")


def add_teacher_flags(parser):
    """Add the flags of the teacher that a checkpoint has."""
    add = parser.add_argument
    add("--clip", help="the teacher: open_clip's model, local-dir:DIR or toy (default: the run's)")
    add("--clip-weights", help="its weights: a tag of open_clip, or a file (default: the run's)")


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
