"""evaluate.py: every number of its tables, counted again by loops from known embeddings."""
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

import weights
from commands import call, fails, read_json
from data import Loaded, examples_of
from evaluation import forecasting, metrics, table, tasks
from evaluation.inference import extend_history, sample_in_turn
from losses import match
from model import ProcedureModel
from toy import grammar
from toy.source import ToySource
from weights.checkpoint import save

S, D, Q, TAU = len(grammar.STEPS), 24, 3, 0.2


def draw(*shape, seed=0):
    """Standard normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


TEXTS = normalize(draw(S, D), dim=-1)


class Model:
    """A forecast of clip j is the text of the step whose number is one above that of the observed
    clip before it, or one below that of the clip after it; noise is added to it."""
    task, order, dim, classes = None, "diffusion", D, []
    encoder, denoiser = SimpleNamespace(frames=1), SimpleNamespace(clips=9)
    forecast_next = ProcedureModel.forecast_next

    def match(self, x, texts):
        return match(x, texts, TAU)

    def encode(self, clips):
        return clips

    def forecast(self, x, observed, j, noise):
        rows = []
        for b, place in enumerate(j.tolist()):
            near = place - 1 if place and observed[b, place - 1] else place + 1
            step = int((TEXTS @ x[b, near]).argmax()) + (1 if near < place else -1)
            rows.append(TEXTS[step % S] + 0.25 * noise[b])
        return torch.stack(rows)


def videos_of(split, count):
    """Videos of the embedded world."""
    return [grammar.make_video(split, i) for i in range(count)]


class Source:
    """In place of ToySource: clips are the texts of the step at their middle, with noise."""

    def __init__(self, split, count, *_):
        self.videos = self.listed = videos_of(split, count)
        self.absent, self.unreadable = [], {}

    def __len__(self):
        return len(self.videos)

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


def read_of(task, count=12):
    """tasks.Read of a task on the fake source; the teacher's features are f's, halved."""
    source = Source("test", count)
    examples = examples_of(task, source.videos)
    loaded = source.load([(e.video, e.windows) for e in examples])
    x = loaded.clips.unflatten(0, (len(examples), -1))
    labels = torch.tensor([e.label for e in examples])
    return tasks.Read(source, examples, labels, x, x / 2 + 0.2 * draw(*x.shape, seed=9), TEXTS)


def p_of(x, temperature=1.0):
    """Eq. 6 by loops: probabilities (S,) of one embedding, at a temperature."""
    scores = [float(x @ y) / (float(x.norm()) * float(y.norm())) / TAU / temperature for y in TEXTS]
    return np.exp(scores) / np.exp(scores).sum()


ARGS = SimpleNamespace(samples=Q, seed=4, batch=7, data="toy", toy_videos=15, horizon=2)


def test_the_forecast_table_equals_counting(monkeypatch):
    """Catches: samples for zero noise, the mean of log p, another M in the closed form, counts of
    clips for counts of steps, a truth of another video, a temperature that is no favor."""
    monkeypatch.setattr(forecasting, "ToySource", Source)
    monkeypatch.setattr(forecasting, "COMPARED", 10_000)
    monkeypatch.setattr(forecasting, "SHARE", 1)       # all are compared
    monkeypatch.setattr(forecasting, "DRAWS", 20)
    read, model = read_of("forecast"), Model()
    rows = tasks.forecast(model, read, ARGS, "cpu")
    M, y = len(read.labels), read.labels.tolist()
    noise = draw(M, Q, D, seed=4)
    more = torch.cat([draw(M, 10, D, seed=4001), draw(M, 10, D, seed=4002)], 1)
    last = [int((TEXTS @ x[-1]).argmax()) for x in read.x]
    zero = [p_of(TEXTS[(s + 1) % S]) for s in last]
    samples = [[p_of(TEXTS[(s + 1) % S] + 0.25 * e) for e in eps] for s, eps in zip(last, noise)]
    drawn = [[p_of(TEXTS[(s + 1) % S] + 0.25 * e).argmax() for e in eps]
             for s, eps in zip(last, more)]
    mean = [np.mean(p, 0) for p in samples]

    def percent(hits):
        return pytest.approx(100 * sum(hits) / len(hits))

    def in_top5(p):
        return [label in np.argsort(-q)[:5] for q, label in zip(p, y)]
    top = rows["top1"]
    assert top["zero_noise"] == percent([p.argmax() == label for p, label in zip(zero, y)])
    assert top["expectation"] == percent([p.argmax() == label for p, label in zip(mean, y)])
    assert top["oracle"] == percent([label in [p.argmax() for p in row]
                                     for row, label in zip(samples, y)])
    softmax = {T: [p_of(TEXTS[(s + 1) % S], T) for s in last] for T in (.5, .7, 1.)}
    assert top["oracle_softmax"] == pytest.approx(max(
        100 * np.mean([1 - (1 - p[label]) ** Q for p, label in zip(ps, y)])
        for ps in softmax.values()), rel=1e-4)
    assert rows["top5"]["zero_noise"] == percent(in_top5(zero))
    assert rows["top5"]["expectation"] == percent(in_top5(mean))
    assert rows["distinct"] == pytest.approx(np.mean([
        len({p.argmax() for p in row}) for row in samples]))
    # The bigrams count each step of a training video once, although it has two clips of each.
    counts, seen, train = np.zeros((S, S)), np.zeros(S), Source("train", 15)
    for video in range(15):
        middles = train.pretrain_windows(video, None).mean(1)
        shown = [int((TEXTS @ train.clip(video, float(m))).argmax()) for m in middles]
        for one in shown:
            seen[one] += 1
        for before, after in zip(shown, shown[1:]):
            counts[before, after] += before != after
    follows = np.array([row if row.any() else counts.sum(0) for row in counts])
    follows /= follows.sum(1, keepdims=True)
    found = rows["baselines"]
    posterior = [p_of(x[-1]) for x in read.x]
    assert found["bigram"] == percent([
        follows[p.argmax()].argmax() == label for p, label in zip(posterior, y)])
    assert found["bigram_soft"] == percent([
        (p @ follows).argmax() == label for p, label in zip(posterior, y)])
    assert found["unigram"] == percent([seen.argmax() == label for label in y])
    assert found["clip"] == percent([
        p_of(x.mean(0)).argmax() == label for x, label in zip(read.teacher, y)])
    assert found["random"] == 100 / S
    # The truth.
    exact, truth = grammar.Grammar(), []
    for e in read.examples:
        steps = read.source.videos[e.video].steps
        shown = [k for k in range(e.step) if steps[k].end - e.windows[0, 0] >= 1]
        truth.append(exact.next_step([steps[k].label for k in shown], shown[0] == 0))
    found = rows["truth"]
    assert found["bayes_top1"] == percent([p.argmax() == label for p, label in zip(truth, y)])
    shares = [np.bincount(row, minlength=S) / 20 for row in drawn]
    assert found["tv"] == pytest.approx(np.mean([
        abs(p - q).sum() / 2 for p, q in zip(shares, truth)]), rel=1e-5)
    assert found["tv_softmax"] == pytest.approx(min(np.mean([
        abs(p - q).sum() / 2 for p, q in zip(ps, truth)]) for ps in softmax.values()), rel=1e-4)
    assert found["nll"]["draws"] == pytest.approx(np.mean([
        -math.log(max(p[label], .001)) for p, label in zip(shares, y)]), rel=1e-5)
    assert found["nll"]["softmax"] == pytest.approx(min(np.mean([
        -math.log(max(p[label], .001)) for p, label in zip(ps, y)]) for ps in softmax.values()),
        rel=1e-4)
    assert found["possible_next"]["zero_noise"] == pytest.approx([
        100 * np.mean([q[p.argmax()] > 0 for p, q in zip(zero, truth)]),
        100 * np.mean([p[q > 0].sum() for p, q in zip(zero, truth)])], rel=1e-4)
    assert 0 <= found["tv_ideal"] < 0.5 and found["ideal_oracle"] > found["bayes_top1"]
    assert 0 <= rows["futures"]["possible"] <= rows["futures"]["first"] <= 100


def test_classify_equals_counting():
    """Catches: the mean of log p over views, a class counted elsewhere, held-out steps mixed."""
    read = read_of("classify")
    rows = tasks.classify(Model(), read, ARGS, "cpu")
    for name, x in (("ours", read.x), ("teacher", read.teacher)):
        p = [np.mean([p_of(view) for view in views], 0) for views in x]
        hits = np.array([q.argmax() == label for q, label in zip(p, read.labels.tolist())])
        assert rows["top1"][name] == pytest.approx(100 * hits.mean())
        names = [grammar.STEPS[label] for label in read.labels]
        for kind, steps in (("held_out", grammar.HELD_OUT),
                            ("motion_only", sum(grammar.MOTION_ONLY, ()))):
            of_kind = np.array([step in steps for step in names])
            assert rows[kind][name] == pytest.approx(100 * hits[of_kind].mean())
    assert len(rows["by_class"]) == S


def test_infill_reads_the_nine_steps_around_the_missing_one():
    """Catches: steps of another video, j not at the missing step, prior and future exchanged."""
    counts = [3, 12, 9]
    steps = [(first, count, k) for first, count in zip((0, 3, 15), counts) for k in range(count)]
    for (first, count, k), row, real, j, kind in zip(steps, *tasks.infill_rows(counts),
                                                     strict=True):
        read = row[real].tolist()
        assert read == [*range(read[0], read[0] + min(count, 9))]
        assert first <= read[0] and read[-1] < first + count and row[j] == first + k
        assert count != 12 or not 4 <= k <= 7 or j == 4                    # in the middle
        assert tasks.PLACES[kind] == ("first" if k == 0 else
                                      "last" if k == count - 1 else "middle")


def test_infill_equals_counting():
    """Catches: another label, clip or position; a video that was read in part alone."""
    read = read_of("infill")
    read.source.unreadable = {read.source.videos[0].name: "cut off"}
    rows, hits, kinds = tasks.infill(Model(), read, ARGS, "cpu"), [], []
    for video in read.source.videos[1:]:
        labels = [step.label for step in video.steps]
        for k, label in enumerate(labels):
            guess = labels[k - 1] + 1 if k else labels[1] - 1
            hits.append(guess % S == label)
            kinds.append(0 if k == 0 else 2 if k == len(labels) - 1 else 1)
    assert rows["evaluated"] == len(hits)
    assert rows["top1"]["zero_noise"] == pytest.approx(100 * np.mean(hits))
    for kind, value in enumerate(rows["by_position"]):
        assert value == pytest.approx(100 * np.mean([h for h, k in zip(hits, kinds) if k == kind]))


def test_actions_need_verb_and_noun_and_rank_pairs():
    """Catches: an action right for its verb alone; pairs ranked by sums; views of log p."""
    V, U, M = 4, 5, 30
    log_p = [(2 * draw(M, 2, n, seed=n)).log_softmax(-1) for n in (V, U)]
    model = SimpleNamespace(classify=lambda x: log_p)
    labels = torch.stack([torch.arange(M) % V, torch.arange(M) % U], 1)
    read = tasks.Read(None, [], labels, draw(M, 2, D), None, None)
    rows = tasks.actions(model, read, ARGS, "cpu")
    verb, noun = (p.exp().mean(1).numpy() for p in log_p)
    for k in (1, 5):
        hits = []
        for p, q, (v, u) in zip(verb, noun, labels.tolist()):
            pairs = sorted(((a, b) for a in range(V) for b in range(U)),
                           key=lambda pair: -p[pair[0]] * q[pair[1]])
            hits.append((v, u) in pairs[:k])
        assert rows[f"top{k}"]["action"] == pytest.approx(100 * np.mean(hits))
    assert rows["top1"]["verb"] == pytest.approx(
        100 * np.mean(verb.argmax(1) == labels[:, 0].numpy()))


def test_futures_are_sampled_in_turn():
    """Catches: a forecast that is not observed afterwards, or for another time; picks of one step
    for another; another length of the history."""
    x = torch.stack([TEXTS[k] for k in (5, 5, 6, 6, 7, 7, 8, 8)])
    first, picks = sample_in_turn(Model(), x, 68.0, TEXTS, torch.zeros(3, 2, D))
    assert picks.tolist() == [[9, 10, 11]] * 2
    torch.testing.assert_close(first[0], match(TEXTS[9], TEXTS, TAU))
    x, step = draw(2, 8, 5), draw(2, 5, seed=1)
    for seconds in (20.0, 60.0, 68.0):
        longer, covered = extend_history(x, seconds, step)
        total = seconds + 9
        assert covered == min(total, 68)
        for i in range(8):
            middle = total - covered + covered * (i + .5) / 8
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


def test_bigram_forecast_equals_the_sum_over_the_last_step():
    """Catches: columns normalized for rows, an unseen row as NaN, zero or uniform."""
    counts = torch.tensor([[0, 3, 1], [2, 0, 0], [0, 0, 0]]).double()      # 2 is never followed
    follows = [[0, 3 / 4, 1 / 4], [1, 0, 0], [2 / 6, 3 / 6, 1 / 6]]
    posterior = torch.cat([torch.eye(3), (2 * draw(4, 3)).softmax(1)])
    slow = [[sum(p[a] * follows[a][b] for a in range(3)) for b in range(3)]
            for p in posterior.tolist()]
    torch.testing.assert_close(metrics.bigram_forecast(counts, posterior),
                               torch.tensor(slow).double())
    assert metrics.bigram_forecast(torch.zeros(2, 2).double(), torch.eye(2)).eq(.5).all()


# --- The command ---
KEYS = ["task", "data", "split", "setting", "order", "listed", "evaluated", "absent", "unreadable",
        "classes", "samples"]
TRUTH = ["bayes_top1", "ideal_oracle", "tv", "tv_ideal", "tv_softmax", "nll", "possible_next"]


def test_the_forecast_json_is_the_contract(trained, here, monkeypatch):
    """Catches: a key renamed or lost; numbers that depend on the batch or on workers."""
    monkeypatch.setattr(forecasting, "DRAWS", 20)
    flags = "--toy-videos", "4", "--checkpoint", trained / "diffusion", "--horizon", "2"
    call("evaluate.py", "--task", "forecast", "--oracle", "5", *flags, "--json", "a.json")
    call("evaluate.py", *flags, "--batch", "3", "--workers", "1", "--json", "b.json")
    a, b = read_json("a.json"), read_json("b.json")
    assert [*a][:11] == KEYS and [*a][-3:] == ["seed", "checkpoint", "seconds"]
    assert [*a["top1"]] == ["zero_noise", "expectation", "oracle", "oracle_softmax"]
    assert [*a["top5"]] == ["zero_noise", "expectation"] and "distinct" in a
    assert [*a["baselines"]] == ["random", "unigram", "clip", "bigram", "bigram_soft"]
    assert [*a["truth"]] == TRUTH and [*a["truth"]["nll"]] == ["draws", "softmax"]
    assert [*a["futures"]] == ["possible", "first"]
    assert flat(a, "seconds") == pytest.approx(flat(b, "seconds"), rel=1e-4)


def flat(content, without, name=""):
    """The numbers of nested dicts and lists: {path: number}."""
    if isinstance(content, (dict, list)):
        pairs = content.items() if isinstance(content, dict) else enumerate(content)
        return {path: value for key, part in pairs if key != without
                for path, value in flat(part, without, f"{name}.{key}").items()}
    return {name: content} if isinstance(content, (int, float)) else {}


@pytest.mark.parametrize("task, keys", [
    ("classify", ["ours", "teacher"]),
    ("infill", ["zero_noise", "expectation", "oracle", "oracle_softmax"])])
def test_other_tasks_from_the_command(trained, here, capsys, task, keys):
    """Catches: a task that ends in a traceback; a table without its headline first."""
    call("evaluate.py", "--task", task, "--toy-videos", "4", "--checkpoint", trained / "mask",
         "--json", "a.json")
    content = read_json("a.json")
    assert [*content["top1"]] == keys and content["evaluated"] == content["listed"] > 10
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{task}, zero-shot, test: ") and lines[1].startswith("top1")
    names = [line.split("  ")[1] for line in lines if line.startswith("  ")]
    assert task == "infill" or len(names) == len(set(names)) + 6, names    # ours, teacher: 4 times


def test_features_of_videos(trained, here):
    """Catches: a window twice or not at all, embeddings of other windows, another layer."""
    call("evaluate.py", "--task", "features", "--toy-videos", "3", "--checkpoint",
         trained / "none", "--stride", "5", "--out", "f.npz")
    file = np.load("f.npz")
    assert {*file["video"]} == {f"test_0000{i}" for i in range(3)}
    assert np.allclose(np.linalg.norm(file["embedding"], axis=1), 1, atol=1e-5)
    assert (file["end"] - file["start"] <= 9 + 1e-6).all()
    model = weights.load(trained / "none")
    x = normalize(model.encoder.head(torch.from_numpy(file["encoder_cls"])), dim=-1)
    torch.testing.assert_close(x.detach().numpy(), file["embedding"], rtol=1e-4, atol=1e-5)


def test_what_a_checkpoint_cannot_do_is_one_line(trained, here, capsys):
    """Catches: a traceback, or a score for a task that the checkpoint was not trained for."""
    for checkpoint, flags, words in (
            ("none", ("--task", "forecast"), "--order none"),
            ("mask", ("--task", "activity"), "not fine-tuned"),
            ("mask", ("--data", "coin"), "needs --annotations and --videos"),
            ("mask", ("--data", "epic", "--task", "infill"), "--data epic")):
        line = fails(capsys, "evaluate.py", *flags, "--checkpoint", trained / checkpoint)
        assert words in line
    call("evaluate.py", "--toy-videos", "2", "--task", "classify")         # the default checkpoint


def test_promise_16_another_teacher_than_the_runs(trained, here, capsys):
    """Catches: texts of one teacher matched with embeddings trained on another's."""
    model = weights.load(trained / "mask")
    model.phrases[0] = model.phrases[1]                # as another teacher embeds the first phrase
    save("other.pt", model)
    assert "another teacher" in fails(capsys, "evaluate.py", "--checkpoint", "other.pt")


