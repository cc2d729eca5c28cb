"""keyframes.py: what is asked of the painter; with diffusers, a tiny Stable Diffusion, offline."""
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from experiments import keyframes
from support.command import BadInput


def settings(model=None, folder=None):
    return SimpleNamespace(keyframe_model=str(model), keyframes=folder, device="cpu", seed=3)


# ---- without diffusers ---------------------------------------------------------------------------
def test_every_step_is_painted_from_the_same_frame_and_noise(tmp_path):
    """Catches: a generator shared by the steps, guidance or strength not passed on, a frame with
    its sides exchanged or squeezed to a square, sides that the UNet cannot halve, a step whose name
    is no file name."""
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


# ---- with diffusers ------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder with a Stable Diffusion of a few thousand random weights; a letter is a token."""
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    letters = [chr(code) for code in range(97, 123)]
    vocab = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{c}</w>" for c in letters)]
    tokenizer = transformers.CLIPTokenizer(
        vocab={token: i for i, token in enumerate(vocab)}, merges=[], model_max_length=12,
        pad_token="<|endoftext|>")
    torch.manual_seed(0)
    text = transformers.CLIPTextModel(transformers.CLIPTextConfig(
        vocab_size=len(vocab), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=12, bos_token_id=0, eos_token_id=1))
    unet = diffusers.UNet2DConditionModel(
        sample_size=8, block_out_channels=(16, 32), layers_per_block=1, cross_attention_dim=16,
        attention_head_dim=4, norm_num_groups=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"))
    vae = diffusers.AutoencoderKL(
        block_out_channels=(8, 16), norm_num_groups=4, latent_channels=4, sample_size=16,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2)
    scheduler = diffusers.PNDMScheduler(beta_start=.00085, beta_end=.012, skip_prk_steps=True,
                                        beta_schedule="scaled_linear", steps_offset=1)
    folder = tmp_path_factory.mktemp("keyframes") / "model"
    diffusers.StableDiffusionPipeline(vae, text, tokenizer, unet, scheduler, None, None,
                                      requires_safety_checker=False).save_pretrained(folder)
    return folder


def test_a_step_is_painted_from_its_text_and_the_frame(model, tmp_path):
    """Catches: a prompt or frame that is not used, a stochastic sampler, the model's own scheduler
    in place of DDIM's, pixels not of 0-255."""
    painter = keyframes.open_painter(settings(model))
    assert type(painter.scheduler).__name__ == "DDIMScheduler"
    picture = np.random.default_rng(0).integers(0, 256, (2, 3, 20, 40), np.uint8)
    steps = ["pour egg", "crack egg"]
    first = keyframes.paint_steps(painter, picture[0], steps, settings(model, tmp_path))
    again = keyframes.paint_steps(painter, picture[0], steps[::-1], settings(model, tmp_path))
    other = keyframes.paint_steps(painter, picture[1], steps, settings(model, tmp_path))
    for step in steps:
        assert first[step].shape == (3, 16, 32) and np.ptp(first[step]) > 50
        assert np.array_equal(first[step], again[step])
        assert not np.array_equal(first[step], other[step])
    assert not np.array_equal(*first.values())


def test_a_model_that_cannot_be_used_is_one_line(model, tmp_path):
    """Catches: a traceback of diffusers; weights loaded from a pickle, which can run code."""
    from safetensors.torch import load_file
    for name in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(BadInput, match="--keyframe-model"):
            keyframes.open_painter(settings(name))
    weights = model / "unet" / "diffusion_pytorch_model.safetensors"
    torch.save(load_file(weights), weights.with_suffix(".bin"))
    weights.unlink()
    with pytest.raises(BadInput, match="--keyframe-model"):
        keyframes.open_painter(settings(model))
