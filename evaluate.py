"""Measure a checkpoint, zero-shot or fine-tuned: `python evaluate.py --task forecast --oracle 5`.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.3, 4.1, 4.2 and 4.4, appendix C.

    task                     measures                                            paper
    forecast                 which step comes next, from the clips before it     Tables 1, 4, 5
    classify                 which step a clip shows                             Tables 2, 4
    activity                 which activity a video shows, fine-tuned            Table A
    infill                   which step is missing, from the others              Sec. 3.1
    classify, --data epic    verb, noun and action, fine-tuned                   Table 3
    features                 writes embeddings of whole videos to a file         -

Forecasts and infillings are made here. evaluation/tasks.py has the other tasks, and what forecasts
are compared with: baselines without labels, and the truth of the toy world.
M examples, N clips of each, Q Monte Carlo samples, S steps (the label set), D embedding.
"""
import time
from pathlib import Path

import torch

import weights
from data import EPIC_SECONDS, classify_examples, examples_of
from diffusion import expectation
from evaluation import tasks
from evaluation.inference import draw_noise, predict_missing
from evaluation.labeled import (add_labeled_flags, encode_examples, open_labeled, require_task,
                                warn_of_data, write_features)
from evaluation.metrics import (accuracies, best_of_draws, distinct, pack, percent, print_lines,
                                topk_correct)
from files.lists import epic_split
from support.arguments import (Parser, add_run_flags, count, default_checkpoint, limit_threads,
                               pick_device)
from support.errors import require, run
from support.write import write_json


# --- Inference (Sec. 3.3): the clips x of M examples -> log p over the S texts of a label set ---
def score(model, x, texts, y, args, where=()):
    """Forecast y (M,) -> the lines of the table; log p of zero noise and of samples.

    Monte Carlo: h denoises Q draws of x_j^T ~ N(0, I) to x_hat_j^0, and Eq. 6 gives p(y | x_hat).
    The approximate inference takes the peak of the Gaussian, x_j^T = 0. The oracle of Table 5 is
    right if any of the Q samples has step y as its likeliest. The oracle knows the answer, so it
    measures what the samples cover. x (M, N, D); where: the missing clip, as in `predict_missing`.
    """
    noise = draw_noise((len(x), args.samples, model.dim), args.seed)           # x_j^T, (M, Q, D)
    log_p = predict_missing(model, x, texts, noise, args.batch, where)         # (M, Q, S)
    zeros = torch.zeros_like(noise[:, :1])
    zero = predict_missing(model, x, texts, zeros, args.batch, where)[:, 0]    # (M, S)
    p = {"zero_noise": zero, "expectation": expectation(log_p)}                # Eq. 11
    lines, right = accuracies(p, y), {name: topk_correct(p[name], y, 1) for name in p}     # (M,)
    right["oracle"] = (log_p.argmax(-1) == y[:, None]).any(1)
    lines["top1"]["oracle"] = percent(right["oracle"])
    # For comparison: one step drawn from each sample's p, or Q steps drawn from that of zero noise.
    for name, of in (("oracle_draws", log_p), ("oracle_softmax", zero[:, None].expand_as(log_p))):
        chance = best_of_draws(of, y)                                          # (M,)
        lines["top1"][name] = percent(chance)
        sums = (chance.cumsum(0) + 0.5).floor()            # as many right as the chances add up to
        right[name] = sums.diff(prepend=sums.new_zeros(1)) > 0
    return lines | {"distinct": distinct(log_p), "right": right}, zero, log_p


def forecast(model, read, args):
    """Which step comes next, from the 8 clips before it; with baselines and the truth."""
    y, toy, parts = read.labels, args.data == "toy", {}
    lines, zero, log_p = score(model, read.x, read.texts, y, args)
    known = tasks.exact_forecasts(read) if toy else {}                         # (M, S) each
    exact, right = known.get("bayes_top1"), lines["right"]
    lines["baselines"], others = tasks.baselines(model, read, exact, args)
    right |= others | {name: topk_correct(p, y, 1) for name, p in known.items()}
    lines |= dict.fromkeys(("truth", "by_pair", "new", "futures"))
    if toy:
        parts["new"] = tasks.new_forecasts(read)                               # (M,)
        lines |= tasks.beside_the_truth(model, read, zero, log_p, exact, right, parts["new"], args)
    return lines | {"right": pack(right, read.examples, parts)}


