"""Fig. A: % right step by step, those in the phrase pool beside those held out.

    python -m experiments.charts classify.json forecast.json --out docs/figures/figure-A.png
"""
import json
from pathlib import Path
from statistics import mean

from evaluation.figures import BLUE, save
from files.lists import read_text
from support.arguments import Parser
from support.errors import require, run
from toy.grammar import HELD_OUT, STEPS

ORANGE = "#D55E00"                             # Okabe and Ito's, as BLUE


def plot_steps(figure, contents):
    """Fig. A, of JSONs of evaluate.py in the embedded world, a panel each."""
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


def main(args):
    """Draw the picture."""
    contents = [json.loads(read_text(path)) for path in args.results]
    require(all(len(content.get("by_class") or []) == len(STEPS) for content in contents), "needed "
            "are JSONs of evaluate.py --task classify or forecast in the embedded world")
    save(args.out, plot_steps, contents)


def parse(argv=None):
    """The command line."""
    parser = Parser("Draw Fig. A: % right by step.")
    parser.add_argument("results", type=Path, nargs="+", metavar="JSON", help="of evaluate.py")
    parser.add_argument("--out", type=Path, default=Path("figure-A.png"), help="the picture")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main, parse)
