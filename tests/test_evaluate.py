"""evaluate.py: every number of its tables, counted again by loops from the embeddings."""
import itertools
import pickle
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

import evaluate
import model as method
import weights
from commands import call, fails, read_json
from data import Unreadable, classify_examples, history_windows, sentence_windows
from files.features import find_rows
from files.video import read_clips
from finetune import with_classifier
from sources import DATA
from support import encode
from support.arguments import INCLUDED
from support.encode import encode_examples
from support.workers import read_ahead
from test_toy import slow_next
from toy import grammar, truth
from toy.source import ToySource, load_teacher

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
    """Catches: samples for zero noise, the mean of log p, noise of another history, a clip that is
    padding; the larger of two look-alikes' probabilities for their sum, or only one of them right;
    another M in the closed form; classes told apart or not that should be the other way."""
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
    """Catches: the same noise again; a deviation of the examples for that of the draws; the bits of
    another draw than the first."""
    both, one, other = (evaluated(*flags)[0] for flags in (("--repeats", "2"), (), ("--seed", "5")))
    for name, share in one["top1"].items():
        assert both["top1"][name] == pytest.approx((share + other["top1"][name]) / 2)
        apart = abs(share - other["top1"][name])
        assert both["top1_std"][name] == pytest.approx(apart / 2 ** .5)
    assert both["right"] == one["right"] != other["right"] and both["top1_std"]["oracle"] > 0


@torch.no_grad()
def test_similar_histories_equal_a_search_for_the_nearest():
    """Catches: clips of another video or split, or not each video's; histories compared at their
    beginning, or padded on the other side; an answer among its clips; fewer neighbors; a step of
    the annotation in place of Eq. 6's; another stride."""
    found, model, examples = evaluated("--similar")
    train, rng, histories = ToySource("train", range(55), 4), np.random.default_rng(4), []
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
    """Catches: the truth of another video, of steps not observed yet, or with look-alikes told
    apart; a place counted from 0, or of another example; a history that training videos have
    counted as new, or only its last step looked at; --history paper ignored."""
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
    """Catches: futures without noise, or with that of another example; a first step for the whole;
    other observed steps; a future beyond the end of a video. Here the grammar allows half of the
    futures."""
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
    """Catches: the mean of log p over views, a class counted elsewhere, held-out steps mixed; a
    look-alike's own name that need not be likelier than its twin's."""
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


def test_actions_need_verb_and_noun_and_rank_pairs():
    """Catches: an action right for its verb alone; pairs ranked by sums; views of log p."""
    V, U, M = 4, 5, 300
    log_p = [(4 * draw(M, 2, n, seed=n)).log_softmax(-1) for n in (V, U)]
    labels = torch.stack([torch.arange(M) % V, torch.arange(M) % U], 1)
    model = SimpleNamespace(classify=lambda x: log_p)
    rows = evaluate.action_lines(SimpleNamespace(model=model, x=None, labels=labels))
    verb, noun = (p.exp().mean(1).numpy() for p in log_p)
    for k in (1, 5):
        hits = []
        for p, q, (v, u) in zip(verb, noun, labels.tolist()):
            pairs = sorted(((a, b) for a in range(V) for b in range(U)),
                           key=lambda pair: -p[pair[0]] * q[pair[1]])
            hits.append((v, u) in pairs[:k])
        assert rows[f"top{k}"]["action"] == percent(hits)
    assert rows["top1"]["verb"] == percent(verb.argmax(1) == labels[:, 0].numpy())
    assert rows["top1"]["noun"] == percent(noun.argmax(1) == labels[:, 1].numpy())


# --- The command ---
KEYS = ("task data split setting order listed evaluated absent unreadable classes samples seed "
        "top1 top1_std top5 baselines truth by_place new futures right run_seed checkpoint "
        "seconds").split()
COLUMNS = ["zero_noise", "exact", "set", "similar"]
NESTED = {
    "top1": ["zero_noise", "expectation", "oracle", "oracle_softmax"],
    "top5": ["zero_noise", "expectation"],
    "baselines": ["random", "teacher", "similar"], "truth": ["exact", "set"],
    "new": ["evaluated", *COLUMNS], "futures": ["possible", "first"]}


def test_the_json_is_the_contract(trained, here, monkeypatch):
    """Catches: a key renamed or lost; numbers that depend on the batch or on workers; workers that
    cannot be spawned, as on macOS and Windows."""
    monkeypatch.setattr(truth, "DRAWS", 20)
    monkeypatch.setattr(encode, "read_ahead", lambda dataset, *args: (
        pickle.dumps(dataset) and read_ahead(dataset, *args)))             # as for a spawned worker
    flags = ("--toy-videos", "2", "--checkpoint", trained / "diffusion", "--horizon", "2",
             "--similar", "--json")
    call("evaluate.py", "--task", "forecast", "--oracle", "5", *flags, "a.json")
    call("evaluate.py", *flags, "b.json", "--batch", "3", "--workers", "1", "--micro-batch", "5")
    a, b = read_json("a.json"), read_json("b.json")
    assert {*KEYS} == a.keys() - {"warning"}
    assert {part: {*a[part]} for part in NESTED} == {part: {*keys} for part, keys in NESTED.items()}
    assert {*a["by_place"]["7"]} == {*COLUMNS, "evaluated"}
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


