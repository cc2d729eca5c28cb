"""Noise the missing clip, and sample it back: the diffusion process of the method.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.1 (Eqs. 2-5) and 3.3 (Eq. 11).

    paper        here          shape       meaning
    x_j^0        z0            (B, P, D)   the missing clips as clean points; the paper's P is 1
    x_j^t        zt            (B, Q, D)   the same after noising to level t
    -            alpha_bar     (T,)        running product of alpha_t (Eq. 2): share of the signal's
                                           variance that is left at level t
    h            predict       callable    (zt, t) -> x_hat_j^0 and its clean point z_hat (Eq. 5)
    -            noise         (B, Q, D)   standard normal; zeros for the approximate inference
    y^{1:K}      phrases       (K, D)      text embeddings of the phrase pool
    B videos, Q queries, T = 4 levels, K phrases, D embedding.

Eq. 2 is applied in a fixed affine map of the embeddings, z = A (y - mean), in which the K texts
have mean zero and mean squared norm 1. A clean point is the mean of these z under a distribution
over the texts. One schedule then means the same at any D and for any texts; without the map, the
large common part of CLIP's embeddings hides the differences between texts.

Where this file leaves the paper:
  - The affine map above. The chain noises z_hat again, not x_hat: the clean point under
    p(y | x_hat), whose norm is as in training.
  - x_j^T is drawn with the variance of the noise at level T in training, not with 1. Forecasts use
    less (model.py, KAPPA).
  - h is also trained on x_j^T = 0, the first input of the approximate inference.
  - t counts from 0, so level t is the paper's t + 1.
"""
import torch
from torch.nn import functional


def noise_levels(levels=4, first=3.0, last=0.3):
    """The schedule: alpha_bar (T,), with signal-to-noise ratios in geometric steps.

        sqrt(alpha_bar_t / (1 - alpha_bar_t)) = first, ..., last

    T = 4 gives alpha_bar = .900, .660, .295, .083: at the last level the signal is almost gone, so
    that x_j^T drawn at inference looks as in training. The paper gives no numbers; the last level
    of the released code has .960.
    """
    steps = torch.arange(levels, dtype=torch.float64) / max(levels - 1, 1)
    ratio = first * (last / first) ** steps                      # (T,)
    return (ratio ** 2 / (1 + ratio ** 2)).float()


def affine_map(phrases, floor=0.01):
    """The mean (D,) and the symmetric matrix A (D, D) of z = A (y - mean).

    y are the phrases (K, D), normalized here. Along each principal axis they are divided by the
    square root of their standard deviation ("half whitened"), which is at least `floor` of the
    largest. Then all are scaled so that the K points z_k have mean squared norm 1.
    """
    y = functional.normalize(phrases, dim=-1).double()
    mean = y.mean(0)
    variance, axes = torch.linalg.eigh((y - mean).T @ (y - mean) / len(y))     # (D,), (D, D)
    std = variance.clamp(min=0).sqrt()
    A = axes * std.clamp(min=floor * std.max()).rsqrt() @ axes.T
    A = A / ((y - mean) @ A).pow(2).sum(-1).mean().sqrt()
    return mean.float(), A.float()


def add_noise(z0, noise, alpha_bar):
    """Draw x_j^t from q(x_j^t | x_j^0): Eq. 2 up to level t, in closed form.

        x_j^t = sqrt(alpha_bar_t) x_j^0 + sqrt(1 - alpha_bar_t) noise

    Args:
        z0:        (..., D). Clean points.
        noise:     (..., D), the same shape. Standard normal, or zeros.
        alpha_bar: (...) that broadcasts to z0 without its last axis. Running product of alpha.
    Returns: (..., D), a new tensor.
    Raises:  ValueError if noise and z0 differ in shape (broadcasting would hide it).
    Source:  Ho et al. 2020 (arXiv:2006.11239), Eq. 4.
    """
    if noise.shape != z0.shape:
        raise ValueError(f"noise is {tuple(noise.shape)}, z0 is {tuple(z0.shape)}; they must match")
    signal = alpha_bar.unsqueeze(-1)
    return signal.sqrt() * z0 + (1 - signal).sqrt() * noise


def training_queries(z0, t, noise, alpha_bar):
    """Inputs of h in training for each missing clip: x_j^t at a level t, and x_j^T = 0.

    The second is where approximate inference starts. Clips that are missing together have their own
    levels, so that h learns to read one that is nearly clean while it denoises another (as in
    diffusion forcing, arXiv:2407.01392).

    Args:    z0, noise (B, P, D) of P clips that are missing together, noise standard normal;
             t (B, P) int64; alpha_bar (T,).
    Returns: zt (B, 2 P, D) and its levels (B, 2 P): the noised clips, then as many zeros.
    """
    zt = add_noise(z0, noise, alpha_bar[t])                                    # (B, P, D)
    last = torch.full_like(t, len(alpha_bar) - 1)
    return torch.cat([zt, torch.zeros_like(zt)], 1), torch.cat([t, last], 1)


def skip_scale(alpha_bar):
    """c_skip (T,): the weight of x_j^t itself in the logits of the texts.

    By Eq. 2, up to a constant,

        log q(x_j^t | z_k) = c_skip <x_j^t, z_k> - alpha_bar_t / (2 (1 - alpha_bar_t)) |z_k|^2

    and only the first term is used. The second has a standard deviation over COIN's texts of 1.2
    nats at the lowest level, .26 at the next. With the first added to its output, h is left with
    log p(k | {x_i}). Without it h hardly reads x_j^t at D = 512, and all samples are alike.
    """
    return alpha_bar.sqrt() / (1 - alpha_bar)


def sample(predict, noise, alpha_bar, together=1):
    """Denoise x_j^T step by step (Sec. 3.3): Q futures of each video in one pass.

        x_j^T = sqrt(1 - alpha_bar_T) noise;   x_hat, z_hat = h(x_j^t, {x_i}, t)
        x_j^{t-1} = sqrt(alpha_bar_{t-1}) z_hat + sqrt(1 - alpha_bar_{t-1}) noise

    The same noise is used at every level, as in the paper. Of P clips that are missing together the
    first is denoised while the others wait at level T, then the second, which sees the result of
    the first, and so on.

    Args:
        predict:   callable, zt (B, Q, D) and t (B, Q) int64 -> x_hat (B, Q, D), the prediction as
                   an embedding, and z_hat (B, Q, D), the clean point that is noised again.
        noise:     (B, Q, D) standard normal, or scaled down; zeros for the approximate inference.
        alpha_bar: (T,).
        together:  P; the queries come in groups of P.
    Returns: x_hat (B, Q, D) of the last step.
    """
    zt = (1 - alpha_bar[-1]).sqrt() * noise                                    # (B, Q, D)
    t = torch.full(noise.shape[:2], len(alpha_bar) - 1, device=noise.device)
    member = torch.arange(noise.shape[1], device=noise.device) % together      # (Q,)
    for p in range(together):
        current = member == p
        for level in reversed(range(len(alpha_bar))):
            t = t.masked_fill(current, level)
            x_hat, z_hat = predict(zt, t)
            if level > 0:
                less = add_noise(z_hat, noise, alpha_bar[level - 1])
                zt = torch.where(current[:, None], less, zt)
    return x_hat


def expectation(log_p):
    """Eq. 11: the mean over Q Monte Carlo samples of p(y | x_j): (B, Q, K) log -> (B, K)."""
    return log_p.exp().mean(1)
