"""Predict the embedding of a missing clip from the clips around it: the denoising model h.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.1 (Eq. 5) and appendix B.
Model: the Transformer of CLIP's text encoder (pre-norm, QuickGELU) with bidirectional attention.

    paper          here       shape        meaning
    {x_i}, i != j  context    (B, N, C)    what is known of each clip
    -              observed   (B, N)       bool; False = missing, hidden or padding
    j              j          (B,)         which clip is missing, 0 to N - 1
    x_j^t          xt         (B, Q, D)    noisy versions of clip j, Q queries per video
    t              t          (B, Q)       noise level of each query, 0 (least) to T - 1 (most)
    h              Denoiser   nn.Module    one D-vector per query
    B videos, N clips, Q queries, T noise levels, D embedding, C context width, W width.

Where this file leaves the paper:
  - Queries stand beside the clips, not in place of one. A token attends to the observed clips and
    to itself: so several noise levels (in training) or Monte Carlo samples (at inference) go
    through in one pass, and no query sees another.
  - Position enters as a bias on attention by the distance of two clips (N = 9 clips: -8 to 8), not
    as 9 absolute vectors: a window may start anywhere in a video, so that "the one before" means
    something and "the third" does not. Measured in README.md.
"""
import math

import torch
from torch import nn
from torch.nn import functional


class QuickGELU(nn.Module):
    """x sigmoid(1.702 x), the activation of OpenAI's CLIP."""

    def forward(self, x):
        """(...) -> (...), elementwise."""
        return functional.silu(1.702 * x) / 1.702                       # one pass, not four


class Block(nn.Module):
    """tokens + attention(ln_1(tokens)), then tokens + mlp(ln_2(tokens)).

    `distance` (heads, 2N - 1) is added to the attention logits by how far key is after query.
    """

    def __init__(self, width, heads, clips, dropout):
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.ln_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.distance = nn.Parameter(torch.zeros(heads, 2 * clips - 1))
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), QuickGELU(),
                                 nn.Linear(4 * width, width))

    def forward(self, tokens, offset, hidden):
        """tokens (B, L, W), offset (B, L, L) int64 in 0..2N-2, hidden (B, L, L) bool -> (B, L, W).

        hidden: True = this query (second axis) does not attend to this key (third axis).
        """
        B, L, W = tokens.shape
        qkv = self.qkv(self.ln_1(tokens)).view(B, L, 3, self.heads, W // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)                            # (B, heads, L, W / heads)
        bias = self.distance[:, offset].transpose(0, 1)                 # (B, heads, L, L)
        bias = bias.masked_fill(hidden[:, None], -torch.inf).to(q.dtype)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        tokens = tokens + self.dropout(self.proj(mixed.transpose(1, 2).reshape(B, L, W)))
        return tokens + self.dropout(self.mlp(self.ln_2(tokens)))


class Denoiser(nn.Module):
    """h of Eq. 5: x_hat = h(x_j^t, {x_i}_{i != j}, t).

    A clip token is the sum of its projected context and a role embedding (observed); a query token
    the sum of its projected noisy input, the role embedding (masked) and the noise level: sinusoids
    of t through an MLP.

    Args:
        dim:     D, width of xt and of the result.
        context: C, width of the context; D by default.
        width:   W, width of a token; a multiple of heads.
        layers, heads: of the Transformer. The paper has 4 layers of CLIP's width, 512.
        clips:   N, the most clips a video can have.
        dropout: share of each block's output set to zero in training.
    Raises: ValueError if width is not a multiple of heads.
    """

    def __init__(self, dim=512, context=None, width=512, layers=4, heads=8, clips=9,
                 dropout=0.0):
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} is not a multiple of heads {heads}; choose another")
        self.clips = clips
        self.read_context = nn.Linear(context or dim, width)
        self.read_noisy = nn.Linear(dim, width)
        self.role = nn.Embedding(2, width)                              # 0 = observed, 1 = masked
        self.level = nn.Sequential(nn.Linear(16, width), nn.GELU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(Block(width, heads, clips, dropout)
                                    for _ in range(layers))
        self.ln = nn.LayerNorm(width)
        self.out = nn.Linear(width, dim)
        nn.init.normal_(self.role.weight, std=0.1)
        nn.init.zeros_(self.out.weight)                                 # h starts by saying nothing
        nn.init.zeros_(self.out.bias)

    def forward(self, context, observed, xt, j, t):
        """Shapes in the header. Returns (B, Q, D); the caller says what it means (diffusion.py).

        Raises: ValueError if shapes do not fit, or there are more clips than positions.
        """
        (B, N, _), Q = context.shape, xt.shape[1]
        if N > self.clips:
            raise ValueError(f"{N} clips per video, but h has positions for {self.clips}; "
                             f"give it at most {self.clips}")
        if observed.shape != (B, N) or j.shape != (B,) or t.shape != (B, Q):
            raise ValueError(f"observed {tuple(observed.shape)}, j {tuple(j.shape)}, "
                             f"t {tuple(t.shape)} do not fit context {tuple(context.shape)} and "
                             f"xt {tuple(xt.shape)}; need (B, N), (B,), (B, Q)")
        clips = self.read_context(context) + self.role.weight[0]        # (B, N, W)
        queries = self.read_noisy(xt) + self.role.weight[1] + self.level(sinusoids(t))  # (B, Q, W)
        tokens = torch.cat([clips, queries], 1)                         # (B, N + Q, W)

        position = torch.cat([torch.arange(N, device=j.device).expand(B, N),
                              j[:, None].expand(B, Q)], 1)              # (B, N + Q)
        offset = position[:, None, :] - position[:, :, None] + self.clips - 1
        own = torch.eye(N + Q, dtype=torch.bool, device=j.device)       # each token sees itself
        seen = functional.pad(observed, (0, Q))[:, None] | own          # (B, N + Q, N + Q)
        for block in self.blocks:
            tokens = block(tokens, offset, ~seen)
        return self.out(self.ln(tokens[:, N:]))                         # (B, Q, D)


def sinusoids(t, width=16):
    """Noise levels (B, Q) int64 -> (B, Q, width): sin and cos at periods from 2 pi to 112 pi."""
    frequency = torch.exp(-math.log(100) * torch.arange(width // 2, device=t.device) / (width // 2))
    angle = t[..., None] * frequency                                    # (B, Q, width / 2)
    return torch.cat([angle.sin(), angle.cos()], -1)
