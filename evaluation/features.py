"""Embeddings of 9-s windows of whole videos, written to a features file."""
import numpy as np
import torch

from data import view_of
from evaluation.embedding import embed_videos
from files.sources import open_folder
from support.command import BadInput, write_atomically
from support.device import pick_device
from toy.source import ToySource
from weights.checkpoint import load_model


def write_features(settings):
    """One row for each window of every video, with f's class token (encoder_cls) as well.

    settings: checkpoint, device, videos, ids, split, toy_videos, stride (s between two windows),
              out, workers.
    """
    device = pick_device(settings.device)
    model = load_model(settings.checkpoint)[0].to(device)
    if model.encoder is None:
        raise BadInput(f"{settings.checkpoint}: was trained on features and has no encoder; a "
                       "features file needs a checkpoint that was trained on videos")
    view = view_of(model.encoder)
    source = (open_folder(settings.videos, settings.ids, view) if settings.videos else
              ToySource(settings.split, settings.toy_videos, view.frames))

    def encode(clips):
        tokens = model.tokens(clips)                                           # (C, W)
        return torch.cat([model.encode(model.encoder.head(tokens)), tokens], 1)

    with torch.no_grad():
        names, windows, x, _, failed = embed_videos(source, encode, settings.stride,
                                                    settings.workers, device)
    D = model.dim
    write_atomically(settings.out, lambda file: np.savez(
        file, video=names, start=windows[:, 0], end=windows[:, 1], embedding=x[:, :D].numpy(),
        encoder_cls=x[:, D:].numpy(), stride=settings.stride))
    print(f"{settings.out}: {len(x)} windows of 9 s, one every {settings.stride:g} s, of "
          f"{len(source) - len(failed)} videos; {len(source.missing)} missing, "
          f"{len(failed)} unreadable")
