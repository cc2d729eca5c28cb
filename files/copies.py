"""`data.py shrink` and `teach`: a file for each video of a folder; `pseudo_labels.py`: texts."""
import functools

import numpy as np

from files.listings import load_phrases
from files.video import (Unreadable, duration, evaluation_view, find_videos, is_whole, read_frames,
                         short_side_for, shrink)
from support.command import require, write_atomically
from support.device import pick_device
from support.process import lock
from support.workers import prefetch
from weights.teacher import open_teacher


def make_missing(make, is_whole, item):
    """make(path, target) for an item (path, target); False if the target is there and whole."""
    return False if item[1].exists() and is_whole(item[1]) else make(*item)


def made_files(settings, suffix, make, is_whole):
    """Fill the folder --out: one ID`suffix` per video; those that have a whole one are left out.

    make: (path, path of ID`suffix`) -> not False, called in the workers.
    is_whole: (path of ID`suffix`) -> bool, whether it can be read.
    Yields (path of ID`suffix`, what `make` gave). BadInput if no video is there, or can be read.
    """
    require(settings.out.resolve() != settings.videos.resolve(), f"--out {settings.out}: is the "
            "folder of videos; name another")
    found = find_videos(settings.videos)
    require(found, f"--videos {settings.videos}: no video below it")
    settings.out.mkdir(parents=True, exist_ok=True)
    lock(settings.out)
    items = [(path, settings.out / f"{name}{suffix}") for name, path in found.items()]
    results = prefetch(functools.partial(make_missing, make, is_whole), items, settings.workers,
                       "write", (Unreadable,))
    bad, count = {}, 0
    for made, name, (_, target) in zip(results, found, items):
        if isinstance(made, Unreadable):
            bad[name] = made
        elif made is not False:
            yield target, made
            count += 1
    for name, reason in bad.items():
        print(f"unreadable: {name}: {reason}")
    print(f"{settings.out}: {count} made, {len(found) - count - len(bad)} were there and whole, "
          f"{len(bad)} unreadable")
    require(len(bad) < len(found),
            f"--videos {settings.videos}: not one of {len(found)} videos can be read")


def shrink_all(settings):
    """Small copies of all videos of a folder, written by the workers."""
    make = functools.partial(shrink, fps=settings.fps, short_side=settings.short_side)
    for _ in made_files(settings, ".mp4", make, is_whole):
        pass


def every_second(path, target, size):
    """One video as the teacher sees it at 0.5, 1.5, ... s: (n, 3, size, size) uint8."""
    times = np.arange(0.5, max(duration(path), 1.0))
    return evaluation_view(read_frames(path, times, short_side_for(size)), size)


def has_rows(path):
    """Whether an npy file is as long as it says."""
    try:
        return len(np.load(path, mmap_mode="r")) > 0
    except (OSError, ValueError, EOFError, TypeError):
        return False


def encode_all(settings):
    """The teacher's features of a folder's videos: ID.npy, (n, D) float16, row i = second i."""
    teacher = open_teacher(settings.clip, settings.clip_weights, pick_device(settings.device))
    make = functools.partial(every_second, size=teacher.size)
    for target, frames in made_files(settings, ".npy", make, has_rows):
        rows = np.concatenate([teacher.encode_frames(part).cpu().numpy()
                               for part in frames.split(256)])
        write_atomically(target, lambda file: np.save(file, rows.astype(np.float16)))


def write_texts(settings):
    """Embeddings of phrases, or step names: the teacher's text encoder, to a file."""
    names = load_phrases(settings.phrases)
    teacher = open_teacher(settings.clip, settings.clip_weights, pick_device(settings.device))
    embeddings = teacher.encode_phrases(names)                                 # (K, D)
    write_atomically(settings.out, lambda file: np.savez(file, names=np.array(names),
                                                         embeddings=embeddings.numpy()))
    print(f"{settings.out}: {len(names)} phrases, D = {embeddings.shape[1]}")
