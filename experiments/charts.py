"""Fig. A: % right step by step, those in the phrase pool beside those held out; curves of runs.

    python -m experiments.charts classify.json forecast.json --out docs/figures/figure-A.png
    python -m experiments.charts --curves runs/a runs/b --out curves.png
"""
import json
from pathlib import Path
from statistics import mean

from evaluation.figures import BLUE, save
from files.lists import read_lines, read_text
from support.arguments import Parser
from support.errors import require, run
from toy.grammar import HELD_OUT, STEPS

ORANGE = "#D55E00"                             # Okabe and Ito's, as BLUE
CURVES = "loss", "xe", "mse", "mc", "match", "match_h"     # of metrics.jsonl; Eqs. 7 to 10


def plot_steps(figure, contents):
    """Fig. A, of JSONs of evaluate.py in the toy world, a panel each."""
    figure.set_size_inches(8, 2.5 * len(contents))
    panels = figure.subplots(len(contents), 1, squeeze=False)[:, 0]
    for axes, content in zip(panels, contents):
        for kind, color in (("in the pool", BLUE), ("held out", ORANGE)):
            bars = {step: p for step, p in zip(STEPS, content["by_class"])
                    if p is not None and (step in HELD_OUT) == (kind == "held out")}
            axes.bar([*bars], [*bars.values()], color=color,
                     label=f"{kind}, mean {mean(bars.values() or [0]):.1f}")
        axes.set(title=content["task"], ylabel="% right", ylim=(0, 125), yticks=(0, 50, 100))
        axes.legend(ncols=2, loc="upper right")
        axes.tick_params("x", rotation=90)


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
    require(bool(args.results) != bool(args.curves), "give JSONs of evaluate.py, or --curves RUN")
    if args.curves:
        return save(args.out, plot_curves, args.curves)
    contents = [json.loads(read_text(path)) for path in args.results]
    require(all(len(content.get("by_class") or []) == len(STEPS) for content in contents), "needed "
            "are JSONs of evaluate.py --task classify or forecast in the toy world")
    save(args.out, plot_steps, contents)


def parse(argv=None):
    """The command line."""
    parser = Parser("Draw Fig. A: % right by step. Or what was logged of runs, with --curves.")
    parser.add_argument("results", type=Path, nargs="*", metavar="JSON", help="of evaluate.py")
    parser.add_argument("--curves", type=Path, nargs="+", metavar="RUN", help="folders of runs")
    parser.add_argument("--out", type=Path, default=Path("chart.png"), help="the picture")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main, parse)
