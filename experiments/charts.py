"""Curves of runs: `python -m experiments.charts --curves runs/a runs/b --out curves.png`."""
import json
from pathlib import Path

from evaluation.figures import save
from files.lists import read_lines
from support.arguments import Parser
from support.errors import run

CURVES = "loss", "xe", "mse", "mc", "match", "match_h"     # of metrics.jsonl; Eqs. 7 to 10


def plot_curves(figure, runs):
    """CURVES of the metrics.jsonl of run folders over epochs, a panel each."""
    figure.set_size_inches(9, 5)
    panels = figure.subplots(2, 3).flatten()
    for folder in runs:
        lines = [line for _, line in read_lines(folder / "metrics.jsonl")]
        rows = [json.loads(line) for line in lines if line.endswith("}")]      # one may be cut off
        for axes, name in zip(panels, CURVES):
            points = [(row["epoch"], row[name]) for row in rows if row.get(name) is not None]
            axes.plot(*(zip(*points) if points else ((), ())), marker=".", label=folder)
            axes.set(title=name, xlabel="epoch")
    panels[0].legend()


def main(args):
    """Draw the picture."""
    save(args.out, plot_curves, args.curves)


def parse(argv=None):
    """The command line."""
    parser = Parser("Draw what was logged of several runs: the loss, its terms, match and match_h.")
    parser.add_argument("--curves", type=Path, nargs="+", metavar="RUN", required=True,
                        help="folders of runs")
    parser.add_argument("--out", type=Path, default=Path("curves.png"), help="the picture")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main, parse)
