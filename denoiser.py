"""Predict the embeddings of missing clips from the clips around them: the denoising model h.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.1 (Eq. 5) and appendix B.
Model: the Transformer of CLIP's text encoder (pre-norm, QuickGELU) with bidirectional attention.

    paper          here       shape        meaning
    {x_i}, i != j  context    (B, N, C)    the features that h reads of each clip
    -              observed   (B, N)       bool; False = missing, hidden or padding
    j              j          (B, P)       which clips are missing, 0 to N - 1; the paper's P is 1
    x_j^t          xt         (B, Q, D)    noisy versions of these clips: G groups of P, Q = G P
    t              t          (B, Q)       noise level of each query, 0 (least) to T - 1 (most)
    h              Denoiser   nn.Module    one D-vector per query
    B videos, N clips, P missing ones, G groups, T levels, D embedding, C context width, W width,
    w = W / heads.

Where this file leaves the paper:
  - Queries are tokens of their own, not in place of the clips. Clips attend only to observed clips,
    so their keys and values are computed once (`remember`). A query attends to the observed clips
    and to its own group. Levels or Monte Carlo samples are groups, in one pass; clips that are
    missing together are one group.
  - Position is a bias on attention by the distance of two clips, not an absolute vector: a window
    may start anywhere in a video. README.md has the measurement.
"""
import math

import torch
from torch import nn
from torch.nn import functional


class QuickGELU(nn.Module):
    """x sigmoid(1.702 x), the activation of OpenAI's CLIP, elementwise."""

    def forward(self, x):
        return functional.silu(1.702 * x) / 1.702                       # one pass, not four


