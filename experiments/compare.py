"""Compare runs on the same examples: `python -m experiments.compare A.json ... --with B.json ...`.

The files are those of evaluate.py --json, or of experiments.probes, one for each run. The
difference is taken example by example, which cancels how hard each is. The squares of two errors
are added: over videos (examples of one depend on each other) and over the S seeds of a side. The
margin of a verdict is 1.96 times this error, but at least the error over seeds times Student's t,
since few seeds tell little:

    above, below   the difference is above the margin; below minus the margin
    equal          the difference, plus or minus the margin, is within one point
    undecided      none of these; or "one run": a side has one seed, whose spread is not known

In simulations of equal models (1,000 videos of 7 examples, whose runs differ by 0.3 to 4 points) it
found a difference in 1 to 7%: with three or five paired seeds, with five and three, ten and five,
or ten and three.
"""
import json
from itertools import pairwise
from pathlib import Path
from statistics import variance

import numpy as np

from support.arguments import Parser
from support.errors import require, run_command
from support.read import fields_of, read_text

# The 97.5% quantile of Student's t for 1, 2, ... 30 degrees of freedom, and for any more.
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14,
           2.13, 2.12, 2.11, 2.10, 2.09, 2.09, 2.08, 2.07, 2.07, 2.06, 2.06, 2.06, 2.05, 2.05, 2.05,
           2.04, 1.96)


def bits_of(text, count):
    """The first `count` of hexadecimal bits, as support/metrics.py packs them: (count,) bool."""
    return np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8))[:count].astype(bool)


def read_right(path, column):
    """Read which examples a JSON has right, all or of a PART.COLUMN ("look_alikes" is both): (M,)
    of 0 or 1; the first example of each video, then M, (V + 1,); the run's seed."""
    with fields_of(path, f"expected a JSON of evaluate.py, or of probes, with {column}"):
        content = json.loads(read_text(path))
        right, count = content["right"], content["evaluated"]
        first = np.cumsum([0] + right["per_video"])
        part, _, name = column.rpartition(".")
        if name in right["parts"]:
            part = name
        chosen = np.ones(count, bool)
        if part:
            chosen = bits_of(right["parts"][part], count)
        before = np.append(0, chosen.cumsum())             # chosen before each example
        hits = bits_of(right[name], count)[chosen].astype(float)
        return hits, before[first], content["run_seed"]


def paired_difference(ours, theirs, first, paired):
    """Return the difference of the shares right, its standard error and its margin, in points.

    ours, theirs: (S, M) of 0 or 1, one line for each seed, where S may differ; paired: whether line
    s of both is of the same seed. first (V + 1,): the number of each video's first example, then M.
    """
    # 1. Over videos.
    each = 100 * (ours.mean(0) - theirs.mean(0))                               # (M,) points
    difference, M, V = each.mean(), len(each), len(first) - 1
    of_videos = np.array([(each[a:b] - difference).sum() for a, b in pairwise(first)])     # (V,)

    # 2. Over seeds: of one line of differences, or of each side.
    sides = [100 * ours.mean(1), 100 * theirs.mean(1)]                         # (S,) each
    if paired:
        sides = [sides[0] - sides[1]]
    seeds = spread = 0.0                                   # seeds: square of the error over seeds
    for side in sides:
        if len(side) > 1:
            square = variance(side) / len(side)
            seeds += square
            spread += square ** 2 / (len(side) - 1)
    freedom = seeds ** 2 / spread if spread else 1         # S - 1, or Welch's of two sides

    # 3. Both.
    t, t_seeds = np.interp((V - 1, freedom), range(1, len(STUDENT) + 1), STUDENT)
    error = ((of_videos ** 2).sum() / M ** 2 + seeds) ** 0.5
    margin = max(t * error, t_seeds * seeds ** 0.5)
    return float(difference), float(error), float(margin)


def verdict(difference, margin, seeds):
    """Return the verdict on a difference and its margin, in points. seeds: the fewest of a side."""
    if seeds == 1:
        return "one run"
    if abs(difference) > margin:
        return "above" if difference > 0 else "below"
    return "equal" if abs(difference) + margin <= 1 else "undecided"


def read_side(paths, column):
    """Read the files of a side -> {seed: which examples are right, (M,)}, by seed,
    and the first example of each video, then M, (V + 1,). InputError for a seed that is there
    twice, or for other videos."""
    found, first = {}, None
    for path in paths:
        right, at, seed = read_right(path, column)
        if first is None:
            first = at
        require(np.array_equal(first, at), f"{path}: was measured on other videos than {paths[0]}; "
                "give the same --data, --split and --toy-videos")
        require(seed not in found, f"{path}: the run of seed {seed} is given twice")
        found[seed] = right
    return {seed: found[seed] for seed in sorted(found, key=str)}, first


def compare(ours, theirs, column, with_column):
    """Compare two lists of files -> what is printed: shares in percent, differences in points.
    Seeds are paired if both sides have the same."""
    a, first = read_side(ours, column)
    b, of_theirs = read_side(theirs, with_column)
    require(np.array_equal(first, of_theirs), f"{theirs[0]}: was measured on other videos than "
            f"{ours[0]}; give the same --data, --split and --toy-videos")
    right = [np.stack(list(side.values())) for side in (a, b)]                 # (S, M) each
    difference, error, margin = paired_difference(right[0], right[1], first, list(a) == list(b))
    found = {"ours": 100 * right[0].mean(), "theirs": 100 * right[1].mean()}
    found |= {"difference": difference, "error": error, "margin": margin}
    found["seeds"] = f"{len(a)} and {len(b)}"
    found["verdict"] = verdict(difference, margin, min(len(a), len(b)))
    found["examples"], found["videos"] = right[0].shape[1], len(first) - 1
    return found


def main(args):
    """Print the two shares, their difference with its error, and the verdict."""
    found = compare(args.ours, args.theirs, args.column, args.with_column or args.column)
    print("{ours:.1f} and {theirs:.1f}% right of {examples} examples in {videos} videos, {seeds} "
          "seeds\ndifference {difference:+.2f} ± {error:.2f}, margin {margin:.2f}: "
          "{verdict}".format(**found))


def parse(argv=None):
    """The command line."""
    parser = Parser("Which of two variants is right more often, by how much, and how sure is that?")
    add = parser.add_argument
    add("ours", type=Path, nargs="+", metavar="A.json", help="of evaluate.py --json or "
        "experiments.probes, one per run")
    add("--with", dest="theirs", type=Path, nargs="+", required=True, metavar="B.json", help="the "
        "other variant's, preferably of the same seeds")
    add("--column", default="zero_noise", help="zero_noise, oracle, ours, look_alikes ...; only a "
        "part of the examples: new.zero_noise (forecasts), held_out.ours (classification)")
    add("--with-column", help="of the other variant, if it is not the same")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run_command(main, parse)
