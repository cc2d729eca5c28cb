"""Train f and h: `python train.py --stage pretrain`, or `--stage finetune` with labels.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.2 and 4.

Pre-training is one loop with the whole objective, Eq. 7, by SGD and then by AdamW. In one update f
encodes each clip once, and h predicts many of them, one in each row: training/rows.py. Every
random choice of an update is drawn from (seed, update), so a resumed run ends as if it had never
stopped. Fine-tuning is in training/finetune.py.

    paper          here           shape             meaning
    v_i            batch.clips    (C, F, 3, H, W)   consecutive clips of B videos
    x_i            x              (C, D)            f(v_i)
    p'_i           targets        (C, K)            soft targets of the teacher, over K phrases
    {x_i}          rows           (R, N)            numbers of the clips of each row; -1 = padding
    j              j, missing     (R,)              the place of the missing clip in its row, and
                                                    its number
    {i != j}       observed       (R, N)            bool
    x_j^0          xj, z0         (R, D)            the missing clip; standardized (diffusion.py)
    x_j^t          zt             (R, D)            z0 noised to level t, counted from 0
    x_hat_j^0      x_hat, z_hat   (R, D)            what h predicts; standardized

C clips, F frames of a clip; R rows of N places; K phrases; D embedding; T noise levels.
"""
import functools
import time
from pathlib import Path

import torch
from tqdm import tqdm

import weights.checkpoint
from data import CLIPS, View
from diffusion import add_noise, noise_levels
from files.lists import load_phrases
from files.sources import open_folder
from losses import match, mc_loss, mse_loss, xe_loss
from model import encode_parts
from pseudo_labels import soft_targets
from support.arguments import (Parser, add_run_flags, count, limit_threads, mixed_precision,
                               number, pick_device, positive)
from support.errors import require, run
from support.workers import prefetch
from toy import grammar, render
from toy.source import ToySource, load_teacher
from training import finetune, parallel
from training.batches import clip_features, generator, load_batch, seed_noise
from training.rows import missing_rows
from training.run import (SAVE_EVERY, begin, last_checkpoint, learning_rate, log, open_run, save,
                          tell_minutes)
from weights.names import PIXELS
from weights.teacher import open_teacher

TIMESFORMER = {           # f: "small" suits a CPU, "base" is ViT-B/16
    "small": dict(image=32, patch=16, frames=4, width=64, depth=2, heads=2),
    "base": dict(image=224, patch=16, frames=8, width=768, depth=12, heads=12)}
MVIT = {                  # f with --encoder mvit: Table D, appendix D
    "small": dict(kind="mvit", image=32, frames=4, seconds=None, width=16, heads=1,
                  stages=[1, 1, 1], kv_stride=4),
    "base": dict(kind="mvit", image=224, frames=16, seconds=3.2)}
DENOISER = {"small": dict(layers=4, heads=4), "base": dict(layers=4, heads=8)}        # h
PRESETS = {               # what --size implies; a flag overrides it
    "small": dict(init="none", sgd_epochs=0.25, epochs=9, batch=8, lr=4e-3, log_every=20),
    "base": dict(init="timm", sgd_epochs=5, epochs=25, batch=128, lr=5e-5, log_every=1)}
CONSECUTIVE = {"small": 16, "base": CLIPS}             # most clips of one video in an update
TAU = {"toy": 0.045, "howto100m": 0.02}                # of Eq. 6; the paper's with CLIP
SGD_LR, WEIGHT_DECAY, BETAS = 5e-3, 1e-4, (0.9, 0.95)  # the release's; AdamW's betas are ours


def open_data(args, view, device):
    """The narrated videos, their frozen teacher, the pool's phrases, and f's pixel statistics."""
    if args.data == "toy":
        require(not args.videos, "--data toy reads no --videos; add --data howto100m")
        phrases = load_phrases(args.phrases) if args.phrases else grammar.PHRASES
        source = ToySource("train", args.toy_videos, view.frames)
        return source, load_teacher(device).watch(source), phrases, (render.MEAN, render.STD)
    for name in ("videos", "captions", "phrases"):
        path = getattr(args, name)
        require(path and path.exists(), f"--data howto100m needs --{name}, which must exist; given "
                f"is {path}")
    teacher = open_teacher(args.clip, args.clip_weights, device)
    source = open_folder(args.videos, args.captions, args.ids, view, teacher.size)
    return source, teacher, load_phrases(args.phrases), PIXELS


def make_optimizer(model, stage):
    """SGD with momentum, then AdamW (paper, Sec. 4). The loop sets the learning rate."""
    options = dict(lr=0.0, weight_decay=WEIGHT_DECAY)
    if stage == "sgd":
        return torch.optim.SGD(model.parameters(), momentum=0.9, **options)
    return torch.optim.AdamW(model.parameters(), betas=BETAS, fused=True, **options)


