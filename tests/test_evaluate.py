"""evaluate.py: every number of its tables, counted again by loops from the embeddings."""
import pickle
from argparse import Namespace
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from commands import call, fails, read_json
from test_toy import slow_next
from torch.nn.functional import normalize

import evaluate
import sources
import weights
from data import Step, Unreadable, Video, activity_examples, history_windows
from finetune import with_classifier
from support import encode
from support.arguments import INCLUDED
from support.encode import encode_examples
from support.errors import InputError
from support.metrics import print_lines
from support.workers import read_ahead
from toy import grammar
from toy.source import Toy, load_teacher

Q, FIRST = 3, {b: a for a, b in grammar.LOOK_ALIKES}


def evaluated(*flags, task=None, noise=0.0):
    """The JSON of `python evaluate.py --seed 4 ...` on six test videos, by the included checkpoint,
    or one that is fine-tuned to a task; that model, with its texts; and the examples, with x, what
    the teacher sees, and the right step, the first of look-alikes. noise: in what both see."""
    model, seen = weights.load(INCLUDED), []
    texts, settings = load_teacher("cpu").encode_phrases(grammar.STEPS), model.settings
    if task:
        model = with_classifier(model, task, [40], [*grammar.STEPS], texts).eval()
    model.settings, model.texts = settings | {"toy_videos": 55}, normalize(texts, dim=-1)

    def encode(*args):
        x, n, features, *rest = encode_examples(*args)
        x, features = (clean + noise * draw(*clean.shape, seed=k)
                       for k, clean in enumerate((x, features)))
        seen.append((x, n, features, *rest))
        return seen[0]
    argv = "--toy-videos", "6", "--seed", "4", "--batch", "7", "--device"
    if "--task" not in flags:
        argv = "--samples", str(Q), *argv
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "load", lambda path: model)
        patch.setattr(evaluate, "encode_examples", encode)
        content = evaluate.evaluate(evaluate.parse([*argv, "cpu", "--checkpoint", "x", *flags]))
    x, n, features, examples, _ = seen[0]
    videos = [grammar.make_video("test", i) for i in range(6)]
    return content, model, [SimpleNamespace(
        x=x[i, :n[i]], seen=features[i, :n[i]], label=e.label, step=e.step, windows=e.windows,
        video=e.video, steps=videos[e.video].steps,
        name=FIRST.get(grammar.STEPS[e.label], grammar.STEPS[e.label]))
        for i, e in enumerate(examples)]


def draw(*shape, seed):
    """Standard normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def p_of(model, x):
    """Eq. 6 for one x (D,): probabilities (S,)."""
    scores = (model.texts @ x).double().numpy() / float(x.norm())
    p = np.exp(scores / model.tau)
    return p / p.sum()


def as_one(p):
    """{step: probability} of p (S,), with two look-alikes as one, under the first one's name."""
    sums = Counter()
    for step, value in zip(grammar.STEPS, p):
        sums[FIRST.get(step, step)] += value
    return sums


def best(p, k=1):
    """The k likeliest of {step: probability}."""
    return sorted(p, key=lambda step: (-p[step], step))[:k]


def percent(hits):
    """The mean of hits or chances."""
    return pytest.approx(100 * np.mean([*hits]), rel=1e-4)


def bits(packed, count):
    """The bits of `right` as a list of bool."""
    return np.unpackbits(np.frombuffer(bytes.fromhex(packed), np.uint8))[:count].astype(bool)


def shown(one):
    """What a forecast may know: labels of the steps seen for 1 s, whether from the start."""
    seen = [k for k in range(one.step) if one.steps[k].end - one.windows[0, 0] >= 1]
    return [one.steps[k].label for k in seen], seen[0] == 0


