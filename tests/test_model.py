"""f and h against slow versions, a token at a time; put together; what inference makes of them."""
import math
import shutil
from types import SimpleNamespace

import pytest
import torch
from slow import draw, randomized, slow_h, slow_match, slow_timesformer

import model as method
import weights
from denoiser import Denoiser
from diffusion import sample
from encoder import TimeSformer
from model import Config
from pseudo_labels import Teacher
from support.arguments import compile_modules, mixed_precision
from toy.teacher import build_teacher
from weights.checkpoint import build as build_model

K, N, D, TAU, SCALE = 6, 5, 16, 0.1, 3.0
ALPHA_BAR = [0.9, 0.6, 0.2]
PHRASES = draw(K, D, seed=5).float() + 1
TINY = dict(image=12, patch=4, frames=3, width=8, depth=3, heads=2, dim=5)      # P = 9


# --- f and h, each alone ---
@torch.no_grad()
def test_divided_attention_equals_one_token_at_a_time():
    """Catches: patches, frames or heads mixed, a residual or norm left out, another eps or GELU."""
    model, clips = randomized(TimeSformer(**TINY).double(), 0.5), draw(2, 3, 3, 12, 12)
    weights = model.state_dict()
    slow = [slow_timesformer(clip, weights, patch=4, heads=2, depth=3) for clip in clips]
    torch.testing.assert_close(model.class_token(clips), torch.stack([cls for cls, _ in slow]))
    torch.testing.assert_close(model(clips), torch.stack([x for _, x in slow]))


