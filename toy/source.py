"""The toy world as a data.Source: its videos in memory; and its teacher.

n frames of all videos, C clips, F frames of a clip, D embedding.
"""
import numpy as np
import torch
from tqdm.contrib.concurrent import thread_map

from data import Lists, Pictures, Source, frame_times
from pseudo_labels import Teacher
from support.arguments import positive
from toy import grammar, render
from toy.teacher import TEACHER_FILE, build_teacher
from toy.truth import Truth

VIDEOS = {"evaluate": 1000}        # --toy-videos of a command; of the others: TRAINING_VIDEOS
TRAINING_VIDEOS = 6000


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

    @staticmethod
    def add_flags(add, command):
        """As data.Source has it."""
        add("--toy-videos", type=positive(int, most=1_000_000),
            default=VIDEOS.get(command, TRAINING_VIDEOS), help="videos of the toy world")

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
        self.said = {}                                     # {i: narration} of those asked for

    def read_lists(self, args, split):
        """As data.Source has it: the first --toy-videos of a split, or of each."""
        splits = [split]
        if split is None:
            splits = grammar.SPLIT_SEEDS
        videos = []
        for one in splits:
            videos += [grammar.make_video(one, number) for number in range(args.toy_videos)]
        names, activities = enumerate(grammar.STEPS), enumerate(grammar.PROCEDURES)
        return Lists(videos, dict(names), dict(activities))

    def open(self, pictures, teacher, narrated=False):
        """As data.Source has it."""
        self.frames_per_clip = pictures.frames
        parts = thread_map(render.render, self.videos, desc="render", delay=2)
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
        if i not in self.said:
            self.said[i] = render.narrate(self.videos[i])
        return self.said[i]

    def duration(self, i):
        """As data.Source has it."""
        return self.videos[i].duration

    def clips(self, i, windows, rng=None):
        """As data.Source has it; nothing is drawn at random."""
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
