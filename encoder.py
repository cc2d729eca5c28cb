"""Turn a clip into one unit vector in the text space: the video encoder f.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.1: x_i = f(v_i), in Eqs. 1-10.
Model: Bertasius et al., ICML 2021 (arXiv:2102.05095): TimeSformer, divided space-time attention.

    paper                here                shape                 meaning
    v_i                  clips               (B, 3, F, H, W)       float pixels, normalized
    x_i                  TimeSformer(clips)  (B, D)                embedding in text space, length 1
    f                    TimeSformer         nn.Module             the encoder
    (TimeSformer paper from here)
    z_(p,t), p >= 1      patches             (B, P, F, width)      one token per patch and frame
    z_(0,0)              cls                 (B, width)            the class token, one per clip
    E (b: released code) patch_embed.proj    (width, 3, 16, 16)    a patch's pixels -> its token
    e_(p,t)^pos          pos_embed           (1, 1 + P, width)     place: class token, then patches
                         time_embed          (1, F, width)         frame; the class token has none
    B clips, D = 512, F = 8 frames, H = W = 224 pixels, P = 196 patches of 16 x 16 pixels per frame,
    width = 768; S sequences of L tokens in one attention. (Elsewhere B counts videos or rows.)

Parameter names, except for a prefix, are the released TimeSformer's, so its weights load, and the
results are equal up to rounding. Two things are done differently, for speed:
  - Patches, in (P, F) order, and class token are two tensors, so temporal attention copies nothing.
  - The last block computes only the class token, since nothing reads its patches. This gains most.
"""
from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional

EPS = 1e-6                                             # of every LayerNorm, as in ViT


class PatchEmbed(nn.Module):
    """E and b: a patch's pixels -> its token. The released convolution as one matrix product."""

    def __init__(self, patch, width):
        super().__init__()
        self.proj = nn.Conv2d(3, width, patch, patch)

    def forward(self, clips):
        """clips (B, 3, F, H, W) -> (B, P, F, width), patches row by row."""
        size = self.proj.kernel_size[0]
        pixels = clips.unflatten(4, (-1, size)).unflatten(3, (-1, size))
        pixels = pixels.permute(0, 3, 5, 2, 1, 4, 6)       # (B, rows, columns, F, 3, size, size)
        pixels = pixels.flatten(4).flatten(1, 2)           # (B, P, F, 3 * size * size)
        return functional.linear(pixels, self.proj.weight.flatten(1), self.proj.bias)


