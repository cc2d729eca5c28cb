"""train.py: the objective and its draws by loops; the command, barely trained."""
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from commands import ONE, call, fails, read_json, rows_of
from slow import draw, randomized, slow_objective
from torch import nn

import train
import weights
from data import (
    CLIP_SECONDS,
    NarratedVideos,
    averaging_weights,
    clip_distance,
    history_windows,
)
from denoiser import Denoiser
from diffusion import noise_levels, released_levels
from files.folder import VideoFolder
from model import Config, ProcedureModel
from pseudo_labels import clip_features, soft_targets
from support.run import learning_rate
from support.workers import epoch_order, items
from toy.source import Toy, load_teacher
from weights.adapter import Adapter
from weights.checkpoint import DENOISERS

ROW = {"step", "epoch", "loss", "xe", "mse", "mc", "match", "match_h", "lr", "clips_per_s"}
# --- The objective ---
def tiny(order):
    """A tiny model of features, six numbers per clip; and clips and targets of two videos."""
    h = None if order == "none" else DENOISERS[order](16, layers=1, heads=2, levels=3)
    config = Config({}, {}, order, tau=.3, scale=3.0, alpha_bar=[.9, .5, .2], pixels=(.4, .25))
    model = ProcedureModel(config, draw(5, 16, seed=9), Adapter(6, 8, 16), h)
    return randomized(model, 0.5), draw(2, 9, 6), (3 * draw(2, 9, 5, seed=1)).softmax(-1)


@pytest.mark.parametrize("order, rows, context", [
    ("diffusion", "release", "observed"), ("diffusion", "paper", "shuffled"),
    ("mask", "release", "shuffled"), ("none", "release", "observed")])
def test_eqs_5_to_10_the_objective_by_loops(float64, order, rows, context):
    """Catches: a clip, level, noise or target of another row; a scale left out; a mean over other
    clips, p and p' exchanged; a gradient through the target or x_j^t, or none through the context;
    a mask model that reads noise; `match` of another's phrases, or of h in place of f."""
    model, v, targets = tiny(order)
    given = v, targets, *train.draw(2, 16, 3, rows, context, 0, 7)
    found, weight = [], torch.tensor([1., 2., 3.])     # so that no terms' gradients are exchanged
    for objective in train.matching if order == "none" else train.objective, slow_objective:
        terms = objective(model, *given)
        if isinstance(terms, tuple):                   # (B,) each; without h 0, and None at last
            columns = [0.0 if term is None else term for term in terms]
            terms = torch.stack([column + 0 * terms[0] for column in columns], -1)     # (B, 5)
        loss = (terms[:, :3] * weight).sum()
        found.append([terms, *torch.autograd.grad(loss, [*model.parameters()])])
    for ours, slow in zip(*found):
        torch.testing.assert_close(ours, slow, rtol=1e-4, atol=1e-4)


def test_the_draws_of_an_update():
    """Catches: x_j observed, a tail that begins before j, or where none is drawn; a gap in what is
    observed; clips hidden in the paper's rows; a shuffled row that reads a hidden clip, or one
    twice; another distribution; draws that are the same in all updates, or depend on a choice."""
    i = torch.arange(9)
    noise, t, observed, perm = train.draw(900, 2, 4, "release", "shuffled", 0, 5)
    for j in range(9):
        assert not observed[:, j, j].any() and observed[:, j, :j].all()
        places, counts = observed[:, j, j:].sum(1).unique(return_counts=True)  # how many after j
        assert places.tolist() == [*range(max(8 - j, 1))]
        assert (observed[:, j, j + 1:].long().diff(dim=1) <= 0).all()
        assert counts.min() > 0.6 * 900 / len(places)
        assert t[:, j].bincount(minlength=4).min() > 170
        moved = torch.where(observed[:, j], perm[:, j], i)
        assert torch.equal(moved.sort(1).values, i.expand(900, -1))
        assert torch.equal(moved.masked_fill(observed[:, j], -1), i.where(~observed[:, j], -1))
    first = perm[:, 8, 0].bincount()                   # eight are observed
    assert len(first) == 8 and first.min() > 0.6 * 900 / 8
    assert t.max() == 3 and abs(noise.mean()) < .03 and abs(noise.std() - 1) < .03
    paper = train.draw(900, 2, 4, "paper", "observed", 0, 5)
    assert (paper[2] == (i != i[:, None])).all() and (paper[3] == i).all()
    assert torch.equal(paper[0], noise) and torch.equal(paper[1], t)
    for seed, update in (0, 6), (1, 5):
        other = train.draw(900, 2, 4, "release", "shuffled", seed, update)
        assert not any(map(torch.equal, other, (noise, t, observed, perm)))


