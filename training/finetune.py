"""Fine-tune a checkpoint with labels: `python train.py --stage finetune --task classify`.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.3, 4.1, 4.2 and appendices B, C.

    task                   the classifier reads                     trained            paper
    classify               x = f(v), a clip of a step               classifier         Table 2
    forecast               x_hat = h(0, {x_i}), the clip after 8    h and classifier   Table 1
    activity               the same; the 8 clips span the video     h and classifier   App. C
    classify, --data epic  x = f(v), 32 frames of an action         f and classifier   Table 3

The classifier is one linear layer, its logits divided by tau. The loss is its cross entropy alone,
and noise is zero, as in the release. After `--order none` a new h is trained.
N clips of an example, B examples per update, S classes, D embedding.
"""
import functools
import math
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import nll_loss, normalize
from tqdm import tqdm

import weights
from data import EPIC_FRAMES, EPIC_SECONDS, classify_examples, examples_of
from evaluation.labeled import add_labeled_flags, encode_examples, open_labeled, warn_of_data
from files.lists import NOUNS, VERBS
from model import clips_at_once
from support.arguments import (Parser, add_run_flags, count, default_checkpoint, limit_threads,
                               mixed_precision, pick_device, positive)
from support.errors import require
from support.workers import prefetch
from toy import grammar
from training import parallel
from training.batches import generator, groups, taken, videos_of, with_remedy
from training.run import (SAVE_EVERY, Metrics, Stop, begin, ended, learning_rate, log, open_run,
                          save)
from weights.checkpoint import build_model, fill

DROPOUT = 0.1             # of h's tokens
WEIGHT_DECAY = 1e-2
LOG_EVERY = 20            # updates between two rows of metrics; for EPIC 1


def open_init(args):
    """The pre-trained model of --init. The new run keeps its teacher."""
    init = weights.load(args.init)
    require(init.arguments["denoiser"] and not init.task, f"--init {args.init}: holds f alone, or "
            "is fine-tuned; give a run of --stage pretrain, or ProcedureVRL's pre-trained file")
    args.checkpoint = args.init                            # whose teacher and texts must fit
    if warning := warn_of_data(init, args.data == "toy"):
        print(f"warning: {warning}")
    if init.settings.get("data") != "toy":
        args.clip = args.clip or init.settings.get("clip")
        args.clip_weights = args.clip_weights or init.settings.get("clip_weights")
    return init


def labeled_examples(args, source):
    """The task's examples in a share --labels of the videos, drawn from the seed."""
    examples = (classify_examples(source.videos, seconds=EPIC_SECONDS) if args.data == "epic" else
                examples_of(args.task, source.videos))
    videos = sorted({example.video for example in examples})
    require(videos, f"{args.annotations}: no labeled training example for --task {args.task}")
    order = generator("labels", args.seed).permutation(videos)
    chosen = set(order[:math.ceil(args.labels * len(videos))].tolist())
    return [example for example in examples if example.video in chosen]


def extend(init, args, texts, videos):
    """The checkpoint's model with a classifier of the classes of the listed videos.

    The classifier starts as `match` with the texts (S, D): its bias is minus half of each text's
    mean score. Without texts it starts at zero. For EPIC, f reads 32 frames.
    """
    arguments = {**init.arguments, "task": args.task}
    arguments["denoiser"] = {**init.arguments["denoiser"], "dropout": DROPOUT}
    if args.data == "epic":
        classes = [VERBS, NOUNS]                           # the sizes of the label sets
        arguments["encoder"] = {**init.arguments["encoder"], "frames": EPIC_FRAMES}
    else:
        classes = [1 + max(v.activity for v in videos) if texts is None else len(texts)]
    model = build_model(init.phrases, **arguments | {"classes": classes})
    fill(args.init, model, init.state_dict())          # all but the classifier, and a new h
    model.load_state_dict(dict(init.named_buffers()), strict=False)
    weight = torch.zeros(sum(classes), init.dim) if texts is None else normalize(texts, dim=-1)
    mean = init.standardize.mean * (args.scores == "debiased")
    model.classifier.load_state_dict({"weight": weight, "bias": -weight @ mean / 2})
    return model


def load_action(source, examples, args, share, item):
    """The action of an item, in one view drawn at random -> Loaded."""
    update, number = taken(item, share, len(examples), args)
    rng, example = generator("clips", args.seed, update, number), examples[number]
    return source.load([example._replace(windows=rng.permutation(example.windows)[:1])], rng)


def clips_of_updates(source, examples, encoder, updates, args, device):
    """For each of the updates, a range: groups (clips (B, F, 3, H, W), labels (B, label sets))."""
    share, most = range(min(args.batch, len(examples))), clips_at_once(encoder, args.micro_batch)

    def name(item):
        example = examples[taken(item, share, len(examples), args)[1]]
        return with_remedy(source.videos[example.video])
    loaded = prefetch(functools.partial(load_action, source, examples, args, share),
                      range(updates[0] * len(share), updates[-1] * len(share) + len(share)),
                      args.workers, size=3 * EPIC_FRAMES * encoder.image ** 2,
                      held=min(most, len(share)), name=name, pin=device.type == "cuda")
    for _ in updates:
        yield ((group.clips, torch.tensor([example.label for example in group.requests]))
               for group in groups(loaded, len(share), most, source, device))


def embeddings_of_updates(x, readable, examples, updates, args):
    """The same from a frozen f's embeddings x (M, N, D) of the readable examples: one group
    (x (B, N, D), ...). The draw is from all examples, whichever could be read this time."""
    place = {(one.video, one.step): i for i, one in enumerate(readable)}
    places = np.array([place.get((one.video, one.step), -1) for one in examples])
    labels = torch.tensor([[one.label] for one in readable])
    for update in updates:
        chosen = places[videos_of(update, len(examples), args.batch, args.seed)]
        chosen = chosen[chosen >= 0]
        yield [(x[chosen], labels[chosen])] if len(chosen) else []


