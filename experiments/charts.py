"""Pictures of the pages: `python -m experiments.charts --task | --look-alikes RUN ... | --curves
RUN ... | --places F.json ...`."""
import json
from pathlib import Path
from statistics import mean
from textwrap import fill

import numpy as np
import torch
from torch.nn.functional import normalize

import weights
from data import classify_examples, consecutive, sentence_windows, sentences_in
from model import merge
from predict import count_as_one, forecast, joined_names
from pseudo_labels import soft_targets
from support.arguments import INCLUDED, Parser
from support.errors import run_command
from support.figures import BLUE, plot_bars, save_figure
from support.read import read_lines, read_text
from toy import grammar
from toy.render import LAMP_SIZE
from toy.source import Toy, load_teacher
from train import draw

CURVES = "loss", "xe", "mse", "mc", "match", "match_h"     # of metrics.jsonl; Eqs. 7 to 10
PLACES = {                                                 # of by_place, in Okabe and Ito's colors
    "exact": ("exact", dict(color="black", marker="_", markersize=14, linewidth=0.8)),
    "zero_noise": ("h, zero noise", dict(color=BLUE, marker="o", linewidth=2.2, elinewidth=1)),
    "similar": ("similar histories", dict(color="#009E73", marker="^", linestyle=":")),
    "set": ("from the set", dict(color="#D55E00", marker="s", linestyle="--", mfc="white"))}
PAIR, ORANGE = grammar.LOOK_ALIKES[1], "#E69F00"           # heat pan, cool pan
VIDEOS = 300                                               # of a histogram
DRAWN, MISSING = 7, 5                                      # --task: the first test video whose nine
                                                           # clips show all its steps, PAIR too
FORECASTS = (("Observing clips 1 to 5", 5, False),         # how many clips h observes, and whether
             ("The same, clips {} and {} swapped", 5, True),           # those of PAIR change places
             ("Observing clips 1 to 6", 6, False))


def plot_curves(figure, runs):
    """Draw CURVES of the metrics.jsonl of run folders over epochs, a panel each."""
    figure.set_size_inches(9, 5)
    panels = figure.subplots(2, 3).flatten()
    for folder in runs:
        rows = [json.loads(line) for _, line in read_lines(folder / "metrics.jsonl")]
        epochs = [row["epoch"] for row in rows]
        for axes, name in zip(panels, CURVES):
            axes.plot(epochs, [row.get(name) for row in rows], marker=".", markersize=2,
                      linewidth=0.8, label=folder)
            axes.set(title=name, xlabel="epoch")
    panels[0].legend()


def read_places(files):
    """The % right by the number of earlier steps k, {name of PLACES: [{k: number} of each file that
    has it]}, of JSON files of forecasts (evaluate.py) and of similar histories (probes.py)."""
    found = {name: [] for name in PLACES}
    for file in files:
        content = json.loads(read_text(file))
        rows = content.get("by_place") or content["similar"]["by_place"]
        for name in PLACES:
            if all(name in row for row in rows.values()):
                found[name].append({int(k): rows[k][name] for k in sorted(rows, key=int)})
    return found


def spread_over(scores):
    """The means over files of [{k: number} of each], and how far the lowest are below and the
    highest above: each a list over k."""
    means, below, above = [], [], []
    for k in scores[0]:
        row = [score[k] for score in scores]
        means.append(mean(row))
        below.append(mean(row) - min(row))
        above.append(max(row) - mean(row))
    return means, below, above


def plot_places(figure, files):
    """Draw % right by the number of earlier steps, of JSON files of forecasts and of probes in the
    toy world: the means over the files, and bars from the lowest to the highest."""
    figure.set_size_inches(5.6, 3.2)                       # 700 pixels wide
    axes, scores = figure.subplots(), read_places(files)
    for name, (label, style) in PLACES.items():
        if not scores[name]:
            continue
        places = list(scores[name][0])
        means, below, above = spread_over(scores[name])
        axes.errorbar(places, means, [below, above], label=label, **style)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    axes.set(title="% right", xlabel="number of earlier steps", ylim=(0, 104), xticks=places)


