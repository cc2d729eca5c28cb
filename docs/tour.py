"""Figures of tour.ipynb, and its queries to the toy world, so that its cells stay short.

N clips, D embedding, K phrases, Q samples, T noise levels. Pages count clips and levels from 1,
arrays from 0.
"""
from itertools import groupby
from textwrap import fill

import matplotlib.pyplot as plt
import numpy as np
import torch

from support.figures import BLUE, STYLE, TRUE
from toy.grammar import STEP_ID, STEPS, Grammar

ORANGE = "#E69F00"
COLORS = BLUE, ORANGE, "#009E73", "#CC79A7"        # of steps; Okabe and Ito's, as BLUE is
OTHER = "0.6"                                      # of any other step
WIDTH = 7                                          # inches; 700 pixels
SMALL = 11                                         # points, of what stands below a frame


def set_style():
    """Set fonts that can be read at half the width, and what else all pictures share."""
    plt.rcParams.update(STYLE)
    plt.rcParams.update({"font.size": 13, "axes.titlesize": 13, "figure.titlesize": 14,
                         "figure.dpi": 100, "savefig.dpi": 100,
                         "figure.constrained_layout.use": True})


def open_figure(height, title=None):
    """A figure of WIDTH x height inches, with its title at the left."""
    figure = plt.figure(figsize=(WIDTH, height))
    if title:
        figure.suptitle(title, x=0.01, ha="left")
    return figure


# --- What is true ---
def steps_shown(source, windows):
    """The true step in the middle of each window (n, 2) s of a toy source's video: n names, "none"
    where there is no step."""
    found = []
    for middle in windows.mean(1):
        found.append(source.truth.step_at(source.videos[0], middle) or "none")
    return found


def exact_futures(shown, ahead, joined):
    """What the grammar says may follow.

    Args:    shown: the steps of the observed clips, from the first step of a video on; ahead: how
             many steps follow; joined: {step: the name that it shares with its look-alike}.
    Returns: {the names of the next steps, with > between: their probability}. It is empty if no
             video begins so, or if none has so many steps left.
    """
    grammar = Grammar()
    before = [STEP_ID[name] for name, _ in groupby(shown) if name != "none"]
    paths = [(1.0, before)]
    for _ in range(ahead):
        longer = []
        for p, steps in paths:
            following = grammar.next_step(steps, True)
            for k in following.nonzero()[0].tolist():
                longer.append((p * float(following[k]), steps + [k]))
        paths = longer
    found = {}
    for p, steps in paths:
        names = [joined.get(STEPS[k], STEPS[k]) for k in steps[len(before):]]
        text = " > ".join(names)
        found[text] = found.get(text, 0.0) + p
    return found


def clips_of(source, name):
    """A clip for each occurrence of a step in a toy source's videos, as long as the step:
    (n, F, 3, H, W) uint8."""
    found = []
    for i, video in enumerate(source.videos):
        for step in video.steps:
            if STEPS[step.label] == name:
                clips, _ = source.clips(i, [(step.start, step.end)])
                found.append(clips)
    return torch.cat(found)


# --- What h looks at ---
def attention_weights(denoiser, predict):
    """The attention weights of a Denoiser while it answers predict(): (blocks, Q, heads, N, N).

    PyTorch computes them only on request. Hooks make the request, and are removed afterwards.
    """
    found, hooks = [], []

    def ask(module, inputs, options):
        return inputs, dict(options, need_weights=True, average_attn_weights=False)

    def keep(module, inputs, outputs):
        found.append(outputs[1])
    for block in denoiser.transformer.resblocks:
        hooks.append(block.attn.register_forward_pre_hook(ask, with_kwargs=True))
        hooks.append(block.attn.register_forward_hook(keep))
    try:
        predict()
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(found)


# --- Pictures ---
def draw_frame(axes, picture, caption="", title="", alpha=1.0):
    """Draw a frame (3, H, W) uint8 above its caption, a word a line, and below its title."""
    axes.imshow(picture.permute(1, 2, 0).numpy(), interpolation="nearest", alpha=alpha)
    axes.set(xticks=[], yticks=[])
    axes.set_xlabel(caption.replace(" ", "\n"), fontsize=SMALL)
    axes.set_title(title, fontsize=SMALL, loc="center")


