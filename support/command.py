"""The command line: flags, one line of error, whole files; without torch, so that --help is fast.

A command declares its flags as a frozen dataclass, `class Flags(Settings)`, with one `opt` each.
"""
import argparse
import functools
import io
import json
import logging
import os
import re
import sys
import warnings
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from math import inf
from pathlib import Path

from support.process import BadInput, end_if_signaled, ending, process_number, program_name

WHAT, DATA, PAPER, RUN = GROUPS = "what to do", "data", "the paper's settings", "run"   # of --help
PICTURES = (".png", ".pdf", ".svg")                            # kinds of files for charts
RUN_FILES = ("checkpoint.pt", "checkpoint_before.pt", "config.json", "metrics.jsonl",
             "missing.json", "unreadable.json")                # that a run writes
MODELS = "clip", "clip_weights", "spacy_model", "keyframe_model"       # flags: names, or files
TOY = Path(__file__).parents[1] / "toy"                        # its teacher and default checkpoint


# --- Flags ---
def opt(help, default, group=RUN, *, choices=None, low=-inf, high=10 ** 6, above=-inf, file=None,
        folder=False, alias=None, flag=True, required=False, **only):
    """One flag: a field of a Settings class. Its help states effect and unit.
    low, high, above: the range of a number, low <= value <= high and value > above.
    file: a file to be written in an existing folder, with one of these suffixes (() any); or a
          pipe or device of any name, such as /dev/stdout. folder: one to be written.
    flag: False: a positional argument instead.
    only: other flags by name, and with which values of them this one has an effect: (None,)
          without that flag, () with any. Else it is refused (data, task: not in --help)."""
    help += " (required)" if required else ""
    written = folder or file is not None
    return field(default=default, metadata=locals())


def flag_of(name):
    """sgd_epochs -> --sgd-epochs"""
    return "--" + name.replace("_", "-")


def require(good, problem):
    """BadInput with the problem unless `good`."""
    if not good:
        raise BadInput(problem)


def check(good, name, value, need):
    """BadInput that names the flag unless `good`."""
    require(good, f"{flag_of(name)} {value!s:.300}: {need}")


def files_at(paths):
    """Which files and folders these are, whatever leads there: links, another spelling."""
    return {os.stat(path)[1:3] if os.path.isfile(path) or os.path.isdir(path) else path
            for path in paths}


