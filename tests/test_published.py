"""A published f alone: its own space and pixels, tuned for each task by the real commands."""
import signal
from pathlib import Path

import pytest
import timm
import torch
from commands import call, fails, read_json, rows_of, same_run
from slow import randomized
from torch.nn.functional import normalize

import finetune
import weights
from diffusion import noise_levels, scale_of
from encoder import TimeSformer
from support.errors import InputError
from support.run import learning_rate
from toy.__main__ import export
from weights.checkpoint import load_init

WIDTH = 32
SIZES = dict(image=32, patch=16, frames=4, width=WIDTH, depth=2, heads=2)
TUNE = "train.py", "--stage", "finetune", "--batch", "8", "--epochs", "1", "--device", "cpu"
TOY = "--data", "toy", "--toy-videos", "8"
# Heads of published f: of Kinetics' classes; of wikiHow's; none; among the texts of MPNet, of CLIP.
HEADS = {"kinetics": 400, "wikihow": 1059, "headless": 0, "mpnet": 768, "clip": 512}


def published(path, head):
    """Write a TimeSformer of random numbers in the released layout, with a head this wide -> f."""
    f = randomized(TimeSformer(dim=head or 8, **SIZES), .2).eval()
    state = {f"model.{name}": value for name, value in f.state_dict().items()}
    if not head:
        del state["model.head.weight"], state["model.head.bias"]
    torch.save({"epoch": 3, "model_state": state, "cfg": "A: 1", "config": {"heads": 2}}, path)
    return f


def timm_model(image=32):
    """A ViT of random numbers, as timm makes it."""
    made = timm.models.VisionTransformer(img_size=image, patch_size=16, embed_dim=WIDTH, depth=2,
                                         num_heads=2, num_classes=10)
    return randomized(made, .2).eval()


@torch.no_grad()
@pytest.mark.parametrize("name", HEADS)
def test_f_alone_embeds_by_its_class_token_or_projection(tmp_path, name):
    """Catches: scores of Kinetics' classes taken for an embedding; a projection that is lost; texts
    of CLIP compared with MPNet's; the release's noise for a new h."""
    f, clips = published(tmp_path / "x.pyth", HEADS[name]), torch.randn(3, 3, 4, 32, 32)
    model = weights.load(tmp_path / "x.pyth")
    token = f.class_token(clips)
    expected = f.head(token) if name in ("mpnet", "clip") else token
    assert torch.equal(model.encoder(clips), normalize(expected, dim=-1))
    config = model.config
    assert config.text_space == (name == "clip") and config.tau == .02
    assert config.order == "none" and config.spacing is None
    black_and_white = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1, 1)
    pixels = model.normalize(black_and_white.expand(2, 4, 3, 32, 32))      # release: mean .45, std
    torch.testing.assert_close(pixels[:, 0, 0, 0, 0], torch.tensor([-2, 22 / 9]))      # .225
    assert config.scale == scale_of(model.dim)
    assert torch.equal(model.alpha_bar, noise_levels(model.dim))


@torch.no_grad()
def test_an_image_model_as_f_is_only_for_a_start(tmp_path, monkeypatch):
    """Catches: pixels of videos for an image model; other features than those of its class token
    where all frames are the same; a place in time; an image model that is loaded as a checkpoint;
    another attention read as if it were divided."""
    image = timm_model()
    content = {"state_dict": image.state_dict(), "config": {"heads": 2}}
    torch.save(content, tmp_path / "x.pt")
    monkeypatch.setattr(timm, "create_model", lambda *args, **options: timm_model(64))
    with pytest.raises(InputError, match="width 32: save it with .*heads"):
        load_init("timm", 6)                           # the real one has 64 numbers for each head
    with pytest.raises(InputError, match="image models are for --init"):
        weights.load(tmp_path / "x.pt")
    joint = image.state_dict() | {"time_embed": torch.zeros(1, 8, WIDTH)}
    torch.save(content | {"state_dict": joint}, tmp_path / "joint.pt")
    with pytest.raises(InputError, match="joint.pt: does not fit .*temporal_attn"):
        load_init(tmp_path / "joint.pt", 6)            # attention over space and time at once
    model, pixels = load_init(tmp_path / "x.pt", 6), torch.randn(2, 3, 32, 32)
    assert model.config.pixels == (.5, .5) and model.encoder.frames == 6
    still = pixels[:, :, None].expand(-1, -1, 6, -1, -1)
    expected = normalize(image.forward_features(pixels)[:, 0], dim=-1)
    torch.testing.assert_close(model.encoder(still), expected, rtol=1e-4, atol=1e-5)


