"""predict.py --key-frames: pictures by a tiny image model of random weights, made here."""
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import call, fails, read_json
from test_video import SIZE, ticks_of, write

from data import frame_times, history_windows
from support import keyframes
from toy import grammar, render

diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
CLIPTokenizer = transformers.CLIPTokenizer
FAST = ("--samples", "4", "--horizon", "1", "--device", "cpu")


def write_tokenizer(folder):
    """A tokenizer whose words are letters."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    ends = [letter + "</w>" for letter in letters]
    words = letters + ends + ["<|startoftext|>", "<|endoftext|>"]
    folder.mkdir()
    vocabulary = {word: i for i, word in enumerate(words)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    return CLIPTokenizer.from_pretrained(folder, model_max_length=77), len(words)


@pytest.fixture(scope="module")
def image_model(tmp_path_factory):
    """A Stable Diffusion that draws 32 pixels, with random weights: a folder of diffusers."""
    folder = tmp_path_factory.mktemp("image")
    tokenizer, words = write_tokenizer(folder / "words")
    torch.manual_seed(0)
    unet = diffusers.UNet2DConditionModel(
        sample_size=16, block_out_channels=(8, 8), layers_per_block=1, norm_num_groups=2,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), attention_head_dim=2,
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), cross_attention_dim=8)
    vae = diffusers.AutoencoderKL(
        block_out_channels=(8, 8), norm_num_groups=2, latent_channels=4,
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"))
    text = transformers.CLIPTextModel(transformers.CLIPTextConfig(
        vocab_size=words, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2, projection_dim=8, eos_token_id=words - 1,
        bos_token_id=words - 2))
    pipeline = diffusers.StableDiffusionPipeline(
        vae=vae, text_encoder=text, tokenizer=tokenizer, unet=unet,
        scheduler=diffusers.DDIMScheduler(steps_offset=1, clip_sample=False), safety_checker=None,
        feature_extractor=None, requires_safety_checker=False)
    pipeline.save_pretrained(folder / "model", safe_serialization=True)
    return folder / "model"


@pytest.fixture
def asked(monkeypatch):
    """What the pipeline is asked for: the arguments of each call, and the picture it starts from,
    before it is enlarged."""
    calls, pictures = [], []
    kind, resize_for = diffusers.StableDiffusionImg2ImgPipeline, keyframes.resize_for
    draw = kind.__call__

    def record(self, **options):
        calls.append(options)
        return draw(self, **options)

    def keep(picture, pipeline):
        pictures.append(picture)
        return resize_for(picture, pipeline)
    monkeypatch.setattr(keyframes, "LEVELS", 4)            # 50 take long
    monkeypatch.setattr(kind, "__call__", record)
    monkeypatch.setattr(keyframes, "resize_for", keep)
    return calls, pictures


def test_a_key_frame_of_each_step_of_the_toy_world(trained, here, image_model, asked, capsys):
    """Catches: another frame, or one of the future; the text of another step; a path in another
    row; a seed or a strength that is not obeyed; pictures of fewer or more steps."""
    flags = ("--checkpoint", trained / "diffusion", *FAST, "--image-model", image_model)
    call("predict.py", *flags, "--seed", "3", "--key-frames", "a", "--json", "a.json")
    told, content, (calls, pictures) = capsys.readouterr().out, read_json("a.json"), asked
    rows, video = content["next"], grammar.make_video("test", 3)
    assert [options["prompt"] for options in calls] == [row["step"] for row in rows[:5]]
    for rank, row in enumerate(rows[:5], start=1):
        path = Path(row["key_frame"])
        assert path == Path("a", f"{rank}-{row['step'].replace(' ', '-')}.png")
        assert path.read_bytes().startswith(b"\x89PNG") and str(path) in told
    assert len({*Path("a").iterdir()}) == 5 and {row["key_frame"] for row in rows[5:]} == {None}
    start, end = content["clips"][-1]["start"], content["clips"][-1]["end"]
    shown = int((end - (end - start) / 8) * render.FPS)        # the last of four frames
    assert np.array_equal(pictures[0], render.render(video)[shown])
    assert calls[0]["image"].size == (32, 32) and calls[0]["strength"] == 0.75
    first = [path.read_bytes() for path in sorted(Path("a").iterdir())]
    assert len({*first}) == 5

    call("predict.py", *flags, "--seed", "3", "--key-frames", "a")
    assert first == [path.read_bytes() for path in sorted(Path("a").iterdir())]
    call("predict.py", *flags, "--seed", "3", "--key-frames", "b", "--strength", "0.5")
    assert first[0] != sorted(Path("b").iterdir())[0].read_bytes() and len(calls) == 15
    assert calls[-1]["strength"] == 0.5 and len(pictures) == 3
    drawn = []
    pipeline = keyframes.open_pipeline(image_model, "cpu")
    for seed in 0, 1:
        paths = keyframes.draw_key_frames(pipeline, "c", pictures[0], ["a b/c"], seed=seed)
        drawn.append(paths[0].read_bytes())
    assert drawn[0] != drawn[1] and paths == [Path("c/1-a-b-c.png")]


def test_a_key_frame_from_a_video_file(trained, here, image_model, asked):
    """Catches: a frame that is cropped, reduced, of another time, or after the observed part; sides
    that are exchanged."""
    write("v.mp4")                                         # 4 s
    Path("steps.txt").write_text("crack egg\npour oil\n", encoding="utf-8")
    call("predict.py", "v.mp4", "--steps", "steps.txt", "--checkpoint", trained / "diffusion",
         *FAST, "--at", "3", "--key-frames", "a", "--image-model", image_model)
    (calls, pictures), windows = asked, history_windows(3.0, 9.0)
    time = frame_times(windows[-1:], 4)[0, -1]
    assert pictures[0].shape == (3, *SIZE) and ticks_of(pictures[0][None])[0] == int(25 * time)
    assert calls[0]["image"].size == (42, 32)              # 64 x 48 pixels
    assert sorted(path.name for path in Path("a").iterdir())[0][:2] == "1-"
    assert len([*Path("a").iterdir()]) == 2


def test_what_is_refused_before_anything_is_computed(trained, here, image_model, monkeypatch,
                                                     capsys):
    """Catches: a traceback, or a forecast that is made and then lost."""
    monkeypatch.setattr("predict.encode_parts", lambda *args: pytest.fail("computed"))
    run, model = ("--checkpoint", trained / "diffusion", *FAST), ("--image-model", image_model)

    def told(*flags, first=run):
        return fails(capsys, "predict.py", *first, *flags)
    assert "need each other" in told("--key-frames", "a")
    assert "need each other" in told(*model)
    assert "has no effect without --key-frames" in told("--strength", "0.5")
    for strength in "0", "1.1", "nan", "-1", "0.001":
        assert "--strength" in told("--key-frames", "a", *model, "--strength", strength)
    assert "no frames" in told("F.npz", "--video", "x", "--key-frames", "a", *model)
    assert "without h" in told("--key-frames", "a", *model,
                                   first=("--checkpoint", trained / "none", *FAST))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in "nobody/no-such-model", "no such/name at all":
        assert f"--image-model {name}: " in told("--key-frames", "a", "--image-model", name)
    assert not Path("a").exists()
    Path("a").write_text("mine", encoding="utf-8")
    told("--key-frames", "a", *model)
    assert Path("a").read_text(encoding="utf-8") == "mine"
    for package in "diffusers", "transformers":
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            line = told("--key-frames", "b", *model)
            assert line.endswith("pip install diffusers transformers accelerate")


def test_an_image_model_that_holds_code_or_pickles(here, image_model):
    """Catches: code that is run, or a pickle that is loaded; an index that is damaged."""
    def opened(change):
        shutil.rmtree("m", ignore_errors=True)
        shutil.copytree(image_model, "m")
        change(Path("m"))
        with pytest.raises(keyframes.InputError) as error:
            keyframes.open_pipeline("m", "cpu")
        assert "\n" not in str(error.value)
        return str(error.value)

    def index(**changes):
        def write_index(folder):
            path = folder / "model_index.json"
            content = json.loads(path.read_text(encoding="utf-8")) | changes
            path.write_text(json.dumps(content), encoding="utf-8")
        return write_index

    def pickled(folder):
        path = folder / "unet/diffusion_pytorch_model.safetensors"
        torch.save({"a": torch.zeros(1)}, path.with_suffix(".bin"))
        path.unlink()

    def damaged(folder):
        (folder / "vae/diffusion_pytorch_model.safetensors").write_bytes(b"\x00" * 99)
    for place in ["evil", "Net"], ["os", "system"], ["transformers", "AutoModel"], ["diffusers"]:
        assert "code of other places is not run" in opened(index(unet=place))
    for name in ["evil", "Pipeline"], None:
        assert "names no pipeline" in opened(index(_class_name=name))
    assert "--image-model m: " in opened(index(_class_name="NoSuchPipeline"))
    assert "is code" in opened(lambda folder: (folder / "unet/diffusers.py").write_text("x"))
    assert "safetensors" in opened(pickled) and "--image-model m" in opened(damaged)
    assert "holds no model_index.json" in opened(lambda folder: (
        folder / "model_index.json").unlink())
    assert "get it again" in opened(lambda folder: (
        folder / "model_index.json").write_text("{"))