@dataclass(frozen=True)
class Settings:
    """Base of all flags. Checks what each `opt` declares; `parse` checks types and choices."""

    def __post_init__(self):
        self.require([f.name for f in fields(self) if f.metadata["required"]], "the command")
        for f in fields(self):
            value, declared = getattr(self, f.name), f.metadata
            if value is None:
                continue
            if f.type in (int, float):
                low, high, above = (declared[end] for end in ("low", "high", "above"))
                need = [f"above {above}"] * (above > -inf) + [f"at least {low}"] * (low > -inf)
                check(low <= value <= high and value > above, f.name, value,
                      f"must be {' and '.join([*need, f'at most {high}'])}")
            for other, kinds in self.without_effect(f.name):
                remedy = (f"give {flag_of(other)} {' or '.join(kinds)}" if all(kinds) else
                          "give one of the two")
                check(value == f.default, f.name, value, f"has no effect with {flag_of(other)} "
                      f"{getattr(self, other)}; {remedy}" if kinds else
                      f"has no effect without {flag_of(other)}")
            if declared["file"] is not None:
                check(value.parent.is_dir() and not value.is_dir(), f.name, value, "is a folder, "
                      "or its folder does not exist; name a file in an existing folder")
                check(not declared["file"] or value.suffix in declared["file"]
                      or value.exists() and not value.is_file(), f.name, value,
                      f"must end in {', '.join(declared['file'])}")
            if declared["written"]:
                places = [value, *value.parents] if declared["folder"] else [value.parent]
                there = next(filter(os.path.exists, places))
                check(os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK), f.name, value,
                      f"{there} is not a folder that may be written; choose another")

    def without_effect(self, name):
        """The flags with whose values this one has no effect: [(other, kinds), ...] of `only`."""
        only = self.__dataclass_fields__[name].metadata["only"]
        return [(other, kinds) for other, kinds in only.items() if hasattr(self, other) and not (
            getattr(self, other) in kinds if kinds else getattr(self, other) is not None)]

    def check_files(self):
        """BadInput unless what is read exists, and nothing that is written takes its place, or lies
        in a folder that is read; but results may lie in that of a run."""
        kept = [("the embedded world", [TOY], False)]
        for f in sorted(fields(self), key=lambda f: f.metadata["written"]):
            value, written = getattr(self, f.name), f.metadata["written"]
            if value is None or not isinstance(value, Path) and f.name not in MODELS:
                continue                               # predict's --steps may be texts
            path = Path(os.path.realpath(str(value).removeprefix("local-dir:")))
            of_run = f.name in ("checkpoint", "init", "run")
            check(written or f.type is str or value == f.default or path.exists()
                  or str(value) == "timm",             # --init downloads it
                  f.name, value, "no such file or folder; look at its name")
            parts = [path / part for part in RUN_FILES if f.metadata["folder"] or of_run]
            asked = value != f.default or f.metadata["file"] is not None and TOY != value.parent
            for flag, theirs, beside in kept if written and asked else ():
                ours = [path, *parts, *(() if beside else path.parents)]
                check(not files_at(theirs) & files_at(ours), f.name, value, f"is what {flag} reads "
                      "or writes, or lies inside it; nothing is replaced: choose another place")
            kept.append((flag_of(f.name), [path, *parts], written or of_run))

    def require(self, names, reason):
        """BadInput unless all these flags are given."""
        for name in names:
            check(getattr(self, name) is not None, name, "is missing",
                  f"{reason} needs {', '.join(map(flag_of, names))}")

    def default(self, name, value):
        """Set a flag whose default depends on others, unless it was given."""
        if getattr(self, name) is None:
            object.__setattr__(self, name, value)


class Parser(argparse.ArgumentParser):
    """Its errors are one line, `PROG: error: ...`, status 2, without the usage."""

    def error(self, message):
        self.exit(2, f"{self.prog}: error: {message}\n")


def parse(cls, argv=None, command=""):
    """Command line -> cls, or one line and status 2. command: what chose cls; --help shows it."""
    places = [f"[{f.name}]" for f in fields(cls) if not f.metadata["flag"]]
    usage = " ".join(["%(prog)s", *command.split(), *places, "[flags]"])
    parser = Parser(program_name(), usage, cls.__doc__, add_help=False, allow_abbrev=False,
                    formatter_class=functools.partial(argparse.HelpFormatter, max_help_position=33))
    groups = {name: parser.add_argument_group(name) for name in GROUPS}
    kinds = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("data", "task"):
        kinds.add_argument(f"--{name}", nargs="?", default=getattr(cls, name, None))
    chosen, others = vars(kinds.parse_known_args(argv)[0]), {}         # {"--data coin": its flags}
    for f in fields(cls):                              # never type=bool: bool("False") is True
        declared, help = f.metadata, f.metadata["help"]
        if f.default is not None and f.default is not False:
            help += f" [{f.default}]"
        for name, kind in chosen.items():
            allowed = declared["only"].get(name, (kind,))
            if kind and kind not in allowed:
                help = argparse.SUPPRESS
                for other in allowed:
                    others.setdefault(f"--{name} {other}", []).append(flag_of(f.name))
        if not declared["flag"]:
            parser.add_argument(f.name, nargs="?", type=f.type, default=f.default, help=help)
            continue
        kind = {"action": argparse.BooleanOptionalAction} if f.type is bool else {
            "type": f.type, "choices": declared["choices"],
            "metavar": None if declared["choices"] else f.type.__name__.upper()}
        names = [flag_of(name) for name in (f.name, declared["alias"]) if name]
        groups[declared["group"]].add_argument(*names, dest=f.name, default=f.default, help=help,
                                               **kind)
    groups[RUN].add_argument("-h", "--help", action="help", help="this list")
    parser.epilog = " ".join(["Defaults are in brackets.", *(
        f"{kind} adds {', '.join(others[kind])}." for kind in sorted(others))])
    given = sys.argv[1:] if argv is None else argv
    for flag, text in zip(["", *given], given):
        if re.fullmatch("(--[a-z-]*=)?", text):        # of a path it would be this folder
            parser.error(f"{flag} {text!r}: is empty; give a value, or leave the flag out")
    try:
        return cls(**vars(parser.parse_args(argv)))
    except BadInput as error:
        parser.error(str(error))


