"""keyframes.py: what is asked of the painter, and of diffusers, in whose place stand others."""
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from experiments import keyframes
from support.command import BadInput


def settings(model=None, folder=None):
    return SimpleNamespace(keyframe_model=str(model), keyframes=folder, device="cpu", seed=3)


def test_every_step_is_painted_from_the_same_frame_and_noise(tmp_path):
    """Catches: a shared generator, flags not passed on, sides exchanged, odd file names."""
    calls = []

    def painter(prompt, image, generator, **flags):
        calls.append((prompt, image.size, torch.randn((), generator=generator).item(), flags))
        return SimpleNamespace(images=[image])
    painter.vae_scale_factor = 8
    painter.unet = SimpleNamespace(config=SimpleNamespace(
        sample_size=64, down_block_types=("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",)))
    picture = np.zeros((3, 30, 40), np.uint8)
    picture[0, :, 20:] = 255                                         # the right half is red
    painted = keyframes.paint_steps(painter, picture, ["pour egg", "a/b: c?"],
                                    settings(folder=tmp_path / "a" / "b"))
    noise = torch.randn((), generator=torch.Generator().manual_seed(3)).item()
    flags = {"strength": 0.6, "num_inference_steps": 50, "guidance_scale": 7.5}
    assert calls == [(step, (704, 512), noise, flags) for step in ("pour egg", "a/b: c?")]
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == [
        "1_pour_egg.png", "2_a_b_c_.png", "observed.png"]
    assert list(painted) == ["pour egg", "a/b: c?"]
    for pixels in painted.values():
        assert pixels.shape == (3, 512, 704) and pixels.dtype == np.uint8
        assert pixels[0, :, -1].min() == 255 and pixels[0, :, 0].max() == pixels[1:].max() == 0
    written = np.asarray(Image.open(tmp_path / "a" / "b" / "1_pour_egg.png")).transpose(2, 0, 1)
    assert np.array_equal(written, painted["pour egg"])


def test_a_model_that_cannot_be_used_is_one_line(monkeypatch):
    """Catches: a traceback of diffusers; weights loaded from a pickle, which can run code."""
    asked = {}

    def refuse(name, **flags):
        asked.update(flags)
        raise OSError("no file named model.safetensors\nmore lines")
    quiet = SimpleNamespace(set_verbosity_error=lambda: None, disable_progress_bar=lambda: None)
    for name in ("diffusers", "transformers"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(
            utils=SimpleNamespace(logging=quiet),
            StableDiffusionImg2ImgPipeline=SimpleNamespace(from_pretrained=refuse)))
    with pytest.raises(BadInput, match="^--keyframe-model here: OSError: no file named model.safete"
                                       r"nsors; a Stable Diffusion model .* is needed[^\n]*$"):
        keyframes.open_painter(settings("here"))
    assert asked["use_safetensors"] is True
