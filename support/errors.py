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
    for FloatingPointError (a result that is not finite), 130 for Ctrl-C. A bug has its traceback.
    """
    try:
        return main(parse())
    except KeyboardInterrupt:
        sys.exit(130)
    except (InputError, OSError, FloatingPointError, RuntimeError, MemoryError) as error:
        hint = advice(error)
        if isinstance(error, (RuntimeError, MemoryError)) and hint is None:
            raise
        # An error of a worker process comes with its traceback above the last line.
        line = str(error).strip().split("\n")[-1].removeprefix("support.errors.InputError: ")
        print(f"{program_name()}: error: {line}{'; ' if hint else ''}{hint or ''}", file=sys.stderr)
        sys.exit(1 if isinstance(error, FloatingPointError) else 2)
