"""Checkpoints of ours: the same model comes back, or one line explains why not."""
from types import NoneType

import pytest
import torch
from torch import nn
from torch.nn import functional

from commands import flip, randomized
from denoiser import Denoiser
from encoder import TimeSformer
from model import ProcedureModel
from support.command import BadInput
from weights.checkpoint import build_model, load_model, open_start, save_checkpoint
from weights.mvit import MViT
from weights.teacher import open_teacher

K, D, N, TAU = 6, 16, 5, 0.1
H = dict(layers=1, heads=2, clips=N)
F = dict(image=32, patch=16, frames=2, width=8, depth=1, heads=2)
VIT = dict(kind="mvit", image=32, frames=2, seconds=None, width=4, heads=1, stages=[1, 1],
           kv_stride=4)


def build(encoder=None, order="diffusion", task=None, classes=()):
    """A tiny model with every parameter random, and its arguments."""
    torch.manual_seed(0)
    arguments = {"encoder": encoder, "denoiser": H, "order": order, "tau": TAU,
                 "pixels": (0.4, 0.25) if encoder else None,
                 "alpha_bar": [0.75, 0.5, 0.25], "task": task, "classes": list(classes),
                 "witness": "add butter"}
    model = randomized(build_model(torch.randn(K, D) + 1, **arguments).eval(), 0.3)
    model.standardize.update(torch.randn(20, D) + 1)
    return model, arguments


def outputs(model):
    """Embeddings of two clips, and the forecasts of one video."""
    generator = torch.Generator().manual_seed(1)
    clips = (torch.randint(256, (2, 2, 3, 32, 32), dtype=torch.uint8, generator=generator)
             if model.encoder else torch.randn(2, D, generator=generator))
    x = functional.normalize(torch.randn(1, N, D, generator=generator), dim=-1)
    with torch.no_grad():
        forecasts = [] if model.denoiser is None else [
            model.forecast(x, torch.tensor([[True, True, False, True, False]]), torch.tensor([[2]]),
                           torch.randn(1, 3, 1, D, generator=generator))]
        return [model.encode(clips), *forecasts]


@pytest.mark.parametrize("order, encoder, task, classes, parts", [
    ("diffusion", F, None, [], (TimeSformer, Denoiser, NoneType)),
    ("mask", None, "forecast", [7], (NoneType, Denoiser, nn.Linear)),
    ("none", VIT, "activity", [4], (MViT, Denoiser, nn.Linear)),
    ("none", F, "classify", [3, 5], (TimeSformer, NoneType, nn.Linear))])
def test_checkpoint_round_trip(tmp_path, order, encoder, task, classes, parts):
    """Catches: a buffer that is not saved, train mode, rows of `more` lost, h lost or added."""
    model, arguments = build(encoder, order, task, classes)
    save_checkpoint(tmp_path / "checkpoint.pt", model, arguments, step=7, optimizer={"lr": 0.1})
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]
    for path in (tmp_path, tmp_path / "checkpoint.pt"):                     # run folder or file
        loaded, given, content = load_model(path)
        assert given == arguments and content["step"] == 7 and content["optimizer"] == {"lr": 0.1}
        assert type(loaded) is ProcedureModel and not loaded.training
        assert tuple(map(type, (loaded.encoder, loaded.denoiser, loaded.classifier))) == parts
        assert loaded.alpha_bar.tolist() == arguments["alpha_bar"]
        assert all(getattr(loaded, name) == value for name, value in arguments.items()
                   if name not in ("encoder", "denoiser", "alpha_bar"))
        before, after = model.state_dict(), loaded.state_dict()
        assert list(before) == list(after)
        assert all(torch.equal(before[name], after[name]) for name in before)
        for ours, theirs in zip(outputs(model), outputs(loaded), strict=True):
            assert torch.equal(ours, theirs)


def test_one_bit_is_enough_to_refuse_a_file(tmp_path):
    """Catches: wrong weights that are read: torch.load does not look at its checksums."""
    model, arguments = build(F)
    path = tmp_path / "checkpoint.pt"
    for write in (lambda: save_checkpoint(path, model, arguments),
                  lambda: torch.save({"model_state": model.state_dict()}, path)):
        write()
        whole = path.read_bytes()
        for position in [whole.index(one.numpy().tobytes()[:16]) + 7 for one in (
                model.encoder.patch_embed.proj.weight.detach(), model.phrases)]:
            path.write_bytes(whole)
            flip(path, position)
            for read in (load_model, open_start, lambda path: open_teacher("RN50", str(path))):
                with pytest.raises(BadInput, match="checkpoint.pt: is damaged"):
                    read(path)


@pytest.mark.parametrize("key", ["model", "model_state"])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64,
                                  torch.float8_e4m3fn])
def test_any_float_is_read_as_float32(tmp_path, kind, key):
    """Catches: a buffer that stays half, a type without arithmetic; infinity of a float64, squares
    that leave float32. key: a file of ours, or a published one."""
    model, arguments = build(F)
    state = {name: w.to(kind) if w.is_floating_point() else w
             for name, w in model.state_dict().items()}
    torch.save({"arguments": arguments, key: state}, tmp_path / "checkpoint.pt")
    loaded = load_model(tmp_path / "checkpoint.pt", heads=2)[0].state_dict()
    for name, value in (loaded if key == "model" else dict(model.encoder.named_parameters(
            prefix="encoder"))).items():
        assert torch.equal(loaded[name], state[name].float()) and loaded[name].dtype == value.dtype
    for value in (1e300, 1e25) if kind == torch.float64 else ():
        state["encoder.norm.bias"].fill_(value)
        torch.save({key: state, "arguments": arguments}, tmp_path / "checkpoint.pt")
        with pytest.raises(BadInput, match="too large for float32"):
            load_model(tmp_path / "checkpoint.pt", heads=2)