def infill(model, read, args):
    """Predict each step of a video from the others. by_position: first, between, last steps."""
    x, missing, where, position = tasks.hide_each_step(read)
    y, examples = read.labels[missing], [read.examples[i] for i in missing.tolist()]
    lines, zero, _ = score(model, x, read.texts, y, args, where)
    kinds, right = [position == kind for kind in range(3)], lines["right"]
    lines |= {"evaluated": len(y), "truth": None,
              "by_position": [percent(right["zero_noise"][kind]) for kind in kinds]}
    if args.data == "toy":
        right["bayes_top1"] = topk_correct(tasks.exact_infilling(read, missing), y, 1)
        lines["truth"] = {"bayes_top1": percent(right["bayes_top1"]), "by_position": [
            percent(right["bayes_top1"][kind]) for kind in kinds]}
    return lines | {"right": pack(right, examples)}


# --- The command ---
TASKS = {"forecast": forecast, "classify": tasks.classify, "activity": tasks.activity,
         "infill": infill}


def examples_in(videos, args):
    """The examples of these videos that are scored."""
    if args.data == "epic":
        return classify_examples(videos, tasks.VIEWS, EPIC_SECONDS)
    return examples_of(args.task, videos, args.min_steps)


def evaluate(args):
    """Score a checkpoint -> the content of --json."""
    # 1. The checkpoint, the videos, and the texts of their label set.
    began = time.perf_counter()
    device = pick_device(args.device)
    model = weights.load(args.checkpoint).to(device)
    model.scores = args.scores
    limit_threads(model.encoder.image, device)
    require_task(model, args)
    source, teacher, texts = open_labeled(args, args.split, model, device,     # texts: (S, D)
                                          with_teacher=args.task != "infill")
    examples = examples_in(source.videos, args)
    require(examples, f"no {args.split} video to {args.task}; a video needs annotated steps; to "
            f"forecast or infill, at least {args.min_steps} of them (--min-steps)")

    # 2. Their clips through f, and the task.
    x, seen, examples = encode_examples(model, teacher, source, examples, args, device)
    x, seen = (e if e is None else e.unflatten(0, (len(examples), -1))     # (M, N, D)
               for e in (x, seen))
    labels = torch.tensor([example.label for example in examples])
    measure = tasks.actions if args.data == "epic" else TASKS[args.task]
    with torch.no_grad():
        lines = measure(model, tasks.Read(source, examples, labels, x, seen, texts), args)

    # 3. The table.
    return {"task": args.task, "data": args.data,
            "split": epic_split(args.annotations) if args.data == "epic" else args.split,
            "setting": "fine-tuned" if model.task else "zero-shot", "order": model.order,
            "listed": len(examples_in(source.listed, args)), "evaluated": len(examples),
            "absent": len(source.absent), "unreadable": len(source.unreadable),
            "classes": sum(model.classes) if texts is None else len(texts),
            "samples": args.samples if args.task in ("forecast", "infill") else None, **lines,
            "warning": warn_of_data(model, args.data == "toy"), "seed": args.seed,
            "checkpoint": str(args.checkpoint), "seconds": time.perf_counter() - began}


def main(args):
    """Score, print, and write the JSON if asked for; or write a features file."""
    if args.task == "features":
        return write_features(args)
    content = evaluate(args)
    print_lines(content)
    print("standard error of a percentage of {evaluated:,} examples: at most {:.1f}; what the "
          "lines are: docs/results.md".format(50 / content["evaluated"] ** 0.5, **content))
    if args.json:
        write_json(args.json, content)


def parse(argv=None):
    """The command line."""
    parser = Parser("Measure a checkpoint: forecasting, classification, infilling.")
    add = parser.add_argument
    add("--task", choices=[*TASKS, "features"], help="what to measure (default: forecast; with "
        "--data epic classify); features: write those of --videos or the toy world to --out")
    add("--checkpoint", type=Path, help="a run folder, a file of ours, or a published one "
        "(default: runs/pretrain, else the checkpoint that comes with the code)")
    add_labeled_flags(parser)
    add("--split", choices=["test", "validation", "train"], default="test", help="which videos")
    add("--toy-videos", type=count, default=1000, help="videos of the toy world's split")
    add("--min-steps", type=count, default=2, help="leave out videos with fewer annotated steps")
    add("--samples", "--oracle", type=count, default=5, dest="samples",
        help="Monte Carlo samples per forecast (Eq. 11); the oracle counts the best of them")
    add("--horizon", type=count, default=1, help="also sample futures of this many steps")
    add("--json", type=Path, help="also write the numbers here")
    add("--out", type=Path, default=Path("features.npz"), help="features: the file to write")
    add("--batch", type=count, default=64, help="examples at once; no effect on the result")
    add_run_flags(parser)
    args = parser.parse_args(argv)
    args.task = args.task or ("classify" if args.data == "epic" else "forecast")
    require(args.data != "epic" or args.task == "classify", f"--task {args.task}: --data epic can "
            "only classify actions")
    args.checkpoint = args.checkpoint or default_checkpoint()
    return args


if __name__ == "__main__":
    run(main, parse)
