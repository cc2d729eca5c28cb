"""What an update of training reads: videos in groups, clips of them, the teacher's features.

Every random choice is drawn from (its kind, seed, update, video) alone: a run does not depend on
how many processes, workers or groups make it. C clips of a group's videos, R rows, m sentences,
D embedding.
"""
import functools
import itertools
import math

import numpy as np
import torch
from torch.nn import functional
from tqdm import tqdm

from data import Loaded, consecutive_windows
from files.sources import shares

DRAWS = "videos", "clips", "rows", "noise", "labels"


def generator(draws, seed, update=0, video=0):
    """NumPy's generator for one kind of DRAWS, of a video in an update; for "videos", of an epoch.
    Nothing else is random in pre-training, except for the first weights."""
    return np.random.default_rng((DRAWS.index(draws), seed, update, video))


@functools.lru_cache(maxsize=2)
def order_of(epoch, count, seed):
    """A new order of `count` videos or examples in every epoch: (count,) int."""
    return generator("videos", seed, epoch).permutation(count)


def videos_of(update, count, batch, seed):
    """(batch,) int: which of `count` videos or examples an update takes; all if count < batch."""
    epoch, place = divmod(update, max(count // batch, 1))
    return order_of(epoch, count, seed)[place * batch:(place + 1) * batch]


def taken(item, share, count, args):
    """The update of an item, and which of `count` videos or examples it is. A process counts its
    items through all updates. In each it takes the places `share`, a range, of the batch."""
    update, k = divmod(item, len(share))
    return update, int(videos_of(update, count, args.batch, args.seed)[share[k]])


def load_video(source, args, share, clips, item):
    """The video of an item, at most `clips` consecutive clips of it -> Loaded."""
    update, video = taken(item, share, len(source.videos), args)
    rng = generator("clips", args.seed, update, video)
    windows = consecutive_windows(source.pretrain_windows(video, rng), clips, rng)
    return source.load([(video, windows)], rng)


def with_remedy(video):
    """What to call a data.Video that killed the worker that read it."""
    return f"{video.name} (leave it out with --skip {video.name})"


def note(source, loaded):
    """Update source.unreadable, {id: reason} of the videos whose last read failed. New ones are
    printed."""
    for request in loaded.requests:
        source.unreadable.pop(source.videos[request[0]].name, None)
    for name in loaded.failed.keys() - source.unreadable.keys():
        tqdm.write(f"unreadable: {name}: {loaded.failed[name]}")
    source.unreadable |= loaded.failed


def groups(loaded, count, most, source, device):
    """The next `count` items of `loaded`, one video or example each, joined into groups.

    Yields: Loaded of at most `most` >= 1 items, the groups of equal size or one less; clips and
            views on `device`. What cannot be read is left out, and noted.
    """
    for part in np.array_split(np.arange(count), max(1, math.ceil(count / most))):
        items = list(itertools.islice(loaded, len(part)))
        for item in items:
            note(source, item)
        items = [item for item in items if item.requests]
        if items:
            clips, views = (torch.cat([tensor.to(device, non_blocking=device.type == "cuda")
                                       for tensor in tensors])
                            for tensors in ([item.clips for item in items],
                                            [item.views for item in items]))
            requests = [request for item in items for request in item.requests]
            del items, item                            # the next group is read into their place
            yield Loaded(requests, clips, views, {})


def draw_noise(requests, counts, update, dim, levels, seed):
    """For the rows of each video: noise (R, dim) and its level (R,) int64, 0 to levels - 1."""
    noise, t = [], []
    for (video, *_), rows in zip(requests, counts):
        rng = generator("noise", seed, update, video)
        t.append(rng.integers(levels, size=rows))
        noise.append(rng.standard_normal((rows, dim), np.float32))
    return torch.from_numpy(np.concatenate(noise)), torch.from_numpy(np.concatenate(t))


def narration_features(teacher, source, requests):
    """The teacher's mean text feature of what is said during each clip: (C, D), length 1."""
    rows = []
    for video, windows in requests:
        sentences = source.sentences(video)
        spans = np.array([sentence[:2] for sentence in sentences])                  # (m, 2) s
        share = shares(spans, windows)                                              # (n, m)
        spoken = np.flatnonzero(share.any(0))
        features = teacher.encode_sentences([sentences[i][2] for i in spoken])
        rows.append(torch.from_numpy(share[:, spoken]).float() @ features)          # (n, D)
    return functional.normalize(torch.cat(rows), dim=-1)


def clip_features(teacher, source, loaded, targets):
    """What soft targets are made of: features (C, D) of frames, of speech, or their mean."""
    if targets == "vision":
        return teacher.encode_clips(loaded.views)
    narration = narration_features(teacher, source, loaded.requests)
    if targets == "narration":
        return narration
    vision = functional.normalize(teacher.encode_clips(loaded.views), dim=-1)
    return (vision + narration.to(vision.device)) / 2  # as in the release, text not at length 1
