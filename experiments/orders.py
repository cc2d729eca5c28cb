"""What predicts the next step in real videos: `python -m experiments.orders COIN.json`.

A forecast is the step that most often followed the same context in nine of ten folds of videos (the
first of equals). If the context is new, a shorter one takes its place, and finally none: the most
frequent step of all. A set has no shorter context, since it does not know the last step.
"""
from collections import Counter, defaultdict
from pathlib import Path

from experiments.tables import text_table
from files.lists import load_coin, read_lines
from support.arguments import Parser
from support.errors import run


def read_steps(path):
    """Read the steps of each video in order: of COIN.json, or of a folder of CrossTask's files,
    TASK_VIDEO.csv with lines `step,start s,end s`, where steps are numbered within a task."""
    if not path.is_dir():
        return [tuple(step.label for step in video.steps) for video in load_coin(path)[0]]
    videos = [[(file.name.split("_")[0], *line.split(",")) for _, line in read_lines(file)]
              for file in sorted(path.glob("*_*.csv"))]                # (task, step, start, end)
    return [tuple(row[:2] for row in sorted(video, key=lambda row: float(row[2])))
            for video in videos]


def contexts(steps):
    """Return what is known of the steps so far (n,): {name: [this context, then shorter ones]}."""
    last, two, chosen = ("last", steps[-1]), ("two", steps[-2:]), frozenset(steps)
    return {"last": [last, None], "last two": [two, last, None], "set": [("set", chosen), None],
            "set and last": [(chosen, last), last, None], "sequence": [steps, two, last, None]}


def main(args):
    """Print how many of the next steps each context tells, in percent."""
    videos = [steps for steps in read_steps(args.annotations) if len(steps) > 1]
    asked = [(i % 10, contexts(steps[:n]), steps[n]) for i, steps in enumerate(videos)
             for n in range(1, len(steps))]                # (fold, what is known, next step)
    right, followed = Counter(), [defaultdict(Counter) for _ in range(10)]     # {context: steps}
    for fold, known, step in asked:
        for training in followed[:fold] + followed[fold + 1:]:
            for context in (None, *(chain[0] for chain in known.values())):
                training[context][step] += 1
    for fold, known, step in asked:
        for name, chain in known.items():
            seen = next(followed[fold][context] for context in chain if context in followed[fold])
            right[name] += max(seen, key=seen.get) == step
    numbers = [len(videos), len(asked), *(f"{100 * n / len(asked):.1f}" for n in right.values())]
    print(text_table(["videos", "forecasts", *right], [[*map(str, numbers)]]))


def parse(argv=None):
    """The command line."""
    parser = Parser("What predicts the next step in real videos: % right, in ten folds.")
    parser.add_argument("annotations", type=Path, help="COIN.json, or a folder of TASK_VIDEO.csv")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main, parse)
