"""f and h put together (Eq. 1), and their checkpoint.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.

    p(Y | X) = p(y_j | x_j) p(x_j | {x_i}_{i != j}) prod_i p(y_i | x_i)                     (Eq. 1)

    paper          here        shape       meaning
    f              encoder     nn.Module   clips -> x_i; None where clips are embeddings already
    h              denoiser    nn.Module   None with matching only
    p(y | x)       match       (..., K)    Eq. 6 over the phrase pool, log probabilities
    x_hat_j^0      x_hat       (B, Q, D)   prediction of h as an embedding: what is matched to texts
    -              z_hat       (B, Q, D)   its clean point: what is noised again (diffusion.py)
    -              classifier  nn.Linear   in place of the texts, once fine-tuned (finetune.py)
    B videos, N clips, Q queries, T levels, K phrases, D embedding, S classes.
"""
import re
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import diffusion
import losses
from denoiser import Denoiser
from encoder import TimeSformer
from support.command import BadInput, quiet, write_atomically

GAIN = 0.5                # of h's output beside the mean text: the start of training is gentle
SAME = 0.999              # cosine of a text by one teacher on two machines: at least that
KAPPA = 0.45              # scale of the noise in forecasts; below 1 the likelier steps come more


def build_encoder(dim, kind="timesformer", **arguments):
    """f: a TimeSformer, or with kind "mvit" the other backbone of the paper's appendix."""
    if kind == "mvit":
        from weights.mvit import MViT
        return MViT(dim=dim, **arguments)
    return TimeSformer(dim=dim, **arguments)


