"""The other video encoder f of the paper's ablation: MViT-v2, from torchvision.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), appendix, "Backbone Architecture of Video
Encoder" and Table D. Model: Li et al., CVPR 2022 (arXiv:2112.01526). Interface: TimeSformer's.
"""
from torch import nn
from torch.nn import functional
from torchvision.models.video import mvit


def block_settings(stages, width, heads, kv_stride):
    """torchvision's settings of each block: pooling kernels of 3 x 3 x 3, equally many keys."""
    settings, kernel = [], [3, 3, 3]
    for stage, blocks in enumerate(stages):
        for block in range(blocks):
            q = 1
            if stage > 0 and block == 0:                   # a new stage has half the places
                q = 2
            kv = max(kv_stride >> stage, 1)
            settings.append(mvit.MSBlockConfig(heads << stage, width, q * width, kernel, kernel,
                                               [1, q, q], [1, kv, kv]))
            width *= q
    return settings


class MViT(nn.Module):
    """f: clips to unit vectors in the text space. Defaults are MViT-v2-S (torchvision mvit_v2_s).

    image: H = W, pixels, a multiple of 4 * 2^(stages - 1). frames: F, even. seconds: what a clip
    covers at most, around the middle of its window; None: all of it. In the first stage: width of a
    token, heads of attention (they divide width), kv_stride of the pooling of keys and values.
    stages: blocks in each stage. dim: D, width of the text space.
    """

    def __init__(self, image=224, frames=16, seconds=3.2, width=96, heads=1, stages=(1, 2, 11, 2),
                 kv_stride=8, dim=512):
        super().__init__()
        self.image, self.frames, self.seconds = image, frames, seconds
        self.body = mvit.MViT((image, image), frames,
                              block_settings(stages, width, heads, kv_stride), residual_pool=True,
                              residual_with_cls_embed=False, rel_pos_embed=True,
                              proj_after_attn=True, num_classes=1)
        self.body.head = nn.Identity()
        self.head = nn.Linear(width << (len(stages) - 1), dim)
        nn.init.trunc_normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def forward(self, clips):
        """x_i = f(v_i): clips (B, 3, F, H, W) float, RGB, normalized -> (B, D), length 1."""
        x = self.head(self.body(clips))
        return functional.normalize(x.to(clips.dtype), dim=-1)     # bfloat16 is too coarse
