"""The teacher for real videos: a pre-trained image-language model of open_clip, by name."""
import json
from pathlib import Path
from textwrap import shorten

import numpy as np
import open_clip
import torch
from torch import nn
from torch.nn import functional

from pseudo_labels import Teacher
from support.errors import InputError, require
from support.tensors import read_npz

PAIRS = "needed are names (K,), text, and embeddings (K, D), finite floats"


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
                         " without a network, fetch it elsewhere and give --clip-weights FILE, with"
                         " only this model's tensors") from None
    pictures = model.visual.preprocess_cfg
    return Teacher(model, tokenizer, pictures["mean"], pictures["std"], device)


def require_classes(model, names):
    """InputError if a checkpoint is fine-tuned to other classes than `names`, with the first that
    differs."""
    config = model.config
    if config.task is None:
        return
    tuned = config.names or names                          # a published file holds no names
    if list(config.classes) == [len(names)] and list(tuned) == list(names):
        return
    known, here = tuned[0], names[0]
    for one, other in zip(tuned, names):
        if one != other:
            known, here = one, other
            break
    raise InputError(f"{model.path}: is fine-tuned to {sum(config.classes)} classes, such as "
                     f"{known!r}; here are {len(names)}, with {here!r} in its place; give the "
                     "--data or --steps of its training")


def texts_of(model, teacher, names):
    """The teacher's embeddings (S, D) of a label set, on the model's device. InputError for another
    teacher than the checkpoint was trained with, or for other classes than it is fine-tuned to. If
    the model has no text space, any teacher will do."""
    require_classes(model, names)
    texts = teacher.encode_phrases(names).to(model.phrases.device)
    if not model.config.text_space:                    # nothing of the model's is matched with them
        return texts
    first, same = model.config.first_phrase, texts.shape[1] == model.dim
    if same and first is not None and len(model.phrases):
        now = teacher.encode_phrases([first]).to(model.phrases)
        same = functional.cosine_similarity(now, model.phrases[:1]).item() > 0.999
    require(same, f"{model.path}: was trained with another teacher, whose embeddings differ; "
            "give the same --clip and --clip-weights (the toy world's is --clip toy)")
    return texts
