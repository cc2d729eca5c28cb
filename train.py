"""Train f and h, in the order of the paper: `python train.py --stage pretrain`.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.2 and 4.

Stages over videos and their narrations, no labels: SGD and AdamW on the matching loss, AdamW on
the whole objective (Eq. 7), and, once f has finished, AdamW on h with the embeddings kept. Every
random choice of a step is drawn from (seed, step), so that a resumed run goes on as if it had
never stopped. Several GPUs share a step: parallel.py. B videos, N clips, C clips in all, T levels,
K phrases, D embedding.
"""
import functools
import sys
import time

from support import parallel
from support.command import BadInput, check, mixed_precision, pick_device, run, send, set_seed
from training.run import (Run, count_unreadable, earlier_unreadable, prepare_run, report_missing,
                  videos_of_step)
from settings import TrainSettings

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
CALIBRATED_TAU = 0.05     # of the embedded world's teacher: where its NLL is least (validation)
SHARPER = 0.6             # temperature of the soft targets, as a share of the calibrated one
GRID = 4.0                # s between two of the kept embeddings of a video


def load_data(settings, sizes, device):
    """What a run learns from: videos, phrase pool (K, D), and what depends on their kind.

    Returns: source, phrases, the first one's text (None: not known), pixels (how f wants them;
             None: clips are rows of a features file), and two temperatures: of the soft targets,
             and of observed clips (None: tau).
    """
    import numpy as np

    import data
    from pseudo_labels import estimate_tau, open_teacher
    tau = settings.teacher_tau
    if settings.data == "coin":
        source, texts = data.open_coin(settings, "train")
        rng = np.random.default_rng(0)
        some = source.load([(video, source.pretrain_windows(video, rng))
                            for video in range(min(len(source), 1000))])
        calibrated = estimate_tau(some.clips, texts)
        return source, texts, None, None, tau or SHARPER * calibrated, calibrated
    f = sizes["encoder"]
    if settings.phrases:
        from files.listings import load_phrases
        phrases = [phrase.text for phrase in load_phrases(settings.phrases)]
    if settings.data == "howto100m":
        teacher = open_teacher(settings.clip, settings.clip_weights, device)
        source = data.open_narrated(settings, f["image"], f["frames"], teacher, f.get("seconds"))
        return (source, teacher.encode_phrases(phrases), phrases[0], PIXELS, tau or settings.tau,
                None)
    from toy import grammar
    from toy import render
    source = data.open_toy("train", settings.toy_videos, f["frames"], True, device)
    phrases = phrases if settings.phrases else grammar.PHRASES
    pixels = (render.MEAN, render.STD)
    return (source, source.teacher.encode_phrases(phrases), phrases[0], pixels,
            tau or SHARPER * CALIBRATED_TAU, None)


def load_step(source, settings, batch, ordering, first, step, place=(0, 1)):
    """What f reads in one step, all of it drawn from (seed, step): in a worker, if there are any.

    Args:    batch: videos; ordering: whether clips are missing; first: the stage's first step;
             place: this process, of how many that share the videos.
    Returns: data.Loaded, and [(observed (n,) bool, j (1,)), ...], one for each video of it. Videos
             without a clip are left out.
    """
    import numpy as np

    import protocols
    rng = np.random.default_rng((settings.seed, 2, step))
    requests, asked = [], {}
    for video in videos_of_step(step - first, len(source), batch, settings.seed):
        windows = source.pretrain_windows(video, rng)
        if len(windows):
            requests.append((video, windows))
            j, seen = (protocols.missing_clips(len(windows), 1, rng) if ordering
                       else (np.array([-1]), np.ones(len(windows), bool)))
            asked[video] = seen, j
    if place[0]:                                       # other views than the first process's
        rng = np.random.default_rng((settings.seed, 2, step, place[0]))
    loaded = source.load(parallel.share(requests, place), rng if settings.augment else None)
    return loaded, [asked[video] for video, _ in loaded.requests]


def encode_batch(model, source, loaded, asked, device, targets="vision", part=None):
    """Clips of some videos through f, and the teacher's soft targets for them: see `cache.teach`.

    Args:    loaded: this process's clips; asked: of all processes' videos; part: clips that f
             encodes at once.
    Returns: x (B, N, D); targets (B, N, K); observed (B, N) bool; j (B, 1) int64, -1 = no clip is
             missing.
    """
    import numpy as np
    import torch

    import data
    from training import cache
    import protocols
    from model import encode_parts
    from pseudo_labels import soft_targets
    observed, j = zip(*asked)
    count = send(torch.tensor([len(seen) for seen in observed]), device)
    if len(loaded.clips):
        x = encode_parts(model, send(loaded.clips, device), part)              # x_i = f(v_i)
        features = send(cache.teach(source, loaded, targets), device)           # (C, D)
    else:                                              # one process of several may have none
        x = features = torch.zeros(0, model.dim, device=device, requires_grad=True)
    x, features = parallel.gather(x), parallel.gather(features)
    targets = soft_targets(features, model.phrases, model.teacher_tau)         # (C, K)  p'_i
    observed = send(torch.from_numpy(np.concatenate(observed)), device)
    x, targets, observed = (data.pad_clips(rows, count, protocols.CLIPS)[0] for rows in
                            (x, targets, observed))
    return x, targets, observed, send(torch.from_numpy(np.array(j)), device)


