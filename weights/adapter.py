"""f for features that another model computed from the frames: docs/data.md."""
from torch import nn
from torch.nn import functional


class Adapter(nn.Module):
    """f: features to unit vectors in the text space, by a LayerNorm and two layers. features: F,
    numbers per clip; width: of the hidden layer; dim: D, width of the text space."""
    image, frames, seconds = 0, 0, None                # it reads no pictures

    def __init__(self, features, width=512, dim=512):
        super().__init__()
        self.features, self.arguments = features, dict(
            kind="adapter", features=features, width=width)
        self.blocks = nn.Sequential(nn.LayerNorm(features), nn.Linear(features, width), nn.GELU(),
                                    nn.Linear(width, dim))

    def forward(self, clips):
        """x_i = f(v_i): clips (B, F) float -> (B, D), length 1."""
        return functional.normalize(self.blocks(clips).to(clips.dtype), dim=-1)
