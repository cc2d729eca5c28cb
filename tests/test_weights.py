"""Weights from outside: every layout is read, what does not fit is printed or refused."""
import itertools
import logging
import math
import re
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from commands import TINY, call, fails, measure, randomized
from support.command import BadInput
from test_parity import slow_schedule
from training import pretrain
from weights import load_released
from weights.checkpoint import (TIMM, build_model, fill, load_model, open_start,
                                save_checkpoint)
from weights.mvit import MViT

D = 64
F = dict(image=32, patch=8, width=32, frames=4, depth=2, heads=2)           # fits the toy's clips
MVIT = dict(kind="mvit", image=32, frames=4, width=8, heads=2, stages=[1, 2], kv_stride=8)


def published(encoder=F, layers=3, task=None, classes=(), dim=D):
    """A small published model, every parameter random, and its arguments; layers: of h, or None."""
    arguments = dict(
        encoder=encoder, order="diffusion" if layers else "none", tau=.02,
        denoiser=layers and dict(layers=layers, heads=8, clips=9),
        alpha_bar=layers and slow_schedule(layers),
        pixels=(.45, .225), task=task, classes=list(classes))
    return randomized(build_model(torch.zeros(0, dim), **arguments).eval(), 0.3), arguments


def make_ours(order="diffusion", D=64, encoder=F, pixels=(.4, .25), **more):
    """A random model as pre-training leaves it, on frames or on features, and its arguments."""
    torch.manual_seed(3)
    arguments = dict(encoder=encoder, denoiser=dict(layers=2, heads=2), order=order, tau=.05,
                     pixels=pixels if encoder else None, **more)
    return build_model(torch.randn(12, D) + 1, **arguments).eval(), arguments


SLOWFAST = (("pos_encoding.class_token", "cls_token"), ("conv_proj", "patch_embed.proj"),
            ("attn.project.0", "attn.proj"), ("pool_q.pool", "pool_q"), ("pool_k.pool", "pool_k"),
            ("pool_v.pool", "pool_v"), ("pool_q.norm_act.0", "norm_q"),
            ("pool_k.norm_act.0", "norm_k"), ("pool_v.norm_act.0", "norm_v"), ("mlp.0", "mlp.fc1"),
            ("mlp.3", "mlp.fc2"), ("project", "proj"), ("encoder.body.", "video_encoder."))
RELEASE = (("encoder.", ""), ("denoiser.", "order_tfm."), (".role.", ".type_embedding."),
           (".position.", ".temporalEmbedding."), (".transformer.", ".temporalModelling."),
           (".level.", ".time_mlp."), ("time_mlp.2", "time_mlp.3"), ("time_mlp.0", "time_mlp.1"))


def released_names(model):
    """Its parameters under the released names, with what else is in a pre-trained file."""
    state = {"model.order_tfm.pad_embedding.weight": torch.zeros(1, 64),
             "model.text_model.ln_final.weight": torch.zeros(5)}
    for name, parameter in model.named_parameters():
        value = parameter.detach()
        if name.startswith("classifier."):
            heads = ["head_cls", "head_v", "head_n"][len(model.classes) > 1:]
            state |= {f"model.{head}.{name[11:]}": part.clone()
                      for head, part in zip(heads, value.split(model.classes))}
            continue
        for ours, theirs in SLOWFAST if name.startswith("encoder.body.") else RELEASE:
            name = name.replace(ours, theirs)
        state["model." + name] = value.view(1, 1, -1) if name.endswith("cls_token") else value
    return state


