"""Charts: claims of results.md as bars, and steps one by one (Fig. A).

    python -m experiments.charts --claims docs/figures --steps classify.json figure-A.png
"""
import json
from pathlib import Path
from statistics import mean

from evaluation.figures import BLUE, TRUE, save
from experiments import tables
from files.lists import read_text
from support.arguments import Parser
from support.errors import require, run
from toy.grammar import HELD_OUT, STEPS

ORANGE = "#D55E00"                             # Okabe and Ito's, as BLUE


def plot_claim(figure, title, lines):
    """Bars of means over seeds, with a dot for each: lines [(label, {seed: % right}), ...]; hatched
    if the label begins with "exact"."""
    figure.set_size_inches(5, 0.7 + 0.34 * len(lines))
    figure.suptitle(title, x=0.01, ha="left")
    axes = figure.subplots()
    for place, (label, values) in enumerate(lines):
        seeds, style = [*values.values()], {"color": BLUE, "alpha": 0.6}
        axes.barh(place, mean(seeds), 0.62, **(TRUE if label.startswith("exact") else style))
        axes.plot(seeds, [place] * len(seeds), "k.", markersize=4)
        axes.text(max(seeds), place, f"   {mean(seeds):.1f}", va="center")
    axes.set_yticks(range(len(lines)), [label for label, _ in lines])
    axes.set(ylim=(len(lines) - 0.5, -0.5), xlabel="% right on test videos; a dot is a seed")
    axes.margins(x=0.15)


def plot_steps(figure, content):
    """Fig. A: % right by step, of the JSON of a classification in the embedded world."""
    figure.set_size_inches(8, 2.6)
    axes = figure.subplots()
    for kind, color in (("seen", BLUE), ("held-out", ORANGE)):
        bars = {step: p for step, p in zip(STEPS, content["by_class"])
                if p is not None and (step in HELD_OUT) == (kind == "held-out")}
        axes.bar([*bars], [*bars.values()], color=color,
                 label=f"{kind} steps, mean {mean(bars.values() or [0]):.1f}")
    axes.set(ylabel="% right", ylim=(0, 120), yticks=(0, 50, 100))
    axes.legend(ncols=2, loc="upper right")
    axes.tick_params("x", rotation=90)


def main(args):
    """Draw a PNG for each claim of tables.toml, Fig. A, or both."""
    if args.steps:
        content = json.loads(read_text(args.steps[0]))
        require(len(content.get("by_class") or []) == len(STEPS), f"{args.steps[0]}: needed is the "
                "JSON of evaluate.py --task classify, zero-shot in the embedded world")
        save(args.steps[1], plot_steps, content)
    if args.claims:
        results = json.loads(read_text(tables.ROOT / "experiments/results.json"))
        for name, claim in tables.CLAIMS.items():
            lines = [(label, results[cell]) for label, cell in claim["rows"] if cell in results]
            require(lines, f"results.json: no run behind {name}; make it with experiments.tables")
            save(args.claims / f"{name}.png", plot_claim, claim["title"], lines)


def parse(argv=None):
    """The command line."""
    parser = Parser("Draw the claims of results.md, or Fig. A: % right by step.")
    parser.add_argument("--claims", type=Path, help="folder to write them to")
    parser.add_argument("--steps", type=Path, nargs=2, metavar=("JSON", "PICTURE"),
                        help="the JSON of evaluate.py --task classify, and the file to write")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main, parse)
