"""How a command ends: one line on stderr and a status, or a traceback if it is a bug."""
import sys
from pathlib import Path

from data import Unreadable


class InputError(ValueError):
    """What the user gave cannot be used: what was given, what is needed, what to do."""


def require(good, problem):
    """InputError with the problem unless `good`."""
    if not good:
        raise InputError(problem)


def require_readable(source, unreadable, share, where=None):
    """InputError if more than a share of a source's videos is unreadable, or all are. unreadable:
    {id: reason}; those that --skip leaves out do not count. where: a file that has the reasons."""
    skipped = {name for name, (kind, _) in source.left_out.items() if kind == "skipped"}
    failed = [f"{name}: {reason}" for name, reason in unreadable.items() if name not in skipped]
    count = len({video.name for video in source.videos} - skipped)
    require(len(failed) <= share * count and len(failed) < count,
            f"{len(failed)} of {count} videos are unreadable, more than --max-unreadable {share}; "
            f"{f'all are in {where}; ' if where else ''}repair or remove them; the first, "
            f"{next(iter(failed), 'none is left')}")


def fail(status, problem):
    """End with the line `PROG: error: problem`. For `python -m files`, PROG is files."""
    path = Path(sys.argv[0])
    program = path.parent.name if path.name == "__main__.py" else path.name
    print(f"{program}: error: {problem}", file=sys.stderr)
    sys.exit(status)


def run(main, parse):
    """Call main(parse()) and end: with status 2 for InputError, OSError and a GPU whose memory
    is too small, 1 for FloatingPointError (a result that is not finite), 130 for Ctrl-C. A bug has
    its traceback."""
    try:
        return main(parse())
    except KeyboardInterrupt as stop:
        print(stop, file=sys.stderr)
        sys.exit(130)
    except FloatingPointError as error:
        fail(1, error)
    except (InputError, Unreadable, OSError) as error:
        # An error in a worker process comes with its traceback above the last line.
        fail(2, str(error).strip().split("\n")[-1].removeprefix("support.errors.InputError: "))
    except RuntimeError as error:                  # of CUDA, MPS or XPU
        told = [line for line in str(error).split("\n") if "out of memory" in line]
        if not told:
            raise
        fail(2, f"{told[0]}; use a smaller --micro-batch or --batch")
