"""Soft targets by loops, the 28 prompts, and the teacher on an untrained open_clip model."""
import math

import pytest
import torch
from torch.nn import functional

import toy_render
from pseudo_labels import PROMPTS, Teacher, estimate_tau, soft_targets


@pytest.fixture(scope="module")
def parts():
    torch.manual_seed(0)
    return toy_render.build_teacher()


@pytest.fixture(scope="module")
def teacher(parts):
    return Teacher(*parts, (.3, .4, .5), (.2, .25, .3))


def test_eq6_soft_targets_equal_the_softmax_by_loops():
    """Catches: tau left out, a side not normalised, a sum over clips in place of phrases."""
    generator = torch.Generator().manual_seed(0)
    features = 5 * torch.randn(2, 3, 4, dtype=torch.float64, generator=generator)
    phrases = torch.randn(6, 4, dtype=torch.float64, generator=generator)
    tau = 0.03
    p = soft_targets(features.requires_grad_(), phrases.requires_grad_(), tau)
    assert p.shape == (2, 3, 6) and not p.requires_grad
    for b in range(2):
        for i in range(3):
            x = features[b, i].detach()
            scores = [float(x @ y) / (tau * math.sqrt(x @ x) * math.sqrt(y @ y))
                      for y in phrases.detach()]
            total = sum(math.exp(score) for score in scores)
            expected = torch.tensor([math.exp(score) / total for score in scores])
            torch.testing.assert_close(p[b, i], expected.double(), rtol=1e-5, atol=1e-12)


def test_prompts_are_the_28_of_the_released_embeddings():
    """Catches: a template forgotten, mended ("an example") or doubled."""
    expected = []
    for start in ("a photo of", "a video of", "a example of", "a demonstration of"):
        expected += [start + " {}.", start + " a person {}.", start + " a person using {}.",
                     start + " a person doing {}.", start + " a person during {}.",
                     start + " a person performing {}.", start + " a person practicing {}."]
    assert len(PROMPTS) == len(set(PROMPTS)) == 28
    assert set(PROMPTS) == set(expected)


def test_encode_phrases_is_the_mean_of_the_features_as_they_come(parts, teacher):
    """Catches: features normalised before the mean, the result normalised, a prompt for another
    phrase, a phrase put in place of the braces twice."""
    model, tokenizer = parts
    phrases = ["cut tomato", "wash pan"]
    y = teacher.encode_phrases(phrases)
    assert y.shape == (2, 64) and y.dtype == torch.float32 and not y.requires_grad
    for k, phrase in enumerate(phrases):
        total = 0
        for prompt in PROMPTS:
            with torch.no_grad():
                total = total + model.encode_text(tokenizer([prompt.replace("{}", phrase)]))[0]
        torch.testing.assert_close(y[k], total / 28, rtol=1e-4, atol=1e-6)


def test_encode_frames_is_the_unit_feature_of_the_pixels_as_the_model_wants_them(parts, teacher):
    """Catches: no division by 255, std before mean, channels mixed up, batch statistics used
    (train mode), features not of unit length."""
    model, _ = parts
    frames = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8,
                           generator=torch.Generator().manual_seed(0))
    kept, x = frames.clone(), teacher.encode_frames(frames)
    assert x.shape == (3, 64) and torch.equal(frames, kept) and not x.requires_grad
    assert not model.training
    for i, frame in enumerate(frames):
        pixels = torch.stack([(frame[c] / 255 - (.3, .4, .5)[c]) / (.2, .25, .3)[c]
                              for c in range(3)])
        with torch.no_grad():
            expected = model.encode_image(pixels[None])[0]
        torch.testing.assert_close(x[i], expected / expected.norm(), rtol=1e-4, atol=1e-5)


def test_a_single_mean_and_std_serve_all_channels(parts, teacher):
    """Catches: a number for mean that reaches one channel, or none."""
    frames = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8,
                           generator=torch.Generator().manual_seed(1))
    one, three = (Teacher(*parts, mean, std) for mean, std in ((.4, .25), ([.4] * 3, [.25] * 3)))
    torch.testing.assert_close(one.encode_frames(frames), three.encode_frames(frames))


def test_the_teacher_is_fixed_and_targets_carry_no_gradient(teacher):
    """Catches: a teacher that is trained along with the student."""
    assert not any(weight.requires_grad for weight in teacher.model.parameters())
    x = functional.normalize(torch.randn(2, 4), dim=-1).requires_grad_()
    assert not soft_targets(x, torch.randn(3, 4), 0.03).requires_grad


def test_estimated_temperature_is_the_one_of_least_nll():
    """Catches: the square or the D left out of (1 - a^2) / (D a), the nearest text's cosine (too
    large) kept for a: a temperature that the labels, which it never sees, find worse."""
    generator = torch.Generator().manual_seed(0)
    texts = functional.normalize(torch.randn(30, 48, generator=generator) + 1.5, dim=-1)
    label = torch.randint(30, (4000,), generator=generator)
    noise = torch.randn(4000, 48, generator=generator) * 2 / 48 ** .5
    x = functional.normalize(texts[label] + noise, dim=-1)
    tau = estimate_tau(x, 3 * texts)
    nll = {scale: float(functional.cross_entropy(x @ texts.T / (scale * tau), label))
           for scale in (.7, 1, 1.4)}
    assert nll[1] < nll[.7] and nll[1] < nll[1.4]
