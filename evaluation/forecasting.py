"""The forecast table: the model's rows, its label-free baselines, and the embedded world's truth.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.3, 4.1, 4.2. M samples of a task, N = 8
observed clips, Q Monte Carlo samples, S steps (the label set), D embedding.
"""
import dataclasses
import functools

import numpy as np
import torch
from torch.nn import functional
from tqdm import tqdm

import diffusion
import losses
from data import CLIPS, classify_windows, forecast_samples, observed_steps, pad_clips
from evaluation import metrics, missing
from evaluation.embedding import encode_samples
from evaluation.inference import forecasts, in_batches, score
from evaluation.labeled import open_labeled
from evaluation.metrics import percent
from files.sources import open_coin_features
from pseudo_labels import soft_targets
from support.command import BadInput
from toy.grammar import Grammar
from toy.source import ToySource

DRAWS = 200               # sampled steps per forecast for the total variation
SAMPLINGS = 5             # times M samples are drawn for a standard deviation; the paper's


def train_sequences(model, settings, device):
    """Embeddings of the training sequences as the model saw them: (V, N, D) and which are there.

    What the label-free bigram counts. (None, None) where no training video has features.
    """
    if settings.videos:                            # what it was trained on is not at hand here
        return None, None
    if settings.data == "coin":
        source, _ = open_coin_features(settings.annotations, settings.features,
                                       settings.text_embeddings, "train", needed=False)
        if not len(source):
            return None, None
    else:
        source = ToySource("train", settings.toy_videos, model.encoder.frames)
    rng, rows, counts = np.random.default_rng(settings.seed), [], []
    with torch.no_grad():
        for (videos,) in tqdm(list(in_batches(settings.batch, range(len(source)))),
                              desc="bigram counts", mininterval=1):
            requests = [(video, source.pretrain_windows(video, rng)) for video in videos]
            requests = [request for request in requests if len(request[1])]
            counts += [len(windows) for _, windows in requests]
            rows.append(model.encode(source.load(requests).clips.to(device)))
    return pad_clips(torch.cat(rows), torch.tensor(counts, device=device), CLIPS)


def bigrams(model, x, texts, settings, device):
    """The two label-free baselines, (M, S) each: by the nearest step, and by the posterior."""
    rows, there = train_sequences(model, settings, device)
    if rows is None:
        return None, None
    labels = torch.where(there, score(model.read, rows, texts).argmax(-1), -1).cpu()
    counts = metrics.bigram_counts(labels, len(texts))
    posterior = score(model.read, x[:, -1], texts).exp().cpu()                      # (M, S)
    nearest = functional.one_hot(posterior.argmax(1), len(texts))
    return metrics.bigram_forecast(counts, nearest), metrics.bigram_forecast(counts, posterior)


def toy_truth(samples, videos):
    """The exact next-step distribution of each forecast, (M, S), and what the filter must know.

    Returns: truth (M, S); from_start (M,) bool; clip_seconds (M,).
    """
    grammar, observed = Grammar(), [observed_steps(s, videos[s.video]) for s in samples]
    return (grammar, np.array([grammar.next_step(*steps) for steps in observed]),
            np.array([from_start for _, from_start in observed]),
            np.array([s.windows[0, 1] - s.windows[0, 0] for s in samples]))


