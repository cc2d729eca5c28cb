"""Pre-training: what a run is made of, and what a step computes.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.2 and 4.

    stage    trained    objective
    sgd      f          L_XE, by SGD (the paper begins with SGD)
    match    f          L_XE, by AdamW: gradients from h would only disturb a young f
    joint    f and h    the whole objective (Eq. 7)
    order    h          L_MSE + L_MC on cached embeddings: f has finished
    B videos, N clips, C clips in all, P missing ones, T levels, K phrases, D embedding.
"""
import functools

import numpy as np
import torch

import diffusion
import losses
from data import CLIPS, PIECES, View, missing_clips, pad_clips
from evaluation.embedding import embed_videos, teacher_features
from files.annotations import FeaturesFile
from files.listings import load_phrases
from files.sources import open_coin_features, open_narrated
from model import encode_parts
from pseudo_labels import estimate_tau, soft_targets
from support import parallel
from support.command import BadInput, check
from support.device import mixed_precision, pick_device, send, set_seed
from support.workers import prefetch
from toy import grammar, render
from toy.source import ToySource, load_teacher
from training.cache import CachedRows
from training.run import Stage, prepare_run, report_missing, videos_of_step
from weights.checkpoint import build_model, same_texts
from weights.fill import fill, open_start
from weights.teacher import open_teacher

# Sizes of f and h. "small" is for two CPU cores, "h only" for features files.
SIZES = {
    "paper": {"encoder": dict(image=224, patch=16, frames=8, width=768, depth=12, heads=12),
              "denoiser": dict(width=512, layers=4, heads=8)},
    "small": {"encoder": dict(image=32, patch=8, frames=4, width=64, depth=2, heads=2),
              "denoiser": dict(width=64, layers=2, heads=4)},
    "h only": {"encoder": None, "denoiser": dict(width=128, layers=2, heads=4, dropout=0.1)},
}
MVIT = {                  # --encoder mvit: f of these two; 16 of 96 frames, as in the paper
    "paper": dict(kind="mvit", image=224, frames=16, seconds=3.2),
    "small": dict(kind="mvit", image=32, frames=4, seconds=None, width=16, heads=1,
                  stages=[1, 1, 1], kv_stride=4),
}
PIXELS = 0.45, 0.225      # mean and deviation of pixels / 255, those of TimeSformer's weights
TAU = 0.02                # temperature of the student's matching (Eq. 6), the paper's
CALIBRATED_TAU = 0.05     # of the embedded world's teacher: where its NLL is least (validation)
SHARPER = 0.6             # temperature of the soft targets, as a share of the calibrated one
SGD_LR = 5e-3             # peak learning rate of SGD, the release's
WEIGHT_DECAY = 1e-2       # of every stage; the release's 1e-4
ORDER_BATCH = 256         # rows per step of the last stage
GRID = 4.0                # s between two of the cached embeddings of a video
PASSES = 6                # over each video for the last stage, each with other windows


# --- Before the first step ---
def open_material(settings, encoder, device):
    """Videos, the pool's embeddings (K, D), and the model's arguments that depend on both."""
    if settings.data == "coin":
        source, texts = open_coin_features(settings.annotations, settings.features,
                                           settings.text_embeddings, "train")
        rng = np.random.default_rng(0)
        some = source.load([(video, source.pretrain_windows(video, rng))
                            for video in range(min(len(source), 1000))])
        tau = estimate_tau(some.clips, texts)
        return source, texts, {"pixels": None, "teacher_tau": settings.teacher_tau or SHARPER * tau,
                               "clip_tau": tau, "witness": None}
    phrases = load_phrases(settings.phrases) if settings.phrases else grammar.PHRASES
    if settings.data == "howto100m":
        teacher = open_teacher(settings.clip, settings.clip_weights, device)
        view = View(encoder["image"], encoder["frames"], encoder.get("seconds"))
        source = open_narrated(settings.videos, settings.captions, settings.ids, view, teacher,
                               settings.teacher_features)
        pixels, tau = PIXELS, TAU
    else:
        teacher = load_teacher(device)
        source = ToySource("train", settings.toy_videos, encoder["frames"], teacher)
        pixels, tau = (render.MEAN, render.STD), SHARPER * CALIBRATED_TAU
    return source, teacher.encode_phrases(phrases), {
        "pixels": pixels, "teacher_tau": settings.teacher_tau or tau, "clip_tau": None,
        "witness": phrases[0]}