# --- The forecast ---
@torch.no_grad()
def test_forecasts_equal_counting():
    """Catches: samples for zero noise, the mean of log p, noise of another history, padding read; a
    look-alike's probability for both's, classes told apart or not that should be the other way."""
    found, model, examples = evaluated()
    names, noise = [one.name for one in examples], draw(len(examples), Q, model.dim, seed=4)
    zero = [as_one(p_of(model, model.forecast_next(one.x[None], 0 * noise[:1, :1])[0, 0]))
            for one in examples]
    each = [[p_of(model, x_hat) for x_hat in model.forecast_next(one.x[None], eps[None])[0]]
            for one, eps in zip(examples, noise)]
    for name, ps in ("zero_noise", zero), ("expectation", [as_one(np.mean(p, 0)) for p in each]):
        for k in (1, 5):
            hits = [right in best(p, k) for p, right in zip(ps, names)]
            assert found[f"top{k}"][name] == percent(hits)
            if k == 1:
                assert bits(found["right"][name], len(hits)).tolist() == hits
    assert found["top1"]["oracle"] == percent(
        right in sum((best(as_one(p)) for p in row), []) for row, right in zip(each, names))
    assert found["top1"]["oracle_softmax"] == percent(
        1 - (1 - p[right]) ** Q for p, right in zip(zero, names))
    chances = bits(found["right"]["oracle_softmax"], len(names)).mean()
    assert 100 * chances == pytest.approx(found["top1"]["oracle_softmax"], abs=100 / len(names))
    assert found["right"]["per_video"] == [*Counter(one.video for one in examples).values()]
    assert found["baselines"] == {"random": 100 / 37, "teacher": percent(
        best(as_one(p_of(model, one.seen.mean(0)))) == [one.name] for one in examples)}
    own = [[hit for hit, one in zip(bits(found["right"]["zero_noise"], 42), examples)
            if one.label == k] for k in range(40)]
    assert found["by_class"] == [percent(hits) if hits else None for hits in own]
    assert found["classes"] == 37 and found["draws"] == 1 and found["top1_std"] is None
    assert len({len(one.x) for one in examples}) > 4 and found["evaluated"] == len(names) == 42

    found, model, examples = evaluated(task="forecast")       # names are known
    hits = [model.texts @ model.forecast_next(one.x[None], 0 * noise[:1, :1])[0, 0]
            for one in examples]
    assert found["top1"]["zero_noise"] == percent(
        scores.argmax() == one.label for scores, one in zip(hits, examples))
    assert found["baselines"]["random"] == 100 / 40 and found["classes"] == 40


def test_repeats_are_more_draws_of_the_samples(capsys):
    """Catches: the same noise again; a deviation of the examples; the bits of another draw; what is
    of one draw, told as if it were of all."""
    both, one, other = (evaluated(*flags)[0] for flags in (("--repeats", "2"), (), ("--seed", "5")))
    for name, share in one["top1"].items():
        assert both["top1"][name] == pytest.approx((share + other["top1"][name]) / 2)
        apart = abs(share - other["top1"][name])
        assert both["top1_std"][name] == pytest.approx(apart / 2 ** .5)
    assert both["right"] == one["right"] != other["right"] and both["top1_std"]["oracle"] > 0
    assert both["top5"] == one["top5"] and (both["draws"], one["draws"]) == (2, 1)
    print_lines(one, {})
    assert "first draw" not in capsys.readouterr().out
    print_lines(both, {})
    assert "of the first draw alone" in capsys.readouterr().out


