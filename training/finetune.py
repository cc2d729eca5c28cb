"""Fine-tune a checkpoint with labels: `python train.py --stage finetune --task classify`.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.3, 4.1, 4.2 and appendices B, C.

    task                   the classifier reads                     trained            paper
    classify               x = f(v), a clip of a step               classifier         Table 2
    forecast               x_hat = h(0, {x_i}), the next clip       h and classifier   Table 1
    activity               the same; 8 clips span the video         h and classifier   App. C
    classify, --data epic  x = f(v), 32 frames of an action         f and classifier   Table 3

The classifier is one linear layer, its logits divided by tau. The loss is its cross entropy alone,
and noise is zero, as in the release. After `--order none` a new h is trained.
N clips of an example, B examples per update, S classes, D embedding.
"""
import math
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.distributed import is_torchelastic_launched
from torch.nn.functional import nll_loss, normalize
from torch.nn.utils import clip_grad_norm_
from tqdm import tqdm

import weights
from data import EPIC_FRAMES
from evaluation.labeled import add_labeled_flags, encode_examples, examples_of, open_labeled
from files.lists import NOUNS, VERBS
from support.arguments import (Parser, add_run_flags, default_checkpoint, limit_threads,
                               mixed_precision, pick_device, refuse_other_paths)
from support.errors import require
from toy import grammar
from training.dataset import LABELS, LabeledClips, epoch_order
from training.run import Metrics, Run, learning_rate, stop_signals
from weights.checkpoint import build, fill

DROPOUT = 0.1             # of h's tokens
WEIGHT_DECAY = 1e-2


def chosen_examples(examples, share, seed):
    """The examples of a share of the videos, drawn from the seed."""
    videos = sorted({example.video for example in examples})
    order = np.random.default_rng((LABELS, seed)).permutation(videos)
    chosen = set(order[:math.ceil(share * len(videos))].tolist())
    return [example for example in examples if example.video in chosen]


