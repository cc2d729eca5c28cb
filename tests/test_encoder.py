"""The encoder against a slow TimeSformer typed from its description."""
import pytest
import torch

from commands import randomized
from encoder import TimeSformer

TINY = dict(image=12, patch=4, frames=3, width=8, depth=3, heads=2, dim=5)      # P = 9


def tiny(dtype=torch.float64):
    """A tiny encoder with every parameter random, so that no term of the forward is zero."""
    return randomized(TimeSformer(**TINY).to(dtype), 0.5)


def random_clips(B, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(B, 3, 3, 12, 12, dtype=dtype, generator=generator)


# The slow version: one token at a time.
def slow_norm(x, weights, name, eps=1e-6):
    x = (x - x.mean()) / torch.sqrt(((x - x.mean()) ** 2).mean() + eps)
    return x * weights[name + ".weight"] + weights[name + ".bias"]


def slow_linear(x, weights, name):
    return weights[name + ".weight"] @ x + weights[name + ".bias"]


def slow_attention(tokens, weights, name, heads):
    """tokens: a list of (width,). Every token attends to all of the list, head by head."""
    width = len(tokens[0])
    size = width // heads
    qkv = [slow_linear(token, weights, name + ".qkv") for token in tokens]
    result = []
    for query in qkv:
        parts = []
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            q = query[:width][part]
            scores = [q @ other[width:2 * width][part] / size ** 0.5 for other in qkv]
            total = sum(score.exp() for score in scores)
            parts.append(sum(score.exp() / total * other[2 * width:][part]
                             for score, other in zip(scores, qkv, strict=True)))
        result.append(slow_linear(torch.cat(parts), weights, name + ".proj"))
    return result


def slow_gelu(x):
    return x * 0.5 * (1 + torch.erf(x / 2 ** 0.5))


def slow_mlp(x, weights, name):
    hidden = slow_linear(slow_norm(x, weights, name + "norm2"), weights, name + "mlp.fc1")
    return x + slow_linear(slow_gelu(hidden), weights, name + "mlp.fc2")


def slow_block(cls, z, weights, name, heads):
    """One block. z[p, t] is the token of patch p in frame t, cls the class token."""
    P, F = 1 + max(p for p, _ in z), 1 + max(t for _, t in z)
    z = dict(z)
    for p in range(P):                                     # time: one patch, all frames
        inputs = [slow_norm(z[p, t], weights, name + "temporal_norm1") for t in range(F)]
        mixed = slow_attention(inputs, weights, name + "temporal_attn", heads)
        for t in range(F):
            z[p, t] = z[p, t] + slow_linear(mixed[t], weights, name + "temporal_fc")
    cls_results = []
    for t in range(F):                                     # space: class token, one frame
        tokens = [cls] + [z[p, t] for p in range(P)]
        inputs = [slow_norm(token, weights, name + "norm1") for token in tokens]
        mixed = slow_attention(inputs, weights, name + "attn", heads)
        cls_results.append(mixed[0])
        for p in range(P):
            z[p, t] = z[p, t] + mixed[1 + p]
    cls = cls + sum(cls_results) / F
    z = {place: slow_mlp(token, weights, name) for place, token in z.items()}
    return slow_mlp(cls, weights, name), z


def slow_timesformer(clip, weights, patch, heads, depth):
    """One clip (3, F, H, W) -> (class token after the last norm, embedding of length 1)."""
    _, F, H, W = clip.shape
    z = {}
    for t in range(F):
        p = 0
        for top in range(0, H, patch):
            for left in range(0, W, patch):
                pixels = clip[:, t, top:top + patch, left:left + patch]
                kernel = weights["patch_embed.proj.weight"]
                token = torch.stack([(kernel[c] * pixels).sum() for c in range(len(kernel))])
                token = token + weights["patch_embed.proj.bias"]
                z[p, t] = token + weights["pos_embed"][0, 1 + p] + weights["time_embed"][0, t]
                p += 1
    cls = weights["cls_token"][0, 0] + weights["pos_embed"][0, 0]
    for i in range(depth):
        cls, z = slow_block(cls, z, weights, f"blocks.{i}.", heads)
    cls = slow_norm(cls, weights, "norm")
    x = slow_linear(cls, weights, "head")
    return cls, x / (x * x).sum().sqrt()


@torch.no_grad()
def test_divided_attention_equals_one_token_at_a_time():
    """Catches: patches, frames or heads mixed, a residual or norm left out, another eps or GELU."""
    model, clips = tiny(), random_clips(2)
    weights = model.state_dict()
    slow = [slow_timesformer(clip, weights, patch=4, heads=2, depth=3) for clip in clips]
    torch.testing.assert_close(model.class_token(clips), torch.stack([cls for cls, _ in slow]))
    torch.testing.assert_close(model(clips), torch.stack([x for _, x in slow]))


def test_new_weights_start_as_an_image_model_except_block_0():
    """Catches: temporal_fc not zero (or zero in block 0 too), biases or standard deviation off."""
    torch.manual_seed(0)
    model = TimeSformer(image=32, patch=8, frames=4, width=64, depth=3, heads=2, dim=64)
    at_zero = {name for name, p in model.named_parameters() if not p.any()}
    biases = {name for name, p in model.named_parameters() if name.endswith("bias")}
    assert at_zero == biases | {"time_embed", "blocks.1.temporal_fc.weight",
                                "blocks.2.temporal_fc.weight"}
    for name in ("blocks.0.temporal_fc.weight", "blocks.2.mlp.fc1.weight", "pos_embed",
                 "patch_embed.proj.weight", "head.weight"):
        assert model.get_parameter(name).std().item() == pytest.approx(0.02, rel=0.1), name


@pytest.mark.parametrize("shape", [(2, 3, 12, 12), (2, 3, 4, 12, 12), (2, 3, 3, 12, 16),
                                   (2, 1, 3, 12, 12)])
def test_what_does_not_fit_is_named(shape):
    """Catches: one axis not checked, which broadcasts or fails deep inside; raw uint8 frames."""
    with pytest.raises(ValueError, match=r"need \(B, 3, 3, 12, 12\)"):
        tiny()(torch.zeros(shape, dtype=torch.float64))
    with pytest.raises(ValueError, match="torch.uint8, need float"):
        tiny()(torch.zeros(2, 3, 3, 12, 12, dtype=torch.uint8))
    for wrong, words in (({"image": 13}, "image 13 is not a multiple of patch 4"),
                         ({"heads": 3}, "width 8 is not a multiple of heads 3")):
        with pytest.raises(ValueError, match=words):
            TimeSformer(**{**TINY, **wrong})
