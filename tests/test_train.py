"""train.py as a user runs it, barely trained: objective, run folder, resuming, processes."""
import copy
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import train
import weights
from commands import call, fails, read_json
from conftest import TINY, log_and_save_every
from data import missing_rows
from slow import slow_entropy, slow_match
from toy import grammar
from toy.source import ToySource, load_teacher
from training.batches import load_batch, spoken_during, teacher_features
from weights.checkpoint import build_model, save

ROOT = Path(__file__).parents[1]
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)      # Windows has none
ROW = ["step", "epoch", "loss", "xe", "mse", "mc", "match", "order", "lr", "clips_per_s"]
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
def terms_by_loops(model, batch, features, kind, mask, seed):
    """L_XE, L_MSE, L_MC (Eqs. 8-10) and the two shares, row by row without padding, in float64.

    Random numbers are drawn in the order of train.py. mask: x_j^t is 0, at the last level.
    """
    x = model.encode(batch.clips).double()                                         # (C, D)
    model.standardize.update(x.detach().float())
    p = [slow_match(clip, model.phrases, model.tau) for clip in x]
    targets = [slow_match(row, model.phrases, model.tau) for row in features]
    xe = [slow_entropy(target, q) for target, q in zip(targets, p)]
    torch.manual_seed(seed * 1_000_003)
    rows, places = missing_rows([windows for _, windows in batch.requests],
                                np.array([int(q.argmax()) for q in p]),
                                np.array([float(q.detach().max().log()) for q in p]), kind,
                                np.random.default_rng((seed, 3, 0, 0)))
    T = len(model.alpha_bar)
    t, noise = torch.randint(T, places.shape), torch.randn(len(rows), model.dim).double()
    mean, scale = model.standardize.mean.double(), model.standardize.variance.double() ** 0.5
    mse, mc, order = [], [], []
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
        order.append(float(q.argmax() == targets[missing].argmax()))
    agree = [float(q.argmax() == target.argmax()) for q, target in zip(p, targets)]
    terms = {name: sum(values) / len(values) for name, values in dict(
        xe=xe, mse=mse, mc=mc, match=agree, order=order).items()}
    return terms | {"loss": terms["xe"] + terms["mse"] + terms["mc"]}


@pytest.mark.parametrize("order, kind", [("diffusion", "steps"), ("diffusion", "clips"),
                                         ("diffusion", "paper"), ("mask", "steps")])
def test_eq7_every_update_minimizes_the_sum_of_the_terms_by_loops(here, order, kind):
    """Catches: a term left out, weighted, or of other clips; a gradient cut, or not clipped to 1;
    another order, kind of rows or target; a share that counts something else."""
    torch.manual_seed(5)
    teacher = load_teacher("cpu")
    model = build_model(teacher.encode_phrases(grammar.PHRASES), train.TIMESFORMER["small"],
                        train.DENOISER["small"], order=order, tau=0.3, pixels=(.4, .25),
                        alpha_bar=[.5, .2, .1, .05])
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    save("start.pt", model)
    call("train.py", *ONE, "--seed", "3", "--init", "start.pt", "--order", order, "--rows", kind,
         "--tau", "0.3", "--out", "run")
    after = weights.load("run")
    before = copy.deepcopy(after).train()
    before.load_state_dict(model.state_dict())         # as it was, with the schedule of the run
    args = train.parse([*ONE, "--seed", "3"])
    source = ToySource("train", 6, 4, teacher)
    batch = load_batch(source, args, 16, 0)
    terms = terms_by_loops(before, batch, teacher_features(source, batch, "vision"), kind,
                           order == "mask", 3)
    terms["loss"].backward()
    row, = rows_of("run")
    for name, value in terms.items():
        assert row[name] == pytest.approx(float(torch.as_tensor(value).detach()), rel=1e-4), name
    norm = sum((p.grad ** 2).sum() for p in before.parameters()) ** 0.5
    for (name, new), old in zip(after.named_parameters(), before.parameters()):
        gradient = old.grad / max(float(norm), 1) + train.WEIGHT_DECAY * old       # of SGD
        expected = old - row["lr"] * gradient
        torch.testing.assert_close(new, expected, rtol=1e-4, atol=1e-6, msg=name)