def show_frames(pictures, titles, per_row):
    """Show frames [(3, H, W) uint8, ...] in rows, each below its title."""
    rows = -(-len(pictures) // per_row)
    panels = open_figure(1.7 * rows).subplots(rows, per_row, squeeze=False).flatten()
    for axes, picture, title in zip(panels, pictures, titles):
        draw_frame(axes, picture, title=title)
    for axes in panels[len(pictures):]:
        axes.axis("off")


def show_timeline(video, narration, windows, pictures, shown):
    """Show when a video shows its steps, when something is said, and which clips are cut.

    narration: [(start s, end s, text), ...]; windows (N, 2) s; pictures (N, 3, H, W) uint8, a frame
    of each clip; shown: N names, the true step of each clip.
    """
    figure = open_figure(4.2)
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.15, 1))
    axes = top.subplots()
    for step in video.steps:
        axes.barh(3, step.end - step.start, 0.9, step.start, color="0.88", edgecolor="white")
        name = STEPS[step.label].replace(" ", "\n")
        axes.text((step.start + step.end) / 2, 3, name, ha="center", va="center", fontsize=SMALL)
    middles = np.array([(start + end) / 2 for start, end, _ in narration])
    used = {int(np.abs(middles - middle).argmin()) for middle in windows.mean(1)}
    for i, (start, end, _) in enumerate(narration):
        color = ORANGE if i in used else "white"
        axes.barh(2, end - start, 0.5, start, color=color, edgecolor=ORANGE)
    for i, (start, end) in enumerate(windows):
        height = 1.15 - 0.55 * (i % 2)                 # in two rows, since clips can overlap
        axes.barh(height, end - start, 0.5, start, color=BLUE)
        axes.text((start + end) / 2, height, i + 1, color="white", ha="center", va="center",
                  fontsize=SMALL)
    axes.set(xlim=(0, video.duration), xlabel="seconds")
    axes.set_yticks([3, 2, 0.9], ["true steps", "sentences", "clips"])
    for i, axes in enumerate(bottom.subplots(1, len(windows))):
        draw_frame(axes, pictures[i], shown[i], f"clip {i + 1}")


def show_matching(tables, names):
    """Show probabilities of phrases, {title: (N, K')}, of the same K' names, side by side."""
    figure = open_figure(4.6)
    for axes, (title, p) in zip(figure.subplots(1, len(tables), sharey=True), tables.items()):
        image = axes.imshow(p.T.numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.set(title=title, xlabel="clip")
        axes.set_xticks(range(len(p)), range(1, len(p) + 1))
        axes.set_yticks(range(len(names)), names)
    figure.colorbar(image, ax=figure.axes, label="probability", ticks=[0, 0.5, 1])


def show_clouds(x, others, clouds, place):
    """Show noised copies of clip `place` among the N clips x (N, D) of its video.

    others (m, D): clips of other videos; clouds {title: copies (c, D)}, a panel each. All are
    projected onto the plane in which the N clips differ most.
    """
    center = x.mean(0)
    plane = torch.linalg.svd(x - center, full_matrices=False)[2][:2].T         # (D, 2)
    panels = open_figure(3.6).subplots(1, len(clouds))
    for axes, (title, copies) in zip(panels, clouds.items()):
        across, up = ((others - center) @ plane).T
        axes.scatter(across, up, 4, "0.8")
        across, up = ((copies - center) @ plane).T
        axes.scatter(across, up, 6, BLUE, alpha=0.5)
        for i, (across, up) in enumerate(((x - center) @ plane).tolist()):
            circle = {"boxstyle": "circle,pad=0.12", "facecolor": "white", "linewidth": 0.8}
            color = "black"
            if i == place:
                circle["facecolor"], color = ORANGE, "white"
            axes.text(across, up, i + 1, ha="center", va="center", fontsize=SMALL,
                      fontweight="bold", color=color, bbox=circle)
        axes.set(xlim=(-1.3, 1.3), ylim=(-1.1, 1.1), xticks=[], yticks=[], title=title)


def show_attention(weights, pictures, kinds, place):
    """Show where h looks: weights (blocks, N) of the missing token, clip `place`, below a frame of
    each clip, pictures (N, 3, H, W) uint8, and what it is: kinds, N words."""
    figure = open_figure(4.2)
    top, bottom = figure.subfigures(2, 1, height_ratios=(1, 1.9))
    for i, axes in enumerate(top.subplots(1, len(kinds))):
        if kinds[i] == "observed":
            draw_frame(axes, pictures[i], title=f"clip {i + 1}")
        else:
            draw_frame(axes, pictures[i], kinds[i], f"clip {i + 1}", alpha=0.2)
    axes = bottom.subplots()
    image = axes.imshow(weights.numpy(), cmap="Blues", vmin=0, aspect="auto")
    axes.set_xticks(range(len(kinds)), range(1, len(kinds) + 1))
    axes.set_yticks(range(len(weights)), [f"block {k + 1}" for k in range(len(weights))])
    axes.set(xlabel=f"clip (that of clip {place + 1} is the missing token itself)")
    bottom.colorbar(image, ax=axes, label="weight", pad=0.01)


def show_passes(predicted, zero, picks, corners, names):
    """Show what h predicts in each pass, in the plane of the mean embeddings of possible steps.

    Args: predicted (T, Q, D), of Q samples, from t = T to 1; zero (T, D), with zero noise; picks
          (Q,): the step that each sample matches best, by name; corners (k, D), names k: the mean
          embedding of each possible step, k at most 4.
    """
    shades = dict(zip(names, COLORS))
    colors = [shades.get(name, OTHER) for name in picks]
    plane = torch.linalg.svd(corners - corners.mean(0))[2][:2].T               # (D, 2)
    figure = open_figure(7.0)
    panels = figure.subplots(2, 2, sharex=True, sharey=True).flat
    for axes, x_hat, one, t in zip(panels, predicted, zero, range(len(predicted), 0, -1)):
        across, up = (x_hat @ plane).T
        axes.scatter(across, up, 9, colors)
        across, up = (corners @ plane).T
        axes.scatter(across, up, 110, COLORS[:len(names)], marker="s", edgecolor="black")
        across, up = one @ plane
        axes.plot(across, up, "kX", markersize=11)
        spread = (x_hat - x_hat.mean(0)).norm(dim=-1).mean()
        axes.set(title=f"t = {t}: spread {spread:.2f}", xticks=[], yticks=[])
    marks = []
    for name, color in shades.items():
        marks.append(plt.Line2D([], [], color=color, marker="s", linestyle="", label=name))
    marks.append(plt.Line2D([], [], color=OTHER, marker="o", linestyle="", label="another step"))
    marks.append(plt.Line2D([], [], color="black", marker="X", linestyle="", label="zero noise"))
    figure.legend(handles=marks, loc="outside lower center", ncols=3)


def show_shares(panels, rows=5):
    """Show what follows: {title: (samples, exact)}, both {text: share}, a panel each. The `rows`
    that are largest of both are shown."""
    figure = open_figure(0.8 + 0.72 * rows)
    for axes, (title, (samples, exact)) in zip(figure.subplots(1, len(panels), squeeze=False)[0],
                                               panels.items()):
        total = {}
        for text in sorted(set(samples) | set(exact)):
            total[text] = samples.get(text, 0.0) + exact.get(text, 0.0)
        texts = sorted(total, key=total.get, reverse=True)[:rows]
        for shares, height, style in ((samples, -0.4, {"color": BLUE, "label": "samples"}),
                                      (exact, 0.4, dict(TRUE, label="exact"))):
            widths = [shares.get(text, 0.0) for text in texts]
            bars = axes.barh(range(len(texts)), widths, height, align="edge", **style)
            axes.bar_label(bars, fmt="{:.0%}", padding=3, fontsize=SMALL)
        width = 13                                     # letters, of a step
        if ">" in "".join(texts):                      # of a future
            width = 45
        axes.set_yticks(range(len(texts)), [fill(text, width) for text in texts], fontsize=SMALL)
        longest = max(max(samples.values()), max(exact.values(), default=0.0))
        axes.set(title=title, xticks=[], ylim=(rows - 0.4, -0.6), xlim=(0, 1.25 * longest))
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)


