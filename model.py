"""f and h put together (Eq. 1), and inference with them (Sec. 3.3).

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.

    p(Y | X) = p(y_j | x_j) p(x_j | {x_i}_{i != j}) prod_i p(y_i | x_i)                     (Eq. 1)

    paper          here         shape         meaning
    f              encoder      nn.Module     clips -> x_i
    h              denoiser     nn.Module     predicts the missing clip
    p(y | x)       match        (..., K)      Eq. 6 over the phrase pool, log probabilities
    x_hat_j^0      forecast     (B, Q, D)     the missing clip, once per noise
    -              scale        float         z = scale * x is what is noised: diffusion.py
    -              classifier   nn.Linear     replaces the texts after fine-tuning
    B videos, N clips of each, Q noises, T levels, K phrases, D embedding, S classes. C clips of F
    frames, H x W pixels each.
"""
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import losses
from diffusion import CLIPS, sample

PICTURES = 192            # of 224 x 224 pixels that f takes at once on a GPU of 24 GB, or on a CPU
ORDERS = "diffusion", "mask", "none"   # h learns from the noised clip; from zeros; there is no h


@dataclass
class Config:
    """Everything that defines a model except its weights. A checkpoint stores it.

    weights/checkpoint.py:build makes the model, and weights/bounds.py says what a file may hold.
    `encoder` and `denoiser` are the arguments of f and h. `encoder` also has "kind", a name in
    weights/encoders.py.
    """
    encoder: dict
    denoiser: dict | None         # None if trained with matching only, unless `task` needs h
    order: str                    # how h learned, one of ORDERS
    tau: float                    # temperature of Eq. 6, for clips, forecasts and soft targets
    scale: float                  # z = scale * x is what is noised: diffusion.py
    alpha_bar: list               # T floats, the noise schedule
    pixels: tuple                 # (mean, std) of pixels / 255 as f expects them
    spacing: float | None = None  # s, mean distance of training clips, by which a history is cut
    #                               into clips (data.history_windows); None: as in the paper
    stride: int = 2               # of the sentences that gave the training clips
    history: str | None = None    # what its forecasts were tuned on, "spaced" or "paper"; or None
    hold_out: float | None = None # share of the training videos that fine-tuning left out
    task: str | None = None       # the Task of evaluate.py it is fine-tuned for
    classes: tuple = ()           # how many classes each label set of the task has
    names: list | None = None     # of the classes, if they have names
    text_space: bool = True       # whether D is that of the teacher's texts, so that clips can be
    #                               matched with them; some published f have no such space
    logit_tau: float | None = None         # temperature of the classifier's logits; None: tau
    clip: str | None = None       # the teacher: "toy", a model of open_clip, or local-dir:DIR
    clip_weights: str | None = None
    first_phrase: str | None = None        # a teacher fits if it embeds this text as phrases[0]


