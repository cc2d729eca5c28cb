"""Train f and h, in the order of the paper: `python train.py --stage pretrain`.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.2 and 4.

Two stages over videos and their narrations, no labels: SGD on the matching loss, then AdamW on
the whole objective (Eq. 7). Every random choice of a step is drawn from (seed, step), so that a
resumed run goes on as if it had never stopped.
B videos, R missing clips drawn per video, N clips, C clips in all, T levels, K phrases, D embedding.
"""
import json
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

from settings import BadInput, TrainSettings, pick_device, run, set_seed, write_json

# Sizes of f and h for each kind of data. The embedded world's are small enough for two CPU cores.
SIZES = {
    "toy": {"encoder": dict(image=32, patch=8, frames=4, width=64, depth=2, heads=2),
            "denoiser": dict(width=64, layers=2, heads=4)},
    "coin": {"encoder": None, "denoiser": dict(width=256, layers=2, heads=4)},
}
FORECASTS = 0.5           # share of the missing clips of which all that follows is hidden


def load_data(settings, device):
    """Training videos, phrase pool (K, D), and how f wants its pixels (None: clips are rows)."""
    import data
    if settings.data == "coin":
        return *data.open_coin(settings, "train"), None
    import toy
    import toy_render
    teacher = data.toy_teacher(device)
    frames = SIZES["toy"]["encoder"]["frames"]
    source = data.ToySource("train", settings.videos, frames, teacher.encode_frames)
    return source, teacher.encode_phrases(toy.PHRASES), (toy_render.MEAN, toy_render.STD)


def draw_missing(count, masks, rng):
    """Which clip is missing, and from where on the future is hidden: R draws for each video.

    The missing clip j is uniform over a video's clips. Clips after j are hidden from h: half of
    the time all of them, which is forecasting, else from a uniformly drawn position on, as in the
    released code. Without it h would never see that the future is unknown.

    Args:    count (B,) int numpy array, clips of each video.
    Returns: j and start, (B R,) int64 tensors, R rows of a video side by side; j < start <= count.
    """
    import numpy as np
    import torch
    count = count.repeat(masks)
    j = rng.integers(count)
    start = np.where(rng.random(len(j)) < FORECASTS, j + 1, rng.integers(j + 1, count + 1))
    return torch.from_numpy(j), torch.from_numpy(start)


def ordering_losses(model, x, there, targets, j, start, noise):
    """L_MSE and L_MC (Eqs. 9, 10) of one missing clip per row.

    Args:
        x:        (B, N, D) embeddings; there (B, N) bool.
        targets:  (B, N, K) soft targets.
        j, start: (B,) as from `draw_missing`.
        noise:    (B, T, D) standard normal.
    Returns: (mse, mc), scalars. The mask model has no levels and no L_MSE (0).
    """
    import torch

    import diffusion
    import losses
    B, N, _ = x.shape
    row, clip = torch.arange(B, device=x.device), torch.arange(N, device=x.device)
    observed = there & (clip != j[:, None]) & (clip < start[:, None])          # (B, N)
    target = targets[row, j]                                                   # (B, K)  p'_j
    if model.order == "mask":
        x_hat = model.forecast(x, observed, j, noise[:, :1])                   # (B, 1, D)
        return x_hat.new_zeros(()), losses.mc_loss(model.match(x_hat), target[:, None])
    z0 = target @ model.points                                                 # (B, D)  x_j^0
    zt, t = diffusion.training_queries(z0, noise, model.alpha_bar)             # (B, T + 1, D)
    x_hat, z_hat = model.predictor(x, observed, j)(zt, t)                      # Eq. 5
    return (losses.mse_loss(z_hat, z0[:, None]),                               # Eq. 9
            losses.mc_loss(model.match(x_hat), target[:, None]))               # Eq. 10


