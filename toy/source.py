"""The toy world as a data.Source: its videos in memory; and its teacher.

n frames of all videos, C clips, F frames of a clip, D embedding.
"""
import numpy as np
import torch
from tqdm.contrib.concurrent import thread_map

from data import frame_times
from pseudo_labels import Teacher
from toy import grammar, render
from toy.teacher import TEACHER_FILE, build_teacher
from toy.truth import Truth


class ToySource:
    """Videos of a split, by their numbers, in clips of F frames. With a teacher, its features of
    all frames are computed once, at the start."""
    pixels = render.MEAN, render.STD

    def __init__(self, split, numbers, frames, teacher=None):
        self.frames_per_clip, self.truth, self.left_out = frames, Truth(self), {}
        self.videos = self.listed = [grammar.make_video(split, number) for number in numbers]
        self.said = [render.narrate(video) for video in self.videos]
        parts = thread_map(render.render, self.videos, desc=f"render {split}", delay=2)
        self.first = np.cumsum([0] + [len(part) for part in parts])     # of each video's frames
        self.frames = torch.from_numpy(np.concatenate(parts))           # (n, 3, H, W) uint8
        self.features = torch.empty(0)                                  # (n, D) of the teacher
        if teacher:
            threads = 1 if teacher.device.type == "mps" else None       # two threads crash MPS
            parts = thread_map(teacher.encode_frames, self.frames.split(128), desc="teacher",
                               delay=2, max_workers=threads)
            self.features = torch.cat(parts).cpu()

    def narration(self, i):
        """As data.Source has it."""
        return self.said[i]

    def duration(self, i):
        """As data.Source has it."""
        return self.videos[i].duration

    def clips(self, i, windows, rng=None):
        """As data.Source has it; nothing is drawn."""
        times, n = frame_times(windows, self.frames_per_clip), self.first[i + 1] - self.first[i]
        index = torch.from_numpy(self.first[i] + render.last_taken(times, n))              # (C, F)
        seen = self.features[index].mean(1) if len(self.features) else self.features
        return self.frames[index], seen


def load_teacher(device):
    """The world's Teacher."""
    weights = torch.load(TEACHER_FILE, map_location="cpu", weights_only=True)["model"]
    model, tokenizer = build_teacher()
    weights["token_embedding.weight"] = model.token_embedding.weight           # not in the file
    model.load_state_dict(weights)
    model.to(memory_format=torch.channels_last)        # so its convolutions take 0.7 of the time
    return Teacher(model, tokenizer, render.MEAN, render.STD, device)
