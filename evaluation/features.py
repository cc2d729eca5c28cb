"""Write a file of features: `evaluate.py --task features --videos DIR --out F.npz`."""
import numpy as np
import torch

import weights
from data import Example, window_around
from evaluation.labeled import encode_examples
from files.sources import open_folder
from files.video import Unreadable, view_of
from support.arguments import pick_device
from support.errors import require
from support.write import write_atomically
from weights.teacher import open_teacher

STRIDE, PART = 4.0, 8     # s of a row; rows that are read at once


def write_features(args):
    """Write a file for files/features.py, a row for each STRIDE s of all videos of a folder. With
    --clip it has `teacher`, too, from which one can train."""
    device, examples = pick_device(args.device), []
    model = weights.load(args.checkpoint).to(device)
    view = view_of(model.encoder)
    require(args.videos and view.size, "--task features needs --videos, a folder of videos, and a "
            "checkpoint that reads pictures")
    teacher = open_teacher(args.clip, args.clip_weights, device) if args.clip else None
    source = open_folder(args.videos, None, None, view, teacher.size if teacher else 0)
    for i in range(len(source.videos)):
        try:
            end = source.duration(i)
        except Unreadable:
            end = 0.0                                      # `encode_examples` counts it
        middles = np.arange(STRIDE / 2, max(end, STRIDE), STRIDE)
        windows = np.array([window_around(m, m, STRIDE, end) for m in middles])
        for first in range(0, len(windows), PART):
            examples.append(Example(i, windows[first:first + PART], 0, 0))
    x, n, seen, examples = encode_examples(model, teacher, source, examples, args)
    own = torch.arange(x.shape[1], device=x.device) < n[:, None]               # (M, N)
    windows = np.concatenate([example.windows for example in examples])
    rows = {"video": [source.videos[one.video].name for one in examples for _ in one.windows],
            "start": windows[:, 0], "end": windows[:, 1], "embedding": x[own].cpu().numpy()}
    if teacher:
        rows["teacher"] = seen[own].cpu().numpy()
    write_atomically(args.out, lambda file: np.savez(file, **rows))
    print(f"{args.out}: {len(windows)} windows; {len(source.unreadable)} of {len(source.videos)} "
          "videos unreadable")
