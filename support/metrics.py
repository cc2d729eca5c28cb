"""Scores, and the forms in which they are written and compared. M examples, K steps or classes.

labels (M,) int64: the correct classes. Equal scores are ranked by index; they occur, since some
classes of COIN have one text.
"""
from itertools import groupby

import numpy as np

# What is printed for a key of the JSON, in the words of Sec. 4 and docs/results.md: first the keys
# that have a separate line, in this order, then those within a line.
LINES = {
    "classes": "classes", "history": "history", "samples": "samples", "top1": "% right",
    "top1_std": "deviation over the draws", "top5": "% among the five likeliest",
    "baselines": "baselines, % right", "truth": "what can be known", "new": "new to training",
    "held_out": "% right of held-out steps", "look_alikes": "% right within look-alikes",
    "warning": "warning", "checkpoint": "checkpoint"}
WORDS = {
    "zero_noise": "zero noise", "expectation": "mean of samples", "oracle": "best of samples",
    "oracle_softmax": "best of as many draws", "set": "from the set"}


def percent(hits):
    """Mean of hits or of chances (M,) -> percent, unrounded; None if M = 0."""
    return 100 * float(hits.double().mean()) if len(hits) else None


def percents(right, part=slice(None)):
    """The percent right, of all examples or within a part (M,) bool: {name: percent} of right
    {name: (M,) bool}."""
    return {name: percent(hits[part]) for name, hits in right.items()}


def share_of(right, part):
    """`percents` within a part (M,) bool, and as "evaluated" how many examples it has."""
    return percents(right, part) | {"evaluated": int(part.sum())}


def topk_correct(scores, labels, k=1):
    """Whether the correct class is among the k best of scores (M, K): (M,) bool.
    FloatingPointError unless all scores are finite."""
    if not scores.isfinite().all():
        raise FloatingPointError("scores are not finite; the checkpoint's weights may be damaged")
    best = scores.argsort(dim=1, descending=True, stable=True)[:, :k]          # (M, k)
    return (best == labels[:, None]).any(1)


def each_correct(columns, labels, k=1):
    """`topk_correct` of each of {name: scores (M, K)}: {name: (M,) bool}."""
    return {name: topk_correct(scores, labels, k) for name, scores in columns.items()}


def accuracies(columns, labels):
    """{"top1": {name: percent}, "top5": {name: percent}} of {name: scores (M, K)}."""
    return {"top1": percents(each_correct(columns, labels)),
            "top5": percents(each_correct(columns, labels, 5))}


def by_class(hits, labels, K):
    """The percent right of each of K classes: of hits (M,) bool. None for a class that no example
    has."""
    return [percent(hits[labels == k]) for k in range(K)]


def draw_correct(p, labels, count):
    """The best of `count` steps drawn from p (M, K): the chance 1 - (1 - p_y)^count that one is
    correct, (M,); and (M,) bool that marks, up to each example, as many as are expected right."""
    chance = 1 - (1 - p.gather(1, labels[:, None])[:, 0].double()) ** count
    expected = (chance.cumsum(0) + 0.5).floor()
    return chance, expected.diff(prepend=expected.new_zeros(1)) > 0


def all_bits(columns):
    """Each of {name: (M,) bool} as hexadecimal text, two digits for eight examples."""
    packed = {}
    for name, hits in columns.items():
        packed[name] = np.packbits(hits.cpu().numpy()).tobytes().hex()
    return packed


def pack(right, names, parts=None):
    """What experiments/compare.py reads of M examples: {column: which are right, (M,) bool, as
    hexadecimal bits; "parts": {name: which examples belong to this part, likewise}; "per_video":
    how many examples each video has, in their order}. names: of the video of each example."""
    packed = all_bits(right)
    packed["parts"] = all_bits(parts or {})
    packed["per_video"] = [len(list(group)) for _, group in groupby(names)]
    return packed


def text_of(value):
    """A number, a text, or a dict of such as text; None is left out."""
    if isinstance(value, float):
        return f"{value:.1f}"
    if not isinstance(value, dict):
        return str(value)
    texts = []
    for name, part in value.items():
        if part is not None:
            texts.append(f"{WORDS.get(name, name)} {text_of(part)}")
    return ", ".join(texts)


def print_rows(rows):
    """Print {words: a number, a text or a dict of such}, a line each; None is left out."""
    for words, value in rows.items():
        if value is not None:
            print(f"{words:<28}{text_of(value)}")


def print_lines(content, own):
    """Print the JSON of evaluate.py: what was measured, then a line for each key and place. own:
    {key: words} of a task's own keys."""
    print("{task}, {data} {split}, {setting}: {evaluated} evaluated of {listed} listed, {absent} "
          "videos absent, {unreadable} unreadable".format(**content))
    rows = {}
    for name, words in (LINES | own).items():
        rows[words] = content.get(name)
    for k, row in (content.get("by_place") or {}).items():
        rows[f"% right after step {k}"] = row
    if (content.get("draws") or 1) > 1:
        rows["of the first draw alone"] = ("five likeliest, new to training, after k steps; right "
                                           "in the JSON")
    print_rows(rows)
