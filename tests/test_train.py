"""train.py as a user runs it, barely trained: objective, run folder, resuming, processes."""
import copy
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import train
import weights
from commands import call, read_json
from data import Loaded
from files.sources import shares
from slow import slow_entropy, slow_match
from toy import grammar
from toy.source import ToySource, load_teacher
from training import setup
from training.batches import clip_features, generator, groups, load_video
from training.rows import missing_rows
from weights.checkpoint import build_model, save

ROW = ["step", "epoch", "loss", "xe", "mse", "mc", "match", "match_h", "lr", "clips_per_s"]
ONE = "--toy-videos", "6", "--batch", "6", "--sgd-epochs", "1", "--epochs", "0"     # one update


def rows_of(out):
    """metrics.jsonl of a run."""
    return [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]


def same_run(a, b):
    """Whether two runs have the same losses and, bit for bit, the same weights and momenta."""
    ours, theirs = (torch.load(Path(out) / "checkpoint.pt", weights_only=True) for out in (a, b))
    tensors = [[*content["model"].values(), *(value for state in content["optimizer"][
        "state"].values() for value in state.values())] for content in (ours, theirs)]
    losses = [[(row["step"], row["loss"], row["lr"]) for row in rows_of(out)] for out in (a, b)]
    return losses[0] == losses[1] and ours["step"] == theirs["step"] and all(
        map(torch.equal, *tensors))


# --- The objective ---
def batch_of(source, seed, batch, clips):
    """The videos of the first update, a Loaded of each, as one process reads them."""
    args = SimpleNamespace(seed=seed, batch=batch)
    return [load_video(source, args, range(batch), clips, item) for item in range(batch)]


def terms_by_loops(model, loaded, features, kind, mask, seed):
    """L_XE, L_MSE, L_MC (Eqs. 8-10) of one video and the two shares, row by row without padding, in
    float64. Random numbers are drawn in the order of train.py. mask: x_j^t is 0, at the last level.
    """
    (video, windows), = loaded.requests
    x = model.encode(loaded.clips).double()                                        # (n, D)
    p = [slow_match(clip, model.phrases, model.tau) for clip in x]
    targets = [slow_match(row, model.phrases, model.tau) for row in features]
    xe = [slow_entropy(target, q) for target, q in zip(targets, p)]
    rows, places = missing_rows(windows, np.array([int(q.argmax()) for q in p]),
                                generator("rows", seed, 0, video), kind, "observed")
    T, rng = len(model.alpha_bar), generator("noise", seed, 0, video)
    t = rng.integers(T, size=len(rows))
    noise = torch.from_numpy(rng.standard_normal((len(rows), model.dim), np.float32)).double()
    mean, scale = model.standardize.mean.double(), model.standardize.variance.double() ** 0.5
    mse, mc, match_h = [], [], []
    for row, j, level, drawn in zip(rows.tolist(), places.tolist(), t, noise):
        clips = [i for i in row if i >= 0]
        z = (x[clips] - mean) / scale                                              # (n, D)
        level = T - 1 if mask else level
        signal = model.alpha_bar[level].double()
        zt = 0 * drawn if mask else signal ** 0.5 * z[j].detach() + (1 - signal) ** 0.5 * drawn
        observed = torch.tensor([[i != j for i in range(len(clips))]])
        z_hat = model.denoiser(zt[None].float(), z[None].float(), observed, torch.tensor([j]),
                               torch.tensor([level]))[0]
        x_hat, missing = mean + scale * z_hat, clips[j]
        q = slow_match(x_hat, model.phrases, model.tau)
        mse.append(((x_hat - x[missing].detach()) ** 2).sum())
        mc.append(slow_entropy(targets[missing], q))
        match_h.append(float(q.argmax() == targets[missing].argmax()))
    agree = [float(q.argmax() == target.argmax()) for q, target in zip(p, targets)]
    terms = {name: sum(values) / len(values) for name, values in dict(
        xe=xe, mse=mse, mc=mc, match=agree, match_h=match_h).items()}
    return terms | {"loss": terms["xe"] + terms["mse"] + terms["mc"]}


START = ("--sgd-epochs", "1", "--epochs", "0", "--seed", "3", "--init", "start.pt", "--tau", "0.05")


def random_start(order):
    """A random model, also in start.pt, and the world's teacher."""
    torch.manual_seed(5)
    teacher = load_teacher("cpu")
    model = build_model(teacher.encode_phrases(grammar.PHRASES), setup.TIMESFORMER["small"],
                        setup.DENOISER["small"], order=order, tau=0.05, pixels=(.4, .25),
                        alpha_bar=[.5, .2, .1, .05])
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    save("start.pt", model)
    return model, teacher


