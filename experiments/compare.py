"""Compare runs on the same examples: `python -m experiments.compare A.json ... --with B.json ...`.

The files are those of evaluate.py --json, one per seed. Both sides answered the same examples, so
the difference is taken example by example. This cancels how hard each example is. The standard
error has two parts, whose squares are added: the error over videos (examples of one video are not
independent), and the error over seeds. M examples, S seeds of one side.

    held        the difference is above twice its error
    not held    the difference is below minus twice its error
    equal       the difference, plus or minus twice its error, is within one point
    undecided   none of these
    one run     a side has one seed, so its error over seeds is not known
"""
import json
from itertools import pairwise
from pathlib import Path
from statistics import variance

import numpy as np

from files.lists import fields_of, read_text
from support.arguments import Parser
from support.errors import require, run

EQUAL = 1.0               # point


def read_right(path, column, part=None):
    """Which examples a JSON of evaluate.py has right, of a part or all: (M,) of 0 or 1; the first
    example of each video (V + 1,); and the seed. Column "look_alikes" is read on its own part."""
    def bits(text):
        return np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8))[:content["evaluated"]]
    with fields_of(path, "a JSON of evaluate.py --json is needed"):
        content = json.loads(read_text(path))
        right, first = content["right"], np.cumsum([0, *content["right"]["per_video"]])
        known, parts = sorted(right.keys() - {"per_video", "parts"}), right["parts"]
        require(column in known, f"{path}: --column {column}: there are {', '.join(known)}")
        part = column if column in parts else part
        require(not part or part in parts, f"{path}: --part {part}: there are {', '.join(parts)}")
        chosen = bits(parts[part]).astype(bool) if part else np.ones(first[-1], bool)
        first = np.concatenate([[0], chosen.cumsum()])[first]
        return bits(right[column])[chosen].astype(float), first, content["seed"]


def paired_difference(ours, theirs, first):
    """The difference of the shares right, in points, and its standard error.

    ours, theirs: (S, M) of 0 or 1, one line per seed; seeds are paired if both have as many. first
    (V + 1,): the number of each video's first example, then M. With one seed, the error is that
    over videos.
    """
    each = 100 * (ours.mean(0) - theirs.mean(0))                               # (M,) points
    difference, M = each.mean(), len(each)
    of_videos = np.array([(each[a:b] - difference).sum() for a, b in pairwise(first)])     # (V,)
    squares = (of_videos ** 2).sum() / M ** 2
    sides = [100 * ours.mean(1), 100 * theirs.mean(1)]                         # (S,) each
    if len(ours) == len(theirs):
        sides = [sides[0] - sides[1]]
    squares += sum(variance(side) / len(side) for side in sides if len(side) > 1)
    return float(difference), float(squares ** 0.5)


def verdict(difference, error, seeds):
    """The verdict on a difference and its standard error, in points. seeds: how many each side has.
    """
    if min(seeds) == 1:
        return "one run"
    if abs(difference) > 2 * error:
        return "held" if difference > 0 else "not held"
    return "equal" if abs(difference) + 2 * error <= EQUAL else "undecided"


def compare(ours, theirs, column, with_column=None, part=None):
    """Two lists of files -> {"ours", "theirs": percent right, "difference", "error": in points,
    "examples", "videos": how many, "seeds": how many of each side}."""
    sides = [[(path, *read_right(path, name, part)) for path in paths]
             for paths, name in ((ours, column), (theirs, with_column or column))]
    first = sides[0][0][2]
    for path, _, other, _ in sum(sides, []):
        require(np.array_equal(first, other), f"{path}: was measured on other videos than "
                f"{ours[0]}; give the same --data, --split and --toy-videos")
    ours, theirs = (np.stack([bits for _, bits, *_ in sorted(side, key=lambda one: one[3])])
                    for side in sides)
    difference, error = paired_difference(ours, theirs, first)
    return {"ours": 100 * ours.mean(), "theirs": 100 * theirs.mean(), "difference": difference,
            "error": error, "examples": ours.shape[1], "videos": len(first) - 1,
            "seeds": [len(ours), len(theirs)]}


def main(args):
    """Print the two shares, their difference with its error, and the verdict."""
    found = compare(sorted(args.ours), sorted(args.theirs), args.column, args.with_column,
                    args.part)
    print("{ours:.1f} and {theirs:.1f}% right of {examples} examples in {videos} videos".format(
        **found) + ", {} and {} seeds".format(*found["seeds"]))
    print("difference {difference:+.2f} ± {error:.2f}: ".format(**found)
          + verdict(found["difference"], found["error"], found["seeds"]))


def parse(argv=None):
    """The command line."""
    parser = Parser("Which of two variants is right more often, by how much, and is it sure?")
    add = parser.add_argument
    add("ours", type=Path, nargs="+", metavar="A.json", help="of evaluate.py --json, one per seed")
    add("--with", dest="theirs", type=Path, nargs="+", required=True, metavar="B.json",
        help="those of the other variant, preferably of the same seeds")
    add("--column", default="zero_noise", help="for forecasts zero_noise, expectation, oracle, "
        "similar and others; for classification ours, teacher or look_alikes")
    add("--with-column", help="of the other variant, if it is not the same")
    add("--part", help="only these examples: new (forecasts), held_out (classification)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main, parse)