def test_promises_1_and_2_in_the_evaluation(trained, here, capsys, monkeypatch):
    """Catches: a score of some videos that is called one of all; too many unreadable ones."""
    whole = ToySource.load

    def load(self, requests, rng=None):
        kept = [request for request in requests if request[0] != 2]
        failed = {"test_00002": "cut off"} if len(kept) < len(requests) else {}
        return whole(self, kept, rng)._replace(failed=failed)
    monkeypatch.setattr(ToySource, "load", load)
    flags = "--task", "classify", "--toy-videos", "5", "--checkpoint", trained / "mask"
    call("evaluate.py", *flags, "--max-unreadable", "0.2", "--json", "a.json")
    content, lost = read_json("a.json"), len(grammar.make_video("test", 2).steps)
    assert content["evaluated"] == content["listed"] - lost and content["unreadable"] == 1
    assert "cut off" in fails(capsys, "evaluate.py", *flags)


def test_promise_5_what_does_not_exist_is_one_line(trained, here, capsys):
    """Catches: a traceback for a path with a typing error."""
    for argv in (("evaluate.py", "--checkpoint", "gone"), ("predict.py", "gone.mp4"),
                 ("train.py", "--data", "howto100m", "--size", "small", "--videos", "gone",
                  "--captions", "gone", "--phrases", "gone"), ("train.py", "--init", "gone"),
                 ("predict.py", "--steps", "gone.txt")):
        assert "gone" in fails(capsys, *argv)


def test_a_rows_name_stands_once():
    """Catches: `zero_noise` in four blocks of the printed table."""
    names = [name for rows in table.UNDER.values() for name in rows.values()]
    assert len(names) == len(set(names)) and not set(names) & set(table.MEANINGS)
