"""The forecast table around the rows of evaluate.py: baselines, temperature, truth, next steps.

Sec. 3.1, 3.3, 4.1, 4.2. M samples of a task, N = 8 observed clips, Q Monte Carlo samples, H steps
ahead, V training videos, S steps (the label set), D embedding.
"""
import dataclasses

import numpy as np
import torch
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from data import CLIPS, classify_windows, forecast_samples, observed_steps, random_run
from diffusion import expectation
from evaluation.embedding import encode_samples
from evaluation.inference import draw_noise, predict_missing, score_texts
from evaluation.labeled import open_labeled
from evaluation.metrics import (bigram_counts, bigram_forecast, by_class, distinct,
                                fit_temperature, oracle_correct, oracle_softmax, percent,
                                topk_correct, total_variation)
from pseudo_labels import soft_targets
from support.command import require
from toy.grammar import Grammar

SAMPLINGS = 5             # times M samples are drawn for a standard deviation; the paper's
SPREAD = 500              # forecasts that are drawn so often, and for the total variation
DRAWS = 200               # steps, or pairs of steps, per forecast for the total variation


# --- Baselines ---
def training_steps(model, texts, settings, device):
    """The step that f sees in up to 9 clips of each training video, cut as in pre-training: (V, 9).

    No labels are used; -1 = padding. None with --videos, where the videos of pre-training are not
    given, and where no training video has features.
    """
    if settings.videos:
        return None
    source, _ = open_labeled(settings, "train", model, settings.checkpoint, device,
                             required=False, with_teacher=False)
    if not len(source):
        return None
    rng, steps = np.random.default_rng(settings.seed), []
    for i in tqdm(range(0, len(source), settings.batch), "bigram counts", mininterval=1):
        requests = [(video, random_run(source.pretrain_windows(video, rng), CLIPS, rng))
                    for video in range(len(source))[i:i + settings.batch]]
        requests = [request for request in requests if len(request[1])]
        x = model.encode(source.load(requests).clips.to(device))
        seen = score_texts(x, texts, model.tau).argmax(-1).cpu()
        steps += seen.split([len(windows) for _, windows in requests])
    return pad_sequence(steps, batch_first=True, padding_value=-1)


def baseline_scores(model, x, teacher, texts, settings, device):
    """Scores (M, S) of the label-free baselines; None where one cannot be had.

        unigram      how often f sees each step in the training videos
        bigram       how often it follows the step that is nearest to the last observed clip
        bigram_soft  the same with the clip's posterior instead of the nearest step
        clip         the teacher on the observed clips, as the paper re-purposes it
    """
    scores = dict.fromkeys(("unigram", "clip", "bigram", "bigram_soft"))
    if teacher is not None:
        scores["clip"] = score_texts(teacher.mean(1), texts, model.tau)
    steps = training_steps(model, texts, settings, device)
    if steps is not None:
        counts = bigram_counts(steps, len(texts))
        posterior = score_texts(x[:, -1], texts, model.tau).exp().cpu()        # (M, S)
        nearest = functional.one_hot(posterior.argmax(1), len(texts))
        seen = torch.bincount(steps[steps >= 0], minlength=len(texts))
        scores |= {"unigram": seen.expand(len(x), -1),
                   "bigram": bigram_forecast(counts, nearest),
                   "bigram_soft": bigram_forecast(counts, posterior)}
    return scores


