"""Weights from outside: read, renamed, checked; to be evaluated as they are, or to start from.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 4; the released code and its checkpoints.

    file                                            what is in it                  becomes
    TimeSformer, DistantSup .pyth                   model.*                        encoder.*
    ProcedureVRL .pyth, pre-trained                 model.*, model.order_tfm.*     denoiser.*
    the same, fine-tuned                            model.head_cls                 classifier.0
    the same, EPIC-Kitchens                         model.head_v, model.head_n     classifier.0, .1
    the same, with MViT-v2                          model.video_encoder.*          encoder.body.*
    an image model of timm, or torchvision's vit    blocks.*; encoder.layers.*     encoder.*
    torchvision's mvit_v2_s                         conv_proj.*, blocks.*          encoder.body.*

Each of them as {"model_state"}, {"state_dict"}, {"model"} or plain, with `module.` before its names
or not, as a torch file or safetensors. Two things are done with them. --init of pre-training starts
with what fits (`fill`). --checkpoint, --init of fine-tuning and `load_released` take the model as
it was released (released.py):

    model = load_released("procedurevrl.pyth")
    x = model.encode(clips)                 # (B, 3, F, H, W) float, normalised -> (B, D)
    x_hat = model.forecast(x)               # (B, 8, D) -> (B, D), the clip after these eight

    python weights.py IN OUT                # the same as a file of ours: tensors and plain types

B videos or clips, D embedding.
"""
if __name__ == "__main__":       # --help and a mistyped flag do not wait for torch to be imported
    from support.command import parse
    from settings_optional import WeightsSettings
    parse(WeightsSettings)

import math
import re
from collections import Counter
from itertools import groupby

import torch
from torch.nn import functional

from model import is_ours, load_model, read_content, save_checkpoint
from support.command import BadInput, quiet, run
from weights.released import Released
from settings_optional import WeightsSettings

TIMM = "vit_base_patch16_224.orig_in21k_ft_in1k"       # where the released TimeSformers start from
# Facts of the release that its files do not hold.
HEAD_WIDTH = 64                # of TimeSformer: 12 heads at 768
KV_STRIDE = 8                  # of MViT's first stage
ACTIVITIES = 180               # COIN's: how a classifier of activities is told from one of steps
LEFT_OUT = ("text_model.", "order_tfm.pad_embedding.")     # CLIP's text tower; padding in training
# Names of others -> those of encoder.py, mvit.py and released.py: regular expression, replacement.
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


# ------------------------------------------------------------------------------------------------
# From a file to names and sizes of ours
# ------------------------------------------------------------------------------------------------
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
        raise ValueError(f"width {width}, but how many heads? `python weights.py IN OUT --heads N`")
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


def build_released(path, content, heads=None):
    """The content of a file from outside as a Released in eval mode, its sizes read from it.

    Args:    heads: of TimeSformer, if neither the file nor the release's 64 per head says it.
    Raises:  BadInput if it is no video model, or its tensors do not fit each other.
    """
    w, heads = rename(tensors_of(content)), heads or heads_of(content)
    try:
        sizes = released_sizes(w, heads)
        model = Released(**sizes)
    except (LookupError, ArithmeticError, ValueError, TypeError, AssertionError,
            RuntimeError) as error:
        raise BadInput(f"{path}: not a checkpoint of train.py, nor one of TimeSformer, DistantSup "
                       f"or ProcedureVRL ({type(error).__name__}: {error}, among {len(w)} tensors)"
                       "; image models are for --init of pre-training") from None
    missing, _, reshaped = fill(path, model, w)
    f = sizes["encoder"]
    if missing or reshaped:
        raise BadInput(f"{path}: missing or of another shape: {shorten([*missing, *reshaped])}; "
                       f"needed is a {f.get('kind', 'timesformer')} of width {f['width']} with "
                       f"divided space-time attention, and heads on its embedding of {f['dim']}")
    if not heads and "kind" not in f:
        print(f"  it does not say how many attention heads: {f['heads']}, each {HEAD_WIDTH} wide "
              "as in the release")
    return model.eval()


def load_released(path, heads=None):
    """A published checkpoint -> Released, computing what it computed there; see the header.

    In eval mode, its parameters without gradients. Sizes are read from the tensors. The number of
    TimeSformer's heads is not in them: it is the file's config["heads"] where that is written, else
    width / 64, as all published ones have it; `heads` sets it. A file that `python weights.py`
    wrote is read as well.
    Raises: BadInput, one line, if the file is none or cannot be read.
    """
    content = read_content(path)
    model = load_model(path)[0] if is_ours(content) else build_released(path, content, heads)
    if not isinstance(model, Released):
        raise BadInput(f"{path}: a checkpoint of ours; model.load_model reads it")
    return model.requires_grad_(False)


# ------------------------------------------------------------------------------------------------
# Into a model: what fits is taken, what does not is said
# ------------------------------------------------------------------------------------------------
def shorten(names, every=()):
    """Names by kind: blocks.0.norm1.weight, blocks.1.norm1.weight -> "blocks.*.norm1.weight (2)".

    every: all names there are; of a part that is among `names` as a whole: "denoiser.* (48)".
    """
    split = {name.split(".")[0] for name in every if name not in names}

    def kind(name):
        part = name.split(".")[0]
        return f"{part}.*" if every and part not in split else re.sub(r"\.\d+(?=\.)", ".*", name)

    kinds = Counter(map(kind, names))
    return ", ".join(kind if n == 1 else f"{kind} ({n})" for kind, n in kinds.items())


