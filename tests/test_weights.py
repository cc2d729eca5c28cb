"""Weights from outside: every layout read, what does not fit said or refused.

All weights here are random and small; nothing is downloaded.
"""
import itertools
import json
import logging
import math
import re
import signal
from pathlib import Path

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

import weights
from commands import TINY, call, fails, flags_of, make_teacher
from model import ProcedureModel, load_model, save_checkpoint
from weights.mvit import MViT
from weights.released import Released
from support.command import BadInput
from weights import fill, load_released, open_start

F = dict(dim=64, image=32, patch=8, width=32, frames=4, depth=2, heads=2)   # reads the toy's clips
MVIT = dict(kind="mvit", dim=64, image=32, frames=4, width=8, heads=2, stages=[1, 2], kv_stride=8)
H = dict(dim=64, layers=3, clips=9)


def made(encoder=F, denoiser=H, task=None, classes=()):
    """A small published model with every parameter random."""
    torch.manual_seed(0)
    model = Released(encoder, denoiser, task, classes).eval()
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, std=0.15)
        if re.search(r"(ln_[12]|norm.*)\.weight", name):
            nn.init.normal_(parameter, 1.0, 0.1)
    return model


SLOWFAST = (("body.pos_encoding.class_token", "cls_token"), ("body.conv_proj", "patch_embed.proj"),
            ("attn.project.0", "attn.proj"), ("pool_q.pool", "pool_q"), ("pool_k.pool", "pool_k"),
            ("pool_v.pool", "pool_v"), ("pool_q.norm_act.0", "norm_q"),
            ("pool_k.norm_act.0", "norm_k"), ("pool_v.norm_act.0", "norm_v"), ("mlp.0", "mlp.fc1"),
            ("mlp.3", "mlp.fc2"), ("project", "proj"), ("body.", ""))


def released_names(model):
    """Its state dict under the names of the released code, with what a pre-trained file has more.
    """
    state = {"model.order_tfm.pad_embedding.weight": torch.zeros(1, 64),
             "model.text_model.ln_final.weight": torch.zeros(5)}
    for name, value in model.state_dict().items():
        part, _, rest = name.partition(".")
        if part == "encoder" and rest.startswith("body."):
            for ours, theirs in SLOWFAST:
                rest = rest.replace(ours, theirs)
            rest, value = f"video_encoder.{rest}", value.view(1, 1, -1) if rest == "cls_token" \
                else value
        elif part == "denoiser":
            rest = f"order_tfm.{rest}"
        elif part == "classifier":
            number, rest = rest.split(".")
            rest = f"head_{('cls' if len(model.classes) == 1 else 'vn'[int(number)])}.{rest}"
        state[f"model.{rest}"] = value
    return state


def save_released(path, model):
    """As the release writes them, but that its cfg, a text, has no number of heads."""
    torch.save({"epoch": 3, "model_state": released_names(model), "optimizer_state": {"state": {}},
                "cfg": "MVIT:\n  NUM_HEADS: 1\n", "config": {"heads": 2}}, path)


def outputs(model):
    """Class tokens, embeddings and forecasts of made-up clips."""
    generator = torch.Generator().manual_seed(1)
    clips = torch.randn(2, 3, model.encoder.frames, 32, 32, generator=generator)
    x = functional.normalize(torch.randn(2, 8, 64, generator=generator), dim=-1)
    noise = torch.randn(2, 64, generator=generator)
    with torch.no_grad():
        forecasts = [model.forecast(x), model.forecast(x, noise)] if model.denoiser else []
        return [model.encoder.features(clips), model.encode(clips), *forecasts]


def same_outputs(a, b):
    return all(torch.equal(x, y) for x, y in zip(outputs(a), outputs(b), strict=True))


