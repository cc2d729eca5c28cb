"""Fine-tune a checkpoint with labels: `python train.py --stage finetune --task classify`.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.3, 4.1, 4.2 and appendices B, C.

    task                   the classifier reads                     trained            paper
    classify               x = f(v), a clip of a step               classifier         Table 2
    forecast               x_hat = h(0, {x_i}), the clip after 8    h and classifier   Table 1
    activity               the same; the 8 clips are all the video  h and classifier   App. C
    classify, --data epic  x = f(v), 32 frames of an action         f and classifier   Table 3

The classifier is one linear layer, its logits divided by tau. The loss is its cross entropy alone,
and noise is zero, as in the release. After `--order none` a new h is trained.
N clips of an example, B examples per update, S classes, D embedding.
"""
import functools
import math
import time
from pathlib import Path

import torch
from torch.nn.functional import nll_loss, normalize
from tqdm import tqdm

import weights
from data import EPIC_FRAMES, EPIC_SECONDS, classify_examples, examples_of
from evaluation.labeled import add_labeled_flags, encode_examples, open_labeled
from files.lists import NOUNS, VERBS
from model import encode_parts
from support.arguments import (Parser, add_run_flags, count, default_checkpoint, limit_threads,
                               mixed_precision, pick_device, positive)
from support.errors import require
from support.workers import prefetch
from toy import grammar
from training import parallel
from training.batches import generator, seed_noise, videos_of
from training.run import SAVE_EVERY, begin, learning_rate, log, open_run, save
from weights.checkpoint import build_model, fill

DROPOUT = 0.1             # of h's tokens
WEIGHT_DECAY = 1e-2
LOG_EVERY = 20            # updates between two rows of metrics; of EPIC each is logged


def open_init(args):
    """The pre-trained model of --init, whose teacher goes with the new run."""
    init = weights.load(args.init)
    require(init.arguments["denoiser"] and not init.task, f"--init {args.init}: holds f alone, or "
            "is fine-tuned; give a run of --stage pretrain, or ProcedureVRL's pre-trained file")
    args.checkpoint = args.init                            # whose teacher and texts must fit
    if init.settings.get("data") != "toy":
        args.clip = args.clip or init.settings.get("clip")
        args.clip_weights = args.clip_weights or init.settings.get("clip_weights")
    return init


def labeled_examples(args, source):
    """The task's examples of --labels of the videos, drawn from the seed."""
    examples = (classify_examples(source.videos, seconds=EPIC_SECONDS) if args.data == "epic" else
                examples_of(args.task, source.videos))
    videos = sorted({example.video for example in examples})
    require(videos, f"{args.annotations}: no labeled training example for --task {args.task}")
    order = generator("labels", args.seed).permutation(videos)
    chosen = set(order[:math.ceil(args.labels * len(videos))].tolist())
    return [example for example in examples if example.video in chosen]


