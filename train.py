"""Train f and h, in the order of the paper: `python train.py --stage pretrain`.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.2 and 4.

Stages over videos and their narrations, no labels: SGD and AdamW on the matching loss, AdamW on
the whole objective (Eq. 7), and, once f has finished, AdamW on h with the embeddings kept. Every
random choice of a step is drawn from (seed, step), so that a resumed run goes on as if it had
never stopped. B videos, N clips, C clips in all, T levels, K phrases, D embedding.
"""
import math
import sys
import time

from runs import keep_metrics, log_row, prepare_run
from settings import BadInput, Interrupts, TrainSettings, pick_device, run, set_seed, write_json

# Sizes of f and h for each kind of data. The embedded world's are small enough for two CPU cores.
SIZES = {
    "toy": {"encoder": dict(image=32, patch=8, frames=4, width=64, depth=2, heads=2),
            "denoiser": dict(width=64, layers=2, heads=4)},
    "coin": {"encoder": None, "denoiser": dict(width=128, layers=2, heads=4, dropout=0.2)},
}
TEACHER_TAU = 0.03        # of the soft targets in the embedded world; see README.md
FORECASTS = 0.5           # share of the missing clips of which all that follows is hidden


def load_data(settings, device):
    """What a run learns from: videos, phrase pool (K, D), and what depends on their kind.

    Returns: source, phrases, pixels (how f wants them; None: clips are rows of a features file),
             and the temperature of the soft targets.
    """
    import data
    from pseudo_labels import estimate_tau
    tau = settings.teacher_tau
    if settings.data == "coin":
        source, texts = data.open_coin(settings, "train")
        import numpy as np
        rng = np.random.default_rng(0)
        rows = source.clips([(video, source.pretrain_windows(video, rng))
                             for video in range(min(len(source), 1000))])
        return source, texts, None, tau or estimate_tau(rows, texts)
    import toy
    import toy_render
    teacher = data.toy_teacher(device)
    frames = SIZES["toy"]["encoder"]["frames"]
    source = data.ToySource("train", settings.videos, frames, teacher.encode_frames)
    pixels = (toy_render.MEAN, toy_render.STD)
    return source, teacher.encode_phrases(toy.PHRASES), pixels, tau or TEACHER_TAU


def draw_missing(there, generator=None):
    """Which clips are missing, and what may be read of the others, for one pass of h.

    Every clip is asked for, with its own view of the video. Half of the videos forecast: clip j is
    predicted from the clips before it, for all j at once. In the others some clips are missing,
    each with probability 1/3, and also all that follow a uniformly drawn position (the released
    code hides such a tail: otherwise h would never see that the future is unknown).

    Args:    there (B, N) bool, False = padding.
    Returns: observed (B, N + N, N) bool, for the N clips and then the N queries; missing (B, N)
             bool, the clips that h is to predict.
    """
    import torch
    B, N = there.shape
    draw = torch.rand(B, N + 2, device=there.device, generator=generator)
    clip = torch.arange(N, device=there.device)
    before = clip[None, :] < clip[:, None]                          # (N, N)  [j, i]: i before j
    causal = torch.cat([before, before])                            # clips, then queries
    tail = clip >= draw[:, :1] * (there.sum(1, keepdim=True) + 1)   # (B, N)
    gaps = there & ((draw[:, 2:] < 1 / 3) | tail)                   # (B, N)  missing ones
    forecast = draw[:, 1] < FORECASTS                               # (B,)
    shown = torch.where(forecast[:, None, None], causal, ~gaps[:, None])    # (B, 2 N, N)
    return shown & there[:, None], torch.where(forecast[:, None], there, gaps)


