"""Soft targets by loops, the 28 prompts, the teacher and its loading; nothing is downloaded."""
import itertools
import json
import logging
import shutil
import time
import warnings
from pathlib import Path

import huggingface_hub
import open_clip
import pytest
import torch
from open_clip import image_transform
from PIL import Image
from safetensors.torch import save_file
from torch.nn import functional

from commands import call, fails
from files.annotations import load_text_embeddings
from pseudo_labels import PROMPTS, Teacher, estimate_tau, fit, soft_targets
from support.command import BadInput
from test_losses import slow_match
from test_weights import Malice
from toy.teacher import TEACHER_CONFIG, build_teacher
from weights.teacher import open_teacher

MEAN, STD = (.3, .4, .5), (.2, .25, .3)


@pytest.fixture(scope="module")
def parts():
    torch.manual_seed(0)
    return build_teacher()


@pytest.fixture(scope="module")
def teacher(parts):
    return Teacher(*parts, MEAN, STD)


def test_eq6_soft_targets_equal_the_softmax_by_loops():
    """Catches: tau left out, a side not normalized, a sum over clips; bfloat16 in autocast."""
    generator = torch.Generator().manual_seed(0)
    features = 5 * torch.randn(2, 3, 4, dtype=torch.float64, generator=generator)
    phrases = torch.randn(6, 4, dtype=torch.float64, generator=generator)
    tau = 0.03
    p = soft_targets(features.requires_grad_(), phrases.requires_grad_(), tau)
    assert p.shape == (2, 3, 6) and not p.requires_grad
    for b, i in itertools.product(range(2), range(3)):
        expected = torch.tensor(slow_match(features[b, i].detach(), phrases.detach(), tau))
        torch.testing.assert_close(p[b, i], expected.double(), rtol=1e-5, atol=1e-12)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = soft_targets(features.float(), phrases.float(), tau)
    torch.testing.assert_close(mixed, p.float(), rtol=1e-4, atol=1e-5)


def test_prompts_are_the_28_of_the_released_embeddings():
    """Catches: a template forgotten, corrected ("an example") or doubled."""
    starts = "a photo of", "a video of", "a example of", "a demonstration of"
    ends = ("", " a person", " a person using", " a person doing", " a person during",
            " a person performing", " a person practicing")
    assert sorted(PROMPTS) == sorted(start + end + " {}." for start in starts for end in ends)


def test_phrases_are_the_mean_over_prompts_and_sentences_have_none(parts, teacher):
    """Catches: features of prompts normalized, another phrase's, prompts around narrations."""
    model, tokenizer = parts
    texts = ["cut tomato", "so now we wash the pan"]
    y, sentences = teacher.encode_phrases(texts), teacher.encode_sentences(texts)
    assert y.shape == (2, 64) and y.dtype == torch.float32 and not y.requires_grad
    for k, text in enumerate(texts):
        total = sum(model.encode_text(tokenizer([prompt.replace("{}", text)]))[0]
                    for prompt in PROMPTS)
        torch.testing.assert_close(y[k], total / 28, rtol=1e-4, atol=1e-6)
        alone = model.encode_text(tokenizer([text]))[0]
        torch.testing.assert_close(sentences[k], alone / alone.norm())
    assert teacher.encode_sentences([]).shape == (0, 64)


@pytest.mark.parametrize("mean, std", [(MEAN, STD), (.4, .25)])
def test_encode_frames_is_the_unit_feature_of_the_pixels_as_the_model_wants_them(parts, mean, std):
    """Catches: no division by 255, std before mean, channels mixed up, train mode, a length."""
    model, tokenizer = parts
    teacher = Teacher(model.train(), tokenizer, mean, std)
    frames = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8,
                           generator=torch.Generator().manual_seed(0))
    before, x = frames.clone(), teacher.encode_frames(frames)
    assert x.shape == (3, 64) and torch.equal(frames, before) and not x.requires_grad
    assert not model.training and not any(weight.requires_grad for weight in model.parameters())
    mean, std = (value if isinstance(value, tuple) else [value] * 3 for value in (mean, std))
    for i, frame in enumerate(frames):
        pixels = torch.stack([(frame[c] / 255 - mean[c]) / std[c] for c in range(3)])
        expected = model.encode_image(pixels[None])[0]
        torch.testing.assert_close(x[i], expected / expected.norm(), rtol=1e-4, atol=1e-5)
    larger = frames.repeat_interleave(2, -1).repeat_interleave(2, -2)
    assert teacher.encode_frames(larger).shape == (3, 64)