def test_the_included_checkpoint_forecasts(here, capsys):
    """Catches: weights, a scale or a spacing of another version of the code; an order that it did
    not learn; more lines than a reader wants."""
    call("evaluate.py", "--toy-videos", "60", "--json", "a.json")
    found, told = read_json("a.json"), capsys.readouterr().out
    top1, truth = found["top1"], found["truth"]
    assert 60 < top1["zero_noise"] <= truth["exact"] + 5 and top1["oracle"] > top1["zero_noise"]
    assert f"{top1['zero_noise']:.1f}" in told and "no runs/pretrain: the included" in told
    assert len(told.splitlines()) <= 20 and found["checkpoint"] == str(INCLUDED)


def test_features_of_videos(trained, here, capsys):
    """Catches: a window twice or not at all, embeddings of other windows or videos."""
    call("toy", "export", "--out", "world", "--train", "1", "--test", "1")
    flags = "--task", "features", "--videos", "world/videos", "--checkpoint", trained / "none"
    call("evaluate.py", *flags, "--out", "f.npz")
    model = weights.load(trained / "none")
    for name in "train_00000", "test_00000":
        path, own = here / f"world/videos/{name}.mp4", find_rows("f.npz")[name]
        windows = own.spans
        assert np.allclose(np.diff(windows.mean(1)[2:-2]), 4) and windows[0, 0] == 0
        assert len(windows) == np.ceil((windows.max() - 2) / 4) > 8
        x = model.encode(read_clips(path, model.encoder, windows)).detach()
        np.testing.assert_allclose(x, own.embedding, atol=1e-5)
        path.write_bytes(b"damaged")
    assert "2 of 2 videos are unreadable" in fails(capsys, "evaluate.py", *flags)
    assert "needs --videos" in fails(capsys, "evaluate.py", *flags[:2])


def test_what_a_checkpoint_cannot_do_is_one_line(trained, here, capsys):
    """Catches: a traceback, or a score for a task that the checkpoint was not trained for; texts of
    one teacher matched with embeddings trained on another's; NaN scored."""
    model = weights.load(trained / "mask")
    torch.nn.init.constant_(model.encoder.head.bias, torch.nan)
    weights.save("nan.pt", model)
    flags = "--toy-videos", "1", "--checkpoint", "nan.pt"
    assert "scores are not finite" in fails(capsys, "evaluate.py", *flags, status=1)
    model.phrases[0] = model.phrases[1]                # as another teacher embeds the first phrase
    weights.save("other.pt", model)
    for checkpoint, flags, words in (
            ("none", ("--task", "forecast"), "--order none"),
            ("mask", ("--task", "activity"), "is not fine-tuned"),
            ("mask", ("--data", "coin"), "needs --annotations and --videos"),
            ("mask", ("--videos", "x"), "no --videos; another --data"),
            ("mask", ("--data", "epic", "--task", "forecast"), "epic can only classify"),
            ("mask", ("--data", "epic"), "--task classify --data epic"),
            (here / "other.pt", ("--toy-videos", "1"), "another teacher")):
        assert words in fails(capsys, "evaluate.py", *flags, "--checkpoint", trained / checkpoint)


def test_what_cannot_be_read_is_counted_and_not_scored(trained, here, capsys, monkeypatch):
    """Catches: a score of some videos that is called one of all; too many unreadable ones."""
    whole = ToySource.clips

    def clips(self, i, windows, rng=None):
        if i == 1:
            raise Unreadable("cut off")
        return whole(self, i, windows, rng)
    monkeypatch.setattr(ToySource, "clips", clips)
    flags = "--task", "classify", "--toy-videos", "2", "--checkpoint", trained / "mask"
    call("evaluate.py", *flags, "--max-unreadable", "0.5", "--json", "a.json")
    content = read_json("a.json")
    assert (content["evaluated"], content["listed"], content["unreadable"]) == (8, 16, 1)
    assert "cut off" in fails(capsys, "evaluate.py", *flags)


def test_a_fine_tuned_checkpoint_is_compared_with_what_is_known(trained, here, capsys):
    """Catches: a flag of pre-training that fine-tuned runs lack; what only the toy world knows left
    out elsewhere, in silence."""
    call("train.py", "--stage", "finetune", "--task", "forecast", "--toy-videos", "8", "--epochs",
         "1", "--init", trained / "diffusion", "--out", "run")
    call("evaluate.py", "--toy-videos", "2", "--checkpoint", "run", "--similar", "--json", "a.json")
    found = read_json("a.json")
    assert found["setting"] == "fine-tuned" and found["baselines"]["similar"]["top5"] > 0
    call("toy", "export", "--out", "world", "--train", "1", "--test", "1")
    coin = "--data", "coin", "--annotations", "world/COIN.json", "--videos", "world/videos"
    for flags in ("--similar",), ("--horizon", "3"):
        assert "--data coin has no truth" in fails(capsys, "evaluate.py", *coin, *flags,
                                                   "--checkpoint", trained / "diffusion")


