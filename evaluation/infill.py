"""Infilling: which step is missing, from the steps before and after it.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.1.

M steps to infill, N = 9 clips that are read for each.
"""
from collections import Counter

import numpy as np
import torch

from data import CLIPS
from diffusion import expectation
from evaluation import metrics
from evaluation.inference import draw_noise, predict_missing
from evaluation.metrics import percent

PLACES = "prior", "current", "future"             # the first step of a video, the others, the last


def infill_rows(counts):
    """Which clips are read to infill each step of videos with so many steps: nine around it.

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


def infill(model, source, samples, x, teacher, texts, settings):
    """Each step of a video from all the others: rows of the table, steps evaluated.

    x (M, 1, D). Videos of which only a part could be read are left out.
    """
    whole = [i for i, sample in enumerate(samples)
             if source.videos[sample.video].name not in source.unreadable]
    x, samples = x[whole], [samples[i] for i in whole]
    rows, real, j, kind = infill_rows(Counter(sample.video for sample in samples).values())
    y = torch.tensor([sample.label for sample in samples])
    observed = real & (torch.arange(CLIPS) != j)                               # (M, 9)
    noise = draw_noise(len(y), (settings.samples, 1, model.dim), settings.seed)

    def predict(noise):
        return predict_missing(model, x[rows, 0], texts, noise, settings.batch, (observed, j))

    zero = predict(torch.zeros_like(noise[:, :1]))[:, 0, 0]                    # (M, S)
    many = predict(noise)[:, :, 0]                                             # (M, Q, S)
    mean, picks = expectation(many), many.argmax(-1)
    right = metrics.topk_correct(zero, y, 1)
    return ({"top1": {"zero_noise": percent(right),
                      "expectation": percent(metrics.topk_correct(mean, y, 1)),
                      "oracle": percent(metrics.oracle_correct(picks, y))},
             "by_position": [percent(right[kind == place]) for place in range(len(PLACES))]},
            len(y))
