"""Which steps share words with the pool (Table B), and how accuracy depends on it (Fig. A):
`python -m experiments.words STEPS.txt PHRASES [SCORES.json ...]`.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), appendix. The BLEU-1 of a step is its best with
any phrase, in lower case, words split at blanks: the share of its words that the phrase has, times
exp(1 - words of the phrase / its words) if the phrase is longer. K steps, one a class.
"""
import math
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from tqdm import tqdm

from experiments.tables import text_table
from support.arguments import Parser, existing
from support.errors import InputError, require, run_command
from support.read import fields_of, load_names, load_phrases, read_json
from support.write import write_json

HIGH = 0.7                 # BLEU-1 from which a step counts as seen in the paper
BINS = 10                  # of BLEU-1 from 0 to 1
SHOWN = 5                  # phrases in the JSON with the same first word, and with the same last
NEED = "expected the JSON of evaluate.py --task forecast or classify, with by_class"


def open_bleu():
    """A function (text, phrase) -> BLEU-1, by sacrebleu; InputError without it."""
    try:
        from sacrebleu.metrics import BLEU
    except ImportError:
        raise InputError("BLEU needs sacrebleu: pip install sacrebleu") from None
    metric = BLEU(max_ngram_order=1, lowercase=True, tokenize="none", smooth_method="none",
                  effective_order=True)                # of one order, this only avoids a warning

    def score(text, phrase):
        return metric.sentence_score(text, [phrase]).score / 100
    return score


# --- Table B ---
class Overlap(NamedTuple):
    """What a step shares with the pool."""
    step: str
    bleu: float                # best BLEU-1 with a phrase, 0 to 1
    phrase: str | None         # that phrase, the first of equals; None: none shares a word
    verb: list                 # the first SHOWN phrases with the same first word
    noun: list                 # the first SHOWN phrases with the same last word


def overlaps(steps, phrases):
    """[Overlap, ...] of K steps. A phrase that shares no word has BLEU-1 of 0, so it is left out of
    the comparison."""
    score, pool = open_bleu(), list(dict.fromkeys(phrases))
    by_word, by_verb, by_noun = defaultdict(list), defaultdict(list), defaultdict(list)
    for phrase in pool:
        words = phrase.casefold().split()
        by_verb[words[0]].append(phrase)                   # the first word is mostly a verb
        by_noun[words[-1]].append(phrase)                  # the last one a noun
        for word in set(words):
            by_word[word].append(phrase)
    found = []
    for step in tqdm(steps, desc="BLEU-1"):
        words, best, closest = step.casefold().split(), 0.0, None
        near = {}                                          # phrases that share a word, each once
        for word in words:
            near.update(dict.fromkeys(by_word.get(word, ())))
        for phrase in near:
            bleu = score(step, phrase)
            if bleu > best:
                best, closest = bleu, phrase
        verb = by_verb.get(words[0], [])[:SHOWN]
        noun = by_noun.get(words[-1], [])[:SHOWN]
        found.append(Overlap(step, round(best, 9), closest, verb, noun))   # 0.7 has no exact float
    return found


# --- Fig. A ---
def read_scores(path, count):
    """The task of a JSON of evaluate.py, and the percent right of each of `count` classes, None for
    one that no example has. InputError if it lacks them, or has another number."""
    content = read_json(path, NEED)
    with fields_of(path, NEED):
        task, classes = content["task"], content["by_class"]
        numbers = [percent for percent in classes if percent is not None]
        right = all(math.isfinite(percent) and 0 <= percent <= 100 for percent in numbers)
    require(right, f"{path}: by_class has other values than percents; {NEED}")
    require(len(classes) == count, f"{path}: by_class has {len(classes)} classes, STEPS.txt "
            f"{count}; both must have one a class, in the same order")
    return task, classes


def mean_of(classes, part):
    """The mean of the percents of a part of the classes, their indices; None if no class of it was
    measured."""
    measured = [classes[k] for k in part if classes[k] is not None]
    if not measured:
        return None
    return mean(measured)


def parts_of(bleu):
    """{name: indices of the steps that belong to it} of the BLEU-1 of K steps: the two groups of
    the paper, and the bins of Fig. A."""
    high = [k for k, value in enumerate(bleu) if value >= HIGH]
    low = [k for k, value in enumerate(bleu) if value < HIGH]
    parts = {f"at least {HIGH:g}": high, f"below {HIGH:g}": low}
    for i in range(BINS):
        upper = f"below {(i + 1) / BINS:g}"
        if i == BINS - 1:
            upper = "1"
        inside = []
        for k, value in enumerate(bleu):
            if min(int(value * BINS + 1e-6), BINS - 1) == i:       # 0.3 * 10 may be below 3
                inside.append(k)
        parts[f"{i / BINS:g} to {upper}"] = inside
    return parts


# --- The command ---
def main(args):
    """Compare the words, print the tables, and write the JSON if asked for."""
    steps, phrases = load_names(args.steps), load_phrases(args.phrases)
    scores = {}
    for path in args.scores:
        scores[str(path)] = read_scores(path, len(steps))
    found = overlaps(steps, phrases)
    parts = parts_of([row.bleu for row in found])
    sharing = [row for row in found if row.verb or row.noun]
    print(f"{len(steps)} steps, {len(phrases)} phrases: {len(sharing)} steps share their first or "
          "last word with that of a phrase")

    table, rows = [], {}
    for name, part in parts.items():
        shares, cells = {}, [name, str(len(part))]
        for path, (_, classes) in scores.items():
            shares[path] = mean_of(classes, part)
            cells.append("-" if shares[path] is None else f"{shares[path]:.1f}")
        rows[name] = {"steps": len(part), "right": shares}
        table.append(cells)
    header = ["BLEU-1", "steps"]
    for path, (task, _) in scores.items():
        header.append(f"{task}, % right, {path}")
    print(text_table(header, table))
    if args.json:
        write_json(args.json, {"sharing": len(sharing), "bleu": rows,
                               "steps": [row._asdict() for row in found]})


def parse(argv=None):
    """The command line."""
    parser = Parser("Compare the words of steps with those of the pool, and the accuracy of steps "
                    "with many and with few words in common.")
    add = parser.add_argument
    add("steps", type=existing, metavar="STEPS.txt", help="the steps: line i is class i")
    add("phrases", type=existing, metavar="PHRASES", help="the pool: `phrase` or "
        "`phrase,count,concreteness` a line")
    add("scores", nargs="*", type=existing, metavar="SCORES.json", help="of evaluate.py --json, "
        "for these classes")
    add("--json", type=Path, help="also write the numbers, and the phrases of each step, here")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run_command(main, parse)
