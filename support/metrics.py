"""Scores, and the forms in which they are written and compared. M examples, K steps or classes.

labels (M,) int64: the correct classes. Equal scores are ranked by index; they occur, since some
classes of COIN have one text.
"""
from itertools import groupby

import numpy as np

# What is printed for a key of the JSON, in the words of Sec. 4 and docs/results.md: first the keys
# that have a separate line, in this order, then those within a line.
WORDS = {
    "samples": "samples", "top1": "% right", "top1_std": "deviation over the draws",
    "top5": "% among the five likeliest",
    "baselines": "baselines, % right", "truth": "what can be known", "new": "new to training",
    "held_out": "% right of held-out steps", "look_alikes": "% right within look-alikes",
    "futures": "% of futures possible", "warning": "warning", "checkpoint": "checkpoint",
    "zero_noise": "zero noise", "expectation": "mean of samples", "oracle": "best of samples",
    "oracle_softmax": "best of as many draws", "similar": "similar histories",
    "set": "what the set tells", "possible": "whole futures", "first": "their first steps"}


def percent(hits):
    """Mean of hits or of chances (M,) -> percent, unrounded; None if M = 0."""
    return 100 * float(hits.double().mean()) if len(hits) else None


def topk_correct(scores, labels, k=1):
    """Whether the correct class is among the k best of scores (M, K): (M,) bool.
    FloatingPointError unless all scores are finite."""
    if not scores.isfinite().all():
        raise FloatingPointError("scores are not finite; the checkpoint's weights may be damaged")
    best = scores.argsort(dim=1, descending=True, stable=True)[:, :k]          # (M, k)
    return (best == labels[:, None]).any(1)


def accuracies(columns, labels):
    """{"top1": {name: percent}, "top5": ...} of {name: scores (M, K)}."""
    return {f"top{k}": {name: percent(topk_correct(scores, labels, k))
                        for name, scores in columns.items()} for k in (1, 5)}


def draw_correct(p, labels, count):
    """The best of `count` steps drawn from p (M, K): the chance 1 - (1 - p_y)^count that one is
    correct, (M,); and (M,) bool that marks, up to each example, as many as are expected right."""
    chance = 1 - (1 - p.gather(1, labels[:, None])[:, 0].double()) ** count
    expected = (chance.cumsum(0) + 0.5).floor()
    return chance, expected.diff(prepend=expected.new_zeros(1)) > 0


def pack(right, names, parts):
    """What experiments/compare.py reads of M examples: {column: which are right, (M,) bool, as
    hexadecimal bits; "parts": {name: which examples belong to this part, likewise}; "per_video":
    how many examples each video has, in their order}. names: of the video of each example."""
    def bits(columns):
        return {name: np.packbits(hits.cpu().numpy()).tobytes().hex()
                for name, hits in columns.items()}
    per_video = [len([*group]) for _, group in groupby(names)]
    return bits(right) | {"parts": bits(parts), "per_video": per_video}


def text_of(value):
    """A number, a text, or a dict of such as text; None is left out."""
    if isinstance(value, dict):
        return ", ".join(f"{WORDS.get(name, name)} {text_of(part)}" for name, part in value.items()
                         if part is not None)
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def print_lines(content):
    """Print the JSON of evaluate.py: what was measured, then a line for each key and place."""
    print("{task}, {data} {split}, {setting}: {evaluated} evaluated of {listed} listed, {absent} "
          "videos absent, {unreadable} unreadable".format(**content))
    lines = {words: content.get(name) for name, words in WORDS.items()}
    lines |= {f"% right after {k} steps": row
              for k, row in (content.get("by_place") or {}).items()}
    for words, value in lines.items():
        if value is not None:
            print(f"{words:<28}{text_of(value)}")