def test_embeddings_have_length_1_under_autocast():
    """Catches: the length taken in bfloat16, where it is off by a thousandth."""
    with torch.autocast("cpu", torch.bfloat16):
        x = TimeSformer(**TINY)(draw(2, 3, 3, 12, 12).float())
    assert x.dtype == torch.float32
    torch.testing.assert_close(x.norm(dim=-1), torch.ones(2), rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_matrix_products_of_a_gpu_are_in_bfloat16():
    """Catches: float16, in which small gradients become 0; another type on a CPU."""
    with mixed_precision(torch.device("cuda")):
        assert torch.get_autocast_dtype("cuda") == torch.bfloat16
    with mixed_precision(torch.device("cpu")):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_default_new_weights_start_as_an_image_model_except_block_0():
    """Catches: temporal_fc not zero (or zero in block 0 too), biases or standard deviation off."""
    torch.manual_seed(0)
    model = TimeSformer(image=32, patch=8, frames=4, width=64, depth=3, heads=2, dim=64)
    at_zero = {name for name, p in model.named_parameters() if not p.any()}
    biases = {name for name, p in model.named_parameters() if name.endswith("bias")}
    assert at_zero == biases | {"blocks.1.temporal_fc.weight", "blocks.2.temporal_fc.weight"}
    assert model.time_embed.std().item() == pytest.approx(0.3, rel=0.2)
    for name in ("blocks.0.temporal_fc.weight", "blocks.2.mlp.fc1.weight", "pos_embed",
                 "patch_embed.proj.weight", "head.weight"):
        assert model.get_parameter(name).std().item() == pytest.approx(0.02, rel=0.1), name


@pytest.mark.usefixtures("float64")                    # of its level and its mask, too
def test_eq5_h_equals_a_transformer_token_by_token():
    """Catches: heads or rows mixed, x_j, a hidden clip or padding read, a part more or less;
    another period of the level's sinusoids; x_j^t written into z; NaN if no clip is seen."""
    N, D = 5, 24                                       # D / 8 = 3 sinusoids: k / 2 is not k
    h = randomized(Denoiser(D, layers=2, heads=2, clips=N + 1), 0.3)
    zt, z = draw(3, D, seed=1), draw(3, N, D)
    j, t = torch.tensor([1, 3, 0]), torch.tensor([3, 0, 2])
    observed = torch.tensor([[1, 0, 0, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    kept = z.clone()                                   # row 0 hides another clip, row 1 has padding
    with torch.no_grad():
        fast = h(zt, z, observed, j, t)
        for b in range(3):
            slow = slow_h(h.state_dict(), 2, zt[b], z[b], observed[b], int(j[b]), int(t[b]))
            torch.testing.assert_close(fast[b], slow)
    assert torch.equal(z, kept)
    assert h(zt, z, torch.zeros_like(observed), j, t).isfinite().all()


# --- Put together ---
def build(order="diffusion"):
    """A tiny model with every parameter random."""
    f = dict(kind="timesformer", image=8, patch=4, frames=2, width=8, depth=1, heads=2)
    h = dict(layers=2, heads=2, clips=N)
    config = Config(f, h, order, TAU, SCALE, ALPHA_BAR, (.4, .25))
    return randomized(build_model(config, PHRASES), 0.3)


def some_clips(C):
    return torch.randint(256, (C, 2, 3, 8, 8), dtype=torch.uint8,
                         generator=torch.Generator().manual_seed(0))


def slow_f(model, clip):
    """x_i of one clip (F, 3, H, W) uint8, pixel by pixel: (D,)."""
    pixels = torch.empty(3, 2, 8, 8)
    for t, c in ((t, c) for t in range(2) for c in range(3)):
        pixels[c, t] = (clip[t, c].float() / 255 - .4) / .25
    return model.encoder(pixels[None])[0]


@torch.no_grad()
@pytest.mark.parametrize("j", [(0, 0), (2, 1), (4, 3)], ids=["past", "present", "future"])
def test_eq1_f_h_and_the_matching_put_together(j):
    """Catches: pixels not normalized, or normalized before; rows or samples that mix, x_j read; a
    scale left out."""
    model, y = build(), torch.arange(10).view(2, 5) % K
    clips, noise = some_clips(9), torch.stack([torch.zeros(2, D), draw(2, D).float()], 1)
    x = torch.zeros(2, N, D)
    encoded = model(clips)
    with pytest.raises(ValueError, match="clips are torch.float32; expected uint8 pixels"):
        model(clips.float())
    x[0], x[1, :4] = encoded[:5], encoded[5:]                      # of row 1, the last is padding
    observed = torch.ones(2, N, dtype=torch.bool)
    observed[1, 4] = observed[0, j[0]] = observed[1, j[1]] = False
    x_hat = model.forecast(x, observed, torch.tensor(j), noise)                    # (B, Q, D)
    log_p, log_q = model.match(x), model.match(x_hat, 3 * PHRASES.flip(0))         # other texts
    for b, part in enumerate(clips.split([5, 4])):
        slow_x = torch.stack([slow_f(model, clip) for clip in part])               # (n, D)
        torch.testing.assert_close(x[b, :len(part)], slow_x, rtol=1e-4, atol=1e-5)
        padded = torch.cat([slow_x, torch.full((N - len(part), D), 7.0)])
        for q in range(2):
            z = SCALE * padded[None]
            z[0, j[b]] = 99.0                                      # h is not told x_j
            slow = sample(model.denoiser, z, observed[b:b + 1], torch.tensor(j[b:b + 1]),
                          noise[b:b + 1, q], torch.tensor(ALPHA_BAR))[0] / SCALE
            torch.testing.assert_close(x_hat[b, q], slow, rtol=1e-3, atol=1e-4)
            found, p = log_q[b, q, K - 1 - y[b, j[b]]].item(), 1.0                 # p(Y | X)
            for i, row in enumerate(slow_x):
                p *= slow_match(slow if i == j[b] else row, PHRASES, TAU)[y[b, i]]
                found += log_p[b, i, y[b, i]].item() if i != j[b] else 0.0
            assert found == pytest.approx(math.log(p), rel=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("order", ["diffusion", "mask"])
def test_histories_of_any_length_are_forecast_as_if_alone(order):
    """Catches: padding read, a clip not; an h of the mask that reads the noise, at
    another level than the noisiest, or asks twice."""
    model, x, noise = build(order), draw(3, 4, D).float(), draw(3, 2, D, seed=1).float()
    n, asked = torch.tensor([4, 1, 2]), []
    x_hat = model.forecast_next(x, noise, n)
    model.denoiser.register_forward_pre_hook(lambda h, given: asked.append(given))
    for b, k in enumerate(n):
        alone = model.forecast_next(x[b:b + 1, :k], noise[b:b + 1])
        torch.testing.assert_close(x_hat[b:b + 1], alone, rtol=1e-4, atol=1e-5)
        assert (asked[0][3] == k).all() and len(asked) == 3
        if order == "mask":
            zt, t = torch.zeros_like(asked[0][0]), torch.full_like(asked[0][4], 2)
            plain = Denoiser.forward(model.denoiser, zt, *asked[0][1:4], t)
            torch.testing.assert_close(SCALE * alone[0], plain)
        asked.clear()
    assert torch.equal(x_hat, model.forecast_next(x, 0 * noise, n)) == (order == "mask")


@torch.no_grad()
def test_how_many_clips_f_takes_at_once_changes_no_result(trained, monkeypatch):
    """Catches: more pictures than the memory is for, or far fewer; clips lost between two parts."""
    monkeypatch.setattr(torch.cuda, "get_device_properties",
                        lambda device: SimpleNamespace(total_memory=12e9))
    for frames, size in (8, 224), (4, 32), (3, 100), (300, 224):
        f = SimpleNamespace(frames=frames, image=size)
        fits = 96 * 224 ** 2 // (frames * size ** 2)       # half the memory, half the pictures
        assert method.clips_at_once(f, None, torch.device("cuda")) == max(fits, 1)
    model, sizes = weights.load(trained / "diffusion"), []
    clips = torch.randint(256, (32, 4, 3, 32, 32), dtype=torch.uint8)
    whole = model.encode(clips)                                                # (32, D)
    model.encoder.register_forward_pre_hook(lambda f, given: sizes.append(len(given[0])))
    monkeypatch.setattr(method, "PICTURES", 1)             # 12 clips of 4 x 32 x 32 pixels
    for size in None, 9:
        torch.testing.assert_close(method.encode_parts(model, clips, size), whole)
    assert sizes == [12, 12, 8, 9, 9, 9, 5]


@torch.no_grad()
def test_f_h_and_the_pictures_of_the_teacher_are_compiled_whole(monkeypatch):
    """Catches: a part that stays as it is, as it is not called as a module; a graph that breaks;
    names of a state_dict that change; another number of clips that fails."""
    graphs, compile_module = [], torch.nn.Module.compile

    def note(graph, inputs):
        graphs.append(graph)
        return graph.forward
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(torch.nn.Module, "compile",
                        lambda module: compile_module(module, backend=note, fullgraph=True))
    model, teacher = build("mask"), Teacher(*build_teacher(), .4, .25)
    x, noise, names = draw(2, 4, D).float(), draw(2, 2, D).float(), list(model.state_dict())

    def results():
        """What each of the three makes."""
        yield model(some_clips(9))
        yield model(some_clips(4))
        yield model.forecast_next(x, noise)
        yield teacher.encode_frames(some_clips(3)[:, 0])
    before, counts = list(results()), []
    compile_modules(torch.device("cpu"), model.encoder, model.denoiser, teacher)
    for one, other in zip(results(), before, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        counts.append(len(graphs))
    assert 0 < counts[0] <= counts[1] < counts[2] < counts[3]
    assert list(model.state_dict()) == names