def same_f(init, tuned):
    """Whether f is the same in both models, to the last bit."""
    before, after = init.encoder.state_dict(), tuned.encoder.state_dict()
    return before.keys() == after.keys() and all(
        torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("name, task", [
    ("kinetics", "classify"), ("kinetics", "forecast"), ("kinetics", "activity"),
    ("mpnet", "classify")])                            # a new h of 768 numbers takes long
def test_f_alone_is_probed_and_measured(here, capsys, monkeypatch, name, task):
    """Catches: a refusal; f tuned; no new h; texts of another width in the classifier; a teacher
    opened to tune what starts at zero; spaced histories; a checkpoint that nobody can measure."""
    published("x.pyth", HEADS[name])
    with monkeypatch.context() as patch:
        patch.setattr("sources.open_teacher", lambda *args: pytest.fail("opened"))
        call(*TUNE, *TOY, "--task", task, "--init", "x.pyth", "--out", "run")
    D = 768 if name == "mpnet" else WIDTH
    assert f"x.pyth: f alone, D = {D}" in capsys.readouterr().out
    init, tuned = weights.load("x.pyth"), weights.load("run")
    assert same_f(init, tuned) and tuned.dim == D and tuned.classifier.bias.any()
    gains = [value for key, value in tuned.named_parameters() if key.endswith("ln_1.weight")]
    assert len(gains) == (0 if task == "classify" else 4)
    assert all((gain != 1).any() for gain in gains)                # LayerNorms begin with 1
    if task != "classify":
        assert tuned.config.history == "paper"
    losses = [row["loss"] for row in rows_of("run")]
    assert losses[0] == pytest.approx(torch.tensor(tuned.config.classes[0]).log().item(), rel=1e-4)
    measure = "evaluate.py", "--task", task, "--toy-videos", "3", "--checkpoint", "run"
    call(*measure, "--clip", "toy", "--json", "a.json")
    content = read_json("a.json")
    assert content["evaluated"] == {"classify": 24, "forecast": 21, "activity": 3}[task]
    assert content["setting"] == "fine-tuned" and content["order"] == "none"
    if task == "classify":
        assert content["top1"]["teacher"] > 20                     # by texts of another width
    line = fails(capsys, "evaluate.py", "--task", task, "--toy-videos", "3", "--checkpoint",
                 "x.pyth", "--clip", "toy")
    assert "; expected a checkpoint of" in line
    if task == "forecast":
        line = fails(capsys, "predict.py", "--checkpoint", "run", "--clip", "toy")
        assert "run: its f has no text space" in line


def test_with_a_text_space_the_classifier_starts_from_the_texts(here, monkeypatch):
    """Catches: a classifier at zero where the texts fit f."""
    published("x.pyth", HEADS["clip"])

    def no_table(clip, clip_weights, device):
        assert clip is None                            # the paper's, which is not here
        raise InputError("asked")
    monkeypatch.setattr("sources.open_teacher", no_table)
    with pytest.raises(SystemExit):
        call(*TUNE, *TOY, "--init", "x.pyth", "--out", "run")
    assert not Path("run").exists()


def vit_at_hand(monkeypatch):
    """--init timm is a small ViT. Its file says how many heads it has; the real one has 12."""
    content = {"state_dict": timm_model().state_dict(), "config": {"heads": 2}}
    monkeypatch.setattr("weights.checkpoint.download", lambda: content)


def test_imagenets_vit_is_probed_on_files_and_resumed(here, capsys, monkeypatch):
    """Catches: --init timm for pre-training alone; frames of the small size; f tuned; another start
    on --resume; pictures of another size, read as if they fitted."""
    export(here / "world", 3, 0)
    vit_at_hand(monkeypatch)
    coin = "--data", "coin", "--annotations", "world/COIN.json", "--videos", "world"
    tune = *TUNE, *coin, "--task", "forecast", "--init", "timm", "--batch", "4"
    call(*tune, "--out", "whole")
    model = weights.load("whole")
    assert model.encoder.frames == 8 and same_f(load_init("timm", 8), model)
    assert model.config.pixels == (.5, .5) and model.config.history == "paper"

    def interrupt(step, *stage):
        if step == 2:
            signal.raise_signal(signal.SIGINT)
        return learning_rate(step, *stage)
    with monkeypatch.context() as patch, pytest.raises(SystemExit, match="130"):
        patch.setattr(finetune, "learning_rate", interrupt)
        call(*tune, "--out", "run")
    call(*tune, "--out", "run", "--resume")
    assert same_run("run", "whole")
    call("evaluate.py", *coin, "--task", "forecast", "--split", "train", "--checkpoint", "run",
         "--clip", "toy", "--json", "a.json")
    content = read_json("a.json")
    assert content["evaluated"] == content["listed"] > 0 and content["history"] == "paper"
    monkeypatch.setattr("weights.checkpoint.download", lambda: {
        "state_dict": timm_model(64).state_dict(), "config": {"heads": 2}})
    assert "timm: reads pictures of 64 pixels, not --data toy" in fails(
        capsys, *TUNE, *TOY, "--init", "timm", "--out", "x")


@pytest.mark.parametrize("name", ["kinetics", "timm"])
def test_on_epic_f_alone_is_tuned(here, capsys, monkeypatch, name):
    """Catches: f frozen, or with a projection after its class token; frames that nobody says are
    resized; a temporal attention that learns nothing."""
    export(here / "world", 2, 0)
    rows = [f"{path.stem},00:00:{10 * i:02d}.00,00:00:{10 * i + 4:02d}.50,{i},{2 * i}"
            for path in (here / "world" / "videos").iterdir() for i in range(3)]
    columns = "video_id,start_timestamp,stop_timestamp,verb_class,noun_class"
    Path("EPIC_100_train.csv").write_text("\n".join([columns, *rows]))
    published("x.pyth", HEADS["kinetics"])
    vit_at_hand(monkeypatch)
    init = "x.pyth" if name == "kinetics" else "timm"
    epic = "--data", "epic", "--annotations", "EPIC_100_train.csv", "--videos", "world"
    capsys.readouterr()
    call(*TUNE, *epic, "--batch", "2", "--init", init, "--out", "run")
    assert f"{init}: 1 resized: encoder.time_embed" in capsys.readouterr().out
    before, after = load_init(init, 8).encoder.state_dict(), weights.load("run").encoder
    assert after.frames == 32
    for key, value in after.state_dict().items():
        assert torch.equal(value, before[key]) == key.startswith("head."), key
    call("evaluate.py", *epic, "--split", "train", "--checkpoint", "run", "--json", "a.json")
    assert [*read_json("a.json")["top1"]] == ["verb", "noun", "action"]