class ProcedureModel(nn.Module):
    """The pair of a video encoder f and a denoiser h, with the texts they were trained on.

    Args:
        config:   Config.
        phrases:  (K, D) float, embeddings of the phrase pool, of any length; (0, D) if unknown.
        encoder:  f, a data.Encoder: TimeSformer or another of weights/encoders.py.
        denoiser: h, a Denoiser or MaskedDenoiser; None if config.denoiser is None.
    """

    def __init__(self, config, phrases, encoder, denoiser):
        super().__init__()
        self.config, self.encoder, self.denoiser = config, encoder, denoiser
        self.tau, self.scale, self.dim = config.tau, config.scale, phrases.shape[1]
        self.settings, self.path = {}, "the model"         # flags of its run, {} without one
        self.classifier = nn.Linear(self.dim, sum(config.classes)) if config.task else None
        self.register_buffer("phrases", functional.normalize(phrases, dim=-1))      # (K, D)
        self.register_buffer("alpha_bar", torch.tensor(config.alpha_bar), persistent=False)   # (T,)

    def normalize(self, clips):
        """Clips (C, F, 3, H, W) uint8 -> pixels (C, 3, F, H, W) float for f, on its device. For an
        Adapter, clips are features (C, F), and stay as they are. ValueError if not uint8."""
        clips = clips.to(self.phrases.device)
        if not self.encoder.image:
            return clips
        if clips.dtype != torch.uint8:
            raise ValueError(f"clips are {clips.dtype}; expected uint8 pixels from 0 to 255")
        mean, std = self.config.pixels
        pixels = clips.float()
        pixels.div_(255).sub_(mean).div_(std)              # in place: half the time
        return pixels.transpose(1, 2)

    def encode(self, clips):
        """x_i = f(v_i): clips (C, F, 3, H, W) uint8 -> (C, D), length 1."""
        return self.encoder(self.normalize(clips))

    forward = encode

    def match(self, x, texts=None):
        """log p(y | x), Eq. 6, over the pool, or over other texts (K', D): (..., D) -> (..., K)."""
        if texts is None:
            texts = self.phrases
        return losses.match(x, texts, self.tau)

    def forecast(self, x, observed, j, noise):
        """Predict the missing clip of each row, once per noise (Sec. 3.3).

        Args:    x (B, N, D), not read at j; observed (B, N) bool; j (B,) int64: the place of the
                 missing clip, before, between or after the observed ones; noise (B, Q, D): standard
                 normal, or zeros for the approximate inference.
        Returns: x_hat (B, Q, D), of any length.
        """
        Q = noise.shape[1]
        z = (self.scale * x).repeat_interleave(Q, 0)                           # (B Q, N, D)
        observed, j = observed.repeat_interleave(Q, 0), j.repeat_interleave(Q, 0)
        z_hat = sample(self.denoiser, z, observed, j, noise.flatten(0, 1), self.alpha_bar)
        return (z_hat / self.scale).unflatten(0, (-1, Q))                      # (B, Q, D)

    def forecast_next(self, x, noise, n=None):
        """`forecast` the clip that follows: x (B, N, D), noise (B, Q, D) -> x_hat (B, Q, D).

        n (B,) int64: how many of the N <= 8 clips a history has, the first ones; None: all.
        """
        B, N, D = x.shape
        if n is None:
            n = torch.full((B,), N, device=x.device)
        observed = torch.arange(N + 1, device=x.device) < n[:, None]           # (B, N + 1)
        return self.forecast(torch.cat([x, x.new_zeros(B, 1, D)], 1), observed, n, noise)

    def classify(self, x):
        """log softmax((W x + b) / tau): x (..., D) -> [(..., S), ...], float32, by label set. If
        the config has a `logit_tau`, it stands in place of tau."""
        with torch.autocast(x.device.type, enabled=False):
            logits = self.classifier(x.float()) / (self.config.logit_tau or self.tau)
            return [part.log_softmax(-1) for part in logits.split([*self.config.classes], -1)]


def clips_at_once(encoder, micro_batch=None, device=None):
    """How many clips f takes at once: --micro-batch; 0: all; None: as many as hold PICTURES frames,
    on a GPU in proportion to its memory."""
    if micro_batch == 0:
        return 10 ** 9
    if micro_batch is not None:
        return micro_batch
    memory = 24e9                                          # bytes
    if device is not None and device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
    pixels = max(1, encoder.frames * encoder.image ** 2)   # of a clip; 1: it reads features
    return max(1, int(PICTURES * 224 ** 2 * memory / 24e9) // pixels)


def encode_parts(model, clips, micro_batch=None):
    """`model.encode` for inference, `clips_at_once` at a time: clips (C, ...) -> (C, D)."""
    most = clips_at_once(model.encoder, micro_batch, model.phrases.device)
    return torch.cat([model.encode(part) for part in clips.split(most)])


def match_labels(model, x, texts):
    """log p over the label set, (..., D) -> (..., S): by texts, or by a fine-tuned classifier."""
    return model.classify(x)[0] if model.config.task else model.match(x, texts)


def merge(p, as_one, count):
    """Add up p of steps that count as one: p (..., S) -> (..., count). as_one (S,) int64: where
    each step is counted."""
    return p.new_zeros(*p.shape[:-1], count).index_add_(-1, as_one.to(p.device), p)


def sample_in_turn(model, x, texts, noise):
    """Q futures of L steps of a video, each sampled step by step (Sec. 3.3, repeated).

    What h predicts, x_hat at unit length, becomes the last observed clip; of nine, the first
    is dropped. x (N, D), noise (L, Q, D) -> log p of each step, (Q, L, S).
    """
    log_p = []
    history = x.expand(noise.shape[1], -1, -1)                                 # (Q, N, D)
    for eps in noise.to(x.device):
        x_hat = model.forecast_next(history, eps[:, None])                     # (Q, 1, D)
        log_p.append(match_labels(model, x_hat[:, 0], texts))                  # (Q, S)
        history = torch.cat([history, functional.normalize(x_hat, dim=-1)], 1)
        history = history[:, -(CLIPS - 1):]
    return torch.stack(log_p, 1)
