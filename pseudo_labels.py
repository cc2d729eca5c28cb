"""Soft targets from a pre-trained image-language model: which step phrases does a clip show?

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.2, "Pseudo Labels from CLIP", and
appendix B for the prompts.

    paper        here                    shape       meaning
    g            Teacher.encode_phrases  (K, D)      fixed text encoder, mean over 28 prompts
    y^{1:K}      phrases                 (K, D)      the pool's embeddings, of any length
    -            Teacher.encode_frames   (n, D)      image features, unit length
    p'_i         soft_targets            (..., K)    softmax of cosines: the target of clip i
    -            estimate_tau            float       its temperature where nothing else gives it
    -            open_teacher            Teacher     a pre-trained model of open_clip, by name
    B videos, N clips, F frames, K phrases, D embedding.

The teacher is any open_clip model; the embedded world trains a tiny one (toy_render.py), and real
data has ViT-B/16 with OpenAI's weights. Both are reached through the class below.

    python pseudo_labels.py --phrases phrases.txt --out texts.npz       # g, once for all phrases
"""
if __name__ == "__main__":       # --help and a mistyped flag do not wait for torch to be imported
    from support.command import parse
    from settings_optional import TextSettings
    parse(TextSettings)

import difflib
import json
from pathlib import Path
from textwrap import shorten

import torch
from torch.nn import functional

from support.command import BadInput, pick_device, quiet, run, write_atomically
from settings_optional import TextSettings

# 4 x 7 action templates (the paper's footnote: those of CLIP for Kinetics-700).
PROMPTS = tuple(f"{what} of {how}" for what in ("a photo", "a video", "a example",
                                                "a demonstration")
                for how in ("{}.", "a person {}.", "a person using {}.", "a person doing {}.",
                            "a person during {}.", "a person performing {}.",
                            "a person practicing {}."))


def fit(pixels, size):
    """(n, 3, H, W), 0-255 -> (n, 3, size, size) as CLIP does: short side resized, middle kept."""
    H, W = pixels.shape[-2:]
    if (H, W) != (size, size):
        H, W = H * size // min(H, W), W * size // min(H, W)
        pixels = functional.interpolate(pixels, (H, W), mode="bicubic", antialias=True)
        top, left = round((H - size) / 2), round((W - size) / 2)
        pixels = pixels[..., top:top + size, left:left + size].clamp(0, 255)   # bicubic overshoots
    return pixels


class Teacher:
    """An open_clip model as the paper uses it: frozen, in eval mode.

    Args:
        model:     an open_clip.CLIP.
        tokenizer: callable, list of str -> (n, context) int64.
        mean, std: of the pixels / 255 that the model expects: a number, or three (RGB).
        device:    where to run.
    """

    def __init__(self, model, tokenizer, mean, std, device="cpu"):
        self.model, self.tokenizer = model.eval().requires_grad_(False).to(device), tokenizer
        self.mean, self.std = (torch.tensor(value, device=device).view(-1, 1, 1)
                               for value in (mean, std))
        self.device = torch.device(device)
        size = model.visual.image_size
        self.size = size if isinstance(size, int) else size[0]              # side, pixels

    @torch.no_grad()
    def encode_phrases(self, phrases):
        """g: K texts -> (K, D) float32, on the CPU.

        The mean over the 28 prompts of the un-normalised text features; it is normalised where it
        is used (Eq. 6), as in the released embeddings.
        """
        rows = []
        for phrase in phrases:
            tokens = self.tokenizer([prompt.format(phrase) for prompt in PROMPTS])
            rows.append(self.model.encode_text(tokens.to(self.device)).float().mean(0))
        return torch.stack(rows).cpu()

    @torch.no_grad()
    def encode_sentences(self, sentences):
        """g without prompts, for what is said: m texts -> (m, D) float32, unit length, on the CPU.

        A sentence longer than the model's context is cut off.
        """
        if not sentences:
            return torch.zeros(0, self.model.text_projection.shape[1])
        tokens = self.tokenizer(sentences).to(self.device)
        return functional.normalize(self.model.encode_text(tokens).float(), dim=-1).cpu()

    @torch.no_grad()
    def encode_frames(self, frames):
        """Frames (n, 3, H, W) uint8 -> (n, D) float32, unit length, on `device`.

        Frames of another size than the model's are made to fit: see `fit`.
        """
        pixels = fit(frames.to(self.device, non_blocking=True).float(), self.size)
        pixels = (pixels / 255 - self.mean) / self.std
        return functional.normalize(self.model.encode_image(pixels).float(), dim=-1)


def soft_targets(features, phrases, tau):
    """p': how well each phrase of the pool fits a clip: Eq. 6 with the teacher's features.

    Args:
        features: (..., D) float. A clip's image features, averaged over its frames.
        phrases:  (K, D) float. The pool's text embeddings. Both are normalised here.
        tau:      float > 0, temperature. The paper gives only the student's 0.02.
    Returns: (..., K) float, rows sum to 1, without gradient.
    """
    with torch.autocast(features.device.type, enabled=False):       # float32, as losses.match
        cosine = functional.normalize(features, dim=-1) @ functional.normalize(phrases, dim=-1).T
        return (cosine / tau).softmax(-1).detach()


def estimate_tau(features, phrases, rounds=30):
    """The temperature at which Eq. 6 is calibrated for given clip features, without labels.

    A unit feature is taken as a y_k + noise of variance (1 - a^2) / D in each direction; then
    p(k | x) is the softmax of cos(x, y_k) / tau with tau = (1 - a^2) / (D a). The cosine a of a
    clip with its own text is not known, so it is estimated in turn with p (expectation
    maximisation). For a features file, whose vision nobody here has trained.

    Args:    features (C, D), phrases (K, D), any length.
    Returns: float > 0.
    """
    x, D = functional.normalize(features.float(), dim=-1), features.shape[-1]
    cosine = x @ functional.normalize(phrases, dim=-1).T                       # (C, K)
    a = cosine.max(1).values.mean().clamp(0.01, 0.99)
    for _ in range(rounds):
        tau = (1 - a ** 2) / (D * a)
        a = ((cosine / tau).softmax(1) * cosine).sum(1).mean().clamp(0.01, 0.99)
    return float((1 - a ** 2) / (D * a))