def test_sentences_of_a_window_by_hand():
    """Catches: a sentence of the next window, none in the window, the mean over all sentences."""
    sentences = [(0, 4, "a"), (3, 5, "b"), (20, 30, "c")]                # middles 2, 4, 25
    windows = np.array([[0, 9], [3, 9], [9, 16], [15, 24], [2, 25]], float)
    assert spoken_during(sentences, windows).tolist() == [
        [.5, .5, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [1 / 3, 1 / 3, 1 / 3]]


def test_every_update_draws_other_clips():
    """Catches: the same clips of a video in every epoch."""
    source, args = ToySource("train", 1, 4), train.parse(["--batch", "1"])
    starts = {load_batch(source, args, 4, update).requests[0][1][0, 0] for update in range(20)}
    assert len(starts) > 3


# --- Runs ---
@pytest.mark.parametrize("order", ["diffusion", "mask", "none"])
def test_a_run_folder_is_complete(trained, order):
    """Catches: settings not recorded, rows renamed or NaN, another rate or stage, a wrong sum."""
    out = trained / order
    assert {path.name for path in out.iterdir()} == {"checkpoint.pt", "config.json",
                                                     "metrics.jsonl"}
    settings = read_json(out / "config.json")["settings"]
    assert settings["order"] == order and settings["tau"] == 0.045 and settings["lr"] == 4e-3
    rows = rows_of(out)
    assert len(rows) == 6
    for i, row in enumerate(rows):
        peak, step = (train.SGD_LR, 4e-3)[i // 3], i % 3
        assert list(row) == ROW and row["step"] == i + 1
        assert row["loss"] == pytest.approx(row["xe"] + row["mse"] + row["mc"], rel=1e-5)
        assert (row["mse"] == row["mc"] == 0 and row["order"] is None) == (order == "none")
        assert row["lr"] == pytest.approx(
            peak * min(1, (step + 1) / (.05 * 3 + 1), (3 - step) / (.95 * 3)))
    content = torch.load(out / "checkpoint.pt", weights_only=True)
    assert content["step"] == 6 and content["optimizer"]["param_groups"][0]["betas"] == (.9, .95)


def test_default_of_real_videos_is_the_papers():
    """Pins the defaults. Catches: the embedded world's rate or size for real videos."""
    real, small = train.parse(["--data", "howto100m"]), train.parse(
        ["--data", "howto100m", "--size", "small"])
    assert (real.init, real.lr, real.batch, real.sgd_epochs, real.epochs, real.micro_batch,
            real.tau, real.size) == ("timm", 5e-5, 128, 5, 25, 24, .02, "paper")
    toy = train.parse([])
    assert (small.lr, small.init, small.tau) == (toy.lr, toy.init, .02)
    assert (toy.rows, toy.order, toy.targets, toy.tau) == ("steps", "diffusion", "vision", .045)
    assert train.parse(["--data", "howto100m", "--lr", "1e-3"]).lr == 1e-3


def run_in_process(*argv, **popen):
    """A training as a process of its own, whose rows and checkpoints come every three updates."""
    # Ctrl-C is ignored in background jobs, unless Python is told otherwise.
    code = ("import pytest, signal, train; from conftest import log_and_save_every as every\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "every(3, pytest.MonkeyPatch()); from support.errors import run\n"
            "run(train.main, train.parse)")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
                        "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, argv)], env=env, text=True,
                            stderr=subprocess.PIPE, **popen)


LONG = "--toy-videos", "16", "--batch", "4", "--sgd-epochs", "1", "--epochs", "3"   # 16 updates


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run of LONG."""
    out = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        log_and_save_every(3, patch)
        call("train.py", *LONG, "--out", out)
    return out


@pytest.mark.parametrize("number", [KILL, signal.SIGINT], ids=["kill", "ctrl-c"])
def test_promise_24_a_killed_run_is_resumed_to_the_same_bits(here, monkeypatch, whole, number):
    """Catches: draws that depend on the past, momenta lost, a row twice; a worker left behind, a
    traceback or another status after Ctrl-C."""
    process = run_in_process(*LONG, "--out", "run", "--workers", "1")
    until = time.time() + 100
    while not Path("run/checkpoint.pt").exists() and time.time() < until:
        time.sleep(0.05)
    process.send_signal(number)
    error = process.communicate(timeout=60)[1]
    if number == signal.SIGINT:
        assert process.returncode == 130 and "KeyboardInterrupt" not in error
    log_and_save_every(3, monkeypatch)
    with open("run/metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 9')                       # killed while it wrote
    call("train.py", *LONG, "--out", "run", "--resume")
    assert same_run("run", whole)


def test_promise_24_a_full_disk_leaves_the_last_checkpoint(here, capsys, monkeypatch, whole):
    """Catches: a checkpoint cut off, a traceback; a resumed run that differs, also if the source
    has another noise schedule by then, or if it had ended."""
    log_and_save_every(3, monkeypatch)
    save_file, saved = torch.save, []

    def fill(content, file):
        saved.append(content["step"])
        if len(saved) == 3:
            file.write(b"part")
            raise OSError(28, "No space left on device")
        save_file(content, file)
    monkeypatch.setattr(torch, "save", fill)
    assert "No space left" in fails(capsys, "train.py", *LONG, "--out", "run")
    assert torch.load("run/checkpoint.pt", weights_only=True)["step"] == 6
    assert len(list(Path("run").iterdir())) == 3       # no part of a file is left
    monkeypatch.setattr(train, "noise_levels", lambda D: torch.tensor([.4, .3, .2, .1]))
    for _ in range(2):
        call("train.py", *LONG, "--out", "run", "--resume")
        assert same_run("run", whole)


def test_promise_12_and_13_a_run_is_not_mixed_with_another(trained, here, capsys):
    """Catches: a checkpoint overwritten, another run's settings taken; a run that cannot begin, or
    keeps the rows of one that ended before its first checkpoint."""
    out = trained / "mask"
    line = fails(capsys, "train.py", *TINY, "--order", "mask", "--out", out)
    assert "--resume" in line and "choose another" in line
    line = fails(capsys, "train.py", *TINY, "--order", "mask", "--lr", "0.1", "--out", out,
                 "--resume")
    assert "--lr 0.004, not 0.1" in line
    assert weights.load(out).order == "mask" and len(rows_of(out)) == 6
    assert "no update" in fails(capsys, "train.py", *ONE[:4], "--sgd-epochs", "0", "--epochs", "0")
    Path("new").mkdir()
    Path("new/metrics.jsonl").write_text('{"step": 1}\n')
    call("train.py", *ONE, "--out", "new", "--resume")
    assert len(rows_of("new")) == 1


def test_promise_14_a_loss_that_is_not_finite_ends_the_run(here, capsys, monkeypatch):
    """Catches: NaN in a checkpoint, training on; another status."""
    calls = []

    def broken(log_p, targets):
        calls.append(1)
        return log_p.sum() * (float("nan") if len(calls) == 3 else 1.0)
    monkeypatch.setattr(train, "xe_loss", broken)
    line = fails(capsys, "train.py", *LONG, "--out", "run", status=1)
    assert "update 3" in line and "--lr" in line
    content = torch.load("run/checkpoint.pt", weights_only=True)
    assert content["step"] == 2
    assert all(value.isfinite().all() for value in content["model"].values())


def test_promise_10_and_11_memory_and_workers(here, capsys, monkeypatch):
    """Catches: a traceback for too little memory, or for a killed worker."""
    def full(*args):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    with monkeypatch.context() as patch:
        patch.setattr(train, "encode_parts", full)
        line = fails(capsys, "train.py", *ONE, "--out", "run")
    assert "--micro-batch" in line and "--batch" in line
    load = ToySource.load

    def killed(self, requests, rng=None):
        if torch.utils.data.get_worker_info():
            os.kill(os.getpid(), KILL)
        return load(self, requests, rng)
    monkeypatch.setattr(ToySource, "load", killed)
    assert "--workers" in fails(capsys, "train.py", *ONE, "--workers", "1", "--out", "two")


def test_promise_1_and_2_skipped_videos_are_counted_and_named(here, monkeypatch):
    """Catches: an unreadable video that ends the run, or is not named."""
    broken, load = grammar.make_video("train", 0).name, ToySource.load

    def load_some(self, requests, rng=None):
        kept = [request for request in requests if self.videos[request[0]].name != broken]
        failed = {broken: "cut off"} if len(kept) < len(requests) else {}
        loaded = load(self, kept or [(1, np.array([[0., 9.]]))], rng)
        return loaded._replace(failed=failed, requests=loaded.requests if kept else [])
    monkeypatch.setattr(ToySource, "load", load_some)
    flags = "--toy-videos", "8", "--batch", "1", "--sgd-epochs", "1", "--epochs", "0"
    call("train.py", *flags, "--max-unreadable", "0.2", "--out", "run")
    assert read_json("run/unreadable.json") == {broken: "cut off"} and len(rows_of("run")) == 8


# --- Processes and parts ---
def test_promise_25_and_two_processes(here, capsys, monkeypatch):
    """Catches: processes that drift apart, shares that overlap, files written twice; more processes
    than GPUs without a line."""
    flags = "--toy-videos", "16", "--batch", "8", "--sgd-epochs", "1", "--epochs", "2", "--device"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
               "2", str(ROOT / "train.py"), *flags, "cpu", "--out", "two"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr[-2000:]
    call("train.py", *flags, "cpu", "--out", "one")
    two, one = torch.load("two/checkpoint.pt", weights_only=True), torch.load(
        "one/checkpoint.pt", weights_only=True)
    assert two["step"] == one["step"] == 6
    for name, value in one["model"].items():           # other rows and noise, the same clips
        assert (two["model"][name].float() - value).abs().mean() < 0.02, name
    assert [row["step"] for row in rows_of("two")] == [6]
    for name, value in {"WORLD_SIZE": "2", "LOCAL_RANK": "1", "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert "in one process" in fails(capsys, "train.py", "--stage", "finetune", "--init", "one")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(train, "pick_device", lambda name: torch.device("cuda"))
    assert "1 GPUs" in fails(capsys, "train.py", *flags, "cpu", "--out", "three")


@pytest.mark.parametrize("flags", [("--encoder", "mvit"), ("--targets", "both"),
                                   ("--targets", "narration"), ("--micro-batch", "7")])
def test_every_choice_trains(here, flags):
    """Catches: a choice that ends in a traceback, or changes what it must not."""
    call("train.py", *ONE, *flags, "--out", "run")
    call("train.py", *ONE, "--out", "default")
    row, plain = rows_of("run")[0], rows_of("default")[0]
    assert (abs(row["loss"] - plain["loss"]) < 1e-4) == ("--micro-batch" in flags)
