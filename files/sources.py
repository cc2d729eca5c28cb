"""Videos as files, a data.Source: n clips of F frames, H W pixels."""
import contextlib

import torch

from data import LeftOut, Unreadable, Video, frame_times, spoken
from files.captions import MAX_UNREADABLE, Captions
from files.lists import load_ids, video_name
from files.video import (duration, evaluation_crop, find_videos, read_frames, short_side_for,
                         training_crop)
from support.errors import InputError, require
from weights.names import PIXELS

TRIES = 3                     # failures in a row after which a video is unreadable


class VideoSource:
    """Listed videos as files that are read on demand. InputError if none of them is there.

    Args:
        videos, paths: [Video, ...]; {id: path} of the files that are there.
        pictures: what f reads, data.Pictures; teacher: the one that looks at the clips, if any.
        captions: Captions, if a video needs a narration, too.
        skip: ids of videos not to be opened; max_unreadable: share of unreadable narrations.

    A data set with other files of pictures has its own `duration_of(path)` and `pictures_of(path,
    times, short_side)`, with the shapes and errors of files/video.py's.
    """
    pixels, truth = PIXELS, None
    duration_of, pictures_of = staticmethod(duration), staticmethod(read_frames)

    def __init__(self, videos, paths, pictures, teacher=None, captions=None, skip=(),
                 max_unreadable=MAX_UNREADABLE):
        self.listed, self.paths, self.pictures, self.captions = videos, paths, pictures, captions
        self.seen_size = teacher.size if teacher else 0
        names, skip = dict.fromkeys(video.name for video in videos), {*map(video_name, skip)}
        present = paths.keys() if captions is None else paths.keys() & captions.keys()
        self.left_out = {name: ("absent", "no file, or no narration")
                         for name in names if name not in present}
        require(len(self.left_out) < len(names), f"none of {len(names)} listed videos, or captions,"
                f" has a file of its name; listed is {next(iter(names), None)!r}, there is the "
                f"video {next(iter(paths))!r}")
        unknown = sorted(skip - names.keys())
        require(not unknown, f"--skip {' '.join(unknown)}: not among the listed videos")
        if captions:
            self.leave_out_captions([name for name in names if name in present], skip,
                                    max_unreadable)
        self.videos = [video for video in videos if video.name not in self.left_out]
        require(self.videos, "no video has a narration with words")
        self.left_out |= {name: ("skipped", "left out by --skip")
                          for name in skip if name not in self.left_out}

    def leave_out_captions(self, names, skip, max_unreadable):
        """Add the videos without words, or with unreadable captions, to `left_out`. InputError for
        too many unreadable ones, of those that are not to be skipped."""
        wrong = {}
        silent = [name for name, said in self.captions.readable(names, wrong) if not said]
        failed = [wrong[name] for name in wrong if name not in skip]
        told = f"{len(names)} narrations, {len(silent)} without words, {len(failed)} unreadable"
        require(len(failed) <= max_unreadable * len(names) and len({*wrong, *silent}) < len(names),
                f"{told}: more than --max-unreadable {max_unreadable}, or all; "
                f"{next(iter(failed), '')}")
        if wrong or silent:
            print(f"{told}; these are left out")
        self.left_out |= {name: ("silent", "no words") for name in silent}
        self.left_out |= {name: ("captions", reason) for name, reason in wrong.items()}

    def narration(self, i):
        """As data.Source has it."""
        try:
            return self.captions.sentences(self.videos[i].name)
        except InputError as error:                    # the file has changed since the start
            raise Unreadable(str(error)) from None

    def read(self, i, read, *args):
        """read(path of video i, *args). Raises Unreadable after TRIES failures in a row, since
        network errors pass; LeftOut if the video is one to skip."""
        name = self.videos[i].name
        if name in self.left_out:
            raise LeftOut(self.left_out[name][1])
        for _ in range(TRIES - 1):
            with contextlib.suppress(Unreadable):
                return read(self.paths[name], *args)
        return read(self.paths[name], *args)

    def duration(self, i):
        """As data.Source has it."""
        return self.read(i, self.duration_of)

    def clips(self, i, windows, rng=None):
        """As data.Source has it."""
        (size, F, seconds), seen = self.pictures, torch.empty(0)
        times = frame_times(windows, F, seconds).flatten()                          # (n F,)
        frames = self.read(i, self.pictures_of, times, short_side_for(max(size, self.seen_size)))
        clips = [evaluation_crop(clip, size) if rng is None else training_crop(clip, size, rng)
                 for clip in frames.split(F)]                              # frames (n F, 3, H, W)
        if self.seen_size:
            seen = evaluation_crop(frames, self.seen_size).unflatten(0, (-1, F))
        return torch.stack(clips), seen

    def check(self, i):
        """The length of video i, s. Raises Unreadable if it cannot be used. Two pictures are read:
        the first, and the one at the end of its last step or, without steps, of the file."""
        length = self.duration(i)
        if self.captions is not None:
            spoken(self.narration(i), length)
        end = max((step.end for step in self.videos[i].steps), default=length)
        self.read(i, self.pictures_of, [0.0, end], 32)
        return length


def open_folder(folder, caption_path, ids, pictures, teacher=None, skip=(),
                max_unreadable=MAX_UNREADABLE, kind=VideoSource, find=find_videos):
    """The source of a folder. Its videos are those of a list `ids`, else all with a narration, or
    all if caption_path is None."""
    captions, paths = Captions(caption_path) if caption_path else None, find(folder)
    names = load_ids(ids) if ids else captions or sorted(paths)
    return kind([Video(name) for name in names], paths, pictures, teacher, captions, skip,
                max_unreadable)