def assert_one_update(before, after, lr):
    """SGD made `after` of `before`, by its gradients, clipped to a norm of 1, and by decay."""
    norm = float(sum((p.grad ** 2).sum() for p in before.parameters()) ** 0.5)
    assert norm > 1.2
    for (name, new), old in zip(after.named_parameters(), before.parameters()):
        expected = old - lr * (old.grad / norm + train.WEIGHT_DECAY * old)
        torch.testing.assert_close(new, expected, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("order, kind", [("diffusion", "steps"), ("diffusion", "release"),
                                         ("diffusion", "paper"), ("mask", "steps")])
def test_eq7_every_update_minimizes_the_sum_of_the_terms_by_loops(here, order, kind):
    """Catches: a term left out, weighted, or of other clips; a gradient cut, or not clipped to 1;
    another order, kind of rows or target; a mean over clips or rows, not over videos; statistics of
    other clips; a share that counts something else."""
    model, teacher = random_start(order)
    call("train.py", *ONE, *START, "--order", order, "--rows", kind, "--out", "run")
    after = weights.load("run")
    before = copy.deepcopy(after).train()
    before.load_state_dict(model.state_dict())         # as it was, with the schedule of the run
    source = ToySource("train", 6, 4)
    teacher.watch(source)
    batch = batch_of(source, 3, 6, 16)
    every = [terms_by_loops(before, loaded, teacher.encode_clips(loaded.views), kind,
                            order == "mask", 3) for loaded in batch]
    terms = {name: sum(of[name] for of in every) / 6 for name in every[0]}
    terms["loss"].backward()
    row, = rows_of("run")
    for name, value in terms.items():
        assert row[name] == pytest.approx(float(torch.as_tensor(value).detach()), rel=1e-4), name
    assert_one_update(before, after, row["lr"])
    with torch.no_grad():
        before.standardize.add(torch.cat([before.encode(loaded.clips) for loaded in batch]))
    before.standardize.update()
    for name, value in before.standardize.state_dict().items():
        torch.testing.assert_close(after.standardize.state_dict()[name], value)


@pytest.mark.parametrize("context", ["observed", "bag"])
def test_groups_of_any_size_have_the_same_gradient(context):
    """Catches: a clip, a row or a draw that depends on the other videos of its group; a group that
    weighs more; statistics of a part."""
    args = train.parse(["--context", context, "--batch", "6"])
    source, teacher, found = ToySource("train", 6, 4), load_teacher("cpu"), []
    teacher.watch(source)
    batch = batch_of(source, args.seed, 6, 16)
    for most in 1, 3, 6:
        torch.manual_seed(0)
        model = build_model(teacher.encode_phrases(grammar.PHRASES), setup.TIMESFORMER["small"],
                            setup.DENOISER["small"], order="diffusion", tau=.05, pixels=(.4, .25),
                            alpha_bar=[.5, .2, .1, .05])
        for group in groups(iter(batch), 6, most, source, torch.device("cpu")):
            assert len(group.requests) == most
            terms, x = train.objective(model, group, teacher.encode_clips(group.views), 5, args)
            ((terms["xe"] + terms["mse"] + terms["mc"]).sum() / 6).backward()
            model.standardize.add(x)
        model.standardize.update()
        found.append((torch.cat([p.grad.flatten() for p in model.parameters()]),
                      torch.cat([b.flatten() for b in model.standardize.state_dict().values()])))
    for gradient, statistics in found[1:]:
        assert (gradient - found[0][0]).norm() < 1e-5 * found[0][0].norm()
        torch.testing.assert_close(statistics, found[0][1], rtol=1e-5, atol=1e-6)


def test_targets_of_both_are_the_mean_of_unit_vectors():
    """Catches: frames or speech of another length, which would count for more; one left out."""
    source, teacher = ToySource("train", 3, 4), load_teacher("cpu")
    teacher.watch(source)
    batch, = groups(iter(batch_of(source, 0, 3, 4)), 3, 3, source, torch.device("cpu"))
    vision, spoken, both = (clip_features(teacher, source, batch, targets)
                            for targets in ("vision", "narration", "both"))
    assert (vision.norm(dim=-1) < .99).any()           # a mean of unit vectors
    torch.testing.assert_close(both, (vision / vision.norm(dim=-1, keepdim=True) + spoken) / 2)
    video, windows = batch.requests[1]
    spans = np.array([sentence[:2] for sentence in source.sentences(video)])
    share = shares(spans, windows)[0]
    heard = [text for part, (_, _, text) in zip(share, source.sentences(video)) if part]
    mean = teacher.encode_sentences(heard).mean(0)
    place = len(batch.requests[0][1])
    torch.testing.assert_close(spoken[place], mean / mean.norm())


def test_sentences_of_a_window_by_hand():
    """Catches: a sentence of the next window, none in the window, the mean over all sentences."""
    spans = np.array([[0, 4], [3, 5], [20, 30]])                         # middles 2, 4, 25
    windows = np.array([[0, 9], [3, 9], [9, 16], [15, 24], [2, 25]], float)
    assert shares(spans, windows).tolist() == [
        [.5, .5, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [1 / 3, 1 / 3, 1 / 3]]


def test_every_update_draws_other_clips_and_crops(monkeypatch):
    """Catches: the squares of evaluation, the same ones, or the same clips in all updates; the same
    order of videos in all epochs; a video twice in an epoch, or in two processes."""
    source, drawn, starts = ToySource("train", 6, 4), [], set()
    monkeypatch.setattr(source, "load", lambda requests, rng: drawn.append(rng.random()) or
                        Loaded(requests, None, None, {}))
    args, shares = SimpleNamespace(seed=0, batch=3), [range(0, 3, 2), range(1, 3, 2)]
    orders = []
    for epoch in range(3):
        orders.append([load_video(source, args, share, 4, item).requests[0][0]
                       for update in (2 * epoch, 2 * epoch + 1) for share in shares
                       for item in range(update * len(share), (update + 1) * len(share))])
    assert all(sorted(order) == [*range(6)] for order in orders) and orders[0] != orders[1]
    assert len({*drawn}) == len(drawn) == 18
    for update in range(60):
        loaded = load_video(source, args, range(1), 4, update)
        starts.add((loaded.requests[0][0], loaded.requests[0][1][0, 0]))
    assert len(starts) > 20                            # of six videos


# --- Runs ---
@pytest.mark.parametrize("order", ["diffusion", "mask", "none"])
def test_a_run_folder_is_complete(trained, order):
    """Catches: settings or the commit not recorded, rows renamed or NaN, another rate or stage, a
    wrong sum."""
    out = trained / order
    assert {path.name for path in out.iterdir()} == {"checkpoint.pt", "config.json",
                                                     "metrics.jsonl"}
    config = read_json(out / "config.json")
    settings, commit = config["settings"], config["versions"]["commit"]
    told = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(train.__file__).parent,
                          capture_output=True, text=True)              # fails outside a repository
    assert (commit or "").removesuffix("-dirty") == told.stdout.strip()
    assert settings["order"] == order and settings["tau"] == 0.045 and settings["lr"] == 4e-3
    rows = rows_of(out)
    assert len(rows) == 6
    for i, row in enumerate(rows):
        peak, step = (train.SGD_LR, 4e-3)[i // 3], i % 3
        assert list(row) == ROW and row["step"] == i + 1
        assert row["loss"] == pytest.approx(row["xe"] + row["mse"] + row["mc"], rel=1e-5)
        assert (row["mse"] == row["mc"] == 0 and row["match_h"] is None) == (order == "none")
        assert row["lr"] == pytest.approx(
            peak * min(1, (step + 1) / (.05 * 3 + 1), (3 - step) / (.95 * 3)))
    content = torch.load(out / "checkpoint.pt", weights_only=True)
    group = content["optimizer"]["param_groups"][0]
    assert content["step"] == 6 and (group["betas"], group["weight_decay"]) == ((.9, .95), 1e-4)


def test_default_of_real_videos_is_the_papers():
    """Pins the defaults. Catches: the toy world's rate or size for real videos; ImageNet's ViT
    for an f that is none."""
    real, small = train.parse(["--data", "howto100m"]), train.parse(
        ["--data", "howto100m", "--size", "small"])
    assert (real.init, real.lr, real.batch, real.sgd_epochs, real.epochs, real.log_every,
            real.tau, real.size) == ("timm", 5e-5, 128, 5, 25, 1, .02, "base")
    toy = train.parse([])
    assert (small.lr, small.init, small.tau) == (toy.lr, toy.init, .02)
    assert (toy.rows, toy.order, toy.targets, toy.tau) == ("steps", "diffusion", "vision", .045)
    other = train.parse(["--data", "howto100m", "--lr", "1e-3", "--encoder", "mvit"])
    assert (other.lr, other.init) == (1e-3, "none")


def test_every_choice_trains(here):
    """Catches: a choice that ends in a traceback, is ignored, or changes what it must not."""
    for choice in ("seed=0", "encoder=mvit", "targets=both", "targets=narration", "order=none",
                   "micro-batch=7"):
        call("train.py", *ONE, "--epochs", "1", "--lr", ".01", f"--{choice}", "--out", choice)
        run, plain = ([row["xe"] for row in rows_of(out)] for out in (choice, "seed=0"))
        assert len(run) == 2 and all(xe < 20 for xe in run), choice
        same = choice in ("seed=0", "micro-batch=7")
        assert (run == pytest.approx(plain, rel=1e-4)) == same, choice
