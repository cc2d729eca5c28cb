"""The toy world as a source of clips: its videos in memory; and its teacher.

n frames of all videos, C clips, F frames of a clip, D embedding.
"""
import numpy as np
import torch
from tqdm.contrib.concurrent import thread_map

from data import Loaded, frame_times, sentence_windows
from pseudo_labels import Teacher
from toy import grammar, render
from toy.teacher import TEACHER_FILE, build_teacher


class ToySource:
    """A source like files/sources.py: the first `count` videos of a split, in clips of F frames."""

    def __init__(self, split, count, frames):
        self.frames_per_clip = frames
        self.videos = self.listed = [grammar.make_video(split, i) for i in range(count)]
        self.absent, self.unreadable, self.silent, self.wrong_captions = [], {}, [], {}
        self.narration = [render.narrate(video) for video in self.videos]
        parts = thread_map(render.render, self.videos, desc=f"render {split}", delay=2)
        self.first = np.cumsum([0] + [len(part) for part in parts])     # of each video's frames
        self.pixels = torch.from_numpy(np.concatenate(parts))           # (n, 3, H, W) uint8

    def sentences(self, video):
        """The narration of a video: [(start s, end s, text), ...]."""
        return self.narration[video]

    def pretrain_windows(self, video, rng, stride):
        """The windows (n, 2) s of one pass over a video."""
        return sentence_windows(self.narration[video], self.videos[video].duration, rng, stride)

    def load(self, requests, rng=None):
        """The clips of [(video, windows (n, 2) s, ...), ...] -> Loaded. Each time gets the
        last frame taken at or before it. views: (C, F), the places of these in `pixels`."""
        index = []
        for video, windows, *_ in requests:
            times = frame_times(windows, self.frames_per_clip)                              # (n, F)
            first, end = self.first[video:video + 2]
            index.append(first + render.last_taken(times, end - first))
        index = torch.from_numpy(np.concatenate(index))                                     # (C, F)
        return Loaded(requests, self.pixels[index], index, {})


class WorldTeacher(Teacher):
    """The teacher of the toy world, which sees each frame of a source once."""

    def watch(self, source):
        """Encode all frames -> self."""
        threads = 1 if self.device.type == "mps" else None     # two threads crash MPS
        parts = thread_map(self.encode_frames, source.pixels.split(128), desc="teacher", delay=2,
                           max_workers=threads)
        self.features = torch.cat(parts)                                                   # (n, D)
        return self

    def encode_clips(self, views):
        """The views (C, F) of the source, or pictures from files as in Teacher, -> (C, D)."""
        if views.ndim == 2:
            return self.features[views.to(self.device)].mean(1)
        return super().encode_clips(views)


def load_teacher(device):
    """The world's WorldTeacher."""
    weights = torch.load(TEACHER_FILE, map_location="cpu", weights_only=True)["model"]
    model, tokenizer = build_teacher()
    weights["token_embedding.weight"] = model.token_embedding.weight           # not in the file
    model.load_state_dict(weights)
    model.to(memory_format=torch.channels_last)        # so its convolutions take 0.7 of the time
    return WorldTeacher(model, tokenizer, render.MEAN, render.STD, device)