class ProcedureModel(nn.Module):
    """The pair of a video encoder f and a denoiser h, with the texts they were trained on.

    Args:
        phrases: (K, D) float, embeddings of the phrase pool, of any length.
        encoder: dict, arguments of `build_encoder`; None = clips are embeddings already.
        denoiser: dict, arguments of Denoiser; not built with order "none", unless `task` needs h.
        order:   "diffusion", "mask" or "none".
        tau:     temperature of Eq. 6.
        teacher_tau: temperature of the soft targets.
        clip_tau: temperature at which observed clips are read; tau, unless there is no f.
        pixels:  (mean, std) of pixels / 255 as f expects them; None without f.
        task:    what it is fine-tuned for: "classify", "forecast" or "activity"; None = zero-shot.
        classes: of that task, one number for each label set: (S,), or verbs and nouns.
        witness: text of the first phrase, by which the teacher is known again (inference.py).
    """

    def __init__(self, phrases, encoder, denoiser, order, tau, pixels, teacher_tau=0.03,
                 clip_tau=None, task=None, classes=(), witness=None):
        super().__init__()
        self.order, self.tau, self.pixels = order, tau, pixels
        self.teacher_tau, self.clip_tau = teacher_tau, clip_tau or tau
        self.arguments = {"encoder": encoder, "denoiser": denoiser, "order": order, "tau": tau,
                          "pixels": pixels, "teacher_tau": teacher_tau, "clip_tau": clip_tau,
                          "task": task, "classes": list(classes), "witness": witness}
        self.task, self.classes = task, list(classes)
        self.dim = D = phrases.shape[1]
        self.encoder = build_encoder(D, **encoder) if encoder else None
        needs_h = order != "none" or task in ("forecast", "activity")
        self.denoiser = Denoiser(dim=D, **denoiser) if needs_h else None
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
        """Eq. 6 for what h predicts, at the temperature tau / |x_hat|: the longer, the surer.

        log softmax_k <x_hat, y_k> / tau for texts of length 1; see `predictor`.
        """
        return losses.match(x_hat, self.phrases if texts is None else texts,
                            self.tau / x_hat.norm(dim=-1, keepdim=True))

    def read(self, x, texts=None):
        """`match` for observed clips, at the temperature that fits them."""
        return losses.match(x, self.phrases if texts is None else texts, self.clip_tau)

    def context(self, x):
        """What h reads of each clip (B, N, D): the clean point that Eq. 6 expects, times sqrt(D).

            sqrt(D) sum_k p(y_k | x_i) z_k

        Two clips of one step look alike to h, whatever else differs between them; the factor
        gives each coordinate a variance of about 1.
        """
        return self.read(x).exp() @ self.points * self.dim ** 0.5

    def predictor(self, x, observed, j):
        """h with its context fixed: the `predict` of diffusion.sample.

            x_hat = u / |u| + tau c_skip A x_j^t,    u = mean + GAIN h(point, context, t)

        Then <x_hat, y_k> / tau = cos(u, y_k) / tau + c_skip <x_j^t, z_k> + what all k share: the
        second is what x_j^t itself says of text k (Bayes' rule on Eq. 2), so that h is left with
        log p(k | context). Both are of one kind at any D. What h reads of x_j^t is the same, as the
        clean point that it lets expect, so that noisy clips look to it like observed ones:

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
                says = c_skip[t].unsqueeze(-1) * zt                    # (B, Q, D)
                point = (says @ self.points.T).softmax(-1) @ self.points * self.dim ** 0.5
            out = self.denoiser(memory, observed, point, j, t)
            with torch.autocast(x.device.type, enabled=False):
                u = self.mean + GAIN * out.float()
                x_hat = functional.normalize(u, dim=-1) + self.tau * says @ self.A
                return x_hat, self.match_predicted(x_hat).exp() @ self.points

        return predict

    def forecast(self, x, observed, j, noise):
        """Predict missing clips of each video, once per noise: (B, Q, D) -> x_hat (B, Q, D).

        They may be past, present or future: j (B, P) and `observed` (B, N) say. Several see each
        other while they are denoised: noise holds groups of P. Zeros for noise give the
        approximate inference. The mask model predicts once, whatever the noise.
        Draws with KAPPA = 1 reproduce the teacher's errors as well (README.md, Where we differ).
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

        x as `encode` and `forecast` give it: of length 1, or the longer the surer. In float32, as
        `match`. One tensor for each label set.
        """
        with torch.autocast(x.device.type, enabled=False):
            logits = self.classifier(x.float()) / self.tau
            return [part.log_softmax(-1) for part in logits.split(self.classes, -1)]


def same_texts(then, now):
    """Whether embeddings (K, D) are of the same texts by the same teacher, but for rounding."""
    return then.shape == now.shape and bool(
        (functional.cosine_similarity(then.cpu(), now.cpu()) > SAME).all())


def encode_parts(model, clips, part):
    """`model.encode`, `part` clips at a time, to train f with less memory; None: all at once.

    In parts, what f needs for its gradients is not kept but computed again on the way back
    (activation checkpointing): memory is that of one part, time 4/3, and the gradients are the
    same, since all that follows sees all embeddings at once.
    """
    if part is None:
        return model.encode(clips)
    from torch.utils.checkpoint import checkpoint
    return torch.cat([checkpoint(model.encode, some, use_reentrant=False, preserve_rng_state=False)
                      for some in clips.split(part)])


# ------------------------------------------------------------------------------------------------
# Checkpoints: tensors and plain types, so that weights_only=True loads them
# ------------------------------------------------------------------------------------------------
def save_checkpoint(path, model, before=None, **more):
    """Write the model and `more` (tensors and plain types) to path, whole or not at all.

    before: what the checkpoint that was there is called from then on; None: it is gone.
    """
    content = {"arguments": model.arguments, "model": model.state_dict(), **more}
    write_atomically(path, lambda file: torch.save(content, file), before)


def read_content(path):
    """What a file of weights holds, ours or not: a run folder, a torch file or safetensors -> dict.

    Nothing in the file is executed: tensors and plain types are read, anything else is refused.
    Raises: BadInput if there is none, it is cut off, or it would have to run code.
    """
    path = Path(path)
    path = path / "checkpoint.pt" if path.is_dir() else path
    if not path.is_file():
        raise BadInput(f"{path}: no such checkpoint; make one with "
                       "`python train.py --stage pretrain`")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file
            return load_file(path)
        with quiet():                          # torch also warns of what it then refuses
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:                 # torch names no class for a file it cannot load
        code = re.search(r"(?<=GLOBAL )[\w.]+|TorchScript", str(error))
        if code:
            tensors = ("torch.jit.load(FILE).state_dict()" if code[0] == "TorchScript" else
                       "torch.load(FILE, weights_only=False)['model_state']")
            raise BadInput(f"{path}: holds {code[0]}, which only code can read, and a file's code "
                           "is never run here; if you trust the file, save its tensors alone: "
                           f"torch.save({tensors}, NEW)") from None
        raise BadInput(f"{path}: cannot be read as a checkpoint ({type(error).__name__}); "
                       "is it cut off, or not a file of tensors and plain types?") from None


def is_ours(content):
    """Whether the content of a file was written by `save_checkpoint`."""
    return isinstance(content, dict) and {"arguments", "model"} <= content.keys()


def read_checkpoint(path):
    """The content of a checkpoint of ours: a run folder or a file -> dict on the CPU.

    Raises: BadInput as `read_content`, and if it is not one of ours.
    """
    content = read_content(path)
    if not is_ours(content):
        raise BadInput(f"{path}: not a checkpoint of train.py: it has no arguments and model")
    return content


def load_model(path):
    """A checkpoint as a model in eval mode, and the rest of its content.

    One of ours gives a ProcedureModel; a released one a released.Released, which answers the same
    questions.
    Raises: BadInput as `read_content`, and if the weights do not fit the arguments.
    """
    content = read_content(path)
    if not is_ours(content):
        from weights import build_released
        return build_released(path, content), {}
    try:
        if "released" in content["arguments"]:                 # written by `python weights.py`
            from weights.released import Released
            model = Released(**content["arguments"]["released"])
        else:
            model = ProcedureModel(content["model"]["phrases"], **content["arguments"])
        model.load_state_dict(content["model"])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise BadInput(f"{path}: its weights do not fit this code: {lines[-1].strip()}") from None
    return model.eval(), content
