"""Fine-tune a checkpoint with labels: `python train.py --stage finetune --task classify`.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.3, 4.1, 4.2 and appendices B, C.

    task                   the classifier reads                     trained            paper
    classify               x = f(v), a clip of a step               classifier         Table 2
    forecast               x_hat = h(0, {x_i}), the clip after 8    h and classifier   Table 1
    activity               the same; the 8 clips are all the video  h and classifier   App. C
    classify, --data epic  x = f(v), 32 frames of an action         f and classifier   Table 3

The classifier is one linear layer, its logits divided by tau; it starts as the embeddings of its
classes, if they have texts. The loss is its cross entropy alone, and noise is zero, as in the
release. Where f is frozen, each clip goes through it once. After `--order none` a new h is trained.
N clips of an example, B examples per update, S classes, V verbs, U nouns, D embedding.
"""
import functools
import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from torchvision.transforms import v2
from torchvision.tv_tensors import Video
from tqdm import tqdm

import weights
from data import EPIC_FRAMES, EPIC_SECONDS, classify_examples, examples_of, window_around
from evaluation.embedding import encode_examples, load_examples
from evaluation.labeled import add_labeled_flags, open_labeled
from files.lists import NOUNS, VERBS
from support.arguments import Parser, add_run_flags, count, default_checkpoint, positive
from support.device import limit_threads, mixed_precision, pick_device, send
from support.errors import require
from support.workers import prefetch
from training.batches import videos_of
from training.run import (LOG_EVERY, SAVE_EVERY, keep_rows, learning_rate, load_state, log,
                          note_unreadable, open_run, report_absent, save)
from weights.checkpoint import build_model

DROPOUT = 0.1             # of h's tokens
MIXUP = 0.1               # alpha of MixUp, with actions; the released configuration's
WEIGHT_DECAY = 1e-2


# --- Before the first update ---
def extend(init, args, texts, classes):
    """The checkpoint's model with a classifier, as the task needs it -> a new model.

    TimeSformer's and DistantSup's heads are classifiers of their own: the class token before such a
    head becomes the embedding. For EPIC, the embeddings of f's frames are repeated to 32. texts:
    (S, D) or None; classes: sizes of the label sets.
    """
    state, phrases = init.state_dict(), init.phrases
    arguments = {**init.arguments, "task": args.task, "classes": list(classes)}
    matches_texts = init.denoiser is not None or len(init.phrases) > 0
    if not matches_texts:
        width = init.encoder.head.in_features
        phrases = state["phrases"] = torch.zeros(0, width)
        state["standardize.mean"] = torch.zeros(width)
        state["encoder.head.weight"] = torch.eye(width)
        state["encoder.head.bias"] = torch.zeros(width)
    if arguments["denoiser"]:
        arguments["denoiser"] = {**arguments["denoiser"], "dropout": DROPOUT}
    if args.data == "epic":
        arguments["encoder"] = {**arguments["encoder"], "frames": EPIC_FRAMES}
        places = state["encoder.time_embed"].transpose(1, 2)                   # (1, width, F)
        state["encoder.time_embed"] = functional.interpolate(places, EPIC_FRAMES).transpose(1, 2)
    model = build_model(phrases, **arguments)
    model.load_state_dict(state, strict=False)         # what is new: the classifier, perhaps h
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.zero_()
        if texts is not None and matches_texts:
            model.classifier.weight.copy_(functional.normalize(texts, dim=-1))          # (S, D)
    return model


def labeled_examples(args, source):
    """The task's examples of --labels of the videos, drawn from the seed."""
    examples = (classify_examples(source.videos, 1, EPIC_SECONDS) if args.data == "epic" else
                examples_of(args.task, source.videos))
    videos = sorted({example.video for example in examples})
    order = np.random.default_rng((args.seed, 4)).permutation(videos)
    chosen = set(order[:math.ceil(args.labels * len(videos))].tolist())
    require(chosen, f"{args.annotations}: no labeled training example for --task {args.task}")
    return [example for example in examples if example.video in chosen]


