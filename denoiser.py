"""Predict the embedding of a missing clip from the clips around it: the denoising model h.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.1 (Eq. 5) and appendix B.
Model: the Transformer of CLIP's text encoder (Radford et al. 2021) with bidirectional attention.

    paper          here       shape        meaning
    {x_i}, i != j  z          (B, N, D)    embeddings of the clips: z = scale * x (diffusion.py)
    -              observed   (B, N)       bool; False = missing, hidden in training, or padding
    j              j          (B,)         the place of the missing clip, 0 to N - 1
    x_j^t          zt         (B, D)       its noisy version, scaled
    t              t          (B,)         noise level, 0 (least) to T - 1; the paper's t - 1
    h              Denoiser   nn.Module    predicts the clean missing clip
    x_hat_j^0      z_hat      (B, D)       its prediction, scaled
    B rows (in training, one for each missing clip), N clips in each, T levels, D embedding.

The N clips are N tokens. x_j^t overwrites clip j before anything reads clip j, so z may hold the
true clip there:

    tokens = where(i = j, x_j^t, x_i) + role + position + level
    x_hat_j^0 = Transformer(tokens)_j
"""
import math

import torch
from open_clip.transformer import QuickGELU, Transformer
from torch import nn

from diffusion import CLIPS, LEVELS


def sinusoids(t, width):
    """Noise levels (B,) -> (B, width): sin and cos at periods from 2 pi to 20,000 pi."""
    half = width // 2
    frequency = torch.exp(torch.arange(half, device=t.device) * (-math.log(10000) / (half - 1)))
    angle = t[:, None] * frequency                                      # (B, half)
    return torch.cat([angle.sin(), angle.cos()], -1)


class Denoiser(nn.Module):
    """h of Eq. 5: x_hat_j^0 = h(x_j^t, {x_i}_{i != j}, t). Published weights load into it.

    Args:
        dim:     D, width of an embedding and of a token; a multiple of heads and of 8, at least 16.
        layers, heads: of the Transformer; the paper has 4 layers.
        clips:   the most clips a row can have, the missing one included; the paper's 9.
        levels:  T, of which the mask takes the noisiest; the paper's 4.
        dropout: share of the tokens' values that are set to zero in training.
    """

    def __init__(self, dim=512, layers=4, heads=8, clips=CLIPS, levels=LEVELS, dropout=0.0):
        super().__init__()
        self.heads, self.levels = heads, levels
        self.role = nn.Embedding(2, dim)                                # 0 = observed, 1 = missing
        self.position = nn.Embedding(clips, dim)
        self.level = nn.Sequential(nn.Linear(dim // 4, dim), nn.GELU(), nn.Linear(dim, dim))
        self.dropout = nn.Dropout(dropout)
        self.transformer = Transformer(dim, layers, heads, act_layer=QuickGELU)

    def forward(self, zt, z, observed, j, t):
        """Shapes in the header, N at most `clips` -> z_hat (B, D)."""
        B, N, _ = z.shape
        is_missing = torch.arange(N, device=z.device) == j[:, None]                 # (B, N)
        tokens = torch.where(is_missing[..., None], zt[:, None], z)     # no longer the true clip j
        tokens = tokens + self.role(is_missing.long()) + self.position.weight[:N]
        tokens = tokens + self.level(sinusoids(t, self.level[0].in_features))[:, None]
        bias = torch.zeros(B, N, device=z.device).masked_fill(~(observed | is_missing), -torch.inf)
        bias = bias.repeat_interleave(self.heads, 0)[:, None].expand(-1, N, -1)     # hides clips
        tokens = self.transformer(self.dropout(tokens), bias)                       # (B, N, D)
        return tokens[torch.arange(B, device=z.device), j]                          # (B, D)


class MaskedDenoiser(Denoiser):
    """h of the ablation "mask" (Table 4): it reads zeros in place of x_j^t, at the noisiest level.

    The prediction depends on neither noise nor level, so one pass would do; sampling still makes T.
    """

    def forward(self, zt, z, observed, j, t):
        """See Denoiser.forward."""
        noisiest = torch.full_like(t, self.levels - 1)
        return super().forward(torch.zeros_like(zt), z, observed, j, noisiest)
