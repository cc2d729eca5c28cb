"""MViT-v2 as the encoder: torchvision's own settings; the released names."""
import pytest
import torch
from torchvision.models.video import mvit as theirs

import weights
from weights.checkpoint import build_model
from weights.mvit import MViT

SLOWFAST = (("pos_encoding.class_token", "cls_token"), ("conv_proj", "patch_embed.proj"),
            ("attn.project.0", "attn.proj"), (".pool.weight", ".weight"), ("mlp.0", "mlp.fc1"),
            ("pool_q.norm_act.0", "norm_q"), ("pool_k.norm_act.0", "norm_k"), ("mlp.3", "mlp.fc2"),
            ("pool_v.norm_act.0", "norm_v"), ("project", "proj"), ("encoder.body", "video_encoder"))


def test_the_defaults_are_mvit_v2_s(monkeypatch):
    """Catches: a stage too long, heads or strides of another stage, another stem or norm; 16 frames
    at another stride than 6 of 30 a second."""
    built = []

    def keep(self, spatial_size, temporal_size, block_setting, **flags):
        torch.nn.Module.__init__(self)
        flags.update(num_classes=1, stochastic_depth_prob=0.0)            # neither is of features
        built.append((spatial_size, temporal_size, block_setting, flags))
    monkeypatch.setattr(theirs.MViT, "__init__", keep)
    theirs.mvit_v2_s(weights=None)
    ours = MViT()
    assert built[0] == built[1]
    assert ours.seconds / ours.frames == pytest.approx(6 / 30)


@torch.no_grad()
def test_released_names(tmp_path, monkeypatch):
    """Catches: a name of SlowFast given to another layer, a class token of another shape."""
    monkeypatch.setattr(MViT.__init__, "__defaults__", (32, 4, None, 8, 2, [1, 2], 8, 512))
    torch.manual_seed(0)
    f = build_model(torch.zeros(0, 16), {"kind": "mvit"}, None, "none", tau=.02,
                    pixels=(.45, .225), alpha_bar=[.5]).encoder.eval()
    state = {}
    for name, value in f.state_dict(prefix="encoder.").items():
        value.normal_(0, .3)
        for ours, released in SLOWFAST if "body" in name else [("encoder.", "")]:
            name = name.replace(ours, released)
        state["model." + name] = value.view(1, 1, -1) if name.endswith("cls_token") else value
    torch.save({"model_state": state}, tmp_path / "x.pyth")
    loaded = weights.load(tmp_path / "x.pyth")
    clips = torch.randn(2, 3, 4, 32, 32)
    assert torch.equal(loaded.encoder(clips), f(clips))
