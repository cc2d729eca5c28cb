"""The teacher for real videos: a pre-trained image-language model of open_clip, by name."""
import json
from pathlib import Path
from textwrap import shorten

import open_clip

from pseudo_labels import Teacher
from support.errors import InputError, require


def open_teacher(clip, clip_weights=None, device="cpu"):
    """A pre-trained image-language model -> Teacher, with its own picture preprocessing.

    clip: a model of open_clip, or "local-dir:DIR", with open_clip_config.json and weights; None:
    the paper's, as is said. clip_weights: a tag of open_clip, by default "openai", or a file, which
    does not tell whether it needs a -quickgelu model. InputError if they do not fit.
    """
    if clip is None:
        clip = "ViT-B-16-quickgelu"
        print(f"the checkpoint names no teacher: OpenAI's {clip} is assumed; --clip takes another")
    if clip.startswith("local-dir:"):
        require(clip_weights is None, f"--clip-weights {clip_weights}: {clip} has its own")
        config = Path(clip.removeprefix("local-dir:")) / "open_clip_config.json"
        require(config.is_file(), f"--clip {clip}: no {config}")
        require("trust_remote_code" not in json.dumps(json.loads(config.read_bytes())),
                f"{config} asks for code of its own to be run; remove its trust_remote_code")
    else:
        require(clip in open_clip.list_models(), f"--clip {clip}: not in open_clip.list_models()")
        clip_weights = clip_weights or "openai"
        quick = open_clip.get_pretrained_cfg(clip, clip_weights).get("quick_gelu")
        require(not quick or open_clip.get_model_config(clip).get("quick_gelu"),
                f"--clip {clip}: {clip_weights} needs QuickGELU; use --clip {clip}-quickgelu")
    try:
        model = open_clip.create_model(clip, clip_weights, require_pretrained=True)
        tokenizer = open_clip.get_tokenizer(clip)
    except Exception as error:                 # a class for each way of loading
        raise InputError(f"--clip {clip} --clip-weights {clip_weights}: "
                         f"{shorten(str(error).split('. ')[0], 250)}; a file must be whole, of "
                         "this model's tensors only; without a network, fetch it elsewhere and "
                         "give --clip-weights FILE") from None
    pictures = model.visual.preprocess_cfg
    return Teacher(model, tokenizer, pictures["mean"], pictures["std"], device)
