"""The toy world as a source of clips: its videos in memory; and its teacher.

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
from toy.teacher import TEACHER_FILE, build_teacher


class ToySource:
    """A source like files/sources.py: the first `count` videos of a split, in clips of F frames."""

    def __init__(self, split, count, frames):
        self.frames_per_clip = frames
        self.videos = self.listed = [grammar.make_video(split, i) for i in range(count)]
        self.absent, self.unreadable, self.silent, self.wrong_captions = [], {}, [], {}
        self.narration = [render.narrate(video) for video in self.videos]
        parts = in_threads(render.render, self.videos, f"render {split}")
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
        parts = in_threads(self.encode_frames, source.pixels.split(128), "teacher", threads)
        self.features = torch.cat([*parts])                                                # (n, D)
        return self

    def encode_clips(self, views):
        """The views (C, F) of the source, or pictures from files as in Teacher, -> (C, D)."""
        if views.ndim == 2:
            return self.features[views.to(self.device)].mean(1)
        return super().encode_clips(views)


def in_threads(function, items, title, threads=None):
    """[function(item) for all items], in threads. NumPy and torch let them run on all cores."""
    with ThreadPoolExecutor(threads) as pool:
        return list(tqdm(pool.map(function, items), title, len(items), mininterval=1, delay=2))


def load_teacher(device):
    """The world's WorldTeacher. InputError if its file is of another version."""
    file = torch.load(TEACHER_FILE, map_location="cpu", weights_only=True)
    require(file["version"] == grammar.VERSION, f"{TEACHER_FILE}: of version {file['version']} of "
            f"the world; this code needs {grammar.VERSION}; `python -m toy teacher` trains it anew")
    model, tokenizer = build_teacher()
    file["model"]["token_embedding.weight"] = model.token_embedding.weight     # not in the file
    model.load_state_dict(file["model"])
    model.to(memory_format=torch.channels_last)        # so its convolutions take 0.7 of the time
    return WorldTeacher(model, tokenizer, render.MEAN, render.STD, device)
