"""Key frames: what a forecast step may look like, painted from a frame that was observed.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Fig. 3 (right) and appendix B, "Future Key Frame
Generation": SDEdit (Meng et al. 2022, arXiv:2108.01073) with Stable Diffusion.

    SDEdit           here           shape        meaning
    x^(g)            guide          (..., h, w)  the observed frame, here as a latent of its VAE
    t_0              times[0]       int          the level that it is noised to: STRENGTH of all
    alpha^2, sigma^2 alpha_bar      (T,)         share of the signal's variance left; 1 less that
    the SDE's score  predict_noise  callable     noise in x at level t, given the step's text

The reverse is the deterministic one of DDIM (Song et al. 2021), as Stable Diffusion is used, not
SDEdit's with fresh noise. The paper gives no strength, guidance or number of levels.

Only this file needs diffusers and transformers (`pip install diffusers transformers`), and only to
open a model: `sdedit` is torch alone.
"""
import re

import torch
from torch.nn import functional

from support.command import BadInput, pick_device, write_atomically

STRENGTH, LEVELS, GUIDANCE = 0.6, 50, 7.5      # diffusers' defaults but for the first, there 0.8:
                                               # SDEdit keeps the guide's layout up to about 0.6
PAINTED = 3                                    # steps that are painted, the likeliest


def sdedit(guide, noise, times, alpha_bar, predict_noise):
    """Noise the guide to the first of `times`, and denoise it from there.

        x_t = sqrt(a_t) guide + sqrt(1 - a_t) noise
        x_0 = (x_t - sqrt(1 - a_t) eps) / sqrt(a_t);    x_s = sqrt(a_s) x_0 + sqrt(1 - a_s) eps

    with eps = predict_noise(x_t, t), s the next of `times`, and a_s = 1 after the last.

    Args:
        guide, noise:  the same shape; noise is standard normal.
        times:         (L,) int64, falling levels; the earlier in the process the first of them is,
                       the more is left of the guide. None of them: the guide itself.
        alpha_bar:     (T,) float.
        predict_noise: callable, x and t (0-d int64) -> noise, the shape of x.
    Returns: a new tensor, the shape of the guide.
    """
    left = torch.cat([alpha_bar[times], alpha_bar.new_ones(1)])                # (L + 1,)
    x = left[0].sqrt() * guide + (1 - left[0]).sqrt() * noise
    for t, now, after in zip(times, left, left[1:]):
        eps = predict_noise(x, t)
        x0 = (x - (1 - now).sqrt() * eps) / now.sqrt()
        x = after.sqrt() * x0 + (1 - after).sqrt() * eps
    return x


