"""Checkpoints: ours come back bit for bit, every published layout is read, the rest is refused."""
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import timm
import torch
import torchvision
from commands import ROOT, fails
from safetensors.torch import save_file
from slow import randomized
from test_teacher import Malice
from torch import nn
from torch.nn import functional

import weights
from model import Config
from support.arguments import INCLUDED
from support.errors import InputError
from weights import checkpoint
from weights.checkpoint import TIMM, init_from, open_start
from weights.checkpoint import build as build_model
from weights.mvit import MViT

# In the released layout, D = 16, no classes. Its numbers are by loops, one token at a time.
TINY = Path(__file__).with_name("released_tiny.pt")
# D = 64; its numbers are the released model's. It is not part of this repository.
OFFICIAL = Path(__file__).parents[2] / "shared/official/released_layout_small.pt"
STATE = torch.load(TINY, weights_only=True)["model_state"]
D = 16
F = dict(kind="timesformer", image=32, patch=8, width=32, frames=4, depth=2, heads=2)
MVIT = dict(kind="mvit", image=32, frames=4, width=8, heads=2, stages=[1, 2], kv_stride=8)
SLOWFAST = (("pos_encoding.class_token", "cls_token"), ("conv_proj", "patch_embed.proj"),
            ("attn.project.0", "attn.proj"), (".pool.weight", ".weight"), ("mlp.0", "mlp.fc1"),
            ("pool_q.norm_act.0", "norm_q"), ("pool_k.norm_act.0", "norm_k"), ("mlp.3", "mlp.fc2"),
            ("pool_v.norm_act.0", "norm_v"), ("project", "proj"), ("encoder.body", "video_encoder"))


def build(encoder=F, order="diffusion", task=None, classes=()):
    """A small model with random parameters."""
    h = dict(layers=3, heads=2) if order != "none" or task == "forecast" else None
    config = Config(encoder, h, order, .3, 2., [.9, .5, .1], (.45, .225), spacing=11., stride=3,
                    task=task, classes=classes, names=["a", "b"], clip="RN50", clip_weights="w.pt",
                    first_phrase="stir")
    return randomized(build_model(config, torch.randn(5, D)), .3).eval()


@torch.no_grad()
@pytest.mark.parametrize("encoder, order, task, classes", [
    (F, "diffusion", None, []), (MVIT, "mask", "activity", [4]), (F, "none", "actions", [3, 5])])
def test_a_checkpoint_comes_back(tmp_path, encoder, order, task, classes):
    """Catches: a buffer not saved; train mode; an argument or flags lost."""
    model = build(encoder, order, task, classes)
    model.settings = {"batch": 8, "data": "coin"}
    weights.save(tmp_path / "ours.pt", model)
    x, noise = torch.randn(2, 3, D), torch.randn(2, 2, D)
    loaded = weights.load(tmp_path / "ours.pt")
    assert loaded.settings == model.settings and not loaded.training
    assert loaded.config == model.config
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), rtol=0, atol=0)
    if model.denoiser:
        assert torch.equal(loaded.forecast_next(x, noise), model.forecast_next(x, noise))


def test_without_a_path_the_included_checkpoint_is_loaded():
    """Catches: an error in place of it; a copy of a user's run."""
    found = weights.load()
    assert found.path == INCLUDED and found.config.clip == "toy"


