"""What is measured: labeled videos, the texts of their label set, and their clips through f.

M examples of up to N windows, S steps, D embedding. InputError: what does not fit a checkpoint.
"""
from functools import partial
from pathlib import Path

import torch
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from data import (EPIC_FRAMES, EPIC_SECONDS, activity_examples, classify_examples,
                  forecast_examples)
from files import lists
from files.features import FeatureSource, require_widths
from files.sources import VideoSource, require_readable
from files.video import view_of
from model import encode_parts
from support.arguments import mixed_precision
from support.errors import require
from support.workers import prefetch
from toy import grammar, render
from toy.source import ToySource, load_teacher
from weights.teacher import open_teacher

READ = 64                 # windows that are read at once
EPIC_VIEWS = 10           # clips of an action (release)


def require_task(model, task, data):
    """InputError unless the model is fine-tuned for the task; to forecast or classify steps, a
    model that is not fine-tuned matches texts."""
    fits = data != "epic" and (task == "classify" or task == "forecast" and model.denoiser)
    if model.task:                                         # of several classes: verbs and nouns
        fits = model.task == task and (data == "epic") == (len(model.classes) > 1)
    state = f"fine-tuned for {model.task}" if model.task else "not fine-tuned"
    require(fits, f"{model.path}: is {state}, of --order {model.order}; needed is a checkpoint of "
            f"`python train.py --stage finetune --task {task} --data {data}`")


def knows_toy(model):
    """Whether f was trained on the toy world: its pixels are normalized as that world's."""
    return tuple(model.pixels) == (render.MEAN, render.STD)


def warn_of_data(model, toy):
    """A warning, or None. toy: whether the videos are those of the toy world."""
    if not toy and knows_toy(model) and model.settings.get("data", "toy") == "toy":
        return ("this checkpoint knows only the toy world, rendered pictures of 32 pixels: on "
                "any other video its answers mean nothing")


# --- Texts and videos ---
def open_texts(model, names, clip, clip_weights, device, toy=False):
    """The teacher that the checkpoint was trained with, --clip's, or the toy world's if the videos
    are; its embeddings (S, D) of a label set. InputError for another teacher than the run's, or for
    other classes than those it is fine-tuned to."""
    settings = model.settings
    tuned = settings.get("classes") or names               # a published file holds no names
    require(not model.task or model.classes == [len(names)] and [*tuned] == [*names],
            f"{model.path}: is fine-tuned to {sum(model.classes)} classes, {', '.join(tuned[:2])} "
            f"..., here are {len(names)}, {', '.join(names[:2])} ...; give the --data or --steps "
            "of its training")
    teacher = load_teacher(device) if toy or knows_toy(model) and not clip else open_teacher(
        clip or settings.get("clip"), clip_weights or settings.get("clip_weights"), device)
    texts = teacher.encode_phrases(names).to(device)
    same = texts.shape[1] == model.dim
    if same and model.witness is not None:
        now = teacher.encode_phrases([model.witness]).to(model.phrases)
        same = functional.cosine_similarity(now, model.phrases[:1]).item() > 0.999
    require(same, f"{model.path}: was trained with another teacher, whose embeddings differ; "
            "give the same --clip and --clip-weights (the toy world's is toy/teacher.pt)")
    return teacher, texts


def add_labeled_flags(parser):
    """Add --data, and the flags for what it reads, to a command that reads labeled videos."""
    add = parser.add_argument
    add("--data", choices=["toy", "coin", "epic", "features"], default="toy", help="coin: COIN, or "
        "videos in its layout; features: of such videos; epic: EPIC-Kitchens-100, verbs and nouns")
    add("--annotations", type=Path, help="COIN.json or a released csv, or EPIC's csv")
    add("--videos", type=Path, help="folder of videos, ID.mp4 and the like")
    add("--features", type=Path, help="npz of features, as evaluate.py --task features writes")
    add("--steps", type=Path, help="line i names class i (default: the names in COIN.json)")
    add("--clip", help="the teacher: a model of open_clip, or local-dir:DIR (default: the run's)")
    add("--clip-weights", help="its weights: a tag of open_clip, or a file (default: the run's)")


