"""Charts: curves of training, `python -m experiments.charts`; claims; a forecast (Fig. 3)."""
import io
import itertools
import json
import textwrap
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import mean, median_high

from safetensors import safe_open

from files.text import read_json
from support.command import PICTURES, WHAT, BadInput, Settings, opt, quiet, run, write_atomically
from support.flags import OWN, adopt_run

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#007A5A", "#666666"     # Okabe and Ito's, darker
TRUE = {"facecolor": "white", "edgecolor": "black", "hatch": "/////", "linewidth": 0.6}
STYLE = {"font.family": ["DejaVu Sans", "Noto Sans CJK SC", "Noto Sans", "Arial Unicode MS"],
         "font.size": 8, "axes.titlelocation": "left", "axes.spines.top": False,
         "axes.spines.right": False, "legend.frameon": False, "savefig.dpi": 125,
         "svg.fonttype": "none", "text.parse_math": False}     # SVG with text; $ is no formula
NEXT, LEAVES = 6, 7           # next steps, and futures, that a figure has room for
BOX = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": BLUE, "linewidth": 0.8}


@dataclass(frozen=True)
class ChartSettings(Settings):
    """Draw the curves of a training run, where a forecast's points are lost, Fig. A, or claims."""
    run: Path = opt("the run folder, with metrics.jsonl", OWN, WHAT, forecast=(None,),
                    claims=(None,))
    classify: Path = opt("with --forecast, this JSON of the same run's classification: draw both "
                         "by step, seen and novel (Fig. A)", None, WHAT, forecast=())
    forecast: Path = opt("draw this JSON of evaluate.py instead: who loses which points", None,
                         WHAT)
    claims: Path = opt("write the pictures of results.md here instead, from results.json: a PNG "
                       "per claim of tables.toml", None, WHAT, forecast=(None,), folder=True)
    out: Path = opt("file to write: .png, .pdf or .svg", Path("training.png"), file=PICTURES,
                    claims=(None,))

    def __post_init__(self):
        super().__post_init__()
        adopt_run(self, "run", real=self.forecast is not None or self.claims is not None)


def require():
    """BadInput unless matplotlib is installed."""
    try:
        import matplotlib.figure
    except ImportError:
        raise BadInput("figures need matplotlib: pip install matplotlib") from None
    return matplotlib


def new_figure(width, height):
    """An empty figure, sides in inches."""
    return require().figure.Figure((width, height), layout="constrained")


def save(path, draw, *args):
    """Write the figure of draw(*args) in the format of the suffix, whole or not at all."""
    with require().rc_context(STYLE), quiet():         # matplotlib warns of each letter in no font
        figure = draw(*args)
        write_atomically(path, lambda file: figure.savefig(file, format=path.suffix[1:] or "png"))


class Picture:
    """The figure of draw(*args) as a PNG, which a notebook shows."""

    def __init__(self, draw, *args):
        self.png = io.BytesIO()
        with require().rc_context(STYLE), quiet():
            draw(*args).savefig(self.png, format="png")

    def _repr_png_(self):
        return self.png.getvalue()


def folded(text, width=15, lines=2):
    """Text on at most `lines` lines of `width` characters, ending in "..." if cut; what cannot be
    printed is escaped."""
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))
    return "\n".join(textwrap.wrap(text, width, max_lines=lines, placeholder=" ..."))


def load_metrics(run):
    """The rows of a run's metrics.jsonl, or of the default checkpoint: dicts. BadInput if none."""
    default, needed = run.suffix == ".safetensors", {"step", "epoch", "lr"}
    path = run if default else run / "metrics.jsonl"
    with suppress(Exception):                          # of other things, or of other types
        text = safe_open(path, "np").metadata()["metrics"] if default else path.read_text()
        rows = [json.loads(line, parse_int=float) for line in text.splitlines()]
        finite = all(abs(value) < 1e30 for row in rows for name, value in row.items()
                     if value is not None or name in needed)
        if finite and rows and all(row.keys() >= needed for row in rows):
            return rows
    raise BadInput(f"{path}: missing, or no rows of steps; has the run of train.py logged one yet?")