def ordering_losses(model, x, target, observed, j):
    """L_MSE and L_MC (Eqs. 9, 10) of the missing clips of each video.

    Args:    x (B, N, D) embeddings; target (B, P, K) soft targets of clips j; observed (B, N)
             bool; j (B, P) int64.
    Returns: (mse, mc), scalars. The mask model has no levels and no L_MSE (0).
    """
    import torch

    import diffusion
    import losses
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
    import torch

    import losses
    xe = losses.xe_loss(model.match(x), targets, observed)                     # Eq. 8
    if not ordering:
        return {"loss": xe, "xe": xe}
    rows = torch.arange(len(j), device=j.device)[:, None]
    mse, mc = ordering_losses(model, x, targets[rows, j], observed, j)
    return {"loss": losses.total_loss(xe, mse, mc), "xe": xe, "mse": mse, "mc": mc}    # Eq. 7


def plan_stages(settings, has_encoder, count):
    """What is trained when: a list of (name, steps, batch), in order; count = number of videos.

        sgd     SGD on L_XE alone (the paper begins with SGD)
        match   AdamW on L_XE alone: gradients from h would only disturb a young f
        joint   AdamW on the whole objective
        order   AdamW on L_MSE + L_MC alone: f has finished and its embeddings are kept
    """
    def steps(epochs, batch):
        return round(epochs * max(count // batch, 1))

    order = settings.order_epochs if settings.order != "none" else 0
    plan = [(name, steps(epochs, settings.batch) * has_encoder, settings.batch)
            for name, epochs in (("sgd", settings.sgd_epochs), ("match", settings.match_epochs),
                                 ("joint", settings.joint_epochs))]
    plan.append(("order", steps(order, settings.order_batch), settings.order_batch))
    plan = [stage for stage in plan if stage[1]]
    if not plan:
        raise BadInput("--match-epochs 0 and the like: not one step to train; raise one of them")
    return plan


def make_optimizer(model, settings, stage):
    """SGD with momentum, then AdamW (paper, Sec. 4); f and h at their own rates."""
    import torch
    rates = {"sgd": {model.encoder: settings.sgd_lr},
             "match": {model.encoder: settings.lr},
             "joint": {model.encoder: settings.lr, model.denoiser: settings.order_lr},
             "order": {model.denoiser: settings.order_lr}}[stage]
    groups = [{"params": list(part.parameters()), "peak": rate} for part, rate in rates.items()
              if part is not None]
    if stage == "sgd":
        return torch.optim.SGD(groups, lr=0.0, momentum=0.9, weight_decay=settings.weight_decay)
    return torch.optim.AdamW(groups, lr=0.0, weight_decay=settings.weight_decay)


def keep_rows(model, source, settings, device):
    """What h is trained on once f has finished: f would compute the same again in every epoch.

    Returns: cache.KeptRows, and {id: reason} of the videos that could not be read.
    """
    import numpy as np
    import torch

    from files import annotations
    from training import cache
    if model.encoder is None:
        features, teacher = source.features, torch.from_numpy(source.features.embedding)
        failed, steps = {}, None                       # its windows are annotated steps
    else:
        with torch.no_grad(), mixed_precision(device):
            names, windows, x, teacher, failed = cache.embed_videos(
                source, model.encode, GRID, settings.workers, device, settings.targets)
        features = annotations.FeaturesFile(names, windows.mean(1), x.numpy())
        steps = torch.cat([model.match(part.to(device)).argmax(-1).cpu()
                           for part in x.split(10_000)]).numpy()
    rng = np.random.default_rng((settings.seed, 3))
    return cache.KeptRows(source, features, teacher, steps, settings.keep, settings.missing,
                         rng), failed


def order_terms(model, cache, settings, device, step, _):
    """L_MSE + L_MC (Eqs. 9, 10) of a batch of kept rows, as a dict, and how many rows."""
    import numpy as np

    from pseudo_labels import soft_targets
    rng = np.random.default_rng((settings.seed, 2, step))
    x, features, observed, j = cache.batch(settings.order_batch, rng, device)
    target = soft_targets(features, model.phrases, model.teacher_tau)          # (B, P, K)  p'_j
    mse, mc = ordering_losses(model, x, target, observed, j)
    return {"loss": mse + mc, "mse": mse, "mc": mc}, len(j)


def video_terms(model, source, settings, unreadable, ordering, device, _, ready):
    """The losses of a batch of videos, as a dict, and how many clips; None, 0 if nothing is said.

    ready: from `load_step`. unreadable: {id: reason}, what it could not read is added.
    """
    loaded, asked = ready
    for failed in parallel.everyone(loaded.failed):
        count_unreadable(unreadable, failed, source, settings)
    asked = [one for part in parallel.everyone(asked) for one in part]
    if not asked:
        return None, 0
    x, targets, observed, j = encode_batch(model, source, loaded, asked, device,
                                           settings.targets, settings.micro_batch)
    return objective(model, x, targets, observed, j, ordering), observed.sum()


def set_up(settings):
    """Run folder, device, data, model: what a run has before its first step.

    Returns: model, source, device, plan of stages, and the checkpoint to resume from or None.
    """
    from model import ProcedureModel, same_texts
    from protocols import PIECES
    check(settings.batch >= parallel.PLACE[1], "batch", settings.batch,
          f"{parallel.PLACE[1]} processes need a video each")
    resumed = prepare_run(settings)
    device = pick_device(settings.device)
    size = {"toy": "small", "coin": "h only"}.get(settings.data, settings.size)
    sizes = {"encoder": MVIT[size] if settings.encoder == "mvit" else SIZES[size]["encoder"],
             "denoiser": {**SIZES[size]["denoiser"], "clips": PIECES + settings.missing}}
    if settings.init and not resumed:
        import weights
        start = weights.open_start(settings.init)      # what is wrong with it is said before long
    source, phrases, witness, pixels, teacher_tau, clip_tau = load_data(settings, sizes, device)
    report_missing(source, settings)
    if len(phrases.unique(dim=0)) < 2:
        raise BadInput(f"{settings.phrases or settings.text_embeddings}: all texts are the same; "
                       "at least two different ones are needed")
    set_seed(settings.seed)
    model = ProcedureModel(phrases, sizes["encoder"], sizes["denoiser"], settings.order,
                           settings.tau, pixels, teacher_tau, clip_tau, witness=witness).to(device)
    if resumed:
        if not same_texts(resumed["model"]["phrases"], phrases):
            raise BadInput(f"--resume: {settings.out} was trained with other phrases, or another "
                           "teacher of them, than there are now; put these back")
        model.load_state_dict(resumed["model"])
    elif settings.init:
        weights.fill(settings.init, model, start)
    plan = plan_stages(settings, sizes["encoder"] is not None, len(source))
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(source)} videos, "
          + ", ".join(f"{steps} steps {name}" for name, steps, _ in plan) + f", on {device}")
    return model, source, device, plan, resumed


