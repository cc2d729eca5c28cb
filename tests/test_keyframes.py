"""keyframes.py: SDEdit on plain functions; with diffusers, on a tiny Stable Diffusion, offline."""
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from experiments import keyframes  # noqa: E402
from experiments.keyframes import levels, sdedit  # noqa: E402
from support.command import BadInput  # noqa: E402
from settings_optional import PredictSettings  # noqa: E402

ALPHA_BAR = torch.linspace(0.999, 0.01, 20, dtype=torch.float64)
NONE = torch.empty(0, dtype=torch.int64)


def draw(seed):
    return torch.randn(2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# ---- the algorithm -------------------------------------------------------------------------------
def test_sdedit_equals_the_chain_written_out():
    """Catches: a level off by one, variance for standard deviation, the guide noised to T always,
    a last step that does not end at the picture."""
    guide, noise, times = draw(1), draw(2), [12, 7, 3]

    def predict_noise(x, t):
        return torch.sin(x) + t / 10
    for index in np.ndindex(2, 3, 3):
        a = float(ALPHA_BAR[12])
        x = a ** 0.5 * guide[index] + (1 - a) ** 0.5 * noise[index]
        for t, after in ((12, 7), (7, 3), (3, None)):
            a, b = float(ALPHA_BAR[t]), 1.0 if after is None else float(ALPHA_BAR[after])
            eps = torch.sin(x) + t / 10
            x0 = (x - (1 - a) ** 0.5 * eps) / a ** 0.5
            x = b ** 0.5 * x0 + (1 - b) ** 0.5 * eps
        got = sdedit(guide, noise, torch.tensor(times), ALPHA_BAR, predict_noise)[index]
        torch.testing.assert_close(got, x)


def test_sdedit_between_the_guide_and_the_world():
    """Catches: a strength that works the other way round. In a world of one picture the guide is
    forgotten; without levels, or where the noise is known, it comes back."""
    guide, noise, only = draw(1), draw(2), draw(3)
    times = torch.tensor([15, 10, 5, 0])

    def of_world(x, t):
        return (x - ALPHA_BAR[t].sqrt() * only) / (1 - ALPHA_BAR[t]).sqrt()
    torch.testing.assert_close(sdedit(guide, noise, times, ALPHA_BAR, of_world), only)
    torch.testing.assert_close(sdedit(guide, noise, times, ALPHA_BAR, lambda x, t: noise), guide)
    assert torch.equal(sdedit(guide, noise, NONE, ALPHA_BAR, of_world), guide)

    def of_gaussian(x, t):                                 # of deviation 1 around `only`
        return (1 - ALPHA_BAR[t]).sqrt() * (x - ALPHA_BAR[t].sqrt() * only)
    far = [(sdedit(guide, 0 * noise, levels(20, strength, 20), ALPHA_BAR, of_gaussian)
            - only).norm() for strength in (0.2, 0.5, 0.9)]
    assert far[0] > far[1] > far[2]


def test_levels_by_hand():
    """Catches: the first levels kept instead of the last, the noisiest left out at strength 1."""
    assert levels(1000, 0.6, 5).tolist() == [400, 200, 0]
    assert levels(1000, 1, 4).tolist() == [750, 500, 250, 0]
    assert levels(1000, 0, 50).tolist() == []


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
    scheduler = diffusers.DDIMScheduler(beta_start=.00085, beta_end=.012, clip_sample=False,
                                        beta_schedule="scaled_linear", steps_offset=1)
    folder = tmp_path_factory.mktemp("keyframes") / "model"
    diffusers.StableDiffusionPipeline(vae, text, tokenizer, unet, scheduler, None, None,
                                      requires_safety_checker=False).save_pretrained(folder)
    return folder


def settings(model, folder=None):
    return PredictSettings(keyframe_model=str(model), keyframes=folder, device="cpu", seed=3)


def test_painting_equals_img2img_of_diffusers(model):
    """Catches: a text that is not read, guidance turned round, a latent not scaled, pixels not in
    -1..1, other levels than the strength asks for."""
    import diffusers
    painter = keyframes.open_painter(settings(model))
    picture = torch.randint(0, 256, (3, 16, 16), dtype=torch.uint8)
    ours = painter.paint(picture, "pour egg", seed=3)
    theirs = diffusers.StableDiffusionImg2ImgPipeline.from_pretrained(model, safety_checker=None)
    theirs.scheduler = diffusers.DDIMScheduler(          # levels from 0 and an end at the picture
        beta_start=.00085, beta_end=.012, beta_schedule="scaled_linear", clip_sample=False)
    theirs.set_progress_bar_config(disable=True)
    expected = theirs("pour egg", picture[None].float() / 255, keyframes.STRENGTH,
                      keyframes.LEVELS, guidance_scale=keyframes.GUIDANCE, output_type="pt",
                      generator=torch.Generator().manual_seed(3)).images[0]
    assert (ours.float() - 255 * expected).abs().max() <= 0.51
    assert not torch.equal(painter.paint(picture, "crack egg", seed=3), ours)


def test_painted_files(model, tmp_path, capsys):
    """Catches: a step whose name is no file name, a picture squeezed to a square, files missing."""
    picture = np.random.default_rng(0).integers(0, 255, (3, 20, 40), np.uint8)
    painted = keyframes.paint_steps(keyframes.open_painter(settings(model)), picture,
                                    ["pour egg", "a/b: c?"], settings(model, tmp_path / "a" / "b"))
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == [
        "1_pour_egg.png", "2_a_b_c_.png", "observed.png"]
    assert {name: pixels.shape for name, pixels in painted.items()} == {
        "pour egg": (3, 16, 32), "a/b: c?": (3, 16, 32)}


def test_a_model_that_is_none(model, tmp_path):
    """Catches: a traceback of diffusers'; weights in a format that runs code."""
    for name in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(BadInput, match="--keyframe-model"):
            keyframes.open_painter(settings(name))
    (tmp_path / "copy").mkdir()
    for path in model.rglob("*"):
        target = tmp_path / "copy" / path.relative_to(model)
        if path.is_dir():
            target.mkdir()
        else:
            content = path.read_bytes()
            target.write_bytes(content.replace(b'"epsilon"', b'"v_prediction"'))
    with pytest.raises(BadInput, match="predicts v_prediction"):
        keyframes.open_painter(settings(tmp_path / "copy"))
    (tmp_path / "copy" / "unet" / "diffusion_pytorch_model.safetensors").rename(
        tmp_path / "copy" / "unet" / "diffusion_pytorch_model.bin")
    with pytest.raises(BadInput, match="safetensors"):
        keyframes.open_painter(settings(tmp_path / "copy"))
