"""The checkpoint of ProcedureModel: the same model comes back, or one line says why not."""
import pytest
import torch
from torch.nn import functional

from model import ProcedureModel, load_model, save_checkpoint
from support.command import BadInput

K, D, N, TAU = 6, 8, 5, 0.1
H = dict(width=16, layers=1, heads=2, clips=N)
F = dict(image=8, patch=4, frames=2, width=8, depth=1, heads=2)


def build(order="diffusion", encoder=None):
    """A tiny model with every parameter random."""
    torch.manual_seed(0)
    model = ProcedureModel(torch.randn(K, D) + 1, encoder, H if order != "none" else None, order,
                           TAU, (.4, .25) if encoder else None)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def outputs(model, encoder):
    """Embeddings of two clips, and the forecasts of one video."""
    generator = torch.Generator().manual_seed(1)
    clips = (torch.randint(256, (2, 2, 3, 8, 8), dtype=torch.uint8, generator=generator)
             if encoder else torch.randn(2, D, generator=generator))
    x = functional.normalize(torch.randn(1, N, D, generator=generator), dim=-1)
    with torch.no_grad():
        if model.order == "none":
            return [model.encode(clips)]
        return [model.encode(clips),
                model.forecast(x, torch.tensor([[True, True, False, True, False]]),
                               torch.tensor([[2]]), torch.randn(1, 3, D, generator=generator))]


@pytest.mark.parametrize("order, encoder", [("diffusion", None), ("diffusion", F), ("mask", F),
                                            ("none", F)])
def test_checkpoint_round_trip(tmp_path, order, encoder):
    """Catches: an argument or a buffer that is not saved, a type that weights_only refuses, a
    loaded model in train mode, rows of `more` lost, a .part file left."""
    model = build(order, encoder)
    save_checkpoint(tmp_path / "checkpoint.pt", model, step=7, optimizer={"lr": 0.1})
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]
    torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    for path in (tmp_path, tmp_path / "checkpoint.pt"):                     # run folder or file
        loaded, content = load_model(path)
        assert content["step"] == 7 and content["optimizer"] == {"lr": 0.1}
        assert not loaded.training and loaded.order == order and loaded.tau == TAU
        before, after = model.state_dict(), loaded.state_dict()
        assert list(before) == list(after)
        assert all(torch.equal(before[name], after[name]) for name in before)
        for ours, theirs in zip(outputs(model, encoder), outputs(loaded, encoder), strict=True):
            assert torch.equal(ours, theirs)


def with_arguments(**changes):
    """A checkpoint whose weights were made with other arguments than it says."""
    model = build()
    return {"arguments": {**model.arguments, **changes}, "model": model.state_dict()}


@pytest.mark.parametrize("make, says", [
    (lambda: None, "no such checkpoint"),
    (lambda: b"not a checkpoint", "cannot be read as a checkpoint"),
    (lambda: {"state_dict": {"a": torch.ones(1)}}, "not a checkpoint of train.py"),
    (lambda: [1, 2], "not a checkpoint of train.py"),
    (lambda: with_arguments(denoiser={**H, "width": 32}), "do not fit this code"),
    (lambda: with_arguments(order="none"), "do not fit this code"),
    (lambda: with_arguments(denoiser=dict(depth=2)), "do not fit this code"),
    (lambda: {"arguments": {}, "model": {}}, "do not fit this code"),
], ids=["absent", "text", "foreign", "list", "width", "order", "argument", "hollow"])
def test_a_checkpoint_that_is_not_ours_ends_with_one_line(tmp_path, make, says):
    """Catches: a traceback of torch for a wrong file; a message without the file's name."""
    path, content = tmp_path / "checkpoint.pt", make()
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(BadInput, match=says) as raised:
        load_model(path)
    assert str(path) in str(raised.value) and len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize("make, says", [
    (lambda: b"", "is it cut off"),
    (lambda: with_arguments(denoiser={**H, "width": 32}), r"size mismatch for denoiser\."),
    (lambda: with_arguments(denoiser={**H, "heads": 3}), "do not fit"),
    (lambda: {"arguments": build().arguments, "model": {"phrases": 3}}, "do not fit"),
], ids=["empty", "width", "heads", "phrases"])
def test_a_checkpoint_that_does_not_fit_says_what_does_not(tmp_path, make, says):
    """Catches: an IndexError or AttributeError for an empty or a foreign file; a message that ends
    where torch begins to say which weight is of another shape."""
    test_a_checkpoint_that_is_not_ours_ends_with_one_line(tmp_path, make, says)


@pytest.mark.parametrize("share", [0.99, 0.5, 0.01])
def test_a_checkpoint_that_was_cut_off_says_so(tmp_path, share):
    """Catches: half a download or a full disk shown as a traceback."""
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, build())
    whole = path.read_bytes()
    path.write_bytes(whole[:int(share * len(whole))])
    with pytest.raises(BadInput, match="is it cut off") as raised:
        load_model(path)
    assert str(path) in str(raised.value) and len(str(raised.value).splitlines()) == 1