# ---- the setting `released` --------------------------------------------------------------------
def slow_mvit(w, clips, stages, heads, kv):
    """MViT-v2's class token from tensors under the released names, positions pair by pair.

    stages: blocks of each; heads: in the first; kv: stride of keys and values there.
    """
    def linear(x, name):
        return functional.linear(x, w[name + ".weight"], w[name + ".bias"])

    def norm(x, name):
        return functional.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], 1e-6)

    def on_grid(x, grid, pool):                # (B, 1 + T H W, C): all but the class token, pooled
        token, x = x[:, :1], x[:, 1:].transpose(1, 2).unflatten(2, grid)
        x = pool(x)
        return torch.cat([token, x.flatten(2).transpose(1, 2)], 1), x.shape[2:]

    x = functional.conv3d(clips, w["patch_embed.proj.weight"], w["patch_embed.proj.bias"],
                          stride=(2, 4, 4), padding=(1, 3, 3))
    grid, B = x.shape[2:], len(x)
    x = torch.cat([w["cls_token"].expand(B, 1, -1), x.flatten(2).transpose(1, 2)], 1)
    first = [stage > 0 and i == 0 for stage, blocks in enumerate(stages) for i in range(blocks)]
    for block, halves in enumerate(first):
        block, stride = f"blocks.{block}.", 2 if halves else 1
        heads, kv = heads * stride, max(kv // stride, 1)
        y, parts = norm(x, block + "norm1"), []
        for part, step, values in zip("qkv", (stride, kv, kv),
                                      linear(y, block + "attn.qkv").chunk(3, -1), strict=True):
            kernel = w[f"{block}attn.pool_{part}.weight"]
            pooled = [on_grid(head, grid, lambda z: functional.conv3d(
                z, kernel, stride=(1, step, step), padding=1, groups=z.shape[1]))
                for head in values.chunk(heads, -1)]
            parts.append(([norm(z, f"{block}attn.norm_{part}") for z, _ in pooled], pooled[0][1]))
        (queries, new), (keys, old), (values, _) = parts
        mixed = []
        for q, k, v in zip(queries, keys, values, strict=True):
            logits = q @ k.transpose(1, 2) / q.shape[-1] ** .5
            for axis, name in enumerate("thw"):
                ratio = max(new[axis] / old[axis], 1), max(old[axis] / new[axis], 1)
                for i, one in enumerate(itertools.product(*map(range, new))):
                    for j, other in enumerate(itertools.product(*map(range, old))):
                        place = one[axis] * ratio[1] + (old[axis] - 1 - other[axis]) * ratio[0]
                        logits[:, 1 + i, 1 + j] += q[:, 1 + i] @ w[
                            f"{block}attn.rel_pos_{name}"][int(place)]
            z = logits.softmax(-1) @ v
            mixed.append(torch.cat([z[:, :1], z[:, 1:] + q[:, 1:]], 1))
        if halves:
            x, _ = on_grid(linear(y, block + "proj"), grid, lambda z: functional.max_pool3d(
                z, (1, 3, 3), (1, 2, 2), (0, 1, 1)))
        x, grid = x + linear(torch.cat(mixed, -1), block + "attn.proj"), new
        y = functional.gelu(linear(norm(x, block + "norm2"), block + "mlp.fc1"))
        x = x + linear(y, block + "mlp.fc2")
    return norm(x, "norm")[:, 0]


@torch.no_grad()
def test_the_released_mvit_equals_one_pair_of_tokens_at_a_time(tmp_path):
    """Catches: a released name given to another layer of torchvision's MViT (its two `proj`), kv
    strides of another stage, distances between grids of two sizes from the wrong end."""
    model = made(MVIT, None)
    save_released(tmp_path / "x.pyth", model)
    w = {name.removeprefix("model.video_encoder."): value
         for name, value in released_names(model).items() if "video_encoder" in name}
    clips = torch.randn(2, 3, 4, 32, 32)
    slow = slow_mvit(w, clips, MVIT["stages"], MVIT["heads"], MVIT["kv_stride"])
    ours = load_released(tmp_path / "x.pyth").encoder.features(clips)
    assert (ours - slow).norm() < 1e-5 * slow.norm()


@torch.no_grad()
def test_many_noises_at_once_and_frames_of_bytes():
    """Catches: samples of one video given to another; uint8 frames in another order, not normalised
    or normalised by the toy's numbers."""
    model = made()
    x, noise = functional.normalize(torch.randn(2, 8, 64), dim=-1), torch.randn(2, 3, 64)
    many = model.forecast_next(x, noise)
    for q in range(3):
        torch.testing.assert_close(many[:, q], model.forecast(x, noise[:, q]))
    frames = torch.randint(256, (2, 4, 3, 32, 32), dtype=torch.uint8)
    clips = torch.stack([(frames[:, f] / 255 - .45) / .225 for f in range(4)], 2)
    torch.testing.assert_close(model.encode(frames), model.encode(clips))
    torch.testing.assert_close(model.encode(5 * x[0]), x[0])
    texts = torch.randn(6, 64)
    torch.testing.assert_close(model.match(x, texts).exp(),
                               model.probabilities(x, functional.normalize(texts, dim=-1)))


@torch.no_grad()
@pytest.mark.parametrize("classes, denoiser, task", [
    ([7], None, "classify"), ([5, 6], None, "classify"), ([7], H, "forecast"),
    ([180], H, "activity")])
def test_fine_tuned_heads(tmp_path, classes, denoiser, task):
    """Catches: head_cls taken for the projection, verbs and nouns swapped, tau where the release
    has none or none where it has."""
    model = made(F, denoiser, task, classes)
    save_released(tmp_path / "x.pyth", model)
    loaded, x = load_released(tmp_path / "x.pyth"), torch.randn(3, 64)
    assert loaded.task == task and loaded.classes == classes
    for head, log_p in zip(model.classifier, loaded.classify(x), strict=True):
        logits = head(x) / (1 if denoiser else 0.02)
        torch.testing.assert_close(log_p, logits.log_softmax(-1))


# ---- layouts -----------------------------------------------------------------------------------
LAYOUTS = {"model_state": lambda state: {"epoch": 1, "model_state": state, "cfg": "A: 1"},
           "state_dict, module": lambda state: {"state_dict": {"module." + name: value for
                                                               name, value in state.items()}},
           "model": lambda state: {"model": {name.removeprefix("model."): value for name, value in
                                             state.items()}},
           "plain": lambda state: state,
           "compiled": lambda state: {"model": {"_orig_mod.module." + name: value
                                                for name, value in state.items()}},
           "half": lambda state: {name: value.half() for name, value in state.items()}}


@pytest.mark.parametrize("encoder", [F, MVIT], ids=["timesformer", "mvit"])
@pytest.mark.parametrize("layout", [*LAYOUTS, "safetensors"])
def test_every_layout_gives_the_same_model(tmp_path, capsys, encoder, layout):
    """Catches: a prefix left on, weights left random, sizes of one file taken for all, a name of
    SlowFast's MViT mapped to another part."""
    model = made(encoder)
    if layout == "half":                                   # what float16 can hold
        model.load_state_dict({name: value.half() for name, value in model.state_dict().items()})
    state = {name: value.contiguous() for name, value in released_names(model).items()}
    if layout == "safetensors":
        save_file(state, tmp_path / "x.safetensors", {"format": "pt"})
    else:
        torch.save(LAYOUTS[layout](state), tmp_path / "x.pyth")
    loaded = load_released(next(tmp_path.iterdir()), heads=2)
    assert not loaded.training and same_outputs(loaded, model)
    assert loaded.arguments == model.arguments
    out = capsys.readouterr().out
    assert out.endswith(f"{len(list(model.parameters()))} parameters taken\n")


@pytest.mark.parametrize("sizes", [
    dict(dim=48, image=24, patch=6, width=40, frames=2, depth=1, heads=5),
    dict(dim=16, image=32, patch=16, width=128, frames=6, depth=3, heads=2)])
def test_sizes_are_read_from_the_weights(tmp_path, capsys, sizes):
    """Catches: width, depth, patch, frames, image or D of the paper taken for granted; 12 heads
    whatever the width."""
    model = made(sizes, None)
    state = {"model_state": released_names(model)}
    if sizes["width"] % 64:
        torch.save(state | {"config": {"heads": sizes["heads"]}}, tmp_path / "x.pyth")
    else:                                                  # the release's 64 per head: 2 at 128
        torch.save(state, tmp_path / "x.pyth")
    loaded = load_released(tmp_path / "x.pyth")
    assert loaded.arguments == model.arguments
    said = "does not say how many attention heads: 2, each 64 wide" in capsys.readouterr().out
    assert said == (sizes["width"] == 128)
    clips = torch.randn(2, 3, sizes["frames"], sizes["image"], sizes["image"])
    assert torch.equal(loaded.encode(clips), model.encode(clips))


@pytest.mark.parametrize("kept, heads", [({"heads": 4}, 4), ({"heads": 1}, 1), ({}, 2),
                                         ({"heads": "4"}, 2), ({"heads": 0}, 2), ({"heads": -1}, 2),
                                         ({"heads": None}, 2), ({"heads": 4.0}, 2)])
def test_heads_are_those_that_the_file_names(tmp_path, kept, heads):
    """Catches: 64 per head in place of what the file says; a number that is none taken as it is."""
    sizes = dict(F, width=128, heads=heads)
    torch.save({"model_state": released_names(made(sizes)), "config": kept}, tmp_path / "x.pyth")
    assert same_outputs(load_released(tmp_path / "x.pyth"), made(sizes))


class Malice:
    """An object whose pickle, if it were executed, would make a file."""
    def __reduce__(self):
        return open, ("executed", "w")


def without(*words):
    return lambda: {name: value for name, value in released_names(made()).items()
                    if not any(word in name for word in words)}


@pytest.mark.parametrize("make, says", [
    (lambda: None, "x.pyth: no such checkpoint"),
    (lambda: b"", "is it cut off"),
    (lambda: b"not weights", "is it cut off"),
    (lambda: {"model_state": {}, "cfg": Malice()},
     r"x.pyth: holds \S*open, which only code can read.*save its tensors alone: torch.save"),
    (lambda: {"cfg": torch.nn.Linear(1, 1)}, "holds torch.nn.modules.linear.Linear, which only"),
    (lambda: {"lr": 3}, "not a checkpoint of train.py, nor one of TimeSformer.*among 0 tensors"),
    (lambda: {"a.weight": torch.ones(2)}, "nor one of TimeSformer"),
    (without("time_embed"), "nor one of TimeSformer.*image models are for --init"),
    (without("temporal_attn"), r"missing or .*blocks.\*.temporal_attn.qkv.weight \(2\).*divided"),
    (without("resblocks.1.ln_1"), r"missing or of another shape: denoiser.*ln_1.weight"),
    (without("model.head.w"), "encoder.head.weight"),
    (lambda: {**released_names(made()), "model.pos_embed": torch.zeros(1, 14, 32)}, "pos_embed"),
    (lambda: {**released_names(made()), "model.pos_embed": torch.zeros(17)}, "IndexError"),
    (lambda: {**released_names(made()), "model.head.weight": torch.tensor(1.)}, "TypeError"),
    (lambda: {**released_names(made()), "model.norm.bias": torch.full((32,), math.nan)},
     "encoder.norm.bias holds NaN or infinity"),
    (lambda: {**released_names(made()), "model.blocks.300.norm1.weight": torch.ones(32)},
     r"missing or of another shape: encoder.blocks.\*.temporal_norm1.weight, "),     # not 301
    (lambda: torch.jit.script(torch.nn.Linear(2, 2)), r"TorchScript.*jit.load\(FILE\).state_dict"),
    (lambda: released_names(made()), "width 32, but how many heads"),
])
def test_what_cannot_be_evaluated_is_one_line(tmp_path, monkeypatch, recwarn, make, says):
    """Catches: a traceback, a pickle executed, weights left random where the file has none, torch's
    warning beside the one line."""
    monkeypatch.chdir(tmp_path)
    content = make()
    recwarn.clear()
    if isinstance(content, bytes):
        Path("x.pyth").write_bytes(content)
    elif isinstance(content, torch.jit.ScriptModule):
        content.save("x.pyth")
    elif content is not None:
        torch.save(content, "x.pyth")
    heads = None if "how many" in says else 2
    with pytest.raises(BadInput, match=says) as caught:
        load_released("x.pyth", heads)
    assert "\n" not in str(caught.value) and not Path("executed").exists() and not recwarn.list


def test_what_the_command_wrote_is_loaded_as_well(tmp_path):
    """Catches: a file of `python weights.py` refused by the documented call, or one of training
    taken for a published one."""
    save_checkpoint(tmp_path / "x.pt", made())
    assert same_outputs(load_released(tmp_path / "x.pt"), made())
    save_checkpoint(tmp_path / "ours.pt", fresh(F))
    with pytest.raises(BadInput, match="ours.pt: a checkpoint of ours; model.load_model reads it"):
        load_released(tmp_path / "ours.pt")


# ---- a start for training ----------------------------------------------------------------------
def fresh(encoder):
    """A new model of ours with this encoder; "dim" is D of the texts."""
    torch.manual_seed(3)
    sizes = {name: value for name, value in encoder.items() if name != "dim"}
    return ProcedureModel(torch.randn(5, 64), sizes, dict(width=32, layers=2, heads=4),
                          "diffusion", .02, (.45, .225))


def init_model(model, source):
    """As train.py does."""
    fill(source, model, open_start(source))


def image_model(library):
    """A small random ViT, what it makes of pictures before its classifier, and its state dict."""
    torch.manual_seed(1)
    if library == "timm":
        model = timm.models.VisionTransformer(img_size=32, patch_size=8, embed_dim=32, depth=2,
                                              num_heads=2, num_classes=10).eval()
        feature = lambda pixels: model.forward_features(pixels)[:, 0]             # noqa: E731
    else:
        model = torchvision.models.VisionTransformer(32, 8, 2, 2, 32, 128, num_classes=10).eval()
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=.2)
        heads, model.heads = model.heads, nn.Identity()
        feature, classifier = model, {f"heads.{k}": v for k, v in heads.state_dict().items()}
        return feature, model.state_dict() | classifier
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=.2)
    return feature, model.state_dict()


