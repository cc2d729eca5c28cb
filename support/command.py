"""How every script begins and ends: its command line, one line of error, whole files, seeds.

Nothing here knows the method; what the flags of each script are is in settings.py.
"""
import argparse
import json
import logging
import os
import random
import signal
import sys
import warnings
from contextlib import contextmanager
from dataclasses import MISSING, field, fields
from pathlib import Path


class BadInput(ValueError):
    """What was given cannot be used: the user's to mend, so the program ends with one line."""


def opt(help, default=MISSING, choices=None, data=(), flag=True):
    """A field of a settings class: its help says effect, unit, range; choices if there are few.

    Without a default, or with flag=False, it is no flag but an argument by its place: one that must
    be given, or one that may be left out. data: the kinds of --data that it has an effect on; with
    another kind it is refused. None named: all.
    """
    help += f" (--data {', '.join(data)})" if data else ""
    return field(default=default,
                 metadata={"help": help, "choices": choices, "data": data, "flag": flag})


def check(good, name, value, need):
    """BadInput that names the flag unless `good`."""
    if not good:
        raise BadInput(f"--{name.replace('_', '-')} {value}: {need}")


class Parser(argparse.ArgumentParser):
    """Its errors are one line, `PROG: error: ...`, status 2, without the usage block."""

    def error(self, message):
        self.exit(2, f"{self.prog}: error: {message}\n")


def parse(cls, argv=None):
    """Command line -> cls. A wrong value ends the program with one line and status 2."""
    parser = Parser(description=cls.__doc__, allow_abbrev=False,
                    formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for f in fields(cls):                              # never type=bool: bool("False") is True
        kind = ({"action": argparse.BooleanOptionalAction} if f.type is bool else
                {"type": f.type, "choices": f.metadata["choices"], "metavar": None
                 if f.metadata["choices"] else f.type.__name__.upper()})
        if f.default is MISSING or not f.metadata["flag"]:
            absent = {} if f.default is MISSING else {"nargs": "?", "default": f.default}
            parser.add_argument(f.name, help=f.metadata["help"], type=f.type,
                                choices=f.metadata["choices"], **absent)
            continue
        parser.add_argument("--" + f.name.replace("_", "-"), default=f.default,
                            help=f.metadata["help"], **kind)
    try:
        return cls(**vars(parser.parse_args(argv)))
    except BadInput as error:
        parser.error(str(error))


def run(main, cls, argv=None):
    """Parse, call main(settings), and end as SPEC says: what went wrong is one line on stderr.

    BadInput and OSError end with 2 (a full disk, a read-only folder), FloatingPointError with 1 (a
    loss that is not finite), Ctrl-C with 130, SIGTERM with 143. So does a process that read ahead
    and was killed (2); a bug of ours keeps its traceback.
    """
    def terminate(signum, frame):
        raise SystemExit(143)

    settings = parse(cls, argv)
    signal.signal(signal.SIGTERM, terminate)
    program = os.path.basename(sys.argv[0])
    try:
        main(settings)
    except (BadInput, OSError) as error:
        sys.exit(fail(program, error, 2))
    except FloatingPointError as error:
        sys.exit(fail(program, error, 1))
    except RuntimeError as error:          # torch raises it wherever the program happens to be
        if not str(error).startswith("DataLoader worker (pid"):
            raise
        sys.exit(fail(program, f"{error} It read ahead; is memory short? Use fewer --workers", 2))
    except KeyboardInterrupt:
        sys.exit(130)


class Interrupts:
    """Within it, Ctrl-C and SIGTERM only set `status` (130, 143): a step is finished and saved.

    One that came too late for that ends the program where this ends.
    """

    def __enter__(self):
        self.status = 0
        self.before = {number: signal.signal(number, self.note)
                       for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def note(self, number, frame):
        """The handler; `status` is 128 + the signal's number."""
        self.status = 128 + number

    def __exit__(self, *exception):
        for number, handler in self.before.items():
            signal.signal(number, handler)
        if self.status and not any(exception):
            sys.exit(self.status)


def fail(program, error, status):
    """Print the one line and return the status."""
    text = " ".join(str(error).split())
    print(f"{program}: error: {text}", file=sys.stderr)
    return status


@contextmanager
def quiet():
    """Within it libraries neither log nor warn: what went wrong is in their exception too."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)


def write_atomically(path, write, before=None):
    """Call write(binary file beside `path`), then rename: the file is whole or as before.

    A file, not a path: torch.save to a path hides a full disk in an error that is no OSError.
    before: what the file that was there is called from then on; None: it is gone.
    """
    path = Path(path)
    temporary = path.with_name(path.name + ".part")
    try:
        with open(temporary, "wb") as file:
            write(file)
        if before and path.exists():
            os.replace(path, before)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path, content):
    """A JSON file, never with NaN (which is no JSON), written atomically."""
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))


def set_seed(seed):
    """Seed python, numpy and torch, CUDA included."""
    import numpy
    import torch
    random.seed(seed)
    numpy.random.seed(seed % 2 ** 32)
    torch.manual_seed(seed)


def mixed_precision(device):
    """Within it matrix products are of bfloat16, on a GPU; elsewhere nothing is changed."""
    import torch
    kind = torch.device(device).type
    return torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda")


def send(x, device):
    """A tensor to the device; a GPU is not waited for, which takes pinned memory.

    One that is on the GPU already cannot be pinned.
    """
    import torch
    x = x.pin_memory() if torch.device(device).type == "cuda" and x.device.type == "cpu" else x
    return x.to(device, non_blocking=True)


def pick_device(name):
    """"auto" -> cuda where there is one; else the device named. BadInput if it is not there."""
    import torch
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"--device {name}: {reason}; use auto, cpu or cuda") from None
    return torch.device(name)
