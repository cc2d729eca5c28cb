"""Compare runs on the same examples: `python -m experiments.compare A.json ... --with B.json ...`.

The files are those of evaluate.py --json, one of each seed. Both sides answered the same examples,
so the difference is taken example by example, which leaves out how hard they are. Its standard
error has two parts, whose squares are added: that of the videos (examples of one video are not
independent), and that of the seeds. M examples, S seeds of one side.

    held        the difference is above twice its error
    not held    it is below minus that
    equal       it is within one point, by twice its error
    undecided   none of these
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


def read_right(path, column):
    """Which examples a JSON of evaluate.py has right: (M,) of 0 or 1, the first example of each
    video (V + 1,), and the seed."""
    with fields_of(path, "a JSON of evaluate.py --json is needed"):
        content = json.loads(read_text(path))
        right, M = content["right"], content["evaluated"]
        known = [name for name in right if name != "per_video"]
        require(column in known, f"{path}: --column {column}: there are {', '.join(known)}")
        bits = np.unpackbits(np.frombuffer(bytes.fromhex(right[column]), np.uint8))[:M]
        return bits.astype(float), np.cumsum([0, *right["per_video"]]), content["seed"]


def paired_difference(ours, theirs, first):
    """Difference in points of the shares right, and its standard error.

    ours, theirs: (S, M) of 0 or 1, each row a seed, paired if there are as many; first (V + 1,):
    the number of each video's first example, and M. With one seed, the error is that of the videos.
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


def verdict(difference, error):
    """What a difference and its standard error, in points, say."""
    if abs(difference) > 2 * error:
        return "held" if difference > 0 else "not held"
    return "equal" if abs(difference) + 2 * error <= EQUAL else "undecided"


def main(args):
    """Print the two shares, their difference with its error, and the verdict."""
    sides = [[read_right(path, column) for path in sorted(paths)] for paths, column in (
        (args.ours, args.column), (args.theirs, args.with_column or args.column))]
    first = sides[0][0][1]
    for path, (_, other, _) in zip([*sorted(args.ours), *sorted(args.theirs)], sum(sides, [])):
        require(np.array_equal(first, other), f"{path}: was measured on other videos than "
                f"{sorted(args.ours)[0]}; give the same --data, --split and --toy-videos")
    ours, theirs = (np.stack([bits for bits, *_ in sorted(side, key=lambda one: one[2])])
                    for side in sides)
    difference, error = paired_difference(ours, theirs, first)
    print(f"{100 * ours.mean():.1f} and {100 * theirs.mean():.1f}% right of {ours.shape[1]} "
          f"examples in {len(first) - 1} videos, {len(ours)} and {len(theirs)} seeds\n"
          f"difference {difference:+.2f} ± {error:.2f}: {verdict(difference, error)}")


def parse(argv=None):
    """The command line."""
    parser = Parser("Which of two variants is right more often, by how much, and is it sure?")
    add = parser.add_argument
    add("ours", type=Path, nargs="+", metavar="A.json", help="of evaluate.py, one of each seed")
    add("--with", dest="theirs", type=Path, nargs="+", required=True, metavar="B.json",
        help="those of the other variant, by preference of the same seeds")
    add("--column", default="zero_noise", help="of forecasts zero_noise, expectation or oracle; of "
        "classification ours or teacher")
    add("--with-column", help="of the other variant, if it is not the same")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main, parse)
