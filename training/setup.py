"""What pre-training begins with: the sizes of f and h, narrated videos, their teacher, the model.

K phrases, D embedding.
"""
import functools

import torch

import weights.checkpoint
from data import CLIPS, View
from diffusion import noise_levels
from files.features import FeatureSource, require_widths
from files.lists import load_phrases
from files.sources import VideoSource, open_folder
from model import clips_at_once
from support.arguments import limit_threads, refuse_other_paths
from support.errors import require
from support.workers import prefetch
from toy import grammar, render
from toy.source import ToySource, load_teacher
from training import parallel
from training.batches import load_video, taken, with_remedy
from training.run import begin, open_run
from weights.names import PIXELS
from weights.teacher import open_teacher

TIMESFORMER = {           # f: "small" suits a CPU, "base" is ViT-B/16
    "small": dict(image=32, patch=16, frames=4, width=64, depth=2, heads=2),
    "base": dict(image=224, patch=16, frames=8, width=768, depth=12, heads=12)}
MVIT = {                  # f with --encoder mvit: Table D, appendix D
    "small": dict(kind="mvit", image=32, frames=4, seconds=None, width=16, heads=1,
                  stages=[1, 1, 1], kv_stride=4),
    "base": dict(kind="mvit", image=224, frames=16, seconds=3.2)}
ENCODER = {"timesformer": TIMESFORMER, "mvit": MVIT,
           "adapter": {"small": dict(kind="adapter"), "base": dict(kind="adapter", width=2048)}}
DENOISER = {"small": dict(layers=4, heads=4), "base": dict(layers=4, heads=8)}        # h
CONSECUTIVE = {"small": 16, "base": CLIPS}             # most clips of one video in an update


def open_videos(args, view):
    """The narrated videos, and the phrases of the pool."""
    features = args.data == "features"
    require(features == (args.encoder == "adapter"), f"--encoder {args.encoder} --data {args.data}:"
            " adapter reads --data features, no other encoder does")
    refuse_other_paths(args)
    if args.data == "toy":
        require(not args.skip, "--data toy has no videos to --skip")
        phrases = load_phrases(args.phrases) if args.phrases else grammar.PHRASES
        return ToySource("train", args.toy_videos, view.frames), phrases
    kind, given = (FeatureSource, "features") if features else (VideoSource, "videos")
    for name in (given, "captions", "phrases"):
        path = getattr(args, name)
        require(path and path.exists(), f"--data {args.data} needs --{name}, which must exist; "
                f"given is {path}")
    phrases = load_phrases(args.phrases)
    return open_folder(getattr(args, given), args.captions, args.ids, view, skip=args.skip,
                       max_unreadable=args.max_unreadable, kind=kind), phrases


def set_up(args, device):
    """All that the loop needs: the source of videos, their frozen teacher, f and h, the checkpoint
    to go on from ({} at first), and the settings of the run."""
    checkpoint = open_run(args)
    encoder = ENCODER[args.encoder][args.size]
    view = View(encoder.get("image", 0), encoder.get("frames", 0), encoder.get("seconds"))
    limit_threads(view.size, device)
    start = None                                           # weights to start from
    if args.init not in ("none", "timm") and not checkpoint:
        start = weights.checkpoint.open_start(args.init)
    source, phrases = open_videos(args, view)              # check all paths, then download
    settings = begin(args, checkpoint, source, phrases=phrases)
    if args.init == "timm" and not checkpoint:
        start = weights.checkpoint.open_start(args.init)
    if args.data == "toy":
        teacher, pixels = load_teacher(device).watch(source), (render.MEAN, render.STD)
    else:
        teacher, pixels = open_teacher(args.clip, args.clip_weights, device), PIXELS
        source.teacher_size = teacher.size
    embeddings = teacher.encode_phrases(phrases)                                   # (K, D)
    if args.data == "features":
        width = checkpoint["arguments"]["encoder"]["features"] if checkpoint else None
        F = require_widths(source.paths, width, embeddings.shape[1])
        encoder = encoder | {"features": F}
    alpha_bar = noise_levels(embeddings.shape[1]).tolist()
    if checkpoint:
        alpha_bar = checkpoint["arguments"]["alpha_bar"]   # a run keeps its schedule
    torch.manual_seed(args.seed)
    model = weights.checkpoint.build_model(
        embeddings, encoder, DENOISER[args.size], order=args.order, tau=args.tau, pixels=pixels,
        alpha_bar=alpha_bar, witness=phrases[0])
    if start:
        weights.checkpoint.fill(args.init, model, start)
    if checkpoint:
        model.load_state_dict(checkpoint["model"])
    parallel.share_weights(model.to(device).train())
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, on {device}")
    if args.compile:
        require(args.encoder == "timesformer", "--compile: needs --encoder timesformer")
        for block in model.encoder.blocks[:-1]:            # the last one only runs `class_token`
            block.compile()
    return source, teacher, model, checkpoint, settings


def read_ahead(source, model, teacher_size, batch, first, updates, args):
    """Returns: an iterator of Loaded, one for each video of this process in all updates; how many
    of them make an update; how many make a group, at most."""
    encoder, clips, (rank, world) = model.encoder, CONSECUTIVE[args.size], parallel.rank_and_world()
    share = range(rank, batch, world)                      # its places in the batch of an update
    most = max(1, clips_at_once(encoder, args.micro_batch) // clips)
    if args.context == "random":                           # rows of clips of other videos
        require(world == 1, "--context random: runs in one process only")
        most = len(share)
    size = 3 * clips * encoder.frames * (encoder.image ** 2 + teacher_size ** 2)   # bytes of one

    def name(item):
        return with_remedy(source.videos[taken(item, share, len(source.videos), args)[1]])
    return prefetch(functools.partial(load_video, source, args, share, clips),
                    range(first * len(share), updates * len(share)), args.workers, size=size,
                    held=min(most, len(share)), name=name,
                    pin=model.phrases.is_cuda), len(share), most
