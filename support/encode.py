"""Clips of labeled examples, and their way through f and the teacher, to measure or to fine-tune.

M examples of up to N windows, D embedding.
"""
from itertools import islice

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from tqdm import tqdm

from data import ITEM, Read
from model import encode_parts
from support.arguments import mixed_precision
from support.errors import require_readable
from support.workers import join, read_ahead

WINDOWS = 64                  # that are read at once


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
        video, windows, *_ = self.examples[number]
        self.source.require_used(video)
        rng = None
        if self.seed is not None:
            rng = np.random.default_rng((ITEM, self.seed, epoch, number))
            windows = rng.permutation(windows)[:1]
        return Read(self.name(item), place, *self.source.clips(video, windows, rng))


@torch.no_grad()
def encode_examples(model, teacher, source, examples, args):
    """The examples' windows through f and the teacher -> x (M, N, D), zeros after an example's own
    n windows; n (M,) int64; the teacher's features (M, N, D), None without one; the M examples that
    could be read; {id: reason} of the others' videos. InputError if those are too many. args: those
    of `add_run_flags`."""
    x, seen, readable, unreadable, device = [], [], [], {}, model.phrases.device
    f, N = model.encoder, max(len(example.windows) for example in examples)
    pixels = f.image ** 2 + (teacher.size ** 2 if teacher else 0)
    count = max(WINDOWS // N, 1)                           # examples that are read at once
    items = [(None, i, i) for i in range(len(examples))]
    reads = read_ahead(LabeledExamples(source, examples), items, args.workers,
                       3 * N * f.frames * pixels, count, device.type == "cuda")
    reads = iter(tqdm(reads, "encode", len(examples), mininterval=1))
    while part := [*islice(reads, count)]:
        unreadable |= {read.name: read.failed for read in part
                       if read.failed and not read.left_out}
        part = [read for read in part if not read.failed]
        if not part:
            continue
        readable += [examples[read.place] for read in part]
        n = [len(read.clips) for read in part]
        if teacher:
            features = teacher.encode_clips(join([read.seen for read in part], device)).to(device)
            seen += features.split(n)
        if model.config.encoder["kind"] == "teacher":          # in place of f
            x += f(features).split(n)
        else:
            clips = join([read.clips for read in part], device)
            with mixed_precision(device):
                x += encode_parts(model, clips, args.micro_batch).split(n)
    require_readable(source, unreadable, args.max_unreadable)
    n = torch.tensor([len(rows) for rows in x], device=device)
    x, seen = (pad_sequence(rows, batch_first=True) if rows else None for rows in (x, seen))
    return x, n, seen, readable, unreadable