def test_estimated_temperature_is_the_one_of_least_nll():
    """Catches: the square or D left out of (1 - a^2) / (D a), the nearest text's cosine."""
    generator = torch.Generator().manual_seed(0)
    texts = functional.normalize(torch.randn(30, 48, generator=generator) + 1.5, dim=-1)
    label = torch.randint(30, (4000,), generator=generator)
    noise = torch.randn(4000, 48, generator=generator) * 2 / 48 ** .5
    x = functional.normalize(texts[label] + noise, dim=-1)
    tau = estimate_tau(x, 3 * texts)
    nll = {scale: float(functional.cross_entropy(x @ texts.T / (scale * tau), label))
           for scale in (.7, 1, 1.4)}
    assert nll[1] < nll[.7] and nll[1] < nll[1.4]


@pytest.mark.parametrize("shape", [(40, 56), (64, 48), (20, 24), (33, 33), (32, 32)])
def test_frames_are_made_to_fit_as_open_clip_does(shape):
    """Catches: the long side resized, a corner, another interpolation, aliasing, no clamp."""
    y, x = torch.meshgrid(*(torch.arange(n) / n for n in shape), indexing="ij")
    wave = 127.5 + 127.5 * (9 * x + 5 * y).sin()
    frames = torch.stack([255 * x, 255 * y, wave]).round().to(torch.uint8)          # (3, H, W)
    frames = torch.stack([frames, frames.flip(-1)])                                 # (2, 3, H, W)
    resized = image_transform(32, False, mean=(0., 0., 0.), std=(1., 1., 1.))
    for one, frame in zip(fit(frames.float(), 32), frames):
        expected = resized(Image.fromarray(frame.permute(1, 2, 0).numpy()))
        assert one.shape == (3, 32, 32) and (one >= 0).all() and (one <= 255).all()
        assert (one / 255 - expected).abs().max() < 1.5 / 255          # Pillow rounds, twice


@pytest.fixture(scope="module")
def place(parts, tmp_path_factory):
    """A folder with the untrained teacher as open_clip saves models, and files that are none."""
    folder = tmp_path_factory.mktemp("teacher")
    (folder / "clip").mkdir()
    config = TEACHER_CONFIG | {"preprocess_cfg": {"mean": MEAN, "std": STD}}
    (folder / "clip" / "open_clip_config.json").write_text(json.dumps(config))
    (folder / "tiny-test.json").write_text(json.dumps(config["model_cfg"]))
    (folder / "other-test.json").write_text(json.dumps(config["model_cfg"] | {"embed_dim": 32}))
    for name in ("tiny-test.json", "other-test.json"):
        open_clip.add_model_config(folder / name)
    weights = {key: value.contiguous() for key, value in parts[0].state_dict().items()}
    save_file(weights, folder / "clip" / "open_clip_model.safetensors")
    torch.save(weights, folder / "weights.pt")
    (folder / "bare").mkdir()
    shutil.copy(folder / "clip" / "open_clip_config.json", folder / "bare")
    (folder / "x.safetensors").write_text("not weights\n" * 9)
    torch.save({"state_dict": Malice()}, folder / "malice.pt")
    code = {"hf_tokenizer_name": "x", "tokenizer_kwargs": {"trust_remote_code": True}}
    (folder / "code").mkdir()
    (folder / "code" / "open_clip_config.json").write_text(json.dumps({"model_cfg": {
        "text_cfg": code}}).replace("trust", "tr\\u0075st"))           # as JSON may spell it
    with warnings.catch_warnings(action="ignore"):     # TorchScript is deprecated
        torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), folder / "script.pt")
    return folder


@pytest.fixture
def offline(monkeypatch):
    """Every attempt to download ends as it does without a network."""
    def refuse(*args, **kwargs):
        raise FileNotFoundError("Failed to download file\n(no network)")
    for owner, name in ((open_clip.factory, "download_pretrained"), (
            open_clip.factory, "download_pretrained_from_hf"), (huggingface_hub,
                                                                "get_hf_file_metadata")):
        monkeypatch.setattr(owner, name, refuse)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)


