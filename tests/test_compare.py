"""experiments/compare.py: the error of a paired difference, by simulation, and the command."""
import json

import numpy as np
import pytest
import torch

from commands import call, fails
from data import Example
from evaluation import metrics
from experiments import compare


@pytest.mark.parametrize("seeds", [1, 4])
def test_the_error_of_a_difference_is_that_of_many_trials(seeds):
    """Two models of known difference, simulated: videos differ in how hard they are, and models in
    how good a seed is. Catches: examples taken for independent, or not paired; the error of videos
    or of seeds left out, or counted twice; another sign."""
    rng, V, per, found = np.random.default_rng(0), 60, 5, []
    first = np.arange(0, V * per + 1, per)
    for _ in range(400):
        hard = rng.normal(0, .2, V).repeat(per)                # of the examples of a video
        better = .06 + rng.normal(0, .1, V).repeat(per)        # by which the first is better there
        level = rng.normal(0, .03, (2, seeds, 1)) * (seeds > 1)
        shares = .5 + hard + np.stack([better / 2, -better / 2])[:, None] + level     # (2, S, M)
        ours, theirs = (rng.random(shares.shape) < shares).astype(float)
        found.append(compare.paired_difference(ours, theirs, first))
    difference, error = np.array(found).T
    assert difference.mean() == pytest.approx(6, abs=.3)
    assert np.median(error) == pytest.approx(difference.std(), rel=.2)


def test_verdicts_and_the_command(tmp_path, capsys):
    """Catches: the rule of another order; bits of another example or column; runs of other videos
    compared; seeds that are not paired by their number."""
    for given, said in {(3, 1): "held", (-3, 1): "not held", (.5, .2): "held", (.3, .3): "equal",
                        (1.5, 1): "undecided", (.1, .5): "undecided"}.items():
        assert compare.verdict(*given, [2, 3]) == said, given
        assert compare.verdict(*given, [2, 1]) == "one run"
    examples = [Example(video, None, 0, 0) for video in (0, 0, 0, 1, 1, 4, 4, 4, 4, 4, 4)]
    bits = torch.tensor([1, 0, 1, 1, 0, 0, 0, 1, 1, 0, 1], dtype=torch.bool)
    part = torch.tensor([1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1], dtype=torch.bool)
    for name, seed, right in ("a", 1, bits), ("b", 0, ~bits), ("c", 1, ~bits), ("d", 0, bits):
        (tmp_path / f"{name}.json").write_text(json.dumps({
            "evaluated": 11, "seed": seed, "right": metrics.pack(
                {"zero_noise": right, "pair": ~right}, examples, {"new": part, "pair": part})}))
    files = [tmp_path / f"{name}.json" for name in "abcd"]
    call("experiments/compare.py", *files[:2], "--with", *files[2:])
    said = capsys.readouterr().out
    assert said.startswith("50.0 and 50.0% right of 11 examples in 3 videos, 2 and 2 seeds\n")
    assert "difference +0.00" in said                      # by seed: b and d, a and c
    call("experiments/compare.py", files[0], "--with", files[1])
    assert "54.5 and 45.5%" in capsys.readouterr().out
    call("experiments/compare.py", files[0], "--with", files[1], "--part", "new")
    assert "66.7 and 33.3% right of 3 examples" in capsys.readouterr().out
    call("experiments/compare.py", files[0], "--with", files[1], "--column", "pair")
    assert "33.3 and 66.7% right of 3 examples" in capsys.readouterr().out
    assert "there are pair, zero_noise" in fails(capsys, "experiments/compare.py", files[0],
                                                 "--with", files[1], "--column", "x")
    files[1].write_text(files[1].read_text().replace("[3, 2, 6]", "[3, 3, 5]"))
    assert "other videos" in fails(capsys, "experiments/compare.py", files[0], "--with", files[1])
