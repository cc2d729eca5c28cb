"""A GPU that is not there: tensors that say they are on "cuda:0", but have no values.

An operation that mixes devices fails on them as on a GPU; a list of values is made up.
"""
import numpy as np
import pytest
import torch

import evaluate
import train
from data import Example, Loaded, Video
from denoiser import Denoiser
from encoder import TimeSformer
from evaluation import labeled
from losses import agreement
from model import ProcedureModel
from training.dataset import to_device
from training.run import Metrics

fake = pytest.importorskip("torch._subclasses.fake_tensor")
GPU = torch.device("cuda:0")
WINDOWS = np.array([[9. * k, 9. * k + 9] for k in range(9)])


class Source:
    """Two videos of nine clips, in main memory."""
    videos = listed = [Video("a"), Video("b")]
    unreadable, absent, load = {}, [], None


class Teacher:
    """What a teacher gives; not in bfloat16."""
    size = 32

    def encode_clips(self, views):
        assert not torch.is_autocast_enabled("cpu")
        return torch.zeros(len(views), 64, device=GPU)


@pytest.fixture
def gpu(monkeypatch):
    """Within it tensors are made up, and a GPU seems to be there."""
    monkeypatch.setattr(fake.FakeTensor, "numpy", lambda x: np.arange(x.numel()) % 2)
    monkeypatch.setattr(torch.nn.init, "trunc_normal_", lambda x, std: x)      # it reads values
    with fake.FakeTensorMode(allow_non_fake_inputs=True):
        yield


def build_there(order):
    """A small model whose weights are made on the GPU."""
    with torch.device(GPU):
        f, h = TimeSformer(dim=64, **train.SIZES["small"]["timesformer"]), Denoiser(64, heads=4)
        return ProcedureModel(torch.zeros(5, 64), f, h, order, .1, 16., [.5, .2], (.4, .25))


@pytest.mark.parametrize("order", ["diffusion", "mask", "none"])
def test_the_objective_keeps_to_one_device(gpu, order):
    """Catches: a tensor of an update that is made on the CPU, or forgotten there."""
    model, clips = build_there(order), torch.zeros(18, 4, 3, 32, 32, dtype=torch.uint8)
    loaded = Loaded([(video, WINDOWS, video) for video in (0, 1)], clips, clips, {})
    clips, features, own = to_device(loaded, Teacher(), Source(), "vision", GPU)
    targets = train.soft_targets(features, model.phrases, .1)
    drawn = train.draw(4, 64, 2, "release", "shuffled", 0, 0)
    xe, mse, mc, log_p, log_q = train.objective(model, clips, targets,
                                                *(of[own].to(GPU) for of in drawn))
    metrics = Metrics(train.TERMS, GPU)
    metrics.add(18, loss=xe + mse + mc, xe=xe, mse=mse, mc=mc, match=agreement(log_p, targets),
                match_h=agreement(log_q, targets))
    assert all(of.device == GPU and of.shape == (2,) for of in (xe, mse, mc))
    assert metrics.sums.device == GPU and log_p.shape == (2, 9, 5)


def test_a_forecast_keeps_to_one_device(gpu, monkeypatch):
    """Catches: a tensor of a forecast on the CPU; scores left on the GPU; a teacher in bfloat16, or
    f in float32."""
    model, clips = build_there("diffusion"), torch.zeros(8, 4, 3, 32, 32, dtype=torch.uint8)
    example = Example(0, WINDOWS[:8], 0, 1)
    monkeypatch.setattr(labeled, "prefetch", lambda *args, **options: [
        Loaded([example], clips, clips, {})])
    monkeypatch.setattr(labeled, "mixed_precision", lambda device: torch.autocast("cpu"))
    encode, mixed = model.encode, []
    monkeypatch.setattr(model, "encode", lambda clips: mixed.append(
        torch.is_autocast_enabled("cpu")) or encode(clips))
    x, n, features, _ = labeled.encode_examples(model, Teacher(), Source(), [example], GPU)
    texts = torch.zeros(7, 64, device=GPU)
    zero, samples = evaluate.score(model, x, n, texts, torch.zeros(1, 5, 64), 64)
    assert x.device == n.device == features.device == GPU and mixed == [True]
    assert zero.device.type == samples.device.type == "cpu" and samples.shape == (1, 5, 7)
