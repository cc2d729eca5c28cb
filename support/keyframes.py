"""A key frame of each step that may come next, as in Fig. 3: SDEdit by an image model of diffusers.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Fig. 3 and its appendix. SDEdit (Meng et al.,
arXiv:2108.01073) adds noise to a picture, here the last frame that is observed, and a text-to-image
diffusion model denoises it, with the step as its text.
"""
import re
from pathlib import Path
from textwrap import shorten

import torch
from torchvision.transforms.v2 import functional as transform

from support.errors import InputError, require
from support.read import read_json
from support.write import write_atomically

STRENGTH = 0.75           # share of the noise levels that are added (CompVis/stable-diffusion)
LEVELS = 50               # of the image model, from the noisiest to none
INDEX = "model_index.json"                             # of a folder of diffusers' layout
# Where the classes of an index may be from; the last is diffusers' filter of unsafe pictures.
LIBRARIES = "diffusers", "transformers", "stable_diffusion"
PACKAGES = "pip install diffusers transformers accelerate"


def open_diffusers():
    """diffusers, for image models whose texts are read by transformers; InputError without them."""
    try:
        import diffusers
        import transformers
    except ImportError:
        raise InputError(f"key frames need diffusers: {PACKAGES}") from None
    diffusers.logging.set_verbosity_error()            # an error is one line
    transformers.logging.set_verbosity_error()
    return diffusers


def check_flags(folder, name, strength, features):
    """InputError if flags contradict each other, or a package is missing. Each is None if it is not
    given. features: whether the video is one of features."""
    together = (folder is None) == (name is None)
    require(together, "--key-frames DIR and --image-model M need each other: where the pictures "
            "go, and what draws them")
    if folder is None:
        require(strength is None, "--strength: has no effect without --key-frames")
        return
    require(not features, "--key-frames: features have no frames to draw from")
    least = 1 / LEVELS
    require(strength is None or least <= strength <= 1, f"--strength {strength}: must be at least "
            f"{least:g}, one of the {LEVELS} noise levels, and at most 1")
    open_diffusers()


def require_no_code(folder):
    """InputError if a folder holds code, or if its index is damaged or names a class of another
    library than LIBRARIES, or one whose files could ask for code."""
    path = folder / INDEX
    require(path.is_file(), f"{folder}: holds no {INDEX}; expected the folder of an image model, "
            "as diffusers saves it")
    index = read_json(path, "get it again")
    require(isinstance(index, dict) and isinstance(index.get("_class_name"), str),
            f"{path}: names no pipeline of diffusers; models with code of their own are not loaded")
    for part, place in index.items():
        if not isinstance(place, list) or place == [None, None]:   # a setting; a part left out
            continue
        known = len(place) == 2 and place[0] in LIBRARIES
        require(known and not re.match("Auto[A-Z]", str(place[1])), f"{path}: {part} is {place}, "
                "no model class of diffusers or transformers; code of other places is not run")
    code = next(folder.rglob("*.py"), None)
    require(code is None, f"{code}: is code, which is not run; expected an image model without")


def open_pipeline(name, device):
    """The image-to-image pipeline of an image model, on a device.

    name: a folder, or the name of a model that diffusers fetches or has fetched before. Only
    safetensors are loaded, and no code. InputError if that cannot be done.
    """
    diffusers, folder = open_diffusers(), Path(name)
    try:
        if not folder.is_dir():
            folder = Path(diffusers.DiffusionPipeline.download(
                str(name), use_safetensors=True, trust_remote_code=False))
        require_no_code(folder)
        pipeline = diffusers.AutoPipelineForImage2Image.from_pretrained(
            folder, use_safetensors=True, trust_remote_code=False)
    except InputError:
        raise
    except Exception as error:                 # each way of loading has another class
        raise InputError(f"--image-model {name}: {shorten(str(error), 250)}; expected a folder "
                         "with safetensors, as diffusers saves a Stable Diffusion; without a "
                         "network, fetch it elsewhere") from None
    require("unet" in pipeline.components, f"--image-model {name}: is no Stable Diffusion: it has "
            "no UNet")
    return pipeline.to(device)


def resize_for(picture, pipeline):
    """A picture (3, H, W) uint8 -> (3, H', W') uint8, whose short side is what the pipeline draws,
    to which a larger one is reduced; both sides are multiples of the pixels of its latents."""
    block = pipeline.vae_scale_factor                  # pixels, side of what a latent stands for
    latents = pipeline.unet.config.sample_size
    sides = picture.shape[1:]
    short = min(picture.shape[1:])
    return transform.resize(picture, [block * round(side * latents / short) for side in sides])


def file_name(rank, step):
    """The name of the picture of the step of a rank: "1-crack-egg.png"."""
    words = re.sub(r"\W+", "-", step.casefold()).strip("-")
    return f"{rank}-{words[:60]}.png"                  # file systems hold 255 bytes


def draw_key_frames(pipeline, folder, picture, steps, strength=None, seed=0):
    """Draw the picture of each step, from the likeliest on, and write it to the folder.

    Args:    picture (3, H, W) uint8: the last that is observed; strength: share of the noise levels
             that are added to it, None: STRENGTH; seed: of that noise, which is the same for all.
    Returns: the paths, one for each step.
    """
    start = transform.to_pil_image(resize_for(picture, pipeline))
    paths = []
    for rank, step in enumerate(steps, start=1):
        pipeline.set_progress_bar_config(desc=step)
        drawn = pipeline(prompt=step, image=start, strength=strength or STRENGTH,
                         num_inference_steps=LEVELS, generator=torch.Generator().manual_seed(seed))
        path = Path(folder) / file_name(rank, step)
        image = drawn.images[0]
        write_atomically(path, lambda file, image=image: image.save(file, format="PNG"))
        paths.append(path)
    return paths
