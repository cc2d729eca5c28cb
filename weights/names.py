"""Files of weights, ours and published: their tensors under the names of our modules, and sizes.

    file                                            its names                      here
    TimeSformer, DistantSup .pyth                   model.*                        encoder.*
    ProcedureVRL .pyth, pre-trained                 model.*, model.order_tfm.*     denoiser.*
    the same, fine-tuned                            model.head_cls                 classifier
    the same, EPIC-Kitchens                         model.head_v, model.head_n     classifier
    the same, with MViT-v2                          model.video_encoder.*          encoder.body.*
    an image model of timm, or torchvision's vit    blocks.*; encoder.layers.*     encoder.*
    torchvision's mvit_v2_s                         conv_proj.*, blocks.*          encoder.body.*
"""
import json
import math
import re
import zipfile
from collections import Counter
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import huggingface_hub
import torch

from losses import TAU
from support.command import BadInput, quiet, require
from support.device import digest_of, read_tensors

# Facts of the release that are not in its files.
HEAD_WIDTH = 64                # of TimeSformer: 12 heads at 768
KV_STRIDE = 8                  # of MViT's first stage
ORDER_HEADS = 8                # of h, at any width
PIXELS = 0.45, 0.225           # mean and deviation of pixels / 255
BETA = 1e-4, 0.02              # of the first and the last noise level
ACTIVITIES = 180               # of COIN: a classifier of so many is one of activities, not steps
DAMAGED = "is damaged: its bytes are not those that were written"
WRAPPER = r"^(module\.|model\.|_orig_mod\.)+"        # of DataParallel, the release, torch.compile
# CLIP's text tower, padding in training, the classifier of torchvision's MViT; under our names.
LEFT_OUT = ("encoder.text_model.", "denoiser.pad_embedding.", "encoder.body.head.")
TOKEN = "encoder.body.pos_encoding.class_token"
RENAMES = (                    # (regular expression, replacement), one after the other
    # torchvision's ViT, as timm and TimeSformer name it
    (r"^class_token$", "cls_token"), (r"^encoder\.pos_embedding$", "pos_embed"),
    (r"^conv_proj\.", "patch_embed.proj."), (r"^encoder\.ln\.", "norm."),
    (r"^encoder\.layers\.encoder_layer_(\d+)\.", r"blocks.\1."),
    (r"^(blocks\.\d+)\.ln_([12])\.", r"\1.norm\2."),
    (r"\.self_attention\.in_proj_", ".attn.qkv."), (r"\.self_attention\.out_proj\.", ".attn.proj."),
    (r"^(blocks\.\d+)\.mlp\.(0|linear_1)\.", r"\1.mlp.fc1."),
    (r"^(blocks\.\d+)\.mlp\.(3|linear_2)\.", r"\1.mlp.fc2."), (r"^heads\.head\.", "head."),
    # the release
    (r"^order_tfm\.", "denoiser."), (r"\.type_embedding\.", ".role."),
    (r"\.temporalEmbedding\.", ".position."), (r"\.temporalModelling\.", ".transformer."),
    (r"\.time_mlp\.1\.", ".level.0."), (r"\.time_mlp\.3\.", ".level.2."),
    (r"^head_(cls|v|n)\.", r"classifier.\1."), (r"^video_encoder\.", "encoder.body."),
    (r"^(?!denoiser|classifier|encoder\.)", "encoder."),
    # SlowFast's MViT-v2, as torchvision names it
    (r"^encoder\.body\.cls_token$", TOKEN),
    (r"^encoder\.body\.patch_embed\.proj\.", "encoder.body.conv_proj."),
    (r"(body\.blocks\.\d+)\.proj\.", r"\1.project."), (r"(body\..*attn)\.proj\.", r"\1.project.0."),
    (r"(\.pool_[qkv])\.weight$", r"\1.pool.weight"), (r"\.norm_([qkv])\.", r".pool_\1.norm_act.0."),
    (r"(body\..*\.mlp)\.fc1\.", r"\1.0."), (r"(body\..*\.mlp)\.fc2\.", r"\1.3."))


@contextmanager
def fetching():
    """Within it open_clip and timm fetch weights, quietly; without a network, from a cache."""
    try:
        huggingface_hub.get_hf_file_metadata(huggingface_hub.constants.ENDPOINT, timeout=5)
    except huggingface_hub.errors.HfHubHTTPError:      # it has answered
        pass
    except Exception:                                  # another class in each version
        huggingface_hub.constants.HF_HUB_OFFLINE = True
    with quiet():
        yield


def require_whole(path):
    """BadInput if the checksums of a torch file are wrong: torch.load does not look at them."""
    try:
        damaged = zipfile.is_zipfile(path) and zipfile.ZipFile(path).testzip()
    except Exception:                          # of a damaged list of parts
        damaged = True
    require(not damaged, f"{path}: {DAMAGED}")


