"""Flags that several commands share, those of a data set; what --device and --compile mean."""
import argparse
import importlib.util
import math
import os
import shutil
import sys
from contextlib import suppress
from functools import partial
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
        """As argparse has it, but an unknown flag's error says which data set has it."""
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
    first.add_argument(flag, nargs="?", const="", default=default)
    return vars(first.parse_known_args(argv)[0])[flag.strip("-").replace("-", "_")]


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


# --- Flags of a data set ---
def serving(names, find, command):
    """{name: data.Source class} of the data sets that serve a command. All are imported."""
    kinds = {}
    for name in names:
        kind = find(name)
        if kind.serves(command):
            kinds[name] = kind
    return kinds


def flags_of(kinds, command):
    """The flags of data sets, {name: data.Source class} -> {flag: {name: options of add_argument}}.
    """
    flags = {}

    def note(name, flag, **options):
        flags.setdefault(flag, {})[name] = options
    for name, kind in kinds.items():
        kind.add_flags(partial(note, name), command)
    return flags


def add_for_help(parser, flags):
    """Add the flags of several data sets, as `flags_of` gives them, so that help shows all. Those
    that the same data sets have are a group; a flag that several have is declared once, with what
    each says of it. None is required, since help is asked for without any."""
    groups = {}
    for flag, by_name in flags.items():
        title = "--data " + ", ".join(by_name)
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        names_of = {}                                      # {help: data sets that say so}
        for name, options in by_name.items():
            text = options["help"]
            if options.get("required"):
                text += "; required"
            names_of.setdefault(text, []).append(name)
        told = list(names_of)
        if len(told) > 1:
            told = [f"{', '.join(names)}: {text}" for text, names in names_of.items()]
        shown = dict(next(iter(by_name.values())), required=False, help=". ".join(told))
        groups[title].add_argument(flag, **shown)


def add_data_flags(parser, argv, names, find, command, default="toy"):
    """Add --data and --skip, and the flags of the data set that argv names; with --help, of all.

    names: values of --data; find: name -> its data.Source class, imported when it is asked for;
    command: what its `serves` and `add_flags` are told. Returns the class of the chosen one.
    InputError for another name, or for a data set that does not serve the command.
    """
    chosen = peek(argv, "--data", default)
    require(chosen in names, f"--data {chosen}: must be one of {', '.join(names)}")
    kind = find(chosen)
    if not kind.serves(command):
        raise InputError(f"--data {chosen}: cannot be used to {command}; that needs --data "
                         f"{' or '.join(serving(names, find, command))}")

    def whose(flag):
        owners = flags_of(serving(names, find, command), command).get(flag)
        if not owners:
            return ""
        return f"{flag}: --data {chosen} has no such flag; it is for --data {' or '.join(owners)}"
    parser.whose = whose

    words = sys.argv[1:] if argv is None else argv
    helps = "-h" in words or "--help" in words
    told, kinds = "which data set", {}
    if helps:
        kinds = serving(names, find, command)
        lines = [f"{name}: {(one.__doc__ or '').strip()}" for name, one in kinds.items()]
        told = " ".join(line.split("\n")[0] for line in lines)
    add = parser.add_argument_group("data").add_argument
    add("--data", choices=names, default=default, help=told)
    if command != "check":
        add("--skip", nargs="+", default=[], metavar="ID", help="videos that are never opened")
    if helps:
        add_for_help(parser, flags_of(kinds, command))
    else:
        kind.add_flags(parser.add_argument, command)
    return kind


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
    """"auto" -> cuda if there is one, else cpu; another name -> that device."""
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
    """Within it matrix products run in bfloat16 on a GPU; elsewhere nothing changes."""
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
