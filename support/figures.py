"""A forecast as a figure, as in Fig. 3: N windows, and futures of H steps."""
from textwrap import fill

from support.errors import InputError, require
from support.write import write_atomically

BLUE = "#0072B2"                               # Okabe and Ito's
TRUE = {"facecolor": "white", "edgecolor": "black", "hatch": "/////", "linewidth": 0.6}
STYLE = {"font.size": 8, "axes.titlelocation": "left", "axes.spines.top": False,
         "axes.spines.right": False, "legend.frameon": False, "savefig.dpi": 125,
         "text.parse_math": False}             # $ is no formula
SHOWN_ROWS = 5                                      # next steps, and futures, that a figure shows


def open_matplotlib(path):
    """matplotlib, to draw the file `path`; InputError without it, or for another suffix."""
    require(path.suffix in (".png", ".pdf", ".svg"), f"{path}: must end in .png, .pdf or .svg")
    try:
        import matplotlib.figure
    except ImportError:
        raise InputError("figures need matplotlib: pip install matplotlib") from None
    return matplotlib


def save_figure(path, draw, *args):
    """Write the figure that draw(figure, ...) makes, in the format of the suffix. args: the other
    arguments of `draw`."""
    matplotlib = open_matplotlib(path)
    with matplotlib.rc_context(STYLE):
        figure = matplotlib.figure.Figure(layout="constrained")
        draw(figure, *args)
        write_atomically(path, lambda file: figure.savefig(file, format=path.suffix[1:]))
    print(path)


def plot_forecast(figure, content, pictures):
    """Draw predict.py's JSON: observed frames, next steps, futures. pictures (N, 3, height, width)
    uint8, of each window."""
    clips = content["clips"]
    truth = content["truth"] or {"next": [], "futures": []}
    figure.set_size_inches(8, 4.4)
    observed, following = figure.subfigures(2, 1, height_ratios=(1.9, 2.5))
    observed.suptitle(f"Observed: {content['video']}, {clips[0]['start']:.0f} to "
                      f"{clips[-1]['end']:.0f} s", x=0.01, ha="left")
    for i, axes in enumerate(observed.subplots(1, len(clips), squeeze=False)[0]):
        best = clips[i]["steps"][0]
        true = ""
        if content["truth"]:
            true = fill(f"true: {truth['clips'][i] or 'none'}", 14)
        axes.imshow(pictures[i].transpose(1, 2, 0))
        axes.set(xticks=[], yticks=[],
                 xlabel=f"{fill(best['step'], 14)}\n{best['p']:.0%}\n{true}")
    if content["next"]:
        left, right = following.subplots(1, 2, width_ratios=(1, 2))
        plot_bars(left, "Next step: share of the samples",
                  {row["step"]: row["share"] for row in content["next"]},
                  {row["step"]: row["p"] for row in truth["next"]})
        plot_bars(right, "Futures: share of the samples",
                  {" > ".join(row["steps"]): row["share"] for row in content["futures"]},
                  {" > ".join(row["steps"]): row["share"] for row in truth["futures"]})


def plot_bars(axes, title, p, true, most=2):
    """Bars of the first of {text: p}, each above its exact bar, from {text: p} or {}. The `most`
    likeliest of the exact ones are always there."""
    texts = list(p)[:SHOWN_ROWS]
    likeliest = sorted(true, key=true.get, reverse=True)[:most]
    texts += [text for text in likeliest if text not in texts]

    def draw(shares, height, label, **style):
        bars = axes.barh(range(len(texts)), [shares.get(text, 0.0) for text in texts], height,
                         align="edge", label=label, **style)
        axes.bar_label(bars, fmt="{:.0%}", padding=3)
    draw(p, -0.4, "forecast", color=BLUE)
    if true:
        draw(true, 0.4, "exact", **TRUE)
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.02), ncols=2)
    labels = []
    for text in texts:
        width = 40 if ">" in text else 15                  # of a future, of a step
        labels.append(fill(text, width, max_lines=3, placeholder=" ..."))
    axes.set_yticks(range(len(texts)), labels)
    axes.set(xticks=[], ylim=(max(len(texts), 3) - 0.4, -0.6), title=title)
    axes.margins(x=0.2)
