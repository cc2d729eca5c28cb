"""The encoder against a slow TimeSformer typed from its description."""
import pytest
import torch

from encoder import TimeSformer
from slow import draw, randomized, slow_timesformer

TINY = dict(image=12, patch=4, frames=3, width=8, depth=3, heads=2, dim=5)      # P = 9


@torch.no_grad()
def test_divided_attention_equals_one_token_at_a_time():
    """Catches: patches, frames or heads mixed, a residual or norm left out, another eps or GELU."""
    model, clips = randomized(TimeSformer(**TINY).double(), 0.5), draw(2, 3, 3, 12, 12)
    weights = model.state_dict()
    slow = [slow_timesformer(clip, weights, patch=4, heads=2, depth=3) for clip in clips]
    torch.testing.assert_close(model.class_token(clips), torch.stack([cls for cls, _ in slow]))
    torch.testing.assert_close(model(clips), torch.stack([x for _, x in slow]))


def test_embeddings_have_length_1_under_autocast():
    """Catches: the length taken in bfloat16, where it is off by a thousandth."""
    with torch.autocast("cpu", torch.bfloat16):
        x = TimeSformer(**TINY)(draw(2, 3, 3, 12, 12).float())
    assert x.dtype == torch.float32
    torch.testing.assert_close(x.norm(dim=-1), torch.ones(2), rtol=0, atol=1e-6)


def test_default_new_weights_start_as_an_image_model_except_block_0():
    """Catches: temporal_fc not zero (or zero in block 0 too), biases or standard deviation off."""
    torch.manual_seed(0)
    model = TimeSformer(image=32, patch=8, frames=4, width=64, depth=3, heads=2, dim=64)
    at_zero = {name for name, p in model.named_parameters() if not p.any()}
    biases = {name for name, p in model.named_parameters() if name.endswith("bias")}
    assert at_zero == biases | {"blocks.1.temporal_fc.weight", "blocks.2.temporal_fc.weight"}
    assert model.time_embed.std().item() == pytest.approx(0.3, rel=0.2)
    for name in ("blocks.0.temporal_fc.weight", "blocks.2.mlp.fc1.weight", "pos_embed",
                 "patch_embed.proj.weight", "head.weight"):
        assert model.get_parameter(name).std().item() == pytest.approx(0.02, rel=0.1), name