@pytest.mark.parametrize("program, flags", [
    ("evaluate.py", ("--samples", "--oracle", "--horizon", "--batch", "--toy-videos")),
    ("predict.py", ("--samples", "--horizon"))])
def test_nought_is_refused(here, capsys, program, flags):
    """Catches: a traceback far away, a mean of nothing."""
    for flag in flags:
        line = fails(capsys, program, flag, "0")
        assert flag in line and "0: must be above 0" in line


@pytest.mark.parametrize("part", [None, "denoiser", "encoder"])
def test_a_new_task_is_one_line(trained, here, capsys, monkeypatch, part):
    """Which step came before the one that is shown: fine-tuned, scored, and refused where it has no
    examples. Catches: a task's name, epochs or frames that are also written elsewhere."""
    monkeypatch.setitem(evaluate.TASKS, "previous", evaluate.Task(
        examples=lambda videos, spacing, min_steps: [
            one._replace(label=videos[one.video].steps[one.step - 1].label)
            for one in classify_examples(videos) if one.step > 0],
        read=evaluate.next_clip, trained=part, views=part != "denoiser", epochs=2.0,
        lines=lambda asked: evaluate.accuracies({"ours": evaluate.match_labels(
            asked.model, asked.x.mean(1), asked.texts)}, asked.labels),
        frames=6 if part == "encoder" else None))
    call("train.py", "--stage", "finetune", "--task", "previous", "--toy-videos", "8", "--init",
         trained / "diffusion", "--out", "run")
    assert weights.checkpoint.read("run")["step"] == 2     # of 56 examples each
    assert weights.load("run").encoder.frames == (6 if part == "encoder" else 4)
    for checkpoint in ("run", trained / "diffusion")[:1 if part == "encoder" else 2]:
        call("evaluate.py", "--task", "previous", "--toy-videos", "3", "--checkpoint", checkpoint,
             "--json", "a.json")
        found = read_json("a.json")
        assert {*found["top1"]} == {"ours"} and found["evaluated"] == 21
    assert "fine-tuned for previous" in fails(capsys, "evaluate.py", "--checkpoint", "run")
    monkeypatch.setitem(DATA, "own", DATA["toy"]._replace(tasks={"guess": "previous"}))
    score = "evaluate.py", "--toy-videos", "3", "--checkpoint", "run", "--task"
    call(*score, "guess", "--data", "own")                 # a task that this --data alone has
    assert "own can only guess" in fails(capsys, *score, "forecast", "--data", "own")
    assert "toy can only forecast, classify, activity" in fails(capsys, *score, "guess")
    assert "invalid choice: 'previous'" in fails(capsys, *score, "previous")
    monkeypatch.delitem(DATA, "own")
    csv = "--data", "coin", "--annotations", "a.csv", "--videos", "x"
    assert "no list is released for --task previous" in fails(capsys, *score, "previous", *csv)


@torch.no_grad()
def test_how_many_clips_f_takes_at_once_changes_no_result(trained, monkeypatch):
    """Catches: more pictures than the memory is for, or far fewer; clips lost between two parts."""
    at_once, gpu = method.clips_at_once, torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_properties",
                        lambda device: SimpleNamespace(total_memory=12e9))
    for frames, size in (8, 224), (16, 224), (32, 224), (4, 32), (3, 100), (300, 224):
        f = SimpleNamespace(frames=frames, image=size)
        for device, pictures in (None, 192), (gpu, 96):    # of 224 pixels: half the memory
            fits = next(k for k in itertools.count()
                        if (k + 1) * frames * size ** 2 > pictures * 224 ** 2)
            assert at_once(f, None, device) == max(fits, 1)
        assert at_once(f, 7, gpu) == 7 and at_once(f, 0) > 10 ** 6
    assert at_once(SimpleNamespace(frames=0, image=0)) > 10 ** 6               # features
    model, source, sizes = weights.load(trained / "diffusion"), ToySource("test", [0], 4), []
    windows = np.concatenate([history_windows(end, 3.0) for end in (30, 40, 50, 60)])
    clips, _ = source.clips(0, windows)                                        # (32, F, 3, H, W)
    whole = model.encode(clips)                                                # (32, D)
    model.encoder.register_forward_pre_hook(lambda f, given: sizes.append(len(given[0])))
    monkeypatch.setattr(method, "PICTURES", 1)             # 12 clips of 4 x 32 x 32 pixels
    for size in None, 9:
        torch.testing.assert_close(method.encode_parts(model, clips, size), whole)
    assert sizes == [12, 12, 8, 9, 9, 9, 5]
