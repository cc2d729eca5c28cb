"""Weights in the released layout give the numbers of the released model."""
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import weights

TESTS = Path(__file__).resolve().parent
TINY = TESTS / "released_tiny.pt"           # its numbers: one token at a time, in float64, by loops
OFFICIAL = TESTS.parents[1] / "shared" / "official" / "released_layout_small.pt"    # the authors'


@torch.no_grad()
@pytest.mark.parametrize("path", [TINY, pytest.param(OFFICIAL, marks=pytest.mark.skipif(
    not OFFICIAL.is_file(), reason=f"no {OFFICIAL.name}"))], ids=["tiny", "official"])
def test_released_weights_give_the_released_numbers(path):
    """Catches: a parameter under another's name, other heads, no L2 norm, another schedule."""
    content, model = torch.load(path, weights_only=True), weights.load(path)
    clips = torch.cat([video.unflatten(1, (-1, content["config"]["frames"])).transpose(0, 1)
                       for video in content["input"]])                          # (B N, 3, F, H, W)
    x, noise = model.encoder(clips), content["noise"]
    denoised, noisy = model.forecast_next(
        x.unflatten(0, (len(noise), -1)),
        torch.stack([torch.zeros_like(noise), noise], 1)).unbind(1)
    cosine = functional.normalize(denoised, dim=-1) @ content["label_emb"].T    # as they come
    for name, ours in {"encoder_cls": model.encoder.class_token(clips), "embedding": x,
                       "denoised": denoised, "denoised_from_noise": noisy,
                       "probs": (cosine / model.tau).softmax(-1)}.items():
        assert (ours - content[name]).norm() < 1e-5 * content[name].norm(), name
