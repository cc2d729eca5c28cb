"""Inference with a checkpoint: clips and predictions of h -> log p over the steps of a label set.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.3.

M samples of a task, N clips of each, P missing ones, Q Monte Carlo samples, H steps ahead,
S steps (the label set), D embedding.
"""
import functools

import torch
from torch.nn import functional

import losses
from data import CLIP_SECONDS, HISTORY


def in_batches(size, *columns):
    """Slices of `size` rows of lists and tensors of the same length, as tuples."""
    for i in range(0, len(columns[0]), size):
        yield tuple(column[i:i + size] for column in columns)


def score_texts(match, x, texts):
    """log p over texts (Eq. 6), (..., D) -> (..., S); each text is matched once.

    So COIN's steps of the same text tie, whatever a matrix product does to two equal columns.
    """
    unique, index = torch.unique(texts, dim=0, return_inverse=True)            # (U, D), (S,)
    log_p = match(x, unique)                                                   # (..., U)
    return (log_p - log_p[..., index].logsumexp(-1, keepdim=True))[..., index]


def score_labels(model, x, texts):
    """log p over the label set, (..., D) -> (..., S): texts are matched, or classified if tuned."""
    return model.classify(x)[0] if model.task else score_texts(model.match, x, texts)


def read_clips(model, x, texts):
    """log p over texts for clips, (..., D) -> (..., S); at the estimated tau of a features file."""
    tau = model.tau if model.encoder else model.teacher_tau
    return score_texts(functools.partial(losses.match, tau=tau), x, texts)


def draw_noise(samples, shape, seed):
    """Standard normal (M, *shape), M = `samples`. It depends on the seed, not on the batch."""
    return torch.randn(samples, *shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def predict_missing(model, x, texts, noise, batch, where=()):
    """log p of missing clips, once per noise (Sec. 3.3), `batch` samples at a time.

    Args:
        x:     (M, N, D); texts (S, D), None once fine-tuned; noise normal or zeros.
        where: (), the clip after all N is missing, noise is (M, Q, D); or observed (M, N) and
               j (M, P), see ProcedureModel.forecast: P clips denoised together, (M, Q, P, D).
    Returns: (M, Q, S) or (M, Q, P, S), on the CPU.
    """
    forecast = model.forecast if where else model.forecast_next
    return torch.cat([
        score_labels(model, forecast(*(rows.to(x.device) for rows in columns)), texts).cpu()
        for columns in in_batches(batch, x, *where, noise)])


def extend_history(x, seconds, step):
    """Append a step of 9 s to a history of N windows, and cut the result into N windows again.

    As at inference: the last 68 s, or all there is. A new window has the embedding of the old one
    in which its middle lies; of a short history the new step becomes several windows.

    Args:    x (M, N, D); seconds (M,) float64 that each covers; step (M, D), unit length.
    Returns: (M, N, D), and the seconds (M,) that they cover.
    """
    N, total = x.shape[1], seconds + CLIP_SECONDS
    covered = total.clamp(max=HISTORY)
    middles = (total - covered)[:, None] + covered[:, None] * (torch.arange(N) + 0.5) / N   # (M, N)
    rows = (middles / (seconds[:, None] / N)).long().clamp(max=N)              # N: the new step
    x = torch.cat([x, step[:, None]], 1)                                       # (M, N + 1, D)
    return x.gather(1, rows.to(x.device)[..., None].expand(-1, -1, x.shape[2])), covered


def sample_in_turn(model, x, seconds, texts, noise):
    """Q futures of H steps of each video, each sampled step by step (Sec. 3.3, repeated).

    The likeliest step of a sample then counts as observed: its text is the last clip of the next
    forecast. Each of the Q samples has a history of its own.

    Args:    x (M, N, D) of the observed windows; seconds (M,) float64 that they cover;
             texts (S, D); noise (H, M, Q, D), standard normal.
    Returns: first (M, Q, S), log p of the next step; picks (M, Q, H) int64.
    """
    H, M, Q, D = noise.shape
    y = functional.normalize(texts, dim=-1)
    first = score_labels(model, model.forecast_next(x, noise[0]), texts)       # (M, Q, S)
    picks = [first.argmax(-1)]                                                 # (M, Q)
    x, seconds = x.repeat_interleave(Q, 0), seconds.repeat_interleave(Q)       # (M Q, N, D)
    for eps in noise[1:]:
        x, seconds = extend_history(x, seconds, y[picks[-1].flatten()])
        log_p = score_labels(model, model.forecast_next(x, eps.reshape(M * Q, 1, D)), texts)
        picks.append(log_p.argmax(-1).view(M, Q))
    return first, torch.stack(picks, -1)
