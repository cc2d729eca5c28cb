"""From files to a score: videos and captions -> a run -> the same scores as from memory."""
import multiprocessing

import pytest

from commands import call, read_json


@pytest.fixture
def spawned():
    """Worker processes are spawned, as on macOS and Windows."""
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn", force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


def test_scores_of_files_are_those_of_memory(here, spawned):
    """Catches: pictures, captions or annotations that a file tells otherwise; another teacher or
    order of the clips; workers that need what only the command has."""
    call("toy", "export", "--out", "world", "--train", "24", "--test", "6")
    call("train.py", "--data", "howto100m", "--size", "small", "--videos", "world/videos",
         "--captions", "world/captions", "--phrases", "world/phrases.txt", "--ids",
         "world/train.txt", "--clip", "local-dir:world/clip", "--tau", "0.045", "--epochs", "4",
         "--workers", "2", "--device", "cpu", "--out", "run")
    files = ("--data", "coin", "--annotations", "world/COIN.json", "--steps", "world/steps.txt",
             "--videos", "world/videos")
    for task in "forecast", "classify":
        scores = []
        for name, flags in ("files", files), ("memory", ("--toy-videos", "6")):
            call("evaluate.py", "--task", task, *flags, "--checkpoint", "run", "--device", "cpu",
                 "--json", f"{name}.json")
            found = read_json(f"{name}.json")
            scores.append([found[key] for key in ("top1", "top5", "by_class", "evaluated")])
        assert scores[0] == scores[1], task
        assert found["evaluated"] > 30
