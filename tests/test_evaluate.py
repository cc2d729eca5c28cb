"""evaluate.py: every number of its tables, counted again by loops from known embeddings."""
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

import evaluate
import weights
from commands import call, fails, read_json
from data import Loaded, examples_of, paper_rows
from evaluation import metrics, tasks
from evaluation.inference import extend_history, sample_in_turn
from evaluation.labeled import list_videos, warn_of_data
from files.video import read_clips
from losses import match
from model import ProcedureModel
from support.errors import InputError
from test_lists import coin, entry
from test_rows import slow_forecast_rows, slow_steps
from toy import grammar
from toy.source import ToySource
from weights.checkpoint import save

S, D, Q, TAU = len(grammar.STEPS), 24, 3, 0.4


def draw(*shape, seed=0):
    """Standard normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


TEXTS = normalize(draw(S, D), dim=-1)


class Model:
    """A forecast of clip j is the text of the step whose number is one above that of the observed
    clip before it, or one below that of the clip after it; noise is added to it."""
    task, order, dim, classes, tau, scores = None, "diffusion", D, [], TAU, "paper"
    settings = {"data": "toy", "toy_videos": 15}
    encoder = SimpleNamespace(frames=1)
    forecast_next = ProcedureModel.forecast_next

    def match(self, x, texts=None):
        return match(x, TEXTS if texts is None else texts, TAU)

    def standardize(self, x):
        return 3 * x - 1

    def encode(self, clips):
        return clips

    def forecast(self, x, observed, j, noise):
        rows = []
        for b, place in enumerate(j.tolist()):
            near = place - 1 if place and observed[b, place - 1] else place + 1
            step = int((TEXTS @ x[b, near]).argmax()) + (1 if near < place else -1)
            rows.append(TEXTS[step % S] + 0.25 * noise[b])
        return torch.stack(rows)


class Source:
    """In place of ToySource: clips are the texts of the step at their middle, with noise."""

    def __init__(self, split, count, *_):
        self.videos = self.listed = [grammar.make_video(split, i) for i in range(count)]
        self.absent, self.unreadable = [], {}

    def clip(self, video, middle):
        step = min(self.videos[video].steps, key=lambda s: abs((s.start + s.end) / 2 - middle))
        return TEXTS[step.label] + 0.1 * draw(D, seed=int(100 * middle) + 7919 * video)

    def load(self, requests, rng=None):
        clips = [self.clip(video, float(middle)) for video, windows in requests
                 for middle in windows.mean(-1)]
        return Loaded(requests, torch.stack(clips), torch.empty(0), {})

    def pretrain_windows(self, video, rng):
        windows = np.array([step[:2] for step in self.videos[video].steps[:4]])
        return windows.repeat(2, 0)                    # two clips of each of its first steps


def read_of(task, noise=0.0):
    """tasks.Read of a task on the fake source. The teacher sees labels in much noise."""
    source = Source("test", 12)
    examples = examples_of(task, source.videos)
    loaded = source.load([(e.video, e.windows) for e in examples])
    x = loaded.clips.unflatten(0, (len(examples), -1))
    labels = torch.tensor([e.label for e in examples])
    teacher = TEXTS[labels][:, None] + 0.5 * draw(*x.shape, seed=9)
    return tasks.Read(source, examples, labels, x + noise * draw(*x.shape, seed=8), teacher, TEXTS)


def p_of(x, temperature=1.0):
    """Eq. 6: probabilities (S,) of one embedding, at a temperature."""
    scores = (TEXTS @ x).numpy() / (np.linalg.norm(TEXTS, axis=1) * np.linalg.norm(x))
    p = np.exp(scores.astype(float) / TAU / temperature)
    return p / p.sum()


def softened(p, temperature):
    """Probabilities at another temperature."""
    q = np.exp(np.log(p) / temperature)
    return q / q.sum()


ARGS = SimpleNamespace(samples=Q, seed=4, batch=7, data="toy", toy_videos=12, horizon=2)


def near(value):
    """For an assertion: this number, or these numbers, but for rounding."""
    return pytest.approx(value, rel=1e-4)


def percent(found, labels):
    """How many of the guesses are right."""
    return near(100 * np.mean([a == b for a, b in zip(found, labels, strict=True)]))


@pytest.fixture(scope="module")
def table():
    """The forecast table on the fake source, all forecasts compared by 20 draws; by loops p (M, S)
    of zero noise at each temperature, and `samples`, p (M, Q, S) of noise."""
    read = read_of("forecast", 0.2)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("ToySource", Source), ("COMPARED", 999), ("SHARE", 1), ("DRAWS", 20)):
            patch.setattr(tasks, name, value)
        rows = evaluate.forecast(Model(), read, ARGS)
    answers = [TEXTS[(int((TEXTS @ x[-1]).argmax()) + 1) % S] for x in read.x]
    return SimpleNamespace(
        rows=rows, read=read, y=read.labels.tolist(),
        softmax={T: [p_of(x, T) for x in answers] for T in metrics.TEMPERATURES},
        samples=lambda noise: [[p_of(x + 0.25 * e) for e in eps] for x, eps in zip(answers, noise)])


def test_the_forecast_table_equals_counting(table):
    """Catches: samples for zero noise, the mean of log p, another M in the closed form; a draw of
    another sample's probabilities, or at another temperature."""
    y, top1 = table.y, table.rows["top1"]
    samples = table.samples(draw(len(y), Q, D, seed=4))
    for name, ps in {"zero_noise": table.softmax[1.],
                     "expectation": [np.mean(p, 0) for p in samples]}.items():
        assert top1[name] == percent([p.argmax() for p in ps], y)
        five = [label in np.argsort(-p)[:5] for p, label in zip(ps, y)]
        assert table.rows["top5"][name] == near(100 * np.mean(five))
    picks = [{int(p.argmax()) for p in row} for row in samples]
    assert top1["oracle"] == near(100 * np.mean([a in row for row, a in zip(picks, y)]))
    assert top1["oracle_softmax"] == near(max(
        100 * np.mean([1 - (1 - p[label]) ** Q for p, label in zip(ps, y)])
        for ps in table.softmax.values()))
    assert top1["oracle_draws"] == near(max(
        100 * np.mean([1 - np.prod([1 - softened(p, T)[label] for p in row])
                       for row, label in zip(samples, y)]) for T in metrics.TEMPERATURES))
    for name in "oracle", "oracle_draws", "oracle_softmax":        # of draws, as many as on average
        bits = np.unpackbits(np.frombuffer(bytes.fromhex(table.rows["right"][name]), np.uint8))
        assert 100 * bits[:len(y)].mean() == pytest.approx(top1[name], abs=100 / len(y))
    assert table.rows["distinct"] == near(np.mean([len(row) for row in picks]))


