"""`data.py shrink` and `teach`: a file for each video of a folder; `pseudo_labels.py`: texts."""
import functools

import numpy as np

from files.listings import load_phrases
from files.video import (attempt, duration, evaluation_view, find_videos, is_whole, read_frames,
                         short_side_for, shrink)
from support.command import require, write_atomically
from support.device import pick_device
from support.process import lock
from support.workers import prefetch
from weights.teacher import open_teacher


def make_missing(out, suffix, make, is_whole, name, path):
    """None if out/ID`suffix` is there and whole, else make(id, path)."""
    target = out / f"{name}{suffix}"
    return None if target.exists() and is_whole(target) else make(name, path)


def for_each_video(settings, suffix, make, is_whole, save):
    """Fill the folder --out: one ID`suffix` per video; those that have a whole one are left out.

    make: (id, path) -> not None, called in the workers. save: (path of ID`suffix`, that), here.
    is_whole: (path of ID`suffix`) -> bool, whether it can be read.
    BadInput if there is no video, or none that can be read.
    """
    require(settings.out.resolve() != settings.videos.resolve(), f"--out {settings.out}: is the "
            "folder of videos; name another")
    found = find_videos(settings.videos)
    require(found, f"--videos {settings.videos}: no video below it")
    settings.out.mkdir(parents=True, exist_ok=True)
    lock(settings.out)
    make = functools.partial(attempt, functools.partial(
        make_missing, settings.out, suffix, make, is_whole))
    bad, count = {}, 0
    for name, made, reason in prefetch(make, list(found.items()), settings.workers, "write"):
        if reason:
            bad[name] = reason
        elif made is not None:
            save(settings.out / f"{name}{suffix}", made)
            count += 1
    for name, reason in bad.items():
        print(f"unreadable: {name}: {reason}")
    print(f"{settings.out}: {count} made, {len(found) - count - len(bad)} were there and whole, "
          f"{len(bad)} unreadable")
    require(len(bad) < len(found),
            f"--videos {settings.videos}: not one of {len(found)} videos can be read")


def shrink_one(settings, name, path):
    """Write the copy of one video."""
    shrink(path, settings.out / f"{name}.mp4", settings.fps, settings.short_side)
    return True


def shrink_all(settings):
    """Small copies of all videos of a folder."""
    for_each_video(settings, ".mp4", functools.partial(shrink_one, settings), is_whole,
                   lambda path, made: None)


def every_second(size, name, path):
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

    def save(path, frames):
        rows = np.concatenate([teacher.encode_frames(part).cpu().numpy()
                               for part in frames.split(256)])
        write_atomically(path, lambda file: np.save(file, rows.astype(np.float16)))

    for_each_video(settings, ".npy", functools.partial(every_second, teacher.size), has_rows, save)


def write_texts(settings):
    """Embeddings of phrases, or step names: the teacher's text encoder, to a file."""
    names = load_phrases(settings.phrases)
    teacher = open_teacher(settings.clip, settings.clip_weights, pick_device(settings.device))
    embeddings = teacher.encode_phrases(names)                                 # (K, D)
    write_atomically(settings.out, lambda file: np.savez(file, names=np.array(names),
                                                         embeddings=embeddings.numpy()))
    print(f"{settings.out}: {len(names)} phrases, D = {embeddings.shape[1]}")
