"""Names and sizes of published weights: from a file's tensors to those of our modules.

    file                                            its names                      here
    TimeSformer, DistantSup .pyth                   model.*                        encoder.*
    ProcedureVRL .pyth, pre-trained                 model.*, model.order_tfm.*     denoiser.*
    the same, fine-tuned                            model.head_cls                 classifier.0
    the same, EPIC-Kitchens                         model.head_v, model.head_n     classifier.0, .1
    the same, with MViT-v2                          model.video_encoder.*          encoder.body.*
    an image model of timm, or torchvision's vit    blocks.*; encoder.layers.*     encoder.*
    torchvision's mvit_v2_s                         conv_proj.*, blocks.*          encoder.body.*

Each as {"model_state"}, {"state_dict"}, {"model"} or a plain dict, with `module.` before its names
or not.
"""
import math
import re
from itertools import groupby

import torch

# Facts of the release that its files do not hold.
HEAD_WIDTH = 64                # of TimeSformer: 12 heads at 768
KV_STRIDE = 8                  # of MViT's first stage
ACTIVITIES = 180               # COIN's: how a classifier of activities is told from one of steps
LEFT_OUT = ("text_model.", "order_tfm.pad_embedding.")     # CLIP's text tower; padding in training
# Their names -> those of encoder.py, mvit.py and released.py: regular expression, replacement.
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
    """Content of a file -> {bare name: tensor}, out of its dict; empty if there is no tensor."""
    for key in ("model_state", "state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    found = content.items() if isinstance(content, dict) else ()
    return {re.sub(WRAPPER, "", name): value for name, value in found if isinstance(name, str)
            and isinstance(value, torch.Tensor) and value.is_floating_point()
            and value.layout == torch.strided}


def rename(tensors):
    """Bare names of any kind of the header's table -> names of ours, see there."""
    def replaced(pairs, tensors):
        for old, new in pairs:
            tensors = {re.sub(old, new, name): value for name, value in tensors.items()}
        return tensors

    tensors = {name: value for name, value in tensors.items() if not name.startswith(LEFT_OUT)}
    if any(re.match(r"encoder\.(patch_embed|body)\.|denoiser\.", name) for name in tensors):
        return tensors                                                      # ours
    if "encoder.pos_embedding" in tensors:
        tensors = replaced(TORCHVISION_VIT, tensors)
    if "pos_encoding.class_token" in tensors:                               # torchvision's MViT
        tensors = {f"video_encoder.{name}": value for name, value in tensors.items()
                   if not name.startswith("head.")}
    tensors = replaced(RELEASED, tensors)
    token = "encoder.body.pos_encoding.class_token"
    return tensors | ({token: tensors[token].flatten()} if token in tensors else {})


def count(names, start):
    """How many different numbers i the names `start`i.* have."""
    found = (re.match(re.escape(start) + r"(\d+)\.", name) for name in names)
    return len({match[1] for match in found if match})


def encoder_sizes(w, heads):
    """Arguments of build_encoder, read from the shapes; heads of a TimeSformer cannot be."""
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
    """Arguments of Released, as a dict, read from the shapes of {name of ours: tensor}."""
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
    """The number of TimeSformer's heads where a file names it, or None; the release's do not."""
    kept = [content.get(key) for key in ("config", "cfg")] if isinstance(content, dict) else []
    named = [config.get("heads") for config in kept if isinstance(config, dict)]
    return next((heads for heads in named if isinstance(heads, int) and heads > 0), None)
