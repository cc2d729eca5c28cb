"""The toy world as a data.Source: its videos in memory; and its teacher.

n frames of all videos, C clips, F frames of a clip, D embedding.
"""
import os
from functools import partial

import numpy as np
import torch
from tqdm.contrib.concurrent import thread_map

from data import Lists, Pictures, Source, frame_times, sentence_windows
from pseudo_labels import Teacher
from support.arguments import positive
from toy import grammar, render
from toy.teacher import TEACHER_FILE, build_teacher
from toy.truth import Truth

TRAINING_VIDEOS, TEST_VIDEOS = 2400, 1000      # --toy-videos
TOGETHER = 128              # frames that the teacher sees at once


class Toy(Source):
    """The toy world: rendered videos of a written-down grammar, made up on the spot.

    Frames are drawn once, when it is opened; with a teacher, its features of them are computed,
    too.
    """
    narrated = True
    has = "steps", "names", "activities"
    side = render.SIZE
    pixels = render.MEAN, render.STD
    tau = 0.045
    size = "small"
    clip = "toy"
    phrases = grammar.PHRASES
    world = grammar.VERSION
    steps = grammar.STEPS
    look_alikes = grammar.LOOK_ALIKES

    @staticmethod
    def add_flags(add, command):
        count = TRAINING_VIDEOS
        if command == "evaluate":
            count = TEST_VIDEOS
        add("--toy-videos", type=positive(int, most=1_000_000), default=count,
            help="videos of the toy world")

    @classmethod
    def of(cls, split, numbers, frames, teacher=None, narrated=False):
        """Videos of a split, by their numbers, opened for clips of F frames."""
        source = cls(None)
        source.listed = source.videos = [grammar.make_video(split, number) for number in numbers]
        source.split = split
        source.open(Pictures(render.SIZE, frames), teacher, narrated)
        return source

    def __init__(self, args):
        self.truth = Truth(self)
        self.narrations = {}                               # {i: narration} of those asked for

    def read_lists(self, args, split):
        """See Source.read_lists. The first --toy-videos of a split, or of each."""
        splits = [split]
        if split is None:
            splits = grammar.SPLIT_SEEDS
        videos = []
        for one in splits:
            videos += [grammar.make_video(one, number) for number in range(args.toy_videos)]
        names, activities = enumerate(grammar.STEPS), enumerate(grammar.PROCEDURES)
        return Lists(videos, dict(names), dict(activities))

    def open(self, pictures, teacher, narrated=False):
        """See Source.open. If `narrated`, only the frames are drawn that clips around a
        sentence can show."""
        self.frames_per_clip, count = pictures.frames, len(self.videos)
        self.drawn = [self.numbers_of_frames(i, narrated) for i in range(count)]
        counts = [len(numbers) for numbers in self.drawn]
        self.first = np.cumsum([0] + counts)               # of each video's frames
        n = self.first[-1]
        self.frames = torch.empty(n, 3, render.SIZE, render.SIZE, dtype=torch.uint8)
        thread_map(self.draw, range(count), desc=f"draw {self.split}", delay=2,
                   max_workers=os.cpu_count())
        self.features = torch.empty(0)                                  # (n, D) of the teacher
        if teacher:
            one = teacher.encode_frames(self.frames[:1])                # (1, D)
            self.features = torch.empty(n, one.shape[1])
            threads = os.cpu_count()
            if teacher.device.type == "mps":               # two threads crash MPS
                threads = 1
            thread_map(partial(self.look, teacher), range(0, n, TOGETHER), desc="teacher", delay=2,
                       max_workers=threads)

    def numbers_of_frames(self, i, narrated):
        """Which of its frames are drawn of video i: (n_i,) int, sorted."""
        n = render.count_frames(self.videos[i])
        if not narrated:
            return np.arange(n)
        rng = np.random.default_rng(0)
        windows = sentence_windows(self.narration(i), self.duration(i), rng, 1)
        return np.unique(render.last_taken(frame_times(windows, self.frames_per_clip), n))

    def draw(self, i):
        """Draw the frames of video i, and keep those that are shown."""
        frames = torch.from_numpy(render.render(self.videos[i]))
        self.frames[self.first[i]:self.first[i + 1]] = frames[self.drawn[i]]

    def look(self, teacher, first):
        """Show the teacher TOGETHER frames, from frame `first` on, and keep its features."""
        rows = slice(first, first + TOGETHER)
        self.features[rows] = teacher.encode_frames(self.frames[rows]).cpu()

    def narration(self, i):
        if i not in self.narrations:
            self.narrations[i] = render.narrate(self.videos[i])
        return self.narrations[i]

    def duration(self, i):
        return self.videos[i].duration

    def picture(self, i, time):
        """The picture of video i at a time, s, if all are drawn: (3, H, W) uint8."""
        n = render.count_frames(self.videos[i])
        return self.frames[self.first[i] + int(render.last_taken(time, n))]

    def clips(self, i, windows, rng=None):
        """See Source.clips. Nothing is drawn at random."""
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