def plot_training(rows, constant=None):
    """Figure of the terms of the loss by step: medians of five rows of `load_metrics`, over all of
    them. A stage begins where `epoch` falls. constant: L_MSE, were z_hat 0."""
    figure = new_figure(7, 3.6)
    losses, rate = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    for name, label, color, style in (("xe", "L_XE, clips", BLUE, "-"),
                                      ("mc", "L_MC, missing clip", ORANGE, "--"),
                                      ("mse", "L_MSE", GREEN, "-.")):
        known = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
        if known:
            steps, values = zip(*known)
            medians = [median_high(values[max(i - 2, 0):i + 3]) for i in range(len(values))]
            losses.plot(steps, values, color=color, alpha=0.25, linewidth=0.8)
            losses.plot(steps, medians, style, color=color, linewidth=1.6, label=label)
    rate.plot([row["step"] for row in rows], [row["lr"] for row in rows], "k", linewidth=1)
    if constant:
        losses.axhline(constant, color=GREEN, linestyle=":", label="L_MSE of the mean, at the end")
    losses.set_ylabel("loss")
    rate.set(xlabel="step", ylabel="learning\nrate")
    begins = [(a["step"] + b["step"]) / 2 for a, b in itertools.pairwise(rows)
              if b["epoch"] < a["epoch"]]
    for axes in (losses, rate):
        for step in begins:
            label = "a stage begins" if step == begins[0] else None
            axes.axvline(step, color=GREY, linestyle=":", linewidth=1, label=label)
        axes.set_ylim(bottom=0)
    losses.legend()
    return figure


def plot_claim(title, rows):
    """Bars of means over seeds, with a dot for each seed: rows [(label, [% right, ...]), ...].
    Those of the exact distribution, whose labels begin so, are hatched."""
    figure = new_figure(5, 0.7 + 0.34 * len(rows))
    figure.suptitle(title, x=0.01, ha="left")
    axes = figure.subplots()
    for place, (label, values) in enumerate(rows):
        style = TRUE if label.startswith("exact") else {"color": BLUE, "alpha": 0.6}
        axes.barh(place, mean(values), 0.62, **style)
        axes.plot(values, [place] * len(values), "k.", markersize=4)
        axes.text(max(values), place, f"   {mean(values):.1f}", va="center")
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    axes.tick_params(left=False)
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlabel="% right on test videos; a dot is a seed")
    axes.margins(x=0.15)
    return figure


def load_points(path):
    """The points of `plot_losses` in a JSON file of evaluate.py. BadInput if it lacks them."""
    need = "the JSON of a zero-shot `evaluate.py --task forecast` of the embedded world"
    content = read_json(path, need)
    with suppress(KeyError, TypeError, OverflowError):
        truth = content["truth"]
        points = [truth["bayes_top1"], truth["bayes_top1_pixels"], truth["form"]["zero_noise"],
                  content["top1"]["zero_noise"]]
        if all(map(isfinite, points)):
            return points
    raise BadInput(f"{path}: not {need}")


def plot_losses(points):
    """Figure of four points of zero noise, and of what is lost before: evaluation/truth.py."""
    rows = [*zip(("exact, from the steps", "exact, from what f sees", "the best h, and texts", "h"),
                 points, (None, "f", "objective and texts", "h"))]
    figure = new_figure(6, 1.6)
    axes = figure.subplots()
    for i, ((name, value, who), (_, before, _)) in enumerate(zip(rows, rows[:1] + rows)):
        axes.barh(i, value, color=BLUE)
        axes.text(value - 1, i, f"{value:.1f}", color="white", ha="right", va="center")
        if who:
            axes.barh(i, before - value, left=value, **TRUE)
            axes.text(before + 1, i, f"{who}: {before - value:.1f}", va="center")
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.invert_yaxis()
    axes.set(xlim=(0, 90), xlabel="next step, % right; hatched: points lost")
    return figure


