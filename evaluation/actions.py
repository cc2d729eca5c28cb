"""EPIC-Kitchens-100: verb, noun and action of a clip.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 4.2 (Table 3) and appendix B.

The softmax is averaged over VIEWS clips of 2 s spread over the action, their middle squares (the
released code also takes the squares on both sides). M actions, V = 97 verbs, U = 300 nouns.
"""
import torch

from evaluation import metrics
from evaluation.inference import in_batches
from evaluation.metrics import accuracy_rows, percent

VIEWS = 10                # clips of an action; the released configuration's


def table_rows(verb, noun, labels):
    """Rows of Table 3, {"top1": {"verb", ...}, ...} in percent, of p(verb) (M, V), p(noun) (M, U).

    An action is right if both are; its top 5 are the pairs with the largest p(verb) p(noun).
    Args: labels: [(verb, noun), ...]; all rows are None if there are none (the test list).
    """
    if not labels or labels[0][0] is None:
        rows = accuracy_rows(dict.fromkeys(["verb", "noun"], (None, None)))
        return rows | {name: rows[name] | {"action": None} for name in ("top1", "top5")}
    v, u = torch.tensor(labels).T                                              # (M,) each
    rows = accuracy_rows({"verb": (verb, v), "noun": (noun, u)})
    for k in (1, 5):
        hits = [metrics.topk_correct((p[:, :, None] * q[:, None]).flatten(1), pair, k)
                for p, q, pair in in_batches(256, verb, noun, v * noun.shape[1] + u)]
        rows[f"top{k}"]["action"] = percent(torch.cat(hits))
    return rows


def classify_actions(model, source, samples, x, teacher, texts, settings):
    """The rows of Table 3, and how many actions were evaluated. x (M, VIEWS, D)."""
    verb, noun = (log_p.exp().mean(1).cpu() for log_p in model.classify(x))    # (M, 97), (M, 300)
    return table_rows(verb, noun, [sample.label for sample in samples]), len(samples)
