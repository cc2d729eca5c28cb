"""What an update of pre-training reads: consecutive clips of videos, the teacher's features.

C clips of all videos, m sentences, D embedding. Everything is drawn from (seed, update).
"""
import numpy as np
import torch
from torch.nn import functional

from data import consecutive_windows
from support.errors import InputError

ATTEMPTS = 20             # batches without a readable video before the run ends
DRAWS = "videos", "clips", "rows", "noise", "labels"


def generator(draws, seed, update=0, rank=0):
    """NumPy's generator of one kind of DRAWS in an update ("videos": in an epoch) of one process.
    Besides the first weights, nothing else is random in training."""
    return np.random.default_rng((DRAWS.index(draws), seed, update, rank))


def seed_noise(seed, update, rank=0):
    """Seed torch, which draws the noise and its levels, for an update of one process."""
    torch.manual_seed(int(generator("noise", seed, update, rank).integers(2 ** 63)))


def videos_of(update, count, batch, seed):
    """(batch,) int: which of `count` videos an update takes; every epoch has a new order."""
    epoch, place = divmod(update, max(count // batch, 1))
    order = generator("videos", seed, epoch).permutation(count)
    return order[place * batch:(place + 1) * batch]


def load_batch(source, seed, batch, clips, rank, world, update):
    """The clips of an update of `batch` videos, at most `clips` consecutive ones of each -> Loaded.

    Process `rank` of `world` takes its share of the videos. If none can be read, others are taken.
    """
    failed = {}
    for attempt in range(update, update + ATTEMPTS):
        rng, requests = generator("clips", seed, attempt, rank), []
        for video in videos_of(attempt, len(source.videos), batch, seed)[rank::world]:
            windows = consecutive_windows(source.pretrain_windows(video, rng), clips, rng)
            if len(windows):
                requests.append((video, windows))
        loaded = source.load(requests, rng)
        failed |= loaded.failed
        if loaded.requests:
            return loaded._replace(failed=failed)
    name, reason = next(iter(failed.items()), ("all", "nothing is said in them"))
    raise InputError(f"no video of {ATTEMPTS} batches can be read; {name}: {reason}")


def spoken_during(sentences, windows):
    """Which sentences belong to each window: those whose middle lies in it, else the nearest one.

    Args:    sentences [(start s, end s, text), ...], at least one; windows (n, 2) s.
    Returns: (n, m) float64, the share of each of the m sentences; rows sum to 1.
    """
    middle = np.array([(start + end) / 2 for start, end, _ in sentences])           # (m,)
    inside = (windows[:, :1] <= middle) & (middle <= windows[:, 1:])                # (n, m)
    distance = np.abs(middle - windows.mean(1, keepdims=True))
    alone = ~inside.any(1)
    inside[alone, distance[alone].argmin(1)] = True
    return inside / inside.sum(1, keepdims=True)


def narration_features(teacher, source, requests):
    """The teacher's mean text feature of what is said during each clip: (C, D), length 1."""
    rows = []
    for video, windows in requests:
        sentences = source.sentences(video)
        share = spoken_during(sentences, windows)                                   # (n, m)
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
    return (vision + narration.to(vision.device)) / 2  # the release: the text not at length 1
