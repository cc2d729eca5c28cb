"""Checkpoints: ours come back bit for bit, every published layout is read, the rest is refused."""
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn

import diffusion
import weights
from support.errors import InputError
from test_teacher import Malice
from weights.checkpoint import TIMM, build_model, fill, open_start, read, save

D = 64
F = dict(image=32, patch=8, width=32, frames=4, depth=2, heads=2)
MVIT = dict(kind="mvit", image=32, frames=4, width=8, heads=2, stages=[1, 2], kv_stride=8)
RELEASE = (("encoder.", ""), ("denoiser.", "order_tfm."), ("role", "type_embedding"),
           ("position", "temporalEmbedding"), ("transformer", "temporalModelling"),
           ("level.2", "time_mlp.3"), ("level.0", "time_mlp.1"))


def randomized(module):
    """The module in eval mode with every parameter random."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=.3)
    return module.eval()


def build(encoder=F, layers=3, task=None, classes=(), phrases=0, order="diffusion", dim=D):
    """A small model with random parameters."""
    return randomized(build_model(
        torch.randn(phrases, dim), encoder, layers and dict(layers=layers, heads=8, clips=9),
        order if layers else "none", task=task, classes=list(classes), tau=.02,
        alpha_bar=[.9, .5, .1], pixels=(.45, .225) if encoder else None))


def released(model):
    """Its parameters under the released names, and what else is in a released file."""
    state = {"model.order_tfm.pad_embedding.weight": torch.zeros(1, D),
             "model.text_model.ln_final.weight": torch.zeros(5)}
    for name, parameter in model.named_parameters():
        value = parameter.detach()
        if name.startswith("classifier."):
            heads = ["head_cls", "head_v", "head_n"][len(model.classes) > 1:]
            state |= {f"model.{head}.{name[11:]}": part.clone()
                      for head, part in zip(heads, value.split(model.classes))}
            continue
        for ours, theirs in RELEASE:
            name = name.replace(ours, theirs)
        state["model." + name] = value
    return state


@torch.no_grad()
@pytest.mark.parametrize("encoder, layers, order, task, classes", [
    (F, 2, "diffusion", None, []), (None, 2, "mask", "forecast", [7]),
    (MVIT, 2, "diffusion", "activity", [4]), (F, None, "none", "classify", [3, 5])])
def test_a_checkpoint_comes_back(tmp_path, encoder, layers, order, task, classes):
    """Catches: a buffer that is not saved, or stays half; train mode; an argument or flag lost."""
    model = build(encoder, layers, task, classes, 6, order)
    model.standardize.update(torch.randn(20, D) + 1)
    save(tmp_path / "checkpoint.pt", model, settings={"batch": 8}, step=7)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]
    loaded, x, noise = weights.load(tmp_path), torch.randn(1, 3, D), torch.randn(1, 2, D)
    assert loaded.arguments == model.arguments and not loaded.training
    assert loaded.settings == {"batch": 8} and read(tmp_path)["step"] == 7
    assert (loaded.order, loaded.task, loaded.classes) == (order, task, classes)
    before, after = model.state_dict(), loaded.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    if layers:
        assert torch.equal(loaded.forecast_next(x, noise), model.forecast_next(x, noise))
    half = {name: value.half() for name, value in before.items()}
    torch.save({"arguments": model.arguments, "model": half}, tmp_path / "h.pt")
    assert {w.dtype for w in weights.load(tmp_path / "h.pt").state_dict().values()} == {torch.float}


def test_a_checkpoint_keeps_its_schedule_when_the_source_changes(monkeypatch):
    """Catches: noise levels of today's code for a model that was trained with others."""
    monkeypatch.setattr(diffusion, "noise_levels", lambda dim, **_: torch.tensor([.5, .4]))
    model = weights.load(Path(diffusion.__file__).parent / "toy" / "default.pt")
    assert [round(level, 4) for level in model.alpha_bar.tolist()] == [.1233, .0294, .0065, .0014]
    assert model.settings["data"] == "toy"


@pytest.mark.parametrize("key, name, value, message", [
    ("model", "encoder.norm.bias", None, 'Missing key.*"encoder.norm.bias"'),
    ("model", "encoder.x", torch.ones(2), 'Unexpected key.*"encoder.x"'),
    ("model", "encoder.norm.bias", torch.ones(31), r"encoder.norm.bias.*\[31\]"),
    ("model_state", "model.time_embed", None, "image models are for --init.*encoder.time_embed"),
    ("model_state", "temporal_attn", None, r"Missing key.*temporal_attn.*\[\.\.\.\]$")])
