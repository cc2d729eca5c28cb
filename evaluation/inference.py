"""Inference with a checkpoint (Sec. 3.3): clips and predictions of h -> log p over a label set.

M samples, N clips of each, P missing, Q Monte Carlo samples, H steps ahead, S steps, D embedding.
"""
import numpy as np
import torch
from torch.nn import functional

import losses
from data import CLIP_SECONDS, HISTORY


def score_texts(x, texts, tau):
    """log p over texts (Eq. 6), (..., D) -> (..., S); each text is matched once: equal ones tie."""
    unique, index = torch.unique(texts, dim=0, return_inverse=True)            # (U, D), (S,)
    log_p = losses.match(x, unique, tau)                                       # (..., U)
    return (log_p - log_p[..., index].logsumexp(-1, keepdim=True))[..., index]


def score_labels(model, x, texts):
    """log p over the label set, (..., D) -> (..., S): texts are matched, or classified if tuned."""
    return model.classify(x)[0] if model.task else score_texts(x, texts, model.tau)


def draw_noise(count, shape, seed):
    """Standard normal (count, *shape). It depends on the seed, not on the batch."""
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def predict_missing(model, x, texts, noise, batch, where=()):
    """log p of missing clips, once per noise (Sec. 3.3), `batch` samples at a time, on the CPU.

    x (M, N, D); texts (S, D), None once fine-tuned. Without `where`, the clip after N is missing:
    noise (M, Q, D) -> (M, Q, S). With observed (M, N) and j (M, P), see ProcedureModel.forecast, P
    clips are denoised together: noise (M, Q, P, D) -> (M, Q, P, S).
    """
    forecast = model.forecast if where else model.forecast_next
    batches = zip(*(rows.split(batch) for rows in (x, *where, noise)))
    return torch.cat([score_labels(model, forecast(*(rows.to(x.device) for rows in part)),
                                   texts).cpu() for part in batches])


def extend_history(x, seconds, step):
    """Append a step of 9 s to histories of N windows, and cut the result into N windows again.

    As at inference: the last 68 s, or all there is. A new window has the embedding of the old one
    in which its middle lies. x (Q, N, D), step (Q, D); the `seconds` covered are returned anew.
    """
    N, total = x.shape[1], seconds + CLIP_SECONDS
    covered = min(total, HISTORY)
    middles = total - covered + covered * (np.arange(N) + 0.5) / N             # (N,)
    rows = np.minimum(middles / (seconds / N), N).astype(int)                  # N: the new step
    return torch.cat([x, step[:, None]], 1)[:, rows], covered


def sample_in_turn(model, x, seconds, texts, noise):
    """Q futures of H steps of a video, each sampled step by step (Sec. 3.3, repeated).

    What h predicted then counts as observed: x_hat, at unit length. x (N, D), noise (H, Q, D).

    Returns: first (Q, S), log p of the next step; picks (Q, H) int64, the likeliest steps.
    """
    log_p, x = [], x.expand(noise.shape[1], -1, -1)                                      # (Q, N, D)
    for eps in noise:
        x_hat = model.forecast_next(x, eps[:, None])[:, 0]                               # (Q, D)
        log_p.append(score_labels(model, x_hat, texts))                                  # (Q, S)
        x, seconds = extend_history(x, seconds, functional.normalize(x_hat, dim=-1))
    return log_p[0], torch.stack(log_p, 1).argmax(-1)
