"""`--recipe release`: what the authors' code does, against its losses by loops; its commands."""
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from commands import ONE, call, fails, read_json, rows_of
from slow import draw, randomized, slow_h, slow_match
from test_finetune import TUNE
from test_train import tiny
from torch.nn import functional

import finetune
import train
import weights
from data import NarratedVideos
from diffusion import released_levels
from pseudo_labels import soft_targets
from support import release
from support.run import learning_rate
from support.workers import epoch_order
from toy.__main__ import export
from toy.source import Toy, load_teacher

RELEASE = "--recipe", "release"


# --- The objective and its draws ---
def slow_release(model, v, targets, noise, j, observed, perm):
    """The loss of the release, of a batch, by torch's own losses: KL of 9 B + 4 B rows, with the
    entropy of the targets that it takes off added again; MSE of T B rows. (T = 3 here.) And how
    often f's and h's likeliest phrase is the teacher's, in each video."""
    rows, wanted, predicted, true = [], [], [], []
    T, scale = len(model.alpha_bar), model.scale
    for b, video in enumerate(v):
        x = [model.encode(clip[None])[0] for clip in video]
        for i, clip in enumerate(x):
            rows.append(slow_match(clip, model.phrases, model.tau))
            wanted.append(targets[b, i])
        z = torch.full((len(x), len(x[0])), 99.0)
        for i in range(len(x)):
            if observed[b, i]:
                z[i] = scale * x[perm[b, i]]
        known = scale * x[j[b]]                        # what is noised
        for t in range(T - 1, -1, -1):
            a, level = float(model.alpha_bar[t]), t
            zt = math.sqrt(a) * known.detach() + math.sqrt(1 - a) * noise[b, t]
            if model.config.order == "mask":
                zt, level = 0 * zt, T - 1
            known = slow_h(dict(model.denoiser.named_parameters()), model.denoiser.heads, zt, z,
                           observed[b], int(j[b]), level)
            predicted.append(known / scale)
            true.append(x[j[b]])                       # not detached
            rows.append(slow_match(known, model.phrases, model.tau))
            wanted.append(targets[b, j[b]])
    rows, wanted = torch.stack(rows), torch.stack(wanted)
    assert len(rows) == (9 + T) * len(v)
    right = (rows.argmax(-1) == wanted.argmax(-1)).float().view(len(v), 9 + T)
    shares = right[:, :9].mean(1), right[:, 9:].mean(1)
    kl = functional.kl_div(rows.log(), wanted, reduction="batchmean")
    entropy = -(wanted * wanted.log()).sum() / len(rows)
    return kl + entropy + functional.mse_loss(torch.stack(predicted), torch.stack(true)), *shares


@pytest.mark.parametrize("order, rows, context", [
    ("diffusion", "release", "observed"), ("diffusion", "paper", "shuffled"),
    ("mask", "release", "observed")])
def test_the_released_objective_by_loops(float64, order, rows, context):
    """Catches: a target of L_MSE that is detached, or a link of the chain that is not; the same
    noise at two levels, or levels from the other end; rows weighted by term; a sum over D; the
    scale left out."""
    model, v, targets = tiny(order)
    given = v, targets, *train.released_draw(2, 16, 3, rows, context, 0, 35)
    xe, mse, mc, of_f, of_h = release.objective(model, *given)
    slow, *shares = slow_release(model, *given)
    for ours, expected in zip((of_f, of_h), shares, strict=True):
        torch.testing.assert_close(ours, expected, check_dtype=False)
    assert of_h[0] != of_h[1]                          # else another video's targets would do
    ours = (xe + mse + mc).mean()
    torch.testing.assert_close(ours, slow, rtol=1e-5, atol=1e-5)
    ours, slow = (torch.autograd.grad(loss, [*model.parameters()]) for loss in (ours, slow))
    for one, other in zip(ours, slow):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_the_draws_of_the_release():
    """Catches: a clip that is missing more often; x_j observed; a tail that begins before j, or is
    of another row; the draws of another update."""
    noise, j, observed, perm = train.released_draw(900, 2, 4, "release", "observed", 0, 5)
    assert noise.shape == (900, 4, 2) and abs(noise.mean()) < .05 and abs(noise.std() - 1) < .05
    assert j.bincount(minlength=9).min() > 60
    assert (perm == torch.arange(9)).all()
    hidden = 0
    for place, seen in zip(j.tolist(), observed.tolist()):
        assert all(seen[:place]) and not seen[place]
        tail = seen[place + 1:]
        assert tail == sorted(tail, reverse=True)
        assert not tail or not tail[-1]                # from j + 1 .. N - 1 on, all is hidden
        hidden += len(tail) - sum(tail)
    assert hidden > 900
    paper = train.released_draw(900, 2, 4, "paper", "observed", 0, 5)
    assert (paper[2].sum(1) == 8).all() and torch.equal(paper[0], noise)
    for seed, update in (0, 6), (1, 5):
        other = train.released_draw(900, 2, 4, "release", "observed", seed, update)
        assert not torch.equal(other[0], noise) and not torch.equal(other[1], j)


