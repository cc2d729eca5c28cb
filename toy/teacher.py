"""The toy world's teacher (Sec. 3.2): a small open_clip.CLIP, trained on single pictures.

Its weights come with the code, toy/teacher.pt; `python -m toy teacher` trains it again.
"""
import itertools
import math
from pathlib import Path

import numpy as np
import open_clip
import torch
from tqdm import trange

from support.write import write_atomically
from toy import grammar
from toy.render import MEAN, OBJECTS, SIZE, STD, STEP_SENTENCES, TOOLS, appearance, draw_frames, say

TEACHER_FILE = Path(__file__).with_name("teacher.pt")
HOWTO_FILE = Path(__file__).with_name("howto.txt")         # line i is a sentence for phrase i
VISION = {"image_size": SIZE, "layers": [1, 1, 1, 1], "width": 16, "patch_size": None}
TEXT = {"context_length": 24, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 1}
MODEL = {"embed_dim": 64, "init_logit_scale": math.log(1 / .03), "vision_cfg": VISION,
         "text_cfg": TEXT}
PREPROCESS = {"mean": [MEAN] * 3, "std": [STD] * 3}
TEACHER_CONFIG = {"model_cfg": MODEL, "preprocess_cfg": PREPROCESS}    # open_clip_config.json
# With so few pictures it overfits to clutter and noise; training f on many clips averages that out.
IMAGES, UPDATES, BATCH, LR = 1_200, 150, 256, 2e-3
RANDOM_PAIR, DROPPED_WORD, WRONG_WORD, SENTENCES = .3, .15, .15, .5     # shares of the captions
TEXTS = 4                                          # captions of a picture
TOKEN_SEED, TOKEN_STD = (0, 4), .02                # of the token embedding; the std is open_clip's
CAPTIONS = ("{}", "a photo of {}.", "a photo of a person {}.", "a video of a person doing {}.",
            "a demonstration of {}.", "how to {}", "a person {} at home", "an example of {}.",
            "a person using {}.", "a person performing {}.", "a person during {}.")


def caption(phrase, howto, rng):
    """A caption for a picture of this phrase. A word may be left out or wrong. A share SENTENCES of
    those in the pool are speech, or from howto {phrase: sentence}, since CLIP has read both."""
    form = CAPTIONS[rng.integers(len(CAPTIONS))]
    if phrase in howto and rng.random() < SENTENCES:
        if rng.random() < .5:
            return say(rng.choice(STEP_SENTENCES), phrase, rng)
        return form.format(howto[phrase])
    verb, thing = phrase.split()
    error = rng.random()
    if error < WRONG_WORD:
        if rng.random() < .5:
            verb = TOOLS[rng.integers(len(TOOLS))]
        else:
            thing = OBJECTS[rng.integers(len(OBJECTS))]
        if f"{verb} {thing}" in grammar.HELD_OUT:
            verb = "make"
    elif error < WRONG_WORD + DROPPED_WORD:
        if rng.random() < .5:
            thing = ""
        else:
            verb = ""
    return form.format(f"{verb} {thing}".strip())


def captioned_pictures(n, rng):
    """n pictures, (n, 3, SIZE, SIZE) uint8, none of a held-out pair; TEXTS lists of n captions."""
    pairs = [f"{verb} {thing}" for verb, thing in itertools.product(TOOLS, OBJECTS)]
    every = sorted(set(pairs) - set(grammar.HELD_OUT))
    is_pair = rng.random(n) < RANDOM_PAIR                      # any pair, or a phrase of the pool
    phrases = []
    for k in range(n):
        pool = every if is_pair[k] else grammar.PHRASES
        phrases.append(pool[rng.integers(len(pool))])
    objects, tools, _ = np.array([appearance(phrase) for phrase in phrases]).T
    lamps = rng.integers(-1, 2, n)                             # no caption tells which
    pictures = draw_frames(objects, tools, lamps, np.arange(n), rng.random(n), rng)
    howto = dict(zip(grammar.PHRASES, HOWTO_FILE.read_text("utf-8").splitlines(), strict=True))
    captions = []
    for _ in range(TEXTS):
        captions.append([caption(phrase, howto, rng) for phrase in phrases])
    return pictures, captions


def build_teacher():
    """The teacher, untrained, and its tokenizer. Its input is (pixels / 255 - MEAN) / STD."""
    model = open_clip.CLIP(**MODEL)
    # Few of the 49,408 rows are used, and trained ones are no better than random ones. NumPy draws
    # the same rows on every machine, so no file has to hold them (12 MB).
    tokens = model.token_embedding.weight.requires_grad_(False)                       # (49408, 64)
    normal = np.random.default_rng(TOKEN_SEED).standard_normal(tokens.shape, np.float32)
    tokens.copy_(torch.from_numpy(normal * TOKEN_STD))
    return model, open_clip.get_tokenizer("RN50", context_length=model.context_length)


def train_teacher():
    """Contrastive training from torch's seed 0 -> the model in eval mode."""
    torch.manual_seed(0)
    pictures, captions = captioned_pictures(IMAGES, np.random.default_rng((0, 3)))
    model, tokenizer = build_teacher()
    pictures = torch.from_numpy(pictures)                                     # (IMAGES, 3, H, W)
    tokens = torch.stack([tokenizer(texts) for texts in captions])            # (TEXTS, IMAGES, 24)
    optimizer = torch.optim.AdamW(model.parameters(), LR, (.9, .98), weight_decay=.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, UPDATES)
    contrastive = open_clip.ClipLoss()
    for _ in trange(UPDATES, desc="teacher", mininterval=1):
        batch, text = torch.randint(IMAGES, (BATCH,)), torch.randint(TEXTS, (BATCH,))
        x = model.encode_image((pictures[batch] / 255 - MEAN) / STD, normalize=True)       # (B, 64)
        y = model.encode_text(tokens[text, batch], normalize=True)                         # (B, 64)
        loss = contrastive(x, y, model.logit_scale.exp().clamp(max=100))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def write_weights(model):
    """Write the file of a trained teacher, in float16 for its size."""
    weights = model.state_dict()
    del weights["token_embedding.weight"]
    for name, value in weights.items():
        if value.is_floating_point():
            weights[name] = value.half()
    content = {"version": grammar.VERSION, "model": weights}
    write_atomically(TEACHER_FILE, lambda file: torch.save(content, file))
