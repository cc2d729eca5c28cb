"""Checkpoints: ours come back bit for bit, every published layout is read, the rest is refused."""
import re
import sys
from pathlib import Path

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional
from torchvision.models.video import mvit as theirs

import weights
from encoder import TimeSformer
from model import ProcedureModel
from slow import randomized
from support.errors import InputError
from test_teacher import Malice
from weights.checkpoint import TIMM, build_model, fill, open_start, read
from weights.mvit import MViT

# In the released layout, D = 16, no classes. Its numbers are by loops, one token at a time.
TINY = Path(__file__).with_name("released_tiny.pt")
STATE = torch.load(TINY, weights_only=True)["model_state"]
D = 16
F = dict(image=32, patch=8, width=32, frames=4, depth=2, heads=2)
MVIT = dict(kind="mvit", image=32, frames=4, width=8, heads=2, stages=[1, 2], kv_stride=8)
SLOWFAST = (("pos_encoding.class_token", "cls_token"), ("conv_proj", "patch_embed.proj"),
            ("attn.project.0", "attn.proj"), (".pool.weight", ".weight"), ("mlp.0", "mlp.fc1"),
            ("pool_q.norm_act.0", "norm_q"), ("pool_k.norm_act.0", "norm_k"), ("mlp.3", "mlp.fc2"),
            ("pool_v.norm_act.0", "norm_v"), ("project", "proj"), ("encoder.body", "video_encoder"))


def build(encoder=F, layers=3, task=None, classes=(), order="diffusion"):
    """A small model with random parameters."""
    return randomized(build_model(
        torch.randn(5, D), encoder, dict(layers=layers, heads=2), order, task=task,
        classes=list(classes), tau=.02, alpha_bar=[.9, .5, .1], pixels=(.45, .225)), .3).eval()


@pytest.mark.parametrize("encoder, order, task, classes", [
    (F, "diffusion", None, []), (MVIT, "mask", "activity", [4]), (F, "none", "classify", [3, 5])])
def test_a_checkpoint_comes_back(tmp_path, encoder, order, task, classes):
    """Catches: a buffer that is not saved, or stays half; train mode; an argument, another tau, or
    flags with the names of classes lost; a release's tau and schedule for our state_dict."""
    model = build(encoder, 2, task, classes, order)
    model.standardize.add(torch.randn(20, D) + 1)
    model.standardize.update()
    wrapped = nn.ModuleDict({"module": model}).state_dict()
    for content in model.state_dict(), {"state_dict": wrapped}:
        torch.save(content, tmp_path / "x.pt")
        with pytest.raises(InputError, match=r"x.pt: the state_dict .*: `weights.save\(path, mod"):
            weights.load(tmp_path / "x.pt")
    (tmp_path / "x.pt").unlink()
    weights.save(tmp_path / "checkpoint.pt", model, settings={"batch": 8}, step=7)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]
    loaded = weights.load(tmp_path)
    assert loaded.arguments == model.arguments and not loaded.training
    assert loaded.settings == {"batch": 8} and read(tmp_path)["step"] == 7
    loaded.tau = .3
    weights.save(tmp_path / "again.pt", loaded)
    again = weights.load(tmp_path / "again.pt")
    assert again.tau == .3 and again.settings == {"batch": 8}
    before, after = model.state_dict(), loaded.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    half = {name: value.half() for name, value in before.items()}
    torch.save({"arguments": model.arguments, "model": half}, tmp_path / "h.pt")
    assert {w.dtype for w in weights.load(tmp_path / "h.pt").state_dict().values()} == {torch.float}


@pytest.mark.parametrize("owner, name, change, told", [
    (ProcedureModel, "denoise",                        # h now gives the noise
     lambda real: lambda model, zt, *given: zt - real(model, zt, *given), "h"),
    (TimeSformer, "forward", lambda real: lambda f, clips: real(f, 1.1 * clips), "f")])