def slow_neighbors(histories, queries):
    """Shares of the steps (S,) that followed the 50 histories nearest to each query."""
    after = []
    for query in queries:
        def cosine(one):
            return float((one[0] * query).sum() / one[0].norm() / query.norm())
        nearest = sorted(histories, key=cosine, reverse=True)[:50]
        after.append(np.bincount([step for _, step in nearest], minlength=S) / len(nearest))
    return np.array(after)


def test_the_baselines_equal_counting(table):
    """Catches: another clip of a training video, or another split; a history of other clips than
    h's, not standardized; fewer neighbors; f's clips for the teacher's."""
    train, histories, model = Source("train", 15), [], Model()
    for video in range(15):
        windows = train.pretrain_windows(video, None)
        clips = [train.clip(video, float(middle)) for middle in windows.mean(1)]
        steps = [int(p_of(clip).argmax()) for clip in clips]
        for row, _ in slow_forecast_rows(windows, slow_steps(range(len(clips)), steps)):
            histories.append((model.standardize(torch.stack([clips[i] for i in row[:8]])),
                              steps[row[8]]))
    after = slow_neighbors(histories, model.standardize(table.read.x))
    found, similar = table.rows["baselines"], table.rows["baselines"]["similar"]
    assert similar["top1"] == percent([p.argmax() for p in after], table.y) and len(histories) > 40
    assert similar["top5"] > similar["top1"] and 0 < similar["tv"] < 1
    assert similar["oracle"] == near(max(100 * np.mean([
        1 - (1 - softened(p.clip(1e-3), T)[label]) ** Q for p, label in zip(after, table.y)])
        for T in metrics.TEMPERATURES))
    assert metrics.neighbor_forecast(torch.empty(0, 8, D), torch.empty(0, dtype=torch.int64),
                                     torch.ones(2, 8, D), 4).eq(1 / 4).all()
    teacher = [p_of(x.mean(0)).argmax() for x in table.read.teacher]
    assert found["teacher"] == percent(teacher, table.y) and found["random"] == 100 / S


