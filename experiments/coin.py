"""h alone on COIN's step orders, with simulated vision: an example for features of your own.

COIN's videos cannot be shared, so features are simulated: a window of 4 s has CLIP's text embedding
of the step at its middle, or outside of steps the mean text, plus Gaussian noise of norm sigma. No
label is read in training: soft targets p' come from the features. There is no f. Instead, h reads
the mean of the texts, weighted by p', at unit length.
M examples of N = 9 clips, eight of a history and the next step; K texts, D embedding.
"""
import json
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from tqdm import trange

from data import CLIPS, PIECES, forecast_windows
from denoiser import Denoiser
from diffusion import add_noise, noise_levels
from evaluate import score
from evaluation.metrics import percent, topk_correct
from files.lists import check_names, load_coin
from losses import mc_loss, mse_loss
from model import ProcedureModel
from pseudo_labels import soft_targets
from support.arguments import Parser, pick_device, positive, whole
from support.errors import run
from support.write import write_json
from training.batches import videos_of
from training.run import learning_rate

SECONDS = 4.0                              # of a window of features
BATCH, LR, WEIGHT_DECAY, DROPOUT = 48, 1e-3, 1e-2, 0.3
SAMPLES, AT_ONCE = 5, 256                  # of a forecast; forecasts at once


def simulate(video, texts, mean, sigma, tau, rng):
    """Examples of a video of n steps: x (n - 1, 9, D), p' (n - 1, 2, K) of the last two clips."""
    end = max([video.duration or 0.0] + [step.end for step in video.steps])
    middles = np.arange(SECONDS / 2, max(end, SECONDS), SECONDS)                   # (W,) s
    label = np.full(len(middles), -1)                      # no step
    for step in video.steps:
        label[(step.start <= middles) & (middles < step.end)] = step.label
    noise = torch.randn(len(middles), texts.shape[1], generator=rng)
    features = torch.cat([texts, mean])[label] + sigma / texts.shape[1] ** 0.5 * noise     # (W, D)
    p = soft_targets(features, texts, tau)                                         # (W, K)
    x = functional.normalize(p @ texts, dim=-1)                                    # (W, D)
    steps = np.array([step[:2] for step in video.steps])                           # (n, 2) s
    times = np.concatenate([forecast_windows(steps[:-1, 1]), steps[1:, None]], 1).mean(-1)
    seen = np.abs(times[..., None] - middles).argmin(-1)                           # (n - 1, 9)
    return x[seen], p[seen[:, -2:]]


def train(x, targets, texts, tau, order, args):
    """Train h on x (M, 9, D) and targets (M, K) of the ninth clips -> a ProcedureModel."""
    torch.manual_seed(args.seed)
    D = texts.shape[1]
    model = ProcedureModel(texts, None, Denoiser(D, layers=1, dropout=DROPOUT), order, tau, None,
                           noise_levels(D).tolist()).to(x.device)
    model.scores = "paper"
    model.standardize.add(x.flatten(0, 1))
    model.standardize.update()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=WEIGHT_DECAY, fused=True)
    updates = round(args.epochs * max(len(x) // BATCH, 1))
    for update in trange(updates, desc=order, mininterval=1):
        optimizer.param_groups[0]["lr"] = learning_rate(update, 0, updates, LR)
        chosen = videos_of(update, len(x), BATCH, args.seed)
        clips, xj = x[chosen], x[chosen, PIECES]                               # x_j^0    (B, D)
        if args.context == "shuffled":                                         # a control
            places = torch.rand(len(clips), PIECES, device=x.device).argsort(1)
            clips[:, :PIECES] = clips.gather(1, places[..., None].expand(-1, -1, D))
        j = torch.full((len(clips),), PIECES, device=x.device)                 # the ninth clip
        observed = torch.arange(CLIPS, device=x.device).expand(len(clips), -1) < PIECES
        z0, t = model.standardize(xj), torch.randint_like(j, len(model.alpha_bar))
        zt = add_noise(z0, torch.randn_like(z0), model.alpha_bar[t])           # Eq. 2
        if order == "mask":
            zt, t = torch.zeros_like(zt), torch.full_like(t, len(model.alpha_bar) - 1)
        x_hat = model.standardize.inverse(model.denoise(zt, clips, observed, j, t))    # Eq. 5
        rows = [len(xj)]                                                       # Eqs. 9, 10
        loss, = mse_loss(x_hat, xj, rows) + mc_loss(model.match(x_hat), targets[chosen], rows)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


def main(args):
    """Train h and the mask model on the training videos, and forecast in the others."""
    device = pick_device(args.device)
    videos, labels = load_coin(args.annotations)
    with np.load(args.texts) as file:
        check_names(args.texts, file["names"].tolist(), args.annotations, labels)
        texts = functional.normalize(torch.from_numpy(file["embeddings"]).float(), dim=-1)
    mean = functional.normalize(texts.mean(0, keepdim=True), dim=-1)
    a, rng = (1 + args.sigma ** 2) ** -0.5, torch.Generator().manual_seed(args.seed)
    tau = (1 - a ** 2) / (texts.shape[1] * a)      # calibrated; a: cosine of a clip with its text
    videos = [video for video in videos if len(video.steps) > 1]
    seen = {v: simulate(v, texts, mean, args.sigma, tau, rng) for v in videos}
    tests = [v for v in videos if v.split == "test"]
    x, p = map(torch.cat, zip(*(seen[v] for v in videos if v.split != "test")))
    x_test, p_test = map(torch.cat, zip(*(seen[v] for v in tests)))
    y = torch.tensor([step.label for v in tests for step in v.steps[1:]])              # (M,)
    x, x_test, targets = x.to(device), x_test.to(device), p[:, 1].to(device)
    models = [train(x, targets, texts, tau, order, args) for order in ("diffusion", "mask")]
    args.samples, args.batch = SAMPLES, AT_ONCE
    lines, mask = (score(model, x_test[:, :PIECES], texts.to(device), y, args)[0]
                   for model in models)
    del lines["right"]
    K, (before, after) = len(texts), p.argmax(-1).T            # a bigram without labels
    counts = torch.bincount(before * K + after, minlength=K * K).view(K, K).fill_diagonal_(0)
    rows = torch.where(counts.any(1, keepdim=True), counts, counts.sum(0)).double()    # (K, K)
    bigram = p_test[:, 0].double() @ (rows / rows.sum(1, keepdim=True))
    lines |= {"evaluated": len(y), "baselines": {
        "mask": mask["top1"]["zero_noise"], "mask_softmax": mask["top1"]["oracle_softmax"],
        "bigram": percent(topk_correct(bigram, y, 1))}}
    print(json.dumps(lines, indent=2))
    if args.json:
        write_json(args.json, lines)


def parse(argv=None):
    """The command line."""
    parser = Parser("h alone on COIN's step orders, with simulated vision.")
    add = parser.add_argument
    add("--annotations", type=Path, required=True, help="COIN.json")
    add("--texts", type=Path, required=True, help="npz of the classes: names and embeddings")
    add("--sigma", type=positive, default=2.95, help="norm of the noise")
    add("--epochs", type=positive, default=7.0, help="times that each training example is read")
    add("--context", choices=["observed", "shuffled"], default="observed",
        help="shuffled: in training, the observed clips are in random places")
    add("--seed", type=whole, default=0, help="of all that is random")
    add("--device", default="auto", help="cpu, cuda or mps; auto: a GPU if any")
    add("--json", type=Path, help="also write the numbers here")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main, parse)