def test_source_and_checkpoint_that_have_parted_are_told(tmp_path, monkeypatch, capsys, owner,
                                                         name, change, told):
    """Catches: a changed model that loads earlier weights in silence; a line about an unchanged
    one, or about a file that holds no answers; train mode or random numbers that are lost."""
    model = build(order="diffusion").train()
    state = torch.get_rng_state()
    weights.save(tmp_path / "x.pt", model)
    assert model.training and torch.equal(torch.get_rng_state(), state)
    weights.load(tmp_path / "x.pt")
    assert "parted" not in capsys.readouterr().err
    monkeypatch.setattr(owner, name, change(getattr(owner, name)))
    weights.load(tmp_path / "x.pt")
    words = rf"x.pt: {told} gives -?\d.* where it was trained to give -?\d.*: source and check"
    assert re.search(words, capsys.readouterr().err)
    weights.load(TINY)
    assert "parted" not in capsys.readouterr().err


@pytest.mark.parametrize("ours, name, value, message", [
    (True, "encoder.x", torch.ones(2), 'Unexpected key.*"encoder.x"'),
    (True, "encoder.norm.bias", torch.ones(31), r"encoder.norm.bias.*\[31\]"),
    (False, "model.time_embed", None, "image models are for --init.*encoder.time_embed"),
    (False, "temporal_attn", None, r"Missing key.*temporal_attn.*\[\.\.\.\]$")])
def test_a_checkpoint_of_another_model_is_refused(tmp_path, ours, name, value, message):
    """Catches: weights left random, in ours or in a release; a traceback; too many names."""
    model = build()
    w = model.state_dict() if ours else STATE
    w = {other: w[other] for other in w if name not in other}
    torch.save({"arguments": model.arguments, "model": w | {name: value}} if ours else
               {"model_state": w, "config": {"heads": 2}}, tmp_path / "x.pt")
    with pytest.raises(InputError, match=message) as caught:
        weights.load(tmp_path / "x.pt")
    assert "\n" not in str(caught.value)


@torch.no_grad()
@pytest.mark.parametrize("key, prefix, heads, task", [
    ("model_state", "model.", dict(v=5, n=6), "classify"),
    ("state_dict", "module.model.", dict(cls=7), "forecast"),
    ("model", "_orig_mod.module.", dict(cls=180), "activity"), ("model", "", {}, None)])
def test_published_files_load_under_any_wrapping(tmp_path, key, prefix, heads, task):
    """Catches: a prefix left on, weights left random; head_cls taken for the projection, verbs and
    nouns swapped, tau added or absent."""
    state = {prefix + name.removeprefix("model."): value for name, value in STATE.items()
             if task != "classify" or "order_tfm" not in name}
    for name, S in heads.items():
        state[f"{prefix}head_{name}.weight"] = torch.randn(S, D)
        state[f"{prefix}head_{name}.bias"] = torch.randn(S)
    torch.save({key: state, "cfg": "A: 1", "config": {"heads": 2}}, tmp_path / "x.pyth")
    tiny, model, x = weights.load(TINY), weights.load(tmp_path / "x.pyth"), torch.randn(3, D)
    assert model.task == task and model.classes == [*heads.values()]
    assert (model.denoiser is None) == (task == "classify")
    for name, parameter in model.named_parameters():
        assert "classifier" in name or torch.equal(parameter, tiny.get_parameter(name)), name
    with torch.autocast("cpu", torch.bfloat16):        # which must not reach the logits
        found = model.classify(x) if task else []
    for name, log_p in zip(heads, found, strict=True):
        logits = x @ state[f"{prefix}head_{name}.weight"].T + state[f"{prefix}head_{name}.bias"]
        torch.testing.assert_close(log_p, (logits / (.02 if task == "classify" else 1)
                                           ).log_softmax(-1))


