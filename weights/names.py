"""Published weights: tensors under the names of our modules, and the sizes of their models."""
import re

import torch

from data import PIXELS
from diffusion import released_levels
from losses import TAU
from support.errors import require

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
        if fits := re.fullmatch(theirs.replace(".", r"\.").replace("*", "(.+)"), name):
            return ours.replace("*", "{}").format(*fits.groups())
    return name


def tensors_of(content):
    """{name of ours: float32 tensor} of the content of a file, published or ours."""
    for key in ("model_state", "state_dict", "model"):
        content = content[key] if isinstance(content.get(key), dict) else content
    w = {re.sub(r"^((module|model)\.)+", "", name): value.float()
         for name, value in content.items() if isinstance(value, torch.Tensor)}
    if "pos_encoding.class_token" in w:                # torchvision's MViT: our f's body
        return {f"encoder.body.{name}": value for name, value in w.items()}
    if "video_encoder.cls_token" in w:                 # (1, 1, width); torchvision's is (width,)
        w["video_encoder.cls_token"] = w["video_encoder.cls_token"].flatten()
    return {our_name(name): value for name, value in w.items()}


def convert_released(content):
    """The content of a published file -> that of a file of ours. Its classifiers become one. Ours
    are divided by tau, the release's of forecasts are not: their weights are multiplied by tau."""
    w, encoder, denoiser, task, T = tensors_of(content), {"kind": "mvit"}, None, "classify", 4
    require("phrases" not in w, "the state_dict of a model of this code, which lacks tau and the "
            "noise schedule; save the model: `weights.save(path, model)`")
    if "encoder.body.conv_proj.weight" not in w:       # MViT-v2 is published in one size
        width, _, patch, _ = w["encoder.patch_embed.proj.weight"].shape
        heads = content.get("config", {}).get("heads")                     # no tensor tells
        require(heads or width % 64 == 0, f'width {width}: save it with "config": {{"heads": N}}')
        side = round((w["encoder.pos_embed"].shape[1] - 1) ** 0.5)         # patches
        encoder = {"kind": "timesformer", "image": side * patch, "patch": patch, "width": width,
                   "frames": w["encoder.time_embed"].shape[1], "heads": heads or width // 64,
                   "depth": sum(name.endswith(".norm1.weight") for name in w)}
    if "denoiser.position.weight" in w:                # T is the number of layers
        T = sum(name.startswith("denoiser.") and name.endswith(".ln_1.weight") for name in w)
        denoiser = {"layers": T, "heads": 8, "clips": len(w["denoiser.position.weight"])}
        task = "forecast"
    sets = [name for name in ("cls", "v", "n") if f"classifier.{name}.weight" in w]
    classes = [len(w[f"classifier.{name}.weight"]) for name in sets]
    if classes == [180]:                               # COIN's activities
        task = "activity"
    if len(classes) > 1:                               # EPIC's verbs and nouns
        task = "actions"
    tensors = {name: w[name] for name in w if name.startswith(("encoder.", "denoiser."))}
    tensors["phrases"] = torch.zeros(0, len(w["encoder.head.weight"]))     # (0, D): unknown
    for part in ("weight", "bias") if sets else ():
        joined = torch.cat([w[f"classifier.{name}.{part}"] for name in sets])
        tensors[f"classifier.{part}"] = joined * (TAU if denoiser else 1)
    return {"model": tensors, "config": {
        "encoder": encoder, "denoiser": denoiser, "order": "diffusion" if denoiser else "none",
        "task": task if classes else None, "classes": classes, "pixels": PIXELS, "tau": TAU,
        "alpha_bar": released_levels(T).tolist(), "scale": 1.0}}
