"""Fine-tuning: against formulas and the zero-shot model; each task from command to score."""
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

import weights
from commands import call, fails, read_json
from data import Example, Video
from diffusion import noise_levels
from files.sources import SKIPPED
from model import ProcedureModel
from test_train import rows_of, same_run
from toy import grammar
from toy.export import export
from training import finetune
from training.run import learning_rate
from weights.checkpoint import build_model, save

F = dict(image=32, patch=16, frames=4, width=32, depth=1, heads=2)
TUNE = "--stage", "finetune", "--toy-videos", "8", "--batch", "8", "--device", "cpu"


def random_model(phrases=None, **more):
    """A small random model whose embeddings are 64 wide, as the toy world's texts."""
    torch.manual_seed(0)
    given = dict(denoiser=dict(layers=1, heads=2), order="diffusion", tau=.1, pixels=(.4, .25),
                 alpha_bar=noise_levels(64).tolist()) | more
    phrases = torch.randn(5, 64) if phrases is None else phrases
    return build_model(phrases, F, given.pop("denoiser"), **given).eval()


def args_of(*flags):
    """The flags of fine-tuning."""
    return finetune.parse([*TUNE, "--init", "x", *flags])


def test_a_share_of_the_labels_is_a_share_of_the_videos():
    """Catches: a share of examples, which shows something of every video; a share without any; the
    first videos in place of drawn ones."""
    source = SimpleNamespace(videos=[grammar.make_video("train", i) for i in range(20)])
    found = {}
    for share in (.01, .1, .5, 1.):
        examples = finetune.labeled_examples(args_of("--task", "forecast", "--labels", str(share)),
                                             source)
        found[share] = {example.video for example in examples}
        assert len(examples) == sum(len(source.videos[i].steps) - 1 for i in found[share])
    assert [len(videos) for videos in found.values()] == [1, 2, 10, 20]
    assert found[.01] <= found[.1] <= found[.5]
    other = finetune.labeled_examples(args_of("--labels", ".5", "--seed", "1"), source)
    assert {*range(10)} != found[.5] != {example.video for example in other} != {*range(10)}


@torch.no_grad()
@pytest.mark.parametrize("task", ["classify", "forecast", "activity"])
def test_training_starts_from_the_zero_shot_model(task):
    """Catches: weights lost on the way, texts not normalized; another schedule; no dropout."""
    init, texts = random_model(), torch.randn(40, 64) * 3
    init.standardize.add(torch.randn(9, 64))
    init.standardize.update()
    named = task != "activity"
    videos = [Video("a", activity=39), Video("b", activity=2)]             # classes 0 to 39
    model = finetune.extend(init, args_of("--task", task), texts if named else None, videos)
    assert model.denoiser.dropout.p == finetune.DROPOUT > 0
    x, noise = normalize(torch.randn(2, 8, 64), dim=-1), torch.randn(2, 3, 64)
    x_hat = init.forecast_next(x, noise)
    torch.testing.assert_close(model.eval().forecast_next(x, noise), x_hat)
    x_hat = normalize(x_hat, dim=-1)
    expected = init.match(x_hat, texts) if named else torch.full((2, 3, 40), 1 / 40).log()
    torch.testing.assert_close(model.classify(x_hat)[0], expected, rtol=1e-4, atol=1e-4)


def test_a_run_of_real_videos_keeps_its_teacher(here, capsys):
    """Catches: a fine-tuned run that does not say which teacher embeds its texts; a start from a
    small model without a word."""
    save("run.pt", random_model(), settings={"data": "howto100m", "clip": "a", "clip_weights": "b"})
    args = args_of("--data", "coin", "--init", "run.pt")
    finetune.open_init(args)
    assert (args.clip, args.clip_weights) == ("a", "b")
    assert "warning: this is a small model" in capsys.readouterr().out