def load_steps(path, task, count):
    """`by_class` of a JSON file of evaluate.py: % right or None, of `count` steps; else BadInput"""
    need = f"the JSON of evaluate.py --task {task}, zero-shot in the embedded world"
    content = read_json(path, need)
    values = content.get("by_class")
    said = [content.get(name) for name in ("data", "task", "setting")]
    if (said == ["toy", task, "zero-shot"] and isinstance(values, list) and len(values) == count
            and all(p is None or type(p) in (int, float) and 0 <= p <= 100 for p in values)):
        return values
    raise BadInput(f"{path}: not {need}")


def plot_steps(steps, novel, tasks):
    """Fig. A: figure of % right by step; tasks {name: % right or None, of each of the steps}."""
    figure = new_figure(8, 4.5)
    for axes, (task, values) in zip(figure.subplots(len(tasks), 1, sharex=True), tasks.items()):
        for kind, color in (("seen", BLUE), ("novel", ORANGE)):
            bars = {step: p for step, p in zip(steps, values)
                    if (step in novel) == (kind == "novel") and p is not None}
            average = f"mean {mean(bars.values()):.1f}" if bars else "none"
            axes.bar([*bars], [*bars.values()], color=color, label=f"{kind} steps, {average}")
        axes.set(ylabel=f"{task}, % right", ylim=(0, 120), yticks=(0, 50, 100))
        axes.legend(ncols=2, loc="upper right")
        axes.tick_params("x", rotation=90)
    return figure


# --- One forecast, as in Fig. 3: N windows, H steps of a future ---
def plot_forecast(content, pictures, painted):
    """Figure: observed frames, next steps as bars, futures as a tree, key frames if there are any.
    content: predict.py's JSON content, with or without "truth"; pictures: (N, 3, height, width)
    uint8, one of each window; painted: {step: (3, height, width) uint8} of keyframes.py."""
    def shares(answer):
        return {tuple(future["steps"]): future["share"] for future in answer["futures"]}
    clips, futures = content["clips"], shares(content)
    truth = content.get("truth", {"clips": [], "next": [], "futures": []})
    sides = 2.7, 1.325 * max([4] + [len(steps) + 1 for steps in futures])        # all in inches
    heights = [sum(sides) / len(clips) * pictures.shape[2] / pictures.shape[3] + 0.8]
    heights += [max(2.0, 0.3 + 0.5 * min(len(futures), LEAVES))] * bool(futures)
    heights += [2.2] * bool(painted)
    figure = new_figure(sum(sides), sum(heights))
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]

    captions = [folded(clip["steps"][0]["step"], 14, 3) + f"\n{clip['steps'][0]['p']:.0%}"
                for clip in clips]
    for i, step in enumerate(truth["clips"]):
        captions[i] += "\n" + folded(f"true: {step or 'none'}", 14)
    seen = f"{clips[0]['start']:.0f} to {clips[-1]['end']:.0f} s"
    plot_strip(parts[0], f"Observed: {folded(Path(content['video']).name, 60)}, {seen}", pictures,
               captions)
    if futures:
        bars, tree = parts[1].subplots(1, 2, width_ratios=sides)
        bars.set_title("Next step: share of the samples")
        plot_bars(bars, content["next"], {row["step"]: row["p"] for row in truth["next"]}, "share")
        plot_tree(tree, futures, shares(truth))
    if painted:
        plot_strip(parts[-1], "Painted from the last frame", painted.values(),
                   [folded(step, 30) for step in painted])
    return figure


def plot_strip(figure, title, pictures, captions):
    """Pictures (3, height, width) uint8 side by side, each above its caption."""
    figure.suptitle(folded(title, 90), x=0.01, ha="left")
    places = figure.subplots(1, len(captions), squeeze=False)[0]
    for axes, picture, caption in zip(places, pictures, captions):
        axes.imshow(picture.transpose(1, 2, 0))
        axes.set(xticks=[], yticks=[], xlabel=caption)
        axes.spines[:].set_visible(True)