def fitted_temperature(model, settings, texts, device):
    """Temperature of least NLL of the zero-noise softmax, on validation.

    Zero-shot, against the soft target of the clip that shows the next step; once fine-tuned,
    against labels. None where there is no validation video, or no teacher.
    """
    if settings.annotations and settings.annotations.suffix == ".csv":         # holds one split
        return None
    smaller = dataclasses.replace(settings, toy_videos=max(settings.toy_videos // 5, 20))
    source, _ = open_labeled(smaller, "validation", model, settings.checkpoint, device,
                             required=False, with_teacher=not model.task)
    samples = forecast_samples(source.videos, settings.min_steps)
    if not samples:
        return None
    if not model.task:                                     # a ninth window: the next step's
        for i, sample in enumerate(samples):
            start, end, _ = source.videos[sample.video].steps[sample.step]
            windows = [sample.windows, classify_windows(start, end, end, 1)]
            samples[i] = dataclasses.replace(sample, windows=np.concatenate(windows))
    x, features, samples = encode_samples(model, source, samples, settings, device, "validation")
    if model.task:
        target = torch.tensor([sample.label for sample in samples])
    elif features is None:
        return None
    else:
        x, target = x[:, :-1], soft_targets(features[:, -1], texts, model.tau).cpu()
    zeros = torch.zeros(len(x), 1, model.dim)
    zero = predict_missing(model, x, texts, zeros, settings.batch)[:, 0]          # (M, S)
    return fit_temperature(zero, target)


# --- The exact P(next step | steps observed, procedure unknown) of the embedded world ---
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
    likelihood = len(texts) * score_texts(x, texts, model.tau).exp().cpu().double().numpy()
    from_start = np.array([from_start for _, from_start in observed])
    seconds = np.array([s.windows[0, 1] - s.windows[0, 0] for s in samples])           # of a clip
    believed = torch.from_numpy(np.concatenate([                                       # (M, S)
        grammar.next_step_from_clips(likelihood[i:i + 256], from_start[i:i + 256],
                                     seconds[i:i + 256])
        for i in range(0, len(x), 256)]))

    generator = torch.Generator().manual_seed(settings.seed)
    ideal = torch.multinomial(truth, DRAWS, replacement=True, generator=generator)
    few = ideal[:, :settings.samples]
    while picks.shape[1] < DRAWS:
        shape = min(DRAWS - picks.shape[1], 50), model.dim
        noise = draw_noise(len(some), shape, settings.seed * 1000 + picks.shape[1])
        more = predict_missing(model, x[some], texts, noise, settings.batch).argmax(-1)
        picks = torch.cat([picks, more], 1)
    bayes = topk_correct(truth, y, 1)
    rows = {"bayes_top1": percent(bayes),
            "bayes_top1_pixels": percent(topk_correct(believed, y, 1)),
            "ideal_expectation": percent(topk_correct(
                functional.one_hot(few, truth.shape[1]).double().mean(1), y, 1)),
            "ideal_oracle": percent(oracle_correct(few, y)),
            "ideal_distinct": float(distinct(few).double().mean()),
            "tv": float(total_variation(picks[:, :DRAWS], truth[some]).mean()),
            "tv_ideal": float(total_variation(ideal[some], truth[some]).mean()),
            "tv_draws": DRAWS, "tv_forecasts": len(some)}
    return rows, by_class(bayes, y, len(texts))


def pair_rows(zero, picks, samples, videos, temperature, seed):
    """Total variation of the next two steps together.

        tv              draws of both steps, denoised together
        tv_independent  draws of each step from its own zero-noise softmax, at the temperature
        tv_ideal        as many draws from the truth: the floor

    Args: zero (M, H, S) log p; picks (M, DRAWS, H): of H steps, at least two.
    """
    grammar, S = Grammar(), zero.shape[-1]
    truth = torch.from_numpy(np.stack([                                        # (M, S * S)
        grammar.next_two_steps(*observed_steps(sample, videos[sample.video])).ravel()
        for sample in samples]))
    generator = torch.Generator().manual_seed(seed)

    def draw(p):
        return torch.multinomial(p, DRAWS, replacement=True, generator=generator)

    def tv(pairs):
        return float(total_variation(pairs, truth).mean())

    first, second = (draw((zero[:, k] / temperature).softmax(-1)) for k in range(2))
    return {"tv": tv(picks[..., 0] * S + picks[..., 1]), "tv_independent": tv(first * S + second),
            "tv_ideal": tv(draw(truth))}


# --- The table ---
def horizon_rows(model, x, samples, videos, texts, temperature, settings):
    """The next H steps of each forecast that has so many, denoised together.

    Which step comes second depends on which came first: draws hold that, one softmax each cannot.

    Args:    x (M, 8, D), samples: M of them, as of a forecast; temperature of its softmax.
    Returns: {"by_step": top-1 of each of the H steps, "pairs": the first two against their truth}.
    """
    H = settings.horizon
    steps = [[step.label for step in videos[s.video].steps[s.step:s.step + H]] for s in samples]
    chosen = [i for i, labels in enumerate(steps) if len(labels) == H]
    require(chosen, f"--horizon {H}: no video has {H} steps after another one")
    y = torch.tensor([steps[i] for i in chosen])                               # (M', H)
    x, samples = x[chosen], [samples[i] for i in chosen]
    M, N, D = x.shape
    place = torch.arange(N + H, device=x.device).expand(M, -1)

    def forecast(noise):
        return predict_missing(model, torch.cat([x, x.new_zeros(M, H, D)], 1), texts, noise,
                               settings.batch, (place < N, place[:, N:]))

    zero = forecast(torch.zeros(M, 1, H, D))[:, 0]                             # (M, H, S)
    rows = {"by_step": [percent(topk_correct(zero[:, k], y[:, k], 1)) for k in range(H)],
            "pairs": None}
    if settings.data == "toy":
        noise = draw_noise(M, (DRAWS, H, D), settings.seed)
        picks = torch.cat([forecast(some).argmax(-1)                           # (M, Q, H)
                           for some in noise.split(50, 1)], 1)
        rows["pairs"] = pair_rows(zero, picks, samples, videos, temperature, settings.seed)
    return rows


def forecast_rows(model, source, samples, x, teacher, texts, zero, mean, picks, settings, device):
    """What the forecast table holds besides top-1 and top-5 of the model.

    Args: zero, mean (M, S), picks (M, Q): as in evaluate.py; other shapes in the header.
    Returns: chance that draws from the zero-noise softmax hit, % or None; and the other rows.
    """
    y = torch.tensor([sample.label for sample in samples])
    temperature = fitted_temperature(model, settings, texts, device)
    softmax = None if temperature is None else percent(oracle_softmax(
        (zero / temperature).softmax(-1), y, settings.samples))
    some = torch.linspace(0, len(x) - 1, min(SPREAD, len(x))).long()           # evenly spread
    means, all_picks = [mean[some]], [picks[some]]
    for i in range(1, SAMPLINGS):
        noise = draw_noise(len(some), (settings.samples, model.dim), settings.seed * 1000 + 500 + i)
        log_p = predict_missing(model, x[some], texts, noise, settings.batch)
        means.append(expectation(log_p))
        all_picks.append(log_p.argmax(-1))

    def deviation(hits):
        """Of a percentage over all M forecasts: the variance of a mean falls with their number."""
        values = torch.tensor([percent(right) for right in hits], dtype=torch.float64)
        return float(values.std() * (len(some) / len(x)) ** 0.5)

    rows = {
        "deviation": {"expectation": deviation(topk_correct(p, y[some], 1) for p in means),
                      "oracle": deviation(oracle_correct(p, y[some]) for p in all_picks)},
        "distinct": float(distinct(picks).double().mean()),
        "baselines": {"random": 100 / len(texts), **{
            name: None if p is None else percent(topk_correct(p.cpu(), y, 1))
            for name, p in baseline_scores(model, x, teacher, texts, settings, device).items()}},
        "truth": None, "by_class_bayes": None,
        "by_class": by_class(topk_correct(zero, y, 1), y, len(texts))}
    if settings.data == "toy":
        rows["truth"], rows["by_class_bayes"] = truth_rows(
            model, x, texts, samples, source.videos, some, torch.cat(all_picks, 1), settings)
    if settings.horizon > 1:
        rows |= horizon_rows(model, x, samples, source.videos, texts, temperature, settings)
    return softmax, rows
