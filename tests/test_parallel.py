"""A step divided: over processes, into micro-batches; and what a GPU would be waited for.

Two processes are copies of this one that talk by gloo. There is no GPU: of what would run on one
only shapes are computed (torch's FakeTensorMode), in which reading a value is an error.
"""
import multiprocessing
import os
import signal
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

import data
import test_loading
from commands import TINY, call, read_rows
from support import parallel
from train import TrainSettings
from training import pretrain, run
from weights.checkpoint import build_model

D, CPU = 8, torch.device("cpu")


class Source(test_loading.Source):
    """Videos of 3, 9, 1, 5, 0 and 2 clips; a clip's pixels and its teacher's features are drawn
    from its place."""
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
    model = build_model(torch.randn(6, D), dict(image=8, patch=4, frames=2, width=8, depth=2,
                                                heads=2),
                        dict(width=16, layers=1, heads=2, clips=9), "diffusion", tau=.1,
                        pixels=(.4, .2))
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return model


def gradients(out, batch, ordering, broken, micro_batch=None):
    """The losses and all gradients of the first step, by name, and the number of clips; and how
    many bytes autograd holds on to."""
    model, source, held = build(), Source(broken), {}
    settings = TrainSettings(out=out, micro_batch=micro_batch, max_unreadable=1.0)
    stage = run.Stage("joint" if ordering else "match", range(9), batch)
    optimizer = pretrain.make_optimizer(model, settings, stage.name)
    item = pretrain.load_step(source, settings, stage, 0, parallel.place())
    unreadable = run.Unreadable(source, settings, None)

    def hold(x):
        held[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x
    torch.manual_seed(1)
    with torch.autograd.graph.saved_tensors_hooks(hold, lambda x: x):
        terms, clips = pretrain.clip_losses(model, source, settings, unreadable, ordering, CPU,
                                            item)
    size = sum(held.values())
    terms["loss"].backward()
    parallel.average_gradients(optimizer)
    values = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    values |= {f"loss {name}": value.detach() for name, value in terms.items()}
    return values | {"clips": torch.tensor(float(clips))}, size


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
        process.join(60)
        process.kill()                                 # one that waits in vain
    return [process.exitcode for process in processes]


@pytest.mark.parametrize("batch, ordering, broken", [
    (6, True, ()), (5, True, (1, 3)), (2, False, (3,))])
def test_two_processes_give_the_gradients_of_one(tmp_path, batch, ordering, broken):
    """Catches: means over a process's own clips (13 and 7, say), other noise in each, h's gradients
    summed, a process without a clip, clips of one video in another's place."""
    def work(rank):
        parallel.start("cpu")
        torch.save(gradients(tmp_path, batch, ordering, broken)[0], tmp_path / f"{rank}.pt")
    assert in_processes(work) == [0, 0]
    one, _ = gradients(tmp_path, batch, ordering, broken)
    assert one["loss loss"] > 0 and one["clips"] > 0 and max(
        grad.abs().max() for name, grad in one.items() if name.startswith("encoder")) > 1e-3
    for rank in range(2):
        require_close(torch.load(tmp_path / f"{rank}.pt", weights_only=True), one)


def test_a_run_of_two_processes(trained, here, capfd):
    """Catches: files written twice, rows of both, other stages, embeddings cached in another order,
    a process that is waited for in vain where the other stops, or stops at another step."""
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
    assert [row["step"] for row in ours] == list(range(1, 13))
    assert [row["loss"] for row in ours] == pytest.approx([row["loss"] for row in one], rel=1e-2)
    assert {path.name for path in Path("two").iterdir()} == {
        path.name for path in (trained / "diffusion").iterdir()}


@pytest.mark.parametrize("part", [1, 4, 100])
def test_micro_batches_give_the_gradients_of_the_whole(tmp_path, part):
    """Catches: a loss averaged over micro-batches of unequal weight, a clip left out or twice; no
    less memory: activations of all clips held."""
    expected, whole = gradients(tmp_path, 6, True, ())
    values, parts = gradients(tmp_path, 6, True, (), part)
    require_close(values, expected)
    assert parts < whole / 2


class Waits(TorchDispatchMode):
    """Collects what waits for a GPU without reading a value: blocking copies, masks as an index."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        out = func(*args, **kwargs)
        if name in ("_to_copy", "copy_") and not kwargs.get("non_blocking") and (
                {x.device.type for x in (*args, out) if isinstance(x, torch.Tensor)}
                == {"cpu", "cuda"}):
            self.found.append((name, args))
        if name in ("index", "index_put", "index_put_"):
            self.found += [(name, args) for x in args[1] if x is not None and x.dtype == torch.bool]
        return out


@pytest.mark.parametrize("ordering, part", [(False, None), (True, 3)])
def test_a_step_waits_for_no_gpu(monkeypatch, ordering, part):
    """Catches: a copy to the GPU that waits until it is idle, a value read from it, a mask used as
    an index (its size must be known), between two rows of metrics.jsonl."""
    monkeypatch.setattr(torch.nn.init, "trunc_normal_", lambda *args, **kwargs: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    stage = run.Stage("joint" if ordering else "match", range(9), 6)
    loaded, masks = pretrain.load_step(Source(), TrainSettings(), stage, 0)
    cuda = torch.device("cuda")
    with FakeTensorMode(allow_non_fake_inputs=True):
        with cuda:
            model = build()
        with Waits() as waits:
            batch = pretrain.encode_batch(model, Source(), loaded, masks, cuda, part=part)
            terms = pretrain.objective(model, *batch, ordering)
    assert terms["loss"].device.type == "cuda" and not waits.found, waits.found


def test_the_loop_reads_values_only_to_log(tmp_path, monkeypatch):
    """Catches: a loss or a count read in every step."""
    monkeypatch.setattr(run, "LOG_EVERY", 6)
    with FakeTensorMode():
        model, x, steps = torch.nn.Linear(2, 1), torch.ones(3, 2), []
        optimizer = torch.optim.SGD([{"params": list(model.parameters()), "peak": 1.0}], lr=0.0)
        with run.Run(TrainSettings(out=tmp_path), model, {}, 0, 50, 1) as training:
            with pytest.raises(Exception, match="_local_scalar_dense"):
                for step, _ in training.steps(run.Stage("match", range(50), 1), optimizer,
                                              range(50)):
                    steps.append(step)
                    training.update({"loss": model(x).sum()}, x.sum())
    assert steps == list(range(6))


def test_clips_and_views_are_pinned(monkeypatch):
    """Catches: pixels that a copy to the GPU must be waited for, a list of views left out."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self + 1)
    clips, views = torch.zeros(2), [torch.zeros(1), torch.ones(1)]
    for given in (views, torch.zeros(3)):
        pinned = data.Loaded(["a"], clips, given, {"b": "c"}).pin_memory()
        assert (pinned.requests, pinned.failed) == (["a"], {"b": "c"})
        assert pinned.clips.tolist() == [1, 1]
        assert [x + 1 for x in given] == list(pinned.views)
