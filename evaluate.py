"""Measure a checkpoint, zero-shot or fine-tuned: `python evaluate.py --task forecast --oracle 5`.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.3, 4.1, 4.2 and 4.4, appendix C.

    task                     measures                                            paper
    forecast                 which step comes next, from the clips before it     Tables 1, 4, 5
    classify                 which step a clip shows                             Tables 2, 4
    activity                 which activity a video shows, fine-tuned            Table A
    infill                   which step is missing, from the others              Sec. 3.1
    classify, --data epic    verb, noun and action, fine-tuned                   Table 3
    features                 writes embeddings of whole videos to a file         -

The rows of a task are made in evaluation/tasks.py. Those of forecasting also hold baselines without
labels and, in the embedded world, the exact distribution of the next step.
"""
import time
from pathlib import Path

import torch

import weights
from data import EPIC_SECONDS, classify_examples, examples_of
from evaluation import tasks
from evaluation.labeled import (add_labeled_flags, encode_examples, open_labeled, require_task,
                                write_features)
from evaluation.table import print_table
from files.lists import epic_split
from support.arguments import Parser, add_run_flags, count, default_checkpoint
from support.device import limit_threads, pick_device
from support.errors import require, run
from support.write import write_json

ROWS = {"forecast": tasks.forecast, "classify": tasks.classify, "activity": tasks.activity,
        "infill": tasks.infill}


def examples_in(videos, args):
    """What is scored of these videos."""
    if args.data == "epic":
        return classify_examples(videos, tasks.VIEWS, EPIC_SECONDS)
    return examples_of(args.task, videos, args.min_steps)


def evaluate(args):
    """Score a checkpoint -> the content of --json."""
    # 1. The checkpoint, the videos, and the texts of their label set.
    began = time.perf_counter()
    device = pick_device(args.device)
    model = weights.load(args.checkpoint).to(device)
    limit_threads(model.encoder.image, device)
    require_task(model, args)
    source, teacher, texts = open_labeled(args, args.split, model, device,     # texts: (S, D)
                                          with_teacher=args.task != "infill")
    examples = examples_in(source.videos, args)
    require(examples, f"no {args.split} video to {args.task}; annotated steps are needed, to "
            f"forecast or infill --min-steps {args.min_steps} in a video")

    # 2. Their clips through f, and the task.
    x, seen, examples = encode_examples(model, teacher, source, examples, args, device)
    x, seen = (e if e is None else e.unflatten(0, (len(examples), -1))     # (M, N, D)
               for e in (x, seen))
    labels = torch.tensor([example.label for example in examples])
    measure = tasks.actions if args.data == "epic" else ROWS[args.task]
    with torch.no_grad():
        rows = measure(model, tasks.Read(source, examples, labels, x, seen, texts), args)

    # 3. The table.
    split = args.split
    if args.data == "epic":
        split = epic_split(args.annotations)
    return {"task": args.task, "data": args.data, "split": split,
            "setting": "fine-tuned" if model.task else "zero-shot", "order": model.order,
            "listed": len(examples_in(source.listed, args)), "evaluated": len(examples),
            "absent": len(source.absent), "unreadable": len(source.unreadable),
            "classes": sum(model.classes) if texts is None else len(texts),
            "samples": args.samples if args.task in ("forecast", "infill") else None, **rows,
            "seed": args.seed, "checkpoint": str(args.checkpoint),
            "seconds": time.perf_counter() - began}


def main(args):
    """Score, print, and write the JSON if asked for; or write a features file."""
    if args.task == "features":
        write_features(args)
        return
    content = evaluate(args)
    print_table(content)
    if args.json:
        write_json(args.json, content)


def parse(argv=None):
    """The command line."""
    parser = Parser("Measure a checkpoint: forecasting, classification, infilling.")
    add = parser.add_argument
    add("--task", choices=[*ROWS, "features"], help="what to measure (default: forecast; with "
        "--data epic classify); features: write embeddings of --videos to --out")
    add("--checkpoint", type=Path, help="a run folder, a file of ours, or a published one "
        "(default: runs/pretrain, else the checkpoint that comes with the code)")
    add_labeled_flags(parser)
    add("--split", choices=["test", "validation", "train"], default="test", help="which videos")
    add("--toy-videos", type=count, default=1000, help="videos of the embedded world's split")
    add("--min-steps", type=count, default=2, help="leave out videos with fewer annotated steps")
    add("--samples", "--oracle", type=count, default=5, dest="samples",
        help="Monte Carlo samples per forecast (Eq. 11); the oracle counts the best of them")
    add("--horizon", type=count, default=1, help="also sample futures of so many steps")
    add("--json", type=Path, help="also write the numbers here")
    add("--out", type=Path, default=Path("features.npz"), help="features: the file to write")
    add("--batch", type=count, default=64, help="examples at once; no effect on the result")
    add_run_flags(parser)
    args = parser.parse_args(argv)
    args.task = args.task or ("classify" if args.data == "epic" else "forecast")
    require(args.data != "epic" or args.task == "classify", f"--task {args.task}: --data epic has "
            "actions to classify")
    args.checkpoint = args.checkpoint or default_checkpoint()
    return args


if __name__ == "__main__":
    run(main, parse)
