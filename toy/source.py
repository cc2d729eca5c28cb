"""The embedded world as a source of clips: its videos in memory, and its teacher.

n frames of all videos, C clips, F frames of a clip, D embedding.
"""
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from tqdm import tqdm

from data import Loaded, frame_times, sentence_windows
from pseudo_labels import Teacher
from support.errors import require
from toy import grammar, render
from toy.teacher import TEACHER_FILE, VERSION, build_teacher


class ToySource:
    """The first `count` videos of a split, in clips of F frames, as those of files/sources.py."""

    def __init__(self, split, count, frames, teacher=None):
        self.teacher, self.frames_per_clip = teacher, frames
        self.videos = self.listed = [grammar.make_video(split, i) for i in range(count)]
        self.absent, self.unreadable = [], {}
        self.narration = [render.narrate(video) for video in self.videos]
        with ThreadPoolExecutor() as threads:              # one core each: NumPy and torch allow it
            parts = list(tqdm(threads.map(render.render, self.videos), f"render {split}", count,
                              mininterval=1, delay=2))
            self.first = np.cumsum([0] + [len(part) for part in parts])     # of each video's frames
            self.pixels = torch.from_numpy(np.concatenate(parts))           # (n, 3, H, W) uint8
            if teacher:
                parts = self.pixels.split(128)
                parts = tqdm(threads.map(teacher.encode_frames, parts), f"teacher on {split}",
                             len(parts), mininterval=1, delay=2)
                self.frame_features = torch.cat([part.cpu() for part in parts])

    def sentences(self, video):
        """The narration of a video: [(start s, end s, text), ...]."""
        return self.narration[video]

    def pretrain_windows(self, video, rng):
        """The windows (n, 2) s of one pass over a video: `sentence_windows` of its narration."""
        return sentence_windows(self.narration[video], self.videos[video].duration, rng)

    def load(self, requests, rng=None):
        """The clips of [(video, windows (n, 2) s, ...), ...] -> Loaded: the frames nearest in time.
        views: rows of `pixels`, (C, F); none without a teacher."""
        index = []
        for video, windows, *_ in requests:
            number = frame_times(windows, self.frames_per_clip) * render.FPS                # (n, F)
            first, end = self.first[video:video + 2]
            index.append(first + np.clip(number.astype(np.int64), 0, end - first - 1))
        index = torch.from_numpy(np.concatenate(index))                                     # (C, F)
        return Loaded(requests, self.pixels[index], index if self.teacher else index[:0], {})

    def teacher_features(self, views):
        """The teacher's features of clips: the mean over their frames (Sec. 3.2) -> (C, D)."""
        return self.frame_features[views].mean(1)


def load_teacher(device):
    """The world's pseudo_labels.Teacher. Raises InputError if absent, or of another version."""
    require(TEACHER_FILE.is_file(), f"{TEACHER_FILE}: absent; `git checkout` restores it")
    file = torch.load(TEACHER_FILE, map_location="cpu", weights_only=True)
    require(file["version"] == VERSION, f"{TEACHER_FILE}: of version {file['version']} of the "
            f"world; this code needs {VERSION}; `python -m toy teacher` trains it again")
    model, tokenizer = build_teacher()
    tokens = {"token_embedding.weight": model.token_embedding.weight}      # not in the file
    model.load_state_dict({**file["model"], **tokens})
    model.to(memory_format=torch.channels_last)        # its convolutions take 0.7 of the time
    return Teacher(model, tokenizer, render.MEAN, render.STD, device)
