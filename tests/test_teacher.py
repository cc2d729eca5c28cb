"""The teacher: soft targets by loops, prompts, texts and frames; opened by name or from files."""
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
from open_clip import image_transform
from PIL import Image
from safetensors.torch import save_file
from slow import draw, slow_match

from pseudo_labels import PROMPTS, Teacher, resize_and_crop, soft_targets
from support.errors import InputError
from toy.teacher import build_teacher
from weights.teacher import open_pretrained

MEAN, STD = (.3, .4, .5), (.2, .25, .3)
OPENAI = open_clip.OPENAI_DATASET_MEAN + open_clip.OPENAI_DATASET_STD
TINY = {"embed_dim": 16, "text_cfg": {"width": 32, "heads": 2, "layers": 1}, "vision_cfg": {
    "image_size": 16, "layers": 1, "width": 32, "patch_size": 8, "head_width": 16}}
CONFIG = json.dumps({"model_cfg": TINY, "preprocess_cfg": {"mean": MEAN, "std": STD}})


@pytest.fixture(scope="module")
def parts():
    torch.manual_seed(0)
    return build_teacher()


def test_eq6_soft_targets_equal_the_softmax_by_loops():
    """Catches: tau left out, a side not normalized, a sum over clips, a gradient."""
    features, phrases = 5 * draw(3, 4), draw(6, 4, seed=1)
    p = soft_targets(features.clone().requires_grad_(), phrases, 0.03)
    assert not p.requires_grad
    for row, clip in zip(p, features, strict=True):
        torch.testing.assert_close(row, slow_match(clip, phrases, 0.03))


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


# --- Opened by name, from a folder or a file; nothing is downloaded ---
class Malice:
    """An object whose pickle, if it were executed, would make a file."""
    def __reduce__(self):
        return open, ("executed", "w")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a random CLIP as open_clip saves models, and with files that are none."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.json").write_text(json.dumps(TINY))
    open_clip.add_model_config(Path("tiny.json"))
    code = CONFIG.replace('"layers"', '"tr\\u0075st_remote_code": true, "layers"')   # as JSON may
    for name, text in ("clip", CONFIG), ("code", code), ("list", "[1]"), ("deep", "[" * 9999):
        Path(name).mkdir()
        Path(name, "open_clip_config.json").write_text(text)
    weights = open_clip.CLIP(**TINY).state_dict()
    save_file(weights, "clip/open_clip_model.safetensors")
    torch.save(weights, "weights.pt")
    torch.save(weights | {"ln_final.bias": torch.ones(2)}, "other.pt")
    torch.save({"state_dict": Malice()}, "malice.pt")


@pytest.mark.parametrize("clip, weights", [
    ("local-dir:clip", None), ("tiny", "weights.pt"), ("tiny", None)])
def test_the_weights_are_those_that_were_named(place, monkeypatch, clip, weights):
    """Catches: a file taken for a tag, random weights; another mean than the model's own."""
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "tiny", {"openai": {"url": "x.pt"}})
    monkeypatch.setattr(open_clip.factory, "download_pretrained",
                        lambda *args, **kwargs: "weights.pt")
    teacher = open_pretrained(clip, weights)
    torch.testing.assert_close(teacher.model.state_dict(),
                               torch.load("weights.pt", weights_only=True), rtol=0, atol=0)
    pixels = [*teacher.mean.flatten(), *teacher.std.flatten()]
    assert pixels == pytest.approx(MEAN + STD if clip == "local-dir:clip" else OPENAI)


def test_a_teacher_that_cannot_be_downloaded(monkeypatch):
    """Catches: the hub's traceback; an error that does not say what to fetch, or which flag."""
    def refuse(*args, **kwargs):
        raise FileNotFoundError("Failed to download timm/vit_base_patch16_clip_224.openai.\nOff")
    monkeypatch.setattr(open_clip.factory, "download_pretrained", refuse)
    with pytest.raises(InputError, match="--clip ViT-B-16-quickgelu --clip-weights openai.*timm/vit"
                       ".*fetch its weights elsewhere .*give --clip-weights FILE"):
        open_pretrained(None)                             # as of a published file


