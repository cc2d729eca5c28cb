"""Slow, obvious versions of f, h and Eqs. 5 to 10, a token or clip at a time; random tensors."""
import math

import torch


def draw(*shape, seed=0):
    """Standard normal numbers, float64."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def randomized(model, std):
    """The model with every parameter random: no bias is 0, and no gain of a LayerNorm is 1."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return model


# --- Parts of a Transformer: x (width,), and tokens, a list of such vectors ---
def slow_norm(x, weights, name, eps=1e-6):
    x = (x - x.mean()) / torch.sqrt(((x - x.mean()) ** 2).mean() + eps)
    return x * weights[name + ".weight"] + weights[name + ".bias"]


def slow_linear(x, weights, name):
    return weights[name + ".weight"] @ x + weights[name + ".bias"]


def slow_gelu(x):
    return x * 0.5 * (1 + torch.erf(x / 2 ** 0.5))


def slow_attention(tokens, weights, name, heads):
    """Every token attends to all of the list, head by head."""
    size = len(tokens[0]) // heads
    qkv = [slow_linear(token, weights, name + ".qkv").view(3, heads, size) for token in tokens]
    result = []
    for q, _, _ in qkv:
        parts = []
        for head in range(heads):
            scores = [(q[head] @ k[head] / size ** 0.5).exp() for _, k, _ in qkv]
            parts.append(sum(score / sum(scores) * v[head]
                             for score, (_, _, v) in zip(scores, qkv, strict=True)))
        result.append(slow_linear(torch.cat(parts), weights, name + ".proj"))
    return result


# --- f: TimeSformer ---
def slow_mlp(x, weights, name):
    hidden = slow_linear(slow_norm(x, weights, name + "norm2"), weights, name + "mlp.fc1")
    return x + slow_linear(slow_gelu(hidden), weights, name + "mlp.fc2")


def slow_block(cls, z, weights, name, heads):
    """One block. z[p, t] is the token of patch p in frame t, cls the class token."""
    P, F = 1 + max(p for p, _ in z), 1 + max(t for _, t in z)
    z = dict(z)
    for p in range(P):                                     # time: one patch, all frames
        inputs = [slow_norm(z[p, t], weights, name + "temporal_norm1") for t in range(F)]
        mixed = slow_attention(inputs, weights, name + "temporal_attn", heads)
        for t in range(F):
            z[p, t] = z[p, t] + slow_linear(mixed[t], weights, name + "temporal_fc")
    results = []
    for t in range(F):                                     # space: class token, one frame
        tokens = [cls] + [z[p, t] for p in range(P)]
        inputs = [slow_norm(token, weights, name + "norm1") for token in tokens]
        result, *mixed = slow_attention(inputs, weights, name + "attn", heads)
        results.append(result)
        for p in range(P):
            z[p, t] = z[p, t] + mixed[p]
    cls = cls + sum(results) / F
    z = {place: slow_mlp(token, weights, name) for place, token in z.items()}
    return slow_mlp(cls, weights, name), z


def slow_timesformer(clip, weights, patch, heads, depth):
    """One clip (3, F, H, W) -> (class token after the last norm, embedding of length 1)."""
    _, F, H, W = clip.shape
    z, corners = {}, [(top, left) for top in range(0, H, patch) for left in range(0, W, patch)]
    for t in range(F):
        for p, (top, left) in enumerate(corners):
            pixels = clip[:, t, top:top + patch, left:left + patch]
            token = torch.stack([(kernel * pixels).sum()
                                 for kernel in weights["patch_embed.proj.weight"]])
            token = token + weights["patch_embed.proj.bias"]
            z[p, t] = token + weights["pos_embed"][0, 1 + p] + weights["time_embed"][0, t]
    cls = weights["cls_token"][0, 0] + weights["pos_embed"][0, 0]
    for i in range(depth):
        cls, z = slow_block(cls, z, weights, f"blocks.{i}.", heads)
    cls = slow_norm(cls, weights, "norm")
    x = slow_linear(cls, weights, "head")
    return cls, x / (x * x).sum().sqrt()