def save_released(path, model):
    """A file as the release writes it, with the number of heads in addition."""
    torch.save({"epoch": 3, "model_state": released_names(model), "optimizer_state": {"state": {}},
                "cfg": "MVIT:\n  NUM_HEADS: 1\n", "config": {"heads": 2}}, path)


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
    """Catches: a released name given to another layer, strides or distances of another stage; a
    classifier left in, two projections."""
    model, _ = published(MVIT, None)
    save_released(tmp_path / "x.pyth", model)
    w = {name.removeprefix("model.video_encoder."): value
         for name, value in released_names(model).items() if "video_encoder" in name}
    clips = torch.randn(2, 3, 4, 32, 32)
    slow = slow_mvit(w, clips, MVIT["stages"], MVIT["heads"], MVIT["kv_stride"])
    f = load_released(tmp_path / "x.pyth").encoder
    assert (f.class_token(clips) - slow).norm() < 1e-5 * slow.norm()
    x = functional.normalize(slow @ model.encoder.head.weight.T + model.encoder.head.bias, dim=-1)
    torch.testing.assert_close(f(clips), x, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("classes, layers, task", [
    ([7], None, "classify"), ([5, 6], None, "classify"), ([7], 3, "forecast"),
    ([180], 3, "activity")])
def test_fine_tuned_heads(tmp_path, classes, layers, task):
    """Catches: head_cls taken for the projection, verbs and nouns swapped, tau added or missing."""
    model, _ = published(F, layers, task, classes)
    save_released(tmp_path / "x.pyth", model)
    loaded, x, w = load_released(tmp_path / "x.pyth"), torch.randn(3, D), released_names(model)
    assert loaded.task == task and loaded.classes == classes
    heads = ["head_cls"] if len(classes) == 1 else ["head_v", "head_n"]
    for head, log_p in zip(heads, loaded.classify(x), strict=True):
        logits = x @ w[f"model.{head}.weight"].T + w[f"model.{head}.bias"]
        torch.testing.assert_close(log_p, (logits / (1 if layers else .02)).log_softmax(-1))


@pytest.mark.parametrize("key, prefix, kind", [
    ("model_state", "model.", "torch"), ("state_dict", "module.model.", "torch"),
    ("model", "", "torch"), ("model", "_orig_mod.module.model.", "torch"),
    (None, "model.", "half"), (None, "model.", "safetensors")])
def test_every_layout_gives_the_same_model(tmp_path, capsys, key, prefix, kind):
    """Catches: a prefix left on, weights left random, a model in train mode."""
    model, _ = published()
    if kind == "half":                                     # what float16 can hold
        model.load_state_dict({name: value.half() for name, value in model.state_dict().items()})
    state = {prefix + name.removeprefix("model."): value.half() if kind == "half" else value
             for name, value in released_names(model).items()}
    if kind == "safetensors":
        save_file(state, tmp_path / "x.safetensors", {"format": "pt"})
    else:
        torch.save({"epoch": 1, key: state, "cfg": "A: 1"} if key else state, tmp_path / "x.pyth")
    loaded = load_released(next(tmp_path.iterdir()), heads=2)
    assert not loaded.training
    for (name, ours), theirs in zip(loaded.state_dict().items(), model.state_dict().values(),
                                    strict=True):
        assert torch.equal(ours, theirs), name
    out = capsys.readouterr().out
    assert out.endswith(f"{len(list(model.parameters()))} parameters taken\n")


WIDE = dict(image=32, patch=16, width=128, frames=6, depth=3, heads=2)


@pytest.mark.parametrize("sizes, dim, layers, config", [
    (dict(image=24, patch=6, width=40, frames=2, depth=1, heads=5), 48, 2, {"heads": 5}),
    (WIDE, 16, 4, {}), (WIDE, 9, None, {"heads": "4"}), (WIDE, 9, None, {"heads": -1}),
    (WIDE, 9, None, {"heads": True}),
    (WIDE | {"heads": 4}, 9, None, {"heads": 4}),
    (MVIT | {"width": 12, "stages": [1, 1, 2], "frames": 6}, 9, None, {})])
def test_sizes_are_read_from_the_file(tmp_path, capsys, sizes, dim, layers, config):
    """Catches: sizes of the paper taken for granted; another schedule; another heads' source."""
    model, expected = published(sizes, layers, dim=dim)
    torch.save({"model_state": released_names(model), "config": config}, tmp_path / "x.pyth")
    loaded, arguments, _ = load_model(tmp_path / "x.pyth")
    for name, value in arguments.items():
        assert value == expected[name] or value == pytest.approx(expected[name]), name
    note = "does not give the number of attention heads: 2, each 64 wide" in capsys.readouterr().out
    assert note == (sizes is WIDE)
    clips = torch.randn(2, 3, sizes["frames"], sizes["image"], sizes["image"])
    assert torch.equal(loaded.encoder(clips), model.encoder(clips)) and len(loaded.phrases) == 0
    _, arguments, _ = load_model(tmp_path / "x.pyth", heads=8)
    assert arguments["encoder"]["heads"] == (2 if "kind" in sizes else 8)


class Malice:
    """An object whose pickle, if it were executed, would make a file."""
    def __reduce__(self):
        return open, ("executed", "w")


def without(word):
    return lambda: {name: value for name, value in released_names(published()[0]).items()
                    if word not in name}


def changed(name, value):
    return lambda: released_names(published()[0]) | {f"model.{name}": value}


@pytest.mark.parametrize("make, message", [
    (lambda: {"model_state": {}, "cfg": Malice()}, r"holds \S*open, which only code can read"),
    (lambda: {"lr": 3}, "not a checkpoint of train.py, nor one of TimeSformer.*among 0 tensors"),
    (without("time_embed"), "nor one of TimeSformer.*image models are for --init"),
    (without("temporal_attn"), r"missing or .*blocks.\*.temporal_attn.qkv.weight \(2\).*divided"),
    (without("resblocks.1.ln_1"), r"missing or of another shape: denoiser.*ln_1.weight"),
    (changed("pos_embed", torch.zeros(17)), "IndexError"),
    (changed("norm.bias", torch.ones(31)), "missing or of another shape: encoder.norm.bias;"),
    (changed("norm.bias", torch.full((32,), math.nan)), "encoder.norm.bias holds NaN, infinity"),
    (changed("blocks.300.norm1.weight", torch.ones(32)), r"missing.*blocks.\*.temporal_norm1.w"),
    (changed("module.norm.bias", torch.ones(32)), "holds norm.bias under two names"),
    (lambda: torch.jit.script(torch.nn.Linear(2, 2)), "TorchScript.*state_dict"),
    (lambda: released_names(published()[0]), "width 32, how many heads")])
def test_what_cannot_be_evaluated_is_one_line(tmp_path, monkeypatch, recwarn, make, message):
    """Catches: a traceback, a pickle executed, weights left random, torch's warning."""
    monkeypatch.chdir(tmp_path)
    content = make()
    recwarn.clear()
    if isinstance(content, torch.jit.ScriptModule):
        content.save("x.pyth")
    else:
        torch.save(content, "x.pyth")
    with pytest.raises(BadInput, match=message) as caught:
        load_released("x.pyth", None if "how many" in message else 2)
    assert "\n" not in str(caught.value) and not Path("executed").exists() and not recwarn.list


def init_model(model, source):
    """As train.py does."""
    fill(source, model, open_start(source))


def image_model(library):
    """A small random ViT: what it makes of pictures before its classifier, and its state dict."""
    model = (timm.models.VisionTransformer(img_size=32, patch_size=8, embed_dim=32, depth=2,
                                           num_heads=2, num_classes=10) if library == "timm" else
             torchvision.models.VisionTransformer(32, 8, 2, 2, 32, 128, num_classes=10)).eval()
    state = dict(randomized(model, .2).state_dict())
    if library == "timm":
        return lambda pixels: model.forward_features(pixels)[:, 0], state
    model.heads = nn.Identity()
    return model, state


@torch.no_grad()
@pytest.mark.parametrize("library, prefix", [("timm", "model."), ("torchvision", "")])
def test_one_frame_without_temporal_parts_is_the_image_model(tmp_path, capsys, library, prefix):
    """Catches: queries, keys and values exchanged, another block's norm, temporal parts random."""
    feature, state = image_model(library)
    torch.save({prefix + name: value for name, value in state.items()}, tmp_path / "vit.pth")
    model, _ = make_ours(encoder=F | {"frames": 1})
    init_model(model, tmp_path / "vit.pth")
    out = capsys.readouterr().out
    assert "missing in it: encoder.time_embed" in out and "unexpected" not in out
    assert "another shape" not in out                                  # the classifier of images
    f, pixels = model.encoder, torch.randn(3, 3, 32, 32)
    for new, old in ((f.blocks[1].temporal_attn, f.blocks[1].attn),
                     (f.blocks[1].temporal_norm1, f.blocks[1].norm1)):
        for name, value in new.state_dict().items():
            assert torch.equal(value, old.state_dict()[name]) and value.abs().max() > 0
    assert f.blocks[0].temporal_fc.weight.any() and not f.blocks[1].temporal_fc.weight.any()
    assert not f.time_embed.any()
    f.blocks[0].temporal_fc.weight.zero_()
    torch.testing.assert_close(f.class_token(pixels[:, :, None]), feature(pixels), rtol=1e-4,
                               atol=1e-5)


@torch.no_grad()
def test_positions_are_the_nearest_in_the_square_and_in_time(tmp_path, capsys):
    """Catches: the class token's place interpolated, rows and columns mixed up, linear."""
    model, _ = make_ours(encoder=F | dict(image=64, frames=6))
    source, _ = published(layers=None)
    save_released(tmp_path / "x.pyth", source)
    init_model(model, tmp_path / "x.pyth")
    old, new = source.encoder, model.encoder
    assert torch.equal(new.pos_embed[0, 0], old.pos_embed[0, 0])
    square = old.pos_embed[0, 1:].unflatten(0, (4, 4))
    square = square.repeat_interleave(2, 0).repeat_interleave(2, 1)                # (8, 8, W)
    assert torch.equal(new.pos_embed[0, 1:], square.flatten(0, 1))
    assert torch.equal(new.time_embed[0], old.time_embed[0, [0, 0, 1, 2, 2, 3]])
    assert torch.equal(new.blocks[1].mlp.fc1.weight, old.blocks[1].mlp.fc1.weight)
    assert "another shape" not in capsys.readouterr().out


def test_what_was_not_taken_is_printed(tmp_path, capsys):
    """Catches: a head of other classes copied in part, silence about what starts from random."""
    for layers, order, line in ((None, "diffusion", "missing in it"), (3, "none", "unexpected")):
        (source, _), (model, _) = published(layers=layers, dim=32), make_ours(order)
        save_released(tmp_path / "x.pyth", source)
        head = model.encoder.head.weight.clone()
        init_model(model, tmp_path / "x.pyth")
        assert torch.equal(model.encoder.norm.weight, source.encoder.norm.weight)
        assert torch.equal(model.encoder.head.weight, head)
        assert re.search(r"x.pyth: \d+ of \d+ parameters taken\n"
                         rf"  {line}: denoiser\.[^\n]*resblocks\.\*[^\n]*\(\d\)[^\n]*\n"
                         r"  of another shape: encoder.head.weight, encoder.head.bias\n$",
                         capsys.readouterr().out)


@pytest.mark.parametrize("encoder", [F, MVIT])
def test_a_start_that_fits_is_taken_whole(tmp_path, capsys, encoder):
    """Catches: h of another run left random; its texts taken over; torchvision's MViT not found."""
    (source, arguments), (model, _) = make_ours(encoder=encoder), make_ours(encoder=encoder)
    randomized(source, 1).phrases.mul_(-1)
    if encoder is F:
        save_checkpoint(tmp_path / "checkpoint.pt", source, arguments)
        init_model(model, tmp_path)                                        # a run folder
    else:
        save_file(source.encoder.body.state_dict() | {"head.1.weight": torch.ones(3, 16)},
                  tmp_path / "mvit.safetensors")
        init_model(model, tmp_path / "mvit.safetensors")
    ours, theirs = (model, source) if encoder is F else (model.encoder.body, source.encoder.body)
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b), name
    assert torch.equal(model.phrases, make_ours(encoder=encoder)[0].phrases)
    assert "unexpected" not in capsys.readouterr().out


