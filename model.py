"""f and h put together (Eq. 1), and inference with them (Sec. 3.3).

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.

    p(Y | X) = p(y_j | x_j) p(x_j | {x_i}_{i != j}) prod_i p(y_i | x_i)                     (Eq. 1)

    paper          here         shape         meaning
    f              encoder      nn.Module     clips -> x_i
    h              denoiser     nn.Module     None if trained with matching only
    p(y | x)       match        (..., K)      Eq. 6 over the phrase pool, log probabilities
    x_hat_j^0      forecast     (B, Q, D)     the missing clip, once per noise
    -              standardize  nn.Module     x <-> z, x_hat <-> z_hat: diffusion.py's space
    -              classifier   nn.Linear     replaces the texts after fine-tuning
    B rows, N clips in each, Q noises, T levels, K phrases, D embedding, S classes.
"""
import torch
from torch import nn
from torch.nn import functional

import diffusion
import losses

PICTURES = 192            # of 224 x 224 pixels that f takes at once, so that 24 GB suffice


def check(name, given, *sizes, dtype=torch.float32):
    """ValueError unless `given` has these sizes; a text matches any size. No value is read."""
    shape, kind = (tuple(given.shape), given.dtype) if torch.is_tensor(given) else ("", type(given))
    fits = all(n == size or isinstance(size, str) for n, size in zip(shape[::-1], sizes[::-1]))
    if kind != dtype or not fits or len(shape) != len(sizes) and sizes[0] != "...":
        raise ValueError(f"{name}: needed is {dtype} {sizes}, given is {kind} {shape}")


class ProcedureModel(nn.Module):
    """The pair of a video encoder f and a denoiser h, with the texts they were trained on.

    Args:
        phrases:  (K, D) float, embeddings of the phrase pool, of any length; (0, D) if unknown.
        encoder:  f, a TimeSformer, MViT or Adapter.
        denoiser: h, a Denoiser; None with order "none", unless `task` needs it.
        order:    "diffusion": h learns from the noised missing clip; "mask": zeros; "none": no h.
        tau:      temperature of Eq. 6, for clips, forecasts and soft targets.
        pixels:   (mean, std) of pixels / 255 as f expects them.
        alpha_bar: T floats, the noise schedule that h was trained with.
        task:     what it is fine-tuned for: "classify", "forecast" or "activity"; None = zero-shot.
        classes:  how many classes each label set of the task has: (S,), or verbs and nouns.
        witness:  text of the first phrase. A teacher fits if it embeds this as phrases[0].
    """

    def __init__(self, phrases, encoder, denoiser, order, tau, pixels, alpha_bar, task=None,
                 classes=(), witness=None):
        super().__init__()
        self.encoder, self.denoiser, self.order = encoder, denoiser, order
        self.tau, self.pixels, self.witness = tau, pixels, witness
        self.task, self.classes = task, list(classes)
        self.scores = "debiased"           # how `match` reads them; "paper": Eq. 6 as printed
        self.dim = D = phrases.shape[1]
        self.classifier = nn.Linear(D, sum(classes)) if task else None
        self.standardize = diffusion.Standardizer(D)
        self.register_buffer("phrases", functional.normalize(phrases, dim=-1))      # (K, D)
        self.register_buffer("alpha_bar", torch.tensor(alpha_bar), persistent=False)       # (T,)

    def normalize(self, clips):
        """Clips (C, F, 3, H, W) uint8 -> pixels (C, 3, F, H, W) float for f, on its device. For an
        Adapter, clips are features (C, F), and stay as they are."""
        F, H = self.encoder.frames, self.encoder.image
        if not H:
            return clips.to(self.phrases.device)
        check("clips (C, F, 3, H, W)", clips, "C", F, 3, H, H, dtype=torch.uint8)
        mean, std = self.pixels
        pixels = clips.to(self.phrases.device).float()
        pixels.div_(255).sub_(mean).div_(std)              # in place: half the time
        return pixels.transpose(1, 2)

    def encode(self, clips):
        """x_i = f(v_i): clips (C, F, 3, H, W) uint8 -> (C, D), length 1."""
        return self.encoder(self.normalize(clips))

    forward = encode

    def match(self, x, texts=None):
        """log p(y | x) over the pool, or over other texts (K', D): (..., D) -> (..., K). If
        `scores` is "paper", this is Eq. 6; else half of each text's mean score is subtracted first.
        """
        texts = self.phrases if texts is None else texts
        check("x (..., D)", x, "...", self.dim)
        check("texts (K, D), the teacher's embeddings", texts, "K", self.dim)
        mean = None if self.scores == "paper" else self.standardize.mean
        return losses.match(x, texts, self.tau, mean)

    def denoise(self, zt, x, observed, j, t):
        """Eq. 5: z_hat (B, D) float32; x as `encode` gives it, the rest as in denoiser.py."""
        return self.denoiser(zt, self.standardize(x), observed, j, t).float()

    def forecast(self, x, observed, j, noise):
        """Predict the missing clip of each row, once per noise (Sec. 3.3).

        Args:    x (B, N, D), not read at j; observed (B, N) bool; j (B,) int64: the place of the
                 missing clip, before, between or after the observed ones; noise (B, Q, D): standard
                 normal, or zeros for the approximate inference. Mask models ignore the noise.
        Returns: x_hat (B, Q, D), of any length.
        """
        check("x (B, N, D)", x, "B", "N", self.dim)
        B, N, D = x.shape
        check("observed (B, N)", observed, B, N, dtype=torch.bool)
        check("j (B,)", j, B, dtype=torch.int64)
        check("noise (B, Q, D)", noise, B, "Q", D)
        position = getattr(self.denoiser, "position", None)        # another h may lack it
        if position and N > len(position.weight):
            raise ValueError(f"{N} clips, the missing one included: h reads {len(position.weight)}")
        Q, last = noise.shape[1], len(self.alpha_bar) - 1
        x, observed, j = (rows.repeat_interleave(Q, 0) for rows in (x, observed, j))
        noise = noise.flatten(0, 1)                                         # (B Q, D)

        def h(zt, t):
            return self.denoise(zt, x, observed, j, t)

        if self.order == "diffusion":
            z_hat = diffusion.sample(h, noise, self.alpha_bar)
        else:
            z_hat = h(torch.zeros_like(noise), torch.full((len(x),), last, device=x.device))
        return self.standardize.inverse(z_hat).unflatten(0, (-1, Q))

    def forecast_next(self, x, noise):
        """`forecast` the clip that follows N <= 8: x (B, N, D), noise (B, Q, D) -> (B, Q, D)."""
        check("x (B, N, D)", x, "B", "N", self.dim)
        B, N, D = x.shape
        observed = torch.arange(N + 1, device=x.device).expand(B, -1) < N
        j = torch.full((B,), N, device=x.device)
        return self.forecast(torch.cat([x, x.new_zeros(B, 1, D)], 1), observed, j, noise)

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
    """`model.encode` for inference, `clips_at_once` at a time. With gradients it would keep the
    activations of all parts, so training takes groups of videos instead."""
    size = clips_at_once(model.encoder, size)
    return torch.cat([model.encode(part) for part in clips.split(size)])
