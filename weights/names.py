"""Published weights: tensors under the names of our modules, and the sizes of their models."""
import math
import re

import torch

from data import PIXELS
from diffusion import noise_levels, released_levels, scale_of
from losses import TAU
from support.errors import require
from support.tensors import part_of, require_whole

IMAGE_PIXELS = 0.5, 0.5                # of timm's ViT of ImageNet, as data.PIXELS
CLIP_WIDTH, MPNET_WIDTH = 512, 768     # D of the texts of ProcedureVRL, and of DistantSup

# Their name, our name, and from there on whose it is. The first fit decides; what * or (a|b)
# stands for is kept. A name that no row fits stays: it is ours already, or of what is not read.
NAMES = [line.split()[:2] for line in """
(cls_token|pos_embed|time_embed)             encoder.*              TimeSformer, timm's ViT
(patch_embed|blocks|norm|head).*             encoder.*.*
order_tfm.type_embedding.*                   denoiser.role.*        ProcedureVRL
order_tfm.temporalEmbedding.*                denoiser.position.*
order_tfm.time_mlp.1.*                       denoiser.level.0.*
order_tfm.time_mlp.3.*                       denoiser.level.2.*
order_tfm.temporalModelling.*                denoiser.transformer.*
head_*                                       classifier.*
video_encoder.cls_token                      encoder.body.pos_encoding.class_token    its MViT
video_encoder.patch_embed.proj.*             encoder.body.conv_proj.*
video_encoder.blocks.*.attn.proj.*           encoder.body.blocks.*.attn.project.0.*
video_encoder.blocks.*.attn.pool_*.weight    encoder.body.blocks.*.attn.pool_*.pool.weight
video_encoder.blocks.*.attn.norm_*.*         encoder.body.blocks.*.attn.pool_*.norm_act.0.*
video_encoder.blocks.*.mlp.fc1.*             encoder.body.blocks.*.mlp.0.*
video_encoder.blocks.*.mlp.fc2.*             encoder.body.blocks.*.mlp.3.*
video_encoder.blocks.*.proj.*                encoder.body.blocks.*.project.*
video_encoder.*                              encoder.body.*
""".strip().splitlines()]


def our_name(name):
    """Our name of a tensor of theirs, by NAMES."""
    for theirs, ours in NAMES:
        fits = re.fullmatch(theirs.replace(".", r"\.").replace("*", "(.+)"), name)
        if fits:
            return ours.replace("*", "{}").format(*fits.groups())
    return name


def tensors_of(content):
    """{name of ours: float32 tensor} of the content of a file, published or ours."""
    for key in ("model_state", "state_dict", "model"):
        content = part_of(content, key) or content
    w = {}
    for name, value in content.items():
        if isinstance(value, torch.Tensor):
            require_whole(name, value)
            w[re.sub(r"^((module|model)\.)+", "", name)] = value.float()
    if "pos_encoding.class_token" in w:                # torchvision's MViT: our f's body
        return {f"encoder.body.{name}": value for name, value in w.items()}
    if "video_encoder.cls_token" in w:                 # (1, 1, width); torchvision's is (width,)
        w["video_encoder.cls_token"] = w["video_encoder.cls_token"].flatten()
    return {our_name(name): value for name, value in w.items()}


def lacks_time(w):
    """Whether tensors under our names are those of a ViT without temporal attention."""
    return "encoder.pos_embed" in w and not any("temporal_attn" in name for name in w)


def is_image_model(w):
    """Whether they are those of a ViT that reads one picture. (A TimeSformer with joint attention
    lacks temporal attention, too, but has time_embed.)"""
    return lacks_time(w) and "encoder.time_embed" not in w


def with_time(w, frames=1):
    """The tensors of an image model, and those that it lacks as a TimeSformer: copies of its
    attention and the norm before it stand in for the temporal ones; time_embed and temporal_fc are
    0, so f starts as this model."""
    width = w["encoder.pos_embed"].shape[-1]
    found = {"encoder.time_embed": torch.zeros(1, frames, width)}
    for name, value in w.items():
        if name.startswith("encoder.head"):            # of ImageNet's classes
            continue
        found[name] = value
        found[re.sub(r"\.(attn|norm1)\.", r".temporal_\1.", name)] = value
        if ".attn.proj." in name:
            found[name.replace(".attn.proj.", ".temporal_fc.")] = torch.zeros_like(value)
    return found