def show_losses(curves, lowest, guess):
    """Show the three losses of each update: curves (updates, 3) of L_XE, L_MSE and L_MC; beside the
    cross entropies, their lowest possible value, and that of a guess."""
    panels = open_figure(2.9).subplots(1, 3)
    for axes, curve, title in zip(panels, zip(*curves), ("L_XE (f)", "L_MSE (h)", "L_MC (h)")):
        axes.plot(range(1, len(curve) + 1), curve, color=BLUE, linewidth=2)
        axes.set(title=title, xlabel="update")
        if title != "L_MSE (h)":
            axes.axhline(guess, linestyle="--", color="black")
            axes.axhline(lowest, linestyle=":", color="black")
            axes.set_ylim(lowest - 0.3, max(guess, max(curve)) + 0.3)


def show_look_alikes(found):
    """Show two look-alikes, {name: clips (n, F, 3, H, W) uint8}: two frames of each, and the mean
    of all of its frames, with more contrast and the lamp framed."""
    panels = open_figure(2.0).subplots(1, 6)
    for row, (name, clips) in zip((panels[:3], panels[3:]), found.items()):
        mean = (2 * (clips.float().mean((0, 1)) - 40)).clamp(0, 255).byte()
        for axes, picture in zip(row, (clips[0, 1], clips[1, 1], mean)):
            draw_frame(axes, picture, title=f"{name}\n")
        row[2].set_title(f"{name}:\nmean", fontsize=SMALL, loc="center")
        row[2].add_patch(plt.Rectangle((-0.5, -0.5), 6, 6, fill=False, edgecolor="red"))


def show_histograms(found, pair):
    """Show where clips of two look-alikes lie on the line between them: {title: two of (n,)}."""
    figure = open_figure(3.0)
    for axes, (title, along) in zip(figure.subplots(1, len(found)), found.items()):
        bins = np.histogram_bin_edges(torch.cat(along).numpy(), 20)
        for values, name, color in zip(along, pair, (ORANGE, BLUE)):
            axes.hist(values.numpy(), bins, color=color, alpha=0.6, label=name)
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set(title=title, xticks=[], yticks=[])
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
