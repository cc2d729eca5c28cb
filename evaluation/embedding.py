"""Videos through f: the windows of examples, or whole videos into a features file.

M examples of N windows, C clips, R windows of all videos, D embedding.
"""
import functools

import numpy as np
import torch
from torch.nn import functional

import weights
from data import CLIP_SECONDS, Loaded, view_of, window_around
from files.sources import open_folder, require_readable
from files.video import Unreadable
from support.device import pick_device, send
from support.workers import prefetch
from support.write import write_atomically
from toy.source import ToySource


def load_examples(source, examples, rng=None):
    """The clips of some examples -> data.Loaded, and the examples that could be read."""
    requests = [(example.video, example.windows) for example in examples]
    loaded = source.load(requests, rng)
    read = {id(windows) for _, windows in loaded.requests}
    return loaded, [example for example in examples if id(example.windows) in read]


@torch.no_grad()
def encode_examples(model, source, examples, args, device):
    """The examples' windows through f.

    Returns: x (M, N, D); the teacher's features (M, N, D), None without a teacher; the M examples
    that could be read. InputError if too many of the videos are unreadable.
    """
    ours, teachers, readable, N = [], [], [], len(examples[0].windows)
    batches = [examples[i:i + args.batch] for i in range(0, len(examples), args.batch)]
    make = functools.partial(load_examples, source)
    for loaded, read in prefetch(make, batches, args.workers, "encode"):
        source.unreadable |= loaded.failed
        if read:
            readable += read
            ours.append(model.encode(send(loaded.clips, device)))
            if len(loaded.views):
                teachers.append(source.teacher_features(loaded.views).to(device))
    require_readable(source, args.max_unreadable)
    x = torch.cat(ours).unflatten(0, (-1, N))
    return x, torch.cat(teachers).unflatten(0, (-1, N)) if teachers else None, readable


def load_grid(source, stride, video):
    """9-s windows of a whole video, one every `stride` s -> data.Loaded."""
    try:
        duration = source.duration(video)
    except (Unreadable, OSError) as error:
        return Loaded([], torch.empty(0), torch.empty(0), {source.videos[video].name: str(error)})
    middles = np.arange(stride / 2, max(duration, stride), stride)
    windows = np.array([window_around(m, m, CLIP_SECONDS, duration) for m in middles])
    return source.load([(video, windows)])


@torch.no_grad()
def write_features(args):
    """--task features: an npz with a row for each window of every video.

    video (R,) str, start and end (R,) s, embedding (R, D) = x_i, encoder_cls (R, width): f's class
    token before the projection.
    """
    device = pick_device(args.device)
    model = weights.load(args.checkpoint).to(device)
    view = view_of(model.encoder)
    source = (open_folder(args.videos, None, args.ids, view) if args.videos else
              ToySource(args.split, args.toy_videos, view.frames))
    names, spans, tokens = [], [], []
    make = functools.partial(load_grid, source, args.stride)
    for loaded in prefetch(make, range(len(source)), args.workers, "embed videos"):
        source.unreadable |= loaded.failed
        for video, windows in loaded.requests:
            names += [source.videos[video].name] * len(windows)
            spans.append(windows)
            for clips in loaded.clips.split(64):
                tokens.append(model.encoder.class_token(model.normalize(send(clips, device))))
    require_readable(source, args.max_unreadable)
    tokens, spans = torch.cat(tokens), np.concatenate(spans)
    x = functional.normalize(model.encoder.head(tokens).float(), dim=-1)
    write_atomically(args.out, lambda file: np.savez(
        file, video=np.array(names), start=spans[:, 0], end=spans[:, 1],
        embedding=x.cpu().numpy(), encoder_cls=tokens.float().cpu().numpy()))
    print(f"{args.out}: {len(x)} windows of 9 s, one every {args.stride:g} s; {len(source)} "
          f"videos, {len(source.absent)} absent, {len(source.unreadable)} unreadable")
