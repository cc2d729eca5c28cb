"""Videos through f: the windows of some samples, or whole videos; and the teacher's features.

M samples of N windows, C clips, R windows of all videos, D embedding.
"""
import functools

import numpy as np
import torch
from torch.nn import functional

from data import CLIP_SECONDS, Loaded, view_of, window_around
from files.sources import open_folder
from files.video import Unreadable
from support.command import require
from support.device import pick_device, send, write_arrays
from support.workers import prefetch
from toy.source import ToySource
from weights.checkpoint import load_model


# --- Samples of a task ---
def load_samples(source, samples, rng=None):
    """The clips of some samples -> data.Loaded, and the samples that could be read."""
    requests = [(sample.video, sample.windows) for sample in samples]
    loaded = source.load(requests, rng)
    read = {id(request) for request in loaded.requests}
    return loaded, [s for s, request in zip(samples, requests) if id(request) in read]


def require_readable(good, failed, source, most):
    """BadInput unless some are `good`, and of the source's videos at most a share failed."""
    require(good and len(failed) <= most * len(source), f"{len(failed)} of {len(source)} videos "
            f"cannot be read, more than --max-unreadable {most}; the first: "
            f"{next(iter(failed.values()), None)}")


@torch.no_grad()
def encode_samples(model, source, samples, settings, device, title="encode"):
    """The samples' windows through f: x (M, N, D), the teacher's features (M, N, D) or None, and
    the M samples that could be read; BadInput if too many of the videos are unreadable."""
    ours, teachers, good, N = [], [], [], len(samples[0].windows)
    batches = [samples[i:i + settings.batch] for i in range(0, len(samples), settings.batch)]
    make = functools.partial(load_samples, source)
    for loaded, read in prefetch(make, batches, settings.workers, title):
        source.unreadable |= loaded.failed
        if read:
            good += read
            ours.append(model.encode(loaded.clips.to(device)))
            if len(loaded.views):
                teachers.append(source.teacher_features(loaded.views).to(device))
    require_readable(good, source.unreadable, source, settings.max_unreadable)
    x, features = (torch.cat(rows).unflatten(0, (-1, N)) if rows else None
                   for rows in (ours, teachers))
    return x, features, good


# --- Whole videos ---
def spoken_during(sentences, windows):
    """Which sentences belong to each window: those whose middle lies in it, else the nearest one.

    Args:    sentences [(start s, end s, text), ...]; windows (n, 2) s.
    Returns: (n, m) float64, the share of each of the m sentences; rows sum to 1.
    """
    middle = np.array([(start + end) / 2 for start, end, _ in sentences])           # (m,)
    inside = (windows[:, :1] <= middle) & (middle <= windows[:, 1:])                # (n, m)
    distance = np.abs(middle - windows.mean(1, keepdims=True))
    if len(sentences):
        alone = ~inside.any(1)
        inside[alone, distance[alone].argmin(1)] = True
    return inside / np.maximum(inside.sum(1, keepdims=True), 1)


def narration_features(source, requests):
    """The teacher's mean text feature of what is said during each clip: (C, D), length 1, or 0."""
    shares, texts = [], []
    for video, windows in requests:
        sentences = source.sentences(video)
        share = spoken_during(sentences, windows)                                     # (n, m)
        used = share.any(0)
        shares.append(torch.from_numpy(share[:, used]).float())
        texts += [text for (_, _, text), use in zip(sentences, used) if use]
    features = source.teacher.encode_sentences(texts).split([share.shape[1] for share in shares])
    rows = torch.cat([share @ part for share, part in zip(shares, features)])       # (C, D)
    return functional.normalize(rows, dim=-1)


def teacher_features(source, loaded, targets="vision"):
    """What soft targets are made of: features (C, D) of frames, of speech, or their mean."""
    if targets == "narration":
        return narration_features(source, loaded.requests)
    vision = source.teacher_features(loaded.views)
    if targets == "vision":
        return vision
    narration = narration_features(source, loaded.requests).to(vision.device)
    return (functional.normalize(vision, dim=-1) + narration) / 2          # as in the release


def load_grid(source, stride, video):
    """9-s windows of a whole video, one every `stride` s -> Loaded."""
    try:
        duration = source.duration(video)
    except (Unreadable, OSError) as error:
        return Loaded([], torch.empty(0), torch.empty(0), {source.videos[video].name: str(error)})
    middles = np.arange(stride / 2, max(duration, stride), stride)
    windows = np.array([window_around(m, m, CLIP_SECONDS, duration) for m in middles])
    return source.load([(video, windows)])


def embed_videos(source, encode, stride, workers, device, most=1.0):
    """9-s windows of every video, one every `stride` s, through `encode`: clips -> (C, D).

    Returns: names (R,), windows (R, 2) s, x (R, D), {id: reason} of at most a share unreadable.
    """
    made, failed = [], {}
    make = functools.partial(load_grid, source, stride)
    for loaded in prefetch(make, range(len(source)), workers, "embed videos"):
        failed |= loaded.failed
        for video, windows in loaded.requests:
            x = [encode(send(clips, device)).cpu() for clips in loaded.clips.split(64)]
            made.append((np.repeat(source.videos[video].name, len(windows)), windows, torch.cat(x)))
    require_readable(made, failed, source, most)
    names, windows, x = zip(*made)
    return np.concatenate(names), np.concatenate(windows), torch.cat(x), failed


@torch.no_grad()
def write_features(settings):
    """--task features: a row for each window of every video, also f's class token, encoder_cls."""
    device = pick_device(settings.device)
    model = load_model(settings.checkpoint)[0].to(device)
    require(model.encoder, f"{settings.checkpoint}: was trained on features and has no encoder; a "
            "features file needs a checkpoint that was trained on videos")
    view = view_of(model.encoder)
    source = (open_folder(settings.videos, None, settings.ids, view) if settings.videos else
              ToySource(settings.split, settings.toy_videos, view.frames))

    def encode(clips):
        tokens = model.class_token(clips)                                           # (C, W)
        x = functional.normalize(model.encoder.head(tokens).float(), dim=-1)
        return torch.cat([x, tokens], 1)

    names, windows, x, failed = embed_videos(source, encode, settings.stride, settings.workers,
                                             device, settings.max_unreadable)
    D = model.dim
    write_arrays(settings.out, video=names, start=windows[:, 0], end=windows[:, 1],
                 embedding=x[:, :D].numpy(), encoder_cls=x[:, D:].numpy(),
                 stride=np.array(settings.stride))
    print(f"{settings.out}: {len(x)} windows of 9 s, one every {settings.stride:g} s, of "
          f"{len(source) - len(failed)} videos; {len(source.missing)} missing, {len(failed)} "
          "unreadable")
