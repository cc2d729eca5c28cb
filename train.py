"""Train f and h: `python train.py --stage pretrain`, or `--stage finetune` with labels.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.2 and 4.

Pre-training reads B videos in an update, N = 9 consecutive clips of each, and minimizes the mean of
their objectives, Eq. 7, first with SGD, then with AdamW. finetune.py has fine-tuning.

    paper          here           shape                meaning
    v_i            clips          (B, N, F, 3, H, W)   the clips of a video, in time order
    p'_i           targets        (B, N, K)            soft targets of the teacher, over K phrases
    j              j              (B N,)               the missing clip: each clip in turn
    t              t              (B, N)               noise level, 0 to T - 1; the paper's t - 1
    -              noise          (B, N, D)            what x_j^0 is noised with, N(0, I)
    {i != j}       observed       (B, N, N)            bool; row j: which clips i are observed. By
                                                       default a random tail is hidden: `draw_rows`
    -              perm           (B, N, N)            row j: the clip read at place i, usually i
    x_i            x              (B, N, D)            f(v_i)
    x_j^0          x0             (B, N, D)            the missing clip; scale * x0 is noised
    x_j^t          zt             (B, N, D)            scale * x_j^0, noised to level t
    {x_i}          others         (B, N, N, D)         row j: scale * x_i
    x_hat_j^0      x_hat, z_hat   (B, N, D)            what h predicts; scaled

B videos, N clips, F frames of a clip; K phrases; D embedding; T noise levels. A row is a video with
one of its clips missing.

`--recipe release` trains as the authors' code does. A video has one row then, so j is (B,), and
observed and perm are (B, N); h predicts clip j at all T levels, so x_hat is (B, T, D). What this
changes is in support/release.py, and in `released_draw` below; a `Recipe` names it.
"""
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn.utils import clip_grad_norm_

import finetune
from data import STRIDE, NarratedVideos, Pictures, clip_distance
from diffusion import CLIPS, NOISE, add_noise, noise_levels, released_levels, scale_of
from losses import TAU, agreement, cross_entropy, match, mse_loss
from model import ORDERS, Config, clips_at_once
from pseudo_labels import clip_features, soft_targets
from sources import (
    add_data_flags,
    data_set,
    fits,
    list_narrated,
    open_teacher,
    require_widths,
)
from support import errors, parallel, release
from support.arguments import (
    Parser,
    add_folder_flags,
    add_run_flags,
    add_teacher_flags,
    compile_modules,
    existing,
    limit_threads,
    mixed_precision,
    noise_of,
    peek,
    pick_device,
    positive,
)
from support.errors import require
from support.read import load_phrases
from support.run import Run, learning_rate
from support.workers import items, join, read_ahead, send
from weights import encoders
from weights.checkpoint import build, init_from, open_start, rebuild

SIZES = {                 # what --size implies: h, and how f and h are trained; a flag overrides it
    "small": dict(denoiser=dict(layers=4, heads=4), sgd_epochs=0.25, epochs=18, batch=8, lr=3e-3,
                  log_every=20),
    "base": dict(denoiser=dict(layers=4, heads=8), sgd_epochs=5, epochs=25, batch=128, lr=5e-5,
                 log_every=1)}                         # f: weights/encoders.py
TERMS = "loss", "xe", "mse", "mc", "match", "match_h"  # of metrics.jsonl
SGD_LR, WEIGHT_DECAY, BETAS = 5e-3, 1e-4, (0.9, 0.95)  # the release's; AdamW's betas are ours