@torch.no_grad()
def test_released_weights_give_the_released_numbers():
    """Catches: a parameter under another's name, other heads, no L2 norm, another schedule."""
    content, model = torch.load(TINY, weights_only=True), weights.load(TINY)
    clips = torch.cat([video.unflatten(1, (-1, content["config"]["frames"])).transpose(0, 1)
                       for video in content["input"]])                          # (B N, 3, F, H, W)
    x, noise = model.encoder(clips), content["noise"]
    noises = torch.stack([torch.zeros_like(noise), noise], 1)
    denoised, noisy = model.forecast_next(x.unflatten(0, (len(noise), -1)), noises).unbind(1)
    cosine = functional.normalize(denoised, dim=-1) @ content["label_emb"].T    # as they come
    for name, ours in {"encoder_cls": model.encoder.class_token(clips), "embedding": x,
                       "denoised": denoised, "denoised_from_noise": noisy,
                       "probs": (cosine / model.tau).softmax(-1)}.items():
        assert (ours - content[name]).norm() < 1e-5 * content[name].norm(), name


def test_safetensors_load_as_the_same_tensors(tmp_path):
    """Catches: a file of tensors alone refused; a number of heads that is guessed."""
    save_file(STATE, tmp_path / "x.safetensors")
    found, expected = open_start(tmp_path / "x.safetensors"), open_start(TINY)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    with pytest.raises(InputError, match='width 8: save it with "config": {"heads": N}'):
        weights.load(tmp_path / "x.safetensors")


@pytest.mark.filterwarnings("ignore")                  # TorchScript is deprecated
def test_what_needs_code_or_is_cut_off_is_refused(tmp_path, monkeypatch):
    """Catches: a pickle executed, a traceback."""
    monkeypatch.chdir(tmp_path)
    torch.save({"model_state": {}, "cfg": Malice()}, "pickle.pt")
    torch.jit.script(nn.Linear(2, 2)).save("script.pt")
    Path("cut.pt").write_bytes(TINY.read_bytes()[:-100])
    for file in "pickle.pt", "script.pt", "cut.pt", "absent.pt":
        for use in weights.load, open_start:
            with pytest.raises(InputError, match=f"{file}: (is cut off, or holds code|no such)"):
                use(file)
    assert not Path("executed").exists()