def list_videos(args, split, tuned):
    """The videos that --annotations lists, and the names of their classes; None for a task without
    texts. A csv holds no names: they are those of --steps, or `tuned`."""
    path = args.annotations
    if args.data == "epic":
        return lists.load_epic(path), None
    if path.suffix == ".csv":                          # a released list holds one split, no names
        videos = lists.load_released_csv(path, args.task)
        labels = [""] * (1 + max(video.activity for video in videos))
    else:
        videos, labels = lists.load_coin(path)
        videos = [video for video in videos if video.split == split and video.steps]
        require(videos, f"{path}: no video of subset {split} has steps")
    if args.task == "activity":
        return videos, None
    names = lists.load_phrases(args.steps) if args.steps else labels if any(labels) else tuned
    require(names, f"{path}: a csv has no class names; add --steps FILE")
    if not all(names):
        print(f"{path}: {names.count('')} of {len(names)} classes have no name; add --steps FILE")
    lists.check_names(args.steps or "the checkpoint", names, path, labels)
    return videos, names


def open_labeled(model, device, args, split, look=True, skip=()):
    """The source of a split's videos; names of the classes; the teacher that looks at the videos;
    the text embeddings (S, D) of the names. Without texts, the last three are None; the teacher
    also if look=False. args: those of the command; skip: ids of videos not to be opened."""
    toy, view, path = args.data == "toy", view_of(model.encoder), args.features or args.videos
    fits = {"toy": view.size == render.SIZE, "features": not view.size}.get(args.data, view.size)
    reads = f"videos of {view.size} pixels" if view.size else "features, by --data features"
    require(fits and (args.data == "features") == bool(args.features),
            f"{model.path}: reads {reads}, not --data {args.data}")
    if toy:
        names = [*grammar.STEPS] if args.task != "activity" else None
        source = ToySource(split, args.toy_videos, view.frames)
    else:
        require(args.annotations and path, f"--data {args.data} needs --annotations and --videos")
        listed, names = list_videos(args, split, model.settings.get("classes"))
        view = view._replace(frames=EPIC_FRAMES) if args.data == "epic" else view
        kind = FeatureSource if args.features else VideoSource
        source = kind(listed, kind.find(path), view, skip=skip)
    if args.features:
        require_widths(source.paths, model.encoder.features, model.dim)
    if not names:
        return source, None, None, None
    teacher, texts = open_texts(model, names, args.clip, args.clip_weights, device, toy)
    if not look:
        teacher = None
    elif toy:
        teacher.watch(source)
    else:
        source.teacher_size = teacher.size
    return source, names, teacher, texts


def examples_of(videos, task, data, pitch=None, min_steps=2):
    """The examples of a task in these videos; pitch: of a history."""
    if task == "forecast":
        return forecast_examples(videos, pitch, min_steps)
    if task == "activity":
        return activity_examples(videos)
    if data == "epic":
        return classify_examples(videos, EPIC_VIEWS, EPIC_SECONDS)
    return classify_examples(videos)


# --- Clips through f ---
def names_of(source, batch):
    """The videos of a batch of examples. Spawned workers need a function of the module."""
    return " or ".join(dict.fromkeys(source.videos[one.video].name for one in batch))


@torch.no_grad()
def encode_examples(model, teacher, source, examples, args):
    """The examples' windows through f and the teacher -> x (M, N, D), zeros after an example's own
    n windows; n (M,) int64; the teacher's features (M, N, D), None without one; the M examples that
    could be read. InputError if they are too few. args: those of `add_run_flags`."""
    x, seen, readable, view, device = [], [], [], view_of(model.encoder), model.phrases.device
    N = max(len(example.windows) for example in examples)
    count = max(READ // N, 1)                              # examples that are read at once
    batches = [examples[i:i + count] for i in range(0, len(examples), count)]
    pixels = view.size ** 2 + (teacher.size ** 2 if teacher else 0)
    size = 3 * count * N * view.frames * pixels            # bytes
    for loaded in prefetch(source.load, batches, args.workers, "encode", size,
                           name=partial(names_of, source)):
        source.unreadable |= loaded.failed
        if loaded.requests:
            readable += loaded.requests
            n = [len(example.windows) for example in loaded.requests]
            with mixed_precision(device):
                x += encode_parts(model, loaded.clips, args.micro_batch).split(n)
            if teacher:
                seen += teacher.encode_clips(loaded.views).to(device).split(n)
    require_readable(source, args.max_unreadable)
    n = torch.tensor([len(rows) for rows in x], device=device)
    x, seen = (pad_sequence(rows, batch_first=True) if rows else None for rows in (x, seen))
    return x, n, seen, readable