def clips_of_pair(split, teacher):
    """The middle clip of each time that videos of a split show a step of PAIR -> for each of the
    two, what f and what the teacher reads."""
    source = Toy.of(split, range(VIDEOS), 4, teacher)
    pair = []
    for name in PAIR:
        clips, seen = [], []
        for example in classify_examples(source.videos, 1):
            if grammar.STEPS[example.label] == name:
                its_clips, its_seen = source.clips(example.video, example.windows)
                clips.append(its_clips)
                seen.append(its_seen)
        pair.append((torch.cat(clips), torch.cat(seen)))
    return pair


def embed_pair(model, pair):
    """The clips of `clips_of_pair` by the f of a model; None: by the teacher. Two of (M, D), of
    length 1."""
    found = []
    for clips, seen in pair:
        x = model.encode(clips) if model else seen
        found.append(normalize(x, dim=-1))
    return found


def name_of_run(model):
    """How a model was trained, in the words of docs/results.md."""
    if model.settings["context"] == "shuffled":
        return "f, shuffled clips"
    if model.config.order == "none":
        return "f without h"
    return "f, the default"


@torch.no_grad()
def plot_look_alikes(figure, runs):
    """Draw which of two look-alikes a clip of test videos shows, by the line through the mean
    embeddings of the two in training videos: of the teacher, and of the f of each run."""
    figure.set_size_inches(8, 2.1)
    teacher = load_teacher("cpu")
    known, asked = clips_of_pair("train", teacher), clips_of_pair("test", teacher)
    models = {"teacher": None}
    for folder in runs:
        model = weights.load(folder)
        models[name_of_run(model)] = model
    for axes, (title, model) in zip(figure.subplots(1, len(models)), models.items()):
        first, second = [x.mean(0) for x in embed_pair(model, known)]              # (D,) each
        middle, line = (first + second) / 2, first - second
        along = [(x - middle) @ line for x in embed_pair(model, asked)]            # (M,) each
        right = torch.cat([along[0] > 0, along[1] < 0]).float().mean()
        bins = np.histogram_bin_edges(torch.cat(along).numpy(), 24)
        for values, name, color in zip(along, PAIR, (ORANGE, BLUE)):
            axes.hist(values.numpy(), bins, color=color, alpha=0.6, label=name)
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set(title=f"{title}:\n{right:.0%} right", xticks=[], yticks=[])
    bars, names = axes.get_legend_handles_labels()
    figure.legend(bars, names, loc="outside lower center", ncols=2)


@torch.no_grad()
def plot_task(figure, checkpoint):
    """Draw what training asks and what forecasts answer, of one test video: nine clips with what is
    said, shown and seen by the teacher, which one is missing and which are hidden; the next step
    after five of these clips, after the same with two look-alikes swapped, and after six."""
    figure.set_size_inches(9, 5.3)
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.1, 1))
    model, teacher = weights.load(checkpoint), load_teacher("cpu")
    source, rng = Toy.of("test", [DRAWN], 4, teacher), np.random.default_rng(0)
    narration = source.narration(0)
    windows = consecutive(sentence_windows(narration, source.duration(0), rng), rng)
    clips, seen = source.clips(0, windows)
    shown = source.truth.of_forecast(windows, [])["clips"]
    draw_training(top, model, clips, seen, sentences_in(narration, windows), shown)
    bottom.suptitle("Forecasts: which step comes next, in 50 samples", x=0.01, ha="left")
    x, texts = model.encode(clips), teacher.encode_phrases(grammar.STEPS)
    for axes, (title, count, swapped) in zip(bottom.subplots(1, 3), FORECASTS):
        order = list(range(count))
        if swapped:
            a, b = [shown.index(name) for name in PAIR]
            order[a], order[b] = b, a
            title = title.format(min(a, b) + 1, max(a, b) + 1)
        shares, true = next_steps(model, x[order], texts, [shown[i] for i in order])
        plot_bars(axes, title, shares, true, most=len(true))