def test_the_truth_equals_counting(table):
    """Catches: a truth of another video, or of steps not observed yet; a temperature that is no
    favor; the table's own samples drawn again."""
    world = {name: grammar.Grammar(name) for name in grammar.KNOWN}
    known, y, found = {name: [] for name in world}, table.y, table.rows["truth"]
    for e in table.read.examples:
        steps = table.read.source.videos[e.video].steps
        shown = [k for k in range(e.step) if steps[k].end - e.windows[0, 0] >= 1]
        for name in known:
            known[name].append(world[name].next_step([steps[k].label for k in shown],
                                                     shown[0] == 0))
    other = dict(grammar.LOOK_ALIKES) | {b: a for a, b in grammar.LOOK_ALIKES}
    other = [grammar.STEP_ID[other.get(step, step)] for step in grammar.STEPS]
    for name, key in ("sequence", "bayes_unnamed"), ("set", "bayes_set_unnamed"):
        means = [[(q[k] + q[other[k]]) / 2 for k in range(S)] for q in known[name]]
        assert found[key] == percent(np.argmax(means, 1), y)
        guessed = tasks.names_guessed(torch.from_numpy(np.array(known[name])))
        torch.testing.assert_close(guessed, torch.tensor(means, dtype=torch.float64))
    noise = torch.cat([draw(len(y), 10, D, seed=seed) for seed in (4001, 4002)], 1)
    shares = [np.bincount([p.argmax() for p in row], minlength=S) / 20
              for row in table.samples(noise)]
    truth = known["sequence"]

    def apart(ps):
        return [abs(p - q).sum() / 2 for p, q in zip(ps, truth)]
    for name, ps in known.items():
        key = "bayes_top1" if name == "sequence" else f"bayes_{name}"
        assert found[key] == percent([p.argmax() for p in ps], y)
    assert found["bayes_top1"] > found["bayes_set"] > found["bayes_last"]
    assert found["tv_error"] == near(np.std(apart(shares), ddof=1) / len(y) ** 0.5)
    assert found["tv"] == near(np.mean(apart(shares)))
    assert found["tv_softmax"] == near(min(np.mean(apart(p)) for p in table.softmax.values()))
    zero = table.softmax[1.]
    assert found["possible_next"]["zero_noise"] == near([
        100 * np.mean([q[p.argmax()] > 0 for p, q in zip(zero, truth)]),
        100 * np.mean([p[q > 0].sum() for p, q in zip(zero, truth)])])
    assert 0 <= found["tv_ideal"] < 0.5 and found["ideal_oracle"] > found["bayes_top1"]


def merged(p):
    """{step: probability} of p (S,), with two look-alikes as one, under the first one's name."""
    sums = dict(zip(grammar.STEPS, p))
    for a, b in grammar.LOOK_ALIKES:
        sums[a] += sums.pop(b)
    return sums


def test_look_alikes_count_as_one_and_new_forecasts_apart(table):
    """Catches: the larger of two probabilities for their sum; another number of draws; a history
    that training videos have counted as new, or only its last step looked at."""
    names = [grammar.STEPS[k] for k in table.y]
    names = [next((a for a, b in grammar.LOOK_ALIKES if name == b), name) for name in names]
    draws = [[merged(p) for p in row] for row in table.samples(draw(len(names), Q, D, seed=4))]
    zero = [merged(p) for p in table.softmax[1.]]
    found = table.rows["by_pair"]
    assert found["zero_noise"] == percent([max(p, key=p.get) for p in zero], names)
    assert found["oracle"] == near(100 * np.mean([
        name in {max(p, key=p.get) for p in row} for row, name in zip(draws, names)]))
    assert found["bayes_top1"] >= table.rows["truth"]["bayes_top1"]
    assert found["ideal_oracle"] >= found["bayes_top1"]
    trained = {names for _, names in sum(grammar.PROCEDURES.values(), [])
               if not grammar.is_new(names)}
    new, hits = [], table.rows["new"]
    for e in table.read.examples:
        video = table.read.source.videos[e.video].steps
        steps = [grammar.STEPS[step.label] for step in video]
        shown = [k for k in range(e.step) if video[k].end - e.windows[0, 0] >= 1]
        piece = tuple(steps[shown[0]:e.step + 1])
        new.append(not any(piece == names[i:i + len(piece)] for names in trained
                           for i in ([0] if shown[0] == 0 else range(1, 8))))
    right = [p.argmax() == y for p, y in zip(table.softmax[1.], table.y)]
    assert hits["evaluated"] == sum(new) > 0
    assert hits["zero_noise"] == near(100 * np.mean([a for a, b in zip(right, new) if b]))