def test_the_targets_of_the_release_by_loops():
    """Catches: speech at length 1; more than five phrases, or five that do not sum to 1; a pool of
    fewer; a gradient."""
    teacher, texts = load_teacher("cpu"), ["crack the egg", "heat the pan", "stir it"]
    seen, share = torch.rand(2, 64), np.array([[.5, .5, 0], [0, 0, 1]], np.float32)
    said = [(share, texts)]
    raw = teacher.model.encode_text(teacher.tokenizer(texts)).detach()
    spoken = torch.stack([(raw[0] + raw[1]) / 2, raw[2]])
    assert (spoken.norm(dim=-1) - 1).abs().min() > .05         # else nothing would be tested
    for targets, expected in (("vision", seen), ("narration", spoken),
                              ("both", (seen + spoken) / 2)):
        features = release.clip_features(teacher, seen, said, targets)
        torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)
    for K in 12, 3:
        phrases = draw(K, 64).float().requires_grad_()
        p, kept = soft_targets(seen, phrases, .3), release.soft_targets(seen, phrases, .3)
        assert not kept.requires_grad
        for row, whole in zip(kept, p):
            best = sorted(range(K), key=whole.tolist().__getitem__)[-5:]
            for k in range(K):
                share = whole[k] / whole[best].sum() if k in best else 0.0
                assert row[k].item() == pytest.approx(float(share), abs=1e-6)


def test_rates_are_cut_where_the_release_cuts_them():
    """Catches: a rise; a cut one update late, or by rounding; the cuts of the other stage."""
    peak = train.SGD_LR
    cuts = train.recipe_of(train.parse([*RELEASE])).cuts
    rates = [train.rate_of(update, 50, 300, .1, cuts) for update in range(300)]
    assert rates[:50] == pytest.approx([peak] * 20 + [peak / 10] * 20 + [peak / 100] * 10)
    assert rates[50:] == pytest.approx([.1] * 150 + [.01] * 80 + [.001] * 20)
    for name, cuts in ("classify", (11, 14, 15)), ("forecast", (22, 28, 30)), (
            "actions", (30, 40, 50)):
        settings = finetune.settings_of(name, "release")
        steps = [learning_rate(7 * epoch + i, 0, 7 * cuts[-1], 1.0, settings.cuts)
                 for epoch in range(cuts[-1]) for i in range(7)]
        assert settings.epochs == cuts[-1]
        assert [steps.count(rate) for rate in sorted({*steps}, reverse=True)] == [
            7 * cuts[0], 7 * (cuts[1] - cuts[0]), 7 * (cuts[2] - cuts[1])]


# --- Runs ---
def test_an_update_of_the_release(trained, here, capsys):
    """Catches: a part of the recipe that the command does not take; a term left out; a gradient
    that is clipped; another optimizer; a slice that depends on the others; another recipe resumed.
    """
    weights.save("start.pt", randomized(weights.load(trained / "diffusion"), 0.1))
    flags = "train.py", *ONE, *RELEASE, "--seed", "3", "--init", "start.pt", "--out"
    call(*flags, "run")
    before, after, (row,) = weights.load("start.pt").train(), weights.load("run"), rows_of("run")
    settings = read_json("run/config.json")["settings"]
    assert settings == settings | dict(recipe="release", noise="release", targets="both",
                                       rows="release", batch=6)
    assert torch.equal(after.alpha_bar, released_levels()) and after.scale == 1
    before.alpha_bar, before.scale = after.alpha_bar, 1.0
    teacher, rows = load_teacher("cpu"), []
    source, videos = Toy.of("train", range(6), 4, teacher), epoch_order(6, 3, 0)
    drawn = train.released_draw(6, 64, 4, "release", "observed", 3, 0)
    for place, video in enumerate(videos):
        read = NarratedVideos(source, 3, sentences=True)[0, video, place]
        features = release.clip_features(teacher, read.seen, [read.said])
        targets = release.soft_targets(features, before.phrases, 0.045)[None]
        part = [one[place:place + 1] for one in drawn]
        rows.append(torch.cat(release.objective(before, read.clips[None], targets,
                                                       *part)[:3]))
    terms = torch.stack(rows).mean(0)
    assert [row["xe"], row["mse"], row["mc"]] == pytest.approx(terms.tolist(), rel=1e-4)
    assert 0 <= row["match_h"] <= 1 and row["lr"] == train.SGD_LR
    terms.sum().backward()
    for (name, new), old in zip(after.named_parameters(), before.parameters()):
        step = old.grad + train.WEIGHT_DECAY * old
        expected = old - row["lr"] * 1.9 * step            # Nesterov's first step: g + .9 g
        torch.testing.assert_close(new, expected, rtol=1e-3, atol=1e-6, msg=name)
    call(*flags, "slices", "--micro-batch", "20")
    assert rows_of("slices")[0]["loss"] == pytest.approx(row["loss"], rel=1e-5)
    line = fails(capsys, "train.py", *ONE, "--seed", "3", "--init", "start.pt", "--noise",
                 "release", "--targets", "both", "--out", "run", "--resume")
    assert "has recipe release, not paper" in line