def draw_training(figure, model, clips, seen, said, shown):
    """Draw nine clips as training has them: what is said, which are missing and hidden, the lamps
    of look-alikes, and below each the step shown and the teacher's two likeliest phrases."""
    share, sentences = said
    likeliest = soft_targets(seen, model.phrases, model.tau).topk(2)
    with_lamp = sum(grammar.LOOK_ALIKES, ())
    observed = draw(1, model.dim, 4, "release", "observed", 0, 0)[2][0, MISSING]
    title = "Training: what does the missing clip show? h reads the clips that are not hidden.\n"
    title += "Below each clip: the step it shows; the teacher's two likeliest phrases."
    figure.suptitle(title, x=0.01, ha="left")
    for i, axes in enumerate(figure.subplots(1, len(clips))):
        sentence = fill(f"“{sentences[share[i].argmax()]}”", 14, max_lines=6, placeholder=" ...")
        axes.set_title(f"clip {i + 1}\n{sentence}", fontsize=7.5)
        opaque, mark, size = 1.0, "", 9
        if i == MISSING:
            opaque, mark, size = 0.12, "?", 22
        elif not observed[i]:
            opaque, mark = 0.12, "hidden"
        axes.imshow(clips[i, 2].permute(1, 2, 0).numpy(), alpha=opaque)
        axes.text(16, 16, mark, ha="center", va="center", fontsize=size)
        if shown[i] in with_lamp:                          # a square around the lamp
            edge = LAMP_SIZE - 0.5
            axes.plot([0, edge, edge, 0, 0], [0, 0, edge, edge, 0], color="white", linewidth=1)
        axes.set(xticks=[], yticks=[])
        label = shown[i] or "no step"
        for p, k in zip(likeliest.values[i], likeliest.indices[i]):
            label += f"\n{grammar.PHRASES[k]} {p:.0%}"
        axes.set_xlabel(label, fontsize=7.5)


def next_steps(model, x, texts, shown):
    """The step after clips x (N, D), which show these steps from the first of a video on: {name:
    share of 50 samples}, the likeliest first, and the exact {name: p}; look-alikes as one."""
    names, as_one = count_as_one(grammar.STEPS, joined_names(grammar.STEPS, grammar.LOOK_ALIKES))
    noise = torch.randn(1, 50, model.dim, generator=torch.Generator().manual_seed(0))
    following, _ = forecast(model, x, texts, as_one, names, noise)
    shares = {row["step"]: row["share"] for row in following if row["share"] > 0}
    p = grammar.Grammar().next_step([grammar.STEP_ID[name] for name in shown], True)
    exact = merge(torch.from_numpy(p).float(), as_one, len(names))
    return shares, {names[k]: float(exact[k]) for k in exact.nonzero()[:, 0]}


def main(args):
    """Draw the picture."""
    draws = {"curves": plot_curves, "places": plot_places, "look_alikes": plot_look_alikes,
             "task": plot_task}
    for name, plot in draws.items():
        asked = getattr(args, name)
        if asked:
            save_figure(args.out or Path(f"{name}.png"), plot, asked)


def parse(argv=None):
    """The command line."""
    parser = Parser("Draw the task, the experiment, curves of runs, or % right by position.")
    one = parser.add_mutually_exclusive_group(required=True).add_argument
    one("--task", nargs="?", const=INCLUDED, type=Path, metavar="RUN", help="what training asks, "
        "and a forecast (default: of the included checkpoint)")
    one("--look-alikes", type=Path, nargs="+", metavar="RUN", help="which of two a clip shows, "
        "by the teacher and by the f of these runs")
    one("--curves", type=Path, nargs="+", metavar="RUN", help="folders of runs")
    one("--places", type=Path, nargs="+", metavar="F.json", help="of evaluate.py and "
        "of experiments.probes, one per seed")
    parser.add_argument("--out", type=Path, help="the picture (default: the name of the flag .png)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run_command(main, parse)
