"""The released model: h, its schedule and its sampling as published checkpoints have them.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.1-3.3, Eqs. 2-5; the released code.

    paper          here                shape       meaning
    {x_i}          x                   (B, N, D)   embeddings of the N observed clips, length 1
    x_j^t          xt                  (B, D)      noisy version of the clip after them, j = N + 1
    t              t                   int         noise level, 0 (least) to T - 1 (most)
    alpha_bar_t    alpha_bar           (T,)        running product of 1 - beta_t
    B videos, N = 8 clips, Q noises, T = 4 levels, D = 512, S classes.
"""
import math

import torch
from open_clip.transformer import QuickGELU, Transformer
from torch import nn
from torch.nn import functional

import diffusion
import losses

# Facts of the release that are not in its files.
HEADS = 8                      # of h, at any width
TAU = 0.02
PIXELS = 0.45, 0.225           # mean and deviation of pixels / 255


class ReleasedDenoiser(nn.Module):
    """h of Eq. 5 and the chain of Sec. 3.3 in the released code, with its parameters' names.

    Unlike denoiser.py and diffusion.py: x_j^t is the last token; positions are N + 1 learned
    vectors; the level is added to every token; x_j^T is the noise itself; x_hat is noised again as
    it is, with the same noise. T = 4: alpha_bar = .9999, .9932, .9799, .9603.

    Args: dim: D, a multiple of 8 from 16; layers: of the Transformer, and T; clips: N + 1.
    """

    def __init__(self, dim=512, layers=4, clips=9):
        super().__init__()
        self.type_embedding = nn.Embedding(2, dim)                      # 0 = observed, 1 = missing
        self.temporalEmbedding = nn.Embedding(clips, dim)
        self.temporalModelling = Transformer(dim, layers, HEADS, act_layer=QuickGELU)
        self.time_mlp = nn.Sequential(nn.Identity(), nn.Linear(dim // 4, dim), nn.GELU(),
                                      nn.Linear(dim, dim))              # after the sinusoids
        beta = torch.linspace(1e-4, 0.02, layers)
        self.register_buffer("alpha_bar", (1 - beta).cumprod(0), persistent=False)      # (T,)

    def forward(self, x, xt, t):
        """x (B, N, D) observed, xt (B, D), t an int from 0 (least noise) -> x_hat_j^0 (B, D)."""
        kind = self.type_embedding.weight[[0] * x.shape[1] + [1]]                  # (N + 1, D)
        half = x.shape[-1] // 8                      # sin, cos at periods from 2 pi to 20,000 pi
        angle = t * torch.exp(torch.arange(half) * (-math.log(10000) / (half - 1)))
        wave = torch.cat([angle.sin(), angle.cos()]).to(x)                         # (D / 4,)
        tokens = torch.cat([x, xt[:, None]], 1)                                    # (B, N + 1, D)
        tokens = tokens + kind + self.temporalEmbedding.weight + self.time_mlp(wave)
        return self.temporalModelling(tokens)[:, -1]

    def sample(self, x, noise):
        """Denoise clip N + 1 step by step: x (B, N, D), noise (B, D) -> x_hat (B, D), any length.

            x_j^T = noise;   x_hat_j^0 = h(x_j^t, {x_i}, t);
            x_j^{t-1} = sqrt(alpha_bar_{t-1}) x_hat_j^0 + sqrt(1 - alpha_bar_{t-1}) noise
        """
        xt = noise
        for t in reversed(range(len(self.alpha_bar))):
            x_hat = self(x, xt, t)
            xt = diffusion.add_noise(x_hat, noise, self.alpha_bar[max(t - 1, 0)])
        return x_hat


class Released(nn.Module):
    """A published model, in the place of model.ProcedureModel.

    Args: encoder: f; denoiser: h, None if it was not trained on order; dim: D; task, classes: as of
          ProcedureModel.
    """

    def __init__(self, encoder, denoiser, dim, task=None, classes=()):
        super().__init__()
        self.encoder, self.denoiser, self.dim = encoder, denoiser, dim
        self.classifier = nn.ModuleList(nn.Linear(dim, S) for S in classes)
        self.task, self.classes = task, list(classes)
        self.order = "diffusion" if denoiser else "none"
        self.pixels, self.tau, self.teacher_tau, self.witness = PIXELS, TAU, TAU, None

    def tokens(self, clips):
        """Clips (C, F, 3, H, W), pixels 0-255 -> f's class token (C, W), before the projection."""
        mean, std = self.pixels
        return self.encoder.features(((clips.float() / 255 - mean) / std).transpose(1, 2))

    def encode(self, clips):
        """x_i = f(v_i): clips (B, 3, F, H, W) float, normalized by PIXELS -> (B, D), length 1.

        Also takes frames (B, F, 3, H, W) uint8, as sources give them, or embeddings (B, D).
        """
        features = self.tokens if clips.dtype == torch.uint8 else self.encoder.features
        x = self.encoder.head(features(clips)) if clips.ndim > 2 else clips
        return functional.normalize(x.float(), dim=-1)

    def forecast(self, x, noise=None):
        """The clip after N others: x (B, N, D) of length 1 -> x_hat (B, D), of any length.

        noise:  (B, D); None is zeros, as released. A standard normal, as in the paper, is about
                five times the largest noise of its training.
        Raises: ValueError if this model has no h, or another number of clips is given.
        """
        if self.denoiser is None:
            raise ValueError("these weights have no order_tfm.*: they forecast nothing")
        N = self.denoiser.temporalEmbedding.num_embeddings - 1
        if x.shape[1:] != (N, self.dim):
            raise ValueError(f"x is {tuple(x.shape)}, need (B, {N}, {self.dim}): {N} clips")
        return self.denoiser.sample(x, torch.zeros_like(x[:, 0]) if noise is None else noise)

    def forecast_next(self, x, noise):
        """`forecast` of Q noises at once: x (B, N, D), noise (B, Q, D) -> (B, Q, D)."""
        Q = noise.shape[1]
        return self.forecast(x.repeat_interleave(Q, 0), noise.flatten(0, 1)).unflatten(0, (-1, Q))

    def match(self, x, texts):
        """Eq. 6: log p over texts (S, D), both normalized: (..., D) -> (..., S)."""
        return losses.match(x, texts, self.tau)

    read = match_predicted = match           # one temperature for observed and predicted clips

    def probabilities(self, x, texts):
        """p over texts (S, D) that are *not* normalized, as released on a CPU: -> (..., S).

        On a GPU the released code normalizes texts, and computes `match`.
        """
        return (functional.normalize(x, dim=-1) @ texts.T / self.tau).softmax(-1)

    def classify(self, x):
        """Log p: (..., D) -> [(..., S), ...] float32; tau scales logits of clips, not forecasts."""
        scale = self.tau if self.task == "classify" else 1
        with torch.autocast(x.device.type, enabled=False):
            return [(part(x.float()) / scale).log_softmax(-1) for part in self.classifier]