def ordering_losses(model, x, there, targets):
    """L_MSE and L_MC (Eqs. 9, 10) of every missing clip.

    Args:    x (B, N, D) embeddings; there (B, N) bool; targets (B, N, K) soft targets.
    Returns: (mse, mc), scalars. The mask model has no levels and no L_MSE (0).
    """
    import torch

    import diffusion
    import losses
    B, N, _ = x.shape
    observed, missing = draw_missing(there)
    j = torch.arange(N, device=x.device).expand(B, N)
    z0 = targets @ model.points                                                # (B, N, D)  x_j^0
    t = torch.randint(len(model.alpha_bar), (B, N), device=x.device)           # t ~ U[1, T]
    zt, t = diffusion.training_queries(z0, t, torch.randn_like(z0), model.alpha_bar)
    if model.order == "mask":                                                  # the zeros alone
        x_hat, _ = model.predictor(x, observed, j)(zt[:, N:], t[:, N:])
        return x_hat.new_zeros(()), losses.mc_loss(model.match(x_hat), targets, missing)
    twice = torch.cat([observed, observed[:, N:]], 1)                          # (B, 3 N, N)
    x_hat, z_hat = model.predictor(x, twice, j.repeat(1, 2))(zt, t)            # Eq. 5
    z0, targets, missing = (torch.cat([rows, rows], 1) for rows in (z0, targets, missing))
    return (losses.mse_loss(z_hat, z0, missing),                               # Eq. 9
            losses.mc_loss(model.match(x_hat), targets, missing))              # Eq. 10


def encode_batch(model, source, videos, rng, device):
    """Clips of some videos through f, and the teacher's soft targets for them.

    Returns: x (B, N, D), there (B, N) bool, targets (B, N, K); videos without a clip are left out.
    """
    import torch

    import data
    from pseudo_labels import soft_targets
    requests = [(video, source.pretrain_windows(video, rng)) for video in videos]
    requests = [request for request in requests if len(request[1])]
    count = torch.tensor([len(windows) for _, windows in requests], device=device)
    x = model.encode(source.clips(requests).to(device))                        # x_i = f(v_i)
    features = source.teacher(requests).to(device)                             # (C, D)
    targets = soft_targets(features, model.phrases, model.teacher_tau)         # (C, K)  p'_i
    x, there = data.pad_clips(x, count, data.CLIPS)                            # (B, N, D)
    return x, there, data.pad_clips(targets, count, data.CLIPS)[0]


def objective(model, x, there, targets, ordering):
    """The three losses and their sum (Eqs. 7-10) as a dict; matching alone without ordering."""
    import losses
    xe = losses.xe_loss(model.match(x), targets, there)                        # Eq. 8
    if not ordering:
        return {"loss": xe, "xe": xe}
    mse, mc = ordering_losses(model, x, there, targets)
    return {"loss": losses.total_loss(xe, mse, mc), "xe": xe, "mse": mse, "mc": mc}    # Eq. 7


def kept_batches(model, source, settings, device):
    """Every video a few times through the finished f: x, there, targets of all, (V, N, ...).

    The last stage trains h alone; f would compute the same again in every epoch.
    """
    import numpy as np
    import torch
    from tqdm import tqdm
    rng, rows = np.random.default_rng((settings.seed, 3)), []
    videos = np.tile(np.arange(len(source)), settings.keep)
    with torch.no_grad():
        for i in tqdm(range(0, len(videos), 128), desc="keep embeddings",
                      mininterval=1):
            rows.append(encode_batch(model, source, videos[i:i + 128], rng, device))
    return tuple(torch.cat(column) for column in zip(*rows))


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


def schedule(step, steps):
    """Share of the peak learning rate: linear warm-up over 5 % of a stage, then linear decay."""
    return min(1.0, (step + 1) / (0.05 * steps + 1), (steps - step) / (0.95 * steps))