def read_content(path):
    """The content of a run folder, a torch file or safetensors: a dict, {} if it holds no dict.
    BadInput if the file is absent, damaged (by checksums, or the digest of experiments/runs.py),
    or could only be read by running code."""
    path = Path(path)
    path = path / "checkpoint.pt" if path.is_dir() else path
    require(path.is_file(), f"{path}: no such checkpoint; make one with `python train.py --stage "
            "pretrain`")
    require_whole(path)
    whole = True
    try:
        if path.suffix == ".safetensors":
            content, said = read_tensors(path)
            if "arguments" in said:
                whole = said.pop("digest", None) == digest_of(content, said)
                content = {"arguments": json.loads(said["arguments"]), "model": content}
        else:
            with quiet():                      # torch warns of a file before it refuses it
                content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:                 # torch documents no class for what it cannot load
        code = re.search(r"(?<=GLOBAL )[\w.]+|TorchScript", str(error))
        raise BadInput(f"{path}: cannot be read as a checkpoint ({type(error).__name__}); is it "
                       "cut off, or not a file of tensors and plain types?" if not code else
                       f"{path}: holds {code[0]}, which only code can read, and a file's code is "
                       "never run here; if you trust the file, load it yourself and torch.save "
                       "its state_dict, tensors alone, to a new one") from None
    require(whole, f"{path}: {DAMAGED}")
    return content if isinstance(content, dict) else {}


def plain_tensors(content):
    """Those of {name: value} that are weights, float32: in main memory, each stored in the file."""
    return {name: value.float() for name, value in content.items()
            if isinstance(name, str) and isinstance(value, torch.Tensor)
            and value.is_floating_point() and value.layout == torch.strided and value.is_cpu
            and value.numel() * value.element_size() <= value.untyped_storage().nbytes()}


def renamed(path, tensors, old, new):
    """{name: tensor} with the pattern `old` replaced in names; BadInput if two become one."""
    names = [re.sub(old, new, name) for name in tensors]
    twice = [name for name, count in Counter(names).items() if count > 1]
    require(not twice, f"{path}: holds {', '.join(twice[:2])} under two names; keep one")
    return dict(zip(names, tensors.values()))


def tensors_of(path, content):
    """Floating-point tensors of the file's content, ours or the header's, under our names."""
    for key in ("model_state", "state_dict", "model"):
        if isinstance(content.get(key), dict):
            content = content[key]
    tensors = renamed(path, plain_tensors(content), WRAPPER, "")
    if any(re.match(r"encoder\.(patch_embed|body)\.|denoiser\.", name) for name in tensors):
        return tensors                                                      # ours
    if "pos_encoding.class_token" in tensors:                               # torchvision's MViT
        tensors = {f"video_encoder.{name}": value for name, value in tensors.items()}
    for old, new in RENAMES:
        tensors = renamed(path, tensors, old, new)
    return {name: value.flatten() if name == TOKEN else value for name, value in tensors.items()
            if not name.startswith(LEFT_OUT)}


def count(names, start):
    """How many blocks there are: different numbers i in the names `start`i.*"""
    return len({name[len(start):].split(".")[0] for name in names if name.startswith(start)})


def join_classifiers(w):
    """Our one classifier (its logits are divided by tau) of published tensors; its label sets."""
    heads = [name for name in ("cls", "v", "n") if f"classifier.{name}.weight" in w]
    scale = TAU if any(name.startswith("denoiser.") for name in w) else 1.0
    tensors = {name: value for name, value in w.items() if not name.startswith("classifier.")}
    for part in ("weight", "bias") if heads else ():
        parts = [w[f"classifier.{head}.{part}"] for head in heads]
        tensors[f"classifier.{part}"] = scale * torch.cat(parts)
    return tensors, [len(w[f"classifier.{head}.weight"]) for head in heads]


def published_arguments(w, classes, heads):
    """Arguments of `build_model`, from the shapes of {name of ours: tensor}; raises anything."""
    denoiser = alpha_bar = None
    if "encoder.body.conv_proj.weight" in w:
        blocks = [f"encoder.body.blocks.{i}.attn." for i in range(count(w, "encoder.body.blocks."))]
        widths = [len(w[block + "project.0.weight"]) for block in blocks]
        (tall, head), long = w[blocks[0] + "rel_pos_h"].shape, len(w[blocks[0] + "rel_pos_t"])
        encoder = {"kind": "mvit", "image": 2 * (tall + 1), "frames": long + 1, "width": widths[0],
                   "heads": widths[0] // head, "kv_stride": KV_STRIDE,
                   "stages": [len(list(same)) for _, same in groupby(widths)]}
    else:
        width, _, patch, _ = w["encoder.patch_embed.proj.weight"].shape
        if not heads and width % HEAD_WIDTH:
            raise ValueError(f"width {width}, how many heads? weights.load_released(FILE, heads=N)")
        encoder = {"image": math.isqrt(w["encoder.pos_embed"].shape[1] - 1) * patch,
                   "patch": patch, "width": width, "frames": w["encoder.time_embed"].shape[1],
                   "depth": count(w, "encoder.blocks."), "heads": heads or width // HEAD_WIDTH}
    if any(name.startswith("denoiser.") for name in w):
        layers = count(w, "denoiser.transformer.resblocks.")
        clips = len(w["denoiser.position.weight"])
        denoiser = {"layers": layers, "heads": ORDER_HEADS, "clips": clips}
        alpha_bar = (1 - torch.linspace(*BETA, layers)).cumprod(0).tolist()
    task = (None if not classes else "classify" if not denoiser else
            "activity" if classes == [ACTIVITIES] else "forecast")
    return {"encoder": encoder, "denoiser": denoiser, "alpha_bar": alpha_bar, "pixels": PIXELS,
            "order": "diffusion" if denoiser else "none", "tau": TAU, "task": task,
            "classes": classes}
