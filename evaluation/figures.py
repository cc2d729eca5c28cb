"""A forecast as a figure, as in Fig. 3: N windows, and futures of H steps."""
import textwrap
from collections import Counter
from statistics import mean

from support.errors import InputError, require
from support.write import write_atomically

BLUE = "#0072B2"                               # Okabe and Ito's
TRUE = {"facecolor": "white", "edgecolor": "black", "hatch": "/////", "linewidth": 0.6}
STYLE = {"font.size": 8, "axes.titlelocation": "left", "axes.spines.top": False,
         "axes.spines.right": False, "legend.frameon": False, "savefig.dpi": 125,
         "svg.fonttype": "none", "text.parse_math": False}     # SVG with text; $ is no formula
NEXT, LEAVES = 5, 7                            # next steps, and futures, that a figure shows
BOX = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": BLUE, "linewidth": 0.8}


def open_matplotlib(path):
    """matplotlib, to draw the file `path`; InputError without it, or for another suffix."""
    require(path.suffix in (".png", ".pdf", ".svg"), f"{path}: must end in .png, .pdf or .svg")
    try:
        import matplotlib.figure
    except ImportError:
        raise InputError("figures need matplotlib: pip install matplotlib") from None
    return matplotlib


def save(path, draw, *args):
    """Write the figure that draw(figure, *args) makes, in the format of the suffix."""
    matplotlib = open_matplotlib(path)
    with matplotlib.rc_context(STYLE):
        figure = matplotlib.figure.Figure(layout="constrained")
        draw(figure, *args)
        write_atomically(path, lambda file: figure.savefig(file, format=path.suffix[1:]))


def folded(text, width=15, lines=2):
    """Text on at most `lines` lines of `width` characters, ending in "..." if cut."""
    return "\n".join(textwrap.wrap(text, width, max_lines=lines, placeholder=" ..."))


def plot_forecast(figure, content, pictures, painted):
    """Draw predict.py's JSON: observed frames, next steps, futures, key frames. pictures (N, 3,
    height, width) uint8, of each window; painted {step: (3, height, width) uint8}, or {}."""
    clips, truth = content["clips"], content["truth"] or {"clips": [], "next": [], "futures": []}
    futures, true = ({tuple(future["steps"]): future["share"] for future in answer["futures"]}
                     for answer in (content, truth))
    heights = [0.9 + 8 / len(clips) * pictures.shape[2] / pictures.shape[3]]   # inches
    heights += [max(2.0, 0.3 + 0.5 * min(len(futures), LEAVES))] if futures else []
    heights += [2.2] if painted else []
    figure.set_size_inches(8, sum(heights))
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    best = [clip["steps"][0] for clip in clips]
    captions = [f"{folded(row['step'], 14, 3)}\n{row['p']:.0%}" for row in best]
    for i, step in enumerate(truth["clips"]):
        captions[i] += "\n" + folded(f"true: {step or 'none'}", 14)
    title = f"Observed: {content['video']}, {clips[0]['start']:.0f} to {clips[-1]['end']:.0f} s"
    plot_strip(parts[0], title, pictures, captions)
    if futures:
        bars, tree = parts[1].subplots(1, 2, width_ratios=(1, 2))
        bars.set_title("Next step: share of the samples")
        plot_bars(bars, {row["step"]: row["share"] for row in content["next"]},
                  {row["step"]: row["p"] for row in truth["next"]})
        plot_tree(tree, futures, true)
    if painted:
        plot_strip(parts[-1], "Painted from the last frame", painted.values(),
                   [folded(step, 30) for step in painted])


def plot_strip(figure, title, pictures, captions):
    """Pictures (3, height, width) uint8 side by side, each above its caption."""
    figure.suptitle(folded(title, 90), x=0.01, ha="left")
    places = figure.subplots(1, len(captions), squeeze=False)[0]
    for axes, picture, caption in zip(places, pictures, captions):
        axes.imshow(picture.transpose(1, 2, 0))
        axes.set(xticks=[], yticks=[], xlabel=caption)


def plot_bars(axes, p, true):
    """Bars of the likeliest of {step: p}, each above its true bar, from {step: p} or {}. The two
    likeliest true steps are always shown. No other step is shown that would read 0%."""
    steps = [step for step in sorted(p, key=p.get, reverse=True)[:NEXT] if p[step] >= 0.005]
    steps += [step for step in sorted(true, key=true.get, reverse=True)[:2] if step not in steps]
    places, height = range(len(steps)), -0.4 if true else 0.7
    axes.barh(places, [p.get(step, 0.0) for step in steps], height, color=BLUE, label="forecast",
              align="edge" if true else "center")
    if true:
        axes.barh(places, [true.get(step, 0.0) for step in steps], 0.4, align="edge", label="true",
                  **TRUE)
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.02), ncols=2)
    for bars in axes.containers:
        axes.bar_label(bars, fmt="{:.0%}", padding=3)
    axes.set_yticks(places, [folded(step) for step in steps])
    axes.margins(x=0.2)
    axes.set(xticks=[], ylim=(len(steps) - 0.4, -0.6))


def plot_tree(axes, futures, true):
    """The most frequent futures {steps (H,): share} as a tree, a row for each. A line is as wide as
    the share of the futures that begin so. At the ends are the shares in `true`, if any."""
    share = Counter()                                          # of each beginning
    for steps in futures:
        share.update({steps[:depth]: futures[steps] for depth in range(len(steps) + 1)})
    rows = sorted(futures, key=lambda steps: -futures[steps])[:LEAVES]
    rows.sort(key=lambda steps: [(-share[steps[:d]], steps[:d]) for d in range(len(steps) + 1)])

    def row_of(begin):
        return mean(i for i, steps in enumerate(rows) if steps[:len(begin)] == begin)

    for begin in {steps[:depth] for steps in rows for depth in range(len(steps) + 1)}:
        depth, row, text = len(begin), row_of(begin), "now"
        if begin:
            text = f"{folded(begin[-1])}\n{share[begin]:.0%}"
            axes.plot([depth - 1, depth - 0.6, depth], [row_of(begin[:-1]), row, row], color=BLUE,
                      alpha=0.45, linewidth=1 + 12 * share[begin], zorder=1)
        axes.text(depth, row, text, ha="center", va="center", zorder=2, bbox=BOX)
        if begin in true:
            axes.text(depth + 0.45, row, f"true: {true[begin]:.0%}", va="center")
    axes.set(xlim=(-0.25, max(map(len, rows)) + 1), ylim=(len(rows) - 0.4, -0.6),
             title=f"Futures: share of the samples, {len(rows)} of {len(futures)} shown")
    axes.axis("off")
