"""Fine-tuning: against formulas and the zero-shot model; each task from command to score."""
import itertools
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from commands import broken_source, call, fails, read_json, rows_of, same_run
from slow import draw
from torch.nn.functional import normalize

import evaluate
import finetune
import weights
from data import Example, Step, Video, frame_times
from model import Config, ProcedureModel
from support.run import learning_rate
from toy import grammar
from toy.__main__ import export
from weights.checkpoint import build

TUNE = "--stage", "finetune", "--toy-videos", "8", "--batch", "8", "--device", "cpu"


def test_a_share_of_the_labels_is_a_share_of_the_videos():
    """Catches: a share of examples, which shows some of every video; the first, not drawn ones."""
    examples, found = [Example(i // 7, None, 0, i % 7) for i in range(140)], []
    videos = [Video(f"v{i}") for i in range(20)]
    for share, seed, count in (.01, 0, 1), (.1, 0, 2), (.5, 0, 10), (1., 0, 20), (.5, 1, 10):
        chosen = finetune.chosen_examples(examples, videos, share, seed)
        found.append({example.video for example in chosen})
        assert chosen == [one for one in examples if one.video in found[-1]]
        assert len(found[-1]) == count
    assert found[0] <= found[1] <= found[2] and {*range(10)} != found[2] != found[4]
    videos = [Video(f"v{i // 2}") for i in range(20)]          # rows of a csv: two of a video
    chosen = {one.video for one in finetune.chosen_examples(examples, videos, .1, 0)}
    assert len(chosen) == 2 and len({i // 2 for i in chosen}) == 1


@torch.no_grad()
@pytest.mark.parametrize("named", [True, False])
def test_training_starts_from_the_zero_shot_model(named):
    """Catches: weights lost, texts not normalized; another schedule; dropout in a forecast."""
    f = dict(kind="timesformer", image=32, patch=16, frames=4, width=32, depth=1, heads=2)
    config = Config(f, dict(layers=1, heads=2), "diffusion", tau=.1, scale=9., alpha_bar=[.2, .1],
                    pixels=(.4, .25), spacing=11.)
    init = build(config, torch.randn(5, 64)).eval()
    texts = torch.randn(40, 64) * 3 if named else None
    model = finetune.with_classifier(init, "forecast", [40], None, texts)
    assert model.config.spacing == 11.0
    x, noise = normalize(torch.randn(2, 8, 64), dim=-1), torch.randn(2, 3, 64)
    x_hat = init.forecast_next(x, noise)
    assert (model.train().forecast_next(x, noise) - x_hat).abs().max() > 1e-3
    torch.testing.assert_close(model.eval().forecast_next(x, noise), x_hat)
    x_hat = normalize(x_hat, dim=-1)
    expected = init.match(x_hat, texts) if named else torch.full((2, 3, 40), 1 / 40).log()
    torch.testing.assert_close(model.classify(x_hat)[0], expected, rtol=1e-4, atol=1e-4)


def test_the_classifier_reads_drawn_views_or_zero_noise_forecasts(trained, here, monkeypatch):
    """Catches: the first view alone, or the mean; random noise for zeros."""
    seen, read, noises, encode = [], [], [], finetune.encode_examples
    classify, forecast = ProcedureModel.classify, ProcedureModel.forecast_next
    monkeypatch.setattr(finetune, "encode_examples",
                        lambda *args: seen.append(encode(*args)) or seen[-1])
    monkeypatch.setattr(ProcedureModel, "classify",
                        lambda model, x: read.append(x) or classify(model, x))
    monkeypatch.setattr(ProcedureModel, "forecast_next", lambda model, x, noise, n:
                        noises.append(noise) or forecast(model, x, noise, n))
    for task in "forecast", "classify":
        read.clear()
        call("train.py", *TUNE, "--task", task, "--epochs", "1", "--init", trained / "diffusion",
             "--out", task)
    is_view = (torch.cat(read)[:, None] == seen[-1][0].flatten(0, 1)).all(-1)  # 3 of each step
    assert is_view.any(1).all() and len({*(is_view.long().argmax(1) % 3).tolist()}) == 3
    assert len(noises) > 1 and not torch.cat(noises).any()


@pytest.mark.parametrize("order, task", [("diffusion", "classify"), ("diffusion", "forecast"),
                                         ("diffusion", "activity"), ("none", "forecast"),
                                         ("none", "classify")])
def test_fine_tuned_and_evaluated(trained, here, capsys, order, task):
    """Catches: a task that trains f, or too little; no new h; a checkpoint nobody can measure."""
    call("train.py", *TUNE, "--task", task, "--epochs", "1", "--init", trained / order, "--out",
         "run")
    before, after = weights.load(trained / order), weights.load("run")
    old, new = dict(before.named_parameters()), dict(after.named_parameters())
    changed = {name.split(".")[0] for name in old if not torch.equal(old[name], new[name])}
    assert changed == ({"denoiser"} if order != "none" and task != "classify" else set())
    assert {name.split(".")[0] for name in new.keys() - old.keys()} == {"classifier"} | (
        {"denoiser"} if (order, task) == ("none", "forecast") else set())
    if (order, task) == ("none", "forecast"):              # LayerNorms begin with gains of 1
        assert any((gain != 1).any() for name, gain in new.items() if name.endswith("ln_1.weight"))
    assert after.classifier.bias.any() and after.config.spacing == before.config.spacing
    assert after.config.names == [*(grammar.PROCEDURES if task == "activity" else grammar.STEPS)]
    call("evaluate.py", "--task", task, "--toy-videos", "3", "--checkpoint", "run", "--json",
         "a.json")
    content = read_json("a.json")
    assert content["setting"] == "fine-tuned" and content["classes"] == (
        6 if task == "activity" else 40)
    assert content["evaluated"] == {"classify": 24, "forecast": 21, "activity": 3}[task]
    assert [*content["top1"]][0] == ("zero_noise" if task == "forecast" else "ours")
    other = "forecast" if task != "forecast" else "classify"
    line = fails(capsys, "evaluate.py", "--task", other, "--checkpoint", "run")
    assert f"is fine-tuned for {task}" in line
    assert "is fine-tuned" in fails(capsys, "train.py", *TUNE, "--init", "run", "--out", "again")


def test_each_task_has_its_settings(trained, here, capsys, monkeypatch):
    """Catches: settings of another task, or that have no effect; a flag that does not win."""
    epic = "--data", "epic", "--videos", ".", "--annotations", "."
    for flags, epochs, lr in (((), 15, 1e-3), (("--task", "forecast"), 15, 1e-3),
                              (("--task", "activity"), 60, 1e-3), (epic, 50, 1e-4),
                              ((*epic, "--epochs", "2", "--lr", ".5"), 2, .5)):
        args = finetune.parse(flags)
        assert (args.epochs, args.lr) == (epochs, lr)
    clips, clip = [], finetune.clip_grad_norm_
    monkeypatch.setattr(finetune, "clip_grad_norm_", lambda parameters, most: (
        clips.append(most) or clip(parameters, most)))
    monkeypatch.setitem(finetune.SETTINGS, "forecast", finetune.Settings(
        epochs=1., decay=.25, max_norm=.5))
    for task, decay, most in ("forecast", .25, .5), ("classify", 1e-2, float("inf")):
        flags = *TUNE, "--task", task, "--init", trained / "diffusion", "--out", task
        if task == "classify":
            flags += "--epochs", "1"
        call("train.py", *flags)
        group, = weights.checkpoint.read(task)["optimizer"]["param_groups"]
        assert group["weight_decay"] == decay and clips[-1] == most
    assert len(clips) == 7 + 8                             # updates: of 56 and 64 examples by 8
    line = fails(capsys, "train.py", *TUNE, "--history", "paper")
    assert "--history: has no effect on --task classify" in line
    monkeypatch.setattr(evaluate.Classify, "needs_h", True)
    line = fails(capsys, "train.py", *TUNE, "--init", trained / "none", "--out", "x")
    assert "was trained without h, which --task classify needs" in line


def test_fine_tuning_stopped_by_ctrl_c_resumes_bit_exactly(trained, here, capsys, monkeypatch):
    """Catches: momenta, a step or a row lost; another draw of examples or dropout; a traceback,
    also for a video that cannot be read; resumed with other examples than those that were read."""
    flags = (*TUNE, "--task", "forecast", "--epochs", "1", "--init", trained / "diffusion",
             "--max-unreadable", "0.2")

    def interrupt(step, *stage):
        if step == 2:
            signal.raise_signal(signal.SIGINT)
        return learning_rate(step, *stage)
    with monkeypatch.context() as patch:
        broken_source(patch, lambda name: name == "train_00003")
        call("train.py", *flags, "--out", "whole")
        assert Path("whole/unreadable.txt").read_text() == "train_00003\tcut off\n"
        with patch.context() as stop, pytest.raises(SystemExit, match="130"):
            stop.setattr(finetune, "learning_rate", interrupt)
            call("train.py", *flags, "--out", "run")
        assert len(rows_of("run")) == 3
        call("train.py", *flags, "--out", "run", "--resume")
    assert same_run("run", "whole")
    line = fails(capsys, "train.py", *flags, "--out", "run", "--resume")       # it is read now
    assert "has list of examples" in line and "must stay the same" in line


def test_actions_need_verb_and_noun_and_rank_pairs():
    """Catches: an action right for its verb alone; pairs ranked by sums; views of log p."""
    sizes, M = (4, 5), 300
    log_p = [(4 * draw(M, 2, n, seed=n)).log_softmax(-1) for n in sizes]
    labels = torch.stack([torch.arange(M) % n for n in sizes], 1)
    model = SimpleNamespace(classify=lambda x: log_p)
    rows = evaluate.Actions().numbers(SimpleNamespace(model=model, x=None, labels=labels))
    p = [one.exp().mean(1).tolist() for one in log_p]      # of verbs, of nouns
    ranks = {"verb": [], "noun": [], "action": []}         # how many are likelier
    for m, (v, u) in enumerate(labels.tolist()):
        verb, noun = p[0][m], p[1][m]
        ranks["verb"].append(sum(other > verb[v] for other in verb))
        ranks["noun"].append(sum(other > noun[u] for other in noun))
        ranks["action"].append(sum(a * b > verb[v] * noun[u] for a in verb for b in noun))
    for k, name in itertools.product((1, 5), ranks):
        share = sum(rank < k for rank in ranks[name]) / M
        assert rows[f"top{k}"][name] == pytest.approx(100 * share)


def test_an_action_is_seen_in_ten_clips_of_sixteen_frames_a_second():
    """Catches: fewer clips than the release's, or of another length; the paper's 32 frames."""
    task = evaluate.Actions()
    example, = task.examples([Video("a", steps=(Step(0., 20., (3, 4)),))], None, 2)
    assert example.windows.tolist() == [[2 * i, 2 * i + 2] for i in range(10)]
    times = torch.from_numpy(frame_times(example.windows, task.frames))        # (10, 32) s
    torch.testing.assert_close(times.flatten(), torch.arange(320) / 16 + 1 / 32,
                               check_dtype=False)


def test_actions_of_epic_train_f(trained, here, capsys, monkeypatch):
    """Catches: frames of another rate, verbs and nouns exchanged, f frozen; settings at which the
    loss does not fall, another weight decay than the release's, gradients that are not clipped;
    another split; a video of --skip that is opened; one that cannot be decoded, read as if it
    could; the label of another clip, beside one that cannot be read."""
    clips, clip = [], finetune.clip_grad_norm_
    monkeypatch.setattr(finetune, "clip_grad_norm_", lambda parameters, most: (
        clips.append(most) or clip(parameters, most)))
    export(here / "world", 3, 0)
    names = sorted(path.stem for path in (here / "world" / "videos").iterdir())
    (here / "world" / "videos" / f"{names[2]}.mp4").write_bytes(b"damaged")
    rows = [f"{name},00:00:{10 * i:02d}.00,00:00:{10 * i + 4:02d}.50,{i},{2 * i}"
            for name in names for i in range(3)]
    Path("EPIC_100_validation.csv").write_text("\n".join(
        ["video_id,start_timestamp,stop_timestamp,verb_class,noun_class", *rows]))
    flags = ("--data", "epic", "--annotations", "EPIC_100_validation.csv", "--videos", "world",
             "--max-unreadable", "0.5")
    tune = "train.py", "--stage", "finetune", *flags, "--init", trained / "diffusion"
    assert "supports only classify" in fails(capsys, *tune, "--task", "forecast")
    call(*tune, "--epochs", "2", "--batch", "3", "--micro-batch", "2", "--skip", names[1], "--out",
         "run")
    losses = [row["loss"] for row in rows_of("run") if row["loss"] is not None]
    assert losses[-1] < losses[0]                      # a loss that is not finite ends the run
    group, = weights.checkpoint.read("run")["optimizer"]["param_groups"]
    assert group["weight_decay"] == 5e-2 and {*clips} == {1.}
    assert Path("run/unreadable.txt").read_text().startswith(f"{names[2]}\t")
    assert len(Path("run/unreadable.txt").read_text().splitlines()) == 1
    assert read_json("run/left_out.json") == {names[1]: ["skipped", "left out by --skip"]}
    model, before = weights.load("run"), weights.load(trained / "diffusion")
    assert model.config.classes == [97, 300] and model.encoder.frames == 32
    verbs, nouns = model.classifier.bias.split(model.config.classes)
    assert verbs[:3].min() > verbs[3:].max() and nouns[[0, 2, 4]].min() > nouns[5:].max()
    assert not torch.equal(model.encoder.head.weight, before.encoder.head.weight)
    call("evaluate.py", *flags, "--checkpoint", "run", "--json", "a.json")
    content = read_json("a.json")
    assert [*content["top1"]] == ["verb", "noun", "action"] and content["evaluated"] == 6
    assert content["split"] == "validation" and content["unreadable"] == 1

    class Marked(finetune.LabeledExamples):            # all pixels of a clip are its verb
        def __getitem__(self, item):
            read, verb = super().__getitem__(item), self.examples[item[1]].label[0]
            return read._replace(clips=torch.full_like(read.clips, verb))
    encode, shown, wanted = model.encode.__func__, [], []
    monkeypatch.setattr(finetune, "LabeledExamples", Marked)
    monkeypatch.setattr(type(model), "encode", lambda self, clips: (
        shown.extend(clips[:, 0, 0, 0, 0].tolist()) or encode(self, clips)))
    loss = finetune.label_loss
    monkeypatch.setattr(finetune, "label_loss", lambda log_p, y: (
        wanted.extend(y[:, 0].tolist()) or loss(log_p, y)))
    call(*tune, "--epochs", "1", "--batch", "9", "--out", "marked")
    assert shown == wanted and sorted(shown) == [0, 0, 1, 1, 2, 2]     # of nine, three are damaged


def test_a_resumed_fine_tuning_starts_from_the_same_model(trained, here, capsys):
    """Catches: embeddings of one f, and a classifier that was tuned on those of another."""
    model = weights.load(trained / "diffusion")
    weights.save("p.pt", model)
    tune = ("train.py", "--stage", "finetune", "--toy-videos", "8", "--epochs", "1", "--init",
            "p.pt", "--out", "run")
    call(*tune)
    model.encoder.head.weight.data += 1
    weights.save("p.pt", model)
    assert "has list of start" in fails(capsys, *tune, "--resume")
