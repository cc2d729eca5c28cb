"""How a command ends: one line on stderr and a status, or a traceback if it is a bug."""
import sys
from pathlib import Path


class InputError(ValueError):
    """What the user gave cannot be used. The message says what was given, what is needed, and what
    to do; the program ends with it and status 2."""


def require(good, problem):
    """InputError with the problem unless `good`."""
    if not good:
        raise InputError(problem)


def program_name():
    """The program's name in its messages, such as train.py; of `python -m files`, files."""
    path = Path(sys.argv[0])
    return path.parent.name if path.name == "__main__.py" else path.stem + path.suffix


def last_line(error):
    """An error in one line. From a worker process it comes with a traceback above it."""
    line = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
    return line.removeprefix("support.errors.InputError: ")


def advice(error):
    """What to do about a RuntimeError or MemoryError of torch, in words; None if it is a bug."""
    text = str(error).lower()
    if "dataloader worker" in text:
        return "a worker process was killed, perhaps for its memory; use fewer --workers"
    if isinstance(error, MemoryError) or "out of memory" in text or "allocate memory" in text:
        return "the memory is too small; use a smaller --micro-batch or --batch"
    return None


def run(main, parse):
    """Call main(parse()) and end: with status 2 for InputError, OSError and too little memory, 1
    for FloatingPointError (a result that is not finite), 130 for Ctrl-C."""
    try:
        main(parse())
    except KeyboardInterrupt:
        sys.exit(130)
    except (InputError, OSError, FloatingPointError) as error:
        print(f"{program_name()}: error: {last_line(error)}", file=sys.stderr)
        sys.exit(1 if isinstance(error, FloatingPointError) else 2)
    except (RuntimeError, MemoryError) as error:
        if advice(error) is None:
            raise
        print(f"{program_name()}: error: {last_line(error)}; {advice(error)}", file=sys.stderr)
        sys.exit(2)
