"""Which step a clip shows, which activity a video shows.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 4.2 (Table 2) and appendix C (Table A).
M samples of a task, N clips of each, S steps (the label set), D embedding.
"""
import functools

import torch

import losses
from data import activity_samples, classify_samples
from evaluation import metrics
from evaluation.embedding import encode_samples
from evaluation.inference import answer, forecasts, score
from evaluation.metrics import percent
from support.command import BadInput
from toy import grammar


def classify(model, source, texts, settings, device):
    """Step classification: the softmax averaged over 3 views; ours and the teacher's.

    Returns: rows of the table, samples evaluated, samples listed.
    """
    samples = classify_samples(source.videos)
    if not samples:
        raise BadInput(f"--split {settings.split}: no annotated step; there is nothing to classify")
    x, teacher, samples = encode_samples(model, source, samples, settings, device)
    y = torch.tensor([sample.label for sample in samples])
    log_p = answer(model, x, None) if model.task else score(model.read, x, texts)
    ours = log_p.exp().mean(1).cpu()                                           # (M, S)
    p = {"ours": ours}
    if teacher is not None:
        read = functools.partial(losses.match, tau=model.teacher_tau)
        p["teacher"] = score(read, teacher, texts).exp().mean(1).cpu()
    hits = {name: metrics.topk_correct(scores, y, 1) for name, scores in p.items()}
    groups = torch.tensor([sample.video for sample in samples])
    difference = None if teacher is None or settings.features else metrics.paired_bootstrap(
        hits["ours"].double(), hits["teacher"].double(), groups=groups)
    apart = {}
    if settings.data == "toy":
        for kind, steps in (("held_out", grammar.HELD_OUT),
                            ("motion_only", sum(grammar.MOTION_ONLY, ()))):
            of_kind = torch.isin(y, torch.tensor([grammar.STEP_ID[step] for step in steps]))
            apart[kind] = {name: percent(hit[of_kind]) for name, hit in hits.items()}
    rows = {f"top{k}": {name: percent(metrics.topk_correct(p[name], y, k)) if name in p else None
                        for name in ("ours", "teacher")} for k in (1, 5)}
    rows["mean_class"] = {name: 100 * metrics.mean_class(hits[name], y) if name in hits else None
                          for name in ("ours", "teacher")}
    return ({**rows, **apart, "ours_minus_teacher":
             None if difference is None else [100 * value for value in difference],
             "by_class": metrics.by_class(hits["ours"], y, ours.shape[1])},
            len(samples), len(classify_samples(source.listed)))


def activity(model, source, settings, device):
    """Activity classification of whole videos: the classifier on h's zero-noise prediction.

    Returns: rows of the table, samples evaluated, samples listed.
    """
    samples = activity_samples(source.videos)
    if not samples:
        raise BadInput(f"--split {settings.split}: no annotated video; there is nothing to "
                       "classify")
    x, _, samples = encode_samples(model, source, samples, settings, device)
    y = torch.tensor([sample.label for sample in samples])
    p, _ = forecasts(model, x, None, 1, settings.seed, settings.batch)         # (M, S)
    hits = [metrics.topk_correct(p.cpu(), y, k) for k in (1, 5)]
    return ({"top1": {"ours": percent(hits[0])}, "top5": {"ours": percent(hits[1])},
             "mean_class": {"ours": 100 * metrics.mean_class(hits[0], y)}},
            len(samples), len(source.listed))