def changed(tmp_path, part, values):
    """The path of a checkpoint of ours, of whose content a part has other values."""
    model = build()
    content = {"config": asdict(model.config), "model": model.state_dict(), "settings": {}}
    content[part] |= values
    torch.save(content, tmp_path / "x.pt")
    return tmp_path / "x.pt"


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("key, value", [
    ("encoder", {"kind": "own"}), ("encoder", {"kind": 3}), ("encoder", []), ("encoder", {}),
    ("encoder", F | {"width": 10 ** 9}), ("encoder", F | {"depth": [10 ** 400]}),
    ("encoder", F | {"heads": NAN}), ("encoder", F | {3: 4}), ("encoder", F | {"x": {}}),
    ("denoiser", 3), ("denoiser", {"layers": 10 ** 9}), ("order", "cubic"), ("order", []),
    ("tau", 0.0), ("tau", NAN), ("tau", -1), ("tau", True), ("tau", "1"), ("tau", 1e-300),
    ("scale", 0), ("scale", INF), ("scale", None), ("alpha_bar", []), ("alpha_bar", 0.5),
    ("alpha_bar", [.5, .6]), ("alpha_bar", [1.0, .5]), ("alpha_bar", [.5, 0]),
    ("alpha_bar", [.5, NAN]), ("alpha_bar", ["a"]), ("pixels", (.4, 0.0)), ("pixels", (NAN, 1.0)),
    ("pixels", (.4,)), ("pixels", None), ("spacing", 0), ("spacing", "9"), ("stride", 0),
    ("stride", 1.5), ("history", "long"), ("hold_out", 1), ("hold_out", NAN), ("classes", [0]),
    ("classes", 3), ("classes", [1.5]), ("classes", [10 ** 9]), ("names", "ab"), ("names", [1, 2]),
    ("text_space", 1), ("text_space", None), ("task", 3), ("clip", 3), ("clip_weights", []),
    ("first_phrase", 3)])
def test_a_config_out_of_bounds_is_one_line_with_its_key(tmp_path, key, value):
    """Catches: a number that makes NaN of every score; memory for a billion numbers; a traceback;
    an error that does not say which value it is of."""
    path = changed(tmp_path, "config", {key: value})
    with pytest.raises(InputError, match=f"^.*x.pt: (config: )?{key}.*$"):
        weights.load(path)


def test_a_task_has_classes(tmp_path):
    """Catches: a classifier of no class, whose likeliest is a traceback."""
    with pytest.raises(InputError, match="classes is"):
        weights.load(changed(tmp_path, "config", {"task": "classify"}))


@pytest.mark.parametrize("sizes", [{"width": 16_000, "depth": 16}, {"frames": 9_000}])
def test_nothing_is_made_of_a_size_that_the_tensors_have_not(tmp_path, monkeypatch, sizes):
    """Catches: a file of some kilobytes that takes all memory."""
    build_any = checkpoint.build

    def outline(config, phrases):
        assert phrases.is_meta and torch.empty(0).is_meta, "made"
        return build_any(config, phrases)
    monkeypatch.setattr(checkpoint, "build", outline)
    path = changed(tmp_path, "config", {"encoder": F | sizes})
    with pytest.raises(InputError, match="x.pt: does not fit .*encoder.time_embed|encoder.*size"):
        weights.load(path)


@pytest.mark.parametrize("name, value, message", [
    ("phrases", torch.ones(1, 1).expand(10 ** 9, D), "phrases has 16000000000 numbers"),
    ("phrases", torch.ones(D), "does not fit"), ("phrases", "pool", "phrases is no tensor"),
    ("encoder.norm.bias", 3, "encoder.norm.bias is no tensor")])
def test_what_is_no_tensor_or_only_a_promise_is_one_line(tmp_path, name, value, message):
    """Catches: a traceback; memory for numbers that a file does not hold."""
    with pytest.raises(InputError, match=f"^.*x.pt: .*{message}.*$"):
        weights.load(changed(tmp_path, "model", {name: value}))


def test_a_start_that_only_promises_its_numbers_is_one_line(tmp_path):
    """Catches: memory for tensors that are not in the file."""
    path = changed(tmp_path, "model", {"phrases": torch.ones(1, 1).expand(10 ** 9, D)})
    with pytest.raises(InputError, match="phrases has 16000000000 numbers, of which 1 "):
        open_start(path)


@pytest.mark.parametrize("content", [
    {"model_state": STATE, "config": "vit"}, {"model_state": STATE, "config": {"heads": "2"}},
    {"config": None}, {"config": {"encoder": F}}, {"config": {"encoder": F, "tau": 1}, "model": 3},
    {"model": torch.ones(2), "config": 3, "settings": "toy"}, {"model": {3: torch.ones(2)}}],
    ids=str)
