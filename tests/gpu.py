"""What a GPU makes of an update at base size, in five minutes: `python tests/gpu.py [--videos 16]`.

pytest does not collect it. It prints versions; temporal attention by each backend; f in slices of 2,
4 and 8 videos, as it is and compiled; the teacher; whole updates; the kernels that take the time.
Weights are random, clips are noise. A clip costs f 1.1 TFLOP with gradients; the teacher adds 0.28.
"""
import argparse
import sys
import time
from pathlib import Path

import open_clip
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).parents[1]))

from diffusion import noise_levels, scale_of  # noqa: E402
from model import Config  # noqa: E402
from pseudo_labels import Teacher, soft_targets  # noqa: E402
from support.arguments import compile_blocks, mixed_precision  # noqa: E402
from train import SIZES, draw, objective  # noqa: E402
from weights.checkpoint import build  # noqa: E402

GPU, FLOP = torch.device("cuda"), 1.38e12              # of f and the teacher, for one clip


def milliseconds(work, times=5):
    """The fastest of some runs, after two that are not counted."""
    taken = []
    for _ in range(2 + times):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        taken.append(1000 * (time.perf_counter() - began))
    return min(taken[2:])


def main(videos, peak):
    """Print the table."""
    print(torch.__version__, torch.cuda.get_device_name(), torch.cuda.get_device_capability())
    q = torch.randn(7056, 12, 8, 64, device=GPU, dtype=torch.bfloat16, requires_grad=True)
    for backend in (SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION,
                    SDPBackend.CUDNN_ATTENTION):
        with sdpa_kernel(backend):
            ms = milliseconds(lambda: scaled_dot_product_attention(q, q, q).sum().backward())
        print(f"temporal attention, {backend.name}: {ms:.2f} ms")

    clip = open_clip.create_model("ViT-B-16-quickgelu", pretrained=None)
    teacher, texts = Teacher(clip, None, .45, .25, GPU), torch.randn(9871, 512)
    sizes = {"kind": "timesformer", **SIZES["base"]["timesformer"]}
    config = Config(sizes, SIZES["base"]["denoiser"], "diffusion", .02, scale_of(512),
                    noise_levels(512).tolist(), (.45, .225))
    model = build(config, texts).to(GPU).train()
    optimizer = torch.optim.AdamW(model.parameters(), 5e-5, fused=True)
    clips = torch.randint(256, (videos, 9, 8, 3, 224, 224), dtype=torch.uint8, device=GPU)
    draws = [drawn.to(GPU) for drawn in draw(videos, 512, 4, "release", "observed", 0, 0)]

    def update(micro, taught=True):
        """An update in slices of `micro` videos; f alone if it is not taught."""
        for part in range(0, videos, micro):
            rows = slice(part, part + micro)
            with mixed_precision(GPU):
                if taught:
                    features = teacher.encode_clips(clips[rows].flatten(0, 1)).unflatten(0, (-1, 9))
                    targets = soft_targets(features, model.phrases, model.tau)
                    loss = sum(objective(model, clips[rows], targets,
                                         *(drawn[rows] for drawn in draws))[:3]).sum()
                else:
                    loss = model.encode(clips[rows].flatten(0, 1)).sum()
            (loss / videos).backward()
        optimizer.step()
        optimizer.zero_grad()

    for count in (18, 36, 72):
        ms = milliseconds(lambda: teacher.encode_clips(clips.flatten(0, 1)[:count]))
        print(f"teacher, {count} clips: {ms:.0f} ms")
    for way in ("as it is", "compiled"):
        for micro in (2, 4, 8):
            for name, taught in (("f", False), ("whole update", True)):
                rate = 9000 * videos / milliseconds(lambda: update(micro, taught), 3)
                print(f"{way}, {micro} videos, {name}: {rate:.0f} clips/s, "
                      f"{rate * (FLOP if taught else 1.1e12) / peak:.0%} of the peak")
        compile_blocks(GPU, model.encoder, teacher.model)
    with torch.profiler.profile() as profile:
        update(8)
    print(profile.key_averages().table(sort_by="self_device_time_total", row_limit=15))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--videos", type=int, default=16, help="of an update")
    parser.add_argument("--peak", type=float, default=989e12, help="FLOP/s in bfloat16 (H100, H200)")
    main(**vars(parser.parse_args()))
