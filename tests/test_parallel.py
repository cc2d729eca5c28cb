"""A step divided: over processes (copies of this one, by gloo) and into micro-batches."""
import multiprocessing
import os
import signal
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

import data
import test_loading
import train
from commands import TINY, call, randomized, read_rows
from support.device import memory_of
from test_model import D, F
from train import TrainSettings
from training import pretrain, run
from weights.checkpoint import build_model


class Source(test_loading.Source):
    """Videos whose clips' pixels and teacher's features are drawn from their places."""
    counts = [3, 9, 1, 5, 0, 2]

    def load(self, requests, rng=None):
        places = super().load(requests)
        draw = [np.random.default_rng((int(video), int(middle)))
                for video, middle, _ in places.clips.tolist()]
        clips = [torch.from_numpy(rng.integers(256, size=(2, 3, 8, 8), dtype=np.uint8))
                 for rng in draw]
        views = [torch.from_numpy(rng.standard_normal(D)).float() for rng in draw]
        return data.Loaded(places.requests, *(torch.stack(rows) if draw else torch.empty(0)
                                              for rows in (clips, views)), places.failed)

    def teacher_features(self, views):
        return views


def build():
    """A tiny model with every weight random."""
    torch.manual_seed(0)
    return randomized(build_model(torch.randn(6, D), F, dict(layers=1, heads=2, clips=10),
                                  "diffusion", tau=.1, pixels=(.4, .2)), 0.3)


class Tiny(pretrain.Pretraining):
    """One step of pre-training `build` on Source, without a teacher or a checkpoint."""

    def __init__(self, settings, source):
        self.source, self.device = source, torch.device("cpu")
        stage = run.Stage("adamw", range(1), settings.batch, 1.0)
        run.Run.__init__(self, settings, build(), {}, [stage], None)


def gradients(out, batch, broken, micro_batch=None):
    """Losses, gradients and number of clips of the first step; the bytes that autograd keeps."""
    settings, held = TrainSettings(out=out, micro_batch=micro_batch, max_unreadable=1.0, missing=2,
                                   batch=batch, device="cpu"), {}
    done = Tiny(settings, Source(broken))

    def hold(x):
        held[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x
    with torch.autograd.graph.saved_tensors_hooks(hold, lambda x: x), pytest.MonkeyPatch.context(
            ) as patch:
        patch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *args: None)   # it hides lengths
        patch.setattr(pretrain, "Pretraining", lambda settings: done)
        train.main(settings)
    values = {name: p.grad for name, p in done.model.named_parameters()}
    values |= {f"loss {name}": value.detach() for name, value in done.terms.items()}
    return values | {"clips": torch.tensor(float(done.clips))}, sum(held.values())


def require_close(values, expected):
    """Two results of `gradients` are the same, up to rounding."""
    assert values.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(values[name], value, rtol=1e-4, atol=2e-6, msg=name)


def in_processes(work, world=2):
    """work(rank) in so many copies of this process, joined as by torchrun."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def one(rank):
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world),
                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        try:
            work(rank)
        except SystemExit as end:
            os._exit(end.code)
    processes = [multiprocessing.get_context("fork").Process(target=one, args=(rank,))
                 for rank in range(world)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(150)
        process.kill()                                 # one that waits in vain
    return [process.exitcode for process in processes]


@pytest.mark.parametrize("batch, broken", [(6, ()), (5, (1, 3)), (2, (3,))])
def test_two_processes_give_the_gradients_of_one(tmp_path, batch, broken):
    """Catches: means over a process's own clips, other noise in each, gradients summed, no clip."""
    def work(rank):
        torch.save(gradients(tmp_path, batch, broken)[0], tmp_path / f"{rank}.pt")
    assert in_processes(work) == [0, 0]
    one, _ = gradients(tmp_path, batch, broken)
    assert one["loss loss"] > 0 and one["clips"] > 0 and max(
        grad.abs().max() for name, grad in one.items() if name.startswith("encoder")) > 1e-3
    for rank in range(2):
        require_close(torch.load(tmp_path / f"{rank}.pt", weights_only=True), one)


def test_a_run_of_two_processes(trained, here, capfd):
    """Catches: files or rows written twice, a process that waits or stops at another step."""
    command = "train.py", *TINY, "--micro-batch", "5", "--out", "two"

    def interrupted(rank):
        if rank:
            register_optimizer_step_pre_hook(lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        call(*command)
    assert in_processes(interrupted) == [143, 143]
    assert torch.load("two/checkpoint.pt", weights_only=True)["step"] == 1
    capfd.readouterr()
    assert in_processes(lambda _: call(*command, "--resume")) == [0, 0]
    assert capfd.readouterr().out.count("parameters") == 1
    ours, one = read_rows("two"), read_rows(trained / "diffusion")
    assert [row["step"] for row in ours] == list(range(1, 7))
    assert [row["loss"] for row in ours] == pytest.approx(
        [row["loss"] for row in one], rel=3e-2)            # rounding may group clips otherwise
    assert {path.name for path in Path("two").iterdir()} == {
        path.name for path in (trained / "diffusion").iterdir()}


def test_a_process_that_is_killed_ends_the_others(here, capfd):
    """Catches: processes that wait for one that is gone, for hours; a traceback of gloo's."""
    def killed(rank):
        if rank:
            register_optimizer_step_pre_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        call("train.py", *TINY, "--out", "two")
    assert in_processes(killed) == [2, -signal.SIGKILL]
    err = capfd.readouterr().err
    assert "has another process ended, and said why?" in err and "Traceback" not in err
    assert err.count("train.py: error: ") == 1 and err.endswith("?\n")


@pytest.mark.parametrize("part", [1, 4, 100])
def test_micro_batches_give_the_gradients_of_the_whole(tmp_path, part):
    """Catches: a loss averaged over unequal parts, a clip left out or twice; no less memory."""
    expected, whole = gradients(tmp_path, 6, ())
    values, parts = gradients(tmp_path, 6, (), part)
    require_close(values, expected)
    size, _ = pretrain.measure_clip(build(), torch.device("cpu"))
    assert whole - parts > .9 * size * sum(Source.counts)


def test_the_micro_batch_follows_the_memory(monkeypatch):
    """Catches: a run killed for memory, or cut without need; a flag not obeyed."""
    cpu, model = torch.device("cpu"), build()
    size, seconds = pretrain.measure_clip(model, cpu)
    assert all(p.grad is None for p in model.parameters()) and memory_of("cpu") > 1e8
    for memory, given, chosen in ((1e12, None, None), (1, None, 1), (10.1 * size, None, 5),
                                  (1, 7, 7), (1e12, 7, 7)):
        monkeypatch.setattr(pretrain, "memory_of", lambda device: memory)
        settings = TrainSettings(micro_batch=given)
        said = pretrain.plan_memory(settings, size, seconds, 256, cpu)
        assert settings.micro_batch == chosen
        assert said == f"f encodes {chosen or 'all'} of 256 clips at once, 0.0 MiB each"
    said = pretrain.plan_memory(settings, 2 ** 29, 3.0, 90, cpu)
    assert said.endswith(" of 90 clips at once, 512.0 MiB each; a step takes about 6 min; "
                         "faster are a GPU, or --size small")