def pretrain(args):
    """Pre-training (Sec. 3.2): f and h together."""
    # 1. Narrated videos with their frozen teacher, and the texts of the phrase pool.
    device = parallel.start(pick_device(args.device))
    rank, world = parallel.place()
    require(args.batch >= world, f"--batch {args.batch}: {world} processes need a video each")
    content = open_run(args)                               # of the run's checkpoint; {} at first
    encoder = (MVIT if args.encoder == "mvit" else TIMESFORMER)[args.size]
    limit_threads(encoder["image"], device)
    start = None                                           # weights to start from
    if args.init != "none" and not content:
        start = weights.checkpoint.open_start(args.init)
    view = View(encoder["image"], encoder["frames"], encoder.get("seconds"))
    source, teacher, phrases, pixels = open_data(args, view, device)
    begin(args, content, source, phrases=phrases)
    embeddings = teacher.encode_phrases(phrases)                                   # (K, D)

    # 2. f and h, with the same weights in each process, and their optimizer.
    torch.manual_seed(args.seed)
    alpha_bar = noise_levels(embeddings.shape[1]).tolist()
    if content:
        alpha_bar = content["arguments"]["alpha_bar"]      # a run keeps its schedule
    model = weights.checkpoint.build_model(
        embeddings, encoder, DENOISER[args.size], order=args.order, tau=args.tau, pixels=pixels,
        alpha_bar=alpha_bar, witness=phrases[0])
    if start is not None:
        weights.checkpoint.fill(args.init, model, start)
    model.to(device).train()
    per_epoch = max(len(source.videos) // args.batch, 1)
    switch = round(args.sgd_epochs * per_epoch)            # updates by SGD; AdamW follows
    updates = switch + round(args.epochs * per_epoch)
    require(updates > 0 and 0 <= switch <= updates, f"--sgd-epochs {args.sgd_epochs} --epochs "
            f"{args.epochs}: no update; there are {per_epoch} in an epoch")
    first = content.get("step", 0)
    optimizer = make_optimizer(model, "sgd" if first <= switch else "adamw")
    if content:
        model.load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(source.videos)} "
          f"videos, {switch} updates by SGD and {updates - switch} by AdamW, on {device}")
    most = len(range(rank, args.batch, world)) * CONSECUTIVE[args.size]    # clips of this process
    if device.type == "cpu" and args.size == "base":
        tell_minutes(model, most)

    # 3. Train: the objective of an update, Eq. 7, from top to bottom.
    make = functools.partial(load_batch, source, args.seed, args.batch, CONSECUTIVE[args.size],
                             rank, world)
    size = 3 * view.frames * most * (view.size ** 2 + teacher.size ** 2)   # bytes
    batches = prefetch(make, range(first, updates), args.workers, size=size)
    encoded, began = 0, time.perf_counter()
    saved = began
    bar = tqdm(batches, "pretrain", updates, initial=first, mininterval=1, disable=rank > 0)
    for update, batch in enumerate(bar, first):
        if update == switch:
            optimizer = make_optimizer(model, "adamw")
        span = (0, switch, SGD_LR) if update < switch else (switch, updates, args.lr)
        optimizer.param_groups[0]["lr"] = learning_rate(update, *span)
        seed_noise(args.seed, update, rank)
        source.unreadable |= batch.failed
        # The teacher stays in float32: in bfloat16 its p' would be others.
        features = clip_features(teacher, source, batch, args.targets).to(device)      # (C, D)
        with mixed_precision(device):
            x = encode_parts(model, batch.clips, args.micro_batch)         # x_i = f(v_i)
            model.standardize.update(x)
            targets = soft_targets(features, model.phrases, model.tau)     # p'_i
            log_p = match(x, model.phrases, model.tau)                     # Eq. 6
            xe = xe_loss(log_p, targets)                                   # Eq. 8
            mse = mc = x.new_zeros(())                     # with --order none, f learns alone
            if args.order != "none":
                rng = generator("rows", args.seed, update, rank)
                sure, phrase = (part.cpu().numpy() for part in log_p.detach().max(-1))     # (C,)
                rows, j = missing_rows(batch.requests, sure, phrase, rng, args.rows, args.context)
                rows, j = rows.to(device), j.to(device)
                r = torch.arange(len(rows), device=device)
                missing, observed = rows[r, j], rows >= 0
                observed[r, j] = False                                     # neither padding nor j
                xj = x[missing].detach()                                   # x_j^0
                z0 = model.standardize(xj)
                t = torch.randint(len(model.alpha_bar), j.shape, device=device)    # t ~ U[1, T]
                zt = add_noise(z0, torch.randn_like(z0), model.alpha_bar[t])       # Eq. 2
                if args.order == "mask":                                   # h sees nothing of x_j
                    zt, t = torch.zeros_like(zt), torch.full_like(t, len(model.alpha_bar) - 1)
                # Padding, -1, reads the last clip; `observed` hides it.
                z_hat = model.denoise(zt, x[rows], observed, j, t)         # Eq. 5
                x_hat = model.standardize.inverse(z_hat)
                mse = mse_loss(x_hat, xj)                                  # Eq. 9, of x, not of z
                log_q = match(x_hat, model.phrases, model.tau)             # Eq. 6, of x_hat
                mc = mc_loss(log_q, targets[missing])                      # Eq. 10
            loss = xe + mse + mc                                           # Eq. 7
        optimizer.zero_grad()
        loss.backward()
        parallel.average(model)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

        encoded += len(x) * world
        if (update + 1) % args.log_every == 0 or update + 1 == updates:
            taught = targets.argmax(-1)                    # the teacher's phrase of each clip
            match_h = None
            if args.order != "none":
                match_h = (log_q.argmax(-1) == taught[missing]).float().mean()
            log(args, bar, source, update + 1, norm, epoch=(update + 1) / per_epoch, loss=loss,
                xe=xe, mse=mse, mc=mc, match=(log_p.argmax(-1) == taught).float().mean(),
                match_h=match_h, lr=optimizer.param_groups[0]["lr"],
                clips_per_s=encoded / (time.perf_counter() - began))
        if time.perf_counter() - saved > SAVE_EVERY or update + 1 == updates:
            save(args, model, optimizer, update + 1, norm)
            saved = time.perf_counter()
    parallel.end()
    print(f"{args.out / 'checkpoint.pt'}: {updates} updates, {time.perf_counter() - began:.0f} s")


