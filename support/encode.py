"""Clips of labeled examples, and their way through f and the teacher, to measure or to fine-tune.

M examples of up to N windows, D embedding.
"""
from itertools import islice

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from tqdm import tqdm

from data import ITEM, LeftOut, Read, Unreadable
from model import encode_parts
from support.arguments import mixed_precision
from support.errors import require, require_readable
from support.workers import join, read_ahead

WINDOWS = 64                  # that are read at once


def read_lengths(source):
    """The length of each video of a source -> {place in source.videos: s}, and {id: reason} of
    those that cannot be read. A video that --skip leaves out is in neither."""
    lengths, unreadable = {}, {}
    for i, video in enumerate(tqdm(source.videos, "lengths", mininterval=1)):
        try:
            source.require_used(i)
            lengths[i] = source.duration(i)
        except LeftOut:
            continue
        except Unreadable as error:
            unreadable[video.name] = str(error)
    return lengths, unreadable


class LabeledExamples(Dataset):
    """The clips of labeled examples. Item (epoch, number, place) -> Read: all windows of an
    example; with a seed, one of them, drawn in each epoch. Raises Unreadable."""

    def __init__(self, source, examples, seed=None):
        self.source, self.examples, self.seed = source, examples, seed

    def name(self, item):
        """The id of an item's video."""
        return self.source.videos[self.examples[item[1]].video].name

    def __getitem__(self, item):
        epoch, number, place = item
        example = self.examples[number]
        self.source.require_used(example.video)
        windows, rng = example.windows, None
        if self.seed is not None:
            rng = np.random.default_rng((ITEM, self.seed, epoch, number))
            windows = rng.permutation(windows)[:1]
        clips, seen = self.source.clips(example.video, windows, rng)
        return Read(self.name(item), place, clips, seen)


@torch.no_grad()
def encode_examples(model, teacher, source, examples, args):
    """The examples' windows through f and the teacher -> x (M, N, D), zeros after an example's own
    n windows; n (M,) int64; the teacher's features (M, N, D), None without one; the M examples that
    could be read; {id: reason} of the others' videos. InputError if those are too many. args: those
    of `add_run_flags`."""
    x, seen, readable = [], [], []
    unreadable, tried = {}, set()
    device = model.phrases.device
    is_teacher = model.config.encoder["kind"] == "teacher"             # in place of f
    require(teacher or not is_teacher, f"{model.path}: has the teacher in place of f; give --clip")
    f, N = model.encoder, max(len(example.windows) for example in examples)
    count = max(WINDOWS // N, 1)                           # examples that are read at once
    items = [(None, i, i) for i in range(len(examples))]
    with read_ahead(LabeledExamples(source, examples), items, args.workers,
                    device.type == "cuda") as reads:
        shown = iter(tqdm(reads, "encode", len(examples), mininterval=1))
        for _ in range(0, len(examples), count):
            part = []
            for read in islice(shown, count):
                if read.failed is None:
                    part.append(read)
                elif not read.left_out and read.name not in unreadable:
                    tqdm.write(f"unreadable: {read.name}: {read.failed}")
                    unreadable[read.name] = read.failed
                if not read.left_out:
                    tried.add(read.name)
            if not part:
                continue
            readable += [examples[read.place] for read in part]
            n = [len(read.clips) for read in part]
            if teacher:
                features = teacher.encode_clips(join([read.seen for read in part], device))
                features = features.to(device)
                seen += features.split(n)
            if is_teacher:
                x += f(features).split(n)
            else:
                clips = join([read.clips for read in part], device)
                with mixed_precision(device):
                    x += encode_parts(model, clips, args.micro_batch).split(n)
    require_readable(unreadable, len(tried), args.max_unreadable)
    n = torch.tensor([len(rows) for rows in x], device=device)
    x = pad_sequence(x, batch_first=True)
    if teacher:
        return x, n, pad_sequence(seen, batch_first=True), readable, unreadable
    return x, n, None, readable, unreadable
