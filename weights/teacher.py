"""The teacher for real videos: a pre-trained image-language model of open_clip, by name."""
import json
import zlib
from contextlib import suppress
from pathlib import Path
from textwrap import shorten

import open_clip

from pseudo_labels import Teacher
from support.command import BadInput, check, quiet
from support.device import require_finite
from weights.names import fetching, require_whole


def asks_for_code(file):
    """Whether a JSON file has a key with which transformers would run code of the file's folder."""
    with suppress(OSError, ValueError, RecursionError):    # no JSON: open_clip says what is wrong
        return "trust_remote_code" in json.dumps(json.loads(Path(file).read_bytes()))


def open_teacher(clip, weights=None, device="cpu"):
    """A pre-trained image-language model by name -> Teacher, with its own picture preprocessing.
    clip:    a model of open_clip; or "local-dir:DIR", with open_clip_config.json and weights.
    weights: a tag of open_clip, by default "openai"; or a file of tensors (not TorchScript).
             OpenAI's need a -quickgelu model; a file or folder does not say so."""
    given, tag = f"--clip {clip}", {}
    if clip.startswith("local-dir:"):
        check(weights is None, "clip_weights", weights, f"{clip} has its own; leave the flag out")
    else:
        weights = "openai" if weights is None else weights
        given += f" --clip-weights {weights}"
        tag = open_clip.get_pretrained_cfg(clip, weights)
        check(clip in open_clip.list_models(), "clip", clip, "no such model; "
              "open_clip.list_models() names all; or local-dir:DIR")
        check(not tag.get("quick_gelu") or open_clip.get_model_config(clip).get("quick_gelu"),
              "clip", clip, f"the weights {weights} were trained with the activation QuickGELU, "
              f"which this model lacks; use --clip {clip}-quickgelu")
    folder = Path(clip.removeprefix("local-dir:"))
    for file in (weights or "", *(folder.iterdir() if folder.is_dir() else ())):
        require_whole(file)
        check(not asks_for_code(file), "clip", clip, f"{file} asks for code of its own to be run, "
              "which is never done here; remove its trust_remote_code")
    try:
        with fetching() if tag else quiet():
            model = open_clip.create_model(clip, weights, require_pretrained=True)
            tokenizer = open_clip.get_tokenizer(clip)
    except Exception as error:                 # a class for each way of loading
        problem = shorten(str(error).split(". ")[0], 250, placeholder=" ...")      # one sentence
        raise BadInput(f"{given}: {type(error).__name__}: {problem}; a file must be whole and hold "
                       "this model's tensors only; without a network, fetch it elsewhere "
                       "and give --clip-weights FILE") from None
    require_finite(given, model.state_dict())
    pictures = model.visual.preprocess_cfg
    return Teacher(model, tokenizer, pictures["mean"], pictures["std"], device)


def checksum(teacher):
    """CRC-32 of a teacher's weights and of how it reads pictures: the same file may hold others."""
    crc = zlib.crc32(repr((teacher.size, teacher.mean.tolist(), teacher.std.tolist())).encode())
    for value in teacher.model.state_dict().values():
        crc = zlib.crc32(value.cpu().contiguous().numpy(), crc)
    return crc
