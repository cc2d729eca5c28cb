"""train.py with its workers started as told, `python noted.py fork|spawn ...`, and what they read
noted in the files read-PROCESS. A spawned worker runs this file again."""
import multiprocessing
import os
import sys

from toy.source import ToySource

load = ToySource.load


def noted(self, requests, rng=None):
    """ToySource.load, which also writes down the videos."""
    with open(f"read-{os.getpid()}", "a", encoding="utf-8") as file:
        file.writelines(f"{video}\n" for video, _ in requests)
    return load(self, requests, rng)


ToySource.load = noted
if __name__ == "__main__":
    import train
    from support.errors import run
    multiprocessing.set_start_method(sys.argv.pop(1))
    run(train.main, train.parse)