def parse(argv=None):
    """The command line. Where --size or --data gives the default, the flag's own is None."""
    stage = Parser("", add_help=False)
    stage.add_argument("--stage")
    if stage.parse_known_args(argv)[0].stage == "finetune":
        return finetune.parse(argv)
    parser = Parser("Pre-train f and h (Sec. 3.2). See also --stage finetune --help.")
    add = parser.add_argument
    add("--stage", choices=["pretrain", "finetune"], default="pretrain")
    add("--data", choices=["toy", "howto100m"], default="toy", help="howto100m: narrated videos")
    add("--toy-videos", type=count, default=6000, help="training videos of the embedded world")
    add("--videos", type=Path, help="folder of videos, ID.mp4 and the like")
    add("--captions", type=Path, help="folder of ID.csv, ID.srt or ID.vtt; or caption.json")
    add("--ids", type=Path, help="use only these videos: an id per line")
    add("--phrases", type=Path, help="the phrase pool, one phrase per line")
    add("--clip", default="ViT-B-16-quickgelu", help="teacher: open_clip's model or local-dir:DIR")
    add("--clip-weights", help="its weights: a tag of open_clip (default openai), or a file")
    add("--size", choices=["small", "base"], help="of f and h: 2 blocks on 4 frames of 32 pixels, "
        "or ViT-B on 8 of 224; with defaults of --init, --sgd-epochs, --epochs, --batch and --lr")
    add("--encoder", choices=["timesformer", "mvit"], default="timesformer", help="f (Table D)")
    add("--order", choices=["diffusion", "mask", "none"], default="diffusion",
        help="how h learns the order of steps; none: matching alone")
    add("--rows", choices=["steps", "release", "paper"], default="steps",
        help="which clips h reads and predicts: training/rows.py")
    add("--context", choices=["observed", "shuffled", "random"], default="observed",
        help="controls: h reads the observed clips in random places, or random clips of the batch")
    add("--targets", choices=["vision", "narration", "both"], default="vision",
        help="soft targets of the teacher: of frames, of speech, or their mean")
    add("--tau", type=positive, help="temperature of Eq. 6 (default: toy 0.045, howto100m 0.02)")
    add("--init", help="start f and h from a run, a file, ImageNet's ViT (timm), or anew (none)")
    add("--sgd-epochs", type=number, help="epochs of SGD, the first stage")
    add("--epochs", type=number, help="epochs of AdamW, the second stage")
    add("--batch", type=count, help="videos per update")
    add("--lr", type=positive, help="peak learning rate of AdamW")
    add("--out", type=Path, default=Path("runs/pretrain"), help="folder of the run")
    add("--resume", action="store_true", help="go on from OUT/checkpoint.pt, if there is one")
    add_run_flags(parser)
    args = parser.parse_args(argv)
    args.size = args.size or ("small" if args.data == "toy" else "base")
    args.world = grammar.VERSION if args.data == "toy" else None
    for name, value in {**PRESETS[args.size], "tau": TAU[args.data]}.items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)
    return args


def main(args):
    """Pre-train, or fine-tune."""
    try:
        pretrain(args) if args.stage == "pretrain" else finetune.finetune(args)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(last_checkpoint(args)) from None


if __name__ == "__main__":
    run(main, parse)