@torch.no_grad()
def test_the_truth_equals_a_search_of_the_grammar():
    """Catches: the truth of another video, of steps not observed yet, of look-alikes told apart; a
    place counted from 0; a known history counted as new; --history paper ignored."""
    found, _, examples = evaluated("--history", "paper")
    hits = {"zero_noise": bits(found["right"]["zero_noise"], len(examples))}
    for name, see in ("exact", list), ("set", set):
        hits[name] = [best(as_one(slow_next(*shown(one), see))) == [one.name]
                      for one in examples]
        assert found["truth"][name] == percent(hits[name])
    assert [*found["by_place"]] == [*range(1, 8)]
    new = [slow_next(*shown(one), list, training=True)[one.label] == 0 for one in examples]
    assert 0 < sum(new) < len(new) and found["new"]["evaluated"] == sum(new)
    for name, own in hits.items():
        for k, row in found["by_place"].items():
            at = [hit for hit, one in zip(own, examples) if one.step == k]
            assert row[name] == percent(at) and row["evaluated"] == len(at) == 6
        assert found["new"][name] == percent(np.array(own)[new])
    parts = {name: bits(hits, len(new)).tolist() for name, hits in found["right"]["parts"].items()}
    alike = [grammar.STEPS[one.label] in sum(grammar.LOOK_ALIKES, ()) for one in examples]
    assert parts == {"new": new, "look_alikes": alike, "distinct": [not hit for hit in alike],
                     "held_out": [grammar.STEPS[one.label] in grammar.HELD_OUT for one in examples]}
    assert any(parts["held_out"]) and found["history"] == "paper"
    assert found["truth"]["exact"] > found["truth"]["set"]
    assert all(np.array_equal(one.windows, history_windows(one.windows[-1, 1])) for one in examples)


# --- Classification ---
def test_classify_equals_counting():
    """Catches: the mean of log p, a class counted elsewhere; a look-alike taken for its twin."""
    found, model, examples = evaluated("--task", "classify", noise=0.1)
    twin, steps = FIRST | {a: b for b, a in FIRST.items()}, grammar.STEPS
    for name, views in ("ours", "x"), ("teacher", "seen"):
        ps = [np.mean([p_of(model, view) for view in getattr(one, views)], 0) for one in examples]
        hits = [best(as_one(p)) == [one.name] for p, one in zip(ps, examples)]
        shows = [steps[one.label] for one in examples]
        assert found["top1"][name] == percent(hits)
        assert found["top5"][name] == percent(
            one.name in best(as_one(p), 5) for p, one in zip(ps, examples))
        assert found["held_out"][name] == percent(
            hit for hit, step in zip(hits, shows) if step in grammar.HELD_OUT)
        assert found["look_alikes"][name] == percent(
            p[steps.index(step)] > p[steps.index(twin[step])]
            for p, step in zip(ps, shows) if step in twin)
        for k, value in enumerate(found["by_class"] if name == "ours" else []):
            own = [hit for hit, one in zip(hits, examples) if one.label == k]
            assert value == (percent(own) if own else None)
    assert len(examples) == 48 and {len(one.x) for one in examples} == {3}


# --- Which tasks there are ---
def test_a_data_set_can_do_what_it_has_the_labels_for(monkeypatch):
    """Catches: a task that is registered twice, or taken from other data; arguments changed; a data
    set without labels that is said to be scored."""
    asked = Namespace(task=None, data="epic")
    assert evaluate.task_name(asked) == "actions" and asked.task is None
    assert evaluate.task_name(Namespace(task="classify", data="coin")) == "classify"
    assert evaluate.task_name(Namespace(task=None, data="toy")) == "forecast"
    with pytest.raises(InputError, match="--task activity: --data epic supports only classify"):
        evaluate.task_name(Namespace(task="activity", data="epic"))
    with pytest.raises(InputError, match="--data howto100m has no labels"):
        evaluate.task_name(Namespace(task=None, data="howto100m"))
    monkeypatch.setitem(evaluate.TASKS, "direction", Direction)
    with pytest.raises(InputError, match="--data howto100m supports only direction$"):
        evaluate.task_name(Namespace(task="forecast", data="howto100m"))
    with pytest.raises(InputError, match="--data epic supports only classify, direction$"):
        evaluate.task_name(Namespace(task="forecast", data="epic"))