def fit_positions(name, value, shape):
    """pos_embed and time_embed for another number of places, by the nearest; None if it is neither.

    Places of patches are a square, class token first: the nearest in it (the released code takes
    the nearest in the list of all rows, which mixes left and right).
    """
    if value.ndim != 3 or value.shape[::2] != tuple(shape)[::2]:
        return None
    if name.endswith("time_embed"):
        return functional.interpolate(value.transpose(1, 2), shape[1]).transpose(1, 2)
    if name.endswith("pos_embed"):
        old, new = (math.isqrt(n - 1) for n in (value.shape[1], shape[1]))
        if old ** 2 != value.shape[1] - 1 or new ** 2 != shape[1] - 1:
            return None
        square = value[:, 1:].transpose(1, 2).unflatten(2, (old, old))     # (1, W, old, old)
        places = functional.interpolate(square, (new, new)).flatten(2).transpose(1, 2)
        return torch.cat([value[:, :1], places], 1)
    return None


@torch.no_grad()
def fill(path, model, tensors):
    """Copy into the parameters of the model what fits, and print what was not taken.

    Returns: names of the parameters that are missing in the file, of its tensors that are
             unexpected, and of those that have another shape.
    Raises:  BadInput if no block of f or h fits (a projection that happens to fit is no start), or
             a number is not finite.
    """
    own, fixed = dict(model.named_parameters()), dict(model.named_buffers())   # fixed: ours, texts
    tensors = {name: value for name, value in tensors.items() if name not in fixed}
    fitted = {name: value if value.shape == own[name].shape else
              fit_positions(name, value.float(), own[name].shape)
              for name, value in tensors.items() if name in own}
    taken = {name: value for name, value in fitted.items() if value is not None}
    if not any("blocks." in name for name in taken):
        has, needs = (max((f"{name} {tuple(value.shape)}" for name, value in some.items()
                           if ".blocks.0." in name), default=", ".join(list(some)[:4]))
                      for some in (tensors, own))
        raise BadInput(f"{path}: none of its {len(tensors)} tensors fits a block of f or h; it has "
                       f"{has or 'none'}, needed is {needs}")
    for name, value in taken.items():
        if not value.isfinite().all():
            raise BadInput(f"{path}: {name} holds NaN or infinity; get the file anew")
        own[name].copy_(value)
    missing = [name for name in own if name not in fitted]
    unexpected = [name for name in tensors if name not in own]
    reshaped = [name for name in fitted if name not in taken]
    print(f"{path}: {len(taken)} of {len(own)} parameters taken")
    for what, names, every in (("missing in it", missing, own), ("unexpected", unexpected, tensors),
                               ("of another shape", reshaped, tensors)):
        if names:
            print(f"  {what}: {shorten(names, every)}")
    return missing, unexpected, reshaped


def timm_weights():
    """The state dict of timm's ViT-B/16, downloaded once; BadInput without a network."""
    try:
        with quiet():                                            # the hub logs each of its retries
            import timm
            return timm.create_model(TIMM, pretrained=True).state_dict()
    except Exception as error:                 # of the network, the hub, the file: many classes
        reason = (str(error).strip().splitlines() or [""])[0][:200]
        raise BadInput(f"--init timm: {TIMM} cannot be had ({type(error).__name__}: {reason}); "
                       "without a network, download it elsewhere and give the file") from None


def video_from_image(tensors):
    """An image model's tensors for TimeSformer: temporal attention and its norm from the spatial.

    temporal_fc is left to the new model: zero but in block 0, so that the others begin as they
    were. The classifier of images is left out.
    """
    copies = {re.sub(r"^(encoder\.blocks\.\d+\.)(attn|norm1)\.", r"\1temporal_\2.", name): value
              for name, value in tensors.items()}
    return {name: value for name, value in (copies | tensors).items()
            if not name.startswith(("encoder.head.", "encoder.pre_logits."))}


def open_start(source):
    """--init of pre-training: a run folder, a file of ours or from outside, or "timm", for `fill`.

    Of f, and of h if it is ours, what fits is then taken; the rest begins anew. A ViT without
    attention over time, of images or TimeSformer's "joint" and "space only", gets it.
    Raises: BadInput if the source cannot be read.
    """
    content = timm_weights() if str(source) == "timm" else read_content(source)
    tensors = rename(tensors_of(content))
    block = "encoder.blocks.0.{}.qkv.weight"
    flat = block.format("attn") in tensors and block.format("temporal_attn") not in tensors
    return video_from_image(tensors) if flat else tensors


def main(settings):
    """Read a checkpoint from outside and write it as a file of ours."""
    if settings.target.resolve() == settings.source.resolve():
        raise BadInput(f"{settings.target}: is the file to be read; name another for the result")
    model = load_released(settings.source, settings.heads)
    save_checkpoint(settings.target, model)
    print(f"{settings.target}: {sum(p.numel() for p in model.parameters()):,} parameters, "
          f"{model.arguments['released']}")


if __name__ == "__main__":
    run(main, WeightsSettings)