def main(settings):
    """Pre-training, stage by stage. A step is one optimiser update."""
    parallel.start(settings.device)
    from support.workers import prefetch

    model, source, device, plan, resumed = set_up(settings)
    first, total = resumed["step"] if resumed else 0, sum(steps for _, steps, _ in plan)
    began, start = time.perf_counter(), 0
    unreadable = earlier_unreadable(settings.out) if resumed else {}
    with Run(settings, model, device, first, total, len(source)) as going:
        for stage, steps, batch in plan:
            span, start = range(start, start + steps), start + steps
            todo = range(max(first, span.start), span.stop)
            if not todo:                               # done before the run was interrupted
                continue
            optimizer = make_optimizer(model, settings, stage)
            if resumed and resumed["stage"] == stage:
                optimizer.load_state_dict(resumed["optimizer"])
            if stage == "order":
                cache, failed = keep_rows(model, source, settings, device)
                count_unreadable(unreadable, failed, source, settings)
                terms_of = functools.partial(order_terms, model, cache, settings, device)
                batches = todo
            else:
                ordering = stage == "joint" and settings.order != "none"
                make = functools.partial(load_step, source, settings, batch, ordering, span.start,
                                         place=parallel.PLACE)
                terms_of = functools.partial(video_terms, model, source, settings, unreadable,
                                             ordering, device)
                batches = prefetch(make, todo, settings.workers)
            going.train(stage, span, batch, optimizer, batches, terms_of)
    print(f"{settings.out}/checkpoint.pt: {total} steps, {time.perf_counter() - began:.0f} s")


def stage_of(argv):
    """What `--stage` asks for -> its main and its settings; both stages are one command."""
    from support.command import Parser
    from settings import FinetuneSettings
    parser = Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--stage")
    if parser.parse_known_args(argv)[0].stage != "finetune":
        return main, TrainSettings
    from training import finetune
    return finetune.main, FinetuneSettings


if __name__ == "__main__":
    run(*stage_of(sys.argv[1:]))
