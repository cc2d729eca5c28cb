"""Which step or action a clip shows, which activity a video shows.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 4.2 (Tables 2 and 3), appendices B and C
(Table A). M samples of a task, N clips of each, S steps (the label set), D embedding.
"""
import functools

import torch

import losses
from evaluation import metrics
from evaluation.inference import (in_batches, predict_missing, read_clips, score_labels,
                                  score_texts)
from evaluation.metrics import accuracy_rows, percent
from toy import grammar

VIEWS = 10                # clips of an action; the released configuration's


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
    log_p = predict_missing(model, x, texts, zeros, settings.batch)[:, 0]      # (M, S)
    return accuracy_rows({"ours": (log_p, y)}), len(samples)


def action_rows(verb, noun, labels):
    """Rows of Table 3, {"top1": {"verb", ...}, ...} in percent, of p(verb) (M, V), p(noun) (M, U).

    An action is right if both are; its top 5 are the pairs with the largest p(verb) p(noun).
    Args: labels: [(verb, noun), ...]; all rows are None if there are none (the test list).
    """
    if labels[0][0] is None:
        rows = accuracy_rows(dict.fromkeys(["verb", "noun"], (None, None)))
        return rows | {name: rows[name] | {"action": None} for name in ("top1", "top5")}
    v, u = torch.tensor(labels).T                                              # (M,) each
    rows = accuracy_rows({"verb": (verb, v), "noun": (noun, u)})
    for k in (1, 5):
        hits = [metrics.topk_correct((p[:, :, None] * q[:, None]).flatten(1), pair, k)
                for p, q, pair in in_batches(256, verb, noun, v * noun.shape[1] + u)]
        rows[f"top{k}"]["action"] = percent(torch.cat(hits))
    return rows


def actions(model, source, samples, x, teacher, texts, settings):
    """EPIC-Kitchens-100: rows of Table 3, actions evaluated. V = 97 verbs, U = 300 nouns.

    The softmax is averaged over VIEWS clips of 2 s spread over the action, x (M, VIEWS, D).
    """
    verb, noun = (log_p.exp().mean(1).cpu() for log_p in model.classify(x))    # (M, V), (M, U)
    return action_rows(verb, noun, [sample.label for sample in samples]), len(samples)