# --- A command ---
def run(main, cls, argv=None, command=""):
    """Parse, call main(settings), and turn what went wrong into one line on stderr and a status:
    2 for BadInput, OSError, too little memory and a killed process, 1 for FloatingPointError, 130
    for Ctrl-C, 143 for SIGTERM; 141, without a line, if nobody reads the output any more. A bug
    keeps its traceback. Of several processes the first prints."""
    with ending():
        rank, settings = process_number(), parse(cls, argv, command)
        settings.check_files()
        if rank:                                               # tqdm reads it when it is imported
            os.environ["TQDM_DISABLE"], sys.stdout = "1", open(os.devnull, "w")
        sys.stdout.reconfigure(errors="backslashreplace")      # a file's name may be no UTF-8
        main(settings)


@ending()
def dispatch(commands, start):
    """`PROGRAM COMMAND [flags]`, of {command: its class of flags}: start(settings)."""
    given = sys.argv[1] if len(sys.argv) > 1 else "nothing"
    if given in ("-h", "--help"):
        print(f"usage: {program_name()} COMMAND [flags]; COMMAND --help shows the flags\n")
        for name, flags in commands.items():
            print(f"  {name:12}{flags.__doc__}")
        sys.exit(0)
    require(given in commands, f"{given}: not a command; use one of {', '.join(commands)}")
    run(start, commands[given], sys.argv[2:], command=given)


@contextmanager
def quiet():
    """Within it libraries neither log nor warn: their exceptions say the same."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)


# --- Whole files ---
def open_stream(path):
    """An open binary file if `path` is a pipe, a device, or stdout or stderr; else None."""
    for descriptor in (1, 2):              # its own copy would have a position of its own
        with suppress(OSError):
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                print(end="", flush=True)
                return open(os.dup(descriptor), "wb")
    return open(path, "wb") if path.exists() and not path.is_file() else None


def write_atomically(path, write, before=None):
    """Call write(binary file beside `path`), then rename: the new file is whole, or the old stays.
    A pipe is written to as it is; of a link, its file is replaced. before: where the old one goes.
    """
    path = Path(path)
    stream = open_stream(path)
    if stream:
        with stream:
            content = io.BytesIO()                     # a pipe has no positions, as zip files need
            write(content)
            stream.write(content.getvalue())
        return
    path = path if before else Path(os.path.realpath(path))
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "wb") as file:
            write(file)
        end_if_signaled()
        if before and path.exists():
            os.replace(path, before)
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:           # torch's own, after that of a full disk
        error = error.__context__ if isinstance(error.__context__, OSError) else error
        error.filename = getattr(error, "filename", None) or str(path)
        raise error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path, text):
    """A UTF-8 file, written atomically; what UTF-8 cannot hold is escaped."""
    write_atomically(path, lambda file: file.write(text.encode(errors="backslashreplace")))


def write_json(path, content):
    """A JSON file, written atomically; path None: none. FloatingPointError for NaN or infinity."""
    try:
        text = json.dumps(content, indent=2, allow_nan=False)
    except ValueError:
        raise FloatingPointError(f"{path or 'no result'}: not written, because a number is not "
                                 "finite; look for NaN in the data and in the checkpoint") from None
    if path:
        write_text(path, text + "\n")
