"""Soft targets by loops, the 28 prompts, and what the teacher does with texts and frames."""
import pytest
import torch
from open_clip import image_transform
from PIL import Image

from pseudo_labels import PROMPTS, Teacher, resize_and_crop, soft_targets
from slow import draw, slow_match
from toy.teacher import build_teacher

MEAN, STD = (.3, .4, .5), (.2, .25, .3)


@pytest.fixture(scope="module")
def parts():
    torch.manual_seed(0)
    return build_teacher()


def test_eq6_soft_targets_equal_the_softmax_by_loops():
    """Catches: tau left out, a side not normalized, a sum over clips, a gradient."""
    features, phrases, tau = 5 * draw(3, 4), draw(6, 4, seed=1), 0.03
    p = soft_targets(features.requires_grad_(), phrases.requires_grad_(), tau)
    assert not p.requires_grad
    for row, clip in zip(p, features.detach(), strict=True):
        torch.testing.assert_close(row, slow_match(clip, phrases.detach(), tau))


def test_default_prompts_are_the_28_of_the_released_embeddings():
    """Catches: a template forgotten, corrected ("an example") or doubled."""
    starts = "a photo of", "a video of", "a example of", "a demonstration of"
    ends = ("", " a person", " a person using", " a person doing", " a person during",
            " a person performing", " a person practicing")
    assert sorted(PROMPTS) == sorted(start + end + " {}." for start in starts for end in ends)


def test_phrases_are_the_mean_over_prompts_and_sentences_have_none(parts):
    """Catches: features of prompts normalized, another phrase's, prompts around narrations."""
    (model, tokenizer), teacher = parts, Teacher(*parts, MEAN, STD)
    texts = ["cut tomato", "so now we wash the pan"]
    y, sentences = teacher.encode_phrases(texts), teacher.encode_sentences(texts)
    assert y.shape == (2, 64) and y.dtype == torch.float32 and not y.requires_grad
    for k, text in enumerate(texts):
        total = sum(model.encode_text(tokenizer([prompt.replace("{}", text)]))[0]
                    for prompt in PROMPTS)
        torch.testing.assert_close(y[k], total / 28, rtol=1e-4, atol=1e-6)
        alone = model.encode_text(tokenizer([text]))[0]
        torch.testing.assert_close(sentences[k], alone / alone.norm())


def test_encode_frames_is_the_unit_feature_of_the_pixels_as_the_model_wants_them(parts):
    """Catches: no division by 255, std before mean, channels mixed up, train mode, a length."""
    model, tokenizer = parts
    teacher = Teacher(model.train(), tokenizer, MEAN, STD)
    frames = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8,
                           generator=torch.Generator().manual_seed(0))
    before, x = frames.clone(), teacher.encode_frames(frames)
    assert x.shape == (3, 64) and torch.equal(frames, before) and not x.requires_grad
    assert not model.training and not any(weight.requires_grad for weight in model.parameters())
    for i, frame in enumerate(frames):
        pixels = torch.stack([(frame[c] / 255 - MEAN[c]) / STD[c] for c in range(3)])
        expected = model.encode_image(pixels[None])[0]
        torch.testing.assert_close(x[i], expected / expected.norm(), rtol=1e-4, atol=1e-5)
    clips = frames.repeat(20, 1, 1, 1).flip(0).unflatten(0, (30, 2))       # more than at once
    torch.testing.assert_close(teacher.encode_clips(clips), torch.stack(
        [teacher.encode_frames(clip).mean(0) for clip in clips]))


@pytest.mark.parametrize("shape", [(40, 56), (64, 48), (20, 24)])
def test_frames_are_made_to_fit_as_open_clip_does(shape):
    """Catches: the long side resized, a corner, another interpolation, aliasing, no clamp."""
    y, x = torch.meshgrid(*(torch.arange(n) / n for n in shape), indexing="ij")
    wave = 127.5 + 127.5 * (9 * x + 5 * y).sin()
    frames = torch.stack([255 * x, 255 * y, wave]).round().to(torch.uint8)          # (3, H, W)
    frames = torch.stack([frames, frames.flip(-1)])                                 # (2, 3, H, W)
    resized = image_transform(32, False, mean=(0., 0., 0.), std=(1., 1., 1.))
    for one, frame in zip(resize_and_crop(frames.float(), 32), frames):
        expected = resized(Image.fromarray(frame.permute(1, 2, 0).numpy()))
        assert one.shape == (3, 32, 32) and (one >= 0).all() and (one <= 255).all()
        assert (one / 255 - expected).abs().max() < 1.5 / 255          # Pillow rounds, twice