def test_promise_7_a_checkpoint_of_another_model(tmp_path, key, name, value, message):
    """Catches: weights left random, in ours ("model") or a release; a traceback; too many names."""
    model = build()
    w = model.state_dict() if key == "model" else released(model)
    w = {other: w[other] for other in w if name not in other}
    content = {key: w if value is None else w | {name: value}, "config": {"heads": 2}}
    torch.save(content | ({"arguments": model.arguments} if key == "model" else {}),
               tmp_path / "x.pt")
    with pytest.raises(InputError, match=message) as caught:
        weights.load(tmp_path / "x.pt")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key, prefix", [
    ("model_state", "model."), ("state_dict", "module.model."), ("model", ""),
    ("model", "_orig_mod.module.model."), ("safetensors", "model.")])
def test_promise_8_wrapped_names(tmp_path, key, prefix):
    """Catches: a prefix left on, weights left random, a size of the paper."""
    model = build()
    state = {prefix + name.removeprefix("model."): w for name, w in released(model).items()}
    if key == "safetensors":
        save_file(state, tmp_path / "x.safetensors")
    else:
        torch.save({"epoch": 1, key: state, "cfg": "A: 1"}, tmp_path / "x.pyth")
    loaded = weights.load(next(tmp_path.iterdir()), heads=2)
    assert loaded.arguments["encoder"] == F
    assert all(map(torch.equal, loaded.parameters(), model.parameters()))


@torch.no_grad()
@pytest.mark.parametrize("classes, layers, task", [
    ([7], None, "classify"), ([5, 6], None, "classify"), ([7], 3, "forecast"),
    ([180], 3, "activity")])
def test_fine_tuned_heads(tmp_path, classes, layers, task):
    """Catches: head_cls taken for the projection, verbs and nouns swapped, tau added or absent."""
    w = released(build(F, layers, task, classes))
    torch.save({"model_state": w, "config": {"heads": 2}}, tmp_path / "x.pyth")
    model, x = weights.load(tmp_path / "x.pyth"), torch.randn(3, D)
    assert model.task == task and model.classes == classes
    for head, log_p in zip(["head_cls", "head_v", "head_n"][len(classes) > 1:], model.classify(x)):
        logits = x @ w[f"model.{head}.weight"].T + w[f"model.{head}.bias"]
        torch.testing.assert_close(log_p, (logits / (1 if layers else .02)).log_softmax(-1))


@pytest.mark.filterwarnings("ignore")                  # TorchScript is deprecated
def test_promise_9_what_needs_code_or_is_cut_off(tmp_path, monkeypatch):
    """Catches: a pickle executed, a traceback."""
    monkeypatch.chdir(tmp_path)
    torch.save({"model_state": {}, "cfg": Malice()}, "pickle.pt")
    torch.jit.script(nn.Linear(2, 2)).save("script.pt")
    torch.save({"model": torch.ones(99)}, "cut.pt")
    Path("cut.pt").write_bytes(Path("cut.pt").read_bytes()[:-100])
    for file in "pickle.pt", "script.pt", "cut.pt", "absent.pt":
        for use in weights.load, open_start:
            with pytest.raises(InputError, match=f"{file}: (is cut off, or holds code|no such)"):
                use(file)
    assert not Path("executed").exists()