@pytest.mark.parametrize("clip, weights, message", [
    ("ViT-B/16", None, "--clip ViT-B/16: not in open_clip.list_models"),
    ("ViT-B-16", "openai", "needs QuickGELU; use --clip ViT-B-16-quickgelu"),
    ("local-dir:code", None, "open_clip_config.json asks for code of its own to be run"),
    ("local-dir:clip", "openai", "--clip-weights openai: local-dir:clip has its own"),
    ("local-dir:list", None, "list/open_clip_config.json: is no JSON object"),
    ("local-dir:deep", None, "deep/open_clip_config.json: is no JSON "),
    ("tiny", "other.pt", "--clip tiny --clip-weights other.pt: Error.*size"),
    ("tiny", "malice.pt", "--clip-weights malice.pt: .* load failed")])
def test_what_does_not_fit_is_not_whole_or_needs_code_is_refused(place, clip, weights, message):
    """Catches: a warning for an error; random weights, a pickle executed, a folder's code run."""
    with pytest.raises(InputError, match=f"^.*{message}.*$"):                  # one line
        open_pretrained(clip, weights)
    assert not Path("executed").exists()


# --- A table of texts ---
def promise(path, shape):
    """An npz whose embeddings are of a shape that its bytes do not hold."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("embeddings.npy", header.getvalue())


def test_a_table_has_the_embeddings_of_its_texts(tmp_path):
    """Catches: rows of other texts, a text that is not there taken as another."""
    rows = np.arange(6, dtype=np.float16).reshape(3, 2)
    np.savez_compressed(tmp_path / "T.npz", names=["a", "b", "c"], embeddings=rows)
    table = open_pretrained(str(tmp_path / "T.npz"))
    assert table.encode_phrases(["c", "a"]).tolist() == [[4, 5], [0, 1]]
    with pytest.raises(InputError, match="no embedding of d"):
        table.encode_phrases(["a", "d"])


@pytest.mark.parametrize("arrays", [
    {}, {"names": ["a"]}, {"names": ["a"], "embeddings": [[1.0], [2.0]]},
    {"names": [1], "embeddings": [[1.0]]}, {"names": ["a"], "embeddings": [1.0]},
    {"names": ["a"], "embeddings": [["1"]]}, {"names": ["a"], "embeddings": [[np.nan]]},
    {"names": [], "embeddings": np.ones((0, 2))}, {"names": "a", "embeddings": [[1.0]]}], ids=str)
def test_a_table_of_other_content_is_one_line(tmp_path, arrays):
    """Catches: a traceback; a number that is not finite, which would be every score."""
    np.savez(tmp_path / "T.npz", **arrays)
    with pytest.raises(InputError, match=r"^.*T.npz: .*expected names \(K,\).*$"):
        open_pretrained(str(tmp_path / "T.npz"))


def test_a_table_that_is_damaged_or_promises_too_much_is_one_line(tmp_path):
    """Catches: a traceback; memory for what is not there."""
    path = tmp_path / "T.npz"
    np.savez(path, names=np.array(["a"]), embeddings=np.ones((1, 2)))
    whole = path.read_bytes()
    damaged = whole.replace(np.ones(1).tobytes(), np.zeros(1).tobytes())
    malice = io.BytesIO()
    np.savez(malice, names=np.array([{}], object), embeddings=np.ones((1, 2)))
    for content in b"", whole[:200], damaged, malice.getvalue():
        path.write_bytes(content)
        with pytest.raises(InputError, match="T.npz: no npz, or damaged"):
            open_pretrained(str(path))
    for shape in (10 ** 15, 512), (10 ** 10,):
        promise(path, shape)
        with pytest.raises(InputError, match="embeddings.npy promises"):
            open_pretrained(str(path))