@torch.no_grad()
@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_one_frame_without_temporal_parts_is_the_image_model(tmp_path, capsys, library):
    """Catches: queries, keys and values in another order, a norm or an MLP of another block,
    another epsilon, the class token's place left out."""
    feature, state = image_model(library)
    torch.save(state, tmp_path / "vit.pth")
    model = fresh(F | {"frames": 1})
    init_model(model, tmp_path / "vit.pth")
    out = capsys.readouterr().out
    assert "missing in it: encoder.time_embed" in out and "unexpected" not in out
    f, pixels = model.encoder, torch.randn(3, 3, 32, 32)
    for new, old in ((f.blocks[1].temporal_attn, f.blocks[1].attn),
                     (f.blocks[1].temporal_norm1, f.blocks[1].norm1)):
        for name, value in new.state_dict().items():
            assert torch.equal(value, old.state_dict()[name]) and value.abs().max() > 0
    assert f.blocks[0].temporal_fc.weight.any() and not f.blocks[1].temporal_fc.weight.any()
    assert not f.time_embed.any()
    f.blocks[0].temporal_fc.weight.zero_()
    torch.testing.assert_close(f.features(pixels[:, :, None]), feature(pixels), rtol=1e-4,
                               atol=1e-5)


@torch.no_grad()
def test_positions_are_the_nearest_in_the_square_and_in_time(tmp_path, capsys):
    """Catches: the class token's place interpolated, rows and columns mixed up, linear in place of
    nearest, a trained number of frames refused."""
    model, source = fresh(F | {"image": 64, "frames": 6}), made(denoiser=None)
    save_released(tmp_path / "x.pyth", source)
    init_model(model, tmp_path / "x.pyth")
    old, new = source.encoder, model.encoder
    assert torch.equal(new.pos_embed[0, 0], old.pos_embed[0, 0])
    for row in range(8):
        for column in range(8):
            expected = old.pos_embed[0, 1 + row // 2 * 4 + column // 2]
            assert torch.equal(new.pos_embed[0, 1 + row * 8 + column], expected)
    assert torch.equal(new.time_embed[0], old.time_embed[0, [0, 0, 1, 2, 2, 3]])
    assert torch.equal(new.blocks[1].mlp.fc1.weight, old.blocks[1].mlp.fc1.weight)
    assert "another shape" not in capsys.readouterr().out


def test_what_was_not_taken_is_printed(tmp_path, capsys):
    """Catches: a head of other classes copied in part, silence about what begins anew."""
    source = made(dict(F, dim=32), dict(H, dim=32))
    save_released(tmp_path / "x.pyth", source)
    model = fresh(F)
    head = model.encoder.head.weight.clone()
    init_model(model, tmp_path / "x.pyth")
    assert torch.equal(model.encoder.norm.weight, source.encoder.norm.weight)
    assert torch.equal(model.encoder.head.weight, head)
    out = capsys.readouterr().out
    assert re.search(r"x.pyth: \d+ of \d+ parameters taken\n", out)
    assert re.search(r"\n  missing in it: denoiser\.\* \(\d+\)\n", out)
    assert re.search(r"\n  unexpected: denoiser\.\* \(\d+\)\n", out)
    assert re.search(r"\n  of another shape: encoder.head.weight, encoder.head.bias\n", out)


def test_ours_starts_another_run_with_f_and_h(tmp_path):
    """Catches: h left anew; texts of the other run taken over."""
    source, model = fresh(F), fresh(F)
    for parameter in source.parameters():
        nn.init.normal_(parameter)
    source.phrases.mul_(-1)
    save_checkpoint(tmp_path / "checkpoint.pt", source)
    init_model(model, tmp_path)                                            # a run folder
    for (name, a), b in zip(source.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b), name
    assert torch.equal(model.phrases, fresh(F).phrases)


def test_torchvisions_mvit_is_a_start_for_ours(tmp_path, capsys):
    """Catches: names of its file left without the body they belong to."""
    source = MViT(**{name: value for name, value in MVIT.items() if name != "kind"})
    state = source.body.state_dict() | {"head.1.weight": torch.ones(3, 16)}
    save_file(state, tmp_path / "mvit.safetensors")
    model = fresh(MVIT)
    init_model(model, tmp_path / "mvit.safetensors")
    for name, value in model.encoder.body.state_dict().items():
        assert torch.equal(value, source.body.state_dict()[name]), name
    assert "unexpected" not in capsys.readouterr().out


def test_nothing_that_fits_is_an_error(tmp_path):
    """Catches: a run that begins from random weights, as if it had been given none."""
    torch.save({"state_dict": {"layer1.0.conv1.weight": torch.ones(2, 2)}}, tmp_path / "resnet.pth")
    with pytest.raises(BadInput, match="resnet.pth: none of its 1 tensors fits a block of f or h; "
                                       "it has encoder.layer1.0.conv1.weight, needed is encoder.b"):
        init_model(fresh(F), tmp_path / "resnet.pth")


@pytest.mark.parametrize("encoder, sizes", [(MVIT, dict(F, width=16)), (F, dict(F, width=64)),
                                            (F, MVIT | {"width": 16})])
def test_a_projection_alone_is_no_start(tmp_path, encoder, sizes):
    """Catches: a run from random weights because the head, or its bias, happens to fit: TimeSformer
    and MViT-v2 are both 768 wide before it."""
    save_released(tmp_path / "x.pyth", made(encoder, None))
    with pytest.raises(BadInput, match=r"fits a block .*; it has encoder\.\S*blocks.0.norm2.weight "
                                       r"\(|it has encoder.blocks.0.temporal_norm1.weight \("):
        init_model(fresh(sizes), tmp_path / "x.pyth")


def test_numbers_that_are_none_are_refused(tmp_path):
    """Catches: a training that ends at step 1 with advice on the learning rate."""
    state = released_names(made())
    state["model.blocks.1.mlp.fc1.bias"][3] = math.inf
    torch.save(state, tmp_path / "x.pyth")
    with pytest.raises(BadInput, match="encoder.blocks.1.mlp.fc1.bias holds NaN or infinity"):
        init_model(fresh(F), tmp_path / "x.pyth")


@pytest.mark.parametrize("kind", ["joint", "space only"])
def test_a_timesformer_of_another_kind_gets_attention_over_time(tmp_path, kind):
    """Catches: temporal attention left random beside a spatial one that is trained."""
    state = {name: value for name, value in released_names(made(denoiser=None)).items()
             if "temporal" not in name and (kind == "joint" or "time_embed" not in name)}
    torch.save({"model_state": state}, tmp_path / "x.pyth")
    model = fresh(F)
    init_model(model, tmp_path / "x.pyth")
    for block in model.encoder.blocks:
        assert torch.equal(block.temporal_attn.qkv.weight, block.attn.qkv.weight)
    assert torch.equal(block.attn.qkv.weight, state["model.blocks.1.attn.qkv.weight"])
    assert not block.temporal_fc.weight.any()


def test_timm_by_name(monkeypatch, caplog):
    """Catches: another model than the release's, a traceback of the hub without a network, the
    hub's log of its retries beside the one line."""
    _, state = image_model("timm")
    asked = []

    class Downloaded(nn.Module):
        state_dict = staticmethod(lambda: state)
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained: asked.append(
        (name, pretrained)) or Downloaded())
    model = fresh(F)
    init_model(model, Path("timm"))
    assert asked == [("vit_base_patch16_224.orig_in21k_ft_in1k", True)]
    assert torch.equal(model.encoder.blocks[1].attn.qkv.weight, state["blocks.1.attn.qkv.weight"])

    def refuse(name, pretrained):
        logging.getLogger("huggingface_hub.utils").warning("Retrying in 1s [Retry 1/5].")
        raise OSError("no network\nand no file in the cache")
    monkeypatch.setattr(timm, "create_model", refuse)
    with pytest.raises(BadInput, match=r"--init timm: vit_base.*\(OSError: no network\); without a "
                                       "network, download it elsewhere and give the file"):
        init_model(model, Path("timm"))
    assert not caplog.records