# --- h: CLIP's text Transformer ---
def slow_h(weights, heads, zt, z, observed, j, t):
    """z_hat (D,) of one row, token by token: zt (D,), z (N, D), observed (N,), j and t int."""
    w = {name.replace("in_proj_", "qkv.").replace("out_proj", "proj"): value
         for name, value in weights.items()}
    half, tokens = z.shape[1] // 8, {}
    angle = [t / 10000 ** (k / (half - 1)) for k in range(half)]
    wave = z.new_tensor([math.sin(a) for a in angle] + [math.cos(a) for a in angle])
    level = slow_linear(slow_gelu(slow_linear(wave, w, "level.0")), w, "level.2")
    for i in range(len(z)):
        if i == j or observed[i]:                          # no token for padding
            x = zt if i == j else z[i]
            tokens[i] = x + w["role.weight"][int(i == j)] + w["position.weight"][i] + level
    for block in range(sum(name.endswith("ln_1.weight") for name in w)):
        block = f"transformer.resblocks.{block}."
        inputs = [slow_norm(x, w, block + "ln_1", 1e-5) for x in tokens.values()]
        for i, mixed in zip(tokens, slow_attention(inputs, w, block + "attn", heads), strict=True):
            x = tokens[i] + mixed
            y = slow_linear(slow_norm(x, w, block + "ln_2", 1e-5), w, block + "mlp.c_fc")
            tokens[i] = x + slow_linear(y / (1 + (-1.702 * y).exp()), w, block + "mlp.c_proj")
    return tokens[j]


# --- Eqs. 5 to 10 ---
def slow_match(x, phrases, tau):
    """Eq. 6 for one x (D,): softmax of x^T y / (tau |x| |y|), K probabilities in float64."""
    x, phrases = x.double(), phrases.double()
    scores = (phrases @ x / (phrases.norm(dim=1) * x.norm()) / tau).exp()
    return scores / scores.sum()


def slow_entropy(target, p):
    """H(p', p) of one clip, each (K,)."""
    return -(target @ p.log())


def slow_objective(model, v, targets, noise, t, observed, perm):
    """L_XE, L_MSE and L_MC of each video, and how often f's and h's likeliest phrase is the
    teacher's, (B, 5): v (B, N, ..), the other tensors as in train.py; without h, 0 for what is h's.
    The mask is zeros at the noisiest level."""
    N, scale, terms = v.shape[1], model.scale, []
    for b, video in enumerate(v):
        x = [model.encoder(clip[None])[0] for clip in video]                   # x_i = f(v_i)
        p = [slow_match(clip, model.phrases, model.tau) for clip in x]
        xe = mse = mc = torch.zeros(())
        of_f = of_h = 0.0
        for j in range(N):                             # each clip in turn is missing
            likeliest = targets[b, j].argmax()
            of_f += float(p[j].argmax() == likeliest) / N
            xe = xe + sum(slow_entropy(targets[b, i], p[i])
                          for i in range(N) if i != j) / (N - 1) / N           # Eq. 8
            if model.denoiser is None:
                continue
            z = torch.full((N, len(x[0])), 99.0)
            for i in range(N):
                if observed[b, j, i]:
                    z[i] = scale * x[perm[b, j, i]]
            x0, level = x[j].detach(), int(t[b, j])
            a = float(model.alpha_bar[level])
            zt = math.sqrt(a) * scale * x0 + math.sqrt(1 - a) * noise[b, j]    # Eq. 2
            if model.config.order == "mask":
                zt, level = 0 * zt, len(model.alpha_bar) - 1
            x_hat = slow_h(dict(model.denoiser.named_parameters()), model.denoiser.heads, zt, z,
                           observed[b, j], j, level) / scale                   # Eq. 5
            mse = mse + ((x_hat - x0) ** 2).sum() / N                          # Eq. 9
            q = slow_match(x_hat, model.phrases, model.tau)
            mc = mc + slow_entropy(targets[b, j], q) / N
            of_h += float(q.argmax() == likeliest) / N
        terms.append(torch.stack([xe, mse, mc, torch.tensor(of_f), torch.tensor(of_h)]))
    return torch.stack(terms)
