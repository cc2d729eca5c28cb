"""Flags that several commands share; what --device and --compile mean."""
import argparse
import importlib.util
import math
import os
import shutil
from contextlib import suppress
from pathlib import Path

import torch

from support.errors import InputError, require

OWN = Path("runs/pretrain")                                    # the run of `python train.py`
INCLUDED = Path(__file__).parents[1] / "toy" / "default.pt"    # the checkpoint beside the code

MOST = 10 ** 9                 # of a number, unless its flag has another bound
SEEDS = 2 ** 31                # seeds are below


# --- The parser, and what a value can be ---
class Help(argparse.ArgumentDefaultsHelpFormatter):
    """Help that shows a default only if it is informative."""

    def _get_help_string(self, action):
        hidden = action.default in (None, []) or isinstance(action.default, bool)
        return action.help if hidden else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are InputErrors: one line, without the usage.

    whose: a function that says of an unknown flag whose it is, "" if nobody's; or None.
    """

    def __init__(self, description, **options):        # options: what add_subparsers gives
        super().__init__(description=description, allow_abbrev=False, formatter_class=Help,
                         **options)
        self.whose = None

    def parse_args(self, args=None, namespace=None):
        """See argparse. An unknown flag's error says which data set has it."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            if self.whose is not None:
                told = self.whose(unknown[0].split("=")[0])
                require(not told, told)
            self.error(f"unknown: {' '.join(unknown)}; see --help")
        for name in "json", "figure":
            require_output(found, name)
        return found

    def error(self, message):
        """Raise InputError."""
        raise InputError(message)


def require_output(args, name):
    """InputError if the file that a flag names must not be overwritten: a folder, a file that the
    command reads, or, of --json, one that is no .json."""
    path = getattr(args, name, None)
    if path is None or not path.exists():
        return
    require(not path.is_dir(), f"--{name} {path}: is a folder")
    if name == "json" and path.is_file():
        require(path.suffix == ".json", f"--json {path}: exists and is no .json file; give another "
                "name")
    for flag, values in vars(args).items():
        if not isinstance(values, list):
            values = [values]
        for value in values:
            if flag != name and isinstance(value, Path):
                require(value.resolve() != path.resolve(), f"--{name} {path}: the command reads "
                        "this file")


def peek(argv, flag, default=None):
    """The value of one flag of a command line (a list; None: this program's), before the others are
    known. "" if it lacks its value."""
    first = Parser("", add_help=False)
    first.add_argument(flag, dest="value", nargs="?", const="", default=default)
    return first.parse_known_args(argv)[0].value


def positive(kind, zero=False, most=MOST):
    """The type of a flag: an int or a float above 0, or 0 if `zero`, up to `most`."""
    def parse(text):
        value = kind(text)
        if not (0 < value <= most or zero and value == 0):
            least = "at least" if zero else "above"
            raise argparse.ArgumentTypeError(f"{text}: must be {least} 0 and at most {most:g}")
        return value
    parse.__name__ = kind.__name__                     # in argparse's message
    return parse


def seed_number(text):
    """The type of --seed: a whole number from 0 to 2^31 - 1."""
    if not (text.isdecimal() and int(text) < SEEDS):
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number from 0, below 2^31")
    return int(text)


def share_number(text):
    """The type of a share: a number above 0, up to 1."""
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text}: is a share, above 0 and at most 1; 0.1 is a "
                                         "tenth")
    return value


def existing(text):
    """The type of a file or folder that must be there: a Path."""
    path = Path(text)
    if not path.exists():
        raise argparse.ArgumentTypeError(f"{text}: no such file or folder")
    return path


def noise_of(given):
    """--noise FIRST LAST, or release -> (first, last), or "release". InputError for others."""
    if list(given) == ["release"]:
        return "release"
    with suppress(ValueError):
        first, last = map(float, given)
        if math.inf > first > last > 0:
            return first, last
    raise InputError(f"--noise {' '.join(given)}: expected two positive numbers, the first larger, "
                     "2 0.3; or: release")


# --- Flags that several commands share ---
def add_run_flags(parser):
    """Add the group of flags of all commands that read clips and run f -> its add_argument."""
    add = parser.add_argument_group("run").add_argument
    add("--seed", type=seed_number, default=0, help="seed of all that is random")
    add_device_flags(add)
    add("--workers", type=positive(int, zero=True, most=1000), default=0, help="processes that "
        "read ahead")
    add("--max-unreadable", type=positive(float, zero=True, most=1), default=0.05, metavar="SHARE",
        help="share of the videos that may be unreadable")
    return add