def extend(init, args, texts, videos):
    """The checkpoint's model with a classifier of the classes of the listed videos.

    It starts as the texts (S, D), or at zero if they are None. For EPIC, f reads 32 frames.
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
    model.classifier.load_state_dict({"weight": weight, "bias": torch.zeros(sum(classes))})
    return model


def read_actions(source, examples, args, update):
    """An update's clips (B, F, 3, H, W), one drawn view of each action, labels (B, 2) int64, both
    of what could be read, and {id: reason} of the unreadable videos."""
    rng = generator("clips", args.seed, update)
    chosen = [examples[i] for i in videos_of(update, len(examples), args.batch, args.seed)]
    drawn = [example._replace(windows=rng.permutation(example.windows)[:1]) for example in chosen]
    loaded = source.load(drawn, rng)
    return loaded.clips, torch.tensor([example.label for example in loaded.requests]), loaded.failed


def finetune(args):
    """`python train.py --stage finetune`: --epochs times all examples, one update per batch."""
    # 1. The checkpoint, labeled videos, the classifier.
    device, epic = pick_device(args.device), args.data == "epic"
    require(parallel.processes() == 1, "fine-tuning runs in one process; start it without torchrun")
    init, content = open_init(args), open_run(args)
    limit_threads(init.encoder.image, device)
    source, _, texts = open_labeled(args, "train", init, device, with_teacher=False)
    examples = labeled_examples(args, source)
    begin(args, content, source, examples=[
        f"{source.videos[example.video].name} {example.step} {example.label}"
        for example in examples])
    torch.manual_seed(args.seed)
    model = extend(init, args, texts, source.listed).to(device)

    # 2. What is trained: the classifier, and f or h. Each clip goes through a frozen f once.
    model.requires_grad_(False)
    model.classifier.requires_grad_(True)
    model.encoder.requires_grad_(epic)
    workers = size = 0                                     # of what is read in each update
    if epic:
        read = functools.partial(read_actions, source, examples, args)
        workers, size = args.workers, 3 * args.batch * EPIC_FRAMES * model.encoder.image ** 2
    else:
        if args.task != "classify":                        # without h, a run can still classify
            model.denoiser.requires_grad_(True)
        x, _, examples = encode_examples(model.eval(), None, source, examples, args, device)
        y = torch.tensor([[example.label] for example in examples], device=device)     # (M, 1)
        x = x.unflatten(0, (len(y), -1))                   # (M, N, D)

        def read(update):
            chosen = videos_of(update, len(x), args.batch, args.seed)
            return x[chosen], y[chosen], {}
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.0, weight_decay=WEIGHT_DECAY)
    per_epoch = max(len(examples) // args.batch, 1)
    updates, first = max(1, round(args.epochs * per_epoch)), content.get("step", 0)
    if content:
        model.load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])
    print(f"{len(examples)} examples, {updates} updates, on {device}")

    # 3. Train.
    batches = prefetch(read, range(first, updates), workers, size=size)
    bar = tqdm(batches, "finetune", updates, initial=first, mininterval=1)
    model.train()
    saved = time.perf_counter()
    for update, (inputs, labels, failed) in enumerate(bar, first):
        optimizer.param_groups[0]["lr"] = learning_rate(update, 0, updates, args.lr)
        seed_noise(args.seed, update)
        source.unreadable |= failed
        require(len(labels), f"no example of update {update + 1} can be read; use a larger --batch")
        with mixed_precision(device):
            if epic:
                z = encode_parts(model, inputs, args.micro_batch)              # x = f(v), (B, D)
            elif args.task == "classify":                  # one of N views of each: (B, D)
                z = inputs[range(len(inputs)), torch.randint(inputs.shape[1], (len(inputs),))]
            else:                                          # what h predicts with zero noise
                z = model.forecast_next(inputs, torch.zeros_like(inputs[:, :1]))[:, 0]
            log_p = model.classify(z)
            loss = sum(nll_loss(p, label) for p, label in zip(log_p, labels.to(device).T))
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in trained if p.grad is not None])
        optimizer.step()
        if (update + 1) % args.log_every == 0 or update + 1 == updates:
            log(args, bar, source, update + 1, norm, epoch=(update + 1) / per_epoch, loss=loss,
                lr=optimizer.param_groups[0]["lr"])
        if time.perf_counter() - saved > SAVE_EVERY or update + 1 == updates:
            save(args, model, optimizer, update + 1, norm)
            saved = time.perf_counter()
    print(f"{args.out / 'checkpoint.pt'}: {updates} updates")


def parse(argv):
    """The command line of `--stage finetune`."""
    parser = Parser("Fine-tune a checkpoint with labels (paper, Sec. 4).")
    add = parser.add_argument
    add("--stage", choices=["pretrain", "finetune"], default="finetune")
    add("--task", choices=["classify", "forecast", "activity"], default="classify", help="classify "
        "trains the classifier alone; forecast and activity h, too; --data epic f, too")
    add("--init", type=Path, help="start from a run folder or a file, also a published one "
        "(default: runs/pretrain, else the checkpoint that comes with the code)")
    add_labeled_flags(parser)
    add("--toy-videos", type=count, default=6000, help="training videos of the embedded world")
    add("--labels", type=positive, default=1.0, help="share of the labeled videos that is used")
    add("--epochs", type=positive, help="times each example is seen (default: 15; activity: 60)")
    add("--batch", type=count, default=64, help="examples per update; the paper's 64")
    add("--lr", type=positive, default=1e-3, help="peak learning rate of AdamW")
    add("--out", type=Path, help="folder of the run (default: runs/finetune-TASK)")
    add("--resume", action="store_true", help="go on from OUT/checkpoint.pt, if there is one")
    add_run_flags(parser)
    args = parser.parse_args(argv)
    require(args.data != "epic" or args.task == "classify", f"--task {args.task}: --data epic has "
            "actions to classify")
    require(args.labels <= 1, f"--labels {args.labels}: is a share; 0.1 is a tenth")
    args.log_every = 1 if args.data == "epic" else LOG_EVERY
    args.epochs = args.epochs or (60.0 if args.task == "activity" else 15.0)
    args.out = args.out or Path(f"runs/finetune-{args.task}")
    args.init = args.init or default_checkpoint()
    args.world = grammar.VERSION if args.data == "toy" else None
    return args
