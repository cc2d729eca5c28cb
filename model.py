"""f and h put together (Eq. 1), and inference with them (Sec. 3.3).

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.

    p(Y | X) = p(y_j | x_j) p(x_j | {x_i}_{i != j}) prod_i p(y_i | x_i)                     (Eq. 1)

    paper          here         shape         meaning
    f              encoder      nn.Module     clips -> x_i
    h              denoiser     nn.Module     None if trained with matching only
    p(y | x)       match        (..., K)      Eq. 6 over the phrase pool, log probabilities
    x_hat_j^0      forecast     (B, Q, D)     the missing clip, once per noise
    -              scale        float         z = scale * x is what is noised: diffusion.py
    -              classifier   nn.Linear     replaces the texts after fine-tuning
    B videos, N clips of each, Q noises, T levels, K phrases, D embedding, S classes.
"""
import torch
from torch import nn
from torch.nn import functional

import losses
from diffusion import sample

PICTURES = 192            # of 224 x 224 pixels that f takes at once, so that 24 GB suffice


class ProcedureModel(nn.Module):
    """The pair of a video encoder f and a denoiser h, with the texts they were trained on.

    Args:
        phrases:  (K, D) float, embeddings of the phrase pool, of any length; (0, D) if unknown.
        encoder:  f, a TimeSformer, MViT or Adapter.
        denoiser: h, a Denoiser or MaskedDenoiser; None with order "none", unless `task` needs it.
        order:    how h learned: "diffusion", "mask" or "none"; it is only kept and told.
        tau:      temperature of Eq. 6, for clips, forecasts and soft targets.
        scale:    the constant of z = scale * x.
        alpha_bar: T floats, the noise schedule that h was trained with.
        pixels:   (mean, std) of pixels / 255 as f expects them.
        pitch:    s, the mean distance of consecutive training clips, by which a history is cut into
                  clips (data.history_windows). None: by the released protocol.
        task:     what it is fine-tuned for: "classify", "forecast" or "activity"; None = zero-shot.
        classes:  how many classes each label set of the task has: (S,), or verbs and nouns.
        witness:  text of the first phrase. A teacher fits if it embeds this as phrases[0].
    """

    def __init__(self, phrases, encoder, denoiser, order, tau, scale, alpha_bar, pixels,
                 pitch=None, task=None, classes=(), witness=None):
        super().__init__()
        # A checkpoint keeps these. `settings` are the flags of its run, {} without one.
        self.arguments = dict(
            encoder=encoder.arguments, denoiser=denoiser and denoiser.arguments, order=order,
            tau=tau, scale=scale, alpha_bar=[*alpha_bar], pixels=pixels, pitch=pitch, task=task,
            classes=[*classes], witness=witness)
        self.settings, self.path = {}, "the model"
        self.encoder, self.denoiser, self.order = encoder, denoiser, order
        self.tau, self.scale, self.pixels, self.pitch = tau, scale, pixels, pitch
        self.task, self.classes, self.witness = task, [*classes], witness
        self.dim = D = phrases.shape[1]
        self.classifier = nn.Linear(D, sum(classes)) if task else None
        self.register_buffer("phrases", functional.normalize(phrases, dim=-1))      # (K, D)
        self.register_buffer("alpha_bar", torch.tensor(alpha_bar), persistent=False)       # (T,)

    def normalize(self, clips):
        """Clips (C, F, 3, H, W) uint8 -> pixels (C, 3, F, H, W) float for f, on its device. For an
        Adapter, clips are features (C, F), and stay as they are. ValueError if not uint8."""
        clips = clips.to(self.phrases.device)
        if not self.encoder.image:
            return clips
        if clips.dtype != torch.uint8:
            raise ValueError(f"clips are {clips.dtype}; needed are pixels from 0 to 255, uint8")
        mean, std = self.pixels
        pixels = clips.float()
        pixels.div_(255).sub_(mean).div_(std)              # in place: half the time
        return pixels.transpose(1, 2)

    def encode(self, clips):
        """x_i = f(v_i): clips (C, F, 3, H, W) uint8 -> (C, D), length 1."""
        return self.encoder(self.normalize(clips))

    forward = encode

    def match(self, x, texts=None):
        """log p(y | x), Eq. 6, over the pool, or over other texts (K', D): (..., D) -> (..., K)."""
        return losses.match(x, self.phrases if texts is None else texts, self.tau)

    def forecast(self, x, observed, j, noise):
        """Predict the missing clip of each row, once per noise (Sec. 3.3).

        Args:    x (B, N, D), not read at j; observed (B, N) bool; j (B,) int64: the place of the
                 missing clip, before, between or after the observed ones; noise (B, Q, D): standard
                 normal, or zeros for the approximate inference.
        Returns: x_hat (B, Q, D), of any length.
        """
        rows, Q = (self.scale * x, observed, j), noise.shape[1]
        z, observed, j = (row.repeat_interleave(Q, 0) for row in rows)                 # B Q rows
        z_hat = sample(self.denoiser, z, observed, j, noise.flatten(0, 1), self.alpha_bar)
        return (z_hat / self.scale).unflatten(0, (-1, Q))

    def forecast_next(self, x, noise, n=None):
        """`forecast` the clip that follows: x (B, N, D), noise (B, Q, D) -> x_hat (B, Q, D).

        n (B,) int64: how many of the N <= 8 clips a history has, the first ones; None: all.
        """
        B, N, D = x.shape
        n = torch.full((B,), N, device=x.device) if n is None else n
        observed = torch.arange(N + 1, device=x.device) < n[:, None]           # (B, N + 1)
        return self.forecast(torch.cat([x, x.new_zeros(B, 1, D)], 1), observed, n, noise)

    def classify(self, x):
        """log softmax((W x + b) / tau): x (..., D) -> [(..., S), ...], float32, by label set."""
        with torch.autocast(x.device.type, enabled=False):
            logits = self.classifier(x.float()) / self.tau
            return [part.log_softmax(-1) for part in logits.split(self.classes, -1)]


def clips_at_once(encoder, size=None):
    """How many clips f takes at once: `size`; 0: all; None: as many as hold PICTURES frames."""
    most = PICTURES * 224 ** 2 // (encoder.frames * encoder.image ** 2 or 1)
    return max(1, most) if size is None else size or 10 ** 9


def encode_parts(model, clips, size=None):
    """`model.encode` for inference, `clips_at_once` at a time: clips (C, ...) -> (C, D)."""
    return torch.cat([model.encode(part)
                      for part in clips.split(clips_at_once(model.encoder, size))])
