"""Infilling: which step is missing, from the steps before and after it.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.1.

M steps to infill, N = 9 clips that are read for each.
"""
import numpy as np
import torch

from data import CLIPS, classify_samples
from diffusion import expectation
from evaluation import metrics
from evaluation.embedding import encode_samples
from evaluation.inference import draw_noise, predict_missing
from evaluation.metrics import percent
from support.command import BadInput

PLACES = "prior", "current", "future"             # the first step of a video, the others, the last


def infill_rows(counts):
    """Which clips are read to infill each step of videos with so many steps.

    Of a video of more than 9 steps the nine around the missing one are read.

    Returns: rows (M, 9) int64, of all steps of all videos one after another; real (M, 9) bool,
             False = padding; j (M, 1), the place of the missing step among the nine; kind (M,), of
             PLACES.
    """
    found, first = [], 0
    for count in counts:
        for k in range(count):
            begin = min(max(k - CLIPS // 2, 0), max(count - CLIPS, 0))
            place = begin + np.arange(CLIPS)
            found.append((first + np.minimum(place, count - 1), place < count, [k - begin],
                          0 if k == 0 else 2 if k == count - 1 else 1))
        first += count
    return tuple(torch.from_numpy(np.array(column)) for column in zip(*found))


def infill(model, source, texts, settings, device):
    """Each step of a video from all the others: rows of the table, steps evaluated and listed."""
    least = max(settings.min_steps, len(PLACES))
    counts = [len(video.steps) for video in source.videos]
    samples = [sample for sample in classify_samples(source.videos, 1)
               if counts[sample.video] >= least]
    if not samples:
        raise BadInput(f"--split {settings.split}: no video with {least} steps; there is nothing "
                       "to infill")
    x, _, samples = encode_samples(model, source, samples, settings, device)
    rows, real, j, kind = infill_rows([
        count for count, video in zip(counts, source.videos)
        if count >= least and video.name not in source.unreadable])
    y = torch.tensor([sample.label for sample in samples])
    observed = real & (torch.arange(CLIPS) != j)                               # (M, 9)
    noise = draw_noise(len(y), (settings.samples, 1, model.dim), settings.seed)

    def predict(noise):
        return predict_missing(model, x[rows, 0], texts, observed, j, noise, settings.batch)

    zero = predict(torch.zeros_like(noise[:, :1]))[:, 0, 0]                    # (M, S)
    many = predict(noise)[:, :, 0]                                             # (M, Q, S)
    mean, picks = expectation(many), many.argmax(-1)
    right = metrics.topk_correct(zero, y, 1)
    return ({"top1": {"zero_noise": percent(right),
                      "expectation": percent(metrics.topk_correct(mean, y, 1)),
                      "oracle": percent(metrics.oracle_correct(picks, y))},
             "by_position": [percent(right[kind == place]) for place in range(len(PLACES))]},
            len(y), sum(len(video.steps) for video in source.listed
                        if len(video.steps) >= least))
