"""A GPU that is not there: tensors that say they are on "cuda:0", but have no values.

An operation that mixes devices fails on them as on a GPU; a list of values is made up.
"""
import numpy as np
import pytest
import torch

import train
from data import Example, Loaded, Video
from evaluation import labeled
from evaluation.inference import predict_missing
from training import run, setup
from training.batches import groups
from weights.checkpoint import build_model

fake = pytest.importorskip("torch._subclasses.fake_tensor")
GPU = torch.device("cuda:0")
WINDOWS = np.array([[9. * k, 9. * k + 9] for k in range(5)])


class Source:
    """Two videos of five clips, in main memory."""
    videos = listed = [Video("a"), Video("b")]
    unreadable, absent, load = {}, [], None


class Teacher:
    """What a teacher gives; not in bfloat16."""
    size = 32

    def encode_phrases(self, phrases):
        return torch.zeros(5, 64, device=GPU)

    def encode_clips(self, views):
        assert not torch.is_autocast_enabled("cpu")
        return torch.zeros(10, 64, device=GPU)


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
        return build_model(torch.zeros(5, 64), setup.TIMESFORMER["small"], setup.DENOISER["small"],
                           order, tau=.1, pixels=(.4, .25), alpha_bar=[.5, .2])


@pytest.mark.parametrize("order", ["diffusion", "mask", "none"])
def test_the_objective_keeps_to_one_device(gpu, order):
    """Catches: a tensor of an update that is made on the CPU, or forgotten there."""
    model = build_there(order)
    clips = torch.zeros(10, 4, 3, 32, 32, dtype=torch.uint8)
    loaded = [Loaded([(video, WINDOWS)], clips[:5], clips[:5], {}) for video in (0, 1)]
    group, = groups(iter(loaded), 2, 2, Source(), GPU)
    metrics = run.Metrics(("loss", *run.TERMS), GPU)
    terms, x = train.objective(model, group, torch.zeros(10, 64, device=GPU), 0,
                               train.parse(["--order", order]))
    terms["loss"] = terms["xe"] + terms["mse"] + terms["mc"]
    metrics.add(terms, len(x))
    model.standardize.add(x)
    model.standardize.update()
    assert all(of.device == GPU and of.shape == (2,) for of in terms.values())
    assert x.device == metrics.sums.device == model.standardize.sums.device == GPU


def test_a_forecast_keeps_to_one_device(gpu, monkeypatch):
    """Catches: a tensor of a forecast on the CPU; scores left on the GPU; a teacher in bfloat16, or
    f in float32."""
    model = build_there("diffusion")
    clips, example = torch.zeros(10, 4, 3, 32, 32, dtype=torch.uint8), Example(0, WINDOWS, 0, 1)
    loaded = Loaded([example], clips, None, {})
    monkeypatch.setattr(labeled, "prefetch", lambda *args, **options: [loaded])
    monkeypatch.setattr(labeled, "mixed_precision", lambda device: torch.autocast("cpu"))
    encode, mixed = model.encode, []
    monkeypatch.setattr(model, "encode", lambda clips: mixed.append(
        torch.is_autocast_enabled("cpu")) or encode(clips))
    x, features, _ = labeled.encode_examples(model, Teacher(), Source(), [example], train.parse([]),
                                             GPU)
    texts = torch.zeros(7, 64, device=GPU)
    log_p = predict_missing(model, x[None, :8], texts, torch.zeros(1, 5, 64), 64)
    assert x.device == features.device == GPU and mixed == [True]
    assert log_p.device.type == "cpu" and log_p.shape == (1, 5, 7)
