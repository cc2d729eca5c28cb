"""A step divided: over processes, into micro-batches; and what a GPU would be waited for.

Two processes are copies of this one that talk by gloo. There is no GPU: of what would run on one
only shapes are computed (torch's FakeTensorMode), in which reading a value is an error.
"""
import functools
import json
import multiprocessing
import os
import signal
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import data  # noqa: E402
from support import parallel  # noqa: E402
from training import run  # noqa: E402
import train  # noqa: E402
from commands import TINY, call, fails, make_teacher  # noqa: E402
from model import ProcedureModel  # noqa: E402
from settings import TrainSettings  # noqa: E402

D, CPU = 8, torch.device("cpu")


class Source:
    """Videos of 3, 9, 1, 5, 0 and 2 clips; a clip's pixels and its teacher's features are drawn
    from its place."""
    counts = [3, 9, 1, 5, 0, 2]

    def __init__(self, broken=()):
        self.broken = broken
        self.videos = [SimpleNamespace(name=f"v{i}") for i in range(len(self.counts))]

    def __len__(self):
        return len(self.videos)

    def pretrain_windows(self, video, rng):
        return np.arange(self.counts[video])[:, None] * 10. + [0, 9]

    def load(self, requests, rng=None):
        good = [request for request in requests if request[0] not in self.broken]
        seeds = [(video, int(start)) for video, windows in good for start, _ in windows]
        draw = [np.random.default_rng(seed) for seed in seeds]
        clips = [torch.from_numpy(rng.integers(256, size=(2, 3, 8, 8), dtype=np.uint8))
                 for rng in draw]
        looks = [torch.from_numpy(rng.standard_normal(D)).float() for rng in draw]
        return data.Loaded(good, *(torch.stack(rows) if good else torch.empty(0)
                                   for rows in (clips, looks)),
                           {f"v{video}": "broken" for video, _ in requests if video in self.broken})

    def teach(self, looks):
        return looks


def build():
    """A tiny model with every weight random."""
    torch.manual_seed(0)
    model = ProcedureModel(torch.randn(6, D), dict(image=8, patch=4, frames=2, width=8, depth=2,
                                                   heads=2),
                           dict(width=16, layers=1, heads=2, clips=9), "diffusion", .1, (.4, .2))
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return model


def gradients(out, batch, ordering, broken, micro_batch=None, kept=None):
    """The losses and all gradients of the first step, by name; `kept` gets the bytes that autograd
    holds on to."""
    model = build()
    settings = TrainSettings(out=out, micro_batch=micro_batch, max_unreadable=1.0)
    optimizer = train.make_optimizer(model, settings, "joint" if ordering else "match")
    ready = train.load_step(Source(broken), settings, batch, ordering, 0, 0, parallel.PLACE)

    def hold(x):
        if kept is not None:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x
    torch.manual_seed(1)
    with torch.autograd.graph.saved_tensors_hooks(hold, lambda x: x):
        terms, clips = train.video_terms(model, Source(broken), settings, {}, ordering, CPU, 0,
                                         ready)
        kept = None
        terms["loss"].backward()
    parallel.average_gradients(optimizer)
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return found | {f"loss {name}": value.detach() for name, value in terms.items()} | {
        "clips": torch.tensor(float(clips))}


def in_processes(work, folder, world=2):
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


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder; one thread, as the processes have it."""
    threads, before = torch.get_num_threads(), signal.getsignal(signal.SIGTERM)
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("batch, ordering, broken", [
    (6, True, ()), (6, False, (1,)), (5, True, (1, 3)), (2, True, ()), (2, False, (3,))])
def test_two_processes_give_the_gradients_of_one(tmp_path, batch, ordering, broken):
    """Catches: means over a process's own clips (13 and 7, say), noise drawn anew in each, h's
    gradients summed, a process without a clip, clips of one video in another's place."""
    def work(rank):
        parallel.start("cpu")
        torch.save(gradients(tmp_path, batch, ordering, broken), tmp_path / f"{rank}.pt")
    assert in_processes(work, tmp_path) == [0, 0]
    one = gradients(tmp_path, batch, ordering, broken)
    assert one["loss loss"] > 0 and one["clips"] > 0 and max(
        grad.abs().max() for name, grad in one.items() if name.startswith("encoder")) > 1e-3
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert found.keys() == one.keys()
        for name, grad in one.items():
            torch.testing.assert_close(found[name], grad, rtol=1e-4, atol=2e-6, msg=name)


