"""Fine-tune a checkpoint with labels: `python train.py --stage finetune --task classify`.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.3, 4.1, 4.2 and appendices B, C.

    task                   the classifier reads                     trained            paper
    classify               x = f(v), a clip of a step               classifier         Table 2
    forecast               x_hat, by h from zero noise (Sec. 3.3)   h and classifier   Table 1
    activity               the same; 8 clips span the video         h and classifier   App. C
    classify, --data epic  x = f(v), 32 frames of an action         f and classifier   Table 3

The classifier is one linear layer, its logits divided by tau. The loss is its cross entropy alone,
and noise is zero, as in the release. After `--order none`, or on a published f alone, a new h is
trained.

    settings  paper                    release                          here
    COIN      AdamW, 15 epochs, batch  SGD 5e-3, stepped at epochs 0,   AdamW, 1e-3, 5% up and then
              of 64 (Sec. 4)           11, 14 of 15; twice as many if   linearly to 0; 15 epochs,
                                       h is trained; decay 1e-4         activities 60; decay 1e-2
    EPIC      the same                 AdamW 1e-4, stepped at epochs    AdamW, 1e-4 as above,
                                       0, 30, 40 of 50; decay 5e-2;     50 epochs; decay 5e-2
                                       MixUp, RandAugment

A Task (evaluate.py) says what is trained, and SETTINGS how; with `--recipe release`, RELEASED does.
The gradient flows back through all T passes of `sample`. h's tokens have dropout 0.1.
M examples of up to N clips, B of them per update; x (M, N, D), n (M,): f's embeddings, and how many
clips each example has. S classes of a label set, D embedding.
"""
import hashlib
import itertools
import math
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.distributed import is_torchelastic_launched
from torch.nn.functional import nll_loss, normalize, one_hot
from torch.nn.utils import clip_grad_norm_
from torchvision.transforms import v2

from data import LABELS
from evaluate import TASKS, examples_of, task_name
from losses import TAU
from model import Config, clips_at_once
from sources import add_data_flags, clip_of, data_set, history_of, open_labeled, open_teacher
from support.arguments import (
    Parser,
    add_folder_flags,
    add_history_flag,
    add_run_flags,
    add_teacher_flags,
    default_checkpoint,
    limit_threads,
    mixed_precision,
    peek,
    pick_device,
    positive,
    share_number,
)
from support.encode import LabeledExamples, encode_examples
from support.errors import require
from support.run import Run, learning_rate
from support.workers import epoch_order, items, join, read_ahead
from weights.checkpoint import build, init_from, load_init
from weights.encoders import TEACHER, sizes_of

DROPOUT = 0.1             # of h's tokens
RECIPES = "paper", "release"                            # of --recipe
INIT_TEACHER = Path("teacher")                          # of --init: its features in place of f's


class Settings(NamedTuple):
    """How a task is tuned."""
    epochs: float = 15.0      # how often each example is shown (paper, Sec. 4)
    lr: float = 1e-3          # peak rate
    decay: float = 1e-2       # weight decay
    max_norm: float = math.inf             # the most that the norm of the gradient may be
    sgd: bool = False         # SGD with momentum in place of AdamW
    cuts: tuple = ()          # the shares of the epochs after which the rate is cut to a tenth;
    #                           none: it rises, and falls to 0
    logit_tau: float | None = None         # temperature of the classifier's logits; None: f's
    mixed: bool = False       # `see_mixed` and `mixed_loss`; f's `head` is not trained


# The settings of some of TASKS; those of all others are the defaults above.
SETTINGS = {
    "activity": Settings(epochs=60.0),                                     # a video is one example
    "actions": Settings(epochs=50.0, lr=1e-4, decay=5e-2, max_norm=1.0),       # of EPIC (release)
}

# The settings of --recipe release, by what of a model a task trains.
COIN_CUTS, EPIC_CUTS = (11 / 15, 14 / 15), (30 / 50, 40 / 50)
RELEASED = {
    "classifier": Settings(epochs=15.0, lr=5e-3, decay=1e-4, sgd=True, cuts=COIN_CUTS),
    "denoiser": Settings(epochs=30.0, lr=5e-3, decay=1e-4, sgd=True, cuts=COIN_CUTS, logit_tau=1.0),
    "encoder": Settings(epochs=50.0, lr=1e-4, decay=5e-2, cuts=EPIC_CUTS, mixed=True),
}
AUGMENT, MIX = v2.RandAugment(), v2.MixUp(alpha=0.1)    # strengths of RandAugment: torchvision's


def settings_of(name, recipe="paper"):
    """The Settings of a task by a recipe."""
    if recipe == "release":
        return RELEASED[TASKS[name].trained]
    return SETTINGS.get(name, Settings())