def add_device_flags(add):
    """Add --device and --micro-batch."""
    add("--device", default="auto", help="cpu, cuda or mps; auto: a GPU if any")
    add("--micro-batch", type=positive(int, zero=True), metavar="CLIPS", help="how many clips "
        "f reads at once, to save memory; 0: all (default: those of 192 pictures of 224 pixels; on "
        "a GPU, for each 24 GB)")


def add_folder_flags(add, out):
    """Add the flags of a run's folder: --out, by default `out`, --resume and --tensorboard."""
    add("--out", type=Path, default=out, help="folder of the run")
    add("--resume", action="store_true", help="continue from OUT/checkpoint.pt, if there is one")
    add("--tensorboard", action="store_true", help="also write the metrics as TensorBoard's events "
        "into the folder")


def add_checkpoint_flag(add):
    """Add --checkpoint."""
    add("--checkpoint", type=Path, help="a run folder, a checkpoint file, or a published one "
        "(default: runs/pretrain, else the checkpoint that comes with the code)")


def add_history_flag(add):
    """Add --history."""
    add("--history", choices=["spaced", "paper"], help="a forecast observes at most eight clips as "
        "far apart as in training; or, as in the paper, 68 s in eight (default: as it was "
        "fine-tuned; else spaced; published: paper)")


def add_teacher_flags(add, default=None):
    """Add the flags of the teacher. default: the name of the data set's, to pre-train."""
    told = "the teacher: open_clip's model, local-dir:DIR or toy"
    if default is None:
        told += " (default: the checkpoint's; to pre-train: the paper's)"
    add("--clip", default=default, help=told)
    add("--clip-weights", help="its weights: a tag of open_clip (default: openai), or a file")


def default_checkpoint():
    """--checkpoint or --init if not given: runs/pretrain, else the one that comes with the code."""
    if not (OWN / "checkpoint.pt").exists():
        print(f"no {OWN}: the included checkpoint, {INCLUDED}, trained on the toy world")
        return INCLUDED
    print(f"checkpoint: {OWN}; the included one is --checkpoint {INCLUDED}")
    return OWN


def pick_device(name):
    """The device of --device; auto: cuda if there is one, else cpu."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"--device {name}: must be cpu, cuda, cuda:0 and so on, or mps") from None
    require(device.type in ("cpu", "cuda", "mps"), f"--device {name}: must be cpu, cuda or mps")
    require(device.type != "mps" or torch.backends.mps.is_available(), f"--device {name}: torch "
            "finds no GPU of Apple's; give --device cpu")
    if device.type == "cuda":
        require(torch.cuda.is_available(), f"--device {name}: torch finds no GPU; give --device "
                "cpu")
        count = torch.cuda.device_count()
        require((device.index or 0) < count, f"--device {name}: there are {count}, from cuda:0")
        if device.index is not None:
            torch.cuda.set_device(device)              # also for what pins memory
    return device


def limit_threads(image, device):
    """Use one thread on a CPU if f reads small pictures, or features. Two threads gain a third on
    idle cores, but lose a factor of four beside another busy process."""
    if device.type == "cpu" and image < 64:
        torch.set_num_threads(1)


def mixed_precision(device):
    """A context manager: matrix products run in bfloat16 on a GPU; elsewhere nothing changes."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def compile_modules(device, encoder, denoiser, teacher):
    """Compile f, h if there is one (else None), and the image encoder of a pseudo_labels.Teacher.

    Whole modules are compiled, when they are called first; their names in a state_dict stay.
    InputError if there is no compiler.
    """
    compilers = os.environ.get("CXX", "g++"), "c++", "clang++", "cl"
    require(any(map(shutil.which, compilers)), "--compile: needs a C++ compiler, such as g++")
    require(device.type != "cuda" or importlib.util.find_spec("triton"), "--compile: needs triton "
            "on a GPU: pip install triton")
    encoder.compile()
    if denoiser is not None:
        denoiser.compile()
    if teacher.size:                                   # a table of texts looks at no pictures
        teacher.model.visual.compile()
