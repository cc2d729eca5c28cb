"""Measure a checkpoint, zero-shot or fine-tuned: `python evaluate.py --task forecast --oracle 5`.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.3, 4.1, 4.2 and 4.4, appendix C.

    task                     measures                                            paper
    forecast                 which step comes next, from the clips before it     Tables 1, 4, 5
    classify                 which step a clip shows                             Tables 2, 4
    activity                 which activity a video shows, fine-tuned            Table A
    classify, --data epic    verb, noun and action, fine-tuned                   Table 3
    features                 writes embeddings of whole videos to a file         -

M examples, N <= 8 clips of each, Q Monte Carlo samples, S steps (the label set), D embedding.
"""
import time
from pathlib import Path

import torch

import weights
from diffusion import expectation
from evaluation import tasks
from evaluation.features import write_features
from evaluation.labeled import (add_labeled_flags, encode_examples, examples_of, open_labeled,
                                require_task, warn_of_data)
from evaluation.metrics import accuracies, print_lines
from evaluation.prediction import match_labels
from files.lists import epic_split
from losses import match
from support.arguments import (Parser, add_run_flags, default_checkpoint, limit_threads,
                               pick_device, refuse_other_paths)
from support.errors import require, run
from support.write import write_json


# --- Inference (Sec. 3.3): the clips of M examples -> p over the S steps of a label set ---
@torch.no_grad()
def score(model, x, n, texts, noise, batch):
    """Forecast the clip that follows each history, `batch` histories at a time, on the CPU.

    Monte Carlo: h denoises Q draws of x_j^T ~ N(0, I) to x_hat_j^0, and Eq. 6 gives p(y | x_hat).
    The approximate inference takes the peak of the Gaussian, x_j^T = 0.

    Args:    x (M, N, D), n (M,): how many of the N clips a history has; texts (S, D), None once
             fine-tuned; noise (M, Q, D), standard normal.
    Returns: log p(y) of zero noise (M, S), and of each sample (M, Q, S).
    """
    zero, samples = [], []
    for x, n, noise in zip(x.split(batch), n.split(batch), noise.split(batch)):
        x_hat = model.forecast_next(x, torch.zeros_like(x[:, :1]), n)      # (B, 1, D)
        zero.append(match_labels(model, x_hat[:, 0], texts).cpu())
        x_hat = model.forecast_next(x, noise.to(x.device), n)              # (B, Q, D)
        samples.append(match_labels(model, x_hat, texts).cpu())
    return torch.cat(zero), torch.cat(samples)


def forecast(model, x, n, seen, texts, labels, examples, videos, args):
    """Which step comes next, from the clips before it: zero noise, mean and best of the samples
    (Table 5: an oracle picks one whose likeliest step is right), and what stands beside them."""
    toy = args.data == "toy"
    noise = torch.randn(len(x), args.samples, model.dim,
                        generator=torch.Generator().manual_seed(args.seed))            # x_j^T
    zero, samples = score(model, x, n, texts, noise, args.batch)
    clips = seen.sum(1) / n[:, None]         # the paper re-purposes CLIP: their mean    (M, D)
    p = {"zero_noise": zero.exp(), "expectation": expectation(samples),                # Eq. 11
         "teacher": match(clips, texts, model.tau).exp().cpu(), "samples": samples.exp()}
    if args.similar and toy:
        p["similar"] = tasks.similar_histories(model, x, n, texts, args)
    lines = tasks.forecast_lines(p, labels, examples, videos, toy, model.task)
    if toy and args.horizon > 1:
        lines["futures"] = tasks.sampled_futures(model, x, n, texts, examples, videos,
                                                 args.horizon, args.seed)
    return lines


