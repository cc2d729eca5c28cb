"""Noise the missing clip, and sample it back: the diffusion process of the method.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.1 (Eqs. 2-5) and 3.3 (Eq. 11).

    paper        here          shape       meaning
    x_j^0        z0            (B, D)      the missing clip f(v_j), standardized
    x_j^t        zt            (B, D)      the same after noising to level t
    -            alpha_bar     (T,)        running product of alpha_t (Eq. 2): share of the signal's
                                           variance that is left at level t
    h            h             callable    (zt, t) -> z_hat (Eq. 5)
    x_hat_j^0    z_hat         (B, D)      what h predicts, standardized
    -            noise         (B, D)      standard normal; zeros for the approximate inference
    B rows, each with one missing clip; T = 4 levels, D embedding.

Embeddings of f have length 1. The average variance of their coordinates is below 1 / D, so noise
of variance 1 would bury them. Eq. 2 therefore uses standardized embeddings, with mean 0 and, on
average over the coordinates, variance 1. Latent diffusion scales its latents likewise. x_j^T is
then drawn from N(0, I), as in the paper. Levels count from 0: level t is the paper's t + 1.
"""
import math

import torch
from torch import nn


class Standardizer(nn.Module):
    """z = (x - mean) / scale: embeddings with mean 0 and, over all coordinates, mean square 1.

    While f learns, mean (D,) and scale, one number, are running averages. A checkpoint has both.
    Published weights have mean 0 and scale 1.
    """

    def __init__(self, dim, rate=0.01):
        super().__init__()
        self.rate = rate                                   # of the running averages, once settled
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("variance", torch.ones(()))
        self.register_buffer("updates", torch.zeros(()))
        # Over the clips since the last `update`: sum of x, sum of its squares, number of clips.
        self.register_buffer("sums", torch.zeros(dim + 2), persistent=False)

    @torch.no_grad()
    def add(self, x):
        """Add clips, x (C, D), to the sums. The sums of several processes can be added."""
        self.sums += torch.cat([x.sum(0), torch.stack([x.pow(2).sum(), x.new_tensor(len(x))])])

    @torch.no_grad()
    def update(self):
        """Move the running averages toward the clips added since the last update, if any."""
        total, square, count = self.sums.split([len(self.mean), 1, 1])
        self.updates += count[0] > 0
        rate = 1 / self.updates.clamp(1, 1 / self.rate)    # a plain mean for 1 / rate updates
        rate, count = rate * (count > 0), count.clamp(min=1)
        self.mean.lerp_(total / count, rate)
        # The mean square of x - mean, over clips and coordinates; 0 if all clips are equal.
        variance = (square - 2 * self.mean @ total) / count + self.mean.pow(2).sum()
        self.variance.lerp_((variance[0] / len(self.mean)).clamp(min=1e-8), rate[0])
        self.sums.zero_()

    def forward(self, x):
        """x -> z, (..., D)."""
        return (x - self.mean) / self.variance.sqrt()

    def inverse(self, z):
        """z -> x, (..., D)."""
        return self.mean + self.variance.sqrt() * z


def noise_levels(dim, levels=4, first=3.0, last=0.3):
    """The schedule: alpha_bar (T,), with signal-to-noise ratios that fall geometrically.

        sqrt(alpha_bar_t / (1 - alpha_bar_t)) = first / sqrt(D), ..., last / sqrt(D)

    Standardized embeddings are about sqrt(2 D) apart, but noise along the line between two of them
    has standard deviation 1. Dividing by sqrt(D) thus makes a level equally hard at any D. At the
    last level the signal is almost gone, so a draw from N(0, I) looks like x_j^T in training. With
    D = 64, alpha_bar is .123, .029, .0065, .0014. The paper gives T = 4, but no alpha_t.
    """
    steps = torch.arange(levels, dtype=torch.float64) / max(levels - 1, 1)
    ratio = first * (last / first) ** steps / math.sqrt(dim)     # (T,)
    return (ratio ** 2 / (1 + ratio ** 2)).float()


def add_noise(z0, noise, alpha_bar):
    """Draw x_j^t given x_j^0: Eq. 2 up to level t, in closed form.

        x_j^t = sqrt(alpha_bar_t) x_j^0 + sqrt(1 - alpha_bar_t) noise

    Args:    z0, noise (B, D); alpha_bar (B,), of the level of each row, or a scalar tensor.
    Returns: (B, D), a new tensor.
    Source:  Ho et al. 2020 (arXiv:2006.11239), Eq. 4.
    """
    signal = alpha_bar[..., None]                                # (B, 1)
    return signal.sqrt() * z0 + (1 - signal).sqrt() * noise


def sample(h, noise, alpha_bar):
    """Denoise x_j^T level by level (Sec. 3.3).

        x_j^T = noise;   x_hat_j^0 = h(x_j^t, {x_i}, t)
        x_j^{t-1} = sqrt(alpha_bar_{t-1}) x_hat_j^0 + sqrt(1 - alpha_bar_{t-1}) noise

    The same noise is used at every level, as in the paper; mu and Sigma of Eq. 4 are not needed.

    Args:    h: zt (B, D) and t (B,) int64 -> z_hat (B, D); noise (B, D), standard normal, or zeros
             for the approximate inference; alpha_bar (T,).
    Returns: z_hat (B, D) of the last pass, at the least noisy level.
    """
    zt = noise
    for t in reversed(range(len(alpha_bar))):
        z_hat = h(zt, torch.full(noise.shape[:1], t, device=noise.device))           # Eq. 5
        if t > 0:
            zt = add_noise(z_hat, noise, alpha_bar[t - 1])
    return z_hat


def expectation(log_p):
    """Eq. 11: the mean over Q Monte Carlo samples: log p(y | x_j) (B, Q, K) -> p (B, K)."""
    return log_p.exp().mean(1)
