"""Fine-tuning a random model: against formulas and the zero-shot model; commands, errors."""
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from commands import (call, coin_flags, fails, log_and_save_every, make_coin, measure, read_json,
                      read_rows)
from test_weights import make_ours, published
from toy import grammar
from train import FinetuneSettings
from training import finetune
from weights.checkpoint import load_model

TASKS = ("classify", "forecast", "activity")
BASE = "--stage", "finetune", "--epochs", "2", "--batch", "8", "--device", "cpu"
TUNE = *BASE, "--toy-videos", "8"
pytestmark = pytest.mark.usefixtures("inits")


def test_a_share_of_the_labels_is_a_share_of_the_videos():
    """Catches: a share of samples, which shows something of every video; a share without any."""
    source = SimpleNamespace(videos=[grammar.make_video("train", i) for i in range(20)])
    found = {}
    for share in (.01, .1, .5, 1.):
        settings = FinetuneSettings(task="forecast", labels=share)
        samples = finetune.labeled_samples(settings, source)
        found[share] = {sample.video for sample in samples}
        assert len(samples) == sum(len(source.videos[i].steps) - 1 for i in found[share])
    assert [len(videos) for videos in found.values()] == [1, 2, 10, 20]
    assert found[.01] <= found[.1] <= found[.5]


@torch.no_grad()
@pytest.mark.parametrize("make", [make_ours, published])
@pytest.mark.parametrize("task", TASKS)
def test_training_starts_from_the_zero_shot_model(make, task):
    """Catches: weights lost on the way, texts not normalized; another schedule; no dropout."""
    (init, arguments), texts = make(), torch.randn(40, 64) * 3
    init.standardize.update(torch.randn(9, 64))
    model, arguments = finetune.extend(init, arguments, FinetuneSettings(task=task),
                                       None if task == "activity" else texts, [40])
    assert model.denoiser.dropout.p == finetune.DROPOUT != 0
    x, noise = normalize(torch.randn(2, 8, 64), dim=-1), torch.randn(2, 3, 64)
    x_hat = init.forecast_next(x, noise)
    torch.testing.assert_close(model.eval().forecast_next(x, noise), x_hat)
    x_hat = normalize(x_hat, dim=-1)
    torch.testing.assert_close(
        model.classify(x_hat)[0], torch.full((2, 3, 40), 1 / 40).log() if task == "activity" else
        init.match(x_hat, texts), rtol=1e-4, atol=1e-4)
    assert model.task == task == arguments["task"]


@torch.no_grad()
@pytest.mark.parametrize("texts, classes", [(64, [40]), (32, [40]), (None, [97, 300])])
def test_without_h_the_class_token_is_classified(texts, classes):
    """Catches: a layer on logits of other classes; texts as its start in another space."""
    init, arguments = published(layers=None, dim=7)
    model, _ = finetune.extend(init, arguments, FinetuneSettings(),
                               texts and torch.randn(40, texts), classes)
    frames = torch.randint(256, (2, 4, 3, 32, 32), dtype=torch.uint8)
    tokens = init.encoder.class_token(((frames / 255 - .45) / .225).transpose(1, 2))
    x = model.eval().encode(frames)
    torch.testing.assert_close(x, normalize(tokens, dim=-1))
    assert [tuple(p.shape) for p in model.classify(x)] == [(2, count) for count in classes]
    assert not any(parameter.any() for parameter in model.classifier.parameters())


KEYS = {"classify": ["ours", "teacher"], "activity": ["ours"],
        "forecast": ["zero_noise", "expectation", "oracle", "oracle_softmax"]}


@pytest.mark.parametrize("init, task", [
    *((init, task) for init in ("diffusion", "coin") for task in TASKS), ("published", "forecast"),
    ("timesformer", "classify"), ("mvit", "classify"), ("none", "forecast")])