class Block(nn.Module):
    """tokens + attention(ln_1(tokens)), then tokens + mlp(ln_2(tokens)).

    `distance` (heads, 2N - 1) is a bias on the logits: how many clips the key is after the query.
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

    def forward(self, tokens, offset, hidden, memory=None):
        """G groups of L tokens attend within their group, and to the memory.

        Plain softmax attention: with about ten keys it is faster than the fused one.

        Args:
            tokens: (B, G, L, W).
            offset: (B, L, N + L) int64, column of `distance` for a token and a key; the N keys of
                    the memory come first. N = 0 without a memory.
            hidden: (B, L, N + L) bool, True = this token does not attend to this key.
            memory: keys and values, (B, heads, N, w) each; or None.
        Returns: tokens (B, G, L, W), and their own keys and values, (B, heads, G, L, w) each.
        """
        B, G, L, W = tokens.shape
        qkv = self.qkv(self.ln_1(tokens)).view(B, G, L, 3, self.heads, W // self.heads)
        q, k, v = qkv.permute(3, 0, 4, 1, 2, 5)                         # (B, heads, G, L, w)
        bias = self.distance[:, offset].transpose(0, 1)                 # (B, heads, L, N + L)
        bias = bias.masked_fill(hidden[:, None], -torch.inf)[:, :, None]
        logits = q @ k.mT                                               # (B, heads, G, L, L)
        if memory:
            keys, values = memory
            far = (q.flatten(2, 3) @ keys.mT).unflatten(2, (G, L))      # (B, heads, G, L, N)
            logits = torch.cat([far, logits], -1)
        weight = (logits * q.shape[-1] ** -0.5 + bias).softmax(-1).to(v.dtype)
        mixed = weight[..., -L:] @ v                                    # (B, heads, G, L, w)
        if memory:
            mixed = mixed + (weight[..., :-L].flatten(2, 3) @ values).unflatten(2, (G, L))
        mixed = mixed.permute(0, 2, 3, 1, 4).reshape(B, G, L, W)
        tokens = tokens + self.dropout(self.proj(mixed))
        return tokens + self.dropout(self.mlp(self.ln_2(tokens))), (k, v)


class Denoiser(nn.Module):
    """h of Eq. 5: x_hat = h(x_j^t, {x_i}_{i != j}, t).

    A clip token is its projected context plus the role embedding "observed". A query token is its
    projected noisy input plus the role embedding "masked" and an MLP of the level's sinusoids.

    Args:
        dim:     D, width of xt and of the result.
        context: C, width of the context; D by default.
        width:   W, width of a token; a multiple of heads.
        layers, heads: of the Transformer. The paper has 4 layers of CLIP's width, 512.
        clips:   N, the most clips a video can have, the missing ones included.
        dropout: share of each block's output set to zero in training.
    Raises: ValueError if width is not a multiple of heads.
    """

    def __init__(self, dim=512, context=None, width=512, layers=4, heads=8, clips=9, dropout=0.0):
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} is not a multiple of heads {heads}; choose another")
        self.clips = clips
        self.read_context = nn.Linear(context or dim, width)
        self.read_noisy = nn.Linear(dim, width)
        self.role = nn.Embedding(2, width)                              # 0 = observed, 1 = masked
        self.level = nn.Sequential(nn.Linear(16, width), nn.GELU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(Block(width, heads, clips, dropout) for _ in range(layers))
        self.ln = nn.LayerNorm(width)
        self.out = nn.Linear(width, dim)
        nn.init.normal_(self.role.weight, std=0.1)
        nn.init.zeros_(self.out.weight)                                 # h starts at zero
        nn.init.zeros_(self.out.bias)

    def remember(self, context, observed):
        """Keys and values of the clips, which do not depend on the queries.

        Args:    context (B, N, C), observed (B, N) bool.
        Returns: keys and values at every layer, [((B, heads, N, w), (B, heads, N, w)), ...].
        Raises:  ValueError if shapes do not match, or there are more clips than positions.
        """
        B, N, _ = context.shape
        if N > self.clips:
            raise ValueError(f"{N} clips per video, but h has positions for {self.clips}; "
                             f"give it at most {self.clips}")
        if observed.shape != (B, N):
            raise ValueError(f"observed {tuple(observed.shape)} does not fit context "
                             f"{tuple(context.shape)}; need (B, N)")
        place = torch.arange(N, device=context.device)
        offset = (place - place[:, None] + self.clips - 1).expand(B, N, N)
        own = torch.eye(N, dtype=torch.bool, device=context.device)     # each clip sees itself
        tokens = (self.read_context(context) + self.role.weight[0])[:, None]     # (B, 1, N, W)
        memory = []
        for block in self.blocks:
            tokens, (k, v) = block(tokens, offset, ~(observed[:, None] | own))
            memory.append((k[:, :, 0], v[:, :, 0]))
        return memory

    def forward(self, memory, observed, xt, j, t):
        """memory from `remember`; other shapes in the header. Returns (B, Q, D), see model.py.

        Raises: ValueError if shapes do not match.
        """
        (B, N), (_, Q, _), P = observed.shape, xt.shape, j.shape[-1]
        if j.shape != (B, P) or t.shape != (B, Q) or Q % P:
            raise ValueError(f"j {tuple(j.shape)}, t {tuple(t.shape)} do not fit observed "
                             f"{tuple(observed.shape)} and xt {tuple(xt.shape)}; need (B, P), "
                             "(B, Q), and groups of P queries")
        place = torch.cat([torch.arange(N, device=j.device).expand(B, N), j], 1)    # (B, N + P)
        offset = place[:, None] - j[:, :, None] + self.clips - 1        # (B, P, N + P)
        hidden = ~functional.pad(observed, (0, P), value=True)          # (B, N + P)
        tokens = self.read_noisy(xt) + self.role.weight[1] + self.level(sinusoids(t))  # (B, Q, W)
        tokens = tokens.unflatten(1, (-1, P))                           # (B, G, P, W)
        for block, layer in zip(self.blocks, memory):
            tokens, _ = block(tokens, offset, hidden[:, None].expand(-1, P, -1), layer)
        return self.out(self.ln(tokens)).flatten(1, 2)                  # (B, Q, D)


def sinusoids(t, width=16):
    """Noise levels (B, Q) int64 -> (B, Q, width): sin and cos at periods from 2 pi to 112 pi."""
    frequency = torch.exp(-math.log(100) * torch.arange(width // 2, device=t.device) / (width // 2))
    angle = t[..., None] * frequency                                    # (B, Q, width / 2)
    return torch.cat([angle.sin(), angle.cos()], -1)