def draw(batch, dim, levels, rows, context, seed, update):
    """The random variables of the expectations in Eqs. 9 and 10, for all videos of a batch.

    Args:    batch: B, the videos; dim: D; levels: T; seed, update: of the draws.
             rows: "release": all clips from a random position after j onward are hidden, as in the
             authors' code; "paper": none is hidden. context: "observed": h reads clip i at place i;
             "shuffled", a control: it reads the observed clips of a row at each other's places.
    Returns: noise (B, N, D), t (B, N), observed (B, N, N), perm (B, N, N), as in the header.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + update)   # its low 32 bits count
    noise = torch.randn(batch, CLIPS, dim, generator=generator)
    t = torch.randint(levels, (batch, CLIPS), generator=generator)         # t ~ U[1, T], minus 1
    return noise, t, *draw_rows(batch, rows, context, generator)


def draw_rows(batch, rows, context, generator):
    """Which clips h reads, with each clip in turn missing: observed and perm of `draw`."""
    i = j = torch.arange(CLIPS)
    observed = (i != j[:, None]).repeat(batch, 1, 1)                       # (B, N, N)
    if rows == "release":
        part = torch.rand(batch, CLIPS, generator=generator)
        cut = j + 1 + (part * (CLIPS - 1 - j)).long()      # uniform in j + 1 .. N - 1; last: N
        observed = observed & (i < cut[..., None])
    perm = i.repeat(batch, CLIPS, 1)                                       # (B, N, N)
    if context == "shuffled":
        key = torch.rand(batch, CLIPS, CLIPS, generator=generator).masked_fill(~observed, 2.0)
        shuffled = key.argsort(-1)                         # the observed clips first, in any order
        perm[observed] = shuffled[i < observed.sum(-1, keepdim=True)]
    return observed, perm


def objective(model, clips, targets, noise, t, observed, perm):
    """Eqs. 2, 5, 6 and 8 to 10, of B videos; shapes are in the header, noise (B, N, D).

    Returns: L_XE, L_MSE and L_MC of each video, (B,); the share of its clips whose likeliest phrase
    is the teacher's, by f and by h, (B,).
    """
    B, N = clips.shape[:2]
    j = torch.arange(N, device=clips.device).repeat(B)                     # (B N,)
    x = model.encode(clips.flatten(0, 1)).unflatten(0, (B, N))             # x_i = f(v_i)
    log_p = match(x, model.phrases, model.tau)                             # Eq. 6
    x0 = x.detach()                                                        # x_j^0: no gradient
    zt = add_noise(model.scale * x0, noise, model.alpha_bar[t])            # Eq. 2: x_j^t
    others = model.scale * x[:, None].expand(-1, N, -1, -1)                # {x_i}, once for each j
    others = others.take_along_dim(perm[..., None], 2)
    z_hat = model.denoiser(zt.flatten(0, 1), others.flatten(0, 1), observed.flatten(0, 1), j,
                           t.flatten()).float()                            # Eq. 5
    x_hat = z_hat.unflatten(0, (B, N)) / model.scale
    log_q = match(x_hat, model.phrases, model.tau)                         # Eq. 6, of x_hat
    xe = cross_entropy(targets, log_p).mean(1)                             # Eq. 8
    mse = mse_loss(x_hat, x0)                                              # Eq. 9
    mc = cross_entropy(targets, log_q).mean(1)                             # Eq. 10
    return xe, mse, mc, agreement(log_p, targets), agreement(log_q, targets)


def matching(model, clips, targets, *draws):
    """The ablation --order none: f learns by Eq. 8 alone. Returns as `objective`; without h, L_MSE
    and L_MC are the number 0, and h's share is None."""
    x = model.encode(clips.flatten(0, 1)).unflatten(0, clips.shape[:2])
    log_p = match(x, model.phrases, model.tau)
    return cross_entropy(targets, log_p).mean(1), 0.0, 0.0, agreement(log_p, targets), None


def make_optimizer(model, stage, nesterov=False, betas=BETAS):
    """SGD with momentum, then AdamW (paper, Sec. 4). The loop sets the learning rate."""
    options = dict(lr=0.0, weight_decay=WEIGHT_DECAY)
    if stage == "sgd":
        return torch.optim.SGD(model.parameters(), momentum=0.9, nesterov=nesterov, **options)
    return torch.optim.AdamW(model.parameters(), betas=betas, fused=True, **options)


def rate_of(update, switch, updates, peak, cuts=((), ())):
    """The learning rate: of SGD before the update `switch`, then of AdamW, whose peak is given.
    cuts: of both stages, as in `learning_rate`."""
    if update < switch:
        return learning_rate(update, 0, switch, SGD_LR, cuts[0])
    return learning_rate(update, switch, updates, peak, cuts[1])


