"""The embedded world as a source of clips: its videos rendered into memory, and its teacher.

n frames of all videos, C clips, F frames of a clip, D embedding.
"""
import os
import sys
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from data import Loaded, Step, Video, frame_times, sentence_windows
from pseudo_labels import Teacher
from support import parallel
from support.command import write_atomically
from support.device import require_finite
from toy import grammar, render, teacher as toy_teacher


def teacher_file():
    """Where a user's commands keep the teacher, one for each version of the world."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache, "procedurevrl", f"toy_teacher_{toy_teacher.digest()[:12]}.pt")


def as_video(script, split):
    """A grammar.Video, the script of a video, as the data.Video that every source lists."""
    steps = tuple(Step(*segment, step) for segment, step in zip(script.segments, script.steps))
    return Video(script.name, split, list(grammar.PROCEDURES).index(script.procedure),
                 script.duration, steps)


class ToySource:
    """The first `count` videos of a split, in clips of F frames, as those of files/sources.py.

    teacher: pseudo_labels.Teacher, which encodes every frame once; None: no teacher features.
    """

    def __init__(self, split, count, frames, teacher=None, progress=True):
        self.teacher, self.frames_per_clip = teacher, frames
        scripts = [grammar.make_video(split, i) for i in range(count)]
        self.videos = self.listed = [as_video(script, split) for script in scripts]
        self.missing, self.unreadable = [], {}
        bar = tqdm(scripts, desc=f"render {split}", mininterval=1, disable=not progress)
        parts = [render.render(script) for script in bar]
        self.first = np.cumsum([0] + [len(part) for part in parts])         # of each video's frames
        self.pixels = torch.from_numpy(np.concatenate(parts))               # (n, 3, H, W) uint8
        self.narration = [render.narrate(script) for script in scripts]
        self.frame_features = None
        if teacher is not None:
            starts = tqdm(range(0, len(self.pixels), 1024), desc=f"teacher on {split}",
                          mininterval=1, disable=not progress)
            self.frame_features = torch.cat([teacher.encode_frames(self.pixels[i:i + 1024]).cpu()
                                             for i in starts])

    def __len__(self):
        return len(self.videos)

    def frame_index(self, video, windows):
        """(n, F) int64: the rows of `pixels` nearest to the clips' frame times."""
        count = self.first[video + 1] - self.first[video]
        index = np.floor(frame_times(windows, self.frames_per_clip) * render.FPS).astype(np.int64)
        return torch.from_numpy(self.first[video] + np.clip(index, 0, count - 1))

    def duration(self, video):
        """Length of a video, s."""
        return self.videos[video].duration

    def sentences(self, video):
        """The narration of a video: [(start s, end s, text), ...]."""
        return self.narration[video]

    def pretrain_windows(self, video, rng):
        """Windows of one pass over a video; see `sentence_windows`."""
        return sentence_windows(self.sentences(video), self.videos[video].duration, rng)

    def load(self, requests, rng=None):
        """The clips of some requests -> Loaded; its views are rows of `pixels`."""
        index = torch.cat([self.frame_index(*request) for request in requests])    # (C, F)
        views = index if self.frame_features is not None else index[:0]
        return Loaded(requests, self.pixels[index], views, {})

    def teacher_features(self, views):
        """The teacher's features of clips: the mean over their frames (Sec. 3.2) -> (C, D)."""
        return self.frame_features[views].mean(1)


def load_teacher(device):
    """The embedded world's pseudo_labels.Teacher: from its cache, or trained now."""
    (model, tokenizer), path = toy_teacher.build_teacher(), teacher_file()
    try:
        model.load_state_dict(torch.load(path, weights_only=True))
    except Exception:                                  # absent, or cut off
        model, tokenizer = toy_teacher.train_teacher()
        if parallel.is_first():
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, lambda file: torch.save(model.state_dict(), file))
            except OSError as error:
                print(f"note: {path}: {error.strerror}; the teacher will be trained again, unless "
                      "XDG_CACHE_HOME names a folder to keep it in", file=sys.stderr)
    require_finite(path, model.state_dict())
    return Teacher(model, tokenizer, render.MEAN, render.STD, device)
