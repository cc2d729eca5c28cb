"""Two probes that only the toy world allows: `python -m experiments.probes CHECKPOINT`.

    similar   How often the right step followed the most similar histories of training: a lookup by
              the same f, in place of h.
    futures   Whether the grammar allows futures that h samples, one step after another. Without
              labels, a look-alike counts as either of its pair.

M forecasts, V videos of N clips, Q samples, H steps ahead, S steps, D embedding. p: (M, S).
"""
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import normalize, one_hot, pad

import weights
from data import HISTORY_CLIPS, Example, forecast_examples, sentence_windows
from evaluate import counted_as
from model import merge, sample_in_turn
from sources import history_of, require_world, texts_of
from support.arguments import Parser, add_run_flags, limit_threads, pick_device, positive
from support.encode import encode_examples
from support.errors import require, run_command
from support.metrics import draw_correct, pack, percent, print_rows, share_of, topk_correct
from support.write import write_json
from toy import grammar, render
from toy.source import Toy, load_teacher
from toy.truth import observed_steps

NEIGHBORS = 50                 # similar histories; chosen on validation videos from 20, 50, 100
FUTURES, DRAWS = 100, 200      # forecasts whose futures are sampled; samples of each
AT_ONCE = 256                  # histories that are compared at once with all of training


# --- Similar histories ---
def histories(x):
    """The eight clips before each place of x (V, N, D), zeros before the first: (V, N + 1, 8 D),
    length 1. So the last clips of two histories are compared with each other."""
    clips = pad(x, (0, 0, HISTORY_CLIPS, 0)).unfold(1, HISTORY_CLIPS, 1)       # (V, N + 1, D, 8)
    return normalize(clips.mT.flatten(2), dim=-1)


def training_clips(model, args):
    """f's embeddings of the clips of all videos that the checkpoint was trained on, cut as in
    training: (V, N, D), and how many of the N each video has, (V,)."""
    rng, count = np.random.default_rng(args.seed), model.settings["toy_videos"]
    source, examples = Toy.of("train", range(count), model.encoder.frames), []
    for i in range(count):
        windows = sentence_windows(source.narration(i), source.duration(i), rng,
                                   model.config.stride)
        examples.append(Example(i, windows, None, 0))
    x, n, _, _, _ = encode_examples(model, None, source, examples, args)
    return x, n


def similar_histories(model, x, n, texts, args):
    """How often each step followed the NEIGHBORS most similar histories of training: p (M, S).

    They are the clips before each clip of training, at most eight, as h reads them. The step that
    followed is that clip's likeliest step, by Eq. 6. x (M, N, D), n (M,): the histories to compare.
    """
    clips, counts = training_clips(model, args)                                # (V, N, D), (V,)
    before = histories(clips)                                                  # (V, N + 1, 8 D)
    steps = model.match(clips, texts).argmax(-1)                               # (V, N)
    i = torch.arange(clips.shape[1], device=clips.device)
    own = (i > 0) & (i < counts[:, None])              # nothing is before a video's first clip
    keys, following = before[:, :-1][own], steps[own]
    queries, nearest = histories(x)[range(len(n)), n], []                      # (M, 8 D)
    for part in queries.split(AT_ONCE):
        closest = (part @ keys.T).topk(min(NEIGHBORS, len(keys)))
        nearest.append(closest.indices)                                        # (.., NEIGHBORS)
    steps = following[torch.cat(nearest)]                                      # (M, NEIGHBORS)
    return one_hot(steps, len(texts)).double().mean(1).cpu()


# --- Futures ---
def is_possible(exact, labels, from_start, future, as_one):
    """Whether the grammar allows a future after what is known of the observed steps. future: ids as
    they are counted, so that a look-alike is either of its pair; as_one (S,): by `counted_as`."""
    meant = [torch.nonzero(as_one == step).flatten().tolist() for step in future]
    return exact.share(labels, from_start, meant) > 0


def sampled_futures(model, x, n, texts, source, examples, as_one, args):
    """Percent of sampled futures of --horizon steps, and of their first steps, that the grammar
    allows after the true steps: {"possible", "first"}. Over FUTURES forecasts that so many steps
    follow, with DRAWS samples each. None if there are none. as_one (S,): by `counted_as`."""
    H, long = args.horizon, []
    for i, example in enumerate(examples):
        if example.step + H <= len(source.videos[example.video].steps):
            long.append(i)
    if not long:
        return None
    exact, possible, begun = grammar.Grammar(), [], []
    for k in torch.linspace(0, len(long) - 1, min(len(long), FUTURES)).long():
        i = long[k]
        generator = torch.Generator().manual_seed(args.seed * 1000 + 500 + i)
        noise = torch.randn(H, DRAWS, model.dim, generator=generator)
        log_p = sample_in_turn(model, x[i, :n[i]], texts, noise)               # (DRAWS, H, S)
        picks = merge(log_p.exp(), as_one, len(texts)).argmax(-1)              # (DRAWS, H)
        known = observed_steps(examples[i], source.videos[examples[i].video])
        for future in picks.tolist():
            possible.append(is_possible(exact, *known, future, as_one))
            begun.append(is_possible(exact, *known, future[:1], as_one))
    return {"possible": percent(torch.tensor(possible)), "first": percent(torch.tensor(begun))}


