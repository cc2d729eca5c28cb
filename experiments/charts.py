"""Charts: curves of training (Eq. 7), a forecast (Fig. 3).

    python -m experiments.charts --run runs/pretrain                # the terms of the loss

Only this file needs matplotlib. Sampled values are solid blue, true ones hatched.
"""
import functools
import json
import sys
import textwrap
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median_high

from support.command import PICTURES, WHAT, BadInput, Settings, opt, quiet, run, write_atomically

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#007A5A", "#666666"     # Okabe and Ito's, darker
TRUE = {"facecolor": "white", "edgecolor": "black", "hatch": "/////", "linewidth": 0.6}
STYLE = {"font.size": 8, "axes.titlesize": 10, "axes.titlelocation": "left", "axes.labelsize": 9,
         "xtick.labelsize": 8, "ytick.labelsize": 8, "legend.fontsize": 8, "legend.frameon": False,
         "figure.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False,
         "svg.fonttype": "none"}                                           # sizes in points
NEXT = 6                      # next steps that a figure has room for
LEAVES = 7                    # futures that a figure has room for
BOX = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": BLUE, "linewidth": 0.8}


@dataclass(frozen=True)
class ChartSettings(Settings):
    """Draw the curves of a training run."""
    run: Path = opt("the run folder, with metrics.jsonl", Path("runs/pretrain"), WHAT)
    out: Path = opt("file to write: .png, .pdf or .svg", Path("training.png"), file=PICTURES)


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


def choose_fonts(figure):
    """Add installed fonts until they have all letters drawn; one that none has becomes a box."""
    texts, fonts = figure.findobj(require().text.Text), require().font_manager.fontManager.ttflist
    absent, families = {ord(c) for text in texts for c in text.get_text() if c.isprintable()}, []
    for font in sorted(fonts, key=lambda f: (f.name != "DejaVu Sans", f.style, f.weight != 400)):
        face = require().ft2font.FT2Font(font.fname)
        if face.scalable and "Last Resort" not in font.name and absent & face.get_charmap().keys():
            absent -= face.get_charmap().keys()
            families.append(font.name)
        if not absent:
            break
    for text in texts:
        text.set_fontfamily(families or None)
    if absent:
        print(f"note: no installed font has {len(absent)} of the letters drawn, such as "
              f"{chr(min(absent))}; the figure shows boxes", file=sys.stderr)


@styled
def save(figure, path):
    """Write a figure in the format of the suffix, whole or not at all; text stays text in SVG."""
    choose_fonts(figure)
    kind = path.suffix[1:] or "png"
    with quiet():                                      # matplotlib warns of each such letter
        write_atomically(path, lambda file: figure.savefig(file, format=kind, dpi=125))


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

    rows: of `load_metrics`. A stage begins where `epoch` falls.
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


# --- One forecast, as in Fig. 3: N windows, H steps of a future ---
@styled
def plot_forecast(content, pictures, painted=None):
    """Figure: observed frames, next steps as bars, futures as a tree, key frames if there are any.

    Args:
        content:  predict.py's JSON content, with or without "truth".
        pictures: (N, 3, height, width) uint8, one of each window.
        painted:  {step: (3, height, width) uint8} of keyframes.py, or None.
    """
    height, width = pictures.shape[2:]
    sides = 2.7, 1.325 * max([4] + [len(future["steps"]) + 1 for future in content["futures"]])
    rows = [(sum(sides) - 0.3) / len(pictures) * height / width + 0.8]
    if content["next"]:
        drawn = content["futures"][:LEAVES]
        lines = max(len(folded(step)) for future in drawn for step in future["steps"])
        rows.append(max(2.0, 0.3 + len(drawn) * (0.14 * lines + 0.28)))
    rows += [2.2] * bool(painted)                                              # all in inches
    figure = new_figure(sum(sides), sum(rows))
    parts = figure.subfigures(len(rows), 1, height_ratios=rows, squeeze=False)[:, 0]
    plot_strip(parts[0], content, pictures)
    if content["next"]:
        bars, tree = parts[1].subplots(1, 2, width_ratios=sides)
        plot_bars(bars, content)
        plot_tree(tree, content)
    if painted:
        parts[-1].suptitle("Painted from the last frame", x=0.01, ha="left")
        for axes, (step, picture) in zip(parts[-1].subplots(1, len(painted), squeeze=False)[0],
                                         painted.items()):
            show_picture(axes, picture, folded(step, 30))
    return figure


def show_picture(axes, picture, lines):
    """A framed picture (3, height, width) uint8, with lines of text below it."""
    axes.imshow(picture.transpose(1, 2, 0))
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(True)
    axes.set_xlabel("\n".join(lines), fontsize=8)