@pytest.mark.parametrize("encoder, sizes", [(MVIT, dict(F, width=16)), (F, dict(F, width=64)),
                                            (F, MVIT | {"width": 16}), (None, F)])
def test_no_block_that_fits_is_an_error(tmp_path, encoder, sizes):
    """Catches: a run from random weights, also where the head or its bias happens to fit."""
    if encoder:
        save_released(tmp_path / "x.pyth", published(encoder, None)[0])
    else:
        torch.save({"state_dict": {"layer1.0.conv1.weight": torch.ones(2, 2)}}, tmp_path / "x.pyth")
    with pytest.raises(BadInput, match=r"x.pyth: none of its \d+ tensors fits a block of f or h; "
                                       r"it has encoder\.(\S*blocks.0.\w*norm[12].weight \(|layer1."
                                       r"0.conv1.weight \(2, 2\), needed is encoder.b)"):
        init_model(make_ours(encoder=sizes)[0], tmp_path / "x.pyth")


def test_timm_by_name(monkeypatch, caplog):
    """Catches: another model than the release's; the hub's traceback or log without a network."""
    assert TIMM == "vit_base_patch16_224.orig_in21k_ft_in1k"
    assert timm.models.get_pretrained_cfg(TIMM) is not None
    _, state = image_model("timm")
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda *_, **__: None)
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained: {
        (TIMM, True): SimpleNamespace(state_dict=lambda: state)}[name, pretrained])
    model, _ = make_ours()
    init_model(model, Path("timm"))
    assert torch.equal(model.encoder.blocks[1].attn.qkv.weight, state["blocks.1.attn.qkv.weight"])

    def refuse(name, pretrained):
        logging.getLogger("huggingface_hub.utils").warning("Retrying in 1s [Retry 1/5].")
        raise OSError("no network\nand no file in the cache")
    monkeypatch.setattr(timm, "create_model", refuse)
    with pytest.raises(BadInput, match=r"--init timm: vit_base.*\(OSError: no network and .*\); "
                                       "without a network, download it elsewhere and give the"):
        init_model(model, Path("timm"))
    assert not caplog.records


