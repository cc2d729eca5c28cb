"""Videos as files in a folder, as HowTo100M, COIN and EPIC have them: n clips of F frames, H W
pixels."""
import torch

from data import Source, Unreadable, frame_times, sentences_before
from files.captions import Captions
from files.lists import load_ids
from files.video import (
    duration,
    evaluation_crop,
    find_videos,
    read_frames,
    short_side_for,
    training_crop,
)
from support.arguments import existing
from support.errors import InputError


def add_narration_flags(add, required):
    """Declare --captions and --ids."""
    add("--captions", type=existing, required=required,
        help="folder of ID.csv, ID.srt or ID.vtt; or caption.json")
    add("--ids", type=existing, help="only these videos: an id per line")


class VideoFolder(Source):
    """Videos of the folder --videos, ID.mp4 and the like, that are read on demand; and their
    narrations, if --captions is given.

    A data set with other files of pictures has its own `find`, `duration_of` and `pictures_of`,
    with the arguments, shapes and errors of files/video.py's functions.
    """
    flag = "videos"                                # whose value is given to `find`
    find = staticmethod(find_videos)               # folder -> {id: path}
    duration_of = staticmethod(duration)           # path -> s
    pictures_of = staticmethod(read_frames)        # (path, times, short side) -> (n, 3, H, W)

    @staticmethod
    def add_flags(add, command):
        """See Source.add_flags: --videos."""
        add("--videos", type=existing, required=command != "check",
            help="folder of videos, ID.mp4 and the like")

    def __init__(self, args):
        folder, captions = getattr(args, self.flag, None), getattr(args, "captions", None)
        self.paths = self.find(folder) if folder else {}
        self.captions = Captions(captions, self.paths) if captions else None

    def ids(self, args):
        """The ids of --ids; else all with a narration; without --captions, all that are there."""
        if getattr(args, "ids", None):
            return load_ids(args.ids)
        if self.captions is not None:
            return list(self.captions)
        return sorted(self.paths)

    def open(self, pictures, teacher, narrated=False):
        self.pictures = pictures
        self.seen_size = teacher.size if teacher else 0

    def path(self, i):
        """Where video i is read."""
        return self.paths[self.videos[i].name]

    def narration(self, i):
        name = self.videos[i].name
        if name not in self.captions:
            raise Unreadable("no narration")
        try:
            return self.captions.sentences(name)
        except (InputError, OSError) as error:
            raise Unreadable(str(error)) from None

    def duration(self, i):
        return self.duration_of(self.path(i))

    def clips(self, i, windows, rng=None):
        size, F, seconds = self.pictures
        times = frame_times(windows, F, seconds).flatten()                          # (n F,)
        short_side = short_side_for(max(size, self.seen_size))
        frames = self.pictures_of(self.path(i), times, short_side)  # (n F, 3, H, W)
        clips = []
        for clip in frames.split(F):
            crop = evaluation_crop(clip, size) if rng is None else training_crop(clip, size, rng)
            clips.append(crop)
        seen = torch.empty(0)
        if self.seen_size:
            seen = evaluation_crop(frames, self.seen_size).unflatten(0, (-1, F))
        return torch.stack(clips), seen

    def picture(self, i, time):
        """The whole picture of video i at a time, s: (3, H, W) uint8. Raises Unreadable."""
        return self.pictures_of(self.path(i), [time], None)[0]

    def check(self, i):
        """See Source.check. It is read up to the end of its last step or, without steps, of
        the file. A narration must fit the length."""
        length = self.duration(i)
        if self.captions is not None:
            said = self.narration(i)
            if said:
                sentences_before(said, length)
        end = max((step.end for step in self.videos[i].steps), default=length)
        self.read_end(i, end)
        return length

    def read_end(self, i, end):
        """Read the first picture of video i, and the one at `end` s. Raises Unreadable."""
        self.pictures_of(self.path(i), [0.0, end], 32)