def test_a_given_flag_wins_over_the_recipe(here):
    """Catches: a flag that the recipe overrides, or a recipe that is always on; a variant that does
    not go with the recipe."""
    assert vars(train.parse([])) == vars(train.parse([])) | dict(
        recipe="paper", noise=(2.0, .3), targets="vision")
    args = train.parse([*RELEASE, "--noise", "2", "0.3", "--targets", "vision", "--rows", "paper",
                        "--lr", ".5"])
    assert (args.noise, args.targets, args.rows, args.lr) == ((2.0, .3), "vision", "paper", .5)
    adamw = "--sgd-epochs", "0", "--epochs", "1", "--batch", "3"       # two updates
    for choice in "noise=release", "order=mask", "order=none", "context=shuffled", "targets=vision":
        call("train.py", *ONE, *RELEASE, *adamw, f"--{choice}", "--out", choice)
        (first, row), model = rows_of(choice), weights.load(choice)
        assert first["lr"] == row["lr"] == train.SIZES["small"]["lr"] and 0 < row["loss"] < 100
        assert (row["mc"] is None) == (choice == "order=none") and model.scale == 1
    group, = weights.checkpoint.read("noise=release")["optimizer"]["param_groups"]
    assert group["betas"] == (.9, .999)
    call("train.py", *ONE, *RELEASE, "--noise", "2", "0.3", "--out", "levels")
    assert weights.load("levels").scale == 16


# --- Fine-tuning ---
@pytest.mark.parametrize("task, epochs", [("classify", 15), ("forecast", 30), ("activity", 30)])
def test_fine_tuned_by_the_release(trained, here, task, epochs):
    """Catches: AdamW; a rate that rises, or is not cut; logits of a forecast that are divided by
    tau, at which SGD diverges, or that are not where they should be; a flag that does not win."""
    args = finetune.parse(["--task", task, *RELEASE])
    assert (args.epochs, args.lr) == (epochs, 5e-3)
    assert finetune.parse(["--task", task, *RELEASE, "--epochs", "2", "--lr", ".5"]).lr == .5
    call("train.py", *TUNE, "--task", task, *RELEASE, "--epochs", "2", "--init",
         trained / "diffusion", "--out", "run")
    rates, updates = [row["lr"] for row in rows_of("run")], len(rows_of("run"))
    assert rates == [learning_rate(i, 0, updates, 5e-3, (11 / 15, 14 / 15)) for i in range(updates)]
    assert all(row["loss"] < 20 for row in rows_of("run"))
    group, = weights.checkpoint.read("run")["optimizer"]["param_groups"]
    assert (group["momentum"], group["weight_decay"]) == (.9, 1e-4)
    model, x = weights.load("run"), torch.randn(3, 64)
    logits = model.classifier(x)
    if task == "classify":
        logits = logits / model.tau
    torch.testing.assert_close(model.classify(x)[0], logits.log_softmax(-1))
    call("evaluate.py", "--task", task, "--toy-videos", "2", "--checkpoint", "run")