# --- The command ---
def open_toy(args, device):
    """The checkpoint; the videos that it forecasts, a Toy; and the texts (S, D) of its steps.
    InputError unless it forecasts steps of this version of the toy world."""
    model = weights.load(args.checkpoint).to(device)
    limit_threads(model.encoder.image, device)
    require_world(model)
    require(model.config.clip == "toy" and model.encoder.image == render.SIZE
            and "toy_videos" in model.settings, f"{args.checkpoint}: is no run of the toy world")
    require(model.config.task in (None, "forecast"), f"{args.checkpoint}: is fine-tuned for "
            f"{model.config.task}, not to forecast")
    source = Toy.of(args.split, range(args.toy_videos), model.encoder.frames)
    texts = texts_of(model, load_teacher(device), list(grammar.STEPS))
    return model, source, texts


@torch.no_grad()
def probe(args):
    """Both probes of a checkpoint -> the content of --json."""
    # 1. The forecasts, as evaluate.py makes them.
    device = pick_device(args.device)
    model, source, texts = open_toy(args, device)
    history, spacing = history_of(model)
    examples = forecast_examples(source.videos, spacing)
    x, n, _, examples, _ = encode_examples(model, None, source, examples, args)

    # 2. The lookup.
    as_one = counted_as(model, source, len(texts))
    labels = torch.tensor([example.label for example in examples])             # (M,)
    y, truth = as_one[labels], source.truth
    p = merge(similar_histories(model, x, n, texts, args), as_one, len(texts))     # (M, S)
    right = {"similar": topk_correct(p, y)}
    chance, drawn = draw_correct(p, y, args.samples)
    parts = truth.parts(labels)
    parts["new"] = truth.is_new(examples)
    similar = {"top1": percent(right["similar"]), "top5": percent(topk_correct(p, y, 5)),
               "oracle": percent(chance), "by_place": truth.by_place(right, examples),
               "new": share_of(right, parts["new"])}
    right["similar_oracle"] = drawn

    # 3. Futures, if there is h.
    futures = None
    if model.denoiser:
        futures = sampled_futures(model, x, n, texts, source, examples, as_one, args)
    names = [source.videos[example.video].name for example in examples]
    return {"similar": similar, "futures": futures, "right": pack(right, names, parts),
            "evaluated": len(examples), "classes": len(as_one.unique()), "history": history,
            "seed": args.seed, "run_seed": model.settings.get("seed"),
            "checkpoint": str(args.checkpoint)}


def main(args):
    """Probe, print, and write the JSON if asked for."""
    content = probe(args)
    similar, futures = content["similar"], content["futures"] or {}
    print(f"toy {args.split}: {content['evaluated']} forecasts of {content['classes']} classes, "
          f"history {content['history']}, {content['checkpoint']}")
    rows = {"similar histories, % right": similar["top1"],
            "% among the five likeliest": similar["top5"],
            f"best of {args.samples} draws": similar["oracle"],
            "new to training": similar["new"]["similar"]}
    for k, row in similar["by_place"].items():
        rows[f"% right after step {k}"] = row["similar"]
    rows["% of futures possible"] = futures.get("possible")
    rows["% of their first steps"] = futures.get("first")
    print_rows(rows)
    if args.json:
        write_json(args.json, content)


def parse(argv=None):
    """The command line."""
    parser = Parser("Forecast by similar training histories, and sample futures, in the toy world.")
    add = parser.add_argument
    add("checkpoint", type=Path, help="a run of the toy world: a folder or a file")
    add("--split", choices=["test", "validation", "train"], default="test", help="which videos")
    add("--toy-videos", type=positive(int), default=1000, help="how many of them")
    add("--samples", type=positive(int), default=5, help="draws from similar histories, of which "
        "the best counts")
    add("--horizon", type=positive(int), default=3, help="steps of a future")
    add("--json", type=Path, help="also write the numbers here")
    add_run_flags(parser)
    return parser.parse_args(argv)


if __name__ == "__main__":
    run_command(main, parse)
