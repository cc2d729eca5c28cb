"""Key frames: what a forecast step may look like, painted from the last observed frame.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Fig. 3 (right) and appendix B: SDEdit (Meng et
al. 2022, arXiv:2108.01073): the frame is noised up to STRENGTH of the noise levels, and denoised
from there by Stable Diffusion, with the step's text as the prompt. The constants are ours.
"""
import re

import numpy as np
import torch

from support.errors import InputError
from support.write import write_atomically

STRENGTH, LEVELS, GUIDANCE = 0.6, 50, 7.5      # diffusers' defaults, except 0.8 for the first
PAINTED = 3                                    # the likeliest steps are painted


def open_painter(name, device):
    """A folder or a name of the hub -> an img2img pipeline of diffusers. InputError without
    diffusers, or if the model is not there in safetensors."""
    try:
        from diffusers import StableDiffusionImg2ImgPipeline as Pipeline
    except ImportError:
        raise InputError("key frames need diffusers: pip install diffusers transformers") from None
    try:
        painter = Pipeline.from_pretrained(name, use_safetensors=True, safety_checker=None)
    except (OSError, ValueError) as error:
        raise InputError(f"--keyframe-model {name}: {str(error).splitlines()[0]}; needed is a "
                         "Stable Diffusion model of diffusers in safetensors") from None
    return painter.to(device)


def paint_steps(painter, picture, steps, folder, seed):
    """Paint the first PAINTED steps from picture (3, H, W) uint8, all with the same noise, into
    `folder` -> {step: (3, H', W') uint8 numpy}, near the size that the painter knows."""
    from PIL import Image                      # installed with diffusers
    folder.mkdir(parents=True, exist_ok=True)
    multiple = painter.vae_scale_factor * 2 ** (len(painter.unet.config.down_block_types) - 1)
    side = painter.unet.config.sample_size * painter.vae_scale_factor
    scale = side / min(picture.shape[1:]) / multiple
    H, W = (round(pixels * scale) * multiple for pixels in picture.shape[1:])
    start, painted = Image.fromarray(picture.transpose(1, 2, 0)).resize((W, H)), {}
    for i, step in enumerate(list(dict.fromkeys(steps))[:PAINTED], start=1):
        image = painter(step, start, strength=STRENGTH, num_inference_steps=LEVELS,
                        guidance_scale=GUIDANCE,
                        generator=torch.Generator().manual_seed(seed)).images[0]
        name = f"{i}_{re.sub(r'[^A-Za-z0-9]+', '_', step)[:60]}.png"
        write_atomically(folder / name, lambda file: image.save(file, "PNG"))
        painted[step] = np.asarray(image).transpose(2, 0, 1)
    return painted
