"""The forecast table around the rows of evaluate.py: baselines, temperature, next steps.

Sec. 3.1, 3.3, 4.1, 4.2. M samples of a task, N = 8 observed clips, Q Monte Carlo samples, H steps
ahead, S steps (the label set), D embedding.
"""
from dataclasses import replace

import numpy as np
import torch
from torch.nn import functional
from tqdm import tqdm

from data import CLIPS, classify_windows, forecast_samples, random_run
from diffusion import expectation
from evaluation.embedding import encode_samples
from evaluation.inference import draw_noise, predict_missing, sample_in_turn, score_texts
from evaluation.labeled import open_labeled
from evaluation.metrics import (bigram_counts, bigram_forecast, by_class, distinct, fit_temperature,
                                oracle_correct, oracle_softmax, percent, topk_correct)
from evaluation.truth import DRAWS, FUTURES, future_rows, pair_rows, truth_rows
from pseudo_labels import soft_targets
from support.command import require

SPREAD = 500              # forecasts for standard deviations and the total variation


# --- Baselines ---
def baseline_scores(model, x, teacher, texts, settings, device):
    """Scores (M, S) of the label-free baselines; None where one cannot be had.

        unigram      how often f sees each step in the training videos
        bigram       how often it follows the step that is nearest to the last observed clip
        bigram_soft  the same with the clip's posterior instead of the nearest step
        clip         the teacher on the observed clips, as the paper re-purposes it

    Counted are up to 9 clips of each training video, cut as in pre-training, without labels. In the
    bigrams, consecutive clips that are nearest to one step count as one.
    """
    scores = dict.fromkeys(("unigram", "clip", "bigram", "bigram_soft"))
    if teacher is not None:
        scores["clip"] = score_texts(teacher.mean(1), texts, model.tau)
    source = () if settings.videos else open_labeled(  # --videos: not those of pre-training
        settings, "train", model, settings.checkpoint, device, required=False,
        with_teacher=False)[0]
    if not len(source):
        return scores
    rng, steps = np.random.default_rng(settings.seed), []
    for i in tqdm(range(0, len(source), settings.batch), "bigram counts", mininterval=1):
        requests = [(video, random_run(source.pretrain_windows(video, rng), CLIPS, rng))
                    for video in range(len(source))[i:i + settings.batch]]
        requests = [request for request in requests if len(request[1])]
        clips = model.encode(source.load(requests).clips.to(device))
        seen = score_texts(clips, texts, model.tau).argmax(-1).cpu()
        steps += seen.split([len(windows) for _, windows in requests])
    counts = bigram_counts(steps, len(texts)).fill_diagonal_(0)    # no step follows itself
    posterior = score_texts(x[:, -1], texts, model.tau).exp().cpu()            # (M, S)
    nearest = functional.one_hot(posterior.argmax(1), len(texts))
    seen = torch.bincount(torch.cat(steps), minlength=len(texts))
    return scores | {"unigram": seen.expand(len(x), -1),
                     "bigram": bigram_forecast(counts, nearest),
                     "bigram_soft": bigram_forecast(counts, posterior)}


