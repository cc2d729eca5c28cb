"""experiments/compare.py: the error and margin of a difference by loops; the command."""
import json

import numpy as np
import pytest
import torch

from commands import call, fails
from data import Example
from experiments import compare
from support import metrics


@pytest.mark.parametrize("apart, paired", [(0, False), (.45, False), (0, True)])
def test_the_difference_is_that_of_a_slow_version(apart, paired):
    """Catches: examples taken for independent, a video cut elsewhere, an error left out or counted
    twice, sides paired or not, the freedom of another side, the quantile of the neighbor."""
    rng, M, spans = np.random.default_rng(1), 40, [(a, a + 8) for a in range(0, 40, 8)]
    ours, theirs = ((rng.random((S, M)) < .5 + apart * np.linspace(-1, 1, S)[:, None]).astype(float)
                    for S in (3, 2 + paired))              # the seeds of a side are so far apart
    share = [[100 * sum(line) / M for line in side] for side in (ours, theirs)]
    sides = [[a - b for a, b in zip(*share)]] if paired else share
    mean = [sum(side) / len(side) for side in share]
    each = [100 * (sum(ours[:, m]) / 3 - sum(theirs[:, m]) / len(theirs)) for m in range(M)]
    videos = sum(sum(each[m] - mean[0] + mean[1] for m in range(*at)) ** 2 for at in spans) / M ** 2
    squares = [np.var(side, ddof=1) / len(side) for side in sides]
    seeds = sum(squares)
    freedom = seeds ** 2 / sum(a ** 2 / (len(side) - 1) for a, side in zip(squares, sides))  # Welch
    t, low = (12.71, 4.30, 3.18, 2.78), int(freedom)       # of 1 to 4 degrees, as books print it
    t_seeds = t[low - 1] + (freedom - low) * (t[low] - t[low - 1])
    error = (videos + seeds) ** .5
    assert compare.paired_difference(ours, theirs, range(0, 41, 8), paired) == pytest.approx(
        (mean[0] - mean[1], error, max(2.78 * error, t_seeds * seeds ** .5)))
    assert paired or (t_seeds * seeds ** .5 > 2.78 * error) == bool(apart)     # each decides once


def test_verdicts_and_the_command(tmp_path, capsys):
    """Catches: the rule of another order; bits of another example or column; runs of other videos
    compared; runs that are paired by their files' names, or by the seed of evaluate's noise."""
    for given, said in {(3, 2): "held", (-3, 2): "not held", (.5, .4): "held", (.3, .6): "equal",
                        (1.5, 2): "undecided", (.1, 1): "undecided"}.items():
        assert compare.verdict(*given, 2) == said, given
        assert compare.verdict(*given, 1) == "one run"
    examples = [Example(video, None, 0, 0) for video in (0, 0, 0, 1, 1, 4, 4, 4, 4, 4, 4)]
    bits = torch.tensor([1, 0, 1, 1, 0, 0, 0, 1, 1, 0, 1], dtype=torch.bool)
    part = torch.tensor([1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1], dtype=torch.bool)
    for name, seed, right in ("a", 100, bits), ("b", 99, ~bits), ("c", 99, ~bits), ("d", 100, bits):
        (tmp_path / f"{name}.json").write_text(json.dumps({
            "evaluated": 11, "seed": 0, "run_seed": seed, "right": metrics.pack(
                {"zero_noise": right, "pair": ~right}, examples, {"new": part, "pair": part})}))
    files = [tmp_path / f"{name}.json" for name in "abcd"]
    call("experiments/compare.py", *files[:2], "--with", *files[2:])
    said = capsys.readouterr().out
    assert said.startswith("50.0 and 50.0% right of 11 examples in 3 videos, 2 and 2 seeds\n")
    assert "difference +0.00 ± 0.00" in said               # by seed: a and d, b and c
    for column, shares in (("zero_noise", "54.5 and 45.5% right of 11"), (
            "new.zero_noise", "66.7 and 33.3% right of 3"), ("pair", "33.3 and 66.7% right of 3")):
        call("experiments/compare.py", files[0], "--with", files[1], "--column", column)
        assert shares in capsys.readouterr().out
    once = "experiments/compare.py", files[0], "--with", files[1]
    assert "given twice" in fails(capsys, *once, files[2])
    files[1].write_text(files[1].read_text().replace("[3, 2, 6]", "[3, 3, 5]"))
    assert "other videos" in fails(capsys, *once)