# ------------------------------------------------------------------------------------------------
# The real teacher, from open_clip
# ------------------------------------------------------------------------------------------------
def check_weights(clip, weights):
    """BadInput unless open_clip has the model, and `weights` is a file or a tag that fits it."""
    import open_clip

    if clip not in open_clip.list_models():
        near = difflib.get_close_matches(clip, open_clip.list_models(), 3, 0)
        raise BadInput(f"--clip {clip}: no such model in open_clip; near: {', '.join(near)}, or "
                       "local-dir:DIR")
    tag = open_clip.get_pretrained_cfg(clip, weights)
    if not tag and not Path(weights).is_file():
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(clip)) or "none"
        raise BadInput(f"--clip-weights {weights}: neither a file nor a tag of {clip}; its tags: "
                       f"{tags}")
    if tag.get("quick_gelu") and not open_clip.get_model_config(clip).get("quick_gelu"):
        raise BadInput(f"--clip {clip}: the weights {weights} were trained with the activation "
                       f"QuickGELU, which this model has not; use --clip {clip}-quickgelu")


def require_activation(model, clip, given):
    """BadInput if these are OpenAI's weights, trained with QuickGELU, in a model without it.

    A file does not say whose weights it has. OpenAI's are known by their values, all of which are
    those of float16. Other weights that were stored so are taken for theirs, unless the config of
    a local-dir says "quick_gelu": false. Others' weights in a -quickgelu model cannot be told.
    """
    import open_clip

    folder = clip.removeprefix("local-dir:")
    config = (open_clip.get_model_config(clip) if folder == clip else
              json.loads((Path(folder) / "open_clip_config.json").read_text())["model_cfg"])
    layers = [weight for name, weight in model.named_parameters() if name.endswith("c_fc.weight")]
    if (layers and "quick_gelu" not in config
            and all(torch.equal(weight, weight.half().float()) for weight in layers)):
        use = (f"use --clip {clip}-quickgelu" if folder == clip else
               'write "quick_gelu": true into the model_cfg of its config (or false, if they are '
               "not OpenAI's)")
        raise BadInput(f"--clip {clip}{given}: by their values (of float16) these weights are "
                       f"OpenAI's, trained with QuickGELU, which this model has not; {use}")


def open_teacher(clip, weights=None, device="cpu"):
    """A pre-trained image-language model by name -> Teacher.

    Args:
        clip:    a model of open_clip, "ViT-B-16-quickgelu"; or "local-dir:DIR", a folder with
                 open_clip_config.json and weights.
        weights: a tag of open_clip, by default "openai" (downloaded once, then kept by open_clip);
                 or a file, safetensors or a torch file of tensors. Nothing in it is executed, so
                 OpenAI's own ViT-B-16.pt, which is a program (TorchScript), is refused.
                 None with local-dir:DIR.
        device:  where to run.
    Mean, deviation and size of the pictures are those of the weights' preprocessing.
    Raises: BadInput, one line, if there is no such model, tag or file, if the weights do not fit or
            were trained with another activation, or if they are not here and there is no network.
    """
    import open_clip

    if clip.startswith("local-dir:"):
        folder = Path(clip.removeprefix("local-dir:"))
        if weights is not None:
            raise BadInput(f"--clip-weights {weights}: {clip} has its own; leave the flag out")
        if not (folder / "open_clip_config.json").is_file():
            raise BadInput(f"--clip {clip}: no open_clip_config.json in {folder}; a folder as "
                           "open_clip writes it is needed")
    else:
        weights = "openai" if weights is None else weights
        check_weights(clip, weights)
    given = "" if weights is None else f" --clip-weights {weights}"
    try:
        with quiet():
            model = open_clip.create_model(clip, weights, require_pretrained=True)
            tokenizer = open_clip.get_tokenizer(clip)
    except Exception as error:                 # as many classes as there are kinds of weights
        need = ("its file must be whole and hold tensors only, those of this model"
                if weights is None or Path(weights).is_file() else
                "without a network, give a downloaded file: --clip-weights FILE")
        problem = shorten(str(error).split(". ")[0], 250, placeholder=" ...")      # one sentence
        raise BadInput(f"--clip {clip}{given}: {type(error).__name__}: {problem}; {need}") from None
    require_activation(model, clip, given)
    pictures = model.visual.preprocess_cfg
    return Teacher(model, tokenizer, pictures["mean"], pictures["std"], device)


# ------------------------------------------------------------------------------------------------
# The command: g of a file of phrases, computed once
# ------------------------------------------------------------------------------------------------
def main(settings):
    import numpy as np
    from tqdm import tqdm

    from files.listings import load_phrases

    names = [phrase.text for phrase in load_phrases(settings.phrases)]
    teacher = open_teacher(settings.clip, settings.clip_weights, pick_device(settings.device))
    embeddings = torch.cat([teacher.encode_phrases([name])
                            for name in tqdm(names, desc="phrases", mininterval=1)])     # (K, D)
    write_atomically(settings.out, lambda file: np.savez(file, names=np.array(names),
                                                         embeddings=embeddings.numpy()))
    print(f"{settings.out}: {len(names)} phrases, D = {embeddings.shape[1]}")


if __name__ == "__main__":
    run(main, TextSettings)
