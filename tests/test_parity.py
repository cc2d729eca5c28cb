"""Weights in the released layout, random ones of ours and real ones, give the known numbers."""
import functools
import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from test_denoiser import slow_h
from test_encoder import slow_timesformer
from weights import load_released

TESTS = Path(__file__).resolve().parent
TINY = TESTS / "released_tiny.pt"
OFFICIAL = TESTS.parents[1] / "shared" / "official" / "released_layout_small.pt"
HEADS = 8                                              # of h, at any size


def clips_of(content):
    """The clips of a file: input (B, 3, N F, H, W) -> (B N, 3, F, H, W)."""
    return torch.cat([video.unflatten(1, (-1, content["config"]["frames"])).transpose(0, 1)
                      for video in content["input"]])


def slow_schedule(T):
    """alpha_bar of T levels: products of 1 - beta, betas evenly spaced from 1e-4 to 0.02."""
    return [math.prod(1 - (1e-4 + (0.02 - 1e-4) * s / (T - 1)) for s in range(t + 1))
            for t in range(T)]


OURS = {"order_tfm.": "", "type_embedding": "role", "temporalEmbedding": "position",
        "temporalModelling": "transformer", "time_mlp.1": "level.0", "time_mlp.3": "level.2"}


def slow_forecast(w, x, noise):
    """The released chain: w of order_tfm by the names of `OURS`, x (N, D), noise (D,) -> (D,)."""
    N, D = x.shape
    T = 1 + max(int(name.split(".")[2]) for name in w if "resblocks" in name)
    alpha_bar, zt, z = slow_schedule(T), noise[None], torch.cat([x, x.new_zeros(1, D)])
    for t in range(T - 1, -1, -1):
        x_hat = slow_h(w, HEADS, zt, z, torch.arange(N + 1) < N, [N], t)
        zt = alpha_bar[t - 1] ** .5 * x_hat + (1 - alpha_bar[t - 1]) ** .5 * noise
    return x_hat[0]


def slow_outputs(content):
    """What the released model makes of a file's weights and inputs, in float64."""
    config, noise = content["config"], content["noise"].double()
    f = {name.removeprefix("model."): v.double() for name, v in content["model_state"].items()}
    h = {functools.reduce(lambda name, old: name.replace(old, OURS[old]), OURS, name): v
         for name, v in f.items() if "order_tfm." in name}
    cls, x = map(torch.stack, zip(*(
        slow_timesformer(clip, f, config["patch"], config["heads"], config["depth"])
        for clip in clips_of(content).double())))
    videos = x.view(len(noise), -1, x.shape[1])                          # (B, N, D)
    denoised, noisy = (torch.stack([slow_forecast(h, *pair) for pair in zip(videos, start)])
                       for start in (torch.zeros_like(noise), noise))
    weight = torch.stack([torch.stack([(z @ y / (z @ z).sqrt() / 0.02).exp()
                                       for y in content["label_emb"].double()]) for z in denoised])
    return {"encoder_cls": cls, "embedding": x, "denoised": denoised, "denoised_from_noise": noisy,
            "probs": weight / weight.sum(1, keepdim=True)}               # texts as they come


def close(ours, theirs):
    return (ours - theirs).norm() < 1e-5 * theirs.norm()


@torch.no_grad()
@pytest.mark.parametrize("path", [TINY, pytest.param(OFFICIAL, marks=pytest.mark.skipif(
    not OFFICIAL.is_file(), reason=f"no {OFFICIAL.name}"))], ids=["tiny", "official"])
def test_released_weights_give_the_released_numbers(path):
    """Catches: a parameter under another's name, no L2 norm, a level off by one, a final norm."""
    content, model = torch.load(path, weights_only=True), load_released(path)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    clips, noise = clips_of(content), content["noise"]
    x = model.encoder(clips)
    denoised, noisy = model.forecast_next(x.unflatten(0, (len(noise), -1)), torch.stack(
        [torch.zeros_like(noise), noise], 1)).unbind(1)
    cosine = functional.normalize(denoised, dim=-1) @ content["label_emb"].T        # as they come
    for name, ours in {"encoder_cls": model.encoder.class_token(clips), "embedding": x,
                       "denoised": denoised, "denoised_from_noise": noisy,
                       "probs": (cosine / model.tau).softmax(-1)}.items():
        assert close(ours, content[name]), name


def test_the_tiny_file_holds_what_the_slow_version_computes():
    """Catches: a file written from other code than the slow version, or from ours."""
    content = torch.load(TINY, weights_only=True)
    for name, slow in slow_outputs(content).items():
        assert close(content[name], slow), name
    assert [round(a, 4) for a in slow_schedule(4)] == [.9999, .9932, .9799, .9603]     # published
