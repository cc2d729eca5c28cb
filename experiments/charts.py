"""Pictures of runs: `python -m experiments.charts --curves RUN ... | --places F.json ...`."""
import json
from pathlib import Path
from statistics import mean

from evaluation.figures import BLUE, save
from files.lists import read_lines, read_text
from support.arguments import Parser
from support.errors import run

CURVES = "loss", "xe", "mse", "mc", "match", "match_h"     # of metrics.jsonl; Eqs. 7 to 10
PLACES = {                                                 # of by_place, in Okabe and Ito's colors
    "exact": ("exact", dict(color="black", marker="_", markersize=14, linewidth=0.8)),
    "zero_noise": ("h, zero noise", dict(color=BLUE, marker="o", linewidth=2.2, elinewidth=1)),
    "similar": ("similar histories", dict(color="#009E73", marker="^", linestyle=":")),
    "set": ("what the set tells", dict(color="#D55E00", marker="s", linestyle="--", mfc="white"))}


def plot_curves(figure, runs):
    """Draw CURVES of the metrics.jsonl of run folders over epochs, a panel each."""
    figure.set_size_inches(9, 5)
    panels = figure.subplots(2, 3).flatten()
    for folder in runs:
        rows = [json.loads(line) for _, line in read_lines(folder / "metrics.jsonl")]
        epochs = [row["epoch"] for row in rows]
        for axes, name in zip(panels, CURVES):
            axes.plot(epochs, [row.get(name) for row in rows], marker=".", label=folder)
            axes.set(title=name, xlabel="epoch")
    panels[0].legend()


def plot_places(figure, files):
    """Draw % right by how many steps came before, of JSON files of forecasts in the toy world: the
    means over the files, and bars from the lowest to the highest."""
    figure.set_size_inches(5.6, 3.2)                       # 700 pixels wide
    axes, labels = figure.subplots(), []
    runs = [json.loads(read_text(file))["by_place"] for file in files]
    *_, last = places = sorted(runs[0], key=int)
    for name, (label, style) in (of for of in PLACES.items() if runs[0][last].get(of[0])):
        shares = [[of[k][name] for of in runs] for k in places]
        bars = [mean(of) - min(of) for of in shares], [max(of) - mean(of) for of in shares]
        axes.errorbar([*map(int, places)], [*map(mean, shares)], bars, label=label, **style)
        labels.append((mean(shares[-1]), label, style["color"]))
    height = 110.0
    for share, label, color in sorted(labels, reverse=True):       # from the top, 6.5 points apart
        height = min(share, height - 6.5)
        axes.text(int(last) + 0.25, height, label, color=color, va="center")
    axes.set(title="% right", xlabel="steps that came before the one asked for", ylim=(0, 104),
             xticks=[*map(int, places)], xlim=(0.7, int(last) + 1.9))


def main(args):
    save(args.out, plot_curves if args.curves else plot_places, args.curves or args.places)


def parse(argv=None):
    parser = Parser("Draw the curves of runs, or what is right by how many steps came before.")
    one = parser.add_mutually_exclusive_group(required=True).add_argument
    one("--curves", type=Path, nargs="+", metavar="RUN", help="folders of runs")
    one("--places", type=Path, nargs="+", metavar="F.json", help="of evaluate.py, one per seed")
    parser.add_argument("--out", type=Path, default=Path("curves.png"), help="the picture")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main, parse)