def test_two_clips_of_an_action_are_mixed(monkeypatch):
    """Catches: clips mixed by one share and labels by another; partners that depend on the slice;
    a clip without a neighbor that is changed; frames that RandAugment changes each in its way; the
    losses of verb and noun summed."""
    clips = torch.randint(256, (5, 4, 3, 8, 8), dtype=torch.uint8)
    model = SimpleNamespace(config=SimpleNamespace(classes=[3, 6]), encoder=lambda pixels: pixels,
                            normalize=lambda clips: clips.float().transpose(1, 2))
    labels, places = torch.tensor([[0, 5], [1, 4], [2, 3], [0, 0], [1, 1]]), [0, 1, 2, 3, 4]
    with monkeypatch.context() as patch:
        patch.setattr(finetune, "AUGMENT", torch.clone)
        torch.manual_seed(0)
        x, targets = finetune.see_mixed(model, clips, labels, places)
        torch.manual_seed(0)
        parts = [finetune.see_mixed(model, clips[rows], labels[rows], places[rows])
                 for rows in (slice(0, 2), slice(2, 5))]
    assert all(torch.equal(torch.cat(both), one) for both, one in zip(zip(*parts), (x, targets)))
    pixels, shares = model.normalize(clips), []
    for row, other in (0, 1), (1, 0), (2, 3), (3, 2):
        verb, noun = labels[row].tolist()
        share = targets[row, verb].item()
        expected = share * pixels[row] + (1 - share) * pixels[other]
        torch.testing.assert_close(x[row], expected, rtol=1e-4, atol=1e-3)
        wanted = torch.zeros(9)
        for k, part in (row, share), (other, 1 - share):
            wanted[labels[k, 0]] += part
            wanted[3 + labels[k, 1]] += part
        torch.testing.assert_close(targets[row], wanted)
        shares.append(share)
    assert shares[0] == pytest.approx(shares[1]) and shares[1] != pytest.approx(shares[2])
    torch.testing.assert_close(x[4], pixels[4])

    log_p = [draw(5, 3).log_softmax(-1), draw(5, 6, seed=1).log_softmax(-1)]
    loss = finetune.mixed_loss(log_p, targets)
    for row in range(5):
        verb, noun = targets[row].split([3, 6])
        by_hand = -(verb @ log_p[0][row].float() + noun @ log_p[1][row].float()) / 2
        assert loss[row].item() == pytest.approx(by_hand.item(), rel=1e-4)

    still, changed = clips[:1, :1].expand(1, 4, -1, -1, -1), 0
    for seed in range(8):
        torch.manual_seed(seed)
        x, _ = finetune.see_mixed(model, still, labels[:1], [0])
        assert (x == x[:, :, :1]).all()                    # all frames are alike
        changed += not torch.equal(x, model.normalize(still))
    assert changed > 3


def test_actions_of_epic_by_the_release(trained, here, monkeypatch):
    """Catches: f's last layer trained, or all of f frozen; a slice that ends between two neighbors;
    a run that depends on the slices."""
    mixed, loss_of = [], finetune.mixed_loss
    monkeypatch.setattr(finetune, "mixed_loss", lambda log_p, targets: (
        mixed.append(targets) or loss_of(log_p, targets)))
    export(here / "world", 3, 0)
    names = sorted(path.stem for path in (here / "world" / "videos").iterdir())
    rows = [f"{name},00:00:{10 * i:02d}.00,00:00:{10 * i + 4:02d}.50,{i},{2 * i}"
            for name in names for i in range(2)]
    Path("EPIC_100_train.csv").write_text("\n".join(
        ["video_id,start_timestamp,stop_timestamp,verb_class,noun_class", *rows]))
    tune = ("train.py", "--stage", "finetune", "--data", "epic", "--annotations",
            "EPIC_100_train.csv", "--videos", "world", "--init", trained / "diffusion", *RELEASE,
            "--epochs", "2", "--batch", "5", "--out")
    call(*tune, "run", "--micro-batch", "3")
    call(*tune, "whole", "--micro-batch", "0")
    assert [len(part) for part in mixed] == [2, 2, 1] * 2 + [4, 1] * 2         # two updates each
    assert torch.equal(torch.cat(mixed[:6]), torch.cat(mixed[6:]))
    losses = [[row["loss"] for row in rows_of(run)] for run in ("run", "whole")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and len(losses[0]) == 2
    assert all(loss < 200 for loss in losses[0])
    group, = weights.checkpoint.read("run")["optimizer"]["param_groups"]
    assert "betas" in group and group["weight_decay"] == 5e-2
    model, before = weights.load("run"), weights.load(trained / "diffusion")
    changed = {name.split(".")[0] for name, new in model.encoder.named_parameters()
               if name != "time_embed" and not torch.equal(
                   new, before.encoder.get_parameter(name))}
    assert "blocks" in changed and "head" not in changed
