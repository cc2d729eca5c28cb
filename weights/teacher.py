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
from support.read import fields_of


class TextTable(Teacher):
    """A teacher for features when the model itself is not at hand: an npz of names (K,), text, and
    their embeddings (K, D)."""
    size, reads_sentences, model = 0, False, nn.Identity()     # it looks at no pictures

    def __init__(self, path):
        need = "needed are names (K,), text, and embeddings (K, D), floats"
        with fields_of(path, need), np.load(path, allow_pickle=False) as file:
            embeddings = torch.from_numpy(file["embeddings"]).float()
            self.known = dict(zip(file["names"].tolist(), embeddings, strict=True))

    def encode_phrases(self, phrases):
        """K texts -> (K, D). InputError if the file lacks one."""
        absent = [phrase for phrase in phrases if phrase not in self.known]
        require(not absent, f"--clip: has no embedding of {', '.join(absent[:2])}")
        return torch.stack([self.known[phrase] for phrase in phrases])


def open_teacher(clip, clip_weights=None, device="cpu"):
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
        config = Path(clip.removeprefix("local-dir:")) / "open_clip_config.json"
        require("trust_remote_code" not in json.dumps(json.loads(config.read_bytes())),
                f"{config} asks for code of its own to be run; remove its trust_remote_code")
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


def texts_of(model, teacher, names):
    """The teacher's embeddings (S, D) of a label set, on the model's device. InputError for another
    teacher than the checkpoint was trained with, or for other classes than it is fine-tuned to."""
    config = model.config
    tuned = config.names or names                          # a published file holds no names
    first = next((pair for pair in zip(tuned, names) if pair[0] != pair[1]), (tuned[0], names[0]))
    require(not config.task or [*config.classes] == [len(names)] and [*tuned] == [*names],
            f"{model.path}: is fine-tuned to {sum(config.classes)} classes, such as {first[0]!r}; "
            f"here are {len(names)}, with {first[1]!r} in its place; give the --data or --steps of "
            "its training")
    texts = teacher.encode_phrases(names).to(model.phrases.device)
    same = texts.shape[1] == model.dim
    if same and config.first_phrase is not None:
        now = teacher.encode_phrases([config.first_phrase]).to(model.phrases)
        same = functional.cosine_similarity(now, model.phrases[:1]).item() > 0.999
    require(same, f"{model.path}: was trained with another teacher, whose embeddings differ; "
            "give the same --clip and --clip-weights (the toy world's is --clip toy)")
    return texts
