"""Sources of clips: from listed videos to what the model reads, C clips of F frames, width D."""
import numpy as np
import torch

from data import Loaded, Video, frame_times, sentence_windows
from files.captions import Captions
from files.lists import load_ids
from files.video import (Unreadable, duration, evaluation_view, find_videos, read_frames,
                         short_side_for, training_view)
from support.errors import InputError, require


class VideoSource:
    """Listed videos as files that are read on demand. InputError if none of them is there.

    videos: those that are there; absent: the ids of the others; unreadable: {id: reason}, filled by
    whoever calls `load`. With captions (pre-training) a video needs a narration, too. paths: {id:
    path}; view: data.View of f; teacher_size: side of a teacher's pictures, pixels; 0: none looks.
    """

    def __init__(self, videos, paths, view, teacher_size=0, captions=None):
        present = paths if captions is None else paths.keys() & captions.keys()
        self.listed, self.paths, self.view = videos, paths, view
        self.teacher_size, self.captions = teacher_size, captions
        self.videos = [video for video in videos if video.name in present]
        self.absent = [name for name in dict.fromkeys(video.name for video in videos)
                       if name not in present]
        self.unreadable, self.skipped = {}, {}         # skipped: by `pretrain_windows`
        require_found(self.videos, self.absent, paths,
                      "no file" if captions is None else "no file with a narration")

    def sentences(self, i):
        """The narration of video i, [(start s, end s, text), ...]. Raises InputError."""
        return self.captions.sentences(self.videos[i].name)

    def pretrain_windows(self, i, rng):
        """Windows (n, 2) s of one pass over a narrated video, of what is said before its end; n = 0
        if it is unreadable."""
        try:
            end, sentences = duration(self.paths[self.videos[i].name]), self.sentences(i)
            spoken = [sentence for sentence in sentences if sentence[0] < end]
            require(2 * len(spoken) >= len(sentences), f"{len(spoken)} of {len(sentences)} "
                    f"captions begin before the video ends, at {end:.1f} s: of another "
                    "video, or not in seconds?")
        except InputError as error:
            self.skipped[self.videos[i].name] = str(error)
            return np.empty((0, 2))
        return sentence_windows(spoken, end, rng)

    def load(self, requests, rng=None):
        """The clips of [(i, windows (n, 2) s, ...), ...] -> data.Loaded. rng: of the squares that
        are cut; None: the middle ones."""
        size, F, seconds = self.view
        short_side = short_side_for(max(size, self.teacher_size))
        readable, clips, views, failed = [], [], [], self.unreadable | self.skipped
        for request in requests:
            i, windows, *_ = request
            name = self.videos[i].name
            times = frame_times(windows, F, seconds).flatten()                     # (n F,)
            try:
                frames = read_frames(self.paths[name], times, short_side)          # (n F, 3, H, W)
            except Unreadable as error:
                failed[name] = str(error)
                continue
            readable.append(request)
            clips += [evaluation_view(clip, size) if rng is None else training_view(clip, size, rng)
                      for clip in frames.split(F)]
            if self.teacher_size:
                views.append(evaluation_view(frames, self.teacher_size).unflatten(0, (-1, F)))
        return Loaded(readable, torch.stack(clips) if clips else torch.empty(0),
                      torch.cat(views) if views else torch.empty(0), failed)


def require_found(found, absent, paths, what="no file"):
    """Raise InputError, with an example of both names, if none of the listed videos is found."""
    name, file = next(iter(absent), None), next(iter(paths), None)
    require(found, f"--videos: {what} of the {len(absent)} listed videos; listed is {name!r}, a "
            f"file is {file!r}: they must be equal")


def require_readable(source, share):
    """Raise InputError if more than a share of a source's videos is unreadable, or all are."""
    failed, count = source.unreadable, len(source.videos)
    require(len(failed) <= share * count and len(failed) < count,
            f"{len(failed)} of {count} videos are unreadable, more than --max-unreadable "
            f"{share}; the first: {next(iter(failed.values()), '')} (if it ends too early: times "
            "must be seconds, not milliseconds or frames)")


def open_folder(folder, caption_path, ids, view, teacher_size=0):
    """The VideoSource of a folder: of the list `ids`, else of all with a narration, or of all
    videos if caption_path is None."""
    captions, paths = Captions(caption_path) if caption_path else None, find_videos(folder)
    names = load_ids(ids) if ids else captions or sorted(paths)
    return VideoSource([Video(name) for name in names], paths, view, teacher_size, captions)