def plot_bars(axes, rows, true, key="p"):
    """The likeliest steps, rows [{"step", key}, ...], the largest first; below each bar the true p,
    of {step: p} or {}."""
    steps, p = zip(*((row["step"], row[key]) for row in rows[:NEXT]))
    places, high = range(len(p)), -0.4 if true else 0.7
    axes.barh(places, p, high, align="edge" if true else "center", color=BLUE, label="forecast")
    if true:
        true_p = [true.get(step, 0.0) for step in steps]
        axes.barh(places, true_p, 0.4, align="edge", label="true", **TRUE)
        axes.legend(loc="lower right")
    for bars in axes.containers:
        axes.bar_label(bars, fmt="{:.0%}", padding=3)
    axes.set_yticks(places, [folded(step) for step in steps])
    axes.tick_params(left=False)
    axes.spines["bottom"].set_visible(False)
    axes.margins(x=0.2)                                        # room for the numbers
    axes.set(xticks=[], ylim=(len(steps) - 0.4, -0.6))


def grow_tree(futures):
    """Futures {steps (H,): share}, the largest share first, as a tree of prefixes: {prefix: (mean
    row, share of all futures that begin with it)}. LEAVES futures get a row each."""
    share, rows = Counter(), defaultdict(list)
    for steps in futures:
        for depth in range(len(steps) + 1):
            share[steps[:depth]] += futures[steps]
    drawn = sorted([*futures][:LEAVES], key=lambda steps: [
        (-share[steps[:depth]], steps[:depth]) for depth in range(len(steps) + 1)])
    for row, steps in enumerate(drawn):
        for depth in range(len(steps) + 1):
            rows[steps[:depth]].append(row)
    return {prefix: (mean(own), share[prefix]) for prefix, own in rows.items()}


def plot_tree(axes, futures, true):
    """Sampled futures {steps: share}: line width grows with share; at the ends their true ones."""
    tree = grow_tree(futures)
    for prefix, (row, share) in tree.items():
        depth, text = len(prefix), "now"
        if prefix:
            text = f"{folded(prefix[-1])}\n{share:.0%}"
            axes.plot([depth - 1, depth - 0.6, depth], [tree[prefix[:-1]][0], row, row], color=BLUE,
                      alpha=0.45, linewidth=1 + 12 * share, solid_capstyle="round", zorder=1)
        axes.text(depth, row, text, ha="center", va="center", zorder=2, bbox=BOX)
        if prefix in true:
            axes.text(depth + 0.45, row, f"true: {true[prefix]:.0%}", va="center")
    drawn = [*futures.values()][:LEAVES]
    axes.set(xlim=(-0.25, max(map(len, tree)) + (1.0 if true else 0.5)),
             ylim=(len(drawn) - 0.4, -0.6), title="Futures: share of the samples, "
             f"{sum(drawn):.0%} shown ({len(futures)} different)")
    axes.axis("off")


def main(settings):
    """Draw one of them."""
    if settings.classify:
        from toy.grammar import HELD_OUT, STEPS
        count = len(STEPS)
        save(settings.out, plot_steps, STEPS, HELD_OUT, {
            "classification": load_steps(settings.classify, "classify", count),
            "forecasting": load_steps(settings.forecast, "forecast", count)})
    elif settings.forecast:
        save(settings.out, plot_losses, load_points(settings.forecast))
    elif settings.claims:
        from experiments.tables import CLAIMS, rows_of_claim
        settings.claims.mkdir(parents=True, exist_ok=True)
        for name in CLAIMS:
            save(settings.claims / f"{name}.png", plot_claim, *rows_of_claim(name))
            print(settings.claims / f"{name}.png")
        return
    else:
        save(settings.out, plot_training, load_metrics(settings.run))
    print(settings.out)


if __name__ == "__main__":
    run(main, ChartSettings)