def test_the_futures_equal_counting(monkeypatch):
    """Catches: futures without noise, or with that of another example; a first step for the whole;
    other observed steps; a future beyond the end of a video; short histories that count as long
    ones. The grammar here allows what makes a sum odd."""
    def chance(observed, from_start, future):
        return (sum(observed) + from_start + sum(future)) % 2

    def sample(model, x, seconds, *more):
        lengths.append(seconds)
        return sample_in_turn(model, x, seconds, *more)
    for name, value in (("grammar", SimpleNamespace(Grammar=lambda: SimpleNamespace(
            chance=chance))), ("DRAWS", 20), ("sample_in_turn", sample)):
        monkeypatch.setattr(tasks, name, value)
    read, possible, first, lengths, ends = read_of("forecast", 0.2), [], [], [], []
    for i, e in enumerate(read.examples):
        steps = read.source.videos[e.video].steps
        if e.step + 2 <= len(steps):
            ends.append(min(68, steps[e.step - 1].end))
            shown = [k for k in range(e.step) if steps[k].end - e.windows[0, 0] >= 1]
            before = [steps[k].label for k in shown], shown[0] == 0
            for eps in draw(2, 20, D, seed=4500 + i).transpose(0, 1):          # of one future
                x, future = read.x[i, -1], []
                for noise in eps:
                    x = TEXTS[(int((TEXTS @ x).argmax()) + 1) % S] + 0.25 * noise
                    future.append(int((TEXTS @ x).argmax()))
                possible.append(chance(*before, future))
                first.append(chance(*before, future[:1]))
    rows = tasks.futures(Model(), read, ARGS)
    assert rows == {"possible": near(100 * np.mean(possible)), "first": near(100 * np.mean(first))}
    assert 500 < sum(possible) != sum(first) and len(first) <= 20 * tasks.FUTURES
    assert lengths == near(ends) and max(lengths) == 68 > min(lengths)
    assert tasks.futures(Model(), read, SimpleNamespace(horizon=20, seed=0)) is None


def test_classify_equals_counting():
    """Catches: the mean of log p over views, a class counted elsewhere, held-out steps mixed."""
    read = read_of("classify", 0.4)
    rows = tasks.classify(Model(), read, ARGS)
    for name, x in (("ours", read.x), ("teacher", read.teacher)):
        found = [np.mean([p_of(view) for view in views], 0).argmax() for views in x]
        assert rows["top1"][name] == percent(found, read.labels)
        chosen = [i for i, k in enumerate(read.labels) if grammar.STEPS[k] in grammar.HELD_OUT]
        assert rows["held_out"][name] == percent([found[i] for i in chosen], read.labels[chosen])
        hits = []
        for own, other in sum(([pair, pair[::-1]] for pair in grammar.LOOK_ALIKES), []):
            a, b = grammar.STEP_ID[own], grammar.STEP_ID[other]
            for p in [np.mean([p_of(view) for view in views], 0)
                      for views, k in zip(x, read.labels) if k == a]:
                hits.append(p[a] > p[b])
        assert rows["look_alikes"][name] == near(100 * np.mean(hits)) and len(hits) > 12
        ps = [merged(np.mean([p_of(view) for view in views], 0)) for views in x]
        names = [grammar.STEPS[grammar.ALIKE[k]] for k in read.labels]
        assert rows["by_pair"][name] == percent([max(p, key=p.get) for p in ps], names)
    assert len(rows["by_class"]) == S


