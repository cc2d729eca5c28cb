"""A GPU that is not there: tensors that say they are on "cuda:0", but have no values.

An operation that mixes devices fails on them as on a GPU; a list of values is made up.
"""
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import evaluate
import train
from data import Example, Loaded, Video
from denoiser import Denoiser
from encoder import TimeSformer
from evaluation import labeled
from model import ProcedureModel
from training.dataset import to_device

fake = pytest.importorskip("torch._subclasses.fake_tensor")
GPU = torch.device("cuda:0")
WINDOWS = np.array([[9. * k, 9. * k + 9] for k in range(9)])
SOURCE = SimpleNamespace(videos=[Video("a"), Video("b")], unreadable={}, absent=[], load=None)
SOURCE.listed = SOURCE.videos
FLAGS = SimpleNamespace(workers=0, micro_batch=None, max_unreadable=.05)


def encode_clips(views):
    """What a teacher gives; not in bfloat16."""
    assert not torch.is_autocast_enabled("cpu")
    return torch.zeros(len(views), 64, device=GPU)


@pytest.mark.parametrize("order", ["diffusion", "mask"])
def test_an_update_and_a_forecast_keep_to_one_device(monkeypatch, order):
    """Catches: a tensor that is made on the CPU, or forgotten there; scores left on the GPU; a
    teacher in bfloat16, or f in float32."""
    monkeypatch.setattr(fake.FakeTensor, "numpy", lambda x: np.arange(x.numel()) % 2)
    monkeypatch.setattr(torch.nn.init, "trunc_normal_", lambda x, std: x)      # it reads values
    monkeypatch.setattr(labeled, "mixed_precision", lambda device: torch.autocast("cpu"))
    teacher, mixed = SimpleNamespace(size=32, encode_clips=encode_clips), []
    with fake.FakeTensorMode(allow_non_fake_inputs=True):
        with torch.device(GPU):
            f, h = TimeSformer(dim=64, **train.SIZES["small"]["timesformer"]), Denoiser(64, heads=4)
            model = ProcedureModel(torch.zeros(5, 64), f, h, order, .1, 16., [.5, .2], (.4, .25))
        clips = torch.zeros(18, 4, 3, 32, 32, dtype=torch.uint8)
        loaded = Loaded([(video, WINDOWS, video) for video in (0, 1)], clips, clips, {})
        there, features, own = to_device(loaded, teacher, SOURCE, "vision", GPU)
        targets = train.soft_targets(features, model.phrases, .1)
        drawn = train.draw(4, 64, 2, "release", "shuffled", 0, 0)
        terms = train.objective(model, there, targets, *(of[own].to(GPU) for of in drawn))
        assert all(of.device == GPU for of in terms)

        example = Example(0, WINDOWS[:8], 0, 1)
        monkeypatch.setattr(labeled, "prefetch", lambda *args, **options: [
            Loaded([example], clips[:8], clips[:8], {})])
        f.register_forward_pre_hook(lambda *_: mixed.append(torch.is_autocast_enabled("cpu")))
        x, n, features, _ = labeled.encode_examples(model, teacher, SOURCE, [example], FLAGS)
        texts = torch.zeros(7, 64, device=GPU)
        scores = evaluate.score(model, x, n, texts, torch.zeros(1, 5, 64), 64)
        assert x.device == n.device == features.device == GPU and mixed == [True]
        assert all(of.device.type == "cpu" for of in scores)
