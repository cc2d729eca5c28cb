"""experiments/probes.py: similar histories and futures, counted again by loops."""
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from commands import call, fails, read_json
from test_evaluate import FIRST, Q, as_one, best, bits, draw, p_of, percent, shown
from torch.nn.functional import normalize

import weights
from data import sentence_windows
from experiments import compare, probes
from support.arguments import INCLUDED
from support.encode import encode_examples
from toy import grammar
from toy.source import Toy, load_teacher


def probed(*flags, history="spaced", count=6):
    """The JSON of `python -m experiments.probes` for six test videos and the included checkpoint,
    as if it were trained on 55; that model, with its texts; and the forecasts."""
    model, seen = weights.load(INCLUDED), []
    model.settings, model.config.history = model.settings | {"toy_videos": 55}, history
    model.texts = normalize(load_teacher("cpu").encode_phrases(grammar.STEPS), dim=-1)

    def encode(*args):
        seen.append(encode_examples(*args))
        return seen[-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "load", lambda path: model)
        patch.setattr(probes, "encode_examples", encode)
        found = probes.probe(probes.parse(["x", "--toy-videos", str(count), "--seed", "4",
                                           "--device", "cpu", *flags]))
    (x, n, _, examples, _), rows = seen[0], []
    for i, one in enumerate(examples):
        name = grammar.STEPS[one.label]
        rows.append(SimpleNamespace(
            x=x[i, :n[i]], step=one.step, windows=one.windows, name=FIRST.get(name, name),
            steps=grammar.make_video("test", one.video).steps))
    return found, model, rows


@torch.no_grad()
def test_similar_histories_equal_a_search_for_the_nearest(monkeypatch):
    """Catches: clips of another video or split; histories compared at their beginning; an answer
    among its clips; fewer neighbors; an annotated step in place of Eq. 6's; another stride."""
    monkeypatch.setattr(probes, "sampled_futures", lambda *args: None)
    found, model, examples = probed("--samples", str(Q))
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
    similar, right = found["similar"], found["right"]
    assert (similar["top1"], similar["top5"], similar["oracle"]) == (
        percent(top1), percent(top5), percent(chances))
    assert bits(right["similar"], len(top1)).tolist() == top1 and any(top1)
    drawn = 100 * bits(right["similar_oracle"], len(top1)).mean()
    assert drawn == pytest.approx(similar["oracle"], abs=100 / len(top1))
    assert [*similar["by_place"]] == [*range(1, 8)]
    assert similar["by_place"][1] == {"evaluated": 6, "similar": percent(
        hit for hit, one in zip(top1, examples) if one.step == 1)}
    new = bits(right["parts"]["new"], len(top1))
    assert similar["new"] == {"evaluated": new.sum(), "similar": percent(np.array(top1)[new])}
    assert found["classes"] == 37 and found["evaluated"] == len(top1) == sum(right["per_video"])


@torch.no_grad()
def test_futures_equal_counting(monkeypatch):
    """Catches: futures without noise, or with another example's; a first step for the whole; other
    observed steps; a future beyond the end; one look-alike alone. Here the grammar allows half of
    the futures."""
    def chance(observed, from_start, future):
        return hash((*observed, from_start, *future)) % 2
    monkeypatch.setattr(probes, "DRAWS", 8)
    monkeypatch.setattr(probes, "similar_histories", lambda model, x, *args: (
        torch.full((len(x), 40), 1 / 40)))
    monkeypatch.setattr(grammar.Grammar(), "chance", chance, raising=False)    # one for all tests
    whole, first = [], []
    found, model, examples = probed("--horizon", "2", history="paper")
    assert found["history"] == "paper"
    for i, one in enumerate(examples):
        if one.step + 2 <= 8:
            x, futures = one.x.expand(8, -1, -1), [[] for _ in range(8)]
            for eps in draw(2, 8, model.dim, seed=4500 + i):
                x_hat = model.forecast_next(x, eps[:, None])                   # (8, 1, D)
                x = torch.cat([x, normalize(x_hat, dim=-1)], 1)[:, -8:]
                for future, row in zip(futures, x_hat[:, 0]):
                    name = best(as_one(p_of(model, row)))[0]
                    future.append([k for k, step in enumerate(grammar.STEPS)
                                   if FIRST.get(step, step) == name])
            for future in futures:
                whole.append(max(chance(*shown(one), ids) for ids in itertools.product(*future)))
                first.append(max(chance(*shown(one), (step,)) for step in future[0]))
    assert found["futures"] == {"possible": percent(whole), "first": percent(first)}
    assert sum(whole) != sum(first) and len(first) == 6 * 6 * 8
    assert {shown(one)[1] for one in examples if one.step <= 6} == {True, False}
    assert probed("--horizon", "8")[0]["futures"] is None


def test_the_command_and_what_it_refuses(trained, here, capsys, monkeypatch):
    """Catches: a key lost; numbers that compare cannot read beside those of evaluate.py; a model
    without h, of real videos, or tuned for something else."""
    monkeypatch.setattr(probes, "DRAWS", 20)
    few, probe = ("--toy-videos", "3"), "experiments/probes.py"
    call(probe, trained / "diffusion", *few, "--json", "a.json")
    told, found = capsys.readouterr().out, read_json("a.json")
    assert {*found} == {"similar", "futures", "right", "evaluated", "classes", "history", "seed",
                        "run_seed", "checkpoint"}
    assert {*found["similar"]} == {"top1", "top5", "oracle", "by_place", "new"}
    assert f"similar histories, % right  {found['similar']['top1']:.1f}" in told
    assert f"futures possible       {found['futures']['possible']:.1f}" in told
    call("evaluate.py", "--checkpoint", trained / "diffusion", *few, "--json", "b.json")
    b = read_json("b.json")
    right, first, seed = compare.read_right("a.json", "new.similar")
    assert len(right) == b["new"]["evaluated"] and seed == b["run_seed"]
    assert found["right"]["parts"] == b["right"]["parts"]
    assert compare.compare(["b.json"], ["a.json"], "zero_noise", "similar")["examples"] == 21
    call(probe, trained / "none", *few, "--json", "n.json")
    assert read_json("n.json")["futures"] is None and read_json("n.json")["similar"]["top5"] > 0
    model = weights.load(trained / "diffusion")
    model.config.clip = "ViT-B-16"
    weights.save("real.pt", model)
    assert "is no run of the toy world" in fails(capsys, probe, "real.pt", *few)
    call("train.py", "--stage", "finetune", "--toy-videos", "4", "--epochs", "1", "--init",
         trained / "diffusion", "--out", "tuned")
    assert "is fine-tuned for classify" in fails(capsys, probe, "tuned", *few)