class Attention(nn.Module):
    """Multi-head self-attention: proj(concat_h softmax(q_h k_h^T / sqrt(width / heads)) v_h)."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, tokens):
        """tokens (S, L, width): every token attends to its own sequence -> (S, L, width)."""
        qkv = self.qkv(tokens).unflatten(2, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)                       # (S, heads, L, width / heads)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return self.proj(mixed.transpose(1, 2).flatten(2))

    def first_token(self, tokens):
        """tokens (S, L, width) -> (S, width): `forward(tokens)[:, 0]` without the other tokens."""
        width, weight, bias = tokens.shape[2], self.qkv.weight, self.qkv.bias      # rows: q, k, v
        q = functional.linear(tokens[:, :1], weight[:width], bias[:width])
        kv = functional.linear(tokens, weight[width:], bias[width:])
        q = q.unflatten(2, (self.heads, -1)).transpose(1, 2)       # (S, heads, 1, width / heads)
        k, v = kv.unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(functional.scaled_dot_product_attention(q, k, v).flatten(1))


class Block(nn.Module):
    """One block of divided space-time attention (TimeSformer, Sec. 3 and Fig. 2).

        patches = patches + temporal_fc(proj(attention over the F frames of each patch))
        tokens  = tokens + proj(attention over the class token and the P patches of each frame)
        tokens  = tokens + mlp(tokens)

    Each line begins with a LayerNorm. Temporal attention leaves out the class token, as the release
    does. Spatial attention reads it once per frame, and the F results are averaged.
    """

    def __init__(self, width, heads):
        super().__init__()
        self.temporal_norm1 = nn.LayerNorm(width, EPS)
        self.temporal_attn = Attention(width, heads)
        self.temporal_fc = nn.Linear(width, width)
        self.norm1 = nn.LayerNorm(width, EPS)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, EPS)
        self.mlp = nn.Sequential(OrderedDict(fc1=nn.Linear(width, 4 * width), act=nn.GELU(),
                                             fc2=nn.Linear(4 * width, width)))

    def attend_time(self, patches):
        """Temporal attention: patches (B, P, F, width) -> the same shape."""
        mixed = self.temporal_attn(self.temporal_norm1(patches).flatten(0, 1))  # (B P, F, width)
        return patches + self.temporal_fc(mixed).view_as(patches)

    def frame_tokens(self, cls, patches):
        """cls (B, width), patches (B, P, F, width) -> (B F, 1 + P, width), normalized by norm1."""
        B, P, F, width = patches.shape
        cls = self.norm1(cls)[:, None, None].expand(B, F, 1, width)
        patches = self.norm1(patches).transpose(1, 2)              # (B, F, P, width)
        return torch.cat([cls, patches], 2).view(B * F, 1 + P, width)

    def forward(self, cls, patches):
        """cls (B, width), patches (B, P, F, width) -> both, the same shapes."""
        patches = self.attend_time(patches)
        mixed = self.attn(self.frame_tokens(cls, patches))
        mixed = mixed.unflatten(0, (len(cls), -1))                 # (B, F, 1 + P, width)
        cls = cls + mixed[:, :, 0].mean(1)                         # (B, width)
        patches = patches + mixed[:, :, 1:].transpose(1, 2)        # (B, P, F, width)
        return cls + self.mlp(self.norm2(cls)), patches + self.mlp(self.norm2(patches))

    def class_token(self, cls, patches):
        """`forward(cls, patches)[0]` without the patches, for the last block -> (B, width)."""
        mixed = self.attn.first_token(self.frame_tokens(cls, self.attend_time(patches)))
        cls = cls + mixed.unflatten(0, (len(cls), -1)).mean(1)     # (B, width)
        return cls + self.mlp(self.norm2(cls))


class TimeSformer(nn.Module):
    """f: clips to unit vectors in the text space. Defaults: ViT-B/16 (release), F = 8 (appendix D).

    As in ViT, weights start normal with std .02, and biases at zero. temporal_fc starts at zero
    except in block 0 (release: in all; so do we from an image model, --init timm). time_embed
    starts with std .3: from zero, a small f needs twice as many clips to learn motion
    (docs/log.md).

    Args:
        image, patch: sides of a frame (H = W, a multiple of patch) and of a patch, pixels.
        frames, dim: F, frames per clip; D, width of the text space.
        width, depth, heads: a token's width, a multiple of heads; blocks; heads per block.
    """

    def __init__(self, image=224, patch=16, frames=8, width=768, depth=12, heads=12, dim=512):
        super().__init__()
        self.image, self.frames = image, frames
        self.seconds = None                # frames come from the whole window (MViT: its middle)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + (image // patch) ** 2, width))
        self.time_embed = nn.Parameter(0.3 * torch.randn(1, frames, width))
        self.patch_embed = PatchEmbed(patch, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, EPS)
        self.head = nn.Linear(width, dim)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        for block in self.blocks[1:]:
            nn.init.zeros_(block.temporal_fc.weight)

    def class_token(self, clips):
        """The class token before the head: clips (B, 3, F, H, W) float -> (B, width)."""
        place = self.pos_embed[0, 1:, None] + self.time_embed      # (P, F, width)
        patches = self.patch_embed(clips) + place                  # (B, P, F, width)
        cls = (self.cls_token[0] + self.pos_embed[0, :1]).expand(clips.shape[0], -1)   # (B, width)
        for block in self.blocks[:-1]:
            cls, patches = block(cls, patches)
        return self.norm(self.blocks[-1].class_token(cls, patches))

    def forward(self, clips):
        """x_i = f(v_i): clips as in `class_token` -> (B, D), length 1, in the type of the clips."""
        x = self.head(self.class_token(clips))
        return functional.normalize(x.to(clips.dtype), dim=-1)     # bfloat16 is too coarse