def step_losses(model, source, videos, settings, rng, device, ordering):
    """All losses of one step: a dict of scalars loss, xe, mse, mc; and C, the clips it took."""
    import numpy as np
    import torch

    import data
    import losses
    from pseudo_labels import soft_targets
    requests = [(video, source.pretrain_windows(video, rng)) for video in videos]
    requests = [request for request in requests if len(request[1])]
    count = np.array([len(windows) for _, windows in requests])
    clips = source.clips(requests).to(device)                                  # (C, ...)
    features = source.teacher(requests).to(device)                             # (C, D)
    x = model.encode(clips)                                                    # x_i = f(v_i)
    targets = soft_targets(features, model.phrases, settings.teacher_tau)      # (C, K)  p'_i
    sizes = torch.from_numpy(count).to(device)
    x, there = data.pad_clips(x, sizes, data.CLIPS)                            # (B, N, D)
    targets, _ = data.pad_clips(targets, sizes, data.CLIPS)                    # (B, N, K)

    log_p = model.match(x)                                                     # Eq. 6
    if not ordering:
        xe = losses.xe_loss(log_p, targets, there)                             # nothing is missing
        return {"loss": xe, "xe": xe}, len(clips)
    R = settings.masks
    j, start = (draw.to(device) for draw in draw_missing(count, R, rng))
    is_j = (torch.arange(data.CLIPS, device=device) == j[:, None]).view(-1, R, data.CLIPS)
    share = there * (1 - is_j.float().mean(1))                # of the R draws that observe clip i
    xe = losses.xe_loss(log_p, targets, share)                                 # Eq. 8
    noise = torch.randn(len(j), len(model.alpha_bar), x.shape[-1], device=device)
    mse, mc = ordering_losses(model, *(tensor.repeat_interleave(R, 0) for tensor in
                                       (x, there, targets)), j, start, noise)
    loss = losses.total_loss(xe, mse, mc)                                      # Eq. 7
    return {"loss": loss, "xe": xe, "mse": mse, "mc": mc}, len(clips)


def make_optimizer(model, settings, stage):
    """SGD with momentum for stage 0, AdamW for stage 1 (paper, Sec. 4)."""
    import torch
    weights = [p for p in model.parameters() if p.requires_grad]
    if stage == 0:
        return torch.optim.SGD(weights, settings.sgd_lr, momentum=0.9,
                               weight_decay=settings.weight_decay)
    return torch.optim.AdamW(weights, settings.lr, weight_decay=settings.weight_decay)


def learning_rate(step, steps, peak):
    """Linear warm-up over the first 5 % of a stage, then linear decay towards 0 at its end."""
    return peak * min(1.0, (step + 1) / (0.05 * steps + 1), (steps - step) / (0.95 * steps))