def test_fine_tuned_and_evaluated(init, task):
    """Catches: a task that trains f, or less than it should; a checkpoint nobody can measure."""
    flags = coin_flags() if init == "coin" else ()
    call("train.py", *(BASE if "--data" in flags else TUNE), *flags, "--task", task, "--init",
         f"{init}.pt", "--out", "run")
    before, after = (dict(load_model(x)[0].named_parameters()) for x in (f"{init}.pt", "run"))
    changed = {key.split(".")[0] for key in before if not torch.equal(before[key], after[key])}
    changed -= {"encoder"} if init == "timesformer" else set()     # the head: see its own test
    assert changed == (set() if task == "classify" or init == "none" else {"denoiser"})
    rows = read_rows("run")
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1)) and len(rows) > 1
    assert read_json("run/config.json")["settings"]["task"] == task
    content = measure(*flags, "--task", task, "--checkpoint", "run")
    assert content["setting"] == "fine-tuned" and list(content["top1"]) == KEYS[task]
    assert content["evaluated"] > 0 and all(
        0 <= value <= 100 for value in content["top1"].values() if value is not None)
    assert content["classes"] == ((3, 6) if init == "coin" else (6, 40))[task != "activity"]
    if task == "forecast":
        assert list(content["deviation"]) == ["expectation", "oracle"]
        assert content["top1"]["oracle_softmax"] is not None
    if init == "none":
        momenta = load_model("run")[2]["optimizer"]["state"]
        assert len(momenta) > 2 and content["distinct"] == 1       # 2 are the classifier's


def test_one_view_of_each_sample_is_classified():
    """Catches: the first view alone, the same one of all samples, the mean of the views."""
    x, y = torch.randn(2, 3, 5).log_softmax(-1), torch.tensor([4, 1])
    model = SimpleNamespace(task="classify", classify=lambda x: [x])
    found = {round(finetune.cached_loss(model, x, y).item(), 4) for _ in range(300)}
    assert found == {round(-(x[0, a, 4] + x[1, b, 1]).item() / 2, 4)
                     for a in range(3) for b in range(3)}


def test_training_lowers_the_loss_on_a_task_that_can_be_learnt(monkeypatch):
    """Catches: labels of other clips, an optimizer without the classifier, or that runs away."""
    log_and_save_every(1000, monkeypatch)
    rng, folder = np.random.default_rng(0), Path("easy")
    make_coin(folder)
    database = read_json(folder / "COIN.json")["database"]
    table, places = dict(np.load(folder / "features.npz")), load_model("coin.pt")[0].phrases[:3]
    table["embedding"] = np.float32([places[database[name]["recipe_type"]].numpy()
                                     + .03 * rng.standard_normal(16) for name in table["video"]])
    np.savez(folder / "features.npz", **table)
    flags = (*coin_flags("easy"), "--task", "activity")
    call("train.py", *BASE, *flags, "--epochs", "100", "--lr", "0.01", "--init", "coin.pt",
         "--out", "run")
    assert measure(*flags, "--checkpoint", "run")["top1"]["ours"] == 100


@pytest.mark.parametrize("argv, named", [
    (("--init", "coin.pt"), "--data"),
    ((*coin_flags(), "--init", "diffusion.pt"), "--data"),
    ((*coin_flags(), "--videos", "coin"), "--features"),
    ((*coin_flags("wide"), "--init", "coin.pt"), "width"),
    (("--task", "forecast", "--init", "timesformer.pt"), "timesformer.pt: holds no h"),
    (("--task", "activity", "--init", "timesformer.pt"), "or of ProcedureVRL before it was fine"),
    (("--task", "classify", "--init", "tuned.pt"), "tuned.pt: is fine-tuned already, for forecast"),
    ((*coin_flags(), "--init", "published.pt"), "published.pt reads frames")])
def test_what_cannot_be_fine_tuned_is_one_line(argv, named, capsys):
    """Catches: a traceback, a run folder with a checkpoint of nothing."""
    make_coin(Path("wide"), D=12)
    tune = BASE if "--data" in argv else TUNE
    assert named in fails(capsys, 2, "train.py", *tune, *argv, "--out", "never")
    assert not Path("never/checkpoint.pt").exists()


def test_what_a_checkpoint_cannot_do_is_one_line(capsys):
    """Catches: the head of one task read as another's; classes or widths that do not fit."""
    for name, changes in {"more": dict(classes=7), "wide": dict(D=12)}.items():
        make_coin(Path(name), **changes)
    listed = Path("more/COIN.json")
    listed.write_text(listed.read_text().replace('"recipe_type": 2', '"recipe_type": 5'))
    for task in ("classify", "activity"):
        call("train.py", *BASE, *coin_flags(), "--task", task, "--init", "coin.pt", "--out", task)
    for checkpoint, task, data, named in (
            ("coin.pt", "activity", "coin", "not fine-tuned"),
            ("classify", "forecast", "coin", "--task classify"),
            ("classify", "classify", "more", "6 classes"),
            ("activity", "activity", "more", "3 classes"),
            ("activity", "activity", "wide", "width 16")):
        assert named in fails(capsys, 2, "evaluate.py", *coin_flags(data), "--task", task,
                              "--checkpoint", checkpoint, "--json", "o.json")
    assert not Path("o.json").exists()