def with_classifier(init, task, classes, texts):
    """The model of --init with a classifier of these classes. It starts as `match` with the texts
    (S, D), or at zero without texts."""
    arguments = {**init.arguments, "task": task, "classes": classes}
    if task != "classify":
        heads = dict(layers=4, heads=max(4, init.dim // 64))               # of a new h
        arguments["denoiser"] = {**(arguments["denoiser"] or heads), "dropout": DROPOUT}
    if len(classes) > 1:                                                   # EPIC's
        arguments["encoder"] = {**arguments["encoder"], "frames": EPIC_FRAMES}
    model = build(init.phrases, **arguments)
    fill(init.path, model, init.state_dict())          # all but the classifier, and a new h
    nn.init.zeros_(model.classifier.weight)
    nn.init.zeros_(model.classifier.bias)
    if texts is not None:
        model.classifier.weight.data.copy_(normalize(texts, dim=-1))
    return model


def set_up(args, device):
    """The run, its videos, their examples, and the model."""
    # 1. The folder and the labeled examples.
    init = weights.load(args.init)
    require(not init.task and (init.denoiser or len(init.phrases)), f"--init {args.init}: is "
            "fine-tuned, or a published f alone; give a run of --stage pretrain")
    run = Run(vars(args) | {name: getattr(args, name) or init.settings.get(name)
                            for name in ("clip", "clip_weights")})         # evaluate.py reads them
    limit_threads(init.encoder.image, device)
    refuse_other_paths(args)
    source, names, _, texts = open_labeled(init, device, args, "train", False, args.skip)
    examples = chosen_examples(examples_of(source.videos, args.task, args.data, init.pitch),
                               args.labels, args.seed)
    run.settings["classes"] = names
    run.begin(source, examples=[f"{one.video} {one.step} {one.label}" for one in examples])

    # 2. The model; its classifier is trained, and h to forecast, or f on EPIC.
    torch.manual_seed(args.seed)
    classes = [len(names)] if names else [VERBS, NOUNS]
    if args.task == "activity":
        classes = [1 + max(video.activity for video in source.listed)]
    model = with_classifier(init, args.task, classes, texts)
    if run.checkpoint:
        model.load_state_dict(run.checkpoint["model"])
    model.requires_grad_(False)
    model.classifier.requires_grad_(True)
    if args.data == "epic":
        model.encoder.requires_grad_(True)
    elif args.task != "classify":
        model.denoiser.requires_grad_(True)
    return run, source, examples, model.to(device)


def embedded_batches(updates, x, n, examples, batch, seed):
    """For each update the only micro-batch (x (B, N, D), n (B,), labels (B, 1)) of the embeddings
    of all examples; n: clips of each."""
    labels = torch.tensor([[example.label] for example in examples], device=x.device)
    for update in updates:
        epoch, k = divmod(update, len(examples) // batch)
        rows = epoch_order(len(examples), seed, epoch)[k * batch:(k + 1) * batch]
        yield [(x[rows], n[rows], labels[rows])]


def clip_batches(read, device):
    """For each update of `read` (training/dataset.py): micro-batches (clips (B, F, 3, H, W), None,
    labels (B, label sets))."""
    for parts in read:
        yield ((one.clips, None, torch.tensor([label for *_, label in one.requests], device=device))
               for one in parts)


def finetune(args):
    """`python train.py --stage finetune`: --epochs times all examples, one update per batch."""
    # 1. Labeled videos, the model, and the optimizer of what is trained.
    device, epic = pick_device(args.device), args.data == "epic"
    require(not is_torchelastic_launched(), "fine-tuning runs in one process, without torchrun")
    run, source, examples, model = set_up(args, device)
    if not epic:                                           # each clip goes through f once
        x, n, _, examples = encode_examples(model.eval(), None, source, examples, args)
    batch = min(args.batch, len(examples))
    per_epoch = len(examples) // batch
    updates = max(1, round(args.epochs * per_epoch))
    left = range(run.first, updates)
    if epic:
        batches = clip_batches(LabeledClips(source, args.seed, examples).updates(
            left, batch, model.encoder, 0, args.micro_batch, args.workers), device)
    else:
        batches = embedded_batches(left, x, n, examples, batch, args.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=WEIGHT_DECAY)
    if run.checkpoint:
        optimizer.load_state_dict(run.checkpoint["optimizer"])
    print(f"{len(examples)} examples, {updates} updates, on {device}")

    # 2. Train.
    metrics, model = Metrics(["loss"], device), model.train()
    bar, done = tqdm(left, desc="finetune", mininterval=1), run.first
    stop = stop_signals()
    for update, parts in zip(bar, batches):
        optimizer.param_groups[0]["lr"] = learning_rate(update, 0, updates, args.lr)
        torch.manual_seed(args.seed * 1_000_003 + update)              # of views and dropout
        optimizer.zero_grad()
        for inputs, n, labels in parts:
            with mixed_precision(device):
                if epic:
                    z = model.encode(inputs)                           # x = f(v), (B, D)
                elif args.task == "classify":          # one of N views of each: (B, D)
                    z = inputs[range(len(n)), torch.randint(inputs.shape[1], (len(n),))]
                else:                                  # what h predicts with zero noise
                    z = model.forecast_next(inputs, torch.zeros_like(inputs[:, :1]), n)[:, 0]
                log_p = model.classify(z)
            loss = sum(nll_loss(p, y, reduction="none")                # (B,)
                       for p, y in zip(log_p, labels.T))
            (loss.sum() / batch).backward()
            metrics.add(len(labels), loss=loss)
        norm = clip_grad_norm_(model.parameters(), math.inf)               # it clips nothing
        optimizer.step()

        done = update + 1
        end = bool(stop) or done == updates
        if end or done % args.log_every == 0:
            run.log(bar, done, norm, metrics.row(epoch=done / per_epoch,
                                                 lr=optimizer.param_groups[0]["lr"]))
            if end or run.due():
                run.save(model, optimizer, done, source)
        if stop:
            break
    run.end(done, updates)


def parse(argv):
    """The command line of `--stage finetune`."""
    parser = Parser("Fine-tune a checkpoint with labels (paper, Sec. 4).")
    add = parser.add_argument
    add("--stage", choices=["pretrain", "finetune"], default="finetune")
    add("--task", choices=["classify", "forecast", "activity"], default="classify", help="classify "
        "trains only the classifier; forecast and activity also train h; --data epic also f")
    add("--init", type=Path, help="start from a run folder or a file, also a published one "
        "(default: runs/pretrain, else the checkpoint that comes with the code)")
    add_labeled_flags(parser)
    add("--toy-videos", type=int, default=6000, help="training videos of the toy world")
    add("--labels", type=float, default=1.0, help="share of the labeled videos that is used")
    add("--epochs", type=float, help="times each example is seen (default: 15; activity: 60)")
    add("--batch", type=int, default=64, help="examples per update; the paper's 64")
    add("--lr", type=float, default=1e-3, help="peak learning rate of AdamW")
    add("--out", type=Path, help="folder of the run (default: runs/finetune-TASK)")
    add("--resume", action="store_true", help="go on from OUT/checkpoint.pt, if there is one")
    add("--skip", nargs="+", default=[], metavar="ID", help="videos that are never opened")
    add_run_flags(parser)
    args = parser.parse_args(argv)
    require(args.data != "epic" or args.task == "classify", f"--task {args.task}: --data epic can "
            "only classify actions")
    require(args.labels <= 1, f"--labels {args.labels}: is a share, at most 1; 0.1 is a tenth")
    args.log_every = 1 if args.data == "epic" else 20
    args.epochs = args.epochs or (60.0 if args.task == "activity" else 15.0)
    args.out = args.out or Path(f"runs/finetune-{args.task}")
    args.init = args.init or default_checkpoint()
    args.world = grammar.VERSION if args.data == "toy" else None
    return args
