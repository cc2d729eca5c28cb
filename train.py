"""Train f and h: `python train.py --stage pretrain`, or `--stage finetune` with labels.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.2 and 4.

Each video has an objective, Eqs. 6 to 10. Pre-training minimizes the mean objective of the videos
of an update, first with SGD, then with AdamW. In one update f encodes each clip once, and h
predicts many clips, one in each row (training/rows.py). A random choice depends only on its kind,
seed, update and video. So a run stays the same, up to rounding, if it is resumed, or made by more
processes or in smaller groups. Fine-tuning is in training/finetune.py.

    paper          here           shape             meaning
    v_i            group.clips    (C, F, 3, H, W)   consecutive clips of V videos
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
import time
from pathlib import Path

import torch
from tqdm import trange

from data import CLIPS
from diffusion import add_noise
from losses import match, mc_loss, mse_loss, video_means, xe_loss
from pseudo_labels import soft_targets
from support.arguments import (Parser, add_run_flags, count, mixed_precision, number, pick_device,
                               positive)
from support.errors import require, run
from toy import grammar
from training import finetune, parallel
from training.batches import clip_features, draw_noise, groups
from training.rows import rows_of_group
from training.run import (SAVE_EVERY, TERMS, Metrics, Stop, ended, learning_rate, log, save)
from training.setup import read_ahead, set_up

PRESETS = {               # what --size implies; a flag overrides it
    "small": dict(sgd_epochs=0.25, epochs=9, batch=8, lr=4e-3, log_every=20),
    "base": dict(sgd_epochs=5, epochs=25, batch=128, lr=5e-5, log_every=1)}
TAU = {"toy": 0.045, "howto100m": 0.02, "features": 0.02}      # of Eq. 6; the paper's with CLIP
SGD_LR, WEIGHT_DECAY, BETAS = 5e-3, 1e-4, (0.9, 0.95)  # the release's; AdamW's betas are ours


def make_optimizer(model, stage):
    """SGD with momentum, then AdamW (paper, Sec. 4). The loop sets the learning rate."""
    options = dict(lr=0.0, weight_decay=WEIGHT_DECAY)
    if stage == "sgd":
        return torch.optim.SGD(model.parameters(), momentum=0.9, **options)
    return torch.optim.AdamW(model.parameters(), betas=BETAS, fused=True, **options)


def objective(model, group, features, update, args):
    """Eqs. 6 and 8 to 10 for a group of whole videos. A video's terms do not depend on the others.

    Args:    group: Loaded, V videos with C clips; features (C, D) of the teacher.
    Returns: {"xe", "mse", "mc": the terms; "match", "match_h": the share of clips, and of h's
             predictions, whose likeliest phrase is the teacher's}, each (V,); and x (C, D).
    """
    clips = [len(windows) for _, windows in group.requests]                # of each video
    x = model.encode(group.clips)                                          # x_i = f(v_i)
    targets = soft_targets(features, model.phrases, model.tau)             # p'_i
    log_p = match(x, model.phrases, model.tau)                             # Eq. 6
    xe, taught = xe_loss(log_p, targets, clips), targets.argmax(-1)        # Eq. 8
    terms = {"xe": xe, "mse": torch.zeros_like(xe), "mc": torch.zeros_like(xe),
             "match": video_means((log_p.argmax(-1) == taught).float(), clips)}
    if args.order == "none":                                               # f learns alone
        return terms, x
    phrase = log_p.argmax(-1).cpu().numpy()                                # likeliest, (C,)
    rows, j, counts = rows_of_group(group.requests, phrase, update, args)
    T = len(model.alpha_bar)                                               # t ~ U[1, T], minus 1
    noise, t = draw_noise(group.requests, counts, update, model.dim, T, args.seed)
    rows, j, noise, t = (part.to(x.device) for part in (rows, j, noise, t))
    missing = rows.gather(1, j[:, None])[:, 0]
    observed = (rows >= 0) & (torch.arange(CLIPS, device=x.device) != j[:, None])
    xj = x[missing].detach()                                               # x_j^0
    z0 = model.standardize(xj)
    zt = add_noise(z0, noise, model.alpha_bar[t])                          # Eq. 2
    if args.order == "mask":                                               # h sees nothing of x_j
        zt, t = torch.zeros_like(zt), torch.full_like(t, T - 1)
    # Padding, -1, reads the last clip; `observed` hides it.
    z_hat = model.denoise(zt, x[rows], observed, j, t)                     # Eq. 5
    x_hat = model.standardize.inverse(z_hat)
    log_q = match(x_hat, model.phrases, model.tau)                         # Eq. 6, of x_hat
    terms["mse"] = mse_loss(x_hat, xj, counts)                             # Eq. 9, of x, not of z
    terms["mc"] = mc_loss(log_q, targets[missing], counts)                 # Eq. 10
    terms["match_h"] = video_means((log_q.argmax(-1) == taught[missing]).float(), counts)
    return terms, x


def pretrain(args):
    """Pre-training (Sec. 3.2): f and h together."""
    # 1. Narrated videos with their teacher, f and h, the optimizer.
    device = parallel.start(pick_device(args.device))
    source, teacher, model, checkpoint, settings = set_up(args, device)
    batch = min(args.batch, len(source.videos))
    per_epoch = len(source.videos) // batch
    switch = round(args.sgd_epochs * per_epoch)            # updates by SGD; AdamW follows
    updates = switch + round(args.epochs * per_epoch)
    first = done = checkpoint.get("step", 0)               # updates that the run has made
    require(updates > 0, f"--sgd-epochs {args.sgd_epochs} --epochs {args.epochs}: no update; there "
            f"are {per_epoch} in an epoch")
    optimizer = make_optimizer(model, "sgd" if first <= switch else "adamw")
    if checkpoint:
        optimizer.load_state_dict(checkpoint.pop("optimizer"))
    loaded, videos, most = read_ahead(source, model, teacher.size, batch, first, updates, args)
    print(f"{len(source.videos)} videos, {switch} updates by SGD and {updates - switch} by AdamW")

    # 2. Train: each update minimizes the mean of its videos' objectives, Eq. 7.
    rank, _ = parallel.rank_and_world()
    metrics, saved = Metrics(("loss", *TERMS), device), time.perf_counter()
    bar = trange(first, updates, desc="pretrain", mininterval=1, disable=rank > 0)
    with Stop() as stop:
        for update in bar:
            if update == switch:
                optimizer = make_optimizer(model, "adamw")
            span = (0, switch, SGD_LR) if update < switch else (switch, updates, args.lr)
            optimizer.param_groups[0]["lr"] = learning_rate(update, *span)
            optimizer.zero_grad()
            for group in groups(loaded, videos, most, source, device):
                features = clip_features(teacher, source, group, args.targets).to(device)  # (C, D)
                with mixed_precision(device):
                    terms, x = objective(model, group, features, update, args)
                terms["loss"] = terms["xe"] + terms["mse"] + terms["mc"]               # Eq. 7
                (terms["loss"].sum() / batch).backward()
                model.standardize.add(x)
                metrics.add(terms, len(x))
            due = rank == 0 and time.perf_counter() - saved > SAVE_EVERY
            asked, due = parallel.add(model, stop.asked, due)      # and gradients, and statistics
            model.standardize.update()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

            done = update + 1
            end = asked or done == updates
            if end or done % args.log_every == 0:
                log(args, bar, done, norm, epoch=done / per_epoch,
                    **metrics.row(lr=optimizer.param_groups[0]["lr"]))
                if end or due:
                    save(args, model, optimizer, done, settings, source)
                    saved = time.perf_counter()
            if end:
                break
    parallel.end()
    ended(args, done, updates)


def parse(argv=None):
    """The command line. A flag's own default is None where --size or --data gives the default."""
    stage = Parser("", add_help=False)
    stage.add_argument("--stage")
    if stage.parse_known_args(argv)[0].stage == "finetune":
        return finetune.parse(argv)
    parser = Parser("Pre-train f and h (Sec. 3.2). See also --stage finetune --help.")
    add = parser.add_argument
    add("--stage", choices=["pretrain", "finetune"], default="pretrain")
    add("--data", choices=["toy", "howto100m", "features"], default="toy",
        help="howto100m: narrated videos; features: their features instead of pictures")
    add("--toy-videos", type=count, default=6000, help="training videos of the toy world")
    add("--videos", type=Path, help="folder of videos, ID.mp4 and the like")
    add("--features", type=Path, help="npz of features, as evaluate.py --task features writes")
    add("--captions", type=Path, help="folder of ID.csv, ID.srt or ID.vtt; or caption.json")
    add("--ids", type=Path, help="use only these videos: an id per line")
    add("--phrases", type=Path, help="the phrase pool, one phrase per line")
    add("--clip", default="ViT-B-16-quickgelu", help="teacher: open_clip's model or local-dir:DIR")
    add("--clip-weights", help="its weights: a tag of open_clip (default openai), or a file")
    add("--size", choices=["small", "base"], help="f and h: 2 blocks on 4 frames of 32 pixels, or "
        "ViT-B on 8 of 224; sets defaults of --init, --sgd-epochs, --epochs, --batch and --lr, too")
    add("--encoder", choices=["timesformer", "mvit", "adapter"], help="f; for features: adapter")
    add("--order", choices=["diffusion", "mask", "none"], default="diffusion",
        help="how h learns the order of steps; none: matching alone")
    add("--rows", choices=["steps", "release", "paper"], default="steps",
        help="which clips h reads and predicts: training/rows.py")
    add("--context", choices=["observed", "shuffled", "bag", "random"], default="observed",
        help="controls. shuffled: h reads the observed clips in random order; bag: also, any clip "
        "is missing, not the next; random: h reads random clips of the update")
    add("--targets", choices=["vision", "narration", "both"], default="vision",
        help="soft targets of the teacher: of frames, of speech, or their mean")
    add("--tau", type=positive, help="temperature of Eq. 6 (default: 0.02, toy 0.045)")
    add("--init", help="start f and h from a run, a file, ImageNet's ViT (timm), or anew (none)")
    add("--sgd-epochs", type=number, help="epochs of SGD, the first stage")
    add("--epochs", type=number, help="epochs of AdamW, the second stage")
    add("--batch", type=count, help="videos per update")
    add("--lr", type=positive, help="peak learning rate of AdamW")
    add("--out", type=Path, default=Path("runs/pretrain"), help="folder of the run")
    add("--compile", action="store_true", help="compile f's blocks: a fifth faster on a GPU")
    add("--resume", action="store_true", help="go on from OUT/checkpoint.pt, if there is one")
    add("--skip", nargs="+", default=[], metavar="ID", help="videos that are never opened")
    add_run_flags(parser)
    args = parser.parse_args(argv)
    args.size = args.size or ("base" if args.data == "howto100m" else "small")
    args.encoder = args.encoder or ("adapter" if args.data == "features" else "timesformer")
    args.world = grammar.VERSION if args.data == "toy" else None
    init = "timm" if args.size == "base" and args.encoder == "timesformer" else "none"
    for name, value in {**PRESETS[args.size], "tau": TAU[args.data], "init": init}.items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)
    return args


def main(args):
    """Pre-train, or fine-tune."""
    pretrain(args) if args.stage == "pretrain" else finetune.finetune(args)


if __name__ == "__main__":
    run(main, parse)