# --- A published model: its Config and its tensors under our names ---
def released_encoder(w, heads):
    """Config.encoder of published tensors. heads: of attention, which no tensor tells; None: one
    for each 64 of a token's width, as in ViT."""
    if "encoder.body.conv_proj.weight" in w:           # MViT-v2 is published in one size
        return {"kind": "mvit"}
    width, _, patch, _ = w["encoder.patch_embed.proj.weight"].shape
    if not (isinstance(heads, int) and heads > 0):
        heads = width // 64
        require(width % 64 == 0, f'width {width}: save it with "config": {{"heads": N}}')
    side = math.isqrt(w["encoder.pos_embed"].shape[1] - 1)                 # patches
    depth = sum(name.endswith(".norm1.weight") for name in w)
    return {"kind": "timesformer", "image": side * patch, "patch": patch, "width": width,
            "frames": w["encoder.time_embed"].shape[1], "heads": heads, "depth": depth}


def released_denoiser(w):
    """Config.denoiser of published tensors; None without h. It has as many layers as levels."""
    if "denoiser.position.weight" not in w:
        return None
    layers = sum(name.startswith("denoiser.") and name.endswith(".ln_1.weight") for name in w)
    return {"layers": layers, "heads": 8, "clips": len(w["denoiser.position.weight"])}


def released_task(classes, denoiser):
    """The Task that a published model is fine-tuned for, by how many classes each of its
    classifiers has; None without any."""
    if not classes:
        return None
    if len(classes) > 1:                               # EPIC's verbs and nouns
        return "actions"
    if classes == [180]:                               # COIN's activities
        return "activity"
    return "forecast" if denoiser else "classify"


def with_space(w):
    """The tensors of a published TimeSformer without h and classifier, with the head that it embeds
    clips by; and whether that is among the texts of CLIP.

    A head as wide as the texts that an f was published with projects among them, and stays. Any
    other is of classes, such as Kinetics', or absent. In its place is the identity, so clips are
    embedded as their class token, and D is its width.
    """
    head = w.get("encoder.head.weight")
    if head is not None and len(head) in (CLIP_WIDTH, MPNET_WIDTH):
        return w, len(head) == CLIP_WIDTH
    square = w["encoder.blocks.0.attn.proj.weight"]        # (width, width), so the file has as much
    found = dict(w)
    found["encoder.head.weight"] = torch.zeros_like(square).fill_diagonal_(1)
    found["encoder.head.bias"] = square.new_zeros(len(square))
    return found, False


def convert_released(content, frames=None):
    """The content of a published file -> that of a file of ours. Its classifiers become one. The
    logits of those of forecasts are not divided by tau, so their `logit_tau` is 1.

    frames: of an f that is made of an image model; None: an image model is refused. Nothing is
    published of how f alone is followed by h or a classifier. So tau is the paper's, by which the
    release divides a classifier, too; scale and levels are those of `diffusion.py` for its D. A
    new h is that of the mask (`order`), which no noise reaches: only the scale has an effect on it.
    """
    w, pixels = tensors_of(content), PIXELS
    require("phrases" not in w, "the state_dict of a model of this code, which lacks tau and the "
            "noise schedule; save the model: `weights.save(path, model)`")
    if frames is not None and is_image_model(w):
        w, pixels = with_time(w, frames), IMAGE_PIXELS
    encoder = released_encoder(w, part_of(content, "config").get("heads"))
    denoiser, text_space = released_denoiser(w), True
    sets = [name for name in ("cls", "v", "n") if f"classifier.{name}.weight" in w]
    if encoder["kind"] == "timesformer" and not denoiser and not sets:
        w, text_space = with_space(w)
    D = len(w["encoder.head.weight"])
    scale, levels, logit_tau = scale_of(D), noise_levels(D), None
    if denoiser:
        scale, levels, logit_tau = 1.0, released_levels(denoiser["layers"]), 1.0
    tensors = {name: w[name] for name in w if name.startswith(("encoder.", "denoiser."))}
    tensors["phrases"] = torch.zeros(0, D)                                 # unknown
    classes = [len(w[f"classifier.{name}.weight"]) for name in sets]
    if sets:
        for part in "weight", "bias":
            joined = torch.cat([w[f"classifier.{name}.{part}"] for name in sets])
            tensors[f"classifier.{part}"] = joined
    config = {"encoder": encoder, "denoiser": denoiser,
              "order": "diffusion" if denoiser else "none",
              "task": released_task(classes, denoiser), "classes": classes, "pixels": pixels,
              "tau": TAU, "logit_tau": logit_tau, "scale": scale, "alpha_bar": levels.tolist(),
              "text_space": text_space}
    return {"model": tensors, "config": config}
