"""Pictures of runs: `python -m experiments.charts --curves RUN ... | --places F.json ... | --claims
RESULTS.json`."""
import json
from pathlib import Path
from statistics import mean

from evaluation.figures import BLUE, save
from experiments.tables import TABLES
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


def plot_claims(figure, file):
    """Draw the difference of each claim of tables.toml, in points, with its 95% margin, from
    experiments/results.json. Those that are held are blue."""
    figure.set_size_inches(8, 4)
    axes, results = figure.subplots(), json.loads(read_text(file))
    claims = [(label, results[f"{a} - {b}"]) for label, a, b in TABLES["claims"]["rows"]]
    for place, (_, found) in enumerate(claims):
        color = BLUE if found["verdict"] == "held" else "#767676"
        axes.errorbar(found["difference"], place, xerr=found["margin"], fmt="o", color=color)
    axes.axvline(0, color="black", linewidth=0.6)
    axes.set_yticks(range(len(claims)), [label.partition(" (")[0] for label, _ in claims])
    axes.invert_yaxis()
    axes.set(title="difference in points, and its 95% margin; blue: held")


def main(args):
    """Draw the picture."""
    draw, data = ((plot_curves, args.curves) if args.curves else
                  (plot_places, args.places) if args.places else (plot_claims, args.claims))
    save(args.out, draw, data)


def parse(argv=None):
    """The command line."""
    parser = Parser("Draw curves of runs, what is right by place, or the differences of claims.")
    one = parser.add_mutually_exclusive_group(required=True).add_argument
    one("--curves", type=Path, nargs="+", metavar="RUN", help="folders of runs")
    one("--places", type=Path, nargs="+", metavar="F.json", help="of evaluate.py, one per seed")
    one("--claims", type=Path, metavar="RESULTS.json", help="as tables.py writes it")
    parser.add_argument("--out", type=Path, default=Path("curves.png"), help="the picture")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main, parse)