def test_a_run_of_two_processes(tmp_path, capfd):
    """Catches: files written twice, rows of both, other stages, embeddings kept in another order, a
    process that is waited for in vain where the other stops."""
    make_teacher(tmp_path)
    call("train.py", *TINY, "--out", "one")
    capfd.readouterr()
    assert in_processes(lambda _: call("train.py", *TINY, "--out", "two"), tmp_path) == [0, 0]
    assert capfd.readouterr().out.count("parameters") == 1
    one, two = ([json.loads(line) for line in (tmp_path / name / "metrics.jsonl").open()]
                for name in ("one", "two"))
    assert [row["step"] for row in two] == [row["step"] for row in one] == list(range(1, 13))
    for ours, theirs in zip(one, two):
        assert theirs["loss"] == pytest.approx(ours["loss"], rel=1e-2)
    assert sorted(path.name for path in Path("two").iterdir()) == sorted(
        path.name for path in Path("one").iterdir())

    def interrupted(rank):
        if rank:
            register_optimizer_step_pre_hook(
                lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        call("train.py", *TINY, "--out", "stopped")
    assert in_processes(interrupted, tmp_path) == [143, 143]
    assert torch.load("stopped/checkpoint.pt", weights_only=True)["step"] == 1


def test_more_processes_than_videos(monkeypatch, capsys):
    """Catches: a process that never has a clip."""
    monkeypatch.setattr(parallel, "PLACE", (0, 8))
    assert "8 processes" in fails(capsys, 2, "train.py", *TINY)


@pytest.mark.parametrize("part", [1, 4, 100])
def test_micro_batches_give_the_gradients_of_the_whole(tmp_path, part):
    """Catches: a loss averaged over micro-batches of unequal weight, a clip left out or twice; no
    less memory: activations of all clips kept."""
    whole, parts = {}, {}
    expected = gradients(tmp_path, 6, True, (), kept=whole)
    found = gradients(tmp_path, 6, True, (), part, kept=parts)
    assert found.keys() == expected.keys()
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, rtol=1e-4, atol=2e-6, msg=name)
    assert sum(parts.values()) < sum(whole.values()) / 3


def test_a_run_in_micro_batches(tmp_path, capsys):
    """Catches: a setting that reaches nothing, or a stage that cannot do it."""
    make_teacher(tmp_path)
    for name, flags in (("whole", ()), ("parts", ("--micro-batch", "5"))):
        call("train.py", *TINY, "--out", name, *flags)
    losses = [[json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").open()]
              for name in ("whole", "parts")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-2) and losses[0] != losses[1]
    assert "--micro-batch 0" in fails(capsys, 2, "train.py", *TINY, "--micro-batch", "0")


class Waits(TorchDispatchMode):
    """Notes what waits for a GPU without reading a value: blocking copies, masks as an index."""

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
    ready = train.load_step(Source(), TrainSettings(), 6, ordering, 0, 0)
    asked, cuda = ready[1], torch.device("cuda")
    with FakeTensorMode(allow_non_fake_inputs=True):
        with cuda:
            model = build()
        with Waits() as waits:
            batch = train.encode_batch(model, Source(), ready[0], asked, cuda, part=part)
            terms = train.objective(model, *batch, ordering)
    assert terms["loss"].device.type == "cuda" and not waits.found, waits.found


def test_the_loop_reads_values_only_to_log(tmp_path):
    """Catches: a loss or a count read in every step."""
    with FakeTensorMode():
        model, x = torch.nn.Linear(2, 1), torch.ones(3, 2)
        optimizer = torch.optim.SGD([{"params": list(model.parameters()), "peak": 1.0}], lr=0.0)
        settings = TrainSettings(out=tmp_path, log_every=6, save_every=50)
        with run.Run(settings, model, CPU, 0, 50, 1) as going:
            train_on = functools.partial(going.train, "match", batch=1, optimizer=optimizer,
                                         terms_of=lambda *_: ({"loss": model(x).sum()}, x.sum()))
            train_on(span=range(50), batches=range(5))
            with pytest.raises(Exception, match="_local_scalar_dense"):
                train_on(span=range(50), batches=range(6))


def test_clips_and_looks_are_pinned(monkeypatch):
    """Catches: pixels that a copy to the GPU must be waited for, a list of looks left out."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self + 1)
    clips, looks = torch.zeros(2), [torch.zeros(1), torch.ones(1)]
    for given in (looks, torch.zeros(3)):
        pinned = data.Loaded(["a"], clips, given, {"b": "c"}).pin_memory()
        assert (pinned.requests, pinned.failed) == (["a"], {"b": "c"})
        assert pinned.clips.tolist() == [1, 1]
        assert [x + 1 for x in given] == list(pinned.looks)
