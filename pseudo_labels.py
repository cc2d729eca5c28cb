"""Soft targets from a pre-trained image-language model: which step phrases does a clip show?

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.2, "Pseudo Labels from CLIP", and
appendix B for the prompts.

    paper        here                    shape       meaning
    g            Teacher.encode_phrases  (K, D)      fixed text encoder, mean over 28 prompts
    y^{1:K}      texts                   (K, D)      the pool's embeddings, of any length
    -            Teacher.encode_clips    (C, D)      image features, mean over frames
    -            clip_features           (C, D)      the same, or features of what is said
    p'_i         soft_targets            (..., K)    softmax of cosines: the target of clip i
    n frames, C clips, m sentences, K phrases, D embedding.

The teacher is any open_clip model: ViT-B/16 with OpenAI's weights for real videos
(weights/teacher.py), a tiny one for the toy world (toy/teacher.py).
"""
import torch
from open_clip.model import convert_weights_to_fp16
from torch.nn import functional
from torchvision.transforms.v2 import functional as transform
from tqdm import tqdm

from losses import match

# 4 x 7 action templates (the paper's footnote: those of CLIP for Kinetics-700).
WHATS = "a photo", "a video", "a example", "a demonstration"                   # CLIP's words
HOWS = ("{}.", "a person {}.", "a person using {}.", "a person doing {}.", "a person during {}.",
        "a person performing {}.", "a person practicing {}.")
PROMPTS = []
for what in WHATS:
    PROMPTS += [f"{what} of {how}" for how in HOWS]


def resize_and_crop(pixels, size):
    """(n, 3, H, W) float, 0-255 -> (n, 3, size, size) as CLIP does: by the short side, centered."""
    pixels = transform.resize(pixels, [size], transform.InterpolationMode.BICUBIC)
    return transform.center_crop(pixels, [size]).clamp(0, 255)             # bicubic overshoots


class Teacher:
    """An open_clip model as the paper uses it: frozen, in eval mode.

    Args:
        model:     an open_clip.CLIP.
        tokenizer: callable, list of str -> (n, context) int64.
        mean, std: of the pixels / 255 that the model expects: a number, or three (RGB).
        device:    where to run.
    """
    reads_sentences = True                     # a table of phrases does not

    def __init__(self, model, tokenizer, mean, std, device="cpu"):
        self.model = model.eval().requires_grad_(False).to(device)
        self.tokenizer, self.device = tokenizer, torch.device(device)
        self.mean = torch.tensor(mean, device=device).view(-1, 1, 1)
        self.std = torch.tensor(std, device=device).view(-1, 1, 1)
        size = model.visual.image_size
        self.size = size if isinstance(size, int) else size[0]              # side, pixels
        if self.device.type == "cuda":             # of the image encoder; once, not at each call
            convert_weights_to_fp16(self.model.visual)

    @torch.no_grad()
    def encode_phrases(self, phrases):
        """g: K texts -> (K, D) float32, on the CPU. The text features of the 28 prompts are
        averaged without normalizing them, as in the released embeddings."""
        rows = []
        for phrase in tqdm(phrases, desc="phrases", mininterval=1, delay=2):   # no bar within 2 s
            tokens = self.tokenizer([prompt.format(phrase) for prompt in PROMPTS])
            rows.append(self.model.encode_text(tokens.to(self.device)).float().mean(0))
        return torch.stack(rows).cpu()

    @torch.no_grad()
    def encode_texts(self, texts):
        """g without prompts: m texts -> (m, D) float32, of any length, on `device`. The tokenizer
        truncates what is longer than the model's context."""
        return self.model.encode_text(self.tokenizer(texts).to(self.device)).float()

    def encode_sentences(self, sentences):
        """`encode_texts` of narrations: m texts -> (m, D) float32, unit length, on the CPU."""
        return functional.normalize(self.encode_texts(sentences), dim=-1).cpu()

    @torch.no_grad()
    def encode_frames(self, frames):
        """Frames (n, 3, H, W) uint8 of any size -> (n, D) float32, unit length, on `device`. On a
        GPU in float16: a third of the time. (With float32 weights under autocast, bfloat16 changed
        the likeliest phrase of 1.5% of the clips, float16 of none.)"""
        pixels = resize_and_crop(frames.to(self.device).float(), self.size)
        pixels = (pixels / 255 - self.mean) / self.std
        with torch.autocast(self.device.type, torch.float16, enabled=self.device.type == "cuda"):
            features = self.model.encode_image(pixels)
        return functional.normalize(features.float(), dim=-1)

    def encode_clips(self, clips):
        """Clips (C, F, 3, H, W) uint8 -> (C, D): the mean over their frames (Sec. 3.2), float32.
        Features (C, D), float, are returned as they are."""
        if clips.is_floating_point():
            return clips
        at_once = len(clips) if self.device.type == "cuda" else 16
        parts = [self.encode_frames(part.flatten(0, 1)) for part in clips.split(at_once)]
        return torch.cat(parts).unflatten(0, clips.shape[:2]).mean(1)


def clip_features(teacher, seen, said, targets="vision"):
    """The teacher's features of C clips, from which soft targets are made: (C, D) float.

    Args:
        seen:    what the teacher sees of the clips, for `encode_clips`.
        said:    what is said during the N clips of each video: [(weights (N, m), m texts), ...].
        targets: "vision": of frames, as in the paper; "narration": the mean of the sentences of a
                 clip; "both": the mean of the two, each at length 1. (In the release, speech keeps
                 its length: support/release.py.)
    """
    if targets == "vision":
        return teacher.encode_clips(seen)
    spoken = torch.cat([torch.from_numpy(share) @ teacher.encode_sentences(texts)
                        for share, texts in said])
    spoken = functional.normalize(spoken, dim=-1).to(teacher.device)               # (C, D)
    if targets == "narration":
        return spoken
    return (functional.normalize(teacher.encode_clips(seen), dim=-1) + spoken) / 2


def soft_targets(features, texts, tau):
    """p': how well each phrase of the pool fits a clip, by Eq. 6 with the teacher's features.

        p'_k = exp(cos(feature, y_k) / tau) / sum_l exp(cos(feature, y_l) / tau)

    Args:    features (..., D): a clip's mean over frames, or its narration's; texts (K, D): of the
             pool.
    Returns: (..., K) float, rows sum to 1, without gradient.
    """
    return match(features, texts, tau).exp().detach()
