"""Sources of clips: from listed videos to what the model reads, n clips of F frames, H W pixels."""
import contextlib

import numpy as np
import torch

from data import Loaded, Video, frame_times, sentence_windows
from files.captions import MAX_UNREADABLE, Captions
from files.lists import load_ids, video_name
from files.video import (Unreadable, duration, evaluation_view, find_videos, read_frames,
                         short_side_for, training_view)
from support.errors import InputError, require

TRIES = 3                     # failures in a row after which a video is unreadable
SKIPPED = "left out by --skip"


def shares(spans, windows, usable=True):
    """Which of m spans (m, 2) s belong to each window (n, 2) s: of the usable ones, (n, m) bool,
    those whose middle lies in it, else the nearest: (n, m), rows sum to 1."""
    middle = spans.mean(1)                                                          # (m,)
    inside = (windows[:, :1] <= middle) & (middle <= windows[:, 1:]) & usable       # (n, m)
    distance = np.where(usable, np.abs(middle - windows.mean(1, keepdims=True)), np.inf)
    alone = ~inside.any(1)
    inside[alone, distance[alone].argmin(1)] = True
    return inside / inside.sum(1, keepdims=True)


class VideoSource:
    """Listed videos as files that are read on demand. InputError if none of them is there.

    paths: {id: path}; view: data.View; teacher_size: side of a teacher's pictures, pixels, or 0;
    captions: Captions, if a video needs a narration, too; skip: ids of videos not to be opened.
    Whoever calls `load` fills unreadable {id: reason}; `open_folder`, wrong_captions and silent.
    """
    find = staticmethod(find_videos)

    def __init__(self, videos, paths, view, teacher_size=0, captions=None, skip=()):
        present = paths if captions is None else paths.keys() & captions.keys()
        self.listed, self.paths, self.view = videos, paths, view
        self.teacher_size, self.captions = teacher_size, captions
        self.skip, self.reasons = frozenset(map(video_name, skip)), {}       # {id: why no windows}
        self.unreadable, self.wrong_captions, self.silent = {}, {}, []
        self.videos = [video for video in videos if video.name in present]
        names = dict.fromkeys(video.name for video in videos)
        self.absent = [name for name in names if name not in present]
        require(self.videos, f"none of {len(names)} listed videos is there with what it needs; "
                f"listed is {next(iter(names), None)!r}, there is {next(iter(paths))!r}")
        unknown = sorted(self.skip - names.keys())
        require(not unknown, f"--skip {' '.join(unknown)}: not among the listed videos")

    def name(self, i):
        """The id of video i."""
        return self.videos[i].name

    def sentences(self, i):
        """The narration of video i, [(start s, end s, text), ...]. Raises InputError."""
        return self.captions.sentences(self.name(i))

    def spoken(self, i, end):
        """The sentences that begin before video i ends, at `end` s. InputError if most do not."""
        sentences = self.sentences(i)
        spoken = [sentence for sentence in sentences if sentence[0] < end]
        require(2 * len(spoken) >= len(sentences), f"{len(spoken)} of {len(sentences)} captions "
                f"begin before the video ends, at {end:.1f} s; times must be seconds")
        return spoken

    def read(self, i, read, *args):
        """read(path of video i, *args). Raises Unreadable after TRIES failures in a row, since
        network errors pass; at once if the video is one to skip."""
        if self.name(i) in self.skip:
            raise Unreadable(SKIPPED)
        path = self.paths[self.name(i)]
        for _ in range(TRIES - 1):
            with contextlib.suppress(Unreadable):
                return read(path, *args)
        return read(path, *args)

    def duration(self, i):
        """The length of video i, s. Raises InputError."""
        return self.read(i, duration)

    def look_at(self, i):
        """(length s, None) of video i, or (0, why it cannot be used). Two pictures are read: the
        first, and the one at the end of its last step or, without steps, of the file."""
        try:
            length = self.duration(i)
            if self.captions is not None:
                self.spoken(i, length)
            end = max((step.end for step in self.videos[i].steps), default=length)
            self.read(i, read_frames, [0.0, end], 32)
            return length, None
        except InputError as error:
            return 0.0, str(error)

    def pretrain_windows(self, i, rng, stride):
        """Windows (n, 2) s of what is said in video i; n = 0 if it is unreadable: see `load`."""
        try:
            end = self.duration(i)
            return sentence_windows(self.spoken(i, end), end, rng, stride)
        except InputError as error:
            self.reasons[self.name(i)] = str(error)
            return np.empty((0, 2))

    def clips(self, i, windows, rng):
        """Clips (n, F, 3, H, W) of windows (n, 2) s of video i, and the teacher's view of them."""
        size, F, seconds = self.view
        times = frame_times(windows, F, seconds).flatten()                          # (n F,)
        frames = self.read(i, read_frames, times, short_side_for(max(size, self.teacher_size)))
        clips = [evaluation_view(clip, size) if rng is None else training_view(clip, size, rng)
                 for clip in frames.split(F)]                              # frames (n F, 3, H, W)
        views = (evaluation_view(frames, self.teacher_size).unflatten(0, (-1, F))
                 if self.teacher_size else torch.empty(0))
        return torch.stack(clips), views

    def load(self, requests, rng=None):
        """The clips of [(i, windows (n, 2) s, ...), ...] -> data.Loaded. rng draws the squares that
        are cropped; None: center crops."""
        readable, made, failed = [], [], {}
        for request in requests:
            i, windows, *_ = request
            try:
                require(len(windows), self.reasons.get(self.name(i), "nothing is said"))
                made.append(self.clips(i, windows, rng))
                readable.append(request)
            except InputError as error:
                failed[self.name(i)] = str(error)
        clips, views = map(torch.cat, zip(*made)) if made else (torch.empty(0), torch.empty(0))
        return Loaded(readable, clips, views, failed)


def require_readable(source, share, where=None):
    """InputError if more than a share of a source's videos is unreadable, or all are. Those of
    --skip do not count. where: a file that has the reasons."""
    failed = [": ".join(item) for item in source.unreadable.items() if item[1] != SKIPPED]
    count = len(source.videos) - len(source.unreadable) + len(failed)
    require(len(failed) <= share * count and len(failed) < count,
            f"{len(failed)} of {count} videos are unreadable, more than --max-unreadable {share}; "
            f"{f'all are in {where}; ' if where else ''}repair or remove them; the first, "
            f"{next(iter(failed), 'none is left')}")


def open_folder(folder, caption_path, ids, view, teacher_size=0, skip=(),
                max_unreadable=MAX_UNREADABLE, kind=VideoSource):
    """The source of a folder. Its videos are those of a list `ids`, else all with a narration, or
    all if caption_path is None; but for those whose narration has no words or is unreadable."""
    captions, paths = Captions(caption_path) if caption_path else None, kind.find(folder)
    names = load_ids(ids) if ids else captions or sorted(paths)
    source = kind([Video(name) for name in names], paths, view, teacher_size, captions, skip)
    if captions:
        names, wrong = [video.name for video in source.videos], source.wrong_captions
        silent = [name for name, said in captions.readable(names, wrong) if not said]
        source.silent, left = silent, {*wrong, *silent}
        source.videos = [video for video in source.videos if video.name not in left]
        failed = [wrong[name] for name in wrong if name not in source.skip]
        told = f"{len(names)} narrations, {len(silent)} without words, {len(failed)} unreadable"
        require(source.videos and len(failed) <= max_unreadable * len(names), f"{told}: more than "
                f"--max-unreadable {max_unreadable}, or all; {next(iter(failed), '')}")
        if left:
            print(f"{told}; these are left out")
    return source
