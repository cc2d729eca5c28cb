"""h against a slow Transformer written one token at a time, and which clips it reads."""
import math

import pytest
import torch

from commands import randomized
from denoiser import Denoiser
from test_encoder import slow_attention, slow_gelu, slow_linear, slow_norm

N, D, HEADS = 5, 16, 2


@pytest.fixture(autouse=True)
def float64():
    """The level's sinusoids are made in the default type, so that is what is set."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def tiny(**more):
    """A tiny h with every parameter random: no bias is 0, no gain of a LayerNorm is 1."""
    return randomized(Denoiser(D, layers=2, heads=HEADS, clips=N + 1, **more), 0.3)


def question(*j):
    """zt, z, observed, j, t of three rows: more than one clip hidden, padding, one and more j."""
    generator, j = torch.Generator().manual_seed(1), torch.tensor(j)
    zt, z = (torch.randn(3, count, D, generator=generator) for count in (j.shape[1], N))
    observed = torch.tensor([[1, 1, 0, 1, 1], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]).bool()
    return zt, z, observed.scatter(1, j, False), j, torch.tensor([3, 0, 2])


def slow_h(w, heads, zt, z, observed, j, t):
    """z_hat of one row (P, D), token by token, from h's tensors w; zt (P, D), z (N, D)."""
    w = {name.replace("in_proj_", "qkv.").replace("out_proj", "proj"): v for name, v in w.items()}
    half, tokens = z.shape[1] // 8, {}
    angle = [t / 10000 ** (k / (half - 1)) for k in range(half)]
    wave = z.new_tensor([math.sin(a) for a in angle] + [math.cos(a) for a in angle])
    level = slow_linear(slow_gelu(slow_linear(wave, w, "level.0")), w, "level.2")
    for i in range(len(z)):
        if i in j or observed[i]:                      # no token for other clips
            x = zt[j.index(i)] if i in j else z[i]
            tokens[i] = x + w["role.weight"][int(i in j)] + w["position.weight"][i] + level
    for block in range(sum(name.endswith("ln_1.weight") for name in w)):
        block = f"transformer.resblocks.{block}."
        inputs = [slow_norm(x, w, block + "ln_1", 1e-5) for x in tokens.values()]
        for i, mixed in zip(tokens, slow_attention(inputs, w, block + "attn", heads)):
            x = tokens[i] + mixed
            y = slow_linear(slow_norm(x, w, block + "ln_2", 1e-5), w, block + "mlp.c_fc")
            tokens[i] = x + slow_linear(y / (1 + (-1.702 * y).exp()), w, block + "mlp.c_proj")
    return torch.stack([tokens[i] for i in j])


@pytest.mark.parametrize("j", [[[1], [3], [0]], [[1, 4], [2, 3], [1, 0]]], ids=["one", "together"])
def test_eq5_h_equals_a_transformer_token_by_token(j):
    """Catches: heads or rows mixed, x_j, a hidden clip or padding read, a part more or less."""
    h, (zt, z, observed, j, t) = tiny(), question(*j)
    with torch.no_grad():
        fast = h(zt, z, observed, j, t)
        for b in range(3):
            slow = slow_h(h.state_dict(), HEADS, zt[b], z[b], observed[b], j[b].tolist(), int(t[b]))
            torch.testing.assert_close(fast[b], slow)


def test_a_missing_clip_is_never_observed_and_all_may_be_hidden():
    """Catches: x_j read where it is called observed; padding that matters; NaN where none is."""
    h, (zt, z, observed, j, t) = tiny(), question([1], [3], [0])
    out = h(zt, z, observed, j, t)
    torch.testing.assert_close(h(zt, z, observed.scatter(1, j, True), j, t), out)
    torch.testing.assert_close(h(zt[1:2], z[1:2, :4], observed[1:2, :4], j[1:2], t[1:2]), out[1:2])
    assert h(zt, z, torch.zeros_like(observed), j, t).isfinite().all()


def test_dropout_acts_in_training_alone():
    """Catches: forecasts that differ from call to call, or dropout that does nothing."""
    h, asked = tiny(dropout=0.5), question([1], [3], [0])
    torch.testing.assert_close(h.eval()(*asked), tiny()(*asked))
    assert (h.train()(*asked) - tiny()(*asked)).abs().max() > 1e-3


def test_wrong_shapes_are_named():
    """Catches: broadcasting; an index error for a clip too many; a width that cannot be split."""
    h, (zt, z, observed, j, t) = tiny(), question([1], [3], [0])
    with pytest.raises(ValueError, match=f"{N + 2} clips per row.*at most {N + 1}"):
        h(zt, torch.zeros(3, N + 2, D), torch.ones(3, N + 2).bool(), j, t)
    for wrong in ((zt[:, 0], z, observed, j, t), (zt, z, observed[:1], j, t),
                  (zt, z, observed, j[:1], t), (zt, z, observed, j, t[:, None])):
        with pytest.raises(ValueError, match=r"do not fit z \(3, 5, 16\); need \(B, P, D\)"):
            h(*wrong)
    for dim, heads in ((33, 2), (24, 2), (16, 3)):
        with pytest.raises(ValueError, match=f"width {dim}: not a multiple of heads {heads} and"):
            Denoiser(dim, 1, heads, N)