def set_up_pretraining(args, run, device):
    """The videos, their frozen teacher, and the model: f and h together."""
    # 1. The phrase pool, the videos and their narrations, the teacher.
    kind = data_set(args.data)
    sizes = encoders.sizes_of(args.encoder, args.size, args.set)
    pictures = Pictures.of(encoders.make_encoder(sizes))   # a throwaway f says what it reads
    limit_threads(pictures.image, device)
    require(fits(kind, pictures.image), f"--data {args.data}: f cannot read it; leave out "
            "--size and --encoder")
    phrases = kind.phrases
    if args.phrases:
        phrases = load_phrases(args.phrases)
    start = None
    if not run.checkpoint:
        start = open_start(args.init, kind.world)
    source = list_narrated(args)
    spacing = clip_distance(source, args.stride, args.max_unreadable)
    teacher = open_teacher(args.clip, args.clip_weights, device)
    require(args.targets == "vision" or teacher.reads_sentences, f"--targets {args.targets}: needs "
            f"the teacher itself, not the table {args.clip}; give --targets vision")
    run.require_same_list("videos", [video.name for video in source.videos])
    run.require_same_list("phrases", phrases)
    texts = teacher.encode_phrases(phrases)                                # (K, D)
    if source.widths:
        require_widths(source, None, texts.shape[1])
        sizes["features"] = source.widths[0]
    source.open(pictures, teacher, narrated=True)

    # 2. f and h.
    torch.manual_seed(args.seed)
    D = texts.shape[1]
    if args.noise == "release":
        scale, alpha_bar = 1.0, released_levels()
    else:
        scale, alpha_bar = scale_of(D), noise_levels(D, *args.noise)
    h = None
    if args.order != "none":
        h = SIZES[args.size]["denoiser"] | encoders.chosen_of("denoiser", args.set)
    config = Config(encoder=sizes, denoiser=h, order=args.order, tau=args.tau, scale=scale,
                    alpha_bar=alpha_bar.tolist(), pixels=source.pixels, spacing=spacing,
                    stride=args.stride, clip=args.clip, clip_weights=args.clip_weights,
                    first_phrase=phrases[0])
    if run.checkpoint:
        model = rebuild(run.checkpoint)
    else:
        model = build(config, texts)
    if start:
        init_from(args.init, model, start)
    model.settings = run.settings
    return source, teacher, model.to(device).train()


