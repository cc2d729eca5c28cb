"""The embedded world as a source of clips: its videos in memory, and its teacher.

n frames of all videos, C clips, F frames of a clip, D embedding.
"""
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from tqdm import tqdm

from data import Loaded, frame_times, sentence_windows
from pseudo_labels import Teacher
from support.command import require
from support.device import read_tensors
from toy import grammar, render, teacher as toy_teacher

TEACHER_FILE = Path(__file__).with_name("teacher.safetensors")


class ToySource:
    """The first `count` videos of a split, in clips of F frames, as those of files/sources.py.
    annotated: pre-training clips are the annotated steps, not windows around sentences."""

    def __init__(self, split, count, frames, teacher=None, annotated=False):
        self.teacher, self.frames_per_clip, self.annotated = teacher, frames, annotated
        self.videos = self.listed = [grammar.make_video(split, i) for i in range(count)]
        self.missing, self.unreadable = [], {}
        with ThreadPoolExecutor() as threads:              # NumPy draws noise in parallel
            parts = list(tqdm(threads.map(render.render, self.videos), f"render {split}", count,
                              mininterval=1, delay=2))
        self.first = np.cumsum([0] + [len(part) for part in parts])         # of each video's frames
        self.pixels = torch.from_numpy(np.concatenate(parts))               # (n, 3, H, W) uint8
        self.narration = [render.narrate(video) for video in self.videos]
        if teacher:
            parts = tqdm(self.pixels.split(128), f"teacher on {split}", mininterval=1, delay=2)
            self.frame_features = torch.cat([teacher.encode_frames(part).cpu() for part in parts])

    def __len__(self):
        return len(self.videos)

    def duration(self, video):
        """Length of a video, s."""
        return self.videos[video].duration

    def sentences(self, video):
        """The narration of a video: [(start s, end s, text), ...]."""
        return self.narration[video]

    def pretrain_windows(self, video, rng):
        """Windows of one pass over a video: its annotated steps, or `sentence_windows`."""
        if self.annotated:
            return np.array([step[:2] for step in self.videos[video].steps])
        return sentence_windows(self.sentences(video), self.duration(video), rng)

    def load(self, requests, rng=None):
        """The clips of some requests -> Loaded; views: rows of `pixels`, none without a teacher."""
        index = []
        for video, windows in requests:
            number = frame_times(windows, self.frames_per_clip) * render.FPS                # (n, F)
            first, end = self.first[video:video + 2]
            index.append(first + np.clip(number.astype(np.int64), 0, end - first - 1))
        index = torch.from_numpy(np.concatenate(index))                                     # (C, F)
        return Loaded(requests, self.pixels[index], index if self.teacher else index[:0], {})

    def teacher_features(self, views):
        """The teacher's features of clips: the mean over their frames (Sec. 3.2) -> (C, D)."""
        return self.frame_features[views].mean(1)


def load_teacher(device):
    """The embedded world's pseudo_labels.Teacher; BadInput if its file is not that of this code."""
    weights, said = {}, {}
    with suppress(OSError, SafetensorError):
        weights, said = read_tensors(TEACHER_FILE)
    require(said.get("digest") == toy_teacher.digest(weights), f"{TEACHER_FILE}: missing, damaged, "
            "or of another version of the world; `git checkout` restores it, `python -m toy "
            "teacher` makes it again")
    model, tokenizer = toy_teacher.build_teacher()
    model.load_state_dict(weights, strict=False)       # all but the token embedding
    model.to(memory_format=torch.channels_last)        # its convolutions: 0.7 of the time
    return Teacher(model, tokenizer, render.MEAN, render.STD, device)
