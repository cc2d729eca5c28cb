"""The toy world as a data.Source: its videos in memory; and its teacher.

n frames of all videos, C clips, F frames of a clip, D embedding.
"""
import os

import numpy as np
import torch
from tqdm.contrib.concurrent import thread_map

from data import frame_times, sentence_windows
from pseudo_labels import Teacher
from toy import grammar, render
from toy.teacher import TEACHER_FILE, build_teacher
from toy.truth import Truth

TOGETHER = 128              # frames that the teacher sees at once


class ToySource:
    """Videos of a split, by their numbers, in clips of F frames.

    Frames are drawn once, at the start; with a teacher, its features of them are computed, too.
    narrated: draw only the frames that clips around a sentence can show (data.sentence_windows).
    """
    pixels = render.MEAN, render.STD

    def __init__(self, split, numbers, frames, teacher=None, narrated=False):
        self.frames_per_clip, self.truth, self.left_out = frames, Truth(self), {}
        self.videos = self.listed = [grammar.make_video(split, number) for number in numbers]
        self.said = [render.narrate(video) for video in self.videos]
        self.drawn = [self.numbers_of_frames(i, narrated) for i in range(len(self.videos))]
        counts = [len(numbers) for numbers in self.drawn]
        self.first = np.cumsum([0] + counts)               # of each video's frames
        n = self.first[-1]
        self.frames = torch.empty(n, 3, render.SIZE, render.SIZE, dtype=torch.uint8)
        thread_map(self.draw, range(len(self.videos)), desc=f"draw {split}", delay=2,
                   max_workers=os.cpu_count())
        self.features = torch.empty(0)                                  # (n, D) of the teacher
        if teacher:
            threads = 1 if teacher.device.type == "mps" else os.cpu_count()    # two crash MPS
            parts = thread_map(teacher.encode_frames, self.frames.split(TOGETHER), desc="teacher",
                               delay=2, max_workers=threads)
            self.features = torch.cat(parts).cpu()

    def numbers_of_frames(self, i, narrated):
        """Which of its frames are drawn of video i: (n_i,) int, sorted."""
        n = render.count_frames(self.videos[i])
        if not narrated:
            return np.arange(n)
        windows = sentence_windows(self.said[i], self.duration(i), np.random.default_rng(0), 1)
        return np.unique(render.last_taken(frame_times(windows, self.frames_per_clip), n))

    def draw(self, i):
        """Draw the frames of video i, and keep those that are shown."""
        frames = torch.from_numpy(render.render(self.videos[i]))
        self.frames[self.first[i]:self.first[i + 1]] = frames[self.drawn[i]]

    def narration(self, i):
        """As data.Source has it."""
        return self.said[i]

    def duration(self, i):
        """As data.Source has it."""
        return self.videos[i].duration

    def clips(self, i, windows, rng=None):
        """As data.Source has it; nothing is drawn at random."""
        n = render.count_frames(self.videos[i])
        shown = render.last_taken(frame_times(windows, self.frames_per_clip), n)           # (C, F)
        index = np.searchsorted(self.drawn[i], shown)
        assert (self.drawn[i][index] == shown).all(), "a window that is no narrated clip"
        index = torch.from_numpy(self.first[i] + index)
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
