"""The teacher for real videos: a pre-trained image-language model of open_clip, by name."""
import difflib
from pathlib import Path
from textwrap import shorten

import open_clip

from pseudo_labels import Teacher
from support.command import BadInput, quiet


def check_weights(clip, weights):
    """BadInput unless open_clip has the model and `weights` is a file, or a tag that fits it."""
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
                       f"QuickGELU, which this model lacks; use --clip {clip}-quickgelu")


def open_teacher(clip, weights=None, device="cpu"):
    """A pre-trained image-language model by name -> Teacher.

    Args:
        clip:    a model of open_clip, "ViT-B-16-quickgelu"; or "local-dir:DIR", a folder with
                 open_clip_config.json and weights.
        weights: a tag of open_clip, by default "openai" (downloaded once, then cached by
                 open_clip); or a file, safetensors or a torch file of tensors. Nothing in it is
                 executed, so OpenAI's own ViT-B-16.pt, which is a program (TorchScript), is
                 refused. None with local-dir:DIR.
        device:  where to run.
    Mean, deviation and size of the pictures are those of the weights' preprocessing.

    OpenAI's weights were trained with the activation QuickGELU and need a -quickgelu model. A tag
    says so and is checked. A file or folder does not say what it was trained with: give OpenAI's
    weights to a model without QuickGELU, and it runs without a warning and its features are wrong.

    Raises: BadInput, one line, if there is no such model, tag or file, if the weights do not fit,
            if the tag needs another activation, or if the weights are not here and there is no
            network.
    """
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
    except Exception as error:                 # a class for each way of loading
        need = ("its file must be whole and hold tensors only, those of this model"
                if weights is None or Path(weights).is_file() else
                "without a network, give a downloaded file: --clip-weights FILE")
        problem = shorten(str(error).split(". ")[0], 250, placeholder=" ...")      # one sentence
        raise BadInput(f"--clip {clip}{given}: {type(error).__name__}: {problem}; {need}") from None
    pictures = model.visual.preprocess_cfg
    return Teacher(model, tokenizer, pictures["mean"], pictures["std"], device)
