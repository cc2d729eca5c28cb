"""The teacher for real videos: a pre-trained image-language model of open_clip, by name."""
import json
from pathlib import Path
from textwrap import shorten

import numpy as np
import open_clip
import torch
from torch import nn

from pseudo_labels import Teacher
from support.errors import InputError, require
from support.tensors import read_npz

PAIRS = "expected names (K,), text, and embeddings (K, D), finite floats"


class TextTable(Teacher):
    """A teacher for features when the model itself is not at hand: an npz of names (K,), text, and
    their embeddings (K, D)."""
    size, reads_sentences, model = 0, False, nn.Identity()     # it looks at no pictures

    def __init__(self, path):
        arrays = read_npz(path, PAIRS)
        names, rows = arrays.get("names"), arrays.get("embeddings")
        require(names is not None and rows is not None, f"{path}: has {', '.join(arrays)}; {PAIRS}")
        fits = names.ndim == 1 and rows.ndim == 2 and len(names) == len(rows) > 0
        kinds = names.dtype.kind + rows.dtype.kind
        require(fits and kinds == "Uf" and np.isfinite(rows).all(), f"{path}: other types, shapes "
                f"or numbers; {PAIRS}")
        self.known = dict(zip(names.tolist(), torch.from_numpy(rows).float(), strict=True))

    def encode_phrases(self, phrases):
        """K texts -> (K, D). InputError if the file lacks one."""
        absent = [phrase for phrase in phrases if phrase not in self.known]
        require(not absent, f"--clip: has no embedding of {', '.join(absent[:2])}")
        return torch.stack([self.known[phrase] for phrase in phrases])


def require_no_code(path):
    """InputError if an open_clip_config.json is damaged, or asks for code to be run."""
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is no JSON ({shorten(str(error), 80)}); get it again") from None
    require(isinstance(config, dict), f"{path}: is no JSON object; get it again")
    require("trust_remote_code" not in json.dumps(config), f"{path} asks for code of its own to be "
            "run; remove its trust_remote_code")


def open_pretrained(clip, clip_weights=None, device="cpu"):
    """A pre-trained image-language model -> Teacher, with its own picture preprocessing.

    clip: a model of open_clip; "local-dir:DIR", with open_clip_config.json and weights; T.npz, a
    TextTable; None, as of a published checkpoint: the paper's. clip_weights: a tag of open_clip
    (default "openai"), or a file, which does not say if it needs a -quickgelu model. InputError
    if they do not fit.
    """
    clip = clip or "ViT-B-16-quickgelu"
    if clip.endswith(".npz"):
        return TextTable(clip)
    if clip.startswith("local-dir:"):
        require(clip_weights is None, f"--clip-weights {clip_weights}: {clip} has its own")
        require_no_code(Path(clip.removeprefix("local-dir:")) / "open_clip_config.json")
    else:
        require(clip in open_clip.list_models(), f"--clip {clip}: not in open_clip.list_models(); "
                "a folder is given as local-dir:DIR, text embeddings as an existing FILE.npz")
        clip_weights = clip_weights or "openai"
        quick = open_clip.get_pretrained_cfg(clip, clip_weights).get("quick_gelu")
        require(not quick or open_clip.get_model_config(clip).get("quick_gelu"),
                f"--clip {clip}: {clip_weights} needs QuickGELU; use --clip {clip}-quickgelu")
    try:
        model = open_clip.create_model(clip, clip_weights, require_pretrained=True)
        tokenizer = open_clip.get_tokenizer(clip)
    except Exception as error:                 # each way of loading has another class
        raise InputError(f"--clip {clip} --clip-weights {clip_weights}: {shorten(str(error), 250)};"
                         " without a network, fetch its weights elsewhere (docs/data.md, Where to "
                         "get it) and give --clip-weights FILE") from None
    pictures = model.visual.preprocess_cfg
    return Teacher(model, tokenizer, pictures["mean"], pictures["std"], device)
