"""The teacher for real videos: opened by name, from a folder or a file; nothing is downloaded."""
import json
from pathlib import Path

import open_clip
import pytest
import torch
from safetensors.torch import save_file

from support.errors import InputError
from weights.teacher import open_teacher

MEAN, STD = (.3, .4, .5), (.2, .25, .3)
OPENAI = open_clip.OPENAI_DATASET_MEAN + open_clip.OPENAI_DATASET_STD
TINY = {"embed_dim": 16, "text_cfg": {"width": 32, "heads": 2, "layers": 1}, "vision_cfg": {
    "image_size": 16, "layers": 1, "width": 32, "patch_size": 8, "head_width": 16}}
CONFIG = json.dumps({"model_cfg": TINY, "preprocess_cfg": {"mean": MEAN, "std": STD}})


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
    for name, text in (("clip", CONFIG), ("code", CONFIG.replace(
            '"layers"', '"tr\\u0075st_remote_code": true, "layers"'))):      # as JSON may spell it
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
    """Catches: a file taken for a tag, weights left random; OpenAI's mean for a folder with its
    own, a default tag that is not OpenAI's."""
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "tiny", {"openai": {"url": "x.pt"}})
    monkeypatch.setattr(open_clip.factory, "download_pretrained",
                        lambda *args, **kwargs: "weights.pt")
    teacher = open_teacher(clip, weights)
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
                       ".*fetch it elsewhere and give --clip-weights FILE"):
        open_teacher(None)                             # as of a published file


@pytest.mark.parametrize("clip, weights, message", [
    ("ViT-B/16", None, "--clip ViT-B/16: not in open_clip.list_models"),
    ("ViT-B-16", "openai", "needs QuickGELU; use --clip ViT-B-16-quickgelu"),
    ("local-dir:code", None, "open_clip_config.json asks for code of its own to be run"),
    ("local-dir:clip", "openai", "--clip-weights openai: local-dir:clip has its own"),
    ("tiny", "other.pt", "--clip tiny --clip-weights other.pt: Error.*size"),
    ("tiny", "malice.pt", "--clip-weights malice.pt: .* load failed")])
def test_what_does_not_fit_is_not_whole_or_needs_code_is_refused(place, clip, weights, message):
    """Catches: a warning for an error, as open_clip's of OpenAI's weights with GELU; random
    weights, a pickle executed, a folder's code run."""
    with pytest.raises(InputError, match=f"^.*{message}.*$"):                  # one line
        open_teacher(clip, weights)
    assert not Path("executed").exists()
