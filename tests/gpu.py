"""What a GPU makes of an update at base size, in five minutes: `python tests/gpu.py` (no pytest).

It prints temporal attention by each backend; the teacher; f alone and whole updates in slices of 2,
4 and 8 videos, as they are and compiled; and the kernels that take the time. Weights are random,
clips are noise. A clip costs f 1.1 TFLOP with gradients; the teacher adds 0.28.
"""
import sys

import open_clip
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.benchmark import Timer

sys.path.insert(0, ".")

from diffusion import noise_levels, scale_of  # noqa: E402
from model import Config  # noqa: E402
from pseudo_labels import Teacher, soft_targets  # noqa: E402
from support.arguments import compile_modules, mixed_precision  # noqa: E402
from train import SIZES, draw, objective  # noqa: E402
from weights.checkpoint import build  # noqa: E402
from weights.encoders import sizes_of  # noqa: E402

GPU, FLOP = torch.device("cuda"), {"f": 1.1e12, "whole update": 1.38e12}       # for one clip


def seconds(work):
    """The mean of five runs, after one that is not counted. Waits for the GPU."""
    work()
    return Timer("work()", globals={"work": work}).timeit(5).mean


def main(videos, peak):
    """Print the table."""
    print(torch.__version__, torch.cuda.get_device_name(), torch.cuda.get_device_capability())
    q = torch.randn(7056, 12, 8, 64, device=GPU, dtype=torch.bfloat16, requires_grad=True)
    for name in "MATH", "EFFICIENT_ATTENTION", "FLASH_ATTENTION", "CUDNN_ATTENTION":
        with sdpa_kernel(getattr(SDPBackend, name)):
            took = seconds(lambda: scaled_dot_product_attention(q, q, q).sum().backward())
        print(f"temporal attention, {name}: {1000 * took:.2f} ms")
    clip = open_clip.create_model("ViT-B-16-quickgelu", pretrained=None)
    teacher, texts = Teacher(clip, None, .45, .25, GPU), torch.randn(9871, 512)
    config = Config(sizes_of("timesformer", "base"), SIZES["base"]["denoiser"], "diffusion", .02,
                    scale_of(512), noise_levels(512).tolist(), (.45, .225))
    model = build(config, texts).to(GPU).train()
    optimizer = torch.optim.AdamW(model.parameters(), 5e-5, fused=True)
    clips = torch.randint(256, (videos, 9, 8, 3, 224, 224), dtype=torch.uint8, device=GPU)
    draws = [drawn.to(GPU) for drawn in draw(videos, 512, 4, "release", "observed", 0, 0)]

    def update(micro, name="whole update"):
        """An update in slices of `micro` videos, or what f alone takes of it."""
        for part in (slice(k, k + micro) for k in range(0, videos, micro)):
            with mixed_precision(GPU):
                if name == "f":
                    loss = model.encode(clips[part].flatten(0, 1)).sum()
                else:
                    features = teacher.encode_clips(clips[part].flatten(0, 1)).unflatten(0, (-1, 9))
                    targets = soft_targets(features, model.phrases, model.tau)
                    given = [drawn[part] for drawn in draws]
                    loss = sum(objective(model, clips[part], targets, *given)[:3]).sum()
            (loss / videos).backward()
        optimizer.step()
        optimizer.zero_grad()

    took = seconds(lambda: teacher.encode_clips(clips.flatten(0, 1)[:72]))
    print(f"teacher, 72 clips: {1000 * took:.0f} ms")
    for way in "as it is", "compiled":
        for micro, name in ((micro, name) for micro in (2, 4, 8) for name in FLOP):
            rate = 9 * videos / seconds(lambda: update(micro, name))
            print(f"{way}, {micro} videos, {name}: {rate:.0f} clips/s, "
                  f"{rate * FLOP[name] / peak:.0%} of the peak")
        compile_modules(GPU, model.encoder, model.denoiser, teacher)
    with torch.profiler.profile() as profile:
        update(8)
    print(profile.key_averages().table(sort_by="self_device_time_total", row_limit=15))


if __name__ == "__main__":
    main(videos=16, peak=989e12)                       # FLOP/s in bfloat16 of an H100
