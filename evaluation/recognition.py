"""Which step a clip shows, which activity a video shows.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 4.2 (Table 2) and appendix C (Table A).
M samples of a task, N clips of each, S steps (the label set), D embedding.
"""
import functools

import torch

import losses
from evaluation import metrics
from evaluation.inference import predict_missing, read_clips, score_labels, score_texts
from evaluation.metrics import accuracy_rows, percent
from toy import grammar


def classify(model, source, samples, x, teacher, texts, settings):
    """Step classification by the softmax averaged over 3 views, ours and the teacher's.

    Args:    x (M, 3, D), teacher: the same of the teacher, or None; texts (S, D).
    Returns: rows of the table, samples evaluated.
    """
    y = torch.tensor([sample.label for sample in samples])
    log_p = score_labels(model, x, None) if model.task else read_clips(model, x, texts)
    p = {"ours": log_p.exp().mean(1).cpu(), "teacher": None}                   # (M, S)
    if teacher is not None:
        read = functools.partial(losses.match, tau=model.teacher_tau)
        p["teacher"] = score_texts(read, teacher, texts).exp().mean(1).cpu()
    right = {name: metrics.topk_correct(scores, y, 1) for name, scores in p.items()
             if scores is not None}
    rows = accuracy_rows({name: (scores, y) for name, scores in p.items()})
    if settings.data == "toy":
        for kind, steps in (("held_out", grammar.HELD_OUT),
                            ("motion_only", sum(grammar.MOTION_ONLY, ()))):
            of_kind = torch.isin(y, torch.tensor([grammar.STEP_ID[step] for step in steps]))
            rows[kind] = {name: percent(hits[of_kind]) for name, hits in right.items()}
    rows["ours_minus_teacher"] = None
    if teacher is not None and not settings.features:
        videos = torch.tensor([sample.video for sample in samples])
        rows["ours_minus_teacher"] = [100 * value for value in metrics.paired_bootstrap(
            right["ours"], right["teacher"], groups=videos)]
    rows["by_class"] = metrics.by_class(right["ours"], y, p["ours"].shape[1])
    return rows, len(samples)


def activity(model, source, samples, x, teacher, texts, settings):
    """Activity classification, as `classify`: the classifier on h's zero-noise prediction."""
    y = torch.tensor([sample.label for sample in samples])
    zeros = torch.zeros(len(x), 1, model.dim)
    log_p = predict_missing(model, x, texts, zeros, settings.batch)[:, 0]         # (M, S)
    return accuracy_rows({"ours": (log_p, y)}), len(samples)