def test_a_checkpoint_of_f_alone_is_refused(here, capsys):
    """Catches: a classifier on logits of other classes, such as those of TimeSformer's head."""
    save("f.pt", random_model(torch.zeros(0, 64), order="none", denoiser=None))
    assert "ProcedureVRL" in fails(capsys, "train.py", *TUNE, "--init", "f.pt")


def test_the_classifier_reads_drawn_views_or_zero_noise_forecasts(trained, here, monkeypatch):
    """Catches: the first view alone, one number for all steps, the mean; random noise for zeros."""
    seen, read, noises, encode = [], [], [], finetune.encode_examples
    classify, forecast = ProcedureModel.classify, ProcedureModel.forecast_next

    def encode_examples(*args):
        seen[:] = encode(*args)
        return seen

    def classify_seen(model, x):
        read.append(x)
        return classify(model, x)

    def forecast_next(model, x, noise):
        noises.extend([noise] if model.training else [])
        return forecast(model, x, noise)
    monkeypatch.setattr(finetune, "encode_examples", encode_examples)
    monkeypatch.setattr(ProcedureModel, "classify", classify_seen)
    monkeypatch.setattr(ProcedureModel, "forecast_next", forecast_next)
    flags = "--epochs", "2", "--init", trained / "diffusion", "--out"
    call("train.py", *TUNE, "--task", "classify", *flags, "a")
    for x in read:
        row = (x[:, None] == seen[0]).all(-1).long().argmax(1)             # three of each step
        assert torch.equal(seen[0][row], x) and len({*(row % 3).tolist()}) > 1
    call("train.py", *TUNE, "--task", "forecast", *flags, "b")
    assert noises and not any(noise.any() for noise in noises)


def test_labels_are_learned(trained, here, monkeypatch):
    """Catches: a label of another example or step; training without effect, or without its
    checkpoint if it starts from weights without statistics, as published ones."""
    monkeypatch.setattr(finetune, "SAVE_EVERY", 99.)
    monkeypatch.setattr(finetune, "LOG_EVERY", 99)
    model = weights.load(trained / "diffusion")
    model.standardize.updates.zero_()
    weights.save("init.pt", model)
    call("train.py", *TUNE, "--epochs", "40", "--lr", "0.1", "--init", "init.pt", "--out", "run")
    call("evaluate.py", "--task", "classify", "--split", "train", "--toy-videos", "8",
         "--checkpoint", "run", "--json", "a.json")
    assert read_json("a.json")["top1"]["ours"] > 25          # chance: 2.5


@pytest.mark.parametrize("order, task", [("diffusion", "classify"), ("diffusion", "forecast"),
                                         ("diffusion", "activity"), ("none", "forecast"),
                                         ("none", "classify")])
def test_fine_tuned_and_evaluated(trained, here, capsys, order, task):
    """Catches: a task that trains f, or less than it should; a checkpoint nobody can measure."""
    call("train.py", *TUNE, "--task", task, "--epochs", "1", "--init", trained / order, "--out",
         "run")
    before, after = weights.load(trained / order), weights.load("run")
    old, new = dict(before.named_parameters()), dict(after.named_parameters())
    changed = {name.split(".")[0] for name in old if not torch.equal(old[name], new[name])}
    assert changed == ({"denoiser"} if order != "none" and task != "classify" else set())
    assert torch.equal(after.alpha_bar, before.alpha_bar)
    assert after.settings.get("classes") == (None if task == "activity" else [*grammar.STEPS])
    call("evaluate.py", "--task", task, "--toy-videos", "3", "--checkpoint", "run", "--json",
         "a.json")
    content = read_json("a.json")
    assert content["setting"] == "fine-tuned" and content["evaluated"] > 0
    assert content["classes"] == (6 if task == "activity" else 40)
    other = "forecast" if task != "forecast" else "classify"
    line = fails(capsys, "evaluate.py", "--task", other, "--checkpoint", "run")
    assert f"is fine-tuned for {task}" in line
    assert "is fine-tuned" in fails(capsys, "train.py", *TUNE, "--init", "run", "--out", "again")