# --- What is read ---
def test_each_epoch_reads_each_video_once_and_draws_anew(monkeypatch):
    """Catches: the same clips or order in all epochs; a video twice, or read by two processes."""
    source, orders = Toy.of("train", range(6), 4), []
    monkeypatch.setattr(source, "clips", lambda i, windows, rng: (windows, rng.random()))
    videos = NarratedVideos(source, 0)
    for epoch in range(6):                             # two updates of three videos
        updates = range(2 * epoch, 2 * epoch + 2)
        first, second = (items(updates, 6, 3, share, 0) for share in (range(2), range(2, 3)))
        epochs, order, places = zip(*first, *second)   # of two processes
        assert {*epochs} == {epoch} and sorted(order) == [*range(6)] and sorted(places) == [
            0, 0, 1, 1, 2, 2]
        orders.append(order)
    assert len({*orders}) > 3
    found = [videos[epoch, 2, 0] for epoch in [*range(8), 0]]
    assert all(read.name == "train_00002" and read.clips.shape == (9, 2) for read in found)
    assert len({read.clips[0, 0] for read in found}) > 1 and len({read.seen for read in found}) == 8
    assert np.array_equal(found[0].clips, found[8].clips) and found[0].seen == found[8].seen


def test_targets_of_both_are_the_mean_of_unit_vectors():
    """Catches: frames or speech of another length; another window's sentence; one left out."""
    spans = np.array([[0, 4], [3, 5], [20, 30]])                         # middles 2, 4, 25
    windows = np.array([[0, 9], [3, 9], [9, 16], [15, 24], [2, 25]], float)
    assert averaging_weights(spans, windows).tolist() == [
        [.5, .5, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [1 / 3, 1 / 3, 1 / 3]]
    teacher = load_teacher("cpu")
    source, windows = Toy.of("train", range(3), 4, teacher), []
    clips = source.clips
    source.clips = lambda i, rows, rng: windows.append(rows) or clips(i, rows, rng)
    reads = [NarratedVideos(source, 0, sentences=True)[0, video, 0] for video in (2, 1)]
    seen, said = torch.cat([read.seen for read in reads]), [read.said for read in reads]
    vision, spoken, both = (clip_features(teacher, seen, said, targets)
                            for targets in ("vision", "narration", "both"))
    assert (vision.norm(dim=-1) < .99).any()           # a mean of unit vectors
    torch.testing.assert_close(both, (vision / vision.norm(dim=-1, keepdim=True) + spoken) / 2)
    spans = np.array([sentence[:2] for sentence in source.narration(1)])
    share = averaging_weights(spans, windows[1])[0]
    heard = [text for part, (_, _, text) in zip(share, source.narration(1)) if part]
    mean = teacher.encode_sentences(heard).mean(0)
    torch.testing.assert_close(spoken[9], mean / mean.norm())
    texts = ["crack the egg", "heat the pan"]          # two sentences of one clip weigh the same
    raw = teacher.encode_texts(texts)
    halves, other = (raw / raw.norm(dim=-1, keepdim=True)).sum(0), raw.sum(0)
    assert (halves / halves.norm() - other / other.norm()).norm() > .01
    said = [(np.array([[.5, .5]], np.float32), texts)]
    torch.testing.assert_close(clip_features(teacher, None, said, "narration")[0],
                               halves / halves.norm())


def test_clips_that_coincide_are_nine_seconds_apart():
    """Catches: a distance of 0 where videos are of 9 s or less, by which no history can be cut."""
    source = Toy.of("train", range(2), 4)
    for i, n in enumerate((5, 9)):
        source.narrations[i] = [(t, t + 1.0, "now we stir it") for t in range(n)]
    spacing = clip_distance(source, 1)
    assert spacing == CLIP_SECONDS and history_windows(5.0, spacing).tolist() == [[0, 5]]


# --- Runs ---
def test_eq7_every_update_minimizes_the_sum_of_the_terms(trained, here):
    """Catches: a term left out or weighted; a mean over anything but the videos; draws or clips of
    another; a gradient that is cut, or not clipped to 1; another rate or decay."""
    weights.save("start.pt", randomized(weights.load(trained / "diffusion"), 0.1))
    call("train.py", *ONE, "--seed", "3", "--init", "start.pt", "--out", "run")
    before, after, (row,) = weights.load("start.pt").train(), weights.load("run"), rows_of("run")
    teacher, rows = load_teacher("cpu"), []
    source = Toy.of("train", range(6), 4, teacher)
    drawn = train.draw(6, 64, 4, "release", "observed", 3, 0)
    for place, video in enumerate(epoch_order(6, 3, 0)):                       # one at a time
        read = NarratedVideos(source, 3)[0, video, place]
        targets = soft_targets(teacher.encode_clips(read.seen), before.phrases, 0.045)
        rows.append(torch.cat(train.objective(before, read.clips[None], targets[None],
                                              *(part[place:place + 1] for part in drawn))[:3]))
    terms = torch.stack(rows).mean(0)                  # L_XE, L_MSE, L_MC
    assert [row["xe"], row["mse"], row["mc"]] == pytest.approx(terms.tolist(), rel=1e-4)
    assert row["loss"] == pytest.approx(terms.sum().item(), rel=1e-4) and row["step"] == 1
    terms.sum().backward()
    norm = float(sum((p.grad ** 2).sum() for p in before.parameters()) ** 0.5)
    assert norm > 1.2
    for (name, new), old in zip(after.named_parameters(), before.parameters()):
        expected = old - row["lr"] * (old.grad / norm + train.WEIGHT_DECAY * old)
        torch.testing.assert_close(new, expected, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("order", ["diffusion", "mask", "none"])
def test_a_run_folder_is_complete(trained, order):
    """Catches: settings not recorded, rows renamed or NaN, another rate or stage."""
    out = trained / order
    assert sorted(path.name for path in out.iterdir()) == ["checkpoint.pt", "config.json",
                                                           "metrics.jsonl"]
    settings, rows = read_json(out / "config.json")["settings"], rows_of(out)
    assert settings["order"] == order and settings["tau"] == 0.045
    assert len(rows) == 6
    for i, row in enumerate(rows):
        peak, step = (train.SGD_LR, train.SIZES["small"]["lr"])[i // 3], i % 3
        assert {*row} == ROW and row["step"] == i + 1 and row["epoch"] == (i + 1) / 4
        of_h = [row[name] for name in ("mse", "mc", "match_h")]
        assert of_h == [None] * 3 if order == "none" else None not in of_h
        assert row["loss"] == pytest.approx(row["xe"] + sum(filter(None, of_h[:2])), rel=1e-5)
        assert row["lr"] == pytest.approx(
            peak * min(1, (step + 1) / (.05 * 3 + 1), (3 - step) / (.95 * 3)))
    content = weights.checkpoint.read(out)
    group = content["optimizer"]["param_groups"][0]
    assert content["step"] == 6 and (group["betas"], group["weight_decay"]) == ((.9, .95), 1e-4)
    assert 10 < weights.load(out).config.spacing < 16    # s: of every second sentence


def test_real_videos_are_trained_as_the_paper_says(here, monkeypatch):
    """By the paper (Sec. 4): 5 epochs of SGD, then 25 of AdamW, 128 videos in each update; tau .02,
    T = 4, N = 9, four layers of h. By its release: a ViT-B of ImageNet on 8 frames of 224 pixels;
    peaks of 5e-3 and 5e-5. Catches: a default of the toy world, or another, for real videos."""
    Path("videos").mkdir()
    for name in "ab":
        Path(f"videos/{name}.mp4").touch()
    times = [*range(0, 100, 5)]
    said = {"start": times, "end": times, "text": [12 * "word "] * len(times)}
    Path("said.json").write_text(json.dumps({"a": said, "b": said}))
    Path("phrases.txt").write_text("crack egg\npour oil\n")
    starts, made = [], []

    def make_f(sizes):
        made.append(sizes)
        return SimpleNamespace(image=224, frames=8, seconds=None)

    def make_tiny(config, texts):
        made.append(config)
        return ProcedureModel(config, texts, Adapter(6, 8, 16), Denoiser(16, layers=1, heads=2))
    monkeypatch.setattr(VideoFolder, "duration", lambda self, i: 100.0)
    monkeypatch.setattr(VideoFolder, "clips", lambda self, i, windows, rng: (
        torch.rand(len(windows), 6), torch.rand(len(windows), 16)))
    monkeypatch.setattr(train, "open_teacher", lambda *args: SimpleNamespace(
        encode_phrases=lambda phrases: torch.eye(2, 16), encode_clips=lambda seen: seen,
        reads_sentences=True, size=224))
    monkeypatch.setattr(train, "open_start", lambda init, world: starts.append(init))
    monkeypatch.setattr(train.encoders, "make_encoder", make_f)
    monkeypatch.setattr(train, "build", make_tiny)
    call("train.py", "--data", "howto100m", "--videos", "videos", "--captions", "said.json",
         "--phrases", "phrases.txt", "--device", "cpu", "--workers", "0")
    sizes, config = made
    assert starts == ["timm"] and config.encoder == sizes
    assert sizes == dict(kind="timesformer", image=224, patch=16, frames=8, width=768, depth=12,
                         heads=12)
    assert config.denoiser["layers"] == 4 and len(config.alpha_bar) == 4 and config.tau == .02
    assert config.scale == 8 and config.alpha_bar == noise_levels(16).tolist()     # D = 16
    assert (config.order, config.stride) == ("diffusion", 2)
    assert read_json("runs/pretrain/config.json")["settings"]["batch"] == 128
    rows = rows_of("runs/pretrain")                    # an update is an epoch of the two videos
    assert len(rows) == 30
    for part, peak in (rows[:5], 5e-3), (rows[5:], 5e-5):
        rates = [row["lr"] for row in part]
        assert rates == [learning_rate(i, 0, len(part), peak) for i in range(len(part))]
    optimizer = weights.checkpoint.read("runs/pretrain")["optimizer"]["param_groups"][0]
    assert "betas" in optimizer and optimizer["weight_decay"] == 1e-4
    needed = [f"--{flag}={__file__}" for flag in ("videos", "captions", "phrases")]
    assert train.parse(["--data", "howto100m", "--encoder", "mvit", *needed]).init == "none"


def test_every_choice_trains(here, capsys, monkeypatch):
    """Catches: a choice that ends in a traceback, is ignored, or changes what it must not; a video
    with fewer than nine clips, as all have at --stride 3; --compile that compiles nothing, renames
    what is saved, or has no compiler."""
    compiled = []
    monkeypatch.setattr(nn.Module, "compile", lambda block: compiled.append(type(block).__name__))
    for choice in ("seed=0", "micro-batch=20", "compile", "encoder=mvit", "targets=both",
                   "targets=narration", "rows=paper", "context=shuffled", "stride=3"):
        call("train.py", *ONE, "--epochs", "1", "--lr", ".01", f"--{choice}", "--out", choice)
        run, plain = ([row["loss"] for row in rows_of(out)] for out in (choice, "seed=0"))
        assert len(run) == 2 and all(loss < 30 for loss in run), choice
        same = choice in ("seed=0", "micro-batch=20", "compile")       # two videos at once
        assert (run == pytest.approx(plain, rel=1e-5)) == same, choice
    assert sorted(compiled) == ["Denoiser", "ModifiedResNet", "TimeSformer"]
    names, plain = (weights.load(run).state_dict().keys() for run in ("compile", "seed=0"))
    assert names == plain
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "needs a C++ compiler" in fails(capsys, "train.py", *ONE, "--compile", "--out", "none")


def test_set_has_any_argument_of_f_and_h(here, capsys):
    """Catches: an argument that is ignored, or taken as text; another width after --resume."""
    small = "train.py", *ONE, "--order", "mask", "--out", "run"
    call(*small, "--set", "denoiser.layers=1", "encoder.width=32", "denoiser.dropout=0.5")
    config = weights.load("run").config
    assert config.denoiser == dict(layers=1, heads=4, dropout=.5) and config.encoder["width"] == 32
    settings = read_json("run/config.json")["settings"]
    assert settings["set"] == {"denoiser.layers": 1, "encoder.width": 32, "denoiser.dropout": .5}
    assert "has set {" in fails(capsys, *small, "--resume", "--set", "encoder.width=32")
    call("train.py", *ONE, "--out", "mvit", "--encoder", "mvit", "--set", "encoder.stages=[1,2]",
         "encoder.seconds=null")
    assert weights.load("mvit").config.encoder["stages"] == [1, 2]


@pytest.mark.parametrize("given, told", [
    ("width=32", "--set width=32: expected NAME=VALUE, of encoder.image, encoder.patch, "),
    ("encoder.stages=[1]", "encoder.heads, denoiser.layers, denoiser.heads, denoiser.dropout"),
    ("denoiser.dim=8", "--set denoiser.dim=8: expected NAME=VALUE"),
    ("denoiser.levels=8", "--set denoiser.levels=8: expected NAME=VALUE"),
    ("encoder.width", "--set encoder.width: the value must be a number"),
    ("encoder.width=many", "the value must be a number .* encoder.width"),
    ('encoder.width="64"', "the value must be a number"), ("encoder.width={}", "must be a number"),
    ("encoder.width=NaN", "must be a number"), ("encoder.width=1e9", "must be a number"),
    ('encoder.width=["a"]', "must be a number"), (f"encoder.width={'[' * 9999}", "be a number"),
    ("encoder.width=1.5", "TimeSformer cannot be made with .*'width': 1.5"),
    ("encoder.depth=0", "TimeSformer cannot read a clip "),
    ("encoder.heads=7", "TimeSformer cannot read a clip "),
    ("denoiser.heads=7", "Denoiser cannot be made with .*'heads': 7"),
    ("denoiser.dropout=2", "Denoiser cannot be made with .*'dropout': 2")])
def test_a_set_that_makes_no_model_is_one_line(here, capsys, given, told):
    """Catches: a traceback; an argument that --noise, the teacher or the data say; a line that
    does not say which names there are."""
    line = fails(capsys, "train.py", *ONE, "--out", "run", "--set", given)
    assert re.search(told, line), line
    assert not Path("run/checkpoint.pt").exists()


def test_without_h_there_is_none_to_set(here, capsys):
    """Catches: an argument of h that is ignored."""
    line = fails(capsys, "train.py", *ONE, "--order", "none", "--set", "denoiser.layers=1")
    assert "expected NAME=VALUE" in line and "denoiser.heads" not in line


def test_noise_is_two_levels_that_fall_or_the_releases(trained, here, capsys):
    """Catches: a flag that is ignored, the release's levels at our scale; levels that rise."""
    for given in "0.3 1.5", "1 1", "2 0", "nan 1", "2", "3 2 1", "relea":
        line = fails(capsys, "train.py", *ONE, "--noise", *given.split(), "--out", "run")
        assert f"--noise {given}:" in line and not Path("run").exists()
    call("train.py", *ONE, "--noise", "3", "0.5", "--out", "run")
    call("train.py", *ONE, "--noise", "release", "--out", "release")
    model, release = weights.load("run"), weights.load("release")
    assert torch.equal(model.alpha_bar, noise_levels(64, 3, 0.5)) and model.scale == 16
    assert torch.equal(release.alpha_bar, released_levels()) and release.scale == 1
