"""Charts: curves of training, open vocabulary, distributions.

    python -m experiments.charts training --run runs/pretrain       # the terms of the loss
    python -m experiments.charts distributions --run runs/pretrain  # next steps, sampled and true

    function              shows                                               paper
    plot_training         the terms of the loss by step, and the stages       Eq. 7
    plot_open_vocabulary  accuracy of steps by their BLEU-1 with the pool     App. D, the chart
    plot_distributions    sampled versus true next steps                      Eq. 11
    S steps, M samples.

The picture of one video, Fig. 3, is in forecast_figure.py. Only these two files need matplotlib
(`pip install matplotlib`). Sampled values are solid blue and true ones hatched, so that they differ
in print and for every reader.
"""
import functools
import json
import math
import statistics
import textwrap
from dataclasses import dataclass
from pathlib import Path

from experiments.paper_tables import NOVEL
from support.command import PICTURES, WHAT, BadInput, Settings, opt, run, write_atomically

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#007A5A", "#666666"     # Okabe and Ito's, darker
TRUE = {"facecolor": "white", "edgecolor": "black", "hatch": "/////", "linewidth": 0.6}
STYLE = {"font.size": 8, "axes.titlesize": 10, "axes.titlelocation": "left", "axes.labelsize": 9,
         "xtick.labelsize": 8, "ytick.labelsize": 8, "legend.fontsize": 8, "legend.frameon": False,
         "figure.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False,
         "svg.fonttype": "none"}                                           # sizes in points
NEXT = 6                      # next steps that a figure has room for
PANELS, SAMPLES = 6, 200      # forecasts of plot_distributions, Monte Carlo samples of each


@dataclass(frozen=True)
class ChartSettings(Settings):
    """Draw training curves, or next steps sampled and true."""
    what: str = opt("training: curves of RUN/metrics.jsonl; distributions: next steps, sampled and "
                    "true, in the embedded world", choices=("training", "distributions"))
    run: Path = opt("the run folder", Path("runs/pretrain"), WHAT)
    out: Path = opt("file to write: .png, .pdf or .svg; default WHAT.png", None, file=PICTURES)
    seed: int = opt("distributions: of the noise, and the first of six test videos", 0, low=0,
                    high=2 ** 32 - 1)
    device: str = opt("auto: a CUDA GPU if there is one", "auto")

    def __post_init__(self):
        self.default("out", Path(f"{self.what}.png"))
        super().__post_init__()


def require():
    """BadInput unless matplotlib is installed."""
    try:
        import matplotlib
    except ImportError:
        raise BadInput("figures need matplotlib: pip install matplotlib") from None
    return matplotlib


def styled(draw):
    """Decorator: within the function matplotlib draws in STYLE."""
    @functools.wraps(draw)
    def draw_in_style(*args):
        with require().rc_context(STYLE):
            return draw(*args)
    return draw_in_style


def new_figure(width, height):
    """An empty figure, sides in inches."""
    from matplotlib.figure import Figure
    return Figure((width, height), layout="constrained")


@styled
def save(figure, path):
    """Write a figure in the format of the suffix, whole or not at all; text stays text in SVG."""
    write_atomically(path, lambda file: figure.savefig(file, format=path.suffix[1:], dpi=125))


def percent(p):
    """0.234 -> 23 %"""
    return f"{100 * p:.0f} %"


def folded(text, width=15, lines=2):
    """Text as a list of at most `lines` lines of `width` characters, ending in "..." if cut.

    Dollar signs are escaped: matplotlib would read a formula between two.
    """
    wrapped = textwrap.wrap(text, width, max_lines=lines, placeholder=" ...")
    return [line.replace("$", r"\$") for line in wrapped]


def load_metrics(path):
    """The rows of a run's metrics.jsonl: dicts. BadInput if there are none."""
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: {type(error).__name__}; a run folder of train.py has such a "
                       "file") from None
    if not rows or not all(isinstance(row, dict) and {"step", "epoch", "lr"} <= row.keys()
                           for row in rows):
        raise BadInput(f"{path}: no rows of steps; has the run reached its first --log-every?")
    return rows


def smooth(values, width=5):
    """Medians of up to `width` neighbors, fewer at the ends: list -> list."""
    half = width // 2
    return [statistics.median_high(values[max(i - half, 0):i + half + 1])
            for i in range(len(values))]


