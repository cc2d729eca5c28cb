"""Names and sizes of published weights: a file's tensors under the names of our modules.

    file                                            its names                      here
    TimeSformer, DistantSup .pyth                   model.*                        encoder.*
    ProcedureVRL .pyth, pre-trained                 model.*, model.order_tfm.*     denoiser.*
    the same, fine-tuned                            model.head_cls                 classifier.0
    the same, EPIC-Kitchens                         model.head_v, model.head_n     classifier.0, .1
    the same, with MViT-v2                          model.video_encoder.*          encoder.body.*
    an image model of timm, or torchvision's vit    blocks.*; encoder.layers.*     encoder.*
    torchvision's mvit_v2_s                         conv_proj.*, blocks.*          encoder.body.*

The tensors lie in a dict under "model_state", "state_dict" or "model", or are the file's whole
dict. Their names may begin with `module.`.
"""
import math
import re
from itertools import groupby

import torch

# Facts of the release that are not in its files.
HEAD_WIDTH = 64                # of TimeSformer: 12 heads at 768
KV_STRIDE = 8                  # of MViT's first stage
ACTIVITIES = 180               # of COIN: a classifier of so many is one of activities, not steps
LEFT_OUT = ("text_model.", "order_tfm.pad_embedding.")     # CLIP's text tower; padding in training
# (regular expression, replacement), from their names to those of encoder, weights.mvit and
# weights.released.
WRAPPER = r"^(module\.|model\.|_orig_mod\.)+"        # of DataParallel, the release, torch.compile
TORCHVISION_VIT = (
    (r"^class_token$", "cls_token"), (r"^encoder\.pos_embedding$", "pos_embed"),
    (r"^conv_proj\.", "patch_embed.proj."), (r"^encoder\.ln\.", "norm."),
    (r"^encoder\.layers\.encoder_layer_(\d+)\.", r"blocks.\1."), (r"\.ln_([12])\.", r".norm\1."),
    (r"\.self_attention\.in_proj_", ".attn.qkv."), (r"\.self_attention\.out_proj\.", ".attn.proj."),
    (r"\.mlp\.(0|linear_1)\.", ".mlp.fc1."), (r"\.mlp\.(3|linear_2)\.", ".mlp.fc2."),
    (r"^heads\.head\.", "head."))
RELEASED = (
    (r"^order_tfm\.", "denoiser."), (r"^head_(cls|v)\.", "classifier.0."),
    (r"^head_n\.", "classifier.1."), (r"^video_encoder\.", "encoder.body."),
    (r"^(?!denoiser|classifier|encoder\.)", "encoder."),
    # SlowFast's MViT-v2, as torchvision names it
    (r"^encoder\.body\.cls_token$", "encoder.body.pos_encoding.class_token"),
    (r"^encoder\.body\.patch_embed\.proj\.", "encoder.body.conv_proj."),
    (r"^(encoder\.body\.blocks\.\d+)\.proj\.", r"\1.project."),
    (r"^(encoder\.body\..*\.attn)\.proj\.", r"\1.project.0."),
    (r"^(encoder\.body\..*\.attn\.pool_[qkv])\.weight$", r"\1.pool.weight"),
    (r"^(encoder\.body\..*\.attn)\.norm_([qkv])\.", r"\1.pool_\2.norm_act.0."),
    (r"^(encoder\.body\..*\.mlp)\.fc1\.", r"\1.0."),
    (r"^(encoder\.body\..*\.mlp)\.fc2\.", r"\1.3."))


def tensors_of(content):
    """The floating-point tensors in a file's content -> {name without wrappers: tensor}."""
    for key in ("model_state", "state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    items = content.items() if isinstance(content, dict) else ()
    return {re.sub(WRAPPER, "", name): value for name, value in items if isinstance(name, str)
            and isinstance(value, torch.Tensor) and value.is_floating_point()
            and value.layout == torch.strided}


def replace_names(tensors, pairs):
    """Apply each (regular expression, replacement) to all names."""
    for old, new in pairs:
        tensors = {re.sub(old, new, name): value for name, value in tensors.items()}
    return tensors


def rename(tensors):
    """{name: tensor} of any file in the header's table -> the same under the names of ours."""
    tensors = {name: value for name, value in tensors.items() if not name.startswith(LEFT_OUT)}
    if any(re.match(r"encoder\.(patch_embed|body)\.|denoiser\.", name) for name in tensors):
        return tensors                                                      # ours
    if "encoder.pos_embedding" in tensors:
        tensors = replace_names(tensors, TORCHVISION_VIT)
    if "pos_encoding.class_token" in tensors:                               # torchvision's MViT
        tensors = {f"video_encoder.{name}": value for name, value in tensors.items()
                   if not name.startswith("head.")}
    tensors = replace_names(tensors, RELEASED)
    token = "encoder.body.pos_encoding.class_token"
    return tensors | ({token: tensors[token].flatten()} if token in tensors else {})


def count(names, start):
    """How many blocks there are: different numbers i in the names `start`i.*"""
    matches = (re.match(re.escape(start) + r"(\d+)\.", name) for name in names)
    return len({match[1] for match in matches if match})


def encoder_sizes(w, heads):
    """Arguments of build_encoder, read from shapes; they do not give the heads of a TimeSformer.

    Args: w {name of ours: tensor}; heads int, or None: as in the release.
    """
    dim = len(w["encoder.head.weight"])
    if "encoder.body.conv_proj.weight" in w:
        attention = [f"encoder.body.blocks.{i}.attn."
                     for i in range(count(w, "encoder.body.blocks."))]
        widths = [len(w[block + "project.0.weight"]) for block in attention]
        tall, head = w[attention[0] + "rel_pos_h"].shape
        return {"kind": "mvit", "dim": dim, "image": 2 * (tall + 1),
                "frames": len(w[attention[0] + "rel_pos_t"]) + 1, "width": widths[0],
                "heads": widths[0] // head, "kv_stride": KV_STRIDE,
                "stages": [len(list(same)) for _, same in groupby(widths)]}
    width, _, patch, _ = w["encoder.patch_embed.proj.weight"].shape
    if not heads and width % HEAD_WIDTH:
        raise ValueError(f"width {width}, but how many heads? `python -m weights IN OUT --heads N`")
    side = math.isqrt(w["encoder.pos_embed"].shape[1] - 1)
    return {"dim": dim, "image": side * patch, "patch": patch, "width": width,
            "frames": w["encoder.time_embed"].shape[1], "depth": count(w, "encoder.blocks."),
            "heads": heads or width // HEAD_WIDTH}


def released_sizes(w, heads):
    """Arguments of build_published, read from shapes; arguments as `encoder_sizes`."""
    encoder, denoiser = encoder_sizes(w, heads), None
    if any(name.startswith("denoiser.") for name in w):
        denoiser = {"dim": encoder["dim"],
                    "layers": count(w, "denoiser.temporalModelling.resblocks."),
                    "clips": len(w["denoiser.temporalEmbedding.weight"])}
    classes = [len(w[name]) for name in ("classifier.0.weight", "classifier.1.weight") if name in w]
    task = (None if not classes else "classify" if not denoiser else
            "activity" if classes == [ACTIVITIES] else "forecast")
    return {"encoder": encoder, "denoiser": denoiser, "task": task, "classes": classes}


def heads_of(content):
    """The number of TimeSformer's heads, if the file gives it (the release's do not), or None."""
    configs = [content.get(key) for key in ("config", "cfg")] if isinstance(content, dict) else []
    given = [config.get("heads") for config in configs if isinstance(config, dict)]
    return next((heads for heads in given if isinstance(heads, int) and heads > 0), None)
