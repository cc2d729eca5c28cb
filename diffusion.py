"""Noise the missing clip, and sample it back: the diffusion process of the method.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.1 (Eqs. 2-5) and 3.3 (Eq. 11).

    paper          here        shape       meaning
    x_j^0          z0          (..., D)    the missing clip, scaled: z = scale * x
    x_j^t          zt          (..., D)    the same after noising to level t
    {x_i}, i != j  z           (B, N, D)   the clips of each row, scaled
    -              alpha_bar   (T,)        running product of alpha_t (Eq. 2): share of the signal's
                                           variance that is left at level t
    j              j           (B,)        the place of the missing clip, 0 to N - 1
    {i != j}       observed    (B, N)      bool: which clips h may read
    h              h           module      (zt, z, observed, j, t) -> z_hat (Eq. 5): denoiser.py
    x_hat_j^0      z_hat       (B, D)      what h predicts, scaled
    -              noise       (..., D)    standard normal; zeros for the approximate inference
    B rows of N clips (nine in training), one of them missing; T = 4 levels, D embedding; Q samples,
    K texts.

The paper leaves open how large an embedding is relative to the noise, and the constants alpha_t.
Both are set here, by `scale_of` and `noise_levels`; docs/differences.md shows their effect.
`released_levels` are those of the authors' code, whose scale is 1. Levels count from 0: level t is
the paper's t + 1.
"""
import math

import torch

CLIPS = 9                 # N: clips of a video that h reads, the missing one included
LEVELS = 4                # T
NOISE = 2.0, 0.3          # first and last of `noise_levels`; it can decide whether order teaches f


def scale_of(dim):
    """The scale of z = scale * x.

    Embeddings of f have length 1 and lie in a cone, so their coordinates vary by about
    1 / (2 sqrt(D)) around their mean. Noise of variance 1 would bury them. With 2 sqrt(D) they
    vary by about 1, as latent diffusion scales its latents, and x_j^T is drawn from N(0, I).
    """
    return 2 * math.sqrt(dim)


def noise_levels(dim, first=NOISE[0], last=NOISE[1], levels=LEVELS):
    """The schedule: alpha_bar (T,), with signal-to-noise ratios that fall geometrically.

        sqrt(alpha_bar_t / (1 - alpha_bar_t)) = first / sqrt(D), ..., last / sqrt(D)

    (The alpha_t of Eq. 2 are alpha_bar_t / alpha_bar_{t-1}, and alpha_1 = alpha_bar_1.)
    A level says how far the noise moves a clip among the others. Two embeddings are about
    sqrt(2 D) apart in z, and noise along the line between them has standard deviation 1. So after
    noising they are sqrt(2) * first, ..., sqrt(2) * last standard deviations apart, at any D. How
    hard it is to name the clip depends also on how many texts there are, and how close they lie.
    At the first level it must already be hard, or h needs no context there. At the last one the
    signal is almost gone, so a draw from N(0, I) looks like x_j^T in training. With D = 64,
    alpha_bar is .059, .017, .0049, .0014. The paper gives T = 4, but no alpha_t.
    """
    steps = torch.arange(levels, dtype=torch.float64) / max(levels - 1, 1)
    ratio = first * (last / first) ** steps / math.sqrt(dim)     # (T,)
    return (ratio ** 2 / (1 + ratio ** 2)).float()


def released_levels(levels=LEVELS):
    """alpha_bar (T,) of the authors' code, for any D: alpha_t falls linearly over the levels.

    Even the last alpha_bar is .96: in training, x_j^T is nearly the whole clip plus noise of
    deviation .2. Samples start from noise of deviation 1 and no clip, which h has never read.
    """
    return torch.linspace(1 - 1e-4, 1 - 0.02, levels).cumprod(0)


def add_noise(z0, noise, alpha_bar):
    """Draw x_j^t given x_j^0: Eq. 2 up to level t, in closed form.

        x_j^t = sqrt(alpha_bar_t) x_j^0 + sqrt(1 - alpha_bar_t) noise

    Args:    z0, noise (..., D); alpha_bar (...), that of each one's level, or a scalar tensor.
    Returns: (..., D), a new tensor.
    Source:  Ho et al. 2020 (arXiv:2006.11239), Eq. 4.
    """
    signal = alpha_bar[..., None]                                # (..., 1)
    return signal.sqrt() * z0 + (1 - signal).sqrt() * noise      # (..., D)


def sample(h, z, observed, j, noise, alpha_bar):
    """Denoise x_j^T level by level (Sec. 3.3).

        x_j^T = noise;   x_hat_j^0 = h(x_j^t, {x_i}, t)
        x_j^{t-1} = sqrt(alpha_bar_{t-1}) x_hat_j^0 + sqrt(1 - alpha_bar_{t-1}) noise

    These are the paper's t, from T to 1; the loop counts from T - 1 to 0. The same noise is used at
    every level, as in the paper; mu and Sigma of Eq. 4 are not needed.

    Args:    h, z (B, N, D), observed (B, N), j (B,): as in the header; noise (B, D), standard
             normal, or zeros for the approximate inference; alpha_bar (T,).
    Returns: z_hat (B, D) of the last pass, at the least noisy level.
    """
    zt = noise
    for t in reversed(range(len(alpha_bar))):
        z_hat = h(zt, z, observed, j, torch.full_like(j, t)).float()             # Eq. 5
        if t > 0:
            zt = add_noise(z_hat, noise, alpha_bar[t - 1])
    return z_hat


def expectation(log_p):
    """Eq. 11: the mean over Q Monte Carlo samples: log p(y | x_j) (B, Q, K) -> p (B, K)."""
    return log_p.exp().mean(1)
