"""The process of a command: signals, errors, its hold on a folder, and how it ends."""
import fcntl
import os
import re
import signal
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path


from support.errors import InputError as BadInput


TORCHRUN = "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "MASTER_ADDR"   # set by it


def process_number():
    """The number of this process among those of torchrun; 0 without it."""
    given = rank, local, world, port, _ = [os.environ.get(name, "") for name in TORCHRUN]
    if rank in ("", "0") and local in ("", "0") and world in ("", "1"):
        return 0
    if not (re.fullmatch("([0-9]{1,9} ){4}.+", " ".join(given)) and int(rank) < int(world)
            and int(port) < 2 ** 16):
        raise BadInput(f"{', '.join(TORCHRUN)}: the environment holds {' '.join(given)!r:.80}, not "
                       "what torchrun sets; start with torchrun, or unset them")
    return int(rank)


def program_name():
    """The program's name in its messages, such as train.py; of `python -m files` files."""
    path = Path(sys.argv[0])
    return path.parent.name if path.name == "__main__.py" else path.name


# --- Signals and errors ---
came = []                        # 130 for a Ctrl-C, 143 for a SIGTERM that ends the program
locks = {}                       # folder: the descriptor of its lock
MEMORY = ("out of memory", "allocate memory", "not enough memory", "bad_alloc", "map segment",
          "dataloader worker (pid")        # one that was killed
LOST = "gloo", "nccl", "client socket"     # of a connection to another process


def end_by_signal(number, frame):
    """Handle a signal: end here, by KeyboardInterrupt. As C code that calls Python, such as PyAV's,
    may print it and go on, nothing is printed any more, and `end_if_signaled` ends the program."""
    came.append(128 + number)
    sys.excepthook = sys.unraisablehook = lambda *exception: None
    while frame:                                       # nothing may go on with half a module
        if "importlib" in frame.f_code.co_filename:
            os._exit(came[0])
        frame = frame.f_back
    raise KeyboardInterrupt


def end_if_signaled():
    """End the program if a signal came and was swallowed."""
    if came:
        raise KeyboardInterrupt


@contextmanager
def ending():
    """Within it errors and signals end the program as `command.run` says."""
    for name in ("stdin", "stdout", "stderr"):         # closed: no file may take its number
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+"))
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:     # as Ctrl-C is in background jobs
            signal.signal(number, end_by_signal)
    status, line = None, None
    try:
        yield
    except SystemExit as end:
        status = end.code
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:
        status = 141
    except FloatingPointError as error:
        status, line = 1, error
    except (BadInput, OSError) as error:
        status, line = 2, error
    except Exception as error:             # too little memory, which torch may raise anywhere
        said = str(error).lower()
        short = isinstance(error, MemoryError) or any(word in said for word in MEMORY)
        if not short and not any(word in said for word in LOST) and not came:
            raise                          # a bug
        status, line = 2, f"{str(error) or 'out of memory'}; " + (
            "if memory is short, use a smaller --micro-batch or --batch, or fewer --workers, if "
            "the command has them" if short else "has another process ended, and said why?")
    if came:
        status, line = came.pop(), None
    try:
        print(end="", flush=True)
    except OSError as error:               # Python would try again at its end, and complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if not status:
            status, line = (141, None) if isinstance(error, BrokenPipeError) else (2, error)
    with suppress(OSError):
        if line is not None:
            print(f"{program_name()}: error: {' '.join(str(line).split())}", file=sys.stderr)
    if status is not None:
        sys.exit(status)


@dataclass
class Interrupts:
    """Ctrl-C and SIGTERM set `status` (130, 143), and `plan` is done; a second Ctrl-C ends all."""
    plan: str = "this step is finished and saved first"

    def __enter__(self):
        end_if_signaled()
        self.status, self.time = 0, 0.0
        self.before = {number: signal.signal(number, self.note)
                       for number in (signal.SIGINT, signal.SIGTERM)
                       if signal.getsignal(number) is not signal.SIG_IGN}
        return self

    def note(self, number, frame):
        """Handle a signal. One Ctrl-C may arrive twice, sent to the process and to its group."""
        now, again = time.monotonic(), self.status and number == signal.SIGINT
        if again and now - self.time > 0.1 and callable(self.before[number]):
            self.before[number](number, frame)
        if not self.status and os.environ.get("RANK", "0") == "0":
            with suppress(OSError):        # not print: it may have been interrupted itself
                os.write(2, f"\n{program_name()}: {self.plan}; a second Ctrl-C ends at "
                            "once\n".encode())
        self.status, self.time = 128 + number, now

    def __exit__(self, *exception):
        for number, handler in self.before.items():
            signal.signal(number, handler)
        if self.status and not any(exception):
            sys.exit(self.status)


# --- Folders ---
def lock(folder):
    """Hold the folder --out until this process ends; BadInput if another one holds it."""
    folder = os.path.realpath(folder)
    if folder in locks:
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise BadInput(f"--out {folder}: another process is writing there; wait until it has "
                       "ended, or choose another folder") from None
    except OSError:                        # a network's disk without locks: nothing is held
        pass
    locks[folder] = descriptor