def open_init(args):
    """The model of --init, which must suit the task."""
    init = weights.load(args.init)
    require(not init.task, f"--init {args.init}: is fine-tuned already, for {init.task}; give a "
            "checkpoint of --stage pretrain")
    require(args.task == "classify" or init.arguments["denoiser"], f"--init {args.init}: holds no "
            f"h; --task {args.task} trains one; give a checkpoint of train.py or ProcedureVRL")
    return init


# --- Updates ---
def load_actions(source, examples, args, step):
    """An update's clips, each from anywhere in its action, augmented, drawn from (seed, step).

    Returns: clips (B, F, 3, H, W) uint8 and labels (B, 2) int64 of those that could be read, and
    {id: reason} of the unreadable videos.
    """
    rng, drawn = np.random.default_rng((args.seed, 2, step)), []
    for place in videos_of(step, len(examples), args.batch, args.seed):
        example = examples[place]
        start, end, _ = source.videos[example.video].steps[example.step]
        spare = max(end - start - EPIC_SECONDS, 0.0)
        middle = (start + end) / 2 + spare * (rng.random() - 0.5)
        window = window_around(middle, middle, EPIC_SECONDS, np.inf)
        drawn.append(replace(example, windows=np.array([window])))
    loaded, read = load_examples(source, drawn, rng)
    with torch.random.fork_rng(devices=[]):            # torchvision draws from torch's generator
        torch.manual_seed(int(rng.integers(2 ** 31)))
        augment = v2.RandAugment()                     # one draw for all frames of a clip
        clips = [augment(clip) for clip in loaded.clips]
    labels = torch.tensor([example.label for example in read], dtype=torch.int64)
    return torch.stack(clips) if read else loaded.clips, labels, loaded.failed


def action_loss(model, clips, labels):
    """Cross entropies of verb and noun, summed, after MixUp: each clip is mixed with another, in
    shares drawn from Beta(MIXUP, MIXUP). clips (B, F, 3, H, W) uint8, labels (B, 2) -> scalar."""
    target = torch.cat([functional.one_hot(label, size) for label, size in
                        zip(labels.T, model.classes)], 1).float()              # (B, V + U)
    mixup = v2.MixUp(alpha=MIXUP, labels_getter=lambda batch: batch[1])
    clips, target = mixup(Video(clips.float()), target)
    clips = clips.as_subclass(torch.Tensor).round().to(torch.uint8)
    log_p = torch.cat(model.classify(model.encode(clips)), 1)                  # (B, V + U)
    return -(target * log_p).sum(1).mean()


def cached(x, y, args, step):
    """An update's embeddings (B, N, D) and labels (B,) of f's frozen x (M, N, D) and y (M,)."""
    chosen = videos_of(step, len(x), args.batch, args.seed)
    return x[chosen], y[chosen], {}


def cached_loss(model, x, labels):
    """Cross entropy on embeddings x (B, N, D), one view drawn to classify, with labels (B,)."""
    B, N, D = x.shape
    if model.task == "classify":
        read = x[torch.arange(B), torch.randint(N, (B,))]                      # (B, D)
    else:
        read = model.forecast_next(x, x.new_zeros(B, 1, D))[:, 0]              # zero noise
    return functional.nll_loss(model.classify(read)[0], labels)


