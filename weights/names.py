"""Published weights: tensors under the names of our modules, and the sizes of their models."""
import re

import torch

from diffusion import Standardizer
from losses import TAU
from support.errors import require

PIXELS = 0.45, 0.225           # of the release: mean and deviation of pixels / 255
PARTS = re.compile(r"encoder\.(cls_token|\w+_embed|blocks|norm|head|body\.(?!head))\b"
                   r"|denoiser\.(role|position|level|transformer)\b")     # not CLIP's text tower
TOKEN = "encoder.body.pos_encoding.class_token"
RENAMES = (                    # (regular expression, replacement), one after the other; # examples
    (r"^((module|model|_orig_mod)\.)+", ""),           # module.model.norm.bias -> encoder.norm.bias
    # torchvision's ViT, as timm and TimeSformer name it: class_token -> encoder.cls_token
    ("^class_token$", "cls_token"), ("^encoder.pos_embedding$", "pos_embed"),
    ("^encoder.ln", "norm"), ("^encoder.layers.encoder_layer_", "blocks."),
    ("^conv_proj", "patch_embed.proj"), (r"^(blocks.\d+.)ln_", r"\1norm"),
    # encoder.layers.encoder_layer_3.ln_1.bias -> encoder.blocks.3.norm1.bias
    ("self_attention.in_proj_", "attn.qkv."), ("self_attention.out_proj", "attn.proj"),
    # encoder.layers.encoder_layer_3.self_attention.in_proj_bias -> encoder.blocks.3.attn.qkv.bias
    ("^(blocks.*mlp.)(0|linear_1)", r"\1fc1"), ("^(blocks.*mlp.)(3|linear_2)", r"\1fc2"),
    # encoder.layers.encoder_layer_3.mlp.linear_1.bias -> encoder.blocks.3.mlp.fc1.bias
    # the release; the rest is TimeSformer: order_tfm.type_embedding.weight -> denoiser.role.weight
    ("^order_tfm.", "denoiser."), ("type_embedding", "role"), ("temporalEmbedding", "position"),
    ("temporalModelling", "transformer"), ("time_mlp.1", "level.0"), ("time_mlp.3", "level.2"),
    # order_tfm.time_mlp.3.bias -> denoiser.level.2.bias; head_cls.bias -> classifier.cls.bias
    ("^head_(cls|v|n)", r"classifier.\1"), ("^video_encoder.", "encoder.body."),
    ("^(?!encoder.|denoiser|classifier|phrases|standardize)", "encoder."),
    # SlowFast's MViT-v2: video_encoder.cls_token -> encoder.body.pos_encoding.class_token
    ("^encoder.body.cls_token$", TOKEN), ("(body.)patch_embed.proj", r"\1conv_proj"),
    # video_encoder.patch_embed.proj.bias -> encoder.body.conv_proj.bias
    (r"(body.blocks.\d+.)proj\.", r"\1project."), (r"(body.*attn.)proj\.", r"\1project.0."),
    # video_encoder.blocks.3.attn.proj.bias -> encoder.body.blocks.3.attn.project.0.bias
    (r"(\.pool_[qkv]).weight$", r"\1.pool.weight"), (".norm_([qkv]).", r".pool_\1.norm_act.0."),
    # video_encoder.blocks.3.attn.norm_q.bias -> encoder.body.blocks.3.attn.pool_q.norm_act.0.bias
    ("(body.*mlp.)fc1", r"\g<1>0"), ("(body.*mlp.)fc2", r"\g<1>3"))
    # video_encoder.blocks.3.mlp.fc1.bias -> encoder.body.blocks.3.mlp.0.bias


def tensors_of(content):
    """{name of ours: float32 tensor} of the content of a file, published or ours."""
    for key in ("model_state", "state_dict", "model"):
        if isinstance(content.get(key), dict):
            content = content[key]
    w = {name: value.float() for name, value in content.items()
         if isinstance(value, torch.Tensor) and value.is_floating_point()}
    if "pos_encoding.class_token" in w:                                     # torchvision's MViT
        w = {f"video_encoder.{name}": value for name, value in w.items()}
    for old, new in RENAMES:
        w = {re.sub(old, new, name): value for name, value in w.items()}
    return {name: value.flatten() if name == TOKEN else value for name, value in w.items()}


def published(content):
    """The content of a published file -> that of a file of ours. The classifiers, one per label
    set, become one. Its logits are divided by tau. In the release those of forecasts are not, so
    here its weights are multiplied by tau."""
    w = tensors_of(content)
    require("standardize.updates" not in w, "the state_dict of a model of this code, which lacks "
            "tau and the noise schedule; save the model: `weights.save(path, model)`")
    D, T, denoiser, encoder = len(w["encoder.head.weight"]), 4, None, {"kind": "mvit"}
    if "encoder.body.conv_proj.weight" not in w:       # MViT-v2 is published in one size
        width, _, patch, _ = w["encoder.patch_embed.proj.weight"].shape
        heads = content.get("config", {}).get("heads")                     # no tensor tells
        require(heads or width % 64 == 0, f'width {width}: save it with "config": {{"heads": N}}')
        side = round((w["encoder.pos_embed"].shape[1] - 1) ** 0.5)         # patches
        encoder = {"image": side * patch, "patch": patch, "width": width,
                   "frames": w["encoder.time_embed"].shape[1], "heads": heads or width // 64,
                   "depth": sum(name.endswith(".norm1.weight") for name in w)}
    if "denoiser.position.weight" in w:                # T is the number of layers
        T = sum(bool(re.match(r"denoiser\..*ln_1\.weight", name)) for name in w)
        denoiser = {"layers": T, "heads": 8, "clips": len(w["denoiser.position.weight"])}
    sets = [name for name in ("cls", "v", "n") if f"classifier.{name}.weight" in w]
    classes = [len(w[f"classifier.{name}.weight"]) for name in sets]
    task = "classify"
    if denoiser:
        task = "activity" if classes == [180] else "forecast"      # COIN's activities
    tensors = {name: value for name, value in w.items() if PARTS.match(name)}
    tensors |= {"phrases": torch.zeros(0, D), **Standardizer(D).state_dict(prefix="standardize.")}
    for part in ("weight", "bias") if sets else ():
        joined = torch.cat([w[f"classifier.{name}.{part}"] for name in sets])
        tensors[f"classifier.{part}"] = joined * (TAU if denoiser else 1)
    return {"model": tensors, "arguments": {
        "encoder": encoder, "denoiser": denoiser, "order": "diffusion" if denoiser else "none",
        "task": task if classes else None, "classes": classes, "pixels": PIXELS, "tau": TAU,
        "alpha_bar": (1 - torch.linspace(1e-4, 0.02, T)).cumprod(0).tolist()}}