def test_infill_equals_counting():
    """Catches: another label, clip or position; a video that was read in part alone; steps of
    another video among the nine, or not those around the missing one."""
    read, right, kinds = read_of("infill"), [], []
    read.source.unreadable = {read.source.videos[0].name: "cut off"}
    for i, e in enumerate(read.examples):              # labels as forecast, but for a third or two
        steps, k = [step.label for step in read.source.videos[e.video].steps], e.step
        wrong = e.video % 3 < 1 + (k == 0)
        read.labels[i] = ((steps[k - 1] + 1 if k else steps[1] - 1) + wrong) % S
        if e.video > 0:
            right.append(not wrong)
            kinds.append(0 if k == 0 else 2 if k == len(steps) - 1 else 1)
    rows = evaluate.infill(Model(), read, ARGS)
    assert rows["evaluated"] == len(right)
    assert rows["top1"]["zero_noise"] == near(100 * np.mean(right))
    exact = []                                             # one of each two ends is certain
    for i, e in enumerate(read.examples):
        steps = [grammar.STEPS[step.label] for step in read.source.videos[e.video].steps]
        chances = {}
        for p, names in sum(grammar.PROCEDURES.values(), []):
            if [*names[:e.step], *names[e.step + 1:]] == steps[:e.step] + steps[e.step + 1:]:
                chances[names[e.step]] = chances.get(names[e.step], 0) + p
        best = max(sorted(chances), key=chances.get)
        if e.video > 0:
            exact.append(grammar.STEP_ID[best] == read.labels[i])
    assert rows["truth"]["bayes_top1"] == near(100 * np.mean(exact))
    for kind, value in enumerate(rows["by_position"]):
        assert value == near(100 * np.mean([hit for hit, k in zip(right, kinds) if k == kind]))
    long = list(range(3, 15))
    for (row, j), k in zip(paper_rows([[0, 1, 2], long]), [0, 1, 2, *long], strict=True):
        first = 0 if k < 3 else min(max(k - 4, 3), 6)
        nine = [0, 1, 2] + 6 * [-1] if k < 3 else [*range(first, first + 9)]
        assert row == nine and row[j] == k


def test_actions_need_verb_and_noun_and_rank_pairs():
    """Catches: an action right for its verb alone; pairs ranked by sums; views of log p; one view,
    where the release averages ten."""
    V, U, M = 4, 5, 300
    log_p = [(4 * draw(M, 2, n, seed=n)).log_softmax(-1) for n in (V, U)]
    model = SimpleNamespace(classify=lambda x: log_p)
    labels = torch.stack([torch.arange(M) % V, torch.arange(M) % U], 1)
    read = tasks.Read(None, [], labels, draw(M, 2, D), None, None)
    rows = tasks.actions(model, read, ARGS)
    verb, noun = (p.exp().mean(1).numpy() for p in log_p)
    for k in (1, 5):
        hits = []
        for p, q, (v, u) in zip(verb, noun, labels.tolist()):
            pairs = sorted(((a, b) for a in range(V) for b in range(U)),
                           key=lambda pair: -p[pair[0]] * q[pair[1]])
            hits.append((v, u) in pairs[:k])
        assert rows[f"top{k}"]["action"] == near(100 * np.mean(hits))
    assert rows["top1"]["verb"] == percent(verb.argmax(1), labels[:, 0].numpy())
    views = evaluate.examples_in([grammar.make_video("test", 0)], SimpleNamespace(data="epic"))
    assert {len(example.windows) for example in views} == {10}


def test_ids_without_a_step_are_said(tmp_path, capsys):
    """Catches: classes without a name that compete in silence; fewer names than classes."""
    path = tmp_path / "COIN.json"
    path.write_text(coin(a=entry(("1", [1, 2], "fold"), ("3", [3, 4], "cut"), subset="testing")))
    args = SimpleNamespace(annotations=path, data="coin", task="forecast", steps=None)
    assert list_videos(args, "test", [*"abc"])[1] == ["fold", "", "cut"]
    assert "1 of 3 ids are in no annotation" in capsys.readouterr().out
    args.annotations = tmp_path / "a.csv"              # of a fine-tuned checkpoint, names are known
    args.annotations.write_text("a 0 30 0 9\nb 1 30 0 9\n")
    assert list_videos(args, "test", [*"abc"])[1] == [*"abc"]
    with pytest.raises(InputError, match="the checkpoint: 1 names, but 2 classes"):
        list_videos(args, "test", ["a"])


