"""From files to a score: videos and captions -> a run -> the same scores as from memory."""
import multiprocessing
import os
import signal

import pytest

from commands import call, fails, read_json
from files import sources
from test_train import same_run


TRAIN = ("--data", "howto100m", "--size", "small", "--videos", "world/videos", "--captions",
         "world/captions", "--phrases", "world/phrases.txt", "--ids", "world/train.txt", "--clip",
         "local-dir:world/clip", "--tau", "0.045", "--epochs", "1", "--device", "cpu")


def test_scores_of_files_are_those_of_memory(here, start_method):
    """Catches: pictures, captions or annotations that a file tells otherwise; another teacher or
    order of the clips; --ids ignored; workers that need what only the command has, or that read
    something else if they are spawned."""
    call("toy", "export", "--out", "world", "--train", "16", "--test", "4")
    methods = {"fork", "spawn"} & {*multiprocessing.get_all_start_methods()}
    for method in methods:
        start_method(method)
        call("train.py", *TRAIN, "--workers", "2", "--out", method)
    assert all(same_run(method, "spawn") for method in methods)
    used = read_json("spawn/config.json")["settings"]["used"]
    assert used["videos"].startswith("16 (")           # of 20: --ids
    files = ("--data", "coin", "--annotations", "world/COIN.json", "--steps", "world/steps.txt",
             "--videos", "world/videos")
    for task in "forecast", "classify":
        scores = []
        for name, flags in ("files", files), ("memory", ("--toy-videos", "4")):
            call("evaluate.py", "--task", task, *flags, "--checkpoint", "spawn", "--device", "cpu",
                 "--json", f"{name}.json")
            found = read_json(f"{name}.json")
            scores.append([found[key] for key in ("top1", "top5", "by_class", "evaluated")])
        assert scores[0] == scores[1], task
        assert found["evaluated"] > 20


def test_a_run_goes_on_without_a_video_that_kills_its_worker(here, start_method, monkeypatch,
                                                             capsys):
    """Catches: a run that no resuming can save, since its draws are fixed; a video left out that
    moves the draws of the others, or is opened, or is not listed."""
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("what is patched must hold in the worker")
    start_method("fork")
    call("toy", "export", "--out", "world", "--train", "9", "--test", "1")
    read = sources.read_frames

    def kill(path, *args):
        if path.stem in ("train_00002", "test_00000"):
            os.kill(os.getpid(), signal.SIGKILL)
        return read(path, *args)
    monkeypatch.setattr(sources, "read_frames", kill)
    line = fails(capsys, "train.py", *TRAIN, "--workers", "1", "--out", "run")
    assert "while it read train_00002 (leave it out with --skip train_00002)" in line
    call("train.py", *TRAIN, "--workers", "1", "--out", "run", "--resume", "--skip", "train_00002")
    assert read_json("run/unreadable.json") == {"train_00002": sources.SKIPPED}
    assert read_json("run/config.json")["settings"]["used"]["videos"].startswith("9 (")
    line = fails(capsys, "evaluate.py", "--data", "coin", "--annotations", "world/COIN.json",
                 "--videos", "world/videos", "--checkpoint", "run", "--workers", "1")
    assert "a worker process was killed" in line and "while it read test_00000; --workers" in line
