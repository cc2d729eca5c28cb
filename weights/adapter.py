"""f that reads features, of another model (docs/data.md) or of the teacher, instead of pictures."""
from torch import nn
from torch.nn import functional


class Adapter(nn.Module):
    """f: features to unit vectors in the text space, by a LayerNorm and two layers.

    features: F, numbers per clip; width: of the hidden layer; dim: D, width of the text space.
    """
    image, frames, seconds = 0, 0, None                # it reads no pictures

    def __init__(self, features=512, width=512, dim=512):
        super().__init__()
        self.features = features
        self.blocks = nn.Sequential(nn.LayerNorm(features), nn.Linear(features, width), nn.GELU(),
                                    nn.Linear(width, dim))

    def forward(self, clips):
        """x_i = f(v_i): clips (B, F) float -> (B, D), length 1."""
        return functional.normalize(self.blocks(clips).to(clips.dtype), dim=-1)


class TeacherFeatures(nn.Module):
    """The teacher in place of f, CLIP's row of Table 2: its features of a clip at length 1.

    image, frames: of the clips that the teacher sees; dim: D.
    """
    seconds = None

    def __init__(self, image=224, frames=8, dim=512):
        super().__init__()
        self.image, self.frames = image, frames

    def forward(self, features):
        """The teacher's features (B, D) -> (B, D), length 1."""
        return functional.normalize(features, dim=-1)
