"""Charts: curves of training (Eq. 7), open vocabulary (App. D), distributions (Eq. 11).

    python -m experiments.charts training --run runs/pretrain       # the terms of the loss
    python -m experiments.charts distributions --run runs/pretrain  # next steps, sampled and true

Only this file and forecast_figure.py need matplotlib. Sampled values are solid blue and true ones
hatched, so that they differ in print and for every reader. S steps.
"""
import functools
import json
import math
import textwrap
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median_high

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
        import matplotlib.figure
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
    return require().figure.Figure((width, height), layout="constrained")


@styled
def save(figure, path):
    """Write a figure in the format of the suffix, whole or not at all; text stays text in SVG."""
    write_atomically(path, lambda file: figure.savefig(file, format=path.suffix[1:], dpi=125))


def percent(p):
    """A share as text: 0.234 -> "23 %"."""
    return f"{100 * p:.0f} %"


def folded(text, width=15, lines=2):
    """Text as a list of at most `lines` lines of `width` characters, ending in "..." if cut."""
    wrapped = textwrap.wrap(text, width, max_lines=lines, placeholder=" ...")
    return [line.replace("$", r"\$") for line in wrapped]             # $...$ would be a formula


def load_metrics(path):
    """The rows of a run's metrics.jsonl: dicts. BadInput if there are none."""
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: {type(error).__name__}; a run folder of train.py has such a "
                       "file") from None
    if not rows or any(not isinstance(row, dict) or {"step", "epoch", "lr"} - row.keys()
                       for row in rows):
        raise BadInput(f"{path}: no rows of steps; has the run logged a step yet?")
    return rows


def smooth(values, width=5):
    """Medians of up to `width` neighbors, fewer at the ends: list -> list."""
    half = width // 2
    return [median_high(values[max(i - half, 0):i + half + 1]) for i in range(len(values))]


@styled
def plot_training(rows):
    """Figure of the terms of the loss by step: medians of five rows, over the rows themselves.

    rows: of `load_metrics`. A stage begins where `epoch` restarts.
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
    steps, rates = zip(*((row["step"], row["lr"]) for row in rows))
    rate.plot(steps, rates, color="black", linewidth=1)
    losses.set_ylabel("loss")
    rate.set(xlabel="step", ylabel="learning\nrate")
    begins = [(a["step"] + b["step"]) / 2 for a, b in zip(rows, rows[1:])
              if b["epoch"] < a["epoch"]]
    for axes in (losses, rate):
        for step in begins:
            label = "a stage begins" if step == begins[0] else None
            axes.axvline(step, color=GREY, linestyle=":", linewidth=1, label=label)
        axes.set_ylim(bottom=0)
    losses.legend()
    return figure


@styled
def plot_open_vocabulary(bleu, accuracy):
    """Figure of the accuracy of each step by its overlap with the phrases of pre-training.

    Args:
        bleu:     (S,) 0 to 1: the largest BLEU-1 of each step with any phrase of the pool.
        accuracy: {task: (S,) fractions}, NaN for steps that do not occur; one panel for each.
    """
    figure = new_figure(3.6 * len(accuracy) + 0.4, 3.2)
    panels = figure.subplots(1, len(accuracy), squeeze=False, sharey=True)[0]
    for axes, (task, values) in zip(panels, accuracy.items()):
        pairs = [(b, 100 * a) for b, a in zip(bleu, values) if math.isfinite(a)]
        axes.plot(*zip(*pairs), "o", color=BLUE, alpha=0.5, markersize=4, markeredgewidth=0)
        for low, high, name in ((0, NOVEL, "novel"), (NOVEL, 1, "seen")):
            group = [a for b, a in pairs if (b < NOVEL) == (name == "novel")]
            if group:
                level = mean(group)
                axes.plot((low, high), (level, level), color="black", linewidth=2)
                axes.text((low + high) / 2, 103, f"{name}: {len(group)} steps,\n{level:.1f} %",
                          ha="center", va="bottom")
        axes.axvline(NOVEL, color=GREY, linestyle=":", linewidth=1)
        axes.set(xlim=(-0.03, 1.03), ylim=(-3, 103), xlabel="BLEU-1 with the nearest phrase")
        axes.set_title(task, pad=30)
    panels[0].set_ylabel("top-1 of the step, %")
    return figure


@styled
def plot_distributions(forecasts):
    """Figure of sampled versus true next steps, a panel for each forecast.

    forecasts: [(title, names, sampled (S,), true (S,)), ...], shares that sum to 1.
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
        axes.set_xticks((0, 0.5, 1), ("0", "50 %", "100 %"))
        axes.set(xlim=(0, 1), ylim=(len(order) - 0.4, -0.6))
        axes.tick_params(left=False)
        distance = sum(abs(a - b) for a, b in zip(sampled, true)) / 2
        title = [*folded(title, 30, 3), f"total variation {distance:.2f}"]
        axes.set_title("\n".join(title), fontsize=8)
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
