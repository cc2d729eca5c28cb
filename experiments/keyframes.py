"""Key frames: what a forecast step may look like, painted from the last observed frame.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Fig. 3 (right) and appendix B, "Future Key Frame
Generation": SDEdit (Meng et al. 2022, arXiv:2108.01073) with Stable Diffusion. SDEdit noises the
frame up to STRENGTH of the noise levels, and denoises it from there with the step's text as the
prompt, here with DDIM (Song et al. 2021). The paper gives none of the constants.
"""
import re

import numpy as np
import torch
from tqdm import tqdm

from support.command import BadInput, write_atomically
from support.device import pick_device

# diffusers' defaults, except 0.8 for the first: up to about 0.6 the frame's layout survives.
STRENGTH, LEVELS, GUIDANCE = 0.6, 50, 7.5
PAINTED = 3                                    # the likeliest steps are painted


def open_painter(settings):
    """The model of --keyframe-model -> an img2img pipeline of diffusers; runs no code of its files.
    BadInput if diffusers is missing, or the model is not a Stable Diffusion in safetensors."""
    try:
        import diffusers
        import transformers
    except ImportError:
        raise BadInput("--keyframes needs diffusers: pip install diffusers transformers") from None
    for package in (diffusers, transformers):
        package.utils.logging.set_verbosity_error()
        package.utils.logging.disable_progress_bar()
    try:
        painter = diffusers.StableDiffusionImg2ImgPipeline.from_pretrained(
            settings.keyframe_model, use_safetensors=True, safety_checker=None,
            requires_safety_checker=False)
        painter.scheduler = diffusers.DDIMScheduler.from_config(    # the last level gives a clean x
            painter.scheduler.config, steps_offset=0, set_alpha_to_one=True, clip_sample=False)
    except Exception as error:                 # their exceptions have no common base class
        reason = str(error).strip().split("\n")[0][:200]
        raise BadInput(f"--keyframe-model {settings.keyframe_model}: {type(error).__name__}: "
                       f"{reason}; a Stable Diffusion model of diffusers in safetensors is needed, "
                       "a folder or, with a network, a name of the hub") from None
    painter.set_progress_bar_config(disable=True)
    return painter.to(pick_device(settings.device))


def paint_steps(painter, picture, steps, settings):
    """Paint each step from the picture (3, H, W), all with the same noise, into --keyframes, as
    1_first_step.png and the like -> {step: (3, H', W') uint8 numpy}."""
    from PIL import Image                      # installed with diffusers

    def write(name, image):
        write_atomically(settings.keyframes / f"{name}.png", lambda file: image.save(file, "PNG"))

    settings.keyframes.mkdir(parents=True, exist_ok=True)
    observed, painted = Image.fromarray(picture.transpose(1, 2, 0)), {}
    write("observed", observed)
    # The short side as in the model's training, both sides as its UNet needs them, in pixels.
    multiple = painter.vae_scale_factor * 2 ** (len(painter.unet.config.down_block_types) - 1)
    side = painter.unet.config.sample_size * painter.vae_scale_factor
    scale = side / min(observed.size) / multiple
    start = observed.resize([round(pixels * scale) * multiple for pixels in observed.size])
    for i, step in enumerate(tqdm(steps, desc="paint", mininterval=1), start=1):
        image = painter(step, start, strength=STRENGTH, num_inference_steps=LEVELS,
                        guidance_scale=GUIDANCE,
                        generator=torch.Generator().manual_seed(settings.seed)).images[0]
        write(f"{i}_{re.sub(r'[^A-Za-z0-9]+', '_', step)[:60]}", image)
        painted[step] = np.asarray(image).transpose(2, 0, 1)
    return painted
