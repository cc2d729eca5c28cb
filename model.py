"""f and h put together (Eq. 1), and inference with them (Sec. 3.3).

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.

    p(Y | X) = p(y_j | x_j) p(x_j | {x_i}_{i != j}) prod_i p(y_i | x_i)                     (Eq. 1)

    paper          here         shape            meaning
    f              encoder      nn.Module        clips -> x_i; None: clips are features already
    h              denoiser     nn.Module        None with matching only; ProcedureModel.h
    p(y | x)       match        (..., K)         Eq. 6 over the phrase pool, log probabilities
    x_hat_j^0      forecast     (B, Q, P, D)     the missing clips, once per noise
    -              z_hat        (B, P, D)        the same, standardized
    -              standardize  nn.Module        x <-> z, the space of the diffusion (diffusion.py)
    -              classifier   nn.Linear        replaces the texts after fine-tuning
    B videos, N clips, P missing ones (the paper's 1), Q noises, T levels, K phrases, D embedding,
    S classes.
"""
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import diffusion
import losses
from pseudo_labels import soft_targets


class ProcedureModel(nn.Module):
    """The pair of a video encoder f and a denoiser h, with the texts they were trained on.

    Args:
        phrases: (K, D) float, embeddings of the phrase pool, of any length; (0, D) if unknown.
        encoder: f, a TimeSformer or MViT; None = clips are features already.
        denoiser: h, a Denoiser; None with order "none", unless `task` needs it.
        order:   what stands for the missing clip in training: its noised copy, "diffusion", or
                 zeros, "mask"; "none": there is no h.
        tau:     temperature of Eq. 6, for clips, forecasts and soft targets.
        pixels:  (mean, std) of pixels / 255 as f expects them; None without f.
        alpha_bar: T floats, the noise schedule; None: diffusion.noise_levels.
        task:    what it is fine-tuned for: "classify", "forecast" or "activity"; None = zero-shot.
        classes: of that task, how many in each label set: (S,), or verbs and nouns.
        witness: text of the first phrase. A teacher that embeds it as phrases[0] is the same one.
    """

    def __init__(self, phrases, encoder, denoiser, order, tau, pixels, alpha_bar=None, task=None,
                 classes=(), witness=None):
        super().__init__()
        self.encoder, self.denoiser, self.order = encoder, denoiser, order
        self.tau, self.pixels, self.witness = tau, pixels, witness
        self.task, self.classes = task, list(classes)
        self.dim = D = phrases.shape[1]
        self.classifier = nn.Linear(D, sum(classes)) if task else None
        self.standardize = diffusion.Standardizer(D)
        self.register_buffer("phrases", functional.normalize(phrases, dim=-1))      # (K, D)
        self.register_buffer("alpha_bar", diffusion.noise_levels(D) if alpha_bar is None else
                             torch.tensor(alpha_bar), persistent=False)             # (T,)

    def class_token(self, clips):
        """Clips (C, F, 3, H, W) uint8 -> f's class token (C, W), before the projection."""
        mean, std = self.pixels
        pixels = clips.float().div_(255).sub_(mean).div_(std)          # in place: half the time
        return self.encoder.class_token(pixels.transpose(1, 2))

    def encode(self, clips):
        """x_i = f(v_i): clips (C, F, 3, H, W) uint8, or features (C, D) -> (C, D), length 1.

        The encoder behind a features file was not trained with L_XE, so its features may not match
        the texts. The mean text under its soft target takes a feature's place: sum_k p'_k y_k. This
        departs from the paper: docs/differences.md.
        ValueError for other axes, sizes or types.
        """
        f = self.encoder
        need, axes = (("float features (C, D)", (self.dim,)) if f is None else
                      ("uint8 clips (C, F, 3, H, W)", (f.frames, 3, f.image, f.image)))
        if clips.shape[1:] != axes or not (clips.is_floating_point() if f is None else
                                           clips.dtype == torch.uint8):
            raise ValueError(f"{tuple(clips.shape)} {clips.dtype} given; needed are {need}, here "
                             f"(C, {', '.join(map(str, axes))})")
        if f is None:
            x = soft_targets(clips.float(), self.phrases, self.tau) @ self.phrases
        else:
            x = f.head(self.class_token(clips))
        return functional.normalize(x.float(), dim=-1)                      # bf16 is too coarse

    def match(self, x, texts=None):
        """Eq. 6: log p(y | x) over the pool, or over other texts (K', D): (..., D) -> (..., K)."""
        return losses.match(x, self.phrases if texts is None else texts, self.tau)

    def h(self, zt, x, observed, j, t):
        """Eq. 5: z_hat = h(z_j^t, {z_i}, t). x (B, N, D) as `encode` gives it.

        zt (B, P, D) the noised missing clips, j (B, P) their places; observed (B, N) bool; t (B,)
        their noise level.

        Returns: z_hat (B, P, D), in float32.
        """
        return self.denoiser(zt, self.standardize(x), observed, j, t).float()

    def forecast(self, x, observed, j, noise):
        """Predict missing clips of each video, once per noise (Sec. 3.3).

        Zero noise is the approximate inference. The mask model ignores the noise.

        Args:    x (B, N, D), observed (B, N) bool; j (B, P) int64: the places of the missing
                 clips, before, between or after the observed ones; x there is not read;
                 noise (B, Q, P, D), standard normal or zeros.
        Returns: x_hat (B, Q, P, D), not normalized.
        """
        Q, last = noise.shape[1], len(self.alpha_bar) - 1
        x, observed, j = (rows.repeat_interleave(Q, 0) for rows in (x, observed, j))
        noise = noise.flatten(0, 1)                                         # (B Q, P, D)

        def h(zt, t):
            return self.h(zt, x, observed, j, t)

        if self.order == "diffusion":
            z_hat = diffusion.sample(h, noise, self.alpha_bar)
        else:
            z_hat = h(torch.zeros_like(noise), torch.full((len(x),), last, device=x.device))
        return self.standardize.inverse(z_hat).unflatten(0, (-1, Q))

    def forecast_next(self, x, noise):
        """`forecast` of the clip after all N: x (B, N, D), noise (B, Q, D) -> x_hat (B, Q, D).

        ValueError for other axes, no clip, or more clips than h was trained with.
        """
        if x.ndim != 3 or not 0 < x.shape[1] < self.denoiser.clips:
            raise ValueError(f"x is {tuple(x.shape)}; needed is (B, N, D), N from 1 to "
                             f"{self.denoiser.clips - 1} clips")
        B, N, D = x.shape
        observed = torch.arange(N + 1, device=x.device).expand(B, -1) < N
        return self.forecast(torch.cat([x, x.new_zeros(B, 1, D)], 1), observed,
                             torch.full((B, 1), N, device=x.device), noise[:, :, None])[:, :, 0]

    def classify(self, x):
        """The classifier's log p for embeddings x, of clips or of h: (..., D) -> [(..., S), ...].

            log softmax((W x + b) / tau)

        x as `encode` or `forecast` returns it. One float32 tensor for each label set.
        """
        with torch.autocast(x.device.type, enabled=False):
            logits = self.classifier(x.float()) / self.tau
            return [part.log_softmax(-1) for part in logits.split(self.classes, -1)]


def encode_parts(model, clips, part):
    """`model.encode`, `part` clips at a time, to train f with less memory; None: all at once.

    Activation checkpointing: the same gradients, memory of one part, 4/3 of the time.
    """
    if part is None:
        return model.encode(clips)
    return torch.cat([checkpoint(model.encode, some, use_reentrant=False, preserve_rng_state=False)
                      for some in clips.split(part)])
