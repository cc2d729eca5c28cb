"""MViT-v2 as the encoder: torchvision's own settings, the interface of TimeSformer, its frames."""
import inspect

import numpy as np
import pytest
import torch
from torchvision.models.video import mvit as theirs

from data import Video, view_of
from files import sources
from weights.mvit import MViT

TINY = dict(image=16, frames=4, seconds=None, width=8, heads=2, stages=(1, 2), kv_stride=2, dim=5)


def test_the_defaults_are_mvit_v2_s(monkeypatch):
    """Catches: a stage too long, heads or strides of another stage, another stem or norm."""
    made = []

    def keep(self, spatial_size, temporal_size, block_setting, **flags):
        torch.nn.Module.__init__(self)
        flags.update(num_classes=1, stochastic_depth_prob=0.0)            # neither is of features
        made.append((spatial_size, temporal_size, block_setting, flags))
    monkeypatch.setattr(theirs.MViT, "__init__", keep)
    theirs.mvit_v2_s(weights=None)
    MViT()
    assert made[0] == made[1]


def test_what_does_not_fit_is_named():
    """Catches: a crash deep inside, or a border of pixels left out."""
    with pytest.raises(ValueError, match=r"need \(B, 3, 4, 16, 16\)"):
        MViT(**TINY)(torch.zeros(2, 3, 8, 16, 16))
    for wrong in ({"image": 20}, {"frames": 3}, {"heads": 3}):
        with pytest.raises(ValueError, match="must be multiples of 8, 2 and heads"):
            MViT(**{**TINY, **wrong})


def test_sixteen_frames_have_a_stride_of_six(monkeypatch):
    """Catches: 16 frames over the whole window; a short one widened; seconds that are lost."""
    monkeypatch.setattr(sources, "read_frames", lambda path, times, short_side: None)
    default = {name: p.default for name, p in inspect.signature(MViT).parameters.items()}
    view = view_of(MViT(**{**TINY, "frames": default["frames"], "seconds": default["seconds"]}))
    source = sources.VideoSource([Video("a")], {"a": "a.mp4"}, view)
    long, short = source.read((0, np.array([[10., 19.], [4., 6.]])), 40)[1]
    np.testing.assert_allclose(np.diff(long), 6 / 30)
    assert len(long) == 16 and long.mean() == pytest.approx(14.5)
    assert (short[0], short[-1]) == pytest.approx((4 + 1 / 16, 6 - 1 / 16))