@pytest.mark.parametrize("clip, weights", [
    ("tiny-test", "{}/weights.pt"), ("tiny-test", "{}/clip/open_clip_model.safetensors"),
    ("tiny-test", "openai"), ("tiny-test", None), ("local-dir:{}/clip", None)])
def test_a_teacher_by_name_file_tag_or_folder(place, teacher, offline, monkeypatch, clip, weights):
    """Catches: a file taken for a tag, weights left random, train mode; OpenAI's mean."""
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "tiny-test", {
        "openai": {"url": "https://nowhere/openai.pt"}})
    monkeypatch.setattr(open_clip.factory, "download_pretrained",
                        lambda *args, **kwargs: str(place / "weights.pt"))
    opened = open_teacher(clip.format(place), weights and weights.format(place))
    torch.testing.assert_close(opened.encode_phrases(["cut tomato"]),
                               teacher.encode_phrases(["cut tomato"]))
    mean, std = ((MEAN, STD) if "local-dir" in clip else
                 (open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD))
    assert opened.mean.flatten().tolist() == pytest.approx(mean)
    assert opened.std.flatten().tolist() == pytest.approx(std)


def test_without_a_network_the_line_comes_at_once(monkeypatch, tmp_path):
    """Catches: a minute of retries; the cache left out."""
    hub, asked = huggingface_hub.constants, []
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda *_, **__: 1 / 0)
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(time, "sleep", asked.append)
    with pytest.raises(BadInput, match="timm/vit_base.*fetch it elsewhere and give --clip-weights"):
        open_teacher("ViT-B-16-quickgelu")
    assert hub.HF_HUB_OFFLINE and not asked


@pytest.mark.parametrize("clip, weights, message", [
    ("ViT-B-16", "openai", "--clip ViT-B-16: .*QuickGELU, .*use --clip ViT-B-16-quickgelu"),
    ("ViT-B/16", None, r"--clip ViT-B/16: no such model; open_clip.list_models\(\) names all"),
    ("ViT-B-16-quickgelu", "laion400m_e32", "--clip-weights laion400m_e32: .* is not a known tag"),
    ("ViT-B-16-quickgelu", "openai", r"no network\).*fetch it elsewhere and give --clip-weights F"),
    ("local-dir:absent", None, "--clip local-dir:absent: FileNotFoundError: .* not found: absent"),
    ("local-dir:bare", None, "--clip local-dir:bare: .*; a file must be whole"),
    ("local-dir:code", None, "open_clip_config.json asks for code of its own to be run, which is"),
    ("local-dir:absent", "openai", "--clip-weights openai: local-dir:absent has its own"),
    ("other-test", "weights.pt", "--clip other-test --clip-weights weights.pt: RuntimeError"),
    ("tiny-test", "x.safetensors", "--clip-weights x.safetensors: .*; a file must be whole"),
    ("tiny-test", "malice.pt", "--clip-weights malice.pt: .* load failed; a file must be whole"),
    ("tiny-test", "script.pt", "--clip-weights script.pt: .*TorchScript.*; a file must be whole"),
])
def test_what_cannot_be_opened_is_one_line(place, monkeypatch, offline, caplog, recwarn, clip,
                                           weights, message):
    """Catches: a warning for an error, random weights, a pickle executed, open_clip's log."""
    monkeypatch.chdir(place)
    with pytest.raises(BadInput, match=message) as caught:
        open_teacher(clip, weights)
    assert "\n" not in str(caught.value) and not Path("executed").exists()
    assert not caplog.records and not recwarn.list and logging.root.manager.disable == 0


def test_command_writes_a_text_embeddings_file(place, tmp_path, monkeypatch, teacher, capsys):
    """Catches: rows in another order or normalized, counts in the names, a file we refuse."""
    monkeypatch.chdir(tmp_path)
    Path("phrases.txt").write_text("cut tomato,30,4.9\nwash pan,20,\ncut tomato,12,4.9\n")
    call("files", "embed", "--phrases", "phrases.txt", "--out", "t.npz", "--device", "cpu",
         "--clip", f"local-dir:{place}/clip")
    names, embeddings = load_text_embeddings("t.npz")
    assert names == ["cut tomato", "wash pan", "cut tomato"]
    torch.testing.assert_close(torch.from_numpy(embeddings), teacher.encode_phrases(names))
    assert capsys.readouterr().out == "t.npz: 3 phrases, D = 64\n"
    assert "--phrases is missing" in fails(capsys, 2, "files", "embed")
