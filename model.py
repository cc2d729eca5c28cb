"""f and h put together (Eq. 1).

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.

    p(Y | X) = p(y_j | x_j) p(x_j | {x_i}_{i != j}) prod_i p(y_i | x_i)                     (Eq. 1)

    paper          here        shape       meaning
    f              encoder     nn.Module   clips -> x_i; None where clips are embeddings already
    h              denoiser    nn.Module   None with matching only
    p(y | x)       match       (..., K)    Eq. 6 over the phrase pool, log probabilities
    x_hat_j^0      x_hat       (B, Q, D)   prediction of h as an embedding, to be matched with texts
    -              z_hat       (B, Q, D)   its clean point, to be noised again (diffusion.py)
    -              classifier  nn.Linear   replaces the texts after fine-tuning
    B videos, N clips, Q queries, T levels, K phrases, D embedding, S classes.
"""
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import diffusion
import losses

GAIN = 0.5                # scale of h's output, which is added to the mean text
KAPPA = 0.45              # scale of the noise in forecasts; below 1, likely steps are drawn more


class ProcedureModel(nn.Module):
    """The pair of a video encoder f and a denoiser h, with the texts they were trained on.

    Args:
        phrases: (K, D) float, embeddings of the phrase pool, of any length.
        encoder: f, a TimeSformer or MViT; None = clips are embeddings already.
        denoiser: h, a Denoiser; None with order "none", unless `task` needs it.
        order:   "diffusion", "mask" or "none".
        tau:     temperature of Eq. 6.
        pixels:  (mean, std) of pixels / 255 as f expects them; None without f.
        teacher_tau: temperature of the soft targets.
        clip_tau: temperature at which observed clips are matched; None: tau.
        task:    what it is fine-tuned for: "classify", "forecast" or "activity"; None = zero-shot.
        classes: of that task, how many in each label set: (S,), or verbs and nouns.
        witness: text of the first phrase. A teacher that embeds it as phrases[0] is the same one.
    """

    def __init__(self, phrases, encoder, denoiser, order, tau, pixels, teacher_tau=0.03,
                 clip_tau=None, task=None, classes=(), witness=None):
        super().__init__()
        self.encoder, self.denoiser, self.order = encoder, denoiser, order
        self.tau, self.teacher_tau, self.clip_tau = tau, teacher_tau, clip_tau or tau
        self.pixels, self.witness = pixels, witness
        self.task, self.classes = task, list(classes)
        self.dim = D = phrases.shape[1]
        self.classifier = nn.Linear(D, sum(classes)) if task else None
        mean, A = diffusion.affine_map(phrases)
        self.register_buffer("phrases", functional.normalize(phrases, dim=-1))      # (K, D)
        self.register_buffer("mean", mean)                                          # (D,)
        self.register_buffer("A", A)                                                # (D, D)
        self.register_buffer("points", (self.phrases - mean) @ A)                   # (K, D)  z_k
        self.register_buffer("alpha_bar", diffusion.noise_levels())                 # (T,)

    def tokens(self, clips):
        """Clips (C, F, 3, H, W) uint8 -> f's class token (C, W), before the projection."""
        mean, std = self.pixels
        return self.encoder.features(((clips.float() / 255 - mean) / std).transpose(1, 2))

    def encode(self, clips):
        """x_i = f(v_i): clips (C, F, 3, H, W) uint8, or embeddings (C, D) -> (C, D), length 1."""
        x = self.encoder.head(self.tokens(clips)) if clips.ndim > 2 else clips
        return functional.normalize(x.float(), dim=-1)                      # bf16 is not exact

    def match(self, x, texts=None):
        """Eq. 6: log p(y | x) over the pool, or over other texts (K', D): (..., D) -> (..., K)."""
        return losses.match(x, self.phrases if texts is None else texts, self.tau)

    def match_predicted(self, x_hat, texts=None):
        """Eq. 6 for what h predicts, at the temperature tau / |x_hat|.

        That is log softmax_k <x_hat, y_k> / tau for texts of length 1; see `predictor`.
        """
        return losses.match(x_hat, self.phrases if texts is None else texts,
                            self.tau / x_hat.norm(dim=-1, keepdim=True))

    def read(self, x, texts=None):
        """`match` for observed clips, at their own temperature clip_tau."""
        return losses.match(x, self.phrases if texts is None else texts, self.clip_tau)

    def context(self, x):
        """The input of h for each clip: its expected clean point under Eq. 6, times sqrt(D).

            sqrt(D) sum_k p(y_k | x_i) z_k                                     (B, N, D)

        Clips of the same step look alike to h. Each coordinate has a variance of about 1.
        """
        return self.read(x).exp() @ self.points * self.dim ** 0.5

    def predictor(self, x, observed, j):
        """h with its context fixed: the `predict` of diffusion.sample.

            x_hat = u / |u| + tau c_skip A x_j^t,    u = mean + GAIN h(point, context, t)

        Then <x_hat, y_k> / tau = cos(u, y_k) / tau + c_skip <x_j^t, z_k> + a term that all k share.
        The second term is the evidence of x_j^t for text k (Bayes' rule on Eq. 2), so h has to
        learn only log p(k | context). At any D the two terms are on the same scale. h reads the
        same evidence, as the expected clean point, so noisy clips look to it like observed ones:

            point = sqrt(D) sum_k softmax_k(c_skip <x_j^t, z_k>) z_k

        Args:
            x:        (B, N, D) embeddings of the clips.
            observed: (B, N) bool, True = h may read it.
            j:        (B, P) int64, the missing clips: past, present or future. With several the
                      queries come in groups of P.
        Returns: callable, zt (B, Q, D) and t (B, Q) -> x_hat (B, Q, D), z_hat (B, Q, D).
        """
        memory = self.denoiser.remember(self.context(x), observed)
        c_skip = diffusion.skip_scale(self.alpha_bar)                          # (T,)

        def predict(zt, t):
            with torch.autocast(x.device.type, enabled=False):         # bf16 is not exact
                evidence = c_skip[t].unsqueeze(-1) * zt                # (B, Q, D)
                point = (evidence @ self.points.T).softmax(-1) @ self.points * self.dim ** 0.5
            out = self.denoiser(memory, observed, point, j, t)
            with torch.autocast(x.device.type, enabled=False):
                u = self.mean + GAIN * out.float()
                x_hat = functional.normalize(u, dim=-1) + self.tau * evidence @ self.A
                return x_hat, self.match_predicted(x_hat).exp() @ self.points

        return predict

    def forecast(self, x, observed, j, noise):
        """Predict missing clips of each video, once per noise: (B, Q, D) -> x_hat (B, Q, D).

        The missing clips j (B, P) may be past, present or future. Several see each other while
        they are denoised: noise holds groups of P. Zero noise is the approximate inference of
        Sec. 3.3. The mask model predicts once, whatever the noise.
        """
        predict = self.predictor(x, observed, j)
        if self.order != "diffusion":
            top = torch.full(noise.shape[:2], len(self.alpha_bar) - 1, device=noise.device)
            return predict(torch.zeros_like(noise), top)[0]
        return diffusion.sample(predict, KAPPA * noise, self.alpha_bar, j.shape[1])

    def forecast_next(self, x, noise):
        """`forecast` of the clip after all N: x (B, N, D), noise (B, Q, D) -> x_hat (B, Q, D)."""
        B, N, D = x.shape
        observed = torch.arange(N + 1, device=x.device).expand(B, -1) < N
        return self.forecast(torch.cat([x, x.new_zeros(B, 1, D)], 1), observed,
                             torch.full((B, 1), N, device=x.device), noise)

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