def validation_clips(model, settings, device):
    """Forecasts of validation videos with a ninth clip, the next step's: x (M, 9, D), the teacher's
    features (M, 9, D) or None, labels (M,). None where there is no such video."""
    if settings.annotations and settings.annotations.suffix == ".csv":         # holds one split
        return None
    if settings.data == "toy":
        settings = replace(settings, toy_videos=max(settings.toy_videos // 5, 20))
    source, _ = open_labeled(settings, "validation", model, settings.checkpoint, device,
                             required=False, with_teacher=not model.task)
    samples = []
    for sample in forecast_samples(source.videos, settings.min_steps):
        start, end, _ = source.videos[sample.video].steps[sample.step]
        ninth = classify_windows(start, end, end, 1)
        samples.append(replace(sample, windows=np.concatenate([sample.windows, ninth])))
    if not samples:
        return None
    x, features, samples = encode_samples(model, source, samples, settings, device, "validation")
    return x, features, torch.tensor([sample.label for sample in samples])


# --- The table ---
def horizon_rows(model, x, samples, videos, texts, temperature, settings):
    """The next H steps of each forecast that has so many: sampled in turn, and denoised together.

    Which step comes second depends on which came first: draws hold that, one softmax each cannot.

    Returns: {"by_step": top-1 of each step, denoised together, "pairs": the first two against their
             truth, "futures": `future_rows`}; None: H missing clips not learned, or truth unknown.
    """
    H = settings.horizon
    steps = [[step.label for step in videos[s.video].steps[s.step:s.step + H]] for s in samples]
    chosen = [i for i, labels in enumerate(steps) if len(labels) == H]
    require(chosen, f"--horizon {H}: no video has {H} steps after another one")
    y = torch.tensor([steps[i] for i in chosen])                               # (M', H)
    x, samples = x[chosen], [samples[i] for i in chosen]
    M, N, D = x.shape
    place = torch.arange(N + H, device=x.device).expand(M, -1)
    some = torch.linspace(0, M - 1, min(FUTURES, M)).long().tolist()
    few = [samples[i] for i in some]
    rows, futures = {"by_step": None, "pairs": None, "futures": None}, {}

    def forecast(noise):
        return predict_missing(model, torch.cat([x, x.new_zeros(M, H, D)], 1), texts, noise,
                               settings.batch, (place < N, place[:, N:]))

    if model.denoiser.clips >= N + H:
        zero = forecast(torch.zeros(M, 1, H, D))[:, 0]                          # (M, H, S)
        rows["by_step"] = [percent(topk_correct(zero[:, k], y[:, k], 1)) for k in range(H)]
        if settings.data == "toy":
            noise = draw_noise(M, (DRAWS, H, D), settings.seed)
            picks = torch.cat([forecast(part).argmax(-1)                       # (M, Q, H)
                               for part in noise.split(50, 1)], 1)
            rows["pairs"] = pair_rows(zero, picks, samples, videos, temperature, settings.seed)
            futures["together"] = future_rows(picks[some], few, videos)
    if settings.data == "toy":
        noise = draw_noise(len(few), (H, DRAWS, D), settings.seed).to(x.device)
        with torch.no_grad():
            picks = torch.stack([                                              # (m, Q, H)
                sample_in_turn(model, x[i], s.windows[-1, 1] - s.windows[0, 0], texts, eps)[1].cpu()
                for i, s, eps in zip(some, few, noise)])
        rows["futures"] = futures | {"in_turn": future_rows(picks, few, videos)}
    return rows


def forecast_rows(model, source, samples, x, teacher, texts, zero, log_p, settings, device):
    """What the table holds besides top-1 and top-5 of the model: `oracle_softmax`, other rows."""
    y = torch.tensor([sample.label for sample in samples])
    clips, temperature, softmax = validation_clips(model, settings, device), None, None
    if clips and (model.task or clips[1] is not None):
        past, features, target = clips
        if not model.task:                             # of the clip that shows the next step
            target = soft_targets(features[:, -1], texts, model.tau).cpu()
        zeros = torch.zeros(len(past), 1, model.dim)
        log_q = predict_missing(model, past[:, :-1], texts, zeros, settings.batch)[:, 0]
        temperature = fit_temperature(log_q, target)
        softmax = percent(oracle_softmax((zero / temperature).softmax(-1), y, settings.samples))
    some = torch.linspace(0, len(x) - 1, min(SPREAD, len(x))).long()           # evenly spread
    drawn = [log_p[some]]
    for i in range(1, 5):                              # 5 draws in all, as in the paper
        noise = draw_noise(len(some), (settings.samples, model.dim), settings.seed * 1000 + 500 + i)
        drawn.append(predict_missing(model, x[some], texts, noise, settings.batch))

    def deviation(hits):
        """Of a percentage over all M forecasts: the variance of a mean falls with their number."""
        values = torch.tensor([percent(right) for right in hits], dtype=torch.float64)
        return float(values.std() * (len(some) / len(x)) ** 0.5)

    rows = {
        "deviation": {
            "expectation": deviation(topk_correct(expectation(p), y[some], 1) for p in drawn),
            "oracle": deviation(oracle_correct(p.argmax(-1), y[some]) for p in drawn)},
        "distinct": float(distinct(log_p.argmax(-1)).double().mean()),
        "baselines": {"random": 100 / len(texts), **{
            name: None if p is None else percent(topk_correct(p.cpu(), y, 1))
            for name, p in baseline_scores(model, x, teacher, texts, settings, device).items()}},
        "truth": None, "by_class_bayes": None,
        "by_class": by_class(topk_correct(zero, y, 1), y, len(texts))}
    if settings.data == "toy":
        rows["truth"], rows["by_class_bayes"] = truth_rows(
            model, x, texts, samples, source.videos, clips, zero, log_p, some,
            torch.cat(drawn, 1), settings)
    if settings.horizon > 1:
        rows |= horizon_rows(model, x, samples, source.videos, texts, temperature, settings)
    return softmax, rows