def fitted_temperature(model, settings, texts, device):
    """Temperature of least NLL of the zero-noise softmax, on validation, against pseudo labels.

    The pseudo label of a forecast is the soft target of the clip that shows the next step. Once
    fine-tuned, labels were seen in training, and the label it is. None where no validation video
    has features.
    """
    if settings.annotations and settings.annotations.suffix == ".csv":     # one split, this one
        return None
    held = dataclasses.replace(settings, toy_videos=max(settings.toy_videos // 5, 20))
    source, _ = open_labeled(held, "validation", model, device, settings.checkpoint, needed=False,
                             compare=not model.task)
    samples = forecast_samples(source.videos, settings.min_steps)
    if not samples:
        return None
    if model.task:
        x, _, samples = encode_samples(model, source, samples, settings, device, "validation")
        zero, _ = forecasts(model, x, texts, 1, settings.seed, settings.batch)
        y = torch.tensor([sample.label for sample in samples])
        return metrics.fit_temperature(zero.cpu(), y)
    for i, sample in enumerate(samples):                   # a ninth window: the next step's
        start, end, _ = source.videos[sample.video].steps[sample.step]
        windows = [sample.windows, classify_windows(start, end, end, 1)]
        samples[i] = dataclasses.replace(sample, windows=np.concatenate(windows))
    x, features, _ = encode_samples(model, source, samples, settings, device, "validation")
    if features is None:
        return None
    zero, _ = forecasts(model, x[:, :-1], texts, 1, settings.seed, settings.batch)
    target = soft_targets(features[:, -1], texts, model.teacher_tau)
    return metrics.fit_temperature(zero, target)


def forecast(model, source, texts, settings, device):
    """Every row of the forecast table: the numbers that SPEC's JSON names."""
    samples = forecast_samples(source.videos, settings.min_steps)
    if not samples:
        raise BadInput(f"--split {settings.split}: no video with {settings.min_steps} steps; "
                       "there is nothing to forecast")
    x, teacher, samples = encode_samples(model, source, samples, settings, device)
    y = torch.tensor([sample.label for sample in samples])
    zero, drawn = (log_p.cpu() for log_p in
                   forecasts(model, x, texts, settings.samples, settings.seed, settings.batch))
    mean = diffusion.expectation(drawn)                                        # Eq. 11  (M, S)
    picks = drawn.argmax(-1)                                                   # (M, Q)
    again = [(mean, picks)]
    for i in range(1, SAMPLINGS):
        other = forecasts(model, x, texts, settings.samples, settings.seed * 1000 + 500 + i,
                          settings.batch)[1].cpu()
        again.append((diffusion.expectation(other), other.argmax(-1)))
    temperature = fitted_temperature(model, settings, texts, device)
    hard, soft = bigrams(model, x, texts, settings, device)
    read = functools.partial(losses.match, tau=model.teacher_tau)
    clip = None if teacher is None else score(read, teacher.mean(1), texts)    # (M, S)

    def top(scores, k=1):
        return None if scores is None else percent(metrics.topk_correct(scores.cpu(), y, k))

    def deviation(values):
        return float(torch.tensor(values, dtype=torch.float64).std())

    result = {
        "top1": {"zero_noise": top(zero), "expectation": top(mean),
                 "oracle": percent(metrics.oracle_correct(picks, y)),
                 "oracle_softmax": None if temperature is None else percent(metrics.oracle_softmax(
                     (zero / temperature).softmax(-1), y, settings.samples))},
        "top5": {"zero_noise": top(zero, 5), "expectation": top(mean, 5)},
        "mean_class": {name: 100 * metrics.mean_class(metrics.topk_correct(p, y, 1), y)
                       for name, p in (("zero_noise", zero), ("expectation", mean))},
        "deviation": {"expectation": deviation([top(p) for p, _ in again]),
                      "oracle": deviation([percent(metrics.oracle_correct(draws, y))
                                           for _, draws in again])},
        "distinct": float(metrics.distinct(picks).double().mean()),
        "baselines": {"random": 100 / len(texts),
                      "unigram": percent((y == y.mode().values).double()),
                      "clip": top(clip), "bigram": top(hard), "bigram_soft": top(soft)},
        "truth": None, "by_class_bayes": None,
        "by_class": metrics.by_class(metrics.topk_correct(zero, y, 1), y, len(texts))}
    if settings.data == "toy":
        drawn = torch.cat([draws for _, draws in again], 1)
        result["truth"], result["by_class_bayes"] = toy_rows(model, x, texts, samples,
                                                             source.videos, y, drawn, settings)
    if settings.horizon > 1:
        result |= missing.horizon(model, x, samples, source.videos, texts, temperature, settings)
    return result, len(samples), len(forecast_samples(source.listed, settings.min_steps))


def toy_rows(model, x, texts, samples, videos, y, drawn, settings):
    """Rows against the exact truth of the embedded world, and its own accuracy for each step.

    drawn: (M, R) steps sampled so far.
    """
    grammar, truth, from_start, seconds = toy_truth(samples, videos)
    believed = torch.cat([                     # P(clip | step) is the posterior times S, flat prior
        torch.from_numpy(grammar.next_step_from_clips(p.numpy(), start, gap)) for p, start, gap in
        in_batches(256, score(model.read, x, texts).exp().cpu().double() * len(texts),
                   from_start, seconds)])
    truth = torch.from_numpy(truth)
    generator = torch.Generator().manual_seed(settings.seed)
    ideal = torch.multinomial(truth, DRAWS, replacement=True, generator=generator)
    while drawn.shape[1] < DRAWS:
        more = min(DRAWS - drawn.shape[1], 50)
        log_p = forecasts(model, x, texts, more, settings.seed * 1000 + drawn.shape[1],
                          settings.batch)[1]
        drawn = torch.cat([drawn, log_p.argmax(-1).cpu()], 1)
    few = ideal[:, :settings.samples]
    bayes = metrics.topk_correct(truth, y, 1)
    rows = {"bayes_top1": percent(bayes),
            "bayes_top1_pixels": percent(metrics.topk_correct(believed, y, 1)),
            "ideal_oracle": percent(metrics.oracle_correct(few, y)),
            "ideal_distinct": float(metrics.distinct(few).double().mean()),
            "tv": float(metrics.total_variation(drawn[:, :DRAWS], truth).mean()),
            "tv_ideal": float(metrics.total_variation(ideal, truth).mean()), "tv_draws": DRAWS}
    return rows, metrics.by_class(bayes, y, len(texts))
