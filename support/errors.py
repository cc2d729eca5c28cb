"""How a command ends: one line on stderr and a status, or a traceback if it is a bug."""
import sys
from pathlib import Path


class InputError(ValueError):
    """What the user gave cannot be used: what was given, what is needed, what to do."""


def require(good, problem):
    """InputError with the problem unless `good`."""
    if not good:
        raise InputError(problem)


def fail(status, problem):
    """End with the line `PROG: error: problem`. For `python -m files`, PROG is files."""
    path = Path(sys.argv[0])
    program = path.parent.name if path.name == "__main__.py" else path.name
    print(f"{program}: error: {problem}", file=sys.stderr)
    sys.exit(status)


def run(main, parse):
    """Call main(parse()) and end: with status 2 for InputError, OSError and too little memory, 1
    for FloatingPointError (a result that is not finite), 130 for Ctrl-C. A bug has its traceback.
    """
    try:
        return main(parse())
    except KeyboardInterrupt as stop:
        print(stop, file=sys.stderr)
        sys.exit(130)
    except FloatingPointError as error:
        fail(1, error)
    except (InputError, OSError) as error:
        # An error in a worker process comes with its traceback above the last line.
        fail(2, str(error).strip().split("\n")[-1].removeprefix("support.errors.InputError: "))
    except (RuntimeError, MemoryError) as error:
        lines = str(error).strip().split("\n")         # of a worker, the last one tells
        first = lines[-1 if lines[0].startswith("Caught ") else 0]
        full = isinstance(error, MemoryError) or "allocate memory" in first
        if full or "out of memory" in first.lower():
            fail(2, f"{first}; the memory is too small; use a smaller --micro-batch or --batch, or "
                 "fewer --workers")
        raise