def levels(count, strength, steps):
    """The last `strength` of `steps` even levels of `count`, falling to 0: int64."""
    return (torch.arange(int(steps * strength)) * (count // steps)).flip(0)


class Painter:
    """Stable Diffusion's parts as `sdedit` needs them.

    Args:
        pipeline: a StableDiffusionPipeline of diffusers whose UNet predicts noise.
        device:   where to run.
    """

    def __init__(self, pipeline, device):
        self.unet, self.vae = pipeline.unet.to(device).eval(), pipeline.vae.to(device).eval()
        self.text_encoder = pipeline.text_encoder.to(device).eval()
        self.tokenizer, self.device = pipeline.tokenizer, device
        self.alpha_bar = pipeline.scheduler.alphas_cumprod.to(device)          # (T,)
        self.cell = pipeline.vae_scale_factor                          # pixels a side per latent
        self.side = self.unet.config.sample_size * self.cell           # pixels, of its training
        self.grain = self.cell * 2 ** (len(self.unet.down_blocks) - 1)

    def read(self, texts):
        """Texts -> the text encoder's states (n, L, W)."""
        tokens = self.tokenizer(texts, padding="max_length", truncation=True, return_tensors="pt",
                                max_length=self.tokenizer.model_max_length)
        return self.text_encoder(tokens.input_ids.to(self.device))[0]

    def fit(self, picture):
        """(3, H, W) uint8 -> (1, 3, H', W') float in -1..1: the short side as in its training."""
        sides = torch.tensor(picture.shape[1:])
        sides = (sides * self.side / sides.min() / self.grain).round().long() * self.grain
        pixels = picture[None].to(self.device).float() / 127.5 - 1
        return functional.interpolate(pixels, tuple(sides.tolist()), mode="bicubic",
                                      antialias=True).clamp(-1, 1)

    @torch.no_grad()
    def paint(self, picture, text, seed):
        """The picture (3, H, W) uint8 after `text`: (3, H', W') uint8, on the CPU.

        Each noise is GUIDANCE times what the text adds to that of no text (classifier-free
        guidance, Ho and Salimans 2022).
        """
        generator = torch.Generator().manual_seed(seed)
        states, scale = self.read(["", text]), self.vae.config.scaling_factor
        latent = self.vae.encode(self.fit(picture)).latent_dist
        guide = latent.mean + latent.std * self.draw(latent.mean.shape, generator)

        def predict_noise(x, t):
            without, given = self.unet(x.expand(2, -1, -1, -1), t, states).sample.chunk(2)
            return without + GUIDANCE * (given - without)

        x = sdedit(scale * guide, self.draw(guide.shape, generator),
                   levels(len(self.alpha_bar), STRENGTH, LEVELS).to(self.device), self.alpha_bar,
                   predict_noise)
        pixels = self.vae.decode(x / scale).sample[0]                          # (3, H', W')
        return ((pixels / 2 + 0.5).clamp(0, 1) * 255).round().byte().cpu()

    def draw(self, shape, generator):
        """Standard normal of the seed, the same on every device."""
        return torch.randn(shape, generator=generator).to(self.device)


def open_painter(settings):
    """The model of --keyframe-model -> Painter; nothing in its files is executed.

    Raises: BadInput, one line, if diffusers is missing, the model cannot be had, is not a Stable
            Diffusion in safetensors, or does not predict noise.
    """
    try:
        import diffusers
        import transformers
    except ImportError:
        raise BadInput("--keyframes needs diffusers: pip install diffusers transformers") from None
    name = settings.keyframe_model
    for package in (diffusers, transformers):
        package.utils.logging.set_verbosity_error()
        package.utils.logging.disable_progress_bar()
    try:
        pipeline = diffusers.StableDiffusionPipeline.from_pretrained(
            name, use_safetensors=True, safety_checker=None, requires_safety_checker=False)
    except Exception as error:                 # of as many classes as there are packages behind it
        reason = str(error).strip().split("\n")[0][:200]
        raise BadInput(f"--keyframe-model {name}: {type(error).__name__}: {reason}; a Stable "
                       "Diffusion model of diffusers in safetensors is needed, a folder or, with "
                       "a network, a name of the hub") from None
    predicts = pipeline.scheduler.config.prediction_type
    if predicts != "epsilon":
        raise BadInput(f"--keyframe-model {name}: predicts {predicts}; one that predicts noise "
                       "(epsilon) is needed, as Stable Diffusion 1.5 does")
    return Painter(pipeline, pick_device(settings.device))


def paint_steps(painter, picture, steps, settings):
    """Paint each step from the picture (3, H, W) uint8, into the folder --keyframes.

    Writes observed.png and 1_first_step.png, 2_second_step.png, ...; all from the same noise.
    Returns: {step: (3, H', W') uint8 numpy}.
    """
    from PIL import Image                      # comes with diffusers
    from tqdm import tqdm

    def keep(name, pixels):
        image = Image.fromarray(pixels.transpose(1, 2, 0))
        write_atomically(settings.keyframes / f"{name}.png", lambda file: image.save(file, "PNG"))

    painted = {}
    settings.keyframes.mkdir(parents=True, exist_ok=True)
    keep("observed", picture)
    for i, step in enumerate(tqdm(steps, desc="paint", mininterval=1), start=1):
        painted[step] = painter.paint(torch.from_numpy(picture), step, settings.seed).numpy()
        keep(f"{i}_{re.sub(r'[^A-Za-z0-9]+', '_', step)[:60]}", painted[step])
    return painted