def finetune(args):
    """`python train.py --stage finetune`: --epochs times all examples, one update per batch."""
    # 1. The checkpoint, labeled videos, the classifier.
    device, epic = pick_device(args.device), args.data == "epic"
    content = open_run(args)
    init = open_init(args)
    limit_threads(init.encoder.image, device)
    args.checkpoint = args.init                            # whose teacher and texts must fit
    source, texts = open_labeled(args, "train", init, device, with_teacher=False)
    report_absent(source, args)
    examples = labeled_examples(args, source)
    torch.manual_seed(args.seed)
    classes = [VERBS, NOUNS] if epic else [
        len(texts) if texts is not None else 1 + max(v.activity for v in source.listed)]
    model = extend(init, args, texts, classes).to(device)

    # 2. What is trained; the rest is frozen, and its clips are encoded once.
    make, loss_of = functools.partial(load_actions, source, examples, args), action_loss
    trained = [model.classifier, model.encoder]
    if not epic:
        x, _, examples = encode_examples(model.eval(), source, examples, args, device)
        y = torch.tensor([example.label for example in examples], device=device)
        make, loss_of = functools.partial(cached, x, y, args), cached_loss
        trained = [model.classifier] + [model.denoiser] * (args.task != "classify")
    model.requires_grad_(False)
    torch.nn.ModuleList(trained).requires_grad_(True)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.0,
                                  weight_decay=WEIGHT_DECAY)
    per_epoch = max(len(examples) // args.batch, 1)
    steps, first = max(1, round(args.epochs * per_epoch)), content.get("step", 0)
    if content:
        load_state(model, optimizer, content)
        keep_rows(args, first)
    print(f"{len(examples)} examples, {steps} updates, on {device}")

    # 3. Train.
    batches = prefetch(make, range(first, steps), args.workers if epic else 0)
    clips, began = 0, time.perf_counter()
    bar = tqdm(batches, "finetune", steps, initial=first, mininterval=1)
    model.train()
    for step, (inputs, labels, failed) in enumerate(bar, first):
        optimizer.param_groups[0]["lr"] = learning_rate(step, 0, steps, args.lr)
        torch.manual_seed(args.seed * 1_000_003 + step)
        note_unreadable(failed, source, args)
        if len(labels):                                    # none if no action could be read
            with mixed_precision(device):
                loss = loss_of(model, send(inputs, device), send(labels, device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            clips += len(labels)
        if (step + 1) % LOG_EVERY == 0 or step + 1 == steps:
            if not torch.isfinite(loss):
                raise FloatingPointError(f"update {step + 1}: the loss is {float(loss)}; the last "
                                         f"checkpoint in {args.out} stays; try a smaller --lr")
            log(args, bar, step=step + 1, epoch=(step + 1) / per_epoch, loss=loss,
                lr=optimizer.param_groups[0]["lr"],
                clips_per_s=clips / (time.perf_counter() - began))
        if (step + 1) % SAVE_EVERY == 0 or step + 1 == steps:
            save(args, model, optimizer, step + 1)


def parse(argv):
    """The command line of `--stage finetune`."""
    parser = Parser("Fine-tune a checkpoint with labels (paper, Sec. 4).")
    add = parser.add_argument
    add("--stage", choices=["pretrain", "finetune"], default="finetune")
    add("--task", choices=["classify", "forecast", "activity"], default="classify",
        help="classify trains the classifier alone; forecast and activity h, too; --data epic f, "
        "too")
    add("--init", type=Path, help="start from this checkpoint: a run folder or a file, also a "
        "published one (default: runs/pretrain, else the checkpoint that comes with the code)")
    add_labeled_flags(parser)
    add("--toy-videos", type=count, default=6000, help="training videos of the embedded world")
    add("--labels", type=positive, default=1.0, help="share of the labeled videos that is used")
    add("--epochs", type=positive, help="times each example is seen (default: 15; 60 for activity, "
        "where a whole video is one example)")
    add("--batch", type=count, default=64, help="examples per update; the paper's 64")
    add("--lr", type=positive, default=1e-3, help="peak learning rate of AdamW")
    add("--out", type=Path, help="folder of the run (default: runs/finetune-TASK)")
    add("--resume", action="store_true", help="go on from OUT/checkpoint.pt, if there is one")
    add_run_flags(parser)
    args = parser.parse_args(argv)
    require(args.data != "epic" or args.task == "classify", f"--task {args.task}: --data epic has "
            "actions to classify")
    args.epochs = args.epochs or (60.0 if args.task == "activity" else 15.0)
    args.out = args.out or Path(f"runs/finetune-{args.task}")
    args.init = args.init or default_checkpoint()
    return args
