"""Labeled videos, and the texts of their label set: S steps, D embedding."""
import functools

import torch

from data import EPIC_FRAMES, classify_samples, view_of
from evaluation.checks import require_teacher
from files import listings
from files.annotations import load_text_embeddings
from files.sources import VideoSource, load_listed, open_coin_features, require_videos
from files.video import find_videos
from pseudo_labels import Teacher
from support.command import require
from toy import grammar, render
from toy.source import ToySource, load_teacher
from weights.teacher import open_teacher


# A forecast table reads two splits: the teacher of --clip is loaded once, and its embeddings of the
# class names, (teacher, names as a tuple) -> (S, D), are made once: COIN's are 22,000 prompts.
cached_teacher = functools.lru_cache(maxsize=1)(open_teacher)
cached_texts = functools.lru_cache(maxsize=1)(Teacher.encode_phrases)


def open_labeled(settings, split, model, path, device, required=True, with_teacher=True):
    """The videos of a split, and the text embeddings of its label set (S, D).

    Activities and the actions of EPIC-Kitchens-100 are not matched with texts: None.

    Args:
        path:     of the model's checkpoint, for messages.
        required: whether a split without a video is an error.
        with_teacher: whether the source is to give the teacher's features of clips.
    """
    require(bool(model.pixels) == (settings.features is None), f"--data {settings.data}: {path} "
            f"reads {'frames' if model.pixels else 'features'}; give the --data it was trained on")
    toy, epic = settings.data == "toy", settings.data == "epic"
    named, teacher = settings.task != "activity" and not epic, None
    if settings.features:
        source, texts = open_coin_features(settings.annotations, settings.features,
                                           settings.text_embeddings, split, required)
        return source, texts if named else None
    view = view_of(model.encoder)
    require(not toy or view.size == render.SIZE, f"--data toy: its pictures are {render.SIZE} "
            f"pixels wide, the checkpoint reads {view.size}; give it --data coin")
    if named and not settings.text_embeddings:
        teacher = (load_teacher(device) if toy else
                   cached_teacher(settings.clip, settings.clip_weights, device))
        require_teacher(teacher, model, path)
    of_clips = teacher if with_teacher else None
    if toy:
        source = ToySource(split, settings.toy_videos, view.frames, of_clips)
        return source, cached_texts(teacher, grammar.STEPS) if named else None
    if epic:
        view, videos = view._replace(frames=EPIC_FRAMES), listings.load_epic(settings.annotations)
    else:
        videos, names = load_listed(settings.annotations, settings.task, split)
    if settings.steps:
        names = listings.load_steps(settings.steps)
    require(not teacher or names, f"{settings.annotations}: a csv has no class names; add --steps "
            "FILE or --text-embeddings FILE")
    source = VideoSource(videos, find_videos(settings.videos), view, of_clips)
    if required:
        require_videos(source, settings.videos)
    if not named:
        return source, None
    texts = (cached_texts(teacher, tuple(names)) if teacher else
             torch.from_numpy(load_text_embeddings(settings.text_embeddings)[1]))
    largest = max((sample.label for sample in classify_samples(source.listed, 1)), default=-1)
    require(largest < len(texts), f"{settings.annotations}: class {largest + 1}, but there are "
            f"{len(texts)} names; row or line i must be class i")
    return source, texts
