"""The clips of labeled examples through f and the teacher, for all that measures or fine-tunes.

M examples of up to N windows, D embedding.
"""
import torch
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from data import LabeledExamples
from model import encode_parts
from support.arguments import mixed_precision
from support.errors import require_readable
from support.workers import join, read_ahead
from weights.adapter import TeacherFeatures

WINDOWS = 64                  # that are read at once


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
    part = []
    for read in tqdm(reads, "encode", len(examples), mininterval=1):
        part.append(read)
        if len(part) < count and read.place < len(examples) - 1:
            continue
        unreadable |= {read.name: read.failed for read in part if read.failed}
        part = [read for read in part if not read.failed]
        readable += [examples[read.place] for read in part]
        if part:
            n = [len(read.clips) for read in part]
            if teacher:
                features = teacher.encode_clips(join([read.seen for read in part], device))
                features = features.to(device)
                seen += features.split(n)
            if isinstance(f, TeacherFeatures):
                x += f(features).split(n)
            else:
                clips = join([read.clips for read in part], device)
                with mixed_precision(device):
                    x += encode_parts(model, clips, args.micro_batch).split(n)
        part = []
    require_readable(source, unreadable, args.max_unreadable)
    n = torch.tensor([len(rows) for rows in x], device=device)
    x, seen = (pad_sequence(rows, batch_first=True) if rows else None for rows in (x, seen))
    return x, n, seen, readable, unreadable