def set_up(settings):
    """Model, its arguments, source, device, and the checkpoint to resume from or None."""
    check(settings.batch >= parallel.place()[1], "batch", settings.batch,
          f"{parallel.place()[1]} processes need a video each")
    resumed = prepare_run(settings)
    device = pick_device(settings.device)
    size = {"toy": "small", "coin": "h only"}.get(settings.data, settings.size)
    encoder = MVIT[size] if settings.encoder == "mvit" else SIZES[size]["encoder"]
    start = open_start(settings.init) if settings.init and not resumed else None   # fail early
    source, phrases, arguments = open_material(settings, encoder, device)
    report_missing(source, settings)
    if len(phrases.unique(dim=0)) < 2:
        raise BadInput(f"{settings.phrases or settings.text_embeddings}: all texts are the same; "
                       "at least two different ones are needed")
    set_seed(settings.seed)
    denoiser = {**SIZES[size]["denoiser"], "clips": PIECES + settings.missing}
    arguments = {"encoder": encoder, "denoiser": denoiser, "order": settings.order, "tau": TAU,
                 **arguments}
    model = build_model(phrases, **arguments).to(device)
    if resumed:
        if not same_texts(resumed["model"]["phrases"], phrases):
            raise BadInput(f"--resume: {settings.out} was trained with other phrases, or another "
                           "teacher, than are given now; give the same")
        try:
            model.load_state_dict(resumed["model"])
        except RuntimeError as error:
            raise BadInput(f"--resume: the checkpoint in {settings.out} does not fit this code: "
                           f"{str(error).strip().splitlines()[-1].strip()}") from None
    elif start is not None:
        fill(settings.init, model, start)
    return model, arguments, source, device, resumed