def test_the_name_of_the_start_is_one_of_timms():
    """Catches: a name that timm has not."""
    assert timm.models.get_pretrained_cfg(weights.TIMM) is not None


# ---- the commands ------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the embedded world's teacher, barely trained, and published weights."""
    folder, threads = tmp_path_factory.mktemp("weights"), torch.get_num_threads()
    torch.set_num_threads(1)
    make_teacher(folder)
    save_released(folder / "x.pyth", made())
    save_released(folder / "mvit.pyth", made(MVIT, None))
    yield folder
    torch.set_num_threads(threads)


@pytest.fixture
def here(place, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.chdir(place)
    yield place
    signal.signal(signal.SIGTERM, before)


def test_published_weights_are_evaluated(here, capsys):
    """Catches: a row that needs a run of ours, h's samples all alike, another model in the file of
    ours that the same weights were written to."""
    flags = ("--toy-videos", "3", "--device", "cpu")
    call("weights.py", "x.pyth", "ours.pt")
    assert same_outputs(load_model("ours.pt")[0], load_released("x.pyth"))
    torch.load("ours.pt", weights_only=True)
    call("evaluate.py", "--oracle", "3", "--checkpoint", "x.pyth", "--json", "o.json", *flags)
    result = json.loads(Path("o.json").read_text())
    assert result["order"] == "diffusion" and result["evaluated"] == result["listed"] > 0
    assert 1 < result["distinct"] <= 3 and None not in result["top1"].values()
    call("evaluate.py", "--task", "classify", "--checkpoint", "mvit.pyth", "--json", "o.json",
         *flags)
    assert json.loads(Path("o.json").read_text())["top1"]["ours"] is not None
    call("evaluate.py", "--task", "features", "--checkpoint", "ours.pt", "--out", "f.npz", *flags)
    assert "3 videos" in capsys.readouterr().out


@pytest.mark.parametrize("encoder, sizes, says", [
    (dict(F, image=64), H, "--data toy: its pictures are 32 pixels wide, the checkpoint reads 64"),
    (F, None, "big.pyth: trained with --order none"),
])
def test_weights_that_do_not_fit_the_data_are_one_line(here, capsys, encoder, sizes, says):
    """Catches: a shape mismatch deep inside f; forecasts without an h."""
    save_released("big.pyth", made(encoder, sizes))
    capsys.readouterr()
    assert says in fails(capsys, 2, "evaluate.py", "--toy-videos", "2", "--checkpoint", "big.pyth")


@pytest.mark.parametrize("argv, says", [
    (("absent.pyth", "o.pt"), "absent.pyth: no such checkpoint"),
    (("x.pyth", "absent/o.pt"), "--target absent/o.pt: there is no folder absent"),
    (("x.pyth", "./x.pyth"), "x.pyth: is the file to be read; name another for the result"),
    (("x.pyth", "o.pt", "--heads", "0"), "--heads 0: must be at least 1"),
    (("x.pyth",), "the following arguments are required: target"),
])
def test_the_command_ends_with_one_line(here, capsys, argv, says):
    """Catches: a traceback; a folder that is missed after the work is done."""
    assert says in fails(capsys, 2, "weights.py", *argv)


def test_training_starts_from_weights(here, capsys):
    """Catches: --init read and not used, used again on --resume, or by mistake without it."""
    small = dict(image=32, patch=8, frames=4, width=64, depth=2, heads=2, dim=64)
    torch.manual_seed(5)
    save_released("start.pyth", made(small, None))
    flags = (*TINY, *flags_of("epochs", 0.25), "--order", "none", "--sgd-lr", "1e-9",
             "--lr", "1e-9", "--weight-decay", "0")
    call("train.py", *flags, "--init", "start.pyth", "--out", "runs/a")
    assert "start.pyth: 49 of 49 parameters taken" in capsys.readouterr().out
    a, start = load_model("runs/a")[0].encoder, load_released("start.pyth").encoder
    for (name, ours), theirs in zip(a.named_parameters(), start.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4), name
    call("train.py", *flags, "--init", "start.pyth", "--out", "runs/a", "--resume")
    call("train.py", *flags, "--init", "runs/a", "--out", "runs/b")
    b = load_model("runs/b")[0].encoder
    torch.testing.assert_close(b.head.weight, a.head.weight, rtol=1e-3, atol=1e-4)
    assert "--init None: this run has start.pyth" in fails(capsys, 2, "train.py", *flags, "--out",
                                                           "runs/a", "--resume")
    assert "absent.pyth: no such checkpoint" in fails(capsys, 2, "train.py", *flags, "--init",
                                                      "absent.pyth", "--out", "runs/c")


def test_mvit_is_trained_and_evaluated(here, capsys):
    """Catches: --encoder read and not used, a checkpoint that gives another encoder back."""
    call("train.py", *TINY, "--encoder", "mvit", "--out", "runs/mvit")
    model = load_model("runs/mvit")[0]
    assert isinstance(model.encoder, MViT)
    call("evaluate.py", "--task", "classify", "--checkpoint", "runs/mvit", "--toy-videos", "3",
         "--json", "o.json", "--device", "cpu")
    assert json.loads(Path("o.json").read_text())["evaluated"] > 0
    assert "--encoder mvit: --data coin trains h alone" in fails(
        capsys, 2, "train.py", "--encoder", "mvit", "--data", "coin", "--annotations", "a",
        "--features", "b", "--text-embeddings", "c")
