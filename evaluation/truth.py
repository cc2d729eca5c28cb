"""Forecasts against the embedded world's exact P(next step | steps observed, procedure unknown).

Total variation compares sampled steps with it; as many draws from the truth itself are its floor.
M samples, N = 8 clips, Q draws, S steps (the label set), D embedding.
"""
import numpy as np
import torch
from torch.nn import functional

from data import observed_steps
from evaluation import metrics
from evaluation.inference import draw_noise, in_batches, predict_missing, read_clips
from evaluation.metrics import percent
from toy.grammar import Grammar

DRAWS = 200               # sampled steps, or pairs of steps, per forecast for the total variation


def truth_rows(model, x, texts, samples, videos, some, picks, settings):
    """Rows of the forecast table against the truth, and the truth's own accuracy for each step.

    Args: x (M, N, D), texts (S, D), samples: M of them; some (m,) int64: the forecasts whose draws
          are compared with the truth; picks (m, Q): steps sampled for them so far.
    """
    grammar, observed = Grammar(), [observed_steps(s, videos[s.video]) for s in samples]
    y = torch.tensor([sample.label for sample in samples])
    truth = torch.from_numpy(np.array([grammar.next_step(*steps) for steps in observed]))   # (M, S)

    # The exact filter on the clips' posteriors: P(clip | step) is the posterior times S, since the
    # prior is flat.
    likelihood = read_clips(model, x, texts).exp().cpu().double() * len(texts)   # (M, N, S)
    from_start = np.array([from_start for _, from_start in observed])
    seconds = np.array([s.windows[0, 1] - s.windows[0, 0] for s in samples])           # of a clip
    believed = torch.cat([
        torch.from_numpy(grammar.next_step_from_clips(some.numpy(), start, gap))
        for some, start, gap in in_batches(256, likelihood, from_start, seconds)])     # (M, S)

    generator = torch.Generator().manual_seed(settings.seed)
    ideal = torch.multinomial(truth, DRAWS, replacement=True, generator=generator)
    few = ideal[:, :settings.samples]
    while picks.shape[1] < DRAWS:
        shape = min(DRAWS - picks.shape[1], 50), model.dim
        noise = draw_noise(len(some), shape, settings.seed * 1000 + picks.shape[1])
        more = predict_missing(model, x[some], texts, noise, settings.batch).argmax(-1)
        picks = torch.cat([picks, more], 1)
    bayes = metrics.topk_correct(truth, y, 1)
    rows = {"bayes_top1": percent(bayes),
            "bayes_top1_pixels": percent(metrics.topk_correct(believed, y, 1)),
            "ideal_expectation": percent(metrics.topk_correct(
                functional.one_hot(few, truth.shape[1]).double().mean(1), y, 1)),
            "ideal_oracle": percent(metrics.oracle_correct(few, y)),
            "ideal_distinct": float(metrics.distinct(few).double().mean()),
            "tv": float(metrics.total_variation(picks[:, :DRAWS], truth[some]).mean()),
            "tv_ideal": float(metrics.total_variation(ideal[some], truth[some]).mean()),
            "tv_draws": DRAWS, "tv_forecasts": len(some)}
    return rows, metrics.by_class(bayes, y, len(texts))


def pair_rows(zero, picks, samples, videos, temperature, seed):
    """Total variation of the next two steps together.

        tv              draws of both steps, denoised together
        tv_independent  draws of each step from its own zero-noise softmax, at the temperature
        tv_ideal        as many draws from the truth: the floor

    Args: zero (M, 2, S) log p; picks (M, 2, DRAWS).
    """
    grammar, S = Grammar(), zero.shape[-1]
    truth = torch.from_numpy(np.stack([                                        # (M, S * S)
        grammar.next_two_steps(*observed_steps(sample, videos[sample.video])).ravel()
        for sample in samples]))
    generator = torch.Generator().manual_seed(seed)

    def draw(p):
        return torch.multinomial(p, DRAWS, replacement=True, generator=generator)

    def tv(pairs):
        return float(metrics.total_variation(pairs, truth).mean())

    first, second = (draw((zero[:, k] / temperature).softmax(-1)) for k in range(2))
    return {"tv": tv(picks[:, 0] * S + picks[:, 1]), "tv_independent": tv(first * S + second),
            "tv_ideal": tv(draw(truth))}