# --- The command ---
def evaluate(args):
    """Score a checkpoint -> the content of --json."""
    # 1. The checkpoint, the videos, and the texts of their label set.
    began, device = time.perf_counter(), pick_device(args.device)
    toy, epic = args.data == "toy", args.data == "epic"
    model = weights.load(args.checkpoint).to(device)
    limit_threads(model.encoder.image, device)
    require_task(model, args.task, args.data)
    refuse_other_paths(args)
    source, _, teacher, texts = open_labeled(model, device, args, args.split)
    pitch = None if args.history == "released" else model.pitch
    listed, examples = (examples_of(videos, args.task, args.data, pitch, args.min_steps)
                        for videos in (source.listed, source.videos))
    require(examples, f"no {args.split} video has {args.min_steps} steps, or one to {args.task}")

    # 2. Their clips through f, and the task.
    x, n, seen, examples = encode_examples(model, teacher, source, examples, args)
    labels = torch.tensor([example.label for example in examples])
    with torch.no_grad():
        if epic:
            lines = tasks.action_lines(model.classify(x), labels)
        elif args.task == "activity":                      # the classifier on h(0, {x_i})
            log_p, _ = score(model, x, n, None, torch.zeros(len(x), 1, model.dim), args.batch)
            lines = accuracies({"ours": log_p}, labels)
        elif args.task == "classify":
            log_p = {"ours": match_labels(model, x, texts),                            # (M, 3, S)
                     "teacher": match(seen, texts, model.tau)}
            lines = tasks.classify_lines(log_p, labels, examples, toy, model.task)
        else:
            lines = forecast(model, x, n, seen, texts, labels, examples, source.videos, args)

    # 3. The table.
    return {"task": args.task, "data": args.data,
            "split": epic_split(args.annotations) if epic else args.split,
            "setting": "fine-tuned" if model.task else "zero-shot", "order": model.order,
            "listed": len(listed), "evaluated": len(examples), "absent": len(source.absent),
            "unreadable": len(source.unreadable),
            "classes": sum(model.classes) if texts is None else len(texts),
            "samples": args.samples if args.task == "forecast" else None, **lines,
            "warning": warn_of_data(model, toy), "seed": args.seed,
            "run_seed": model.settings.get("seed"), "checkpoint": str(args.checkpoint),
            "seconds": time.perf_counter() - began}


def main(args):
    """Score, print, and write the JSON if asked for; or write a features file."""
    if args.task == "features":
        return write_features(args)
    content = evaluate(args)
    print_lines(content)
    if args.json:
        write_json(args.json, content)


def parse(argv=None):
    """The command line."""
    parser = Parser("Measure a checkpoint: forecasting, classification.")
    add = parser.add_argument
    add("--task", choices=["forecast", "classify", "activity", "features"], help="what to measure "
        "(default: forecast; epic: classify); features: write those of --videos to --out")
    add("--checkpoint", type=Path, help="a run folder, a file of ours, or a published one "
        "(default: runs/pretrain, else the checkpoint that comes with the code)")
    add_labeled_flags(parser)
    add("--split", choices=["test", "validation", "train"], default="test", help="which videos")
    add("--toy-videos", type=int, default=1000, help="videos of the toy world's split")
    add("--min-steps", type=int, default=2, help="leave out videos with fewer annotated steps")
    add("--history", choices=["pitch", "released"], default="pitch", help="a forecast observes at "
        "most eight clips as far apart as in training; or, as published weights do, 68 s in eight")
    add("--samples", "--oracle", type=int, default=5, dest="samples",
        help="Monte Carlo samples per forecast (Eq. 11); the oracle counts the best of them")
    add("--similar", action="store_true", help="also forecast by similar training histories (toy)")
    add("--horizon", type=int, default=1, help="also sample futures of this many steps (toy)")
    add("--json", type=Path, help="also write the numbers here")
    add("--out", type=Path, default=Path("features.npz"), help="features: the file to write")
    add("--batch", type=int, default=64, help="examples at once; no effect on the result")
    add_run_flags(parser)
    args = parser.parse_args(argv)
    args.task = args.task or ("classify" if args.data == "epic" else "forecast")
    args.checkpoint = args.checkpoint or default_checkpoint()
    return args


if __name__ == "__main__":
    run(main, parse)
