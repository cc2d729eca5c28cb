"""experiments/words.py: BLEU-1 counted by hand, the groups and bins, what is refused."""
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import call, fails, read_json

from experiments import words
from support.errors import InputError
from toy import grammar

WORDS = "experiments/words.py"


def bleu_1(step, phrase):
    """By its definition: each word counts as often as the phrase has it; short steps lose."""
    said, there, hits = step.lower().split(), phrase.lower().split(), 0
    for word in said:
        if word in there:
            hits += 1
            there.remove(word)
    longer = max(len(phrase.split()) - len(said), 0)
    return hits / len(said) * math.exp(-longer / len(said))


def test_the_command_without_its_package(here, monkeypatch, capsys):
    """Catches: a traceback in place of the pip line."""
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    Path("a.txt").write_text("fry egg\nadd salt\n", encoding="utf-8")
    assert fails(capsys, WORDS, "a.txt", "a.txt").endswith("BLEU needs sacrebleu: pip install "
                                                           "sacrebleu")


def test_bleu_equals_counting():
    """Catches: another n-gram, case that matters, smoothing, no penalty for short steps; a word
    that counts twice; the first phrase in place of the best; another word than first or last."""
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    rng = np.random.default_rng(0)
    some = ["Fry", "fry", "egg", "an", "the", "pan,", "salt", "add", "to"]
    texts = [" ".join(rng.choice(some, rng.integers(1, 6))) for _ in range(80)]
    steps, phrases = texts[:30] + ["nothing alike"], texts[30:]
    for found, step in zip(words.overlaps(steps, phrases), steps, strict=True):
        scores = [bleu_1(step, phrase) for phrase in phrases]
        assert found.step == step and found.bleu == pytest.approx(max(scores))
        if found.phrase is None:
            assert max(scores) == 0
        else:
            assert bleu_1(step, found.phrase) == pytest.approx(found.bleu)
        for told, place in ((found.verb, 0), (found.noun, -1)):
            word = step.lower().split()[place]
            same = [phrase for phrase in phrases if phrase.lower().split()[place] == word]
            assert told == list(dict.fromkeys(same))[:5]
    assert found == ("nothing alike", 0, None, [], [])


def test_groups_and_bins():
    """Catches: 0.7 in the lower group or bin, as rounding has it; 1 in no bin; 0.3 * 10 < 3."""
    parts = words.parts_of([0, 0.1, 0.3, 0.7, 0.69, 1, 0.95])
    assert [*parts.values()] == [[3, 5, 6], [0, 1, 2, 4], [0], [1], [], [2], [], [], [4], [3], [],
                                 [5, 6]]
    assert [*parts][2] == "0 to below 0.1" and [*parts][-1] == "0.9 to 1"
    assert words.mean_of([None, 20, 40, 90], [0, 1, 2]) == 30
    assert words.mean_of([None, 20, 40, 90], [0]) is None


def test_the_toy_world(trained, here, capsys):
    """Catches: a JSON of evaluate.py that is not read; scores of other steps; held-out steps that
    the pool has."""
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    Path("steps.txt").write_text("\n".join(grammar.STEPS), encoding="utf-8")
    Path("phrases.txt").write_text("\n".join(grammar.PHRASES), encoding="utf-8")
    for task in "forecast", "classify":
        call("evaluate.py", "--task", task, "--checkpoint", trained / "diffusion", "--toy-videos",
             "4", "--json", f"{task}.json")
    capsys.readouterr()
    call(WORDS, "steps.txt", "phrases.txt", "forecast.json", "classify.json", "--json", "w.json")
    told, content = capsys.readouterr().out, read_json("w.json")
    held_out = [step in grammar.HELD_OUT for step in grammar.STEPS]
    assert [row["bleu"] == 0.5 for row in content["steps"]] == held_out
    assert content["sharing"] == 40 and "40 steps share their first or last word" in told
    bins = content["bleu"]
    assert (bins["at least 0.7"]["steps"], bins["below 0.7"]["steps"]) == (35, 5)
    assert bins["0.5 to below 0.6"] == bins["below 0.7"]
    for task in "forecast", "classify":
        scores, parts = read_json(f"{task}.json")["by_class"], {True: [], False: []}
        for percent, is_held_out in zip(scores, held_out, strict=True):
            if percent is not None:
                parts[is_held_out].append(percent)
        high, low = np.mean(parts[False]), np.mean(parts[True])
        assert bins["at least 0.7"]["right"][f"{task}.json"] == pytest.approx(high)
        assert bins["below 0.7"]["right"][f"{task}.json"] == pytest.approx(low)
        assert f"{task}, % right, {task}.json" in told and f"| {high:.1f} |" in told

    def write(**changes):
        content = read_json("forecast.json") | changes
        Path("bad.json").write_text(json.dumps(content), encoding="utf-8")
        return fails(capsys, WORDS, "steps.txt", "phrases.txt", "bad.json")
    assert "by_class has 3 classes, STEPS.txt 40" in write(by_class=[1, 2, None])
    for wrong in None, "x", [math.nan] * 40, ["a"] * 40, [101] * 40, [[1]] * 40:
        line = write(by_class=wrong)
        assert "bad.json: " in line and "with by_class" in line
    with pytest.raises(InputError, match="KeyError.*'by_class'"):
        Path("bad.json").write_text('{"task": "activity"}', encoding="utf-8")
        words.read_scores("bad.json", 40)
