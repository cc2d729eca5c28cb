"""Labeled videos, the texts of their label set, and whether a checkpoint fits them.

S steps, D embedding. Each check raises BadInput.
"""
import functools

import torch

from data import EPIC_FRAMES, PIECES, samples_of, view_of
from files import listings
from files.annotations import check_names, load_coin, load_text_embeddings, note_unnamed
from files.sources import VideoSource, open_coin_features, require_videos
from files.video import find_videos
from pseudo_labels import Teacher
from support.command import require
from toy import grammar, render
from toy.source import ToySource, load_teacher
from weights.checkpoint import same_texts
from weights.teacher import open_teacher


# A forecast table reads several splits: the teacher of --clip is loaded once, and its embeddings of
# the class names, (teacher, names as a tuple) -> (S, D), are made once: COIN's are 22,000 prompts.
cached_teacher = functools.lru_cache(maxsize=1)(open_teacher)
cached_texts = functools.lru_cache(maxsize=1)(Teacher.encode_phrases)


# --- Does the checkpoint fit? ---
def require_task(model, settings):
    """The checkpoint must be able to do the task of evaluate.py, zero-shot or fine-tuned for it."""
    path, epic = settings.checkpoint, settings.data == "epic"
    finetune = f"python train.py --stage finetune --task {settings.task} --data {settings.data}"
    require(model.task or not (settings.task == "activity" or epic), f"{path}: is not fine-tuned, "
            f"and --task {settings.task} of --data {settings.data} needs that; run `{finetune}`")
    actions = bool(model.task) and len(model.classes) > 1
    require(not model.task or (model.task, actions) == (settings.task, epic), f"{path}: is tuned "
            f"for {'verbs and nouns' if actions else f'--task {model.task}'}; run `{finetune}`")
    require(settings.task not in ("forecast", "infill") or model.denoiser, f"{path}: trained with "
            "--order none; to forecast, train with --order diffusion or mask")
    if settings.horizon > 1 and settings.data != "toy":          # which has the truth of futures
        most = model.denoiser.clips - PIECES
        require(settings.horizon <= most, f"--horizon {settings.horizon}: {path} was trained with "
                f"at most {most} clips missing together; train with --missing {settings.horizon}")


def require_teacher(teacher, model, path):
    """The checkpoint must have been trained with this teacher, which embeds its witness again."""
    if model.witness is None:                          # published, or trained on a features file
        return
    now = teacher.encode_phrases([model.witness])      # of another width: see `require_width`
    require(now.shape[1] != model.dim or same_texts(model.phrases[:1], now), f"{path}: was trained "
            f"with another teacher, which embeds \"{model.witness}\" differently; give the same "
            "--clip and --clip-weights (that of the embedded world is toy/teacher.safetensors)")


def require_width(model, given, path):
    """Embeddings of the checkpoint must be as wide as those given, (.., D)."""
    require(given.shape[1] == model.dim, f"{path}: embeddings of width {model.dim}, those given "
            f"have {given.shape[1]}; give the --data, or the --clip, it was trained with")


def require_fit(model, source, texts, settings):
    """Widths must be equal, and a fine-tuned checkpoint must have as many classes as the data."""
    path = settings.checkpoint
    if settings.features:
        require_width(model, source.features.embedding, path)
    elif texts is not None and model.task != "classify":           # else no text is matched
        require_width(model, texts, path)
    if model.task is None or settings.data == "epic":
        return
    count = len(texts) if texts is not None else model.classes[0]
    largest = max((sample.label for sample in samples_of(settings.task, source.listed)), default=-1)
    require(count == model.classes[0] and largest < count, f"{path}: is fine-tuned to "
            f"{model.classes[0]} classes, there are {max(count, largest + 1)} here; give the "
            "--data it was fine-tuned on")


# --- Videos and texts ---
def open_labeled(settings, split, model, path, device, required=True, with_teacher=True):
    """The videos of a split, and the text embeddings of its label set (S, D); None: no texts.

    path: of the checkpoint; required: whether a split without a video is an error; with_teacher:
    whether the source gives the teacher's features of clips.
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
        require(videos[0].steps[0].label != (None, None), f"{settings.annotations}: has no labels: "
                "is it the test list? EPIC_100_train.csv or EPIC_100_validation.csv is needed")
    elif settings.annotations.suffix == ".csv":        # it holds one split, and no names
        videos = listings.load_released_csv(settings.annotations, settings.task)
        labels = [""] * (1 + max(video.activity for video in videos))
    else:
        videos, labels = load_coin(settings.annotations)
        videos = [video for video in videos if video.split == split and video.steps]
    if named:
        file, names = settings.text_embeddings or settings.steps or settings.annotations, labels
        if settings.text_embeddings:
            names, texts = load_text_embeddings(file)
        elif settings.steps:
            names = listings.load_steps(file)
            require(not any(labels) or len(names) <= len(labels), f"{file}: {len(names)} names, "
                    f"but {settings.annotations} has {len(labels)} classes; line i must be class i")
        require(any(names), f"{settings.annotations}: a csv has no class names; add --steps "
                "FILE or --text-embeddings FILE")
        check_names(file, names, settings.annotations, labels)
        if required:
            note_unnamed(names)
    source = VideoSource(videos, find_videos(settings.videos), view, of_clips)
    if required:
        require_videos(source, settings.videos)
    if not named:
        return source, None
    texts = cached_texts(teacher, tuple(names)) if teacher else torch.from_numpy(texts)
    return source, texts