def test_published_weights_are_evaluated(here, capsys):
    """Catches: a row that needs a run of ours, h's samples all alike; a shape mismatch inside f;
    features at another stride, or without their class token."""
    flags = ("--toy-videos", "3", "--device", "cpu")
    save_released("x.pyth", published()[0])
    save_released("mvit.pyth", published(MVIT, None)[0])
    result = measure("--oracle", "3", "--checkpoint", "x.pyth", *flags)
    assert result["order"] == "diffusion" and result["evaluated"] == result["listed"] > 0
    assert 1 < result["distinct"] <= 3 and None not in result["top1"].values()
    infill = measure("--task", "infill", "--checkpoint", "x.pyth", *flags)
    assert None not in infill["by_position"]
    classify = measure("--task", "classify", "--checkpoint", "mvit.pyth", *flags)
    assert classify["top1"]["ours"] is not None
    call("evaluate.py", "--task", "features", "--checkpoint", "x.pyth", "--stride", "8", "--out",
         "f.npz", *flags)
    assert "3 videos" in capsys.readouterr().out
    a = np.load("f.npz")
    first = a["video"] == "test_00000"
    assert np.allclose(np.diff(a["start"][first])[1:-1], 8) and a["stride"] == 8
    assert len(a["embedding"]) == len(a["encoder_cls"]) == len(a["video"])
    save_released("large.pyth", published(F | {"image": 64})[0])
    flags = ("--checkpoint", "large.pyth", *flags)
    for argv, message in (
            (("--task", "infill", "--checkpoint", "mvit.pyth"), "trained with --order none"),
            (("--checkpoint", "mvit.pyth"), "trained with --order none"),
            ((), "pictures are 32 pixels wide, the checkpoint reads 64")):
        assert message in fails(capsys, 2, "evaluate.py", *flags, *argv)