@torch.no_grad()
@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_one_frame_without_temporal_parts_is_the_image_model(tmp_path, capsys, library):
    """Catches: queries, keys and values exchanged, another block's norm, temporal parts random."""
    image = randomized(
        timm.models.VisionTransformer(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2,
                                      num_classes=10) if library == "timm" else
        torchvision.models.VisionTransformer(32, 8, 2, 2, 32, 128, num_classes=10))
    torch.save(image.state_dict(), tmp_path / "vit.pth")
    model = build_model(torch.zeros(0, D), F | {"frames": 1}, None, "none", tau=.1, alpha_bar=[.5],
                        pixels=(.4, .25))
    fill("x", model, open_start(tmp_path / "vit.pth"))
    assert "7 not in it: encoder.blocks.*.temporal_fc.bias, encoder.blo" in capsys.readouterr().out
    f, pixels = model.encoder, torch.randn(3, 3, 32, 32)
    for new, old in ((f.blocks[1].temporal_attn, f.blocks[1].attn),
                     (f.blocks[1].temporal_norm1, f.blocks[1].norm1)):
        for name, value in new.state_dict().items():
            assert torch.equal(value, old.state_dict()[name]) and value.abs().max() > 0
    assert f.blocks[0].temporal_fc.weight.any() and not f.blocks[1].temporal_fc.weight.any()
    f.blocks[0].temporal_fc.weight.zero_()
    image.heads = nn.Identity()
    expected = image.forward_features(pixels)[:, 0] if library == "timm" else image(pixels)
    torch.testing.assert_close(f.class_token(pixels[:, :, None]), expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_promise_8_other_frames_and_sizes(tmp_path, capsys):
    """Catches: the class token's place interpolated, rows and columns mixed up, linear; a head of
    other classes copied in part; silence."""
    source, model = build(layers=None, dim=32), build(F | dict(image=64, frames=6))
    torch.save(released(source), tmp_path / "x.pyth")
    fill("x", model, open_start(tmp_path / "x.pyth"))
    old, new = source.encoder, model.encoder
    assert torch.equal(new.pos_embed[0, 0], old.pos_embed[0, 0])
    square = old.pos_embed[0, 1:].unflatten(0, (4, 4))
    square = square.repeat_interleave(2, 0).repeat_interleave(2, 1)                # (8, 8, W)
    assert torch.equal(new.pos_embed[0, 1:], square.flatten(0, 1))
    assert torch.equal(new.time_embed[0], old.time_embed[0, [0, 0, 1, 2, 2, 3]])
    assert torch.equal(new.blocks[1].mlp.fc1.weight, old.blocks[1].mlp.fc1.weight)
    out = capsys.readouterr().out
    assert "2 resized: encoder.pos_embed, encoder.time_embed\n" in out
    assert "2 of another shape: encoder.head.bias, encoder.head.weight\n" in out
    assert re.search(r"\d+ not in it: denoiser.level.\*.bias, ", out)
    with pytest.raises(InputError, match="fits a block of f or h; give a model of this --encoder"):
        fill("x", build(F | {"width": 64}, dim=32), open_start(tmp_path / "x.pyth"))


@pytest.mark.parametrize("kind", ["run", "torchvision's MViT"])
def test_a_start_that_fits_is_taken_whole(tmp_path, capsys, kind):
    """Catches: h of another run left random; its texts taken over; torchvision's MViT not found."""
    encoder = F if kind == "run" else MVIT
    source, model = build(encoder, phrases=5), build(encoder, phrases=5)
    phrases = model.phrases.clone()
    if kind == "run":
        save(tmp_path / "checkpoint.pt", source)
        fill("x", model, open_start(tmp_path))
    else:
        torch.save(source.encoder.body.state_dict() | {"head.1.weight": torch.ones(3, 16)},
                   tmp_path / "mvit.pth")
        fill("x", model, open_start(tmp_path / "mvit.pth"))
    for (name, ours), theirs in zip(model.named_parameters(), source.parameters(), strict=True):
        assert torch.equal(ours, theirs) == (kind == "run" or "body" in name), name
    assert torch.equal(model.phrases, phrases)
    assert ("not used" in capsys.readouterr().out) == (kind != "run")      # its classifier


def test_promises_6_and_17_timm(monkeypatch):
    """Catches: another model than the release's; the traceback of an import or of the hub."""
    assert timm.models.get_pretrained_cfg(TIMM) is not None
    state = timm.models.VisionTransformer(img_size=32, patch_size=8, embed_dim=32, depth=2,
                                          num_heads=2).state_dict()
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained: {
        (TIMM, True): SimpleNamespace(state_dict=lambda: state)}[name, pretrained])
    model = build()
    fill("x", model, open_start(Path("timm")))
    assert torch.equal(model.encoder.blocks[1].attn.qkv.weight, state["blocks.1.attn.qkv.weight"])

    def refuse(name, pretrained):
        raise OSError("no network\nand no file in the cache")
    monkeypatch.setattr(timm, "create_model", refuse)
    with pytest.raises(InputError, match=r"downloaded \(no network and .*\); fetch model.*"
                                         f"/{TIMM} elsewhere and give --init FILE"):
        open_start("timm")
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(InputError, match="timm is not installed; pip install timm"):
        open_start("timm")