def test_a_config_of_another_kind_is_one_line(tmp_path, content):
    """Catches: a traceback for a file that holds text, or nothing, where a dict is expected."""
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(InputError, match="^.*x.pt: .*$"):
        weights.load(tmp_path / "x.pt")


@pytest.mark.parametrize("kind, name, value, message", [
    ("ours", "encoder.x", torch.ones(2), 'Unexpected key.*"encoder.x"'),
    ("ours", "encoder.norm.bias", torch.ones(31), r"encoder.norm.bias.*\[31\]"),
    ("bare", "x", None, r"x.pt: .* state_dict of .* this code.*: `weights.save\(path, model\)`"),
    ("release", "model.time_embed", None, "image models are for --init.*encoder.time_embed"),
    ("release", "temporal_attn", None, r"Missing key.*temporal_attn.*\[\.\.\.\]$")])
def test_a_checkpoint_of_another_model_is_refused(tmp_path, kind, name, value, message):
    """Catches: weights left random; the release taken for ours; a traceback; too many names."""
    model = build()
    w = STATE if kind == "release" else model.state_dict()
    w = {other: w[other] for other in w if name not in other} | {name: value}
    torch.save({"ours": {"config": asdict(model.config), "model": w}, "bare": {"state_dict": w},
                "release": {"model_state": w, "config": {"heads": 2}}}[kind], tmp_path / "x.pt")
    with pytest.raises(InputError, match=f"^.*{message}.*$"):                  # one line
        weights.load(tmp_path / "x.pt")


@torch.no_grad()
@pytest.mark.parametrize("key, prefix, heads, task", [
    ("model_state", "model.", dict(n=6, v=5), "classify"),
    ("state_dict", "module.model.", dict(cls=7), "forecast"),
    ("model", "module.", dict(cls=180), "activity"), ("model", "", {}, None)])
def test_published_files_load_under_any_wrapping(tmp_path, key, prefix, heads, task):
    """Catches: a prefix left on, weights left random; head_cls taken for the projection, verbs and
    nouns swapped, tau added or absent; CLIP's text tower taken for h, or refused."""
    state = {prefix + name.removeprefix("model."): value for name, value in STATE.items()
             if task != "classify" or "order_tfm" not in name}
    state[f"{prefix}text_model.transformer.resblocks.0.ln_1.weight"] = torch.ones(D)
    for name, S in heads.items():                      # EPIC's: nouns before verbs
        state[f"{prefix}head_{name}.weight"] = torch.randn(S, D)
        state[f"{prefix}head_{name}.bias"] = torch.randn(S)
    sets = sorted(heads, reverse=True)                 # ours: verbs first
    torch.save({key: state, "cfg": "A: 1", "config": {"heads": 2}}, tmp_path / "x.pyth")
    tiny, model, x = weights.load(TINY), weights.load(tmp_path / "x.pyth"), torch.randn(3, D)
    assert model.config.task == (task if len(heads) < 2 else "actions")
    assert model.config.classes == [heads[name] for name in sets]
    tau = .02 if task == "classify" else 1
    for name, parameter in model.named_parameters():
        assert "classifier" in name or torch.equal(parameter, tiny.get_parameter(name)), name
    with torch.autocast("cpu", torch.bfloat16):        # which must not reach the logits
        found = model.classify(x) if task else []
    for name, log_p in zip(sets, found, strict=True):
        logits = x @ state[f"{prefix}head_{name}.weight"].T + state[f"{prefix}head_{name}.bias"]
        torch.testing.assert_close(log_p, (logits / tau).log_softmax(-1))


@torch.no_grad()
@pytest.mark.parametrize("file", [TINY, OFFICIAL], ids=lambda file: file.name)
def test_released_weights_give_the_released_numbers(file):
    """Catches: a parameter under another's name, other heads, no L2 norm, another schedule."""
    if not file.exists():
        pytest.skip(f"{file.name} is not here")
    content, model = torch.load(file, weights_only=True), weights.load(file)
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