def test_fine_tuning_stopped_by_ctrl_c_resumes_bit_exactly(trained, here, monkeypatch, capsys):
    """Catches: momenta, a step or a row lost; another draw of examples or dropout; a traceback."""
    flags = *TUNE, "--task", "forecast", "--epochs", "1", "--init", trained / "diffusion"
    call("train.py", *flags, "--out", "whole")

    def interrupt(step, *stage):
        if step == 2:
            signal.raise_signal(signal.SIGINT)
        return learning_rate(step, *stage)
    with monkeypatch.context() as patch, pytest.raises(SystemExit, match="130"):
        patch.setattr(finetune, "learning_rate", interrupt)
        call("train.py", *flags, "--out", "run")
    assert len(rows_of("run")) == 3
    assert "checkpoint.pt is of update 3 of " in capsys.readouterr().err
    call("train.py", *flags, "--out", "run", "--resume")
    assert same_run("run", "whole")


def test_draws_do_not_depend_on_who_could_be_read():
    """Catches: a resumed run that draws other examples, since one video more can be read."""
    examples = [Example(k // 2, None, k, k % 2) for k in range(9)]
    x, args, drawn = torch.arange(9.)[:, None, None], SimpleNamespace(seed=0, batch=4), []
    for left_out in (), (2, 5):
        kept = [k for k in range(9) if k not in left_out]
        updates = finetune.embeddings_of_updates(x[kept], [examples[k] for k in kept], examples,
                                                 range(3), args)
        drawn.append([part for (inputs, labels), in updates
                      for part in zip(inputs.flatten().tolist(), labels.flatten().tolist())])
    assert drawn[1] == [one for one in drawn[0] if one[0] not in (2, 5)] != drawn[0]
    assert all(value == label for value, label in drawn[0])


def test_an_action_is_read_in_a_view_that_is_drawn():
    """Catches: always the first window, the same in all updates; an example twice in an epoch."""
    examples = [Example(0, np.arange(6).reshape(3, 2) + 10. * k, (k, k), k) for k in range(4)]
    source = SimpleNamespace(load=lambda requests, rng: requests[0])
    args = SimpleNamespace(seed=0, batch=2)
    read = [finetune.load_action(source, examples, args, range(2), item) for item in range(40)]
    assert all(sorted(one.step for one in read[i:i + 4]) == [0, 1, 2, 3] for i in range(0, 40, 4))
    assert {one.windows[0, 0] % 10 for one in read} == {0, 2, 4}
    assert all(one.windows.shape == (1, 2) for one in read)


def test_actions_of_epic_train_f(trained, here, capsys):
    """Catches: frames of another rate, verbs and nouns exchanged, f frozen; another split."""
    export(here / "world", 2, 1, 0)
    names = sorted(path.stem for path in (here / "world" / "videos").iterdir())
    head = "video_id,start_timestamp,stop_timestamp,verb_class,noun_class\n"
    rows = [f"{name},00:00:{10 * i:02d}.00,00:00:{10 * i + 4:02d}.50,{i},{2 * i}"
            for name in names[:2] for i in range(3)]
    Path("EPIC_100_validation.csv").write_text(head + "\n".join(rows) + "\n", encoding="utf-8")
    flags = "--data", "epic", "--annotations", "EPIC_100_validation.csv", "--videos", "world"
    call("train.py", "--stage", "finetune", *flags, "--epochs", "2", "--batch", "3", "--init",
         trained / "diffusion", "--out", "run", "--micro-batch", "2", "--skip", names[1])
    assert read_json("run/unreadable.json") == {names[1]: SKIPPED}
    model = weights.load("run")
    assert model.classes == [97, 300] and model.encoder.frames == 32
    assert not torch.equal(model.encoder.head.weight,
                           weights.load(trained / "diffusion").encoder.head.weight)
    call("evaluate.py", *flags, "--checkpoint", "run", "--json", "a.json")
    content = read_json("a.json")
    assert [*content["top1"]] == ["verb", "noun", "action"] and content["evaluated"] == 6
    assert content["split"] == "validation"
