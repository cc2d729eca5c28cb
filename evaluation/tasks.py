"""Rows of the tables of all tasks but forecasting: see evaluate.py.

M samples of a task, N clips of each, Q Monte Carlo samples, S steps (the label set), D embedding.
"""
from collections import Counter

import numpy as np
import torch

from data import CLIPS
from diffusion import expectation
from evaluation.inference import draw_noise, predict_missing, score_labels, score_texts
from evaluation.metrics import accuracy_rows, by_class, oracle_correct, percent, topk_correct
from toy import grammar

VIEWS = 10                # clips of an action; the released configuration's
PLACES = "first", "middle", "last"                # of the steps of a video


def classify(model, source, samples, x, teacher, texts, settings):
    """Step classification by the softmax averaged over 3 views x (M, 3, D), and the teacher's."""
    y = torch.tensor([sample.label for sample in samples])
    log_p = score_labels(model, x, texts)
    p = {"ours": log_p.exp().mean(1).cpu(), "teacher": None}                   # (M, S)
    if teacher is not None:
        p["teacher"] = score_texts(teacher, texts, model.tau).exp().mean(1).cpu()
    right = {name: topk_correct(scores, y, 1) for name, scores in p.items() if scores is not None}
    rows = accuracy_rows({name: (scores, y) for name, scores in p.items()})
    if settings.data == "toy":
        kinds = {"held_out": grammar.HELD_OUT, "motion_only": sum(grammar.MOTION_ONLY, ())}
        for kind, steps in kinds.items():
            of_kind = torch.isin(y, torch.tensor([grammar.STEP_ID[step] for step in steps]))
            rows[kind] = {name: percent(hits[of_kind]) for name, hits in right.items()}
    rows["by_class"] = by_class(right["ours"], y, p["ours"].shape[1])
    videos = {}                        # the steps of each, "LABEL:RIGHT": experiments/gain.py
    for sample, hit in zip(samples, right["ours"].int().tolist()):
        videos.setdefault(sample.video, []).append(f"{sample.label}:{hit}")
    rows["by_video"] = [" ".join(steps) for steps in videos.values()]
    return rows


def activity(model, source, samples, x, teacher, texts, settings):
    """Activity classification, as `classify`: the classifier on h's zero-noise prediction."""
    y = torch.tensor([sample.label for sample in samples])
    zeros = torch.zeros(len(x), 1, model.dim)
    log_p = predict_missing(model, x, texts, zeros, settings.batch)[:, 0]      # (M, S)
    return accuracy_rows({"ours": (log_p, y)})


def actions(model, source, samples, x, teacher, texts, settings):
    """Table 3: V verbs and U nouns, by softmaxes averaged over VIEWS clips of each action. That is
    right if both are; its top 5 are the pairs with the largest p(verb) p(noun)."""
    verb, noun = (log_p.exp().mean(1).cpu() for log_p in model.classify(x))    # (M, V), (M, U)
    v, u = torch.tensor([sample.label for sample in samples]).T                # (M,) each
    rows = accuracy_rows({"verb": (verb, v), "noun": (noun, u)})
    parts = [column.split(256) for column in (verb, noun, v * noun.shape[1] + u)]
    for k in (1, 5):
        rows[f"top{k}"]["action"] = percent(torch.cat([
            topk_correct((p[:, :, None] * q[:, None]).flatten(1), pair, k)
            for p, q, pair in zip(*parts)]))
    return rows


def infill_rows(counts):
    """Which clips are read to infill each step of videos with so many steps: nine around it.

    Returns: rows (M, 9) int64; real (M, 9), False = padding; j (M, 1); kind (M,), of PLACES.
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
    """Each step of a video from all the others; without videos that could be read in part alone."""
    whole = [i for i, sample in enumerate(samples)
             if source.videos[sample.video].name not in source.unreadable]
    x, samples = x[whole], [samples[i] for i in whole]
    rows, real, j, kind = infill_rows(Counter(sample.video for sample in samples).values())
    y = torch.tensor([sample.label for sample in samples])
    observed = real & (torch.arange(CLIPS) != j)                               # (M, 9)
    noise = draw_noise(len(y), (settings.samples, 1, model.dim), settings.seed)

    def forecast(noise):
        return predict_missing(model, x[rows, 0], texts, noise, settings.batch, (observed, j))

    zero = forecast(torch.zeros_like(noise[:, :1]))[:, 0, 0]                   # (M, S)
    many = forecast(noise)[:, :, 0]                                            # (M, Q, S)
    right = topk_correct(zero, y, 1)
    return {"evaluated": len(y),
            "top1": {"zero_noise": percent(right),
                     "expectation": percent(topk_correct(expectation(many), y, 1)),
                     "oracle": percent(oracle_correct(many.argmax(-1), y))},
            "by_position": [percent(right[kind == place]) for place in range(len(PLACES))]}
