"""Flags that several commands share, and what --device means."""
import argparse
import math
from contextlib import suppress
from pathlib import Path

import torch

from data import STRIDE
from support.errors import InputError, require

OWN = Path("runs/pretrain")                                    # the run of `python train.py`
INCLUDED = Path(__file__).parents[1] / "toy" / "default.pt"    # the checkpoint beside the code


class Help(argparse.ArgumentDefaultsHelpFormatter):
    """Help that shows a default only if it is informative."""

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


def positive(kind, zero=False):
    """The type of a flag: an int or a float above 0, or 0 if `zero`."""
    def parse(text):
        value = kind(text)
        if not (0 < value < math.inf or zero and value == 0):
            raise argparse.ArgumentTypeError(f"{text}: must be {'at least' if zero else 'above'} 0")
        return value
    return parse


def noise_of(given):
    """--noise FIRST LAST, or release -> (first, last), or "release". InputError for others."""
    if [*given] == ["release"]:
        return "release"
    with suppress(ValueError):
        first, last = map(float, given)
        if math.inf > first > last > 0:
            return first, last
    raise InputError(f"--noise {' '.join(given)}: needed are two numbers above 0 that fall, like "
                     "2 0.3; or: release")


def add_run_flags(parser):
    """Add the flags of all commands that read clips and run f."""
    add = parser.add_argument
    add("--seed", type=int, default=0, help="seed of all that is random")
    add("--device", default="auto", help="cpu, cuda or mps; auto: a GPU if any")
    add_micro_batch_flag(parser)
    add("--workers", type=positive(int, zero=True), default=0, help="processes that read ahead")
    add("--max-unreadable", type=positive(float, zero=True), default=0.05, metavar="SHARE",
        help="share of the videos that may be unreadable")


def add_micro_batch_flag(parser):
    """Add --micro-batch."""
    parser.add_argument("--micro-batch", type=positive(int, zero=True), metavar="CLIPS", help="at "
                        "once through f, to save memory; 0: all (default: as many as hold 192 "
                        "pictures of 224 pixels; on a GPU, per 24 GB)")


def add_data_flags(parser, kinds, toy_videos, kind):
    """Add --data, of these kinds, with its help, and the flags that all of them have."""
    add = parser.add_argument
    add("--data", choices=kinds, default="toy", help=kind)
    add("--toy-videos", type=positive(int), default=toy_videos, help="videos of the toy world")
    add("--videos", type=Path, help="folder of videos, ID.mp4 and the like")
    add("--features", type=Path, help="npz of features, as evaluate.py --task features writes")
    add("--skip", nargs="+", default=[], metavar="ID", help="videos that are never opened")
    add_teacher_flags(parser)


def add_narrated_flags(parser, kinds):
    """Add --data, of these kinds, and the flags for what it reads, to pre-training."""
    add = parser.add_argument
    add_data_flags(parser, kinds, 2400, "howto100m: narrated videos; features: their features "
                   "instead of pictures")
    add("--captions", type=Path, help="folder of ID.csv, ID.srt or ID.vtt; or caption.json")
    add("--ids", type=Path, help="use only these videos: an id per line")
    add("--phrases", type=Path, help="the phrase pool, one phrase per line")
    add("--stride", type=positive(int), default=STRIDE, help="every STRIDE-th sentence gives a "
        "clip; choose it so that clips are about a step apart")


def add_labeled_flags(parser, kinds, toy_videos):
    """Add --data, of these kinds, and the flags for what it reads, to a command with labels."""
    add = parser.add_argument
    add_data_flags(parser, kinds, toy_videos, "coin: COIN, or videos in its layout; features: of "
                   "such videos; epic: EPIC-Kitchens-100, verbs and nouns")
    add("--annotations", type=Path, help="COIN.json or a released csv, or EPIC's csv")
    add("--steps", type=Path, help="line i names class i (default: the names in COIN.json)")
    add("--history", choices=["spaced", "paper"], help="a forecast observes at most eight clips as "
        "far apart as in training; or, as in the paper, 68 s in eight (default: as it was "
        "fine-tuned; else spaced; published: paper)")


def add_teacher_flags(parser):
    """Add the flags of the teacher."""
    add = parser.add_argument
    add("--clip", help="the teacher: open_clip's model, local-dir:DIR or toy (default: the "
        "checkpoint's; to pre-train: the paper's, or the toy world's)")
    add("--clip-weights", help="its weights: a tag of open_clip (default: openai), or a file")


def default_checkpoint():
    """--checkpoint or --init if not given: runs/pretrain, else the one that comes with the code."""
    if not (OWN / "checkpoint.pt").exists():
        print(f"no {OWN}: the included checkpoint, {INCLUDED}, trained on the toy world")
        return INCLUDED
    print(f"checkpoint: {OWN}; the included one is --checkpoint {INCLUDED}")
    return OWN


def pick_device(name):
    """"auto" -> cuda if there is one, else cpu; another name -> that device."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"--device {name}: must be cpu, cuda, cuda:0 and so on, or mps") from None
    require(device.type != "cuda" or torch.cuda.is_available(), f"--device {name}: torch finds no "
            "GPU; give --device cpu")
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)                  # also for what pins memory
    return device


def limit_threads(image, device):
    """Use one thread on a CPU if f reads small pictures, or features. Two threads gain a third on
    idle cores, but lose a factor of four beside another busy process."""
    if device.type == "cpu" and image < 64:
        torch.set_num_threads(1)


def mixed_precision(device):
    """Within it matrix products run in bfloat16 on a GPU; elsewhere nothing changes."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
