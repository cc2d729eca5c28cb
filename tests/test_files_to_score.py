"""From files to a score: videos and captions -> a run -> the same scores as from memory."""
import multiprocessing

from commands import call, read_json
from test_train import same_run


def test_scores_of_files_are_those_of_memory(here, start_method):
    """Catches: pictures, captions or annotations that a file tells otherwise; another teacher or
    order of the clips; --ids ignored; workers that need what only the command has, or that read
    something else if they are spawned."""
    call("toy", "export", "--out", "world", "--train", "16", "--test", "4")
    methods = {"fork", "spawn"} & {*multiprocessing.get_all_start_methods()}
    for method in methods:
        start_method(method)
        call("train.py", "--data", "howto100m", "--size", "small", "--videos", "world/videos",
             "--captions", "world/captions", "--phrases", "world/phrases.txt", "--ids",
             "world/train.txt", "--clip", "local-dir:world/clip", "--tau", "0.045", "--epochs", "1",
             "--workers", "2", "--device", "cpu", "--out", method)
    assert all(same_run(method, "spawn") for method in methods)
    used = read_json("spawn/config.json")["settings"]["used"]
    assert used["list of videos"].startswith("16 (")           # of 20: --ids
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