def plan_stages(settings, has_encoder, count):
    """The stages of the header that have steps, as a list of Stage; count = number of videos."""
    plan, start = [], 0
    for name, epochs, batch in (
            ("sgd", settings.sgd_epochs * has_encoder, settings.batch),
            ("match", settings.match_epochs * has_encoder, settings.batch),
            ("joint", settings.joint_epochs * has_encoder, settings.batch),
            ("order", settings.order_epochs * (settings.order != "none"), ORDER_BATCH)):
        stop = start + round(epochs * max(count // batch, 1))
        if stop > start:
            plan.append(Stage(name, range(start, stop), batch))
        start = stop
    if not plan:
        raise BadInput("--match-epochs 0 and the like: not one step to train; raise one of them")
    return plan


def make_optimizer(model, settings, stage):
    """SGD with momentum, then AdamW (paper, Sec. 4); f and h at their own rates."""
    f, h = (model.encoder, settings.lr), (model.denoiser, settings.order_lr)
    trained = {"sgd": [(model.encoder, SGD_LR)], "match": [f], "joint": [f, h], "order": [h]}[stage]
    groups = [{"params": list(part.parameters()), "peak": rate} for part, rate in trained
              if part is not None]
    if stage == "sgd":
        return torch.optim.SGD(groups, lr=0.0, momentum=0.9, weight_decay=WEIGHT_DECAY)
    return torch.optim.AdamW(groups, lr=0.0, weight_decay=WEIGHT_DECAY)


# --- A step on clips ---
def has_ordering(settings, stage):
    """Whether h is trained on the clips of this stage."""
    return stage.name == "joint" and settings.order != "none"


def load_step(source, settings, stage, step, place=(0, 1)):
    """What f reads in one step, drawn from (seed, step); in a worker, if there are any.

    place:   this process, of how many that share the videos.
    Returns: data.Loaded, and [(observed (n,) bool, j (1,)), ...] of its videos that have clips;
             before the joint stage j is -1 and all clips are observed.
    """
    rng = np.random.default_rng((settings.seed, 2, step))
    ordering = has_ordering(settings, stage)
    requests, masks = [], {}
    for video in videos_of_step(step - stage.span.start, len(source), stage.batch, settings.seed):
        windows = source.pretrain_windows(video, rng)
        if len(windows):
            requests.append((video, windows))
            j, observed = (missing_clips(len(windows), 1, rng) if ordering
                           else (np.array([-1]), np.ones(len(windows), bool)))
            masks[video] = observed, j
    if place[0]:                                       # other views than the first process's
        rng = np.random.default_rng((settings.seed, 2, step, place[0]))
    loaded = source.load(parallel.share(requests, place), rng if settings.augment else None)
    return loaded, [masks[video] for video, _ in loaded.requests]


def encode_batch(model, source, loaded, masks, device, targets="vision", part=None):
    """Clips of some videos through f, and the teacher's soft targets for them.

    Args:    loaded: this process's clips; masks: of all processes' videos; targets: see
             embedding.teacher_features; part: clips that f encodes at once.
    Returns: x (B, N, D); targets (B, N, K); observed (B, N) bool; j (B, 1) int64, -1 = none.
    """
    observed, j = zip(*masks)
    count = send(torch.tensor([len(row) for row in observed]), device)
    if len(loaded.clips):
        x = encode_parts(model, send(loaded.clips, device), part)              # x_i = f(v_i)
        features = send(teacher_features(source, loaded, targets), device)     # (C, D)
    else:                                              # one process of several may have none
        x = features = torch.zeros(0, model.dim, device=device, requires_grad=True)
    x, features = parallel.gather(x), parallel.gather(features)
    targets = soft_targets(features, model.phrases, model.teacher_tau)         # (C, K)  p'_i
    observed = send(torch.from_numpy(np.concatenate(observed)), device)
    x, targets, observed = (pad_clips(rows, count, CLIPS)[0] for rows in (x, targets, observed))
    return x, targets, observed, send(torch.from_numpy(np.array(j)), device)


def ordering_losses(model, x, target, observed, j):
    """L_MSE and L_MC (Eqs. 9, 10) of the missing clips of each video.

    Args:    x (B, N, D) embeddings; target (B, P, K) soft targets of clips j; observed (B, N)
             bool; j (B, P) int64.
    Returns: (mse, mc), scalars. The mask model has no levels and no L_MSE (0).
    """
    with torch.autocast(x.device.type, enabled=False):                         # bf16 is not exact
        z0 = target @ model.points                                             # (B, P, D)  x_j^0
    P = j.shape[1]
    t = torch.randint(len(model.alpha_bar), j.shape, device=x.device)          # t ~ U[1, T]
    zt, t = diffusion.training_queries(z0, t, torch.randn_like(z0), model.alpha_bar)
    if model.order == "mask":                                                  # the zeros alone
        x_hat, _ = model.predictor(x, observed, j)(zt[:, P:], t[:, P:])
        return x_hat.new_zeros(()), losses.mc_loss(model.match_predicted(x_hat), target)
    x_hat, z_hat = model.predictor(x, observed, j)(zt, t)                      # Eq. 5
    z0, target = torch.cat([z0, z0], 1), torch.cat([target, target], 1)        # (B, 2 P, ...)
    return losses.mse_loss(z_hat, z0), losses.mc_loss(model.match_predicted(x_hat), target)


def objective(model, x, targets, observed, j, ordering):
    """The three losses and their sum (Eqs. 7-10) as a dict; matching alone without ordering."""
    xe = losses.xe_loss(model.match(x), targets, observed)                     # Eq. 8
    if not ordering:
        return {"loss": xe, "xe": xe}
    rows = torch.arange(len(j), device=j.device)[:, None]
    mse, mc = ordering_losses(model, x, targets[rows, j], observed, j)
    return {"loss": losses.total_loss(xe, mse, mc), "xe": xe, "mse": mse, "mc": mc}    # Eq. 7


def clip_losses(model, source, settings, unreadable, ordering, device, item):
    """The losses of a `load_step`, as a dict, and how many clips; None, 0 if it has no clip."""
    loaded, masks = item
    for failed in parallel.gather_objects(loaded.failed):
        unreadable.add(failed)
    masks = [mask for part in parallel.gather_objects(masks) for mask in part]
    if not masks:
        return None, 0
    x, targets, observed, j = encode_batch(model, source, loaded, masks, device,
                                           settings.targets, settings.micro_batch)
    return objective(model, x, targets, observed, j, ordering), observed.sum()


# --- A step on cached embeddings ---
def cache_rows(model, source, settings, device):
    """CachedRows for the last stage, and {id: reason} of the videos that could not be read."""
    if model.encoder is None:
        features, teacher = source.features, torch.from_numpy(source.features.embedding)
        failed, steps = {}, None                       # its windows are annotated steps
    else:
        with torch.no_grad(), mixed_precision(device):
            names, windows, x, teacher, failed = embed_videos(
                source, model.encode, GRID, settings.workers, device, settings.targets)
        features = FeaturesFile(names, windows.mean(1), x.numpy())
        steps = torch.cat([model.match(part.to(device)).argmax(-1).cpu()
                           for part in x.split(10_000)]).numpy()
    rng = np.random.default_rng((settings.seed, 3))
    return CachedRows(source, features, teacher, steps, PASSES, settings.missing, rng), failed


def order_losses(model, rows, settings, device, step):
    """L_MSE + L_MC (Eqs. 9, 10) of a batch of cached rows, as a dict, and how many rows."""
    rng = np.random.default_rng((settings.seed, 2, step))
    x, features, observed, j = rows.batch(ORDER_BATCH, rng, device)
    target = soft_targets(features, model.phrases, model.teacher_tau)          # (B, P, K)  p'_j
    mse, mc = ordering_losses(model, x, target, observed, j)
    return {"loss": mse + mc, "mse": mse, "mc": mc}, len(j)


def step_losses(model, source, settings, unreadable, device, stage, left):
    """What the steps `left` of a stage read, and what computes their losses.

    Returns: iterable of items, one for each of these steps; callable, step and item -> the losses
             by name, and how many clips were read.
    """
    if stage.name == "order":
        rows, failed = cache_rows(model, source, settings, device)
        unreadable.add(failed)
        return left, lambda step, item: order_losses(model, rows, settings, device, step)
    make = functools.partial(load_step, source, settings, stage, place=parallel.place())
    return (prefetch(make, left, settings.workers), lambda step, item: clip_losses(
        model, source, settings, unreadable, has_ordering(settings, stage), device, item))
