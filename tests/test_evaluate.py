"""evaluate.py: every number of its tables, counted again by loops from the embeddings."""
import pickle
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

import evaluate
import weights
from commands import call, read_json
from data import history_windows, sentence_windows
from finetune import with_classifier
from support import encode
from support.arguments import INCLUDED
from support.encode import encode_examples
from support.workers import read_ahead
from test_toy import slow_next
from toy import grammar, truth
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
    argv = "--toy-videos", "6", "--seed", "4", "--samples", str(Q), "--batch", "7", "--device"
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
    assert found["baselines"] == {"similar": None, "random": 100 / 37, "teacher": percent(
        best(as_one(p_of(model, one.seen.mean(0)))) == [one.name] for one in examples)}
    assert len({len(one.x) for one in examples}) > 4 and found["evaluated"] == len(names) == 42

    found, model, examples = evaluated(task="forecast")       # names are known
    hits = [model.texts @ model.forecast_next(one.x[None], 0 * noise[:1, :1])[0, 0]
            for one in examples]
    assert found["top1"]["zero_noise"] == percent(
        scores.argmax() == one.label for scores, one in zip(hits, examples))
    assert found["baselines"]["random"] == 100 / 40


def test_repeats_are_more_draws_of_the_samples():
    """Catches: the same noise again; a deviation of the examples; the bits of another draw."""
    both, one, other = (evaluated(*flags)[0] for flags in (("--repeats", "2"), (), ("--seed", "5")))
    for name, share in one["top1"].items():
        assert both["top1"][name] == pytest.approx((share + other["top1"][name]) / 2)
        apart = abs(share - other["top1"][name])
        assert both["top1_std"][name] == pytest.approx(apart / 2 ** .5)
    assert both["right"] == one["right"] != other["right"] and both["top1_std"]["oracle"] > 0


@torch.no_grad()
def test_similar_histories_equal_a_search_for_the_nearest():
    """Catches: clips of another video or split; histories compared at their beginning; an answer
    among its clips; fewer neighbors; an annotated step in place of Eq. 6's; another stride."""
    found, model, examples = evaluated("--similar")
    train, rng, histories = Toy.of("train", range(55), 4), np.random.default_rng(4), []
    for i, video in enumerate(train.videos):
        windows = sentence_windows(train.narration(i), video.duration, rng, model.config.stride)
        clips = model.encode(train.clips(i, windows)[0])
        histories += [(clips[max(k - 8, 0):k], p_of(model, clips[k]).argmax())
                      for k in range(1, len(clips))]
    top1, top5, chances = [], [], []
    for one in examples:
        def cosine(history):
            k = min(len(history[0]), len(one.x))           # compared from the end
            dot = (history[0][-k:] * one.x[-k:]).sum()
            return float(dot / history[0].norm() / one.x.norm())
        nearest = sorted(histories, key=cosine, reverse=True)[:50]
        p = as_one(np.bincount([step for _, step in nearest], minlength=40) / 50)
        top1.append(one.name in best(p))
        top5.append(one.name in best(p, 5))
        chances.append(1 - (1 - p[one.name]) ** Q)
    assert found["baselines"]["similar"] == {"top1": percent(top1), "top5": percent(top5),
                                             "oracle": percent(chances)}
    assert bits(found["right"]["similar"], len(top1)).tolist() == top1 and any(top1)
    assert found["by_place"][1]["similar"] == percent(
        hit for hit, one in zip(top1, examples) if one.step == 1)


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
    assert bits(found["right"]["parts"]["new"], len(new)).tolist() == new
    assert found["truth"]["exact"] > found["truth"]["set"]
    assert all(np.array_equal(one.windows, history_windows(one.windows[-1, 1])) for one in examples)


@torch.no_grad()
def test_futures_equal_counting(monkeypatch):
    """Catches: futures without noise, or with another example's; a first step for the whole; other
    observed steps; a future beyond the end. Here the grammar allows half of the futures."""
    def chance(observed, from_start, future):
        return hash((*observed, from_start, *future)) % 2
    monkeypatch.setattr(truth, "DRAWS", 20)
    monkeypatch.setattr(grammar.Grammar(), "chance", chance, raising=False)    # one for all tests
    whole, first = [], []
    found, model, examples = evaluated("--horizon", "2", "--history", "paper")
    for i, one in enumerate(examples):
        if one.step + 2 <= 8:
            x, futures = one.x.expand(20, -1, -1), [[] for _ in range(20)]
            for eps in draw(2, 20, model.dim, seed=4500 + i):
                x_hat = model.forecast_next(x, eps[:, None])                   # (20, 1, D)
                x = torch.cat([x, normalize(x_hat, dim=-1)], 1)[:, -8:]
                for future, row in zip(futures, x_hat[:, 0]):
                    future.append(int((model.texts @ row).argmax()))
            whole += [chance(*shown(one), future) for future in futures]
            first += [chance(*shown(one), future[:1]) for future in futures]
    assert found["futures"] == {"possible": percent(whole), "first": percent(first)}
    assert sum(whole) != sum(first) and len(first) == 6 * 6 * 20
    assert {shown(one)[1] for one in examples if one.step <= 6} == {True, False}


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


# --- The command ---
KEYS = ("task data split setting order listed evaluated absent unreadable classes samples seed "
        "top1 top1_std top5 baselines truth by_place new futures right run_seed checkpoint "
        "seconds").split()
def test_the_json_is_the_contract(trained, here, monkeypatch):
    """Catches: a key lost; numbers that depend on the batch or on workers; no spawned workers."""
    monkeypatch.setattr(truth, "DRAWS", 20)
    monkeypatch.setattr(encode, "read_ahead", lambda dataset, *args: (
        pickle.dumps(dataset) and read_ahead(dataset, *args)))             # as for a spawned worker
    flags = ("--toy-videos", "2", "--checkpoint", trained / "diffusion", "--horizon", "2",
             "--similar", "--json")
    call("evaluate.py", "--task", "forecast", "--oracle", "5", *flags, "a.json")
    call("evaluate.py", *flags, "b.json", "--batch", "3", "--workers", "1", "--micro-batch", "5")
    a, b = read_json("a.json"), read_json("b.json")
    assert {*KEYS} == a.keys() - {"warning"}
    assert {*a["by_place"]["7"]} == {"zero_noise", "exact", "set", "similar", "evaluated"}
    assert (a["classes"], a["samples"], a["setting"], a["run_seed"]) == (40, 5, "zero-shot", 0)
    for name in "top1", "top5", "futures":
        assert a[name] == pytest.approx(b[name], rel=1e-4)
    assert a["right"] == b["right"]
    call("evaluate.py", "--task", "classify", *flags, "c.json")
    c = read_json("c.json")
    for key in "top1", "top5", "held_out", "look_alikes":
        assert {*c[key]} == {"ours", "teacher"}
    assert len(c["by_class"]) == 40 and c["evaluated"] == 16 and c["samples"] is None
    assert c["top1"]["teacher"] > 60                   # its weights are those of these pictures