@torch.no_grad()
@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_one_frame_without_temporal_parts_is_the_image_model(tmp_path, monkeypatch, library):
    """Catches: queries, keys and values exchanged, another block's norm, temporal parts random;
    another model of timm than the release's."""
    image = timm.models.VisionTransformer(img_size=32, patch_size=8, embed_dim=32, depth=2,
                                          num_heads=2, num_classes=10)
    if library == "torchvision":
        image = torchvision.models.VisionTransformer(32, 8, 2, 2, 32, 128, num_classes=10)
    torch.save(randomized(image, .3).eval().state_dict(), tmp_path / "vit.pth")
    assert timm.models.get_pretrained_cfg(TIMM) is not None
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained: {(TIMM, True): image}[
        name, pretrained])
    model = build_model(torch.zeros(0, D), F | {"frames": 1}, None, "none", tau=.1, alpha_bar=[.5],
                        pixels=(.4, .25))
    fill("x", model, open_start(Path("timm") if library == "timm" else tmp_path / "vit.pth"))
    f, pixels = model.encoder, torch.randn(3, 3, 32, 32)
    w = f.blocks[1].state_dict()
    for name in ("attn.qkv.weight", "attn.proj.bias", "norm1.weight"):
        assert torch.equal(w[f"temporal_{name}"], w[name]) and w[name].abs().max() > 0
    f.blocks[0].temporal_fc.weight.zero_()
    image.heads = nn.Identity()
    expected = image.forward_features(pixels)[:, 0] if library == "timm" else image(pixels)
    torch.testing.assert_close(f.class_token(pixels[:, :, None]), expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_other_frames_and_sizes_are_resized_and_said(capsys):
    """Catches: the class token's place interpolated, rows and columns mixed up, linear; silence."""
    model = build(F | dict(image=16, patch=4, frames=3, width=8), task="forecast", classes=[2])
    fill("x", model, open_start(TINY))
    old, new = STATE["model.pos_embed"][0], model.encoder.pos_embed[0]
    square = old[1:].unflatten(0, (2, 2)).repeat_interleave(2, 0).repeat_interleave(2, 1)
    assert torch.equal(new[0], old[0]) and torch.equal(new[1:], square.flatten(0, 1))
    assert torch.equal(model.encoder.time_embed[0], STATE["model.time_embed"][0, [0, 0, 1]])
    out = capsys.readouterr().out
    assert "2 resized: encoder.pos_embed, encoder.time_embed\n" in out
    assert re.search(r"x: \d+ taken: denoiser.level.*\n", out)
    assert "x: 1 new, as of another shape: denoiser.position.weight\n" in out
    assert "x: 2 new: classifier.bias, classifier.weight\n" in out
    with pytest.raises(InputError, match="fits a block of f or h; give a model of this --encoder"):
        fill("x", build(MVIT, order="none"), open_start(TINY))


@pytest.mark.parametrize("encoder, kind", [(F, "run"), (MVIT, "torchvision's MViT")])
def test_a_start_that_fits_is_taken_whole(tmp_path, encoder, kind):
    """Catches: h of another run left random; its texts taken over; torchvision's MViT not found."""
    torch.manual_seed(1)
    source, model = build(encoder), build(encoder)
    for parameter in source.parameters():
        nn.init.normal_(parameter)
    phrases = model.phrases.clone()
    if kind == "run":
        weights.save(tmp_path / "x.pt", source)
    else:
        body = source.encoder.body.state_dict()
        torch.save(body | {"head.1.weight": torch.ones(3, 16)}, tmp_path / "x.pt")
    fill("x", model, open_start(tmp_path / "x.pt"))
    for (name, ours), given in zip(model.named_parameters(), source.parameters(), strict=True):
        assert torch.equal(ours, given) == (kind == "run" or "body" in name), name
    assert torch.equal(model.phrases, phrases)


def test_timm_absent_or_offline_is_one_line(monkeypatch):
    """Catches: the traceback of an import or of the hub."""
    def refuse(name, pretrained):
        raise OSError("no network\nand no file in the cache")
    monkeypatch.setattr(timm, "create_model", refuse)
    with pytest.raises(InputError, match=r"downloaded \(no network and .*\); fetch model.*"
                                         f"/{TIMM} elsewhere and give --init FILE"):
        open_start("timm")
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(InputError, match="timm is not installed; pip install timm"):
        open_start("timm")


# --- MViT-v2 ---
def test_the_defaults_are_mvit_v2_s(monkeypatch):
    """Catches: a stage too long, heads or strides of another stage, another stem or norm; 16 frames
    at another stride than 6 of 30 a second."""
    built = []

    def keep(self, spatial_size, temporal_size, block_setting, **flags):
        torch.nn.Module.__init__(self)
        flags.update(num_classes=1, stochastic_depth_prob=0.0)            # neither is of features
        built.append((spatial_size, temporal_size, block_setting, flags))
    monkeypatch.setattr(theirs.MViT, "__init__", keep)
    theirs.mvit_v2_s(weights=None)
    ours = MViT()
    assert built[0] == built[1]
    assert ours.seconds / ours.frames == pytest.approx(6 / 30)


@torch.no_grad()
def test_released_names(tmp_path, monkeypatch):
    """Catches: a name of SlowFast given to another layer, a class token of another shape."""
    monkeypatch.setattr(MViT.__init__, "__defaults__", (32, 4, None, 8, 2, [1, 2], 8, 512))
    torch.manual_seed(0)
    f = build_model(torch.zeros(0, 16), {"kind": "mvit"}, None, "none", tau=.02,
                    pixels=(.45, .225), alpha_bar=[.5]).encoder.eval()
    state, clips = {}, torch.randn(2, 3, 4, 32, 32)
    for name, value in f.state_dict(prefix="encoder.").items():
        value.normal_(0, .3)
        for ours, released in SLOWFAST if "body" in name else [("encoder.", "")]:
            name = name.replace(ours, released)
        state["model." + name] = value.view(1, 1, -1) if name.endswith("cls_token") else value
    torch.save({"model_state": state}, tmp_path / "x.pyth")
    assert torch.equal(weights.load(tmp_path / "x.pyth").encoder(clips), f(clips))
