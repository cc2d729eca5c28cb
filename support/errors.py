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


def too_many(unreadable, tried, share):
    """Whether more than a share of the videos that were tried is unreadable, or none is left."""
    return unreadable > share * tried or unreadable == tried


def require_readable(unreadable, tried, share, where=None):
    """InputError if `too_many` of the videos that were tried, a number, are unreadable. unreadable:
    {id: reason}. where: a file that has the reasons."""
    if not too_many(len(unreadable), tried, share):
        return
    name, reason = next(iter(unreadable.items()), ("all", "left out"))
    told = f"{len(unreadable)} of {tried} videos are unreadable, more than --max-unreadable {share}"
    if where:
        told += f"; the reasons are in {where}"
    raise InputError(f"{told}; repair or remove them; the first, {name}: {reason}")


def fail(status, problem):
    """End with the line `PROG: error: problem`. For `python -m files`, PROG is files."""
    path = Path(sys.argv[0])
    program = path.parent.name if path.name == "__main__.py" else path.name
    print(f"{program}: error: {problem}", file=sys.stderr)
    sys.exit(status)


def run_command(main, parse):
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