@pytest.mark.filterwarnings("ignore")                  # TorchScript is deprecated
def test_what_needs_code_or_is_cut_off_is_refused(tmp_path, monkeypatch, capsys):
    """Catches: a pickle executed, a traceback; a file of another user told to be cut off."""
    monkeypatch.chdir(tmp_path)
    torch.save({"model_state": {}, "cfg": Malice()}, "pickle.pt")
    torch.jit.script(nn.Linear(2, 2)).save("script.pt")
    Path("cut.pt").write_bytes(TINY.read_bytes()[:-100])
    for file in "pickle.pt", "script.pt", "cut.pt", "absent.pt":
        for use in weights.load, open_start:
            with pytest.raises(InputError, match=f"{file}: (is no checkpoint|no such)"):
                use(file)
    assert not Path("executed").exists()

    def refuse(path, **_):
        raise PermissionError(13, "Permission denied", "cut.pt")
    monkeypatch.setattr(torch, "load", refuse)
    line = fails(capsys, "evaluate.py", "--checkpoint", "cut.pt")
    assert line.endswith("Permission denied: 'cut.pt'")


def test_who_loads_whom():
    """Catches: a circle between packages; an f or a library that is loaded before it is asked for.
    timm comes with open_clip, too, but not where a list of videos is read."""
    code = """if True:
        import sys
        def loaded(name): return sorted(m for m in sys.modules if m.split(".")[0] == name)
        import files.coin, files.epic, files.howto100m
        assert not {"timm", "open_clip", "weights", "toy", "model"} & {*sys.modules}
        read = loaded("files")
        import support.run, support.encode, support.tensors
        assert not loaded("weights"), loaded("weights")
        import weights, weights.teacher
        assert loaded("files") == read and not loaded("toy")
        assert not {"encoder", "weights.mvit", "weights.adapter"} & {*sys.modules}
        """
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@torch.no_grad()
def test_one_frame_without_temporal_parts_is_the_image_model(tmp_path):
    """Catches: queries, keys and values exchanged, another block's norm, temporal parts random."""
    image = timm.models.VisionTransformer(img_size=32, patch_size=8, embed_dim=32, depth=2,
                                          num_heads=2, num_classes=10)
    save_file(randomized(image, .2).eval().state_dict(), tmp_path / "x.safetensors")
    model = build(F | {"frames": 1}, "none")           # .3: other numbers
    init_from("x", model, open_start(tmp_path / "x.safetensors"))
    f, pixels = model.encoder, torch.randn(3, 3, 32, 32)
    for block in f.blocks:
        w = block.state_dict()
        for name in ("attn.qkv.weight", "attn.proj.bias", "norm1.weight"):
            assert torch.equal(w[f"temporal_{name}"], w[name])
    expected = image.forward_features(pixels)[:, 0]
    torch.testing.assert_close(f.class_token(pixels[:, :, None]), expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_other_frames_and_sizes_are_resized_and_said(tmp_path, capsys):
    """Catches: the class token's place interpolated, rows and columns mixed up; silence."""
    model = build(F | dict(image=16, patch=4, frames=3, width=8), "diffusion", "forecast", [2])
    init_from("x", model, open_start(TINY))
    old, new = STATE["model.pos_embed"][0], model.encoder.pos_embed[0]
    square = old[1:].unflatten(0, (2, 2)).repeat_interleave(2, 0).repeat_interleave(2, 1)
    assert torch.equal(new[0], old[0]) and torch.equal(new[1:], square.flatten(0, 1))
    assert torch.equal(model.encoder.time_embed[0], STATE["model.time_embed"][0, [0, 0, 1]])
    out = capsys.readouterr().out
    assert "x: 2 resized: encoder.pos_embed, encoder.time_embed\n" in out
    assert "x: 3 new: classifier.bias, classifier.weight, denoiser.position.weight\n" in out
    source, model = build(MVIT, "none"), build(MVIT | {"frames": 8}, "none")
    weights.save(tmp_path / "mvit.pt", source)
    init_from("x", model, open_start(tmp_path / "mvit.pt"))
    tables = [name for name, _ in model.named_parameters() if name.endswith("rel_pos_t")]
    for name in tables:                                # nearest neighbor, of 2 pictures: 3, then 7
        old, new = (one.get_parameter(name) for one in (source, model))
        assert torch.equal(new, old[[k * len(old) // len(new) for k in range(len(new))]])
        assert len(new) > len(old)
    assert f"x: {len(tables)} resized: {tables[0]}" in (out := capsys.readouterr().out)
    assert " new: " not in out
    with pytest.raises(InputError, match="less than a tenth .*; give a model of this --encoder"):
        init_from("x", build(MVIT, order="none"), open_start(TINY))        # but for a bias of D


@torch.no_grad()
@pytest.mark.parametrize("encoder", [F, MVIT], ids=["run", "torchvision's MViT"])
def test_a_start_that_fits_is_taken_whole(tmp_path, encoder):
    """Catches: h of another run left random; its texts taken over; torchvision's MViT not found."""
    source, model = build(encoder), build(encoder)
    phrases = model.phrases.clone()
    for parameter in source.parameters():
        parameter += 1
    weights.save(tmp_path / "x.pt", source)
    if encoder == MVIT:
        body = source.encoder.body.state_dict()
        torch.save(body | {"head.1.weight": torch.ones(3, 16)}, tmp_path / "x.pt")
    init_from("x", model, open_start(tmp_path / "x.pt"))
    for (name, ours), given in zip(model.named_parameters(), source.parameters(), strict=True):
        assert torch.equal(ours, given) == (encoder == F or "body" in name), name
    assert torch.equal(model.phrases, phrases)


def test_timm_online_and_offline(monkeypatch):
    """Catches: another model than the release's, or one without weights; the hub's traceback."""
    assert timm.models.get_pretrained_cfg(TIMM) is not None
    image = nn.Linear(2, 2)
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained: {(TIMM, True): image}[
        name, pretrained])
    assert torch.equal(open_start("timm")["weight"], image.weight)
    monkeypatch.setattr(timm, "create_model", None)    # in place of the network's errors
    with pytest.raises(InputError, match=r"downloaded \(.*\); fetch model.safetensors of "
                                         f".*/{TIMM} elsewhere and give --init FILE"):
        open_start("timm")


def test_the_defaults_are_mvit_v2_s():
    """Catches: a stage too long, heads or strides of another stage, another stem or norm."""
    with torch.device("meta"):                         # shapes without numbers
        ours = MViT().body
        theirs = torchvision.models.video.mvit_v2_s(stochastic_depth_prob=0.0)
    theirs.head = nn.Identity()
    for one, other in zip(ours.modules(), theirs.modules(), strict=True):
        settings = [name for name in vars(other) if name[0] != "_"]
        assert [getattr(one, name) for name in settings] == [vars(other)[name] for name in settings]
    assert [w.shape for w in ours.parameters()] == [w.shape for w in theirs.parameters()]


@torch.no_grad()
def test_the_release_with_slowfasts_mvit(tmp_path, monkeypatch):
    """Catches: a name of SlowFast given to another layer, a class token of another shape."""
    monkeypatch.setattr(MViT.__init__, "__defaults__", (32, 4, None, 8, 2, [1, 2], 8, 512))
    f, state, clips = build({"kind": "mvit"}, "none").encoder, {}, torch.randn(2, 3, 4, 32, 32)
    for name, value in f.state_dict(prefix="encoder.").items():
        for ours, released in SLOWFAST if "body" in name else [("encoder.", "")]:
            name = name.replace(ours, released)
        state["model." + name] = value.view(1, 1, -1) if name.endswith("cls_token") else value
    torch.save({"model_state": state}, tmp_path / "x.pyth")
    assert torch.equal(weights.load(tmp_path / "x.pyth").encoder(clips), f(clips))