def videos_of_step(step, count, batch, seed):
    """(batch,) int: which videos step number `step` takes; every epoch a new order of all."""
    import numpy as np
    per_epoch = max(count // batch, 1)
    epoch, place = divmod(step, per_epoch)
    order = np.random.default_rng((seed, 1, epoch)).permutation(count)
    return order[place * batch:(place + 1) * batch]


def take_batch(model, source, kept, videos, rng, device):
    """x, there, targets of some videos: encoded now, or taken from the kept embeddings."""
    import torch
    if kept is None:
        return encode_batch(model, source, videos, rng, device)
    rows = torch.from_numpy(videos).to(device)
    return tuple(column[rows] for column in kept)


def require_finite(loss, model, step, videos, settings):
    """FloatingPointError that names step and batch unless the loss and all weights are finite."""
    if not (math.isfinite(loss) and all(bool(p.isfinite().all()) for p in model.parameters())):
        raise FloatingPointError(
            f"step {step}: the loss ({loss}) or a weight is not finite (videos "
            f"{videos[:4].tolist()}, ..); the last checkpoint in {settings.out} is kept; try a "
            "smaller --lr")


def set_up(settings):
    """Run folder, device, data, model: what a run has before its first step.

    Returns: model, source, device, plan of stages, and the checkpoint to resume from or None.
    """
    from model import ProcedureModel
    resumed = prepare_run(settings)
    device = pick_device(settings.device)
    source, phrases, pixels, teacher_tau = load_data(settings, device)
    if source.missing:
        print(f"{len(source.missing)} of {len(source.listed)} videos have no features; see "
              f"{settings.out}/missing.json")
        write_json(settings.out / "missing.json", source.missing)
    sizes = SIZES[settings.data]
    set_seed(settings.seed)
    model = ProcedureModel(phrases, sizes["encoder"],
                           sizes["denoiser"] if settings.order != "none" else None,
                           settings.order, settings.tau, pixels, teacher_tau).to(device)
    if resumed:
        model.load_state_dict(resumed["model"])
    plan = plan_stages(settings, sizes["encoder"] is not None, len(source))
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(source)} videos, "
          + ", ".join(f"{steps} steps {name}" for name, steps, _ in plan) + f", on {device}")
    return model, source, device, plan, resumed


def main(settings):
    """Pre-training, stage by stage. A step is one optimiser update."""
    import numpy as np
    import torch
    from tqdm import tqdm

    from model import save_checkpoint

    model, source, device, plan, resumed = set_up(settings)
    first, total = resumed["step"] if resumed else 0, sum(steps for _, steps, _ in plan)
    keep_metrics(settings.out / "metrics.jsonl", first)
    began, clips, start = time.perf_counter(), 0, 0
    with (open(settings.out / "metrics.jsonl", "a", encoding="utf-8") as log, Interrupts() as stop,
          tqdm(total=total, initial=first, desc="train", mininterval=1) as bar):
        for stage, steps, batch in plan:
            todo, start = range(max(first, start), start + steps), start + steps
            if not todo:                               # done before the run was interrupted
                continue
            optimizer = make_optimizer(model, settings, stage)
            if resumed and resumed["stage"] == stage:
                optimizer.load_state_dict(resumed["optimizer"])
            kept = kept_batches(model, source, settings, device) if stage == "order" else None
            model.train()
            for step in todo:
                in_stage = step - start + steps
                for group in optimizer.param_groups:
                    group["lr"] = group["peak"] * schedule(in_stage, steps)
                torch.manual_seed(settings.seed * 1_000_003 + step)
                rng = np.random.default_rng((settings.seed, 2, step))
                videos = videos_of_step(in_stage, len(kept[0] if kept else source), batch,
                                        settings.seed)
                with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                    x, there, targets = take_batch(model, source, kept, videos, rng, device)
                    terms = objective(model, x, there, targets, ordering=stage in ("joint", "order")
                                      and settings.order != "none")
                optimizer.zero_grad(set_to_none=True)
                terms["loss"].backward()
                optimizer.step()
                clips = clips + there.sum()                # a tensor: not waited for here
                bar.update()

                done = step + 1
                ends = done == total or stop.status != 0
                saves = ends or done % settings.save_every == 0
                if saves or done % settings.log_every == 0:
                    loss = log_row(log, done, (in_stage + 1) * batch / len(source), terms,
                                   optimizer.param_groups[-1]["lr"],
                                   float(clips) / (time.perf_counter() - began))
                    require_finite(loss, model, done, videos, settings)
                if saves:
                    save_checkpoint(settings.out / "checkpoint.pt", model, step=done, stage=stage,
                                    optimizer=optimizer.state_dict())
                if stop.status:
                    sys.exit(stop.status)
    print(f"{settings.out}/checkpoint.pt: {total} steps, {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    run(main, TrainSettings)
