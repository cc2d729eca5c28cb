"""The encoder f beside others, for `python benchmark.py`: same weights, same clips, in turn.

    way             what is run
    ours            encoder.py
    naive           the same, with plain softmax attention
    hf              transformers.TimesformerModel (optional), which has no attention but the plain
    hf_sdpa         the same, given scaled_dot_product_attention
    hf_float32      the same as it comes, where bfloat16 is measured
    *_compiled      by torch.compile

Each gives the class tokens of clips, (B, 3, F, H, W) -> (B, W), and its gradients. How far the
tokens are apart is measured too: it is the same function that is computed.
"""
import copy
import functools
import types
from unittest import mock

NAMES = (                     # of a weight of ours, and of TimesformerModel's: replaced in turn
    ("patch_embed.proj", "embeddings.patch_embeddings.projection"),
    ("cls_token", "embeddings.cls_token"), ("pos_embed", "embeddings.position_embeddings"),
    ("time_embed", "embeddings.time_embeddings"), ("blocks.", "encoder.layer."),
    (".temporal_norm1.", ".temporal_layernorm."), (".temporal_fc.", ".temporal_dense."),
    (".temporal_attn.qkv", ".temporal_attention.attention.qkv"),
    (".temporal_attn.proj", ".temporal_attention.output.dense"),
    (".norm1.", ".layernorm_before."), (".norm2.", ".layernorm_after."),
    (".attn.qkv", ".attention.attention.qkv"), (".attn.proj", ".attention.output.dense"),
    (".mlp.fc1", ".intermediate.dense"), (".mlp.fc2", ".output.dense"))


def timesformer_model(f, image, patch, frames, width, depth, heads):
    """transformers.TimesformerModel with the weights of f, a TimeSformer of these sizes.

    Returns: None, and a line that says so, where transformers is not installed.
    """
    try:
        from transformers import TimesformerConfig, TimesformerModel
    except ImportError:
        print("transformers is not installed: TimesformerModel is left out (pip install it)")
        return None
    theirs = TimesformerModel(TimesformerConfig(
        image_size=image, patch_size=patch, num_frames=frames, hidden_size=width,
        num_hidden_layers=depth, num_attention_heads=heads, intermediate_size=4 * width))
    weights = {}
    for name, weight in f.state_dict().items():
        name = "layernorm." + name[5:] if name.startswith("norm.") else name
        for ours, other in NAMES:
            name = name.replace(ours, other)
        weights[name] = weight
    theirs.load_state_dict({name: weights[name] for name in weights if "head." not in name})
    return theirs


def plain_attention(q, k, v):
    """softmax(q k^T / sqrt(d)) v as it is written: all L x L weights are in memory."""
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


def fused_attention(attention, tokens, output_attentions=False):
    """In place of TimesformerSelfAttention.forward: (S, L, width) -> the same, in a tuple."""
    from torch.nn import functional
    S, L, width = tokens.shape
    qkv = attention.qkv(tokens).view(S, L, 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4)
    mixed = functional.scaled_dot_product_attention(*qkv)
    return (mixed.transpose(1, 2).reshape(S, L, width),)


def encoder_ways(bench):
    """{name: (module, its class tokens of clips (B, 3, F, H, W): a callable)}."""
    import torch
    from encoder import TimeSformer
    from torch.nn import functional
    torch.manual_seed(0)
    f = TimeSformer(**bench.sizes["encoder"])
    for p in f.parameters():                           # with zeros half of it would do nothing
        if not p.any():
            torch.nn.init.normal_(p, std=0.02)
    f, hf = f.to(bench.device), timesformer_model(f, **bench.sizes["encoder"])

    def naive(clips):
        with mock.patch.object(functional, "scaled_dot_product_attention", plain_attention):
            return f.features(clips)

    def token(model, clips):
        return model(clips.transpose(1, 2)).last_hidden_state[:, 0]
    ways = {"ours": (f, f.features), "naive": (f, naive)}
    if hf is not None:
        fused = copy.deepcopy(hf)
        for module in fused.modules():
            if type(module).__name__ == "TimesformerSelfAttention":
                module.forward = types.MethodType(fused_attention, module)
        ways |= {name: (model.to(bench.device), functools.partial(token, model))
                 for name, model in (("hf", hf), ("hf_sdpa", fused))}
        if bench.precision == "bfloat16":
            plain = torch.autocast(bench.device.type, enabled=False)
            ways["hf_float32"] = hf, plain(functools.partial(token, hf))
    if bench.settings.compiled:
        ways |= {f"{name}_compiled": (ways[name][0], torch.compile(ways[name][1]))
                 for name in ("ours", "hf_sdpa") if name in ways}
    return ways


def compare_encoders(bench):
    """f beside TimesformerModel and beside plain attention -> the table as a dict, s per clip."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    ways, size = encoder_ways(bench), bench.sizes["encoder"]
    clips = bench.random(bench.batch, 3, size["frames"], size["image"], size["image"])
    side = 4096 if bench.cuda else 2048
    left, right = bench.random(side, side), bench.random(side, side)

    def forward(way, round):
        with torch.no_grad():
            way(clips)

    def forward_backward(module, way, round):
        module.zero_grad(set_to_none=True)
        way(clips).float().square().sum().backward()
    with torch.no_grad():
        tokens = {name: way(clips) for name, (_, way) in ways.items()}
    apart = max(float((tokens["ours"] - other).abs().max()) for other in tokens.values())
    result = {"clips": bench.batch, "precision": bench.precision, "difference": apart}
    print(f"\nencoder: {bench.settings.size} size, {bench.batch} clips of {size['frames']} frames, "
          f"{bench.precision}, {bench.device}; class tokens differ by at most {apart:.1e}")
    for kind in "forward", "forward_backward":
        works = {name: functools.partial(forward, way) if kind == "forward" else
                 functools.partial(forward_backward, module, way)
                 for name, (module, way) in ways.items()}
        taken, spent = bench.in_turn({**works, "matrix": lambda round: left @ right})
        rate = 2 * side ** 3 / taken.pop("matrix")
        result[kind] = row = {"ours_s": None, "hf_s": None, "naive_s": None,
                              "matrix_tflops": rate / 1e12}
        print(f"{kind.replace('_', ' + ') + ' of a clip':26}{'s':>9}{'beside ours':>13}"
              f"{'processor s':>13}{'GFLOP':>8}{'of matrix rate':>16}{'MiB':>8}")
        for name, seconds in taken.items():
            with FlopCounterMode(display=False) as counter:
                bench.finished(works[name.removesuffix("_compiled")], 0)
            flop = counter.get_total_flops()
            mib, share = bench.peak(works[name]), flop / seconds / rate
            row |= {f"{name}_s": seconds / bench.batch, f"{name}_cpu_s": spent[name] / bench.batch,
                    f"{name}_mib": mib, f"{name}_gflop": flop / bench.batch / 1e9,
                    f"{name}_share": share}
            print(f"{name:26}{seconds / bench.batch:9.4f}{seconds / taken['ours']:13.2f}"
                  f"{spent[name] / bench.batch:13.4f}{flop / bench.batch / 1e9:8.0f}"
                  f"{100 * share:15.0f}%{mib:8.0f}")
    print(f"matrix rate: {rate / 1e12:.2f} TFLOP/s")
    return result
