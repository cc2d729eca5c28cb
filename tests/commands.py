"""What the tests of commands share: COIN files made up, commands run in-process."""
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch
from tqdm import tqdm

import evaluate
import predict
import train
import training.run
from experiments import benchmark, charts, reproduce, simulate, tour
from files import __main__ as files_commands, sources
from files.annotations import training_split
from support.command import dispatch, run
from toy import __main__ as toy_commands

SCRIPTS = {"benchmark.py": (benchmark.main, benchmark.BenchmarkSettings),
           "simulate.py": (simulate.main, simulate.SimulateSettings),
           "tour.py": (tour.main, tour.TourSettings),
           "reproduce.py": (reproduce.main, reproduce.ReproduceSettings),
           "evaluate.py": (evaluate.main, evaluate.EvaluateSettings),
           "charts.py": (charts.main, charts.ChartSettings),
           "predict.py": (predict.main, predict.PredictSettings)}
PROGRAMS = {"files": files_commands, "toy": toy_commands}
EPOCHS = ("--sgd-epochs", "0.75", "--epochs", "0.75")                  # TINY: 3 steps of each
TINY = ("--toy-videos", "16", "--batch", "4", *EPOCHS, "--device", "cpu")


def make_coin(folder, D=16, classes=6):
    """12 training videos (2 of validation), 4 of test; "gone" and "unseen" have no row."""
    folder.mkdir(exist_ok=True)
    rng, names = np.random.default_rng(0), [f"v{i}" for i in range(100)]
    names = ([name for name in names if training_split(name) == "train"][:10]
             + [name for name in names if training_split(name) == "validation"][:2]
             + ["t0", "t1", "t2", "t3", "gone", "unseen"])
    database, rows = {}, []
    for i, name in enumerate(names):
        steps = [{"id": str((i + k) % classes + 1), "segment": [20. * k + 5, 20. * k + 15],
                  "label": f"step {(i + k) % classes}"} for k in range(3 + i % 3)]
        database[name] = {"subset": "testing" if name in ("t0", "t1", "t2", "t3", "gone")
                          else "training", "recipe_type": i % 3, "annotation": steps}
        rows += [(name, t) for t in range(0, 110, 10) if name not in ("gone", "unseen")]
    (folder / "COIN.json").write_text(json.dumps({"database": database}, indent=1))
    start, texts = np.array([t for _, t in rows], float), rng.standard_normal((classes, D))
    near = texts[rng.integers(classes, size=len(rows))] + .5 * rng.standard_normal((len(rows), D))
    np.savez(folder / "features.npz", video=np.array([name for name, _ in rows]), start=start,
             end=start + 10, embedding=near.astype(np.float16))
    np.savez(folder / "texts.npz", names=np.array([f"step {i}" for i in range(classes)]),
             embeddings=texts.astype(np.float32))


def coin_flags(folder="coin"):
    """The flags of a folder of `make_coin`."""
    return ("--data", "coin", "--annotations", f"{folder}/COIN.json", "--features",
            f"{folder}/features.npz", "--text-embeddings", f"{folder}/texts.npz")


COIN = *coin_flags(), "--sgd-epochs", "0", "--epochs", "3", "--device", "cpu"      # 3 steps


def log_and_save_every(steps, patch):
    """A row of metrics and a checkpoint after every so many steps."""
    for name in ("LOG_EVERY", "SAVE_EVERY"):
        patch.setattr(training.run, name, steps)


# --- Commands ---
def call(program, *argv):
    """Run a script's main in this process, by its command line; no file is remembered."""
    sources.read_features.cache_clear()
    sys.argv, before = [f"/somewhere/{program}"], sys.argv
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        if program in PROGRAMS:                                # their commands read sys.argv
            sys.argv += argv
            return dispatch(PROGRAMS[program].COMMANDS, PROGRAMS[program].start)
        main, flags = train.command_of(argv) if program == "train.py" else SCRIPTS[program]
        return run(main, flags, list(argv))
    finally:
        sys.argv = before
        for number, handler in handlers.items():
            signal.signal(number, handler)


def measure(*flags):
    """The JSON that evaluate.py writes, strictly; of six videos, where it is the embedded world."""
    few = () if "--data" in flags else ("--toy-videos", "6")
    call("evaluate.py", *few, "--device", "cpu", *flags, "--json", "measured.json")
    return read_json("measured.json")


def struck(fault, owner, name, at, program, *argv):
    """`call` in a copy of this process, with a fault when owner.name is called -> its exit code.

    fault: a signal, which is sent to the process and its group, as a terminal does; or a callable
           in place of owner.name, which gets it and its arguments.
    at:    the number of the call, from 1; or a callable that tells from its arguments.
    98 is a traceback, 99 that owner.name was called again after a signal."""
    def until_struck():
        os.setpgid(0, 0)
        tqdm.set_lock(threading.RLock())               # its own: a kill leaves it locked for good
        signal.signal(signal.SIGINT, signal.default_int_handler)  # none in a background job
        group, calls, whole = os.getpid(), itertools.count(1), getattr(owner, name)
        done = []

        def strike(*args, **kwargs):
            this = next(calls)
            if done and not callable(fault) and os.getpid() == group:
                os._exit(99)
            if at(*args) if callable(at) else this == at:
                done.append(True)
                if callable(fault):
                    return fault(whole, *args, **kwargs)
                subprocess.Popen(["kill", f"-{fault}", "--", f"-{group}"],
                                 start_new_session=True).wait()
            return whole(*args, **kwargs)
        setattr(owner, name, strike)
        try:
            call(program, *argv)
        except Exception:
            traceback.print_exc()
            os._exit(98)
    process = multiprocessing.get_context("fork").Process(target=until_struck)
    process.start()
    timer = threading.Timer(150, process.kill)
    timer.start()
    process.join()                                     # with a timeout it waits for workers as well
    timer.cancel()
    return process.exitcode


def fails(capsys, status, program, *argv):
    """The one line of stderr that a command ends with; progress bars only before a late failure."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        call(program, *argv)
    err = capsys.readouterr().err
    assert end.value.code == status and err.endswith("\n")
    line = err.rstrip("\n").split("\n")[-1].split("\r")[-1]
    assert line.startswith(f"{program}: error: ") and err.count("error: ") == 1
    if status == 2:
        assert err == line + "\n"
    return line


def randomized(model, std):
    """The model with every parameter random: no bias is 0, no gain of a norm is 1."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return model


def flip(path, position):
    """Damage: another bit of the byte at a position of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def draw(*shape, seed=0):
    """Standard normal numbers, float64."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# --- What they wrote ---
def read_json(path):
    """Strict JSON: no NaN, no Infinity."""
    return json.loads(Path(path).read_text(), parse_constant=lambda text: pytest.fail(text))


def read_rows(out):
    """metrics.jsonl of a run, strictly, without the column that depends on the clock."""
    rows = [json.loads(line, parse_constant=lambda text: pytest.fail(text))
            for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]
    return [{name: row[name] for name in row if name != "clips_per_s"} for row in rows]


def same_run(a, b):
    """Whether two runs have the same rows and, bit for bit, the same weights and momenta."""
    ours, theirs = (torch.load(Path(out) / "checkpoint.pt", weights_only=True) for out in (a, b))
    tensors = [[*content["model"].values(), *(value for entry in content["optimizer"][
        "state"].values() for value in entry.values())] for content in (ours, theirs)]
    return (read_rows(a) == read_rows(b) and ours["step"] == theirs["step"]
            and len(tensors[0]) == len(tensors[1]) and all(map(torch.equal, *tensors)))
