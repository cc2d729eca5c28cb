"""What predicts the next step in real videos: `python -m experiments.orders COIN.json`.

A forecast is the step that most often followed the same context in nine of ten folds of videos (the
first of equals). If the context is new, a shorter one takes its place, and finally none: the most
frequent step of all. A set has no shorter context, since it does not know the last step.
"""
from collections import Counter, defaultdict
from operator import itemgetter
from pathlib import Path

from experiments.tables import text_table
from files.lists import load_coin
from support.arguments import Parser
from support.errors import run_command
from support.read import read_lines

FOLDS = 10                # of the videos, one of which is asked


def read_steps(path):
    """Read the steps of each video in order: of COIN.json, or of a folder of CrossTask's files,
    TASK_VIDEO.csv with lines `step,start s,end s`, where steps are numbered within a task."""
    videos = []
    if not path.is_dir():
        for video in load_coin(path).videos:
            videos.append(tuple(step.label for step in video.steps))
        return videos
    for file in sorted(path.glob("*_*.csv")):
        task, rows = file.name.split("_")[0], []
        for _, line in read_lines(file):
            step, start, _ = line.split(",")
            rows.append((float(start), (task, step)))
        rows.sort(key=itemgetter(0))
        videos.append(tuple(step for _, step in rows))
    return videos


def contexts(steps):
    """Return what is known of the steps so far (n,): {name: [this context, then shorter ones]}."""
    last, two, chosen = ("last", steps[-1]), ("two", steps[-2:]), frozenset(steps)
    return {"last": [last, None], "last two": [two, last, None], "set": [("set", chosen), None],
            "set and last": [(chosen, last), last, None], "sequence": [steps, two, last, None]}


def forecasts_of(videos):
    """Return all forecasts: [(fold, what is known, next step), ...]."""
    asked = []
    for i, steps in enumerate(videos):
        for n in range(1, len(steps)):
            asked.append((i % FOLDS, contexts(steps[:n]), steps[n]))
    return asked


def count_followers(asked):
    """Return how often each step followed each context in all folds but one, for each fold that is
    left out: [{context: {step: count}}, ...]."""
    followed = [defaultdict(Counter) for _ in range(FOLDS)]
    for fold, known, step in asked:
        longest = [chain[0] for chain in known.values()]
        for left_out in range(FOLDS):
            if left_out != fold:
                for context in [None] + longest:           # None: no context
                    followed[left_out][context][step] += 1
    return followed


def main(args):
    """Print how many of the next steps each context tells, in percent."""
    videos = [steps for steps in read_steps(args.annotations) if len(steps) > 1]
    asked = forecasts_of(videos)
    followed, right = count_followers(asked), Counter()
    for fold, known, step in asked:
        for name, chain in known.items():
            context = next(context for context in chain if context in followed[fold])
            counts = followed[fold][context]
            right[name] += max(counts, key=counts.get) == step
    shares = [f"{100 * count / len(asked):.1f}" for count in right.values()]
    row = [str(len(videos)), str(len(asked))] + shares
    print(text_table(["videos", "forecasts"] + list(right), [row]))


def parse(argv=None):
    """The command line."""
    parser = Parser("What predicts the next step in real videos: % right, in ten folds.")
    parser.add_argument("annotations", type=Path, help="COIN.json, or a folder of TASK_VIDEO.csv")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run_command(main, parse)