def pretrain(args):
    """Pre-training (Sec. 3.2): f and h together."""
    # 1. What is continued; narrated videos with their teacher; f and h; the optimizer.
    device, rank, processes = parallel.start(pick_device(args.device))
    run, recipe = Run(args, rank, processes), recipe_of(args)
    source, teacher, model = set_up_pretraining(args, run, device)
    videos = NarratedVideos(source, args.seed, args.stride, sentences=args.targets != "vision")
    count, batch = len(videos), min(args.batch, len(videos))
    per_epoch = count // batch
    switch = round(args.sgd_epochs * per_epoch)            # updates by SGD; AdamW follows
    updates = switch + round(args.epochs * per_epoch)
    require(updates > 0, f"--epochs {args.epochs}: no update; there are {per_epoch} in an epoch")
    own = parallel.own_places(batch, rank, processes)      # places in the batch
    micro = min(max(clips_at_once(model.encoder, args.micro_batch, device) // CLIPS, 1),
                len(own))                                  # videos
    if args.compile:
        compile_modules(device, model.encoder, model.denoiser, teacher)
    stage = "adamw"
    if run.first <= switch:                                # at the switch, SGD's state was saved
        stage = "sgd"
    optimizer = make_optimizer(model, stage, recipe.nesterov, recipe.betas)
    if run.checkpoint:
        optimizer.load_state_dict(run.checkpoint["optimizer"])
    if rank == 0:
        print(f"{count} videos, clips {model.config.spacing:.1f} s apart, {updates} updates; on "
              f"{device}")

    # 2. Train: each update minimizes the mean of its videos' objectives, Eq. 7. A video that cannot
    #    be read adds nothing.
    plan = items(range(run.first, updates), count, batch, own, args.seed)
    with (run.begin("pretrain", source, updates, per_epoch, TERMS, device) as left,
          read_ahead(videos, plan, args.workers, device.type == "cuda") as reads):
        for update in left:
            if update == switch:
                optimizer = make_optimizer(model, "adamw", recipe.nesterov, recipe.betas)
            optimizer.param_groups[0]["lr"] = rate_of(update, switch, updates, args.lr,
                                                      recipe.cuts)
            draws = recipe.draw(batch, model.dim, len(model.alpha_bar), args.rows, args.context,
                                args.seed, update)
            optimizer.zero_grad()
            for first in range(0, len(own), micro):        # slices of the batch
                part = itertools.islice(reads, min(micro, len(own) - first))
                usable = run.readable(part)
                if not usable:
                    continue
                places = [one.place for one in usable]     # in the batch; b videos could be read
                clips = join([one.clips for one in usable], device)            # (b N, F, 3, H, W)
                clips = clips.unflatten(0, (-1, CLIPS))                        # (b, N, F, 3, H, W)
                seen = join([one.seen for one in usable], device)              # by the teacher
                said = [one.said for one in usable]                            # during the clips
                features = recipe.features(teacher, seen, said, args.targets).to(device)  # (b N, D)
                targets = recipe.targets(features, model.phrases, model.tau)   # Eq. 6: p'_i
                targets = targets.unflatten(0, (-1, CLIPS))                    # (b, N, K)
                given = [send(drawn[places], device) for drawn in draws]
                with mixed_precision(device):
                    xe, mse, mc, of_f, of_h = recipe.objective(model, clips, targets, *given)
                loss = xe + mse + mc                                           # Eq. 7, (B,)
                (loss.sum() / batch).backward()
                run.metrics.add(len(usable) * CLIPS, loss=loss, xe=xe, mse=mse, mc=mc, match=of_f,
                                match_h=of_h)
            parallel.add_gradients(model)
            norm = clip_grad_norm_(model.parameters(), recipe.max_norm)
            optimizer.step()
            if run.after(update + 1, norm, model, optimizer):
                break


# --- What --recipe decides ---
class Recipe(NamedTuple):
    """What --recipe decides. The defaults are ours."""
    draw: Callable                         # the random variables of an update
    features: Callable                     # the teacher's features of clips
    targets: Callable                      # p'_i, made of them
    objective: Callable                    # the terms of each video
    nesterov: bool = False                 # whether SGD has Nesterov's momentum
    betas: tuple = BETAS                   # of AdamW
    cuts: tuple = (), ()                   # of SGD and of AdamW, as in `learning_rate`
    max_norm: float = 1.0                  # the most that the norm of the gradient may be


def recipe_of(args):
    """The Recipe of --recipe. With --order none its objective is `matching`."""
    recipe = Recipe(draw, clip_features, soft_targets, objective)
    if args.recipe == "release":
        recipe = Recipe(released_draw, release.clip_features, release.soft_targets,
                        release.objective, nesterov=True, betas=release.BETAS,
                        cuts=(release.SGD_CUTS, release.ADAMW_CUTS), max_norm=math.inf)
    if args.order == "none":
        recipe = recipe._replace(objective=matching)
    return recipe


def released_draw(batch, dim, levels, rows, context, seed, update):
    """`draw` of the release: one missing clip of a video, and noise for each level of its chain.

    Returns: noise (B, T, D), j (B,), observed (B, N), perm (B, N).
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + update)
    noise = torch.randn(batch, levels, dim, generator=generator)
    j = torch.randint(CLIPS, (batch,), generator=generator)
    observed, perm = draw_rows(batch, rows, context, generator)
    video = torch.arange(batch)
    return noise, j, observed[video, j], perm[video, j]


# --- The command line ---
def parse(argv=None):
    """The command line. Defaults are those of --data and --size."""
    if peek(argv, "--stage", "pretrain") == "finetune":
        return finetune.parse(argv)
    parser = Parser("Pre-train f and h (Sec. 3.2). See also --stage finetune --help.")
    parser.add_argument("--stage", choices=["pretrain", "finetune"], default="pretrain")
    kind = add_data_flags(parser, argv, "pretrain")
    size = peek(argv, "--size", kind.size)
    require(size in SIZES, f"--size {size}: must be {' or '.join(SIZES)}")
    encoder = peek(argv, "--encoder", kind.encoder)
    add_flags(parser, kind, size, encoder)
    if peek(argv, "--recipe") == "release":
        parser.set_defaults(**release.FLAGS)
    add = add_run_flags(parser)
    add_folder_flags(add, Path("runs/pretrain"))
    add("--compile", action="store_true", help="compile f, h and the teacher's image encoder: "
        "faster on a GPU, after some minutes")
    args = parser.parse_args(argv)
    args.noise = noise_of(args.noise)
    if args.set:
        args.set = encoders.overrides(args.set, args.encoder, args.order)
    args.world, args.log_every = kind.world, SIZES[size]["log_every"]
    return args


def add_flags(parser, kind, size, encoder):
    """Add the flags that only pre-training has: of the teacher, of f and h, of how long, how much
    at once and how fast. kind: the data.Source class; size and encoder: as chosen."""
    add = parser.add_argument_group("teacher").add_argument
    add_teacher_flags(add, kind.clip)
    add("--phrases", type=existing, required=kind.phrases is None, help="the phrase pool, one "
        "phrase per line (default: the toy world's)")
    add("--targets", choices=["vision", "narration", "both"], default="vision",
        help="soft targets of the teacher: of frames, of speech, or their mean")
    add("--stride", type=positive(int), default=STRIDE, help="every STRIDE-th sentence gives a "
        "clip; choose it so that clips are about a step apart")

    add = parser.add_argument_group("model").add_argument
    add("--size", choices=list(SIZES), default=size, help="f and h: 2 blocks on 4 frames of 32 "
        "pixels, or ViT-B on 8 of 224; sets defaults of --init, --sgd-epochs, --epochs, --batch "
        "and --lr, too")
    names = [name for name in encoders.ENCODERS if name != encoders.TEACHER]
    add("--encoder", choices=names, default=encoder, help="f; for features: adapter")
    add("--set", nargs="+", metavar="NAME=VALUE", help="arguments of f and h in place of those of "
        "--size, such as denoiser.layers=6 encoder.width=96; an unknown name lists all")
    init = "none"
    if size == "base" and encoder == "timesformer":
        init = "timm"
    add("--init", default=init, help="start f and h from a run, a file, ImageNet's ViT (timm), or "
        "scratch (none)")
    add("--order", choices=ORDERS, default="diffusion",
        help="h learns from the noised missing clip, from zeros (mask), or there is no h (none)")
    add("--noise", nargs="+", default=NOISE, metavar=("FIRST", "LAST"), help="signal-to-noise "
        "ratios times sqrt(D) of the first and last level; or: release, the authors'")
    add("--tau", type=positive(float), default=kind.tau or TAU, help="temperature of Eq. 6")
    add("--rows", choices=["release", "paper"], default="release", help="release: hide clips "
        "from a random position after the missing one onward, as the authors do; paper: none")
    add("--context", choices=["observed", "shuffled"], default="observed",
        help="shuffled: h reads the observed clips in random order, a control")

    sizes = SIZES[size]
    add = parser.add_argument_group("training").add_argument
    add("--recipe", choices=finetune.RECIPES, default="paper", help="release: train as the "
        "authors' code does. Defaults are --noise release and --targets both; of the soft targets "
        "the five likeliest phrases are kept; one clip of a video is missing, and h denoises it "
        "through all levels; L_MSE is a mean over coordinates and trains its target, too; rates "
        "are cut to a tenth after 40 and 80%% of SGD's epochs, and 60 and 92%% of AdamW's")
    add("--sgd-epochs", type=positive(float, zero=True), default=sizes["sgd_epochs"],
        help="epochs of SGD, the first stage")
    add("--epochs", type=positive(float, zero=True), default=sizes["epochs"],
        help="epochs of AdamW, the second stage")
    add("--batch", type=positive(int), default=sizes["batch"], help="videos per update")
    add("--lr", type=positive(float), default=sizes["lr"], help="peak learning rate of AdamW")


def main(args):
    """Pre-train or fine-tune. Restores torch's number of threads afterwards."""
    threads = torch.get_num_threads()
    try:
        if args.stage == "pretrain":
            pretrain(args)
        else:
            finetune.finetune(args)
    finally:
        torch.set_num_threads(threads)


if __name__ == "__main__":
    errors.run_command(main, parse)
