"""Rows of the tables of all tasks: see evaluate.py.

M examples of a task, N clips of each, Q Monte Carlo samples, S steps (the label set), D embedding.
Each task takes what evaluate.py has read, a Read, and returns the rows of its JSON.
"""
from collections import Counter
from typing import NamedTuple

import numpy as np
import torch

from data import CLIPS
from evaluation.forecasting import baseline_rows, future_rows, model_rows, truth_rows
from evaluation.inference import draw_noise, predict_missing, score_labels
from evaluation.metrics import accuracy_rows, by_class, percent, topk_correct
from toy import grammar

VIEWS = 10                # clips of an action; the released configuration's
PLACES = "first", "middle", "last"                # of the steps of a video


class Read(NamedTuple):
    """What was read of the M examples that could be read."""
    source: object                 # of the videos
    examples: list                 # (M)
    labels: torch.Tensor           # (M,) int64; (M, 2) verbs and nouns of EPIC
    x: torch.Tensor                # (M, N, D) f's embeddings of their clips
    teacher: torch.Tensor | None   # (M, N, D) the teacher's features
    texts: torch.Tensor | None     # (S, D) of the label set; None if the task matches no texts


def forecast(model, read, args, device):
    """Forecasting (Sec. 3.3): which step comes next, from the 8 clips before it."""
    x, texts, y = read.x, read.texts, read.labels
    noise = draw_noise((len(y), args.samples, model.dim), args.seed)           # (M, Q, D)
    zero = predict_missing(model, x, texts, torch.zeros_like(noise[:, :1]), args.batch)[:, 0]
    log_p = predict_missing(model, x, texts, noise, args.batch)                # (M, Q, S)
    rows = model_rows(zero, log_p, y)
    rows["baselines"] = baseline_rows(model, x, read.teacher, texts, y, args, device)
    rows["truth"] = rows["futures"] = None
    if args.data == "toy":
        videos = read.source.videos
        rows["truth"] = truth_rows(model, x, texts, read.examples, videos, zero, log_p, y, args)
        if args.horizon > 1:
            rows["futures"] = future_rows(model, x, texts, read.examples, videos, args)
    return rows


def classify(model, read, args, device):
    """Step classification by the softmax averaged over 3 views x (M, 3, D), and the teacher's."""
    y = read.labels
    p = {"ours": score_labels(model, read.x, read.texts).exp().mean(1).cpu(), "teacher": None}
    if read.teacher is not None:
        p["teacher"] = model.match(read.teacher, read.texts).exp().mean(1).cpu()       # (M, S)
    rows = accuracy_rows(p, y)
    hits = {name: topk_correct(scores, y, 1) for name, scores in p.items() if scores is not None}
    if args.data == "toy":
        kinds = {"held_out": grammar.HELD_OUT, "motion_only": sum(grammar.MOTION_ONLY, ())}
        for kind, steps in kinds.items():
            of_kind = torch.isin(y, torch.tensor([grammar.STEP_ID[step] for step in steps]))
            rows[kind] = {name: percent(hit[of_kind]) for name, hit in hits.items()}
    return rows | {"by_class": by_class(hits["ours"], y, p["ours"].shape[1])}


def activity(model, read, args, device):
    """Activity classification: the classifier on h's zero-noise prediction."""
    zeros = torch.zeros(len(read.x), 1, model.dim)
    log_p = predict_missing(model, read.x, None, zeros, args.batch)[:, 0]      # (M, S)
    return accuracy_rows({"ours": log_p}, read.labels)


def actions(model, read, args, device):
    """Table 3: V verbs and U nouns, by softmaxes averaged over VIEWS clips of each action. An
    action is right if both are; its top 5 are the pairs with the largest p(verb) p(noun)."""
    verb, noun = (log_p.exp().mean(1).cpu() for log_p in model.classify(read.x))   # (M, V), (M, U)
    v, u = read.labels.T                                                       # (M,) each
    verbs, nouns = accuracy_rows({"verb": verb}, v), accuracy_rows({"noun": noun}, u)
    rows = {name: verbs[name] | nouns[name] for name in verbs}
    for k in (1, 5):
        hits = []
        for p, q, i, j in zip(verb, noun, v, u):       # one action at a time: V U pairs each
            pairs = torch.outer(p, q).flatten()[None]
            hits.append(topk_correct(pairs, (i * len(q) + j)[None], k))
        rows[f"top{k}"]["action"] = percent(torch.cat(hits))
    return rows


def infill_rows(counts):
    """Which clips are read to infill each step of videos with so many steps: nine around it.

    Returns: rows (M, 9) int64; real (M, 9) bool, False = padding; j (M,); kind (M,), of PLACES.
    """
    found, first = [], 0
    for count in counts:
        for k in range(count):
            begin = min(max(k - CLIPS // 2, 0), max(count - CLIPS, 0))
            place = begin + np.arange(CLIPS)
            kind = 0 if k == 0 else 2 if k == count - 1 else 1
            found.append((first + np.minimum(place, count - 1), place < count, k - begin, kind))
        first += count
    return tuple(torch.from_numpy(np.array(column)) for column in zip(*found))


def infill(model, read, args, device):
    """Each step of a video from all the others; without videos that could be read in part alone."""
    names = [read.source.videos[example.video].name for example in read.examples]
    whole = [i for i, name in enumerate(names) if name not in read.source.unreadable]
    counts = Counter(read.examples[i].video for i in whole)
    rows, real, j, kind = infill_rows(counts.values())
    x, y = read.x[whole][rows, 0], read.labels[whole]                          # (M, 9, D), (M,)
    where = real & (torch.arange(CLIPS) != j[:, None]), j
    noise = draw_noise((len(y), args.samples, model.dim), args.seed)
    zeros = torch.zeros_like(noise[:, :1])
    zero = predict_missing(model, x, read.texts, zeros, args.batch, where)[:, 0]       # (M, S)
    log_p = predict_missing(model, x, read.texts, noise, args.batch, where)            # (M, Q, S)
    right = topk_correct(zero, y, 1)
    return model_rows(zero, log_p, y) | {
        "evaluated": len(y), "by_position": [percent(right[kind == k]) for k in range(len(PLACES))]}
