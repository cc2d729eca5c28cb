"""`python -m files shrink` and `teach`: a file for each video of a folder; `embed`: of texts."""
import functools
import os
from contextlib import suppress

import numpy as np

from files.annotations import load_teacher_rows
from files.listings import load_phrases
from files.video import (Unreadable, comment_of, duration, evaluation_view, find_videos,
                         read_frames, record, short_side_for, shrink)
from support.command import BadInput, require
from support.device import pick_device, write_arrays
from support.process import lock
from support.workers import prefetch
from weights.teacher import checksum, open_teacher

LONGEST = 230             # bytes of a name; most disks take 255, with what is appended meanwhile


def make_missing(made, record_of, make, item):
    """Make the file of an item (path of the video, path of the file): None if it is there, else
    whether it was, with another record, and what `make` gave. Unreadable if another is there."""
    path, target = item
    if len(os.fsencode(target.name)) > LONGEST:
        raise Unreadable(f"{target}: its name is too long for a file; give the video a shorter one")
    wanted, found = record(path, *made), None
    if os.path.lexists(target):
        if target.is_file() and not target.is_symlink() and not os.path.samefile(path, target):
            with suppress(BadInput, Unreadable):
                found = record_of(target)
        if found is None or not found.startswith(f'["{made[0]}"'):
            raise Unreadable(f"{target}: is in the way: no whole file of python -m files {made[0]}")
        if found == wanted:
            return None
    return found is not None, make(path, target, wanted)


def made_files(settings, suffix, made, record_of, make):
    """Fill the folder --out: one ID`suffix` per video; those that have theirs are left out.
    made:      the name of the command, and what the files are made with, for `record`.
    record_of: path of ID`suffix` -> its record, None if it has none; raises if it is not whole.
    Yields (path, what make(path of the video, path, record) gave in a worker). BadInput if no video
    is there, or can be read."""
    found = find_videos(settings.videos)
    require(found, f"--videos {settings.videos}: no video below it")
    settings.out.mkdir(parents=True, exist_ok=True)
    lock(settings.out)
    items = [(path, settings.out / f"{name}{suffix}") for name, path in found.items()]
    results = prefetch(functools.partial(make_missing, made, record_of, make), items,
                       settings.workers, "write", (Unreadable,))
    bad, again = {}, []                    # {id: reason}; of each file made, whether it was there
    for result, name, (_, target) in zip(results, found, items):
        if isinstance(result, Unreadable):
            bad[name] = result
        elif result is not None:
            again.append(result[0])
            yield target, result[1]
    for name, reason in bad.items():
        print(f"unreadable: {name}: {reason}")
    kept = len(found) - len(again) - len(bad)
    print(f"{settings.out}: {len(again)} made, of these {sum(again)} again (with other settings, "
          f"or of another file before), {kept} were there and whole, {len(bad)} unreadable")
    require(len(bad) < len(found),
            f"--videos {settings.videos}: not one of {len(found)} videos can be read")


def shrink_all(settings):
    """Small copies of all videos of a folder, written by the workers."""
    fps, short_side = settings.fps, settings.short_side
    list(made_files(settings, ".mp4", ("shrink", fps, short_side), comment_of,
                    functools.partial(shrink, fps=fps, short_side=short_side)))


def every_second(size, path, target, made):
    """One video as the teacher sees it at 0.5, 1.5, ... s: (n, 3, size, size) uint8; its record."""
    times = np.arange(0.5, max(duration(path), 1.0))
    return evaluation_view(read_frames(path, times, short_side_for(size)), size), made


def record_of_rows(path):
    """The record of a file of `encode_all`."""
    return load_teacher_rows(path)[1]


def encode_all(settings):
    """The teacher's features of a folder's videos: ID.npz, (n, D) float16, row i = second i."""
    teacher = open_teacher(settings.clip, settings.clip_weights, pick_device(settings.device))
    for target, (frames, made) in made_files(
            settings, ".npz", ("teach", checksum(teacher)), record_of_rows,
            functools.partial(every_second, teacher.size)):
        rows = np.concatenate([teacher.encode_frames(part).cpu().numpy()
                               for part in frames.split(256)])
        write_arrays(target, rows=rows.astype(np.float16), made=np.array(made))


def write_texts(settings):
    """Embeddings of phrases, or step names: the teacher's text encoder, to a file."""
    names = load_phrases(settings.phrases)
    teacher = open_teacher(settings.clip, settings.clip_weights, pick_device(settings.device))
    embeddings = teacher.encode_phrases(names)                                 # (K, D)
    write_arrays(settings.out, names=np.array(names), embeddings=embeddings.numpy())
    print(f"{settings.out}: {len(names)} phrases, D = {embeddings.shape[1]}")
