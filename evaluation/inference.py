"""Inference with a checkpoint (Sec. 3.3): clips and predictions of h -> log p over a label set.

M examples, N clips of each, Q Monte Carlo samples, H steps ahead, S steps, D embedding.
"""
import numpy as np
import torch
from torch.nn import functional

from data import CLIP_SECONDS, HISTORY
from losses import match


def score_labels(model, x, texts):
    """log p over the label set, (..., D) -> (..., S): by texts, or by a fine-tuned classifier."""
    return model.classify(x)[0] if model.task else model.match(x, texts)


def match_teacher(model, features, texts):
    """`score_labels` for the teacher's features (M, n, D). The mean is that of these features."""
    mean = functional.normalize(features, dim=-1).mean((0, 1))
    return match(features, texts, model.tau, None if model.scores == "paper" else mean)


def draw_noise(shape, seed):
    """Standard normal numbers. They depend on the seed, not on the batch."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def predict_missing(model, x, texts, noise, batch, where=()):
    """log p of a missing clip, once per noise (Sec. 3.3), `batch` examples at a time, on the CPU.

    x (M, N, D); texts (S, D), None once fine-tuned; noise (M, Q, D) -> (M, Q, S). The missing
    clip follows the N; with where = (observed (M, N), j (M,)), it is clip j, as in `forecast`.
    """
    forecast = model.forecast if where else model.forecast_next
    log_p = []
    for part in zip(*(rows.split(batch) for rows in (x, *where, noise))):
        x_hat = forecast(*(rows.to(x.device) for rows in part))                # (B, Q, D)
        log_p.append(score_labels(model, x_hat, texts).cpu())
    return torch.cat(log_p)


def extend_history(x, seconds, step):
    """Append a step of 9 s to histories of N windows, and cut the result into N windows again.

    As at inference, the last 68 s are kept, or all there is. A new window has the embedding of the
    old one in which its middle lies. x (Q, N, D), step (Q, D) -> new x, and the seconds it covers.
    """
    N, total = x.shape[1], seconds + CLIP_SECONDS
    covered = min(total, HISTORY)
    middles = total - covered + covered * (np.arange(N) + 0.5) / N             # (N,)
    rows = np.minimum(middles / (seconds / N), N).astype(int)                  # N: the new step
    return torch.cat([x, step[:, None]], 1)[:, rows], covered


@torch.no_grad()
def sample_in_turn(model, x, seconds, texts, noise):
    """Q futures of H steps of a video, each sampled step by step (Sec. 3.3, repeated).

    What h predicted, x_hat at unit length, then counts as observed for 9 s. x (N, D), noise
    (H, Q, D) -> (Q, S), log p of the next step, and (Q, H) int64, the likeliest steps.
    """
    log_p, x = [], x.expand(noise.shape[1], -1, -1)                                      # (Q, N, D)
    for eps in noise:
        x_hat = model.forecast_next(x, eps[:, None])[:, 0]                               # (Q, D)
        log_p.append(score_labels(model, x_hat, texts))                                  # (Q, S)
        x, seconds = extend_history(x, seconds, functional.normalize(x_hat, dim=-1))
    return log_p[0], torch.stack(log_p, 1).argmax(-1)