def videos_of_step(step, count, batch, seed):
    """(batch,) int: which videos step number `step` takes; every epoch a new order of all."""
    import numpy as np
    per_epoch = max(count // batch, 1)
    epoch, place = divmod(step, per_epoch)
    order = np.random.default_rng((seed, 1, epoch)).permutation(count)
    return order[place * batch:(place + 1) * batch]


def prepare_run(settings):
    """Make the run folder and write config.json, or check that --resume may go on in it.

    Returns: the content of the checkpoint to resume from, or None.
    """
    from model import read_checkpoint
    config = {name: value if isinstance(value, (int, float, str, type(None))) else str(value)
              for name, value in asdict(settings).items() if name != "resume"}
    path = settings.out / "config.json"
    has = (settings.out / "checkpoint.pt").exists()
    if settings.resume and has:
        try:
            before = json.loads(path.read_text())["settings"]
        except (ValueError, KeyError, OSError):
            raise BadInput(f"{path}: missing or not readable; it is needed to resume") from None
        other = [name for name in config if config[name] != before.get(name) and name != "device"]
        if other:
            name = other[0]
            raise BadInput(f"--{name.replace('_', '-')} {config[name]}: this run has "
                           f"{before.get(name)}; resume it with the settings in {path}")
        return read_checkpoint(settings.out)
    if has:
        raise BadInput(f"--out {settings.out}: holds a checkpoint; add --resume to go on, "
                       "or choose another folder")
    settings.out.mkdir(parents=True, exist_ok=True)
    write_json(path, {"settings": config, "versions": versions()})
    return None


def versions():
    """What the run was made with: versions of python, torch and numpy, and the commit."""
    import numpy
    import torch
    git = subprocess.run(["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"],
                         capture_output=True, text=True, check=False)
    return {"python": sys.version.split()[0], "torch": torch.__version__,
            "numpy": numpy.__version__, "commit": git.stdout.strip() or None}


def keep_metrics(path, step):
    """Drop the rows of metrics.jsonl that came after the checkpoint of `step`."""
    if path.exists():
        rows = [row for row in path.read_text().splitlines() if json.loads(row)["step"] <= step]
        path.write_text("".join(row + "\n" for row in rows))


def main(settings):
    """The whole of pre-training, top to bottom."""
    import numpy as np
    import torch
    from tqdm import tqdm

    from model import ProcedureModel, save_checkpoint

    # 1. Run folder, device, data.
    resumed = prepare_run(settings)
    device = pick_device(settings.device)
    set_seed(settings.seed)
    source, phrases, pixels = load_data(settings, device)

    # 2. Model, and the plan: so many steps of SGD on matching alone, then AdamW on everything.
    sizes = SIZES[settings.data]
    set_seed(settings.seed)
    model = ProcedureModel(phrases, sizes["encoder"],
                           sizes["denoiser"] if settings.order != "none" else None,
                           settings.order, settings.tau, pixels).to(device)
    per_epoch = max(len(source) // settings.batch, 1)
    sgd_epochs = settings.sgd_epochs if sizes["encoder"] else 0        # nothing to match: f is fixed
    plan = [round(sgd_epochs * per_epoch), round(settings.epochs * per_epoch)]
    first, stage, optimizer = 0, None, None
    if resumed:
        model.load_state_dict(resumed["model"])
        first = resumed["step"]
        if first >= sum(plan):
            print(f"{settings.out} is finished: {first} steps")
            return
        keep_metrics(settings.out / "metrics.jsonl", first)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(source)} videos, "
          f"{plan[0]} + {plan[1]} steps of {settings.batch} videos on {device}")

    # 3. Train. A step is one optimiser update.
    autocast = (lambda: torch.autocast("cuda", torch.bfloat16)) if device.type == "cuda" else nullcontext
    log = open(settings.out / "metrics.jsonl", "a", encoding="utf-8")
    began, clips = time.perf_counter(), 0
    for step in tqdm(range(first, sum(plan)), initial=first, total=sum(plan), desc="train"):
        now = int(step >= plan[0])
        if now != stage:
            stage, optimizer = now, make_optimizer(model, settings, now)
            if resumed and resumed["stage"] == stage:
                optimizer.load_state_dict(resumed["optimizer"])
            resumed = None
        in_stage, peak = step - stage * plan[0], (settings.sgd_lr, settings.lr)[stage]
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(in_stage, plan[stage], peak)
        torch.manual_seed(settings.seed * 1_000_003 + step)
        rng = np.random.default_rng((settings.seed, 2, step))
        videos = videos_of_step(step, len(source), settings.batch, settings.seed)
        with autocast():
            terms, taken = step_losses(model, source, videos, settings, rng, device,
                                       ordering=stage == 1 and settings.order != "none")
        optimizer.zero_grad(set_to_none=True)
        terms["loss"].backward()
        optimizer.step()
        clips += taken

        if (step + 1) % settings.log_every == 0 or step + 1 == sum(plan):
            values = {name: float(value) for name, value in terms.items()}     # waits for the GPU
            if not np.isfinite(values["loss"]):
                raise FloatingPointError(
                    f"step {step}: the loss is {values['loss']} (videos {videos[:4].tolist()}, ..); "
                    f"{settings.out}/checkpoint.pt is from before; try a smaller --lr")
            row = {"step": step + 1, "epoch": (step + 1) / per_epoch, "loss": None, "xe": None,
                   "mse": None, "mc": None, **values, "lr": optimizer.param_groups[0]["lr"],
                   "clips_per_s": clips / (time.perf_counter() - began)}
            print(json.dumps(row), file=log, flush=True)
            if (step + 1) % settings.save_every < settings.log_every or step + 1 == sum(plan):
                save_checkpoint(settings.out / "checkpoint.pt", model, step=step + 1, stage=stage,
                                optimizer=optimizer.state_dict())
    print(f"{settings.out}/checkpoint.pt after {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    run(main, TrainSettings)