def make_optimizer(model, settings):
    """The optimizer of a task. The loop sets the learning rate."""
    options = dict(lr=0.0, weight_decay=settings.decay)
    if settings.sgd:
        return torch.optim.SGD(model.parameters(), momentum=0.9, nesterov=True, **options)
    return torch.optim.AdamW(model.parameters(), **options)


# --- The loss, and what --recipe release makes of clips of actions ---
def label_loss(log_p, y):
    """The cross entropy of each example, summed over its label sets: log p [(B, S), ...] and y
    (B, label sets) -> (B,)."""
    return sum(nll_loss(p, label, reduction="none") for p, label in zip(log_p, y.T))


def see_mixed(model, clips, y, places):
    """x = f(v) with RandAugment and MixUp (release), which draw from torch's own generator: clips
    (B, F, 3, H, W) uint8, y (B, label sets), places: of the clips in the batch.

    RandAugment changes all frames of a clip alike. Then the two clips at places 2 k and 2 k + 1 of
    a batch become two mixtures of both: always these two, so that it does not depend on the
    micro-batches which are mixed, if these have an even number of clips. A clip without a neighbor,
    or whose neighbor cannot be read, is not mixed.

    Returns: x (B, D), in the order of the places; the mixed labels (B, S), S classes of all sets.
    """
    sets = [one_hot(labels, S) for labels, S in zip(y.T, model.config.classes)]
    labels = torch.cat(sets, -1).float()                                       # (B, S)
    pairs = {}
    for row, place in enumerate(places):
        pairs.setdefault(place // 2, []).append(row)
    pixels, targets = [], []
    with torch.autocast(clips.device.type, enabled=False):
        for rows in pairs.values():
            seen = torch.stack([AUGMENT(clips[row]) for row in rows])
            picture = model.normalize(seen).flatten(1, 2)      # (2, 3 F, H, W), as MixUp reads it
            picture, target = MIX(picture, labels[rows])
            pixels.append(picture.unflatten(1, (3, -1)))
            targets.append(target)
    return model.encoder(torch.cat(pixels)), torch.cat(targets)


def classifier_inputs(task, model, x, n, rows):
    """What the classifier reads of the examples `rows` if f stays as it is: (B, D)."""
    if task.forecasts:                                     # what h predicts from zero noise
        zeros = torch.zeros_like(x[rows, :1])                              # (B, 1, D)
        return model.forecast_next(x[rows], zeros, n[rows])[:, 0]
    view = torch.randint(x.shape[1], (len(rows),))         # one of the N clips of each example
    return x[rows, view]


def mixed_loss(log_p, targets):
    """The cross entropy of each example, the mean over its label sets (release): log p [(B, S_k),
    ...] and targets (B, S), of all sets -> (B,)."""
    return -(targets * torch.cat(log_p, -1)).sum(-1) / len(log_p)


def chosen_examples(examples, videos, share, seed):
    """The examples of a share of the videos, drawn from the seed. A list may name a video twice."""
    number = {video.name: i for i, video in enumerate(videos)}
    numbers = [number[videos[example.video].name] for example in examples]
    order = np.random.default_rng((LABELS, seed)).permutation(sorted({*numbers}))
    chosen = set(order[:math.ceil(share * len(order))].tolist())
    return [example for example, i in zip(examples, numbers) if i in chosen]


def teacher_as_model(args, device):
    """A model whose x are the teacher's features, without h: the CLIP of Table 2."""
    kind = data_set(args.data)
    clip = args.clip or kind.clip
    teacher = open_teacher(clip, args.clip_weights, device)
    D = teacher.encode_phrases([""]).shape[1]
    encoder = sizes_of(TEACHER, kind.size)                 # as many frames as f reads
    encoder["image"] = teacher.size
    config = Config(encoder=encoder, denoiser=None, order="none", tau=kind.tau or TAU, scale=1.0,
                    alpha_bar=[0.5], pixels=(0.0, 1.0), clip=clip, clip_weights=args.clip_weights)
    return build(config, torch.zeros(1, D))


def with_classifier(init, name, classes, names, texts):
    """The model of --init with a classifier of these classes, for a Task.

    Its weights start as the texts (S, D) at length 1, or at zero without texts. So for clips it
    starts as `match`; for forecasts it ranks alike, since x_hat is not at length 1. Its logits are
    divided by the tau of --init; a published f has the paper's, as in the release.
    """
    task = TASKS[name]
    config = replace(init.config, task=name, classes=classes, names=names)
    if task.trained == "denoiser":
        heads = max(4, init.dim // 64)                     # of a new h
        config.denoiser = dict(config.denoiser or {"layers": 4, "heads": heads})
        config.denoiser["dropout"] = DROPOUT
    if task.frames:
        config.encoder = dict(config.encoder)
        config.encoder["frames"] = task.frames
    model = build(config, init.phrases)
    if list(init.parameters()):
        init_from(init.path, model, init.state_dict())     # all but the classifier, and a new h
    nn.init.zeros_(model.classifier.weight)
    nn.init.zeros_(model.classifier.bias)
    if texts is not None:
        model.classifier.weight.data.copy_(normalize(texts, dim=-1))
    model.requires_grad_(False)
    model.classifier.requires_grad_(True)
    model.get_submodule(task.trained).requires_grad_(True)
    if not config.text_space:                          # the head is the identity, or of other texts
        freeze_head(model.encoder)
    return model


def freeze_head(encoder):
    """Do not train f's projection into the text space, its `head` if it has one (release)."""
    head = getattr(encoder, "head", None)
    if head is not None:
        head.requires_grad_(False)


def open_init(args, task, device):
    """The model that --init names, to be tuned for a task. InputError if it cannot be."""
    if args.init == INIT_TEACHER:
        frozen = task.trained == "classifier" and not task.needs_h
        require(frozen and args.data != "features", "--init teacher: only with --task classify, "
                "and not for features")
        return teacher_as_model(args, device)
    frames = sizes_of("timesformer", data_set(args.data).size)["frames"]   # of ImageNet's ViT as f
    init = load_init(args.init, frames)
    require(not init.config.task, f"--init {args.init}: is fine-tuned; give a run of --stage "
            "pretrain, or a published f")
    if not init.config.text_space:
        print(f"{args.init}: f alone, D = {init.dim}; the classifier starts at zero")
    require(init.denoiser or not task.needs_h or task.trained == "denoiser", f"--init {args.init}: "
            f"was trained without h, which --task {args.task} needs")
    return init


def set_up_tuning(args, run, device):
    """The task, its videos, their examples, and the model that is to be tuned."""
    # 1. The checkpoint, the videos and their labeled examples.
    name = task_name(args)
    task = TASKS[name]()
    looks = args.init == INIT_TEACHER
    init = open_init(args, task, device)
    limit_threads(init.encoder.image, init.phrases.device)     # f is on the CPU until it is tuned
    source, names, teacher, texts = open_labeled(args, task, init, device, "train", looks)
    start = [hashlib.sha256(value.numpy().tobytes()).hexdigest()
             for value in init.state_dict().values()]
    run.require_same_list("start", start)
    run.require_same_list("classes", names or [])
    run.require_same_list("videos", [video.name for video in source.videos])
    history, spacing = history_of(init, args.history)
    examples, _, unreadable = examples_of(task, source, spacing, min_steps=2)
    examples = chosen_examples(examples, source.videos, args.labels, args.seed)
    require(examples, f"no training video has an example to {args.task}")

    # 2. The model. If f stays as it is, each clip goes through it once.
    torch.manual_seed(args.seed)
    settings = settings_of(name, args.recipe)
    clip, clip_weights = clip_of(init, args.clip, args.clip_weights)
    init.config = replace(init.config, clip=clip, clip_weights=clip_weights, history=history,
                          hold_out=args.hold_out, logit_tau=settings.logit_tau)
    classes = task.classes(source.listed, names)
    model = with_classifier(init, name, classes, names, texts).to(device)
    if settings.mixed:
        freeze_head(model.encoder)
    if run.checkpoint:
        model.load_state_dict(run.checkpoint["model"])
    x = n = None
    run.unreadable = unreadable
    if task.trained != "encoder":
        x, n, _, examples, failed = encode_examples(model.eval(), teacher, source, examples, args)
        run.unreadable |= failed
    run.require_same_list("examples", [f"{one.video} {one.step} {one.label}" for one in examples])
    model.settings = run.settings
    return task, source, examples, x, n, model.train()


def finetune(args):
    """`python train.py --stage finetune`: --epochs times all examples, one update per batch."""
    # 1. What is continued; labeled examples; the model; the optimizer of what is trained.
    device = pick_device(args.device)
    require(not is_torchelastic_launched(), "fine-tuning runs in one process, without torchrun")
    run = Run(args)
    task, source, examples, x, n, model = set_up_tuning(args, run, device)
    settings = settings_of(model.config.task, args.recipe)
    batch = min(args.batch, len(examples))
    per_epoch = len(examples) // batch
    updates = max(1, round(args.epochs * per_epoch))
    trains_f = task.trained == "encoder"
    micro, plan, workers = batch, [], 0                    # without f, all was read already
    if trains_f:
        micro = min(batch, clips_at_once(model.encoder, args.micro_batch, device))
        if settings.mixed:
            micro = max(micro - micro % 2, 2)              # `see_mixed` needs neighbors together
        plan = items(range(run.first, updates), len(examples), batch, range(batch), args.seed)
        workers = args.workers
    optimizer = make_optimizer(model, settings)
    if run.checkpoint:
        optimizer.load_state_dict(run.checkpoint["optimizer"])
    labels = torch.tensor([example.label for example in examples], device=device)
    labels = labels.view(len(examples), -1)                                    # (M, label sets)
    loss_of = mixed_loss if settings.mixed else label_loss
    shown = LabeledExamples(source, examples, args.seed)
    print(f"{len(examples)} examples, {updates} updates, on {device}")

    # 2. Train.
    with (run.begin("finetune", source, updates, per_epoch, ["loss"], device) as left,
          read_ahead(shown, plan, workers, device.type == "cuda") as reads):
        for update in left:
            optimizer.param_groups[0]["lr"] = learning_rate(update, 0, updates, args.lr,
                                                            settings.cuts)
            torch.manual_seed(args.seed * 1_000_003 + update)  # of views, dropout and mixtures
            optimizer.zero_grad()
            epoch, k = divmod(update, per_epoch)
            order = epoch_order(len(examples), args.seed, epoch)[k * batch:(k + 1) * batch]
            for first in range(0, batch, micro):           # slices of the batch
                rows = order[first:first + micro]
                with mixed_precision(device):
                    if trains_f:
                        usable = run.readable(itertools.islice(reads, len(rows)))
                        if not usable:
                            continue
                        places = [one.place for one in usable]             # in the batch
                        rows = order[places]
                        clips, y = join([one.clips for one in usable], device), labels[rows]
                        if settings.mixed:
                            inputs, y = see_mixed(model, clips, y, places)
                        else:
                            inputs = model.encode(clips)
                    else:
                        inputs = classifier_inputs(task, model, x, n, rows)    # (B, D)
                        y = labels[rows]
                    log_p = model.classify(inputs)                             # [(B, S), ...]
                loss = loss_of(log_p, y)                                       # (B,)
                (loss.sum() / batch).backward()
                run.metrics.add(len(rows), loss=loss)
            norm = clip_grad_norm_(model.parameters(), settings.max_norm)
            optimizer.step()
            if run.after(update + 1, norm, model, optimizer):
                break


def parse(argv):
    """The command line of `--stage finetune`. Defaults are those of the task."""
    parser = Parser("Fine-tune a checkpoint with labels (paper, Sec. 4).")
    parser.add_argument("--stage", choices=["pretrain", "finetune"], default="finetune")
    kind = add_data_flags(parser, argv, "finetune")
    word = peek(argv, "--task", "classify")
    name = task_name(Namespace(data=peek(argv, "--data", "toy"), task=word))
    task = TASKS[name]
    recipe = peek(argv, "--recipe", RECIPES[0])
    require(task.trained, f"--task {word}: cannot be fine-tuned; evaluate.py measures it")
    settings = settings_of(name, recipe)

    add = parser.add_argument_group("labels").add_argument
    add("--task", default="classify", help="classify trains only the classifier; forecast and "
        "activity also train h; --data epic also f")
    add("--labels", type=share_number, default=1.0, help="share of the labeled videos that is used")
    add("--hold-out", type=share_number, help="leave out this share of the training videos, for "
        "--split validation of a list without one; 0.1 is a tenth")

    add = parser.add_argument_group("model").add_argument
    add("--init", type=Path, help="start from a run folder or a file, also a published one "
        "(default: runs/pretrain, else the included checkpoint); timm: ImageNet's ViT as f; "
        "teacher: its features alone")
    add_history_flag(add)
    add_teacher_flags(add)

    add = parser.add_argument_group("training").add_argument
    add("--recipe", choices=RECIPES, default=RECIPES[0], help="release: the authors' settings. "
        "SGD, for twice as many epochs if h is trained; EPIC: AdamW, MixUp and RandAugment; rates "
        "are cut to a tenth twice")
    add("--epochs", type=positive(float), default=settings.epochs,
        help="times each example is seen")
    add("--batch", type=positive(int), default=64, help="examples per update; the paper's 64")
    add("--lr", type=positive(float), default=settings.lr, help="peak learning rate")

    add = add_run_flags(parser)
    add_folder_flags(add, Path(f"runs/finetune-{word}"))
    args = parser.parse_args(argv)
    require((args.hold_out or 0) < 1, f"--hold-out {args.hold_out}: is a share, below 1")
    require("history" in task.flags or not args.history, "--history: has no effect on --task "
            f"{args.task}")
    args.log_every = 1 if task.trained == "encoder" else 20
    args.init = args.init or default_checkpoint()
    args.world = kind.world
    return args