def test_actions_are_shown_as_in_the_release():
    """Catches: another number of clips, or another length of them."""
    video = Video("P01_01", duration=np.inf, steps=(Step(10.0, 30.0, (3, 7)),))
    one, = evaluate.Actions().examples([video], None, 2)
    assert one.windows.shape == (10, 2) and (np.diff(one.windows) == 2.0).all()
    assert (one.windows[0, 0], one.windows[-1, 1], one.label) == (10.0, 30.0, (3, 7))
    assert evaluate.Actions().classes([video], None) == [97, 300]


def test_activities_are_those_of_the_whole_list():
    """Catches: a classifier without the activities that no training video has, but a test video."""
    assert evaluate.Activity().classes([Video("a", activity=0)], ["soup", "cake", "pie"]) == [3]


def test_the_length_of_a_skipped_video_is_not_asked_for(monkeypatch):
    """Catches: a video of --skip that is opened where a task needs lengths, or counted."""
    source, asked = Toy.of("test", range(3), 4), []
    source.left_out = {"test_00001": ("skipped", "left out by --skip")}
    monkeypatch.setattr(source, "duration", lambda i: asked.append(i) or 9.0)
    assert encode.read_lengths(source) == ({0: 9.0, 2: 9.0}, {}) and asked == [0, 2]


# --- A task without labels ---
class Direction(evaluate.Task):
    """Does h forecast a video's ninth clip better from the eight before it than from the same,
    reversed? Its examples are the lengths of videos."""
    needs_length = needs_h = True
    words = {"forwards": "% better forwards"}

    def examples(self, videos, spacing, min_steps):
        return [one._replace(label=None) for one in activity_examples(videos)]

    def numbers(self, inputs):
        model, x, (M, N, D) = inputs.model, inputs.x, inputs.x.shape
        kept, noise = x[:, :N - 1], torch.zeros(M, 1, D)
        cosines = [(normalize(model.forecast_next(clips, noise)[:, 0], dim=-1) * x[:, -1]).sum(-1)
                   for clips in (kept, kept.flip(1))]
        return {"forwards": 100 * float((cosines[0] > cosines[1]).double().mean())}


def test_a_task_without_labels(trained, here, capsys, monkeypatch):
    """Catches: labels, names or a teacher that are asked for; the length of a list in place of the
    file's; a video that cannot be read, scored, or an example of the next in its place; a number
    that is not printed; a fine-tuning of nothing."""
    monkeypatch.setitem(evaluate.TASKS, "direction", Direction)
    monkeypatch.setattr(sources, "open_teacher", lambda *args: pytest.fail("no teacher is needed"))
    length = Toy.duration

    def duration(self, i):
        if self.videos[i].name == "test_00001":
            raise Unreadable("cut off")
        return length(self, i) / 2
    monkeypatch.setattr(Toy, "duration", duration)
    seen, encode_them = [], encode_examples
    monkeypatch.setattr(evaluate, "encode_examples", lambda *args: (
        seen.extend(args[3]) or encode_them(*args)))
    score = "evaluate.py", "--task", "direction", "--toy-videos", "4", "--json", "a.json"
    flags = "--max-unreadable", "0.5", "--checkpoint"
    call(*score, *flags, trained / "diffusion")
    told, found = capsys.readouterr().out, read_json("a.json")
    assert [one.video for one in seen] == [0, 2, 3] and {one.label for one in seen} == {None}
    ends = [grammar.make_video("test", i).duration / 2 for i in (0, 2, 3)]
    assert [one.windows[-1, 1] for one in seen] == pytest.approx(ends)
    assert (found["listed"], found["evaluated"], found["unreadable"]) == (4, 3, 1)
    assert f"% better forwards           {found['forwards']:.1f}" in told
    assert "right" not in found and found["classes"] is None and found["history"] is None
    assert "cut off" in fails(capsys, *score, "--checkpoint", trained / "diffusion")
    line = fails(capsys, *score, *flags, trained / "none")
    assert "trained without h" in line and "--stage finetune" not in line
    line = fails(capsys, "train.py", "--stage", "finetune", "--task", "direction")
    assert "--task direction: cannot be fine-tuned" in line