def plot_strip(figure, content, pictures):
    """The observed windows: a frame of each, its likeliest step, and the true one if known."""
    truth = content.get("truth")
    begin, end = content["clips"][0]["start"], content["clips"][-1]["end"]
    title = f"Observed: {Path(content['video']).name}, {begin:.0f} to {end:.0f} s"
    figure.suptitle("\n".join(folded(title, 90)), x=0.01, ha="left")
    for i, axes in enumerate(figure.subplots(1, len(pictures))):
        best = content["clips"][i]["steps"][0]
        lines = [*folded(best["step"], 14, 3), percent(best["p"])]
        if truth:
            lines += folded(f"true: {truth['clips'][i] or 'none'}", 14)
        show_picture(axes, pictures[i], lines)


def plot_bars(axes, content):
    """p of the likeliest next steps; below each bar the true one, where it is known."""
    rows, truth = content["next"][:NEXT], content.get("truth")
    high, largest = 0.4 if truth else 0.7, rows[0]["p"]
    places = [i - high / 2 * bool(truth) for i in range(len(rows))]
    axes.barh(places, [row["p"] for row in rows], high, color=BLUE, label="forecast")
    if truth:
        bayes = {row["step"]: row["p"] for row in truth["next"]}
        true = [bayes.get(row["step"], 0.0) for row in rows]
        axes.barh([i + high / 2 for i in range(len(rows))], true, high, label="true", **TRUE)
        largest = max(largest, *true)
        axes.legend(loc="lower right")
    for place, row in zip(places, rows):
        axes.text(row["p"] + 0.02 * largest, place, percent(row["p"]), va="center")
    axes.set_yticks(range(len(rows)), ["\n".join(folded(row["step"])) for row in rows])
    axes.tick_params(left=False)
    axes.set(xticks=[], xlim=(0, 1.2 * largest), ylim=(len(rows) - 0.4, -0.6),
             title="Next step: mean probability")
    axes.spines["bottom"].set_visible(False)


def grow_tree(futures, leaves=LEAVES):
    """The most frequent futures as a tree of prefixes.

    futures: [{"steps": H of them, "share"}, ...], the largest share first.
    Returns: {prefix: (mean row of its futures, share of all that begin with it, drawn or not)}.
    """
    share, rows = Counter(), defaultdict(list)
    for future in futures:
        for depth in range(len(future["steps"]) + 1):
            share[tuple(future["steps"][:depth])] += future["share"]
    order = sorted((tuple(future["steps"]) for future in futures[:leaves]),
                   key=lambda steps: [(-share[steps[:d + 1]], steps[d]) for d in range(len(steps))])
    for row, steps in enumerate(order):
        for depth in range(len(steps) + 1):
            rows[steps[:depth]].append(row)
    return {prefix: (sum(own) / len(own), share[prefix]) for prefix, own in rows.items()}


def plot_tree(axes, content):
    """Sampled futures: line width grows with share; true probabilities at the ends, if known."""
    futures, truth = content["futures"], content.get("truth")
    tree, horizon = grow_tree(futures), len(futures[0]["steps"])
    true = {tuple(future["steps"]): future["share"] for future in truth["futures"]} if truth else {}
    for prefix, (row, share) in tree.items():
        if prefix:
            above = tree[prefix[:-1]][0]
            axes.plot([len(prefix) - 1, len(prefix) - 0.6, len(prefix)], [above, row, row],
                      color=BLUE, alpha=0.45, linewidth=1 + 12 * share, solid_capstyle="round",
                      zorder=1)
        text = "\n".join([*folded(prefix[-1]), percent(share)]) if prefix else "now"
        axes.text(len(prefix), row, text, ha="center", va="center", zorder=2, bbox=BOX)
        if len(prefix) == horizon and true:
            axes.text(horizon + 0.45, row, f"true: {percent(true[prefix])}", va="center")
    drawn = sum(share for prefix, (_, share) in tree.items() if len(prefix) == horizon)
    last = max(row for row, _ in tree.values())
    axes.set(xlim=(-0.25, horizon + (1.0 if true else 0.5)), ylim=(last + 0.6, -0.6))
    axes.set_title(f"Futures: share of the samples, {percent(drawn)} shown ({len(futures)} "
                   "different)")
    axes.axis("off")


def main(settings):
    """Draw the curves."""
    require()
    save(plot_training(load_metrics(settings.run / "metrics.jsonl")), settings.out)
    print(settings.out)


if __name__ == "__main__":
    run(main, ChartSettings)