def test_training_starts_from_weights(here, capsys, monkeypatch):
    """Catches: --init read and not used, used again on --resume, or by mistake without it."""
    monkeypatch.setattr(pretrain, "SGD_LR", 1e-9)
    monkeypatch.setitem(pretrain.SIZES["small"], "decay", 0)
    save_released("start.pyth", published(pretrain.SIZES["small"]["encoder"], None)[0])
    flags = (*TINY, "--order", "none", "--lr", "1e-9")
    call("train.py", *flags, "--init", "start.pyth", "--out", "a")
    assert "start.pyth: 49 of 49 parameters taken" in capsys.readouterr().out
    a, start = load_model("a")[0].encoder, load_released("start.pyth").encoder
    for (name, ours), theirs in zip(a.named_parameters(), start.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4), name
    call("train.py", *flags, "--init", "start.pyth", "--out", "a", "--resume")
    line = fails(capsys, 2, "train.py", *flags, "--out", "a", "--resume")
    assert "--init None: a/config.json is of another run, with start.pyth" in line


def test_mvit_is_trained(here):
    """Catches: --encoder read and not used, a checkpoint that gives another encoder back."""
    call("train.py", *TINY, "--encoder", "mvit", "--order", "none", "--out", "mvit")
    assert isinstance(load_model("mvit")[0].encoder, MViT)
