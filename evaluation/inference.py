"""Inference with a checkpoint: clips and predictions of h -> log p over the steps of a label set.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.3.

M samples of a task, N clips of each, P missing ones, Q Monte Carlo samples, H steps ahead,
S steps (the label set), D embedding.
"""
import torch
from torch.nn import functional

import diffusion
from data import CLIP_SECONDS, HISTORY


def in_batches(size, *columns):
    """Slices of `size` rows of lists and tensors of the same length, as tuples."""
    for i in range(0, len(columns[0]), size):
        yield tuple(column[i:i + size] for column in columns)


def score_texts(match, x, texts):
    """log p over texts (Eq. 6), (..., D) -> (..., S); equal texts have exactly equal scores.

    COIN has steps with the same text. They must tie (ties go to the lowest index), whatever a
    matrix product does to two equal columns: so each text is matched once.
    match: model.match_predicted for predictions, model.read for clips that were observed.
    """
    unique, index = torch.unique(texts, dim=0, return_inverse=True)            # (U, D), (S,)
    log_p = match(x, unique)                                                   # (..., U)
    return (log_p - log_p[..., index].logsumexp(-1, keepdim=True))[..., index]


def score_labels(model, x, texts):
    """log p over the label set, (..., D) -> (..., S), for predictions of h.

    Zero-shot the texts (S, D) are matched; a fine-tuned model has a classifier, also for clips.
    """
    return model.classify(x)[0] if model.task else score_texts(model.match_predicted, x, texts)


@torch.no_grad()
def forecasts(model, x, texts, samples, seed, batch, *missing):
    """Zero noise and Q Monte Carlo samples of P missing clips, denoised together (Sec. 3.3).

    The noise of a sample depends on the seed and its place in the list, not on the batch.

    Args:    x (M, N, D), texts (S, D) or None once fine-tuned; missing: which clips may be read,
             (M, N) bool, and which are predicted, j (M, P). Without them the clip after all N.
    Returns: zero-noise log p (M, P, S), p averaged over the samples (M, P, S), and the likeliest
             step of each sample (M, P, Q), all on the CPU.
    """
    (M, _, D), P = x.shape, missing[1].shape[1] if missing else 1
    noise = torch.randn(M, samples, P, D, generator=torch.Generator().manual_seed(seed))
    predict = model.forecast if missing else model.forecast_next
    zero, mean, picks = [], [], []
    for clips, eps, *places in in_batches(batch, x, noise.to(x.device), *missing):
        queries = torch.cat([torch.zeros_like(eps[:, :1]), eps], 1).flatten(1, 2)
        x_hat = predict(clips, *places, queries)                       # (B, (1 + Q) P, D)
        log_p = score_labels(model, x_hat, texts).unflatten(1, (-1, P)).cpu()
        zero.append(log_p[:, 0])
        mean.append(diffusion.expectation(log_p[:, 1:]))               # Eq. 11
        picks.append(log_p[:, 1:].argmax(-1).transpose(1, 2))
    return torch.cat(zero), torch.cat(mean), torch.cat(picks)


def forecast_next(*args):
    """`forecasts` of the clip after all N, without the axis P: (M, S), (M, S), (M, Q)."""
    return tuple(part[:, 0] for part in forecasts(*args))


def extend_history(x, seconds, step):
    """Append a step of 9 s to a history of N windows, and cut the result into N windows again.

    As at inference: the last 68 s, or all there is. A new window has the embedding of the old one
    in which its middle lies. Of 68 s it is nearly a shift by one; of a short history the new step
    becomes several windows, as h has seen it in training (data.history_windows).

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

    The likeliest step of a sample then counts as observed: the embedding of its text is the last
    clip of the next forecast. Each of the Q samples has a history of its own.

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
