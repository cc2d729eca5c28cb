"""h against a slow Transformer written one token at a time, and who may see whom."""
import math

import pytest
import torch

from denoiser import Denoiser

N, D, C, W, HEADS = 5, 4, 6, 8, 2


@pytest.fixture(autouse=True)
def float64():
    """The level's sinusoids are made in the default type, so that is what is set."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def tiny():
    """A tiny h with every parameter random, so that nothing is hidden by the zeros of its start."""
    torch.manual_seed(0)
    h = Denoiser(dim=D, context=C, width=W, layers=2, heads=HEADS, clips=N)
    for parameter in h.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return h


def question(B=3, Q=4):
    """context, observed, xt, j, t: some clips hidden, none of them all, j always hidden."""
    generator = torch.Generator().manual_seed(1)
    context = torch.randn(B, N, C, generator=generator)
    xt = torch.randn(B, Q, D, generator=generator)
    j = torch.tensor([[1], [4], [0]])[:B]
    observed = torch.tensor([[1, 0, 1, 1, 0], [1, 1, 0, 1, 0], [0, 1, 1, 1, 1]]).bool()[:B]
    t = torch.tensor([[3, 0, 2, 3], [1, 1, 0, 3], [2, 3, 0, 1]])[:B, :Q]
    return context, observed, xt, j, t


def ask(h, context, observed, xt, j, t):
    """h of Eq. 5 with all it is given at once."""
    return h(h.remember(context, observed), observed, xt, j, t)


# The slow version: one group of queries of one video, token by token.

def norm(x, layer):
    x = (x - x.mean()) / torch.sqrt(((x - x.mean()) ** 2).mean() + 1e-5)
    return x * layer.weight + layer.bias


def linear(x, layer):
    return layer.weight @ x + layer.bias


def slow_attention(block, tokens, positions, query, seen):
    """What `query` takes from the tokens in `seen`, head by head."""
    size, parts = W // HEADS, []
    qkv = [linear(norm(token, block.ln_1), block.qkv) for token in tokens]
    for head in range(HEADS):
        q, k, v = ([row[part * W + head * size:part * W + (head + 1) * size] for row in qkv]
                   for part in range(3))
        score = {s: q[query] @ k[s] / math.sqrt(size)
                 + block.distance[head, positions[s] - positions[query] + N - 1] for s in seen}
        total = sum(value.exp() for value in score.values())
        parts.append(sum(score[s].exp() / total * v[s] for s in seen))
    return linear(torch.cat(parts), block.proj)


def slow_h(h, context, observed, xt, j, t):
    """x_hat of one group: context (N, C), observed (N,), xt (P, D), j and t [int] -> (P, D)."""
    tokens = [linear(row, h.read_context) + h.role.weight[0] for row in context]
    for point, level in zip(xt, t):
        angle = [level / 100 ** (k / 8) for k in range(8)]
        wave = torch.tensor([math.sin(a) for a in angle] + [math.cos(a) for a in angle])
        first, _, second = h.level
        level = linear(torch.nn.functional.gelu(linear(wave, first)), second)
        tokens.append(linear(point, h.read_noisy) + h.role.weight[1] + level)
    positions, clips = [*range(N), *j], {i for i in range(N) if observed[i]}
    for block in h.blocks:
        mixed = []
        for query in range(len(tokens)):
            group = {query} if query < N else {*range(N, len(tokens))}
            x = tokens[query] + slow_attention(block, tokens, positions, query,
                                               sorted(clips | group))
            y = linear(norm(x, block.ln_2), block.mlp[0])
            mixed.append(x + linear(y / (1 + (-1.702 * y).exp()), block.mlp[2]))
        tokens = mixed
    return torch.stack([linear(norm(token, h.ln), h.out) for token in tokens[N:]])


@pytest.mark.parametrize("missing", [[[1], [4], [0]], [[1, 4], [2, 4], [0, 2]]])
def test_eq5_h_equals_a_transformer_token_by_token(missing):
    """Catches: the scale of attention, heads mixed up, the distance's sign or offset, a hidden clip
    or another group seen, a clip of the own group not seen, the level or the role left out,
    post-norm for pre-norm, rows of a batch mixed, queries ordered by clip and not by group."""
    h, (context, observed, xt, _, t), j = tiny(), question(), torch.tensor(missing)
    observed = observed & ~torch.nn.functional.one_hot(j, N).bool().any(1)
    P = j.shape[1]
    with torch.no_grad():
        fast = ask(h, context, observed, xt, j, t)
        assert fast.shape == xt.shape
        for b in range(3):
            for q in range(0, 4, P):
                slow = slow_h(h, context[b], observed[b], xt[b, q:q + P], missing[b],
                              t[b, q:q + P].tolist())
                torch.testing.assert_close(fast[b, q:q + P], slow)


def test_a_window_of_fewer_clips_is_the_same_as_one_with_padding():
    """Catches: attention to padding by way of the number of keys."""
    h, (context, observed, xt, j, t) = tiny(), question()
    short = ask(h, context[:1, :4], observed[:1, :4], xt[:1], j[:1], t[:1])    # clip 4 is hidden
    torch.testing.assert_close(short, ask(h, context[:1], observed[:1], xt[:1], j[:1], t[:1]))


def test_without_any_observed_clip_the_result_is_finite():
    """Catches: a softmax over no key at all, where nothing may be read."""
    h, (context, observed, xt, j, t) = tiny(), question()
    out = ask(h, context, torch.zeros_like(observed), xt, j, t)
    out.sum().backward()
    assert out.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in h.parameters())


def test_h_starts_at_zero_and_gets_gradients_there():
    """Catches: a start at random; zeros so deep that no gradient comes out of them."""
    h, (context, observed, xt, j, t) = Denoiser(D, C, W, 1, HEADS, N), question()
    out = ask(h, context, observed, xt, j, t)
    assert (out == 0).all()
    (out - 1).pow(2).sum().backward()
    assert h.out.weight.grad.abs().max() > 0


def test_wrong_shapes_are_named():
    """Catches: broadcasting; an index error deep inside for a clip too many; a part of a group."""
    h, (context, observed, xt, j, t) = tiny(), question()
    memory = h.remember(context, observed)
    with pytest.raises(ValueError, match=f"{N + 1} clips per video.*at most {N}"):
        h.remember(torch.zeros(3, N + 1, C), torch.ones(3, N + 1).bool())
    with pytest.raises(ValueError, match=r"observed \(3, 1, 5\)"):
        h.remember(context, observed[:, None])
    with pytest.raises(ValueError, match=r"j \(3,\).*do not fit observed \(3, 5\)"):
        h(memory, observed, xt, j[:, 0], t)
    with pytest.raises(ValueError, match=r"t \(4,\)"):
        h(memory, observed, xt, j, t[0])
    with pytest.raises(ValueError, match="groups of P queries"):       # 4 queries, 3 clips missing
        h(memory, observed, xt, j.expand(3, 3), t)
    with pytest.raises(ValueError, match="width 9 is not a multiple of heads 2"):
        Denoiser(D, C, 9, 1, 2, N)


def test_dropout_acts_in_training_alone():
    """Catches: forecasts that differ from call to call, or dropout that does nothing."""
    h, asked = Denoiser(D, C, W, 2, HEADS, N, dropout=0.5), question()
    h.load_state_dict(tiny().state_dict())
    torch.testing.assert_close(ask(h.eval(), *asked), ask(tiny(), *asked))
    assert (ask(h.train(), *asked) - ask(tiny(), *asked)).abs().max() > 1e-3
