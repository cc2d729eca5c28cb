"""The forecast table: the model's rows, its label-free baselines, several next steps.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.1, 3.3, 4.1, 4.2. Rows against the exact
truth of the embedded world: truth.py.

M samples of a task, N = 8 observed clips, Q Monte Carlo samples, H steps ahead, V training videos,
S steps (the label set), D embedding.
"""
import dataclasses
import functools

import numpy as np
import torch
from torch.nn import functional
from tqdm import tqdm

import losses
from data import CLIPS, classify_windows, forecast_samples, pad_clips
from evaluation import metrics
from evaluation.embedding import encode_samples
from evaluation.inference import forecast_next, forecasts, in_batches, score_texts
from evaluation.labeled import open_labeled
from evaluation.metrics import percent
from evaluation.recognition import accuracy_rows
from evaluation.truth import DRAWS, pair_rows, truth_rows
from files.sources import open_coin_features
from pseudo_labels import soft_targets
from support.command import BadInput
from toy.source import ToySource

SAMPLINGS = 5             # times M samples are drawn for a standard deviation; the paper's


# --- Baselines ---
def bigrams(model, x, texts, settings, device):
    """The two label-free baselines, (M, S) each: by the nearest step, and by the posterior.

    They count the training sequences, cut as in pre-training. (None, None) with --videos, where
    the videos of pre-training are not given, and where no training video has features.
    """
    if settings.videos:
        return None, None
    if settings.data == "coin":
        source, _ = open_coin_features(settings.annotations, settings.features,
                                       settings.text_embeddings, "train", needed=False)
    else:
        source = ToySource("train", settings.toy_videos, model.encoder.frames)
    if not len(source):
        return None, None
    rng, rows, counts = np.random.default_rng(settings.seed), [], []
    for (videos,) in tqdm(list(in_batches(settings.batch, range(len(source)))),
                          desc="bigram counts", mininterval=1):
        requests = [(video, source.pretrain_windows(video, rng)) for video in videos]
        requests = [request for request in requests if len(request[1])]
        counts += [len(windows) for _, windows in requests]
        rows.append(model.encode(source.load(requests).clips.to(device)))
    rows, real = pad_clips(torch.cat(rows), torch.tensor(counts, device=device), CLIPS)
    labels = torch.where(real, score_texts(model.read, rows, texts).argmax(-1), -1).cpu()  # (V, 9)
    counts = metrics.bigram_counts(labels, len(texts))
    posterior = score_texts(model.read, x[:, -1], texts).exp().cpu()           # (M, S)
    nearest = functional.one_hot(posterior.argmax(1), len(texts))
    return metrics.bigram_forecast(counts, nearest), metrics.bigram_forecast(counts, posterior)


def fitted_temperature(model, settings, texts, device):
    """Temperature of least NLL of the zero-noise softmax, on validation.

    Zero-shot, against pseudo labels: the soft target of the clip that shows the next step. Once
    fine-tuned, against labels, which training has seen as well. None where there is no validation
    video, or no teacher.
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
        x, target = x[:, :-1], soft_targets(features[:, -1], texts, model.teacher_tau).cpu()
    zero, *_ = forecast_next(model, x, texts, 1, settings.seed, settings.batch)
    return metrics.fit_temperature(zero, target)


# --- The table ---
def horizon_rows(model, x, samples, videos, texts, temperature, settings):
    """The next H steps of each forecast that has so many, denoised together.

    They have a joint distribution: which step comes second depends on which came first. A softmax
    for each position cannot hold it, however good it is; draws can (docs/results.md).

    Args:    x (M, 8, D), samples: M of them, as of a forecast; temperature of its softmax.
    Returns: {"by_step": top-1 of each of the H steps, "pairs": the first two against their truth}.
    """
    H, most = settings.horizon, model.denoiser.clips - x.shape[1]
    if H > most:
        raise BadInput(f"--horizon {H}: {settings.checkpoint} was trained with at most {most} "
                       f"clips missing together; train with --missing {H}")
    steps = [[step.label for step in videos[s.video].steps[s.step:s.step + H]] for s in samples]
    chosen = [i for i, labels in enumerate(steps) if len(labels) == H]
    if not chosen:
        raise BadInput(f"--horizon {H}: no video has {H} steps after another one")
    y = torch.tensor([steps[i] for i in chosen])                               # (M', H)
    x, samples = x[chosen], [samples[i] for i in chosen]
    M, N, D = x.shape
    place = torch.arange(N + H, device=x.device).expand(M, -1)
    has_truth = settings.data == "toy"
    zero, _, picks = forecasts(model, torch.cat([x, x.new_zeros(M, H, D)], 1), texts,
                               DRAWS if has_truth else settings.samples, settings.seed,
                               settings.batch, place < N, place[:, N:])
    return {"by_step": [percent(metrics.topk_correct(zero[:, k], y[:, k], 1)) for k in range(H)],
            "pairs": pair_rows(zero, picks, samples, videos, temperature, settings.seed)
            if has_truth else None}


def forecast(model, source, texts, settings, device):
    """Every row of the forecast table; samples evaluated; samples listed."""
    samples = forecast_samples(source.videos, settings.min_steps)
    if not samples:
        raise BadInput(f"--split {settings.split}: no video with {settings.min_steps} steps; "
                       "there is nothing to forecast")
    x, teacher, samples = encode_samples(model, source, samples, settings, device)
    y = torch.tensor([sample.label for sample in samples])

    def top1(scores):
        return None if scores is None else percent(metrics.topk_correct(scores.cpu(), y, 1))

    def oracle(picks):
        return percent(metrics.oracle_correct(picks, y))

    def deviation(values):
        return float(torch.tensor(values, dtype=torch.float64).std())

    samplings = [forecast_next(model, x, texts, settings.samples, seed, settings.batch)
                 for seed in (settings.seed,
                              *(settings.seed * 1000 + 500 + i for i in range(1, SAMPLINGS)))]
    zero, mean, picks = samplings[0]                               # (M, S), (M, S), (M, Q)
    temperature = fitted_temperature(model, settings, texts, device)
    hard, soft = bigrams(model, x, texts, settings, device)
    read = functools.partial(losses.match, tau=model.teacher_tau)
    clip = None if teacher is None else score_texts(read, teacher.mean(1), texts)      # (M, S)
    result = accuracy_rows({"zero_noise": (zero, y), "expectation": (mean, y)})
    result["top1"] |= {
        "oracle": oracle(picks),
        "oracle_softmax": None if temperature is None else percent(metrics.oracle_softmax(
            (zero / temperature).softmax(-1), y, settings.samples))}
    result |= {
        "deviation": {"expectation": deviation([top1(p) for _, p, _ in samplings]),
                      "oracle": deviation([oracle(steps) for _, _, steps in samplings])},
        "distinct": float(metrics.distinct(picks).double().mean()),
        "baselines": {"random": 100 / len(texts),
                      "unigram": percent((y == y.mode().values).double()),
                      "clip": top1(clip), "bigram": top1(hard), "bigram_soft": top1(soft)},
        "truth": None, "by_class_bayes": None,
        "by_class": metrics.by_class(metrics.topk_correct(zero, y, 1), y, len(texts))}
    if settings.data == "toy":
        picks = torch.cat([steps for _, _, steps in samplings], 1)             # (M, SAMPLINGS Q)
        result["truth"], result["by_class_bayes"] = truth_rows(
            model, x, texts, samples, source.videos, picks, settings)
    if settings.horizon > 1:
        result |= horizon_rows(model, x, samples, source.videos, texts, temperature, settings)
    return result, len(samples), len(forecast_samples(source.listed, settings.min_steps))