def test_a_task_without_labels_reads_any_folder(trained, here, monkeypatch):
    """Catches: captions or annotations that are asked for; the wrong videos."""
    monkeypatch.setitem(evaluate.TASKS, "direction", Direction)
    call("toy", "export", "--out", "world", "--train", "1", "--test", "2")
    call("evaluate.py", "--task", "direction", "--data", "howto100m", "--videos", "world/videos",
         "--checkpoint", trained / "diffusion", "--json", "a.json")
    found = read_json("a.json")
    assert (found["listed"], found["evaluated"], found["absent"]) == (3, 3, 0)


# --- The command ---
KEYS = ("task data split setting order listed evaluated absent unreadable classes samples draws "
        "seed top1 top1_std top5 baselines truth by_place by_class new right history run_seed "
        "checkpoint seconds warning").split()


def test_the_json_is_the_contract(trained, here, monkeypatch):
    """Catches: a key lost; numbers that depend on the batch or on workers; no spawned workers."""
    monkeypatch.setattr(encode, "read_ahead", lambda dataset, *args: (
        pickle.dumps(dataset) and read_ahead(dataset, *args)))             # as for a spawned worker
    flags = "--toy-videos", "2", "--checkpoint", trained / "diffusion", "--json"
    call("evaluate.py", "--task", "forecast", "--oracle", "5", *flags, "a.json")
    call("evaluate.py", *flags, "b.json", "--batch", "3", "--workers", "1", "--micro-batch", "5")
    a, b = read_json("a.json"), read_json("b.json")
    assert {*KEYS} == a.keys()
    assert {*a["by_place"]["7"]} == {"zero_noise", "exact", "set", "evaluated"}
    assert {*a["right"]} == {"zero_noise", "expectation", "oracle", "oracle_softmax",
                             "five_likeliest", "teacher",
                             "exact", "set", "parts", "per_video"}
    assert (a["classes"], a["samples"], a["setting"], a["run_seed"]) == (37, 5, "zero-shot", 0)
    assert a["history"] == "spaced" and len(a["by_class"]) == 40
    for name in "top1", "top5":
        assert a[name] == pytest.approx(b[name], rel=1e-4)
    assert a["right"] == b["right"]
    call("evaluate.py", "--task", "classify", *flags, "c.json")
    c = read_json("c.json")
    for key in "top1", "top5", "held_out", "look_alikes":
        assert {*c[key]} == {"ours", "teacher"}
    assert len(c["by_class"]) == 40 and c["evaluated"] == 16 and c["samples"] is None
    assert {*c["right"]["parts"]} == {"held_out", "look_alikes", "distinct"}
    assert c["top1"]["teacher"] > 60                   # its weights are those of these pictures
    assert c["classes"] == 37 and c["history"] is None


@pytest.mark.parametrize("task, flags", [
    ("classify", "--repeats 1|--samples 5|--oracle 3|--min-steps 2|--history paper|--out F"),
    ("activity", "--repeats 2|--samples 3|--min-steps 3|--history spaced"),
    ("forecast", "--out F"),
    ("features --videos .", "--repeats 1|--oracle 3|--min-steps 9|--history paper|--json F")])
def test_a_flag_of_another_task_is_refused(here, capsys, task, flags):
    """Catches: a flag that is dropped in silence, also one that is given as it is by default; one
    refused where it has an effect."""
    for flag in flags.split("|"):
        line = fails(capsys, "evaluate.py", "--task", *task.split(), *flag.split())
        assert flag.split()[0] in line and f"has no effect on --task {task.split()[0]}" in line
    kept = {"forecast": "--repeats 2 --oracle 3 --min-steps 3 --history paper --json F",
            "features --videos .": "--out F.npz"}.get(task, "--split train --json F --toy-videos 3")
    assert evaluate.parse(["--task", *task.split(), *kept.split()]).task == task.split()[0]
    assert not (here / "F").exists()