def set_up(args, device):
    """The source of labeled videos, its examples, the model, the checkpoint to go on from ({}
    at first), and the settings of the run."""
    init, checkpoint = open_init(args), open_run(args)
    limit_threads(init.encoder.image, device)
    source, _, texts = open_labeled(args, "train", init, device, with_teacher=False,
                                    skip=args.skip)
    examples = labeled_examples(args, source)
    settings = begin(args, checkpoint, source, classes=getattr(args, "classes", []), examples=[
        f"{source.videos[example.video].name} {example.step} {example.label}"
        for example in examples])
    torch.manual_seed(args.seed)
    model = extend(init, args, texts, source.listed).to(device)
    if checkpoint:
        model.load_state_dict(checkpoint["model"])
    model.requires_grad_(False)
    model.classifier.requires_grad_(True)
    if args.data == "epic":
        model.encoder.requires_grad_(True)
    elif args.task != "classify":                          # without h, a run can still classify
        model.denoiser.requires_grad_(True)
    return source, examples, model, checkpoint, settings


def finetune(args):
    """`python train.py --stage finetune`: --epochs times all examples, one update per batch."""
    # 1. Labeled videos, the model, and the optimizer of what is trained.
    device, epic = pick_device(args.device), args.data == "epic"
    require(parallel.processes() == 1, "fine-tuning runs in one process; start it without torchrun")
    source, examples, model, checkpoint, settings = set_up(args, device)
    if not epic:                                           # each clip goes through f once
        source.unreadable = {}                             # each is read again
        x, _, readable = encode_examples(model.eval(), None, source, examples, args, device)
        x = x.unflatten(0, (len(readable), -1))            # (M, N, D)
    batch = min(args.batch, len(examples))
    per_epoch = len(examples) // batch
    updates = max(1, round(args.epochs * per_epoch))
    left = range(checkpoint.get("step", 0), updates)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.0, weight_decay=WEIGHT_DECAY)
    if checkpoint:
        optimizer.load_state_dict(checkpoint["optimizer"])
    print(f"{len(examples)} examples, {updates} updates, on {device}")

    # 2. Train.
    read = (clips_of_updates(source, examples, model.encoder, left, args, device) if epic else
            embeddings_of_updates(x, readable, examples, left, args))
    metrics, saved, done = Metrics(["loss"], device), time.perf_counter(), left.start
    bar = tqdm(left, "finetune", updates, initial=left.start, mininterval=1)
    model.train()
    with Stop() as stop:
        for update, parts in zip(bar, read):
            optimizer.param_groups[0]["lr"] = learning_rate(update, 0, updates, args.lr)
            torch.manual_seed(int(generator("noise", args.seed, update).integers(2 ** 63)))
            optimizer.zero_grad()
            for inputs, labels in parts:
                with mixed_precision(device):
                    if epic:
                        z = model.encode(inputs)                           # x = f(v), (B, D)
                    elif args.task == "classify":          # one of N views of each: (B, D)
                        views = torch.randint(inputs.shape[1], (len(inputs),))
                        z = inputs[range(len(inputs)), views]
                    else:                                  # what h predicts with zero noise
                        z = model.forecast_next(inputs, torch.zeros_like(inputs[:, :1]))[:, 0]
                    log_p = model.classify(z)
                loss = sum(nll_loss(p, y, reduction="none")                # (B,)
                           for p, y in zip(log_p, labels.to(device).T))
                (loss.sum() / batch).backward()
                metrics.add({"loss": loss}, len(labels))
            norm = torch.nn.utils.get_total_norm([p.grad for p in trained if p.grad is not None])
            optimizer.step()

            done = update + 1
            end = stop.asked or done == updates
            if end or done % args.log_every == 0:
                log(args, bar, done, norm, epoch=done / per_epoch,
                    **metrics.row(lr=optimizer.param_groups[0]["lr"]))
                if end or time.perf_counter() - saved > SAVE_EVERY:
                    save(args, model, optimizer, done, settings, source)
                    saved = time.perf_counter()
            if end:
                break
    ended(args, done, updates)


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
    add("--toy-videos", type=count, default=6000, help="training videos of the toy world")
    add("--labels", type=positive, default=1.0, help="share of the labeled videos that is used")
    add("--epochs", type=positive, help="times each example is seen (default: 15; activity: 60)")
    add("--batch", type=count, default=64, help="examples per update; the paper's 64")
    add("--lr", type=positive, default=1e-3, help="peak learning rate of AdamW")
    add("--out", type=Path, help="folder of the run (default: runs/finetune-TASK)")
    add("--resume", action="store_true", help="go on from OUT/checkpoint.pt, if there is one")
    add("--skip", nargs="+", default=[], metavar="ID", help="videos that are never opened")
    add_run_flags(parser)
    args = parser.parse_args(argv)
    require(args.data != "epic" or args.task == "classify", f"--task {args.task}: --data epic can "
            "only classify actions")
    require(args.labels <= 1, f"--labels {args.labels}: is a share, at most 1; 0.1 is a tenth")
    args.log_every = 1 if args.data == "epic" else LOG_EVERY
    args.epochs = args.epochs or (60.0 if args.task == "activity" else 15.0)
    args.out = args.out or Path(f"runs/finetune-{args.task}")
    args.init = args.init or default_checkpoint()
    args.world = grammar.VERSION if args.data == "toy" else None
    return args