@styled
def plot_training(rows):
    """The terms of the loss by step: the median of five rows, over the rows themselves.

    A stage begins where `epoch` restarts. rows: of `load_metrics`. Returns: matplotlib Figure.
    """
    figure = new_figure(7, 3.6)
    losses, rate = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    for name, label, color, style in (("xe", "L_XE, clips", BLUE, "-"),
                                      ("mc", "L_MC, missing clip", ORANGE, "--"),
                                      ("mse", "L_MSE", GREEN, "-.")):
        known = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
        if known:
            steps, values = zip(*known)
            losses.plot(steps, values, color=color, alpha=0.25, linewidth=0.8)
            losses.plot(steps, smooth(values), style, color=color, linewidth=1.6, label=label)
    rate.plot([row["step"] for row in rows], [row["lr"] for row in rows], color="black",
              linewidth=1)
    losses.set_ylabel("loss")
    rate.set(xlabel="step", ylabel="learning\nrate")
    begins = [(a["step"] + b["step"]) / 2 for a, b in zip(rows, rows[1:])
              if b["epoch"] < a["epoch"]]
    for axes in (losses, rate):
        for i, step in enumerate(begins):
            axes.axvline(step, color=GREY, linestyle=":", linewidth=1,
                         label="a stage begins" if i == 0 else None)
        axes.set_ylim(bottom=0)
    losses.legend()
    return figure


@styled
def plot_open_vocabulary(bleu, accuracy):
    """Accuracy of each step by its overlap with the phrases of pre-training (the paper's chart).

    Args:
        bleu:     (S,) 0 to 1: the largest BLEU-1 of each step with any phrase of the pool.
        accuracy: {task: (S,) fractions}, NaN for steps that do not occur; one panel for each.
    Returns: matplotlib Figure; its lines are the means of novel steps (below 0.7, as in the paper)
             and of the others.
    """
    figure = new_figure(3.6 * len(accuracy) + 0.4, 3.2)
    panels = figure.subplots(1, len(accuracy), squeeze=False, sharey=True)[0]
    for axes, (task, values) in zip(panels, accuracy.items()):
        pairs = [(b, 100 * a) for b, a in zip(bleu, values) if math.isfinite(a)]
        axes.plot(*zip(*pairs), "o", color=BLUE, alpha=0.5, markersize=4, markeredgewidth=0)
        for low, high, name in ((0, NOVEL, "novel"), (NOVEL, 1.0001, "seen")):
            group = [a for b, a in pairs if low <= b < high]
            if group:
                mean = sum(group) / len(group)
                axes.plot((low, min(high, 1)), (mean, mean), color="black", linewidth=2)
                axes.text((low + min(high, 1)) / 2, 103, f"{name}: {len(group)} steps,\n"
                          f"{mean:.1f} %", ha="center", va="bottom")
        axes.axvline(NOVEL, color=GREY, linestyle=":", linewidth=1)
        axes.set(xlim=(-0.03, 1.03), ylim=(-3, 103))
        axes.set_xlabel("BLEU-1 with the nearest phrase")
        axes.set_title(task, pad=30)
    panels[0].set_ylabel("top-1 of the step, %")
    return figure


@styled
def plot_distributions(forecasts):
    """Sampled versus true next steps, a panel for each forecast.

    Args:    forecasts: [(title, names, sampled (S,), true (S,)), ...], shares that sum to 1.
    Returns: matplotlib Figure.
    """
    rows = math.ceil(len(forecasts) / 3)
    figure = new_figure(8, 2.2 * rows)
    panels = figure.subplots(rows, 3, squeeze=False).ravel()
    for axes, (title, names, sampled, true) in zip(panels, forecasts):
        order = sorted(range(len(names)), key=lambda s: -max(sampled[s], true[s]))[:NEXT]
        places = range(len(order))
        axes.barh([i - 0.2 for i in places], [sampled[s] for s in order], 0.4, color=BLUE,
                  label="sampled")
        axes.barh([i + 0.2 for i in places], [true[s] for s in order], 0.4, label="true", **TRUE)
        axes.set_yticks(places, [names[s] for s in order])
        axes.set(xlim=(0, 1), xticks=(0, 0.5, 1), ylim=(len(order) - 0.4, -0.6))
        axes.set_xticklabels(("0", "50 %", "100 %"))
        axes.tick_params(left=False)
        distance = sum(abs(a - b) for a, b in zip(sampled, true)) / 2
        axes.set_title("\n".join([*folded(title, 30, 3),
                                  f"total variation {distance:.2f}"]), fontsize=8)
    for axes in panels[len(forecasts):]:
        axes.axis("off")
    panels[0].legend(loc="lower right")
    return figure


def main(settings):
    """Draw what was asked for."""
    from evaluation.prediction import toy_distributions
    from support.device import pick_device
    require()
    if settings.what == "training":
        figure = plot_training(load_metrics(settings.run / "metrics.jsonl"))
    else:
        figure = plot_distributions(toy_distributions(
            settings.run, pick_device(settings.device), SAMPLES,
            range(settings.seed, settings.seed + PANELS)))
    save(figure, settings.out)
    print(settings.out)


if __name__ == "__main__":
    run(main, ChartSettings)