def test_data_of_another_kind_is_warned_of():
    """Catches: a score of a checkpoint that knows other videos, without a word; a false alarm."""
    model = SimpleNamespace(pixels=(.4, .25), settings={}, encoder=SimpleNamespace(image=32))
    assert "toy world" in warn_of_data(model, False) and not warn_of_data(model, True)
    model.settings["data"] = "coin"                    # fine-tuned
    assert "small model" in warn_of_data(model, False)
    model.encoder.image = 224
    assert warn_of_data(model, False) is None


def test_a_forecast_enters_the_history_as_nine_seconds():
    """Catches: a forecast that is not observed afterwards, or for another time; another length."""
    x, step = draw(2, 8, 5), draw(2, 5, seed=1)
    for seconds in (20.0, 60.0, 68.0):
        longer, covered = extend_history(x, seconds, step)
        assert covered == min(seconds + 9, 68)
        for i in range(8):
            middle = seconds + 9 - covered + covered * (i + .5) / 8
            old = step if middle >= seconds else x[:, int(middle // (seconds / 8))]
            assert torch.equal(longer[:, i], old)


def test_topk_equals_sorting_by_score_then_index():
    """Catches: ties broken otherwise, or for the label; NaN scored."""
    scores = (4 * torch.rand(300, 7, generator=torch.Generator().manual_seed(0))).floor()
    labels = torch.arange(300) % 7
    for k in (1, 3, 7, 9):
        slow = [label in sorted(range(7), key=lambda c: (-row[c], c))[:k]
                for row, label in zip(scores.tolist(), labels.tolist())]
        assert metrics.topk_correct(scores, labels, k).tolist() == slow
    with pytest.raises(FloatingPointError, match="not finite"):
        metrics.topk_correct(torch.tensor([[0., math.nan]]), torch.tensor([0]), 1)


# --- The command ---
KEYS = ["task", "data", "split", "setting", "order", "listed", "evaluated", "absent", "unreadable",
        "classes", "samples"]
NESTED = {
    "top1": ["zero_noise", "expectation", "oracle", "oracle_draws", "oracle_softmax"],
    "top5": ["zero_noise", "expectation"],
    "baselines": ["random", "teacher", "similar"],
    "by_pair": ["zero_noise", "bayes_top1", "oracle", "ideal_oracle"],
    "new": ["evaluated", "zero_noise", "similar", "bayes_top1"],
    "truth": ["bayes_top1", "bayes_set", "bayes_set_last", "bayes_last_two", "bayes_last",
              "bayes_alike", "bayes_unnamed", "bayes_set_unnamed", "ideal_oracle", "tv", "tv_error",
              "tv_ideal", "tv_softmax", "possible_next"],
    "futures": ["possible", "first"]}


def test_the_json_is_the_contract(trained, here, monkeypatch, capsys):
    """Catches: a key renamed or lost; numbers that depend on the batch or on workers; infilling
    that ends in a traceback; a number that is not printed; a flag of scores that changes nothing.
    """
    monkeypatch.setattr(tasks, "DRAWS", 20)
    flags = "--toy-videos", "2", "--checkpoint", trained / "diffusion", "--horizon", "2"
    call("evaluate.py", "--task", "forecast", "--oracle", "5", *flags, "--json", "a.json")
    call("evaluate.py", *flags, "--batch", "3", "--workers", "1", "--json", "b.json")
    a, b = read_json("a.json"), read_json("b.json")
    assert [*a][:11] == KEYS and [*a][-4:] == ["warning", "seed", "checkpoint", "seconds"]
    assert a["warning"] is None
    assert {part: [*a[part]] for part in NESTED} == NESTED and "distinct" in a
    for name in ("top1", "top5", "futures"):
        assert a[name] == near(b[name])
    assert a["baselines"]["similar"] == near(b["baselines"]["similar"])
    assert a["truth"]["tv"] == near(b["truth"]["tv"])
    classify = "--task", "classify", "--toy-videos", "9", "--checkpoint", trained / "diffusion"
    for scores in "debiased", "paper":
        call("evaluate.py", *classify, "--scores", scores, "--json", f"{scores}.json")
    assert read_json("debiased.json")["top5"] != read_json("paper.json")["top5"]
    capsys.readouterr()
    call("evaluate.py", "--task", "infill", "--toy-videos", "4", "--checkpoint", trained / "mask",
         "--json", "c.json")
    c, lines = read_json("c.json"), capsys.readouterr().out.splitlines()
    assert [*c["top1"]] == NESTED["top1"] and c["evaluated"] == c["listed"] > 10
    printed = [f"evaluated {c['evaluated']}"]
    printed += [f"{metrics.WORDS[name]} {value:.2f}" for name, value in c["top1"].items()]
    assert {*printed} <= {" ".join(line.split()) for line in lines}


def test_features_of_videos(trained, here, capsys):
    """Catches: a window twice or not at all, embeddings of other windows or videos, no warning."""
    call("toy", "export", "--out", "world", "--train", "1", "--test", "1")
    call("evaluate.py", "--task", "features", "--videos", "world/videos", "--checkpoint",
         trained / "none", "--out", "f.npz")
    told = capsys.readouterr().out
    assert "warning: this checkpoint knows only the toy world" in told and "no `teacher`" in told
    file, model = np.load("f.npz"), weights.load(trained / "none")
    assert {*file["video"]} == {"train_00000", "test_00000"}
    for name in {*file["video"]}:
        rows = file["video"] == name
        windows = np.stack([file["start"], file["end"]], 1)[rows]
        clips = read_clips(here / f"world/videos/{name}.mp4", model.encoder, windows)
        assert np.allclose(np.diff(windows.mean(1)[2:-2]), 4)
        assert len(windows) == np.ceil((windows.max() - 2) / 4) > 8
        np.testing.assert_allclose(model.encode(clips).detach(), file["embedding"][rows], atol=1e-5)
    for video in Path("world/videos").glob("*.mp4"):
        video.write_bytes(b"damaged")
    line = fails(capsys, "evaluate.py", "--task", "features", "--videos", "world/videos",
                 "--checkpoint", trained / "none")
    assert "2 of 2 videos are unreadable" in line


def test_what_a_checkpoint_cannot_do_is_one_line(trained, here, capsys):
    """Catches: a traceback, or a score for a task that the checkpoint was not trained for; texts of
    one teacher matched with embeddings trained on another's."""
    model = weights.load(trained / "mask")
    model.phrases[0] = model.phrases[1]                # as another teacher embeds the first phrase
    save("other.pt", model)
    for checkpoint, flags, words in (
            ("none", ("--task", "forecast"), "--order none"),
            ("mask", ("--task", "activity"), "is not fine-tuned"),
            ("mask", ("--data", "coin"), "needs --annotations and --videos"),
            ("mask", ("--videos", "x"), "--data toy reads no --videos"),
            ("mask", ("--data", "epic", "--task", "infill"), "--data epic"),
            (here / "other.pt", (), "another teacher")):
        line = fails(capsys, "evaluate.py", *flags, "--checkpoint", trained / checkpoint)
        assert words in line
    call("evaluate.py", "--toy-videos", "2", "--task", "classify")         # the default checkpoint


def test_what_cannot_be_read_is_counted_and_not_scored(trained, here, capsys, monkeypatch):
    """Catches: a score of some videos that is called one of all; too many unreadable ones."""
    whole = ToySource.load

    def load(self, requests, rng=None):
        kept = [request for request in requests if request[0] != 1]
        failed = {"test_00001": "cut off"} if len(kept) < len(requests) else {}
        return whole(self, kept, rng)._replace(failed=failed)
    monkeypatch.setattr(ToySource, "load", load)
    flags = "--task", "classify", "--toy-videos", "2", "--checkpoint", trained / "mask"
    call("evaluate.py", *flags, "--max-unreadable", "0.5", "--json", "a.json")
    content, lost = read_json("a.json"), len(grammar.make_video("test", 1).steps)
    assert content["evaluated"] == content["listed"] - lost and content["unreadable"] == 1
    assert "cut off" in fails(capsys, "evaluate.py", *flags)
