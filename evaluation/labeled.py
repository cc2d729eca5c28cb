"""What is measured: labeled videos, the texts of their label set, and their clips through f.

M examples of N windows, S steps, D embedding. What does not fit a checkpoint is an InputError.
"""
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

import weights
from data import EPIC_FRAMES, Example, window_around
from files import lists
from files.features import FeatureSource, require_widths
from files.sources import VideoSource, open_folder, require_readable
from files.video import Unreadable, view_of
from model import encode_parts
from support.arguments import (add_scores_flag, mixed_precision, pick_device,
                               refuse_other_paths)
from support.errors import require
from support.workers import prefetch
from support.write import write_atomically
from toy import grammar, render
from toy.source import ToySource, load_teacher
from weights.teacher import open_teacher

READ = 64                 # windows that are read at once
STRIDE, PART = 4.0, 8     # of a features file: s of a window; windows of an example


def require_task(model, args):
    """The checkpoint must be fine-tuned for the task; for most tasks it may also be zero-shot."""
    epic, path = args.data == "epic", args.checkpoint
    flags = f"--task {args.task} --data {args.data}"
    fits = args.task != "activity" and not epic            # zero-shot: texts are matched
    if model.task:                                         # of several classes: verbs and nouns
        fits = model.task == args.task and epic == (len(model.classes) > 1)
    state = f"is fine-tuned for {model.task}" if model.task else "is not fine-tuned"
    require(fits, f"{path}: {state}; {flags} needs a checkpoint of `python train.py --stage "
            f"finetune {flags}`")
    require(args.task not in ("forecast", "infill") or model.denoiser, f"{path}: trained with "
            "--order none; to forecast, train with --order diffusion or mask, or fine-tune it")


def knows_toy(model):
    """Whether f was trained on the toy world: its pixels are normalized as that world's."""
    return tuple(model.pixels) == (render.MEAN, render.STD)


def warn_of_data(model, toy):
    """A warning if the model was trained on other videos than it is given, else None. toy: whether
    these are of the toy world."""
    if not toy and knows_toy(model) and model.settings.get("data", "toy") == "toy":
        return ("this checkpoint knows only the toy world, rendered pictures of 32 pixels: on "
                "any other video its answers mean nothing")
    if not toy and 0 < model.encoder.image < 64:
        return ("this is a small model, for pictures of 32 pixels: it shows whether everything "
                "is in place, and little more")


# --- Texts and videos ---
def open_texts(names, toy, model, checkpoint, clip, clip_weights, device):
    """The teacher that the checkpoint was trained with, or --clip's, and its embeddings (S, D) of a
    label set. toy: whether the texts are those of the toy world. InputError if this teacher embeds
    the checkpoint's witness differently, or a fine-tuned checkpoint does not have S classes."""
    settings = model.settings
    require(not model.task or model.classes == [len(names)], f"{checkpoint}: is fine-tuned to "
            f"{sum(model.classes)} classes, there are {len(names)} here; give the --data or the "
            "--steps it was fine-tuned on")
    tuned = settings.get("classes") or names               # a published file holds no names
    require([*tuned] == [*names], f"{checkpoint}: is fine-tuned to other classes, or in another "
            f"order: {', '.join(tuned[:2])}, ...; give the --steps it was fine-tuned on")
    if len({*names}) < len(names):
        print(f"{len(names) - len({*names})} of {len(names)} names are those of other classes, too;"
              " their texts cannot tell such classes apart")
    if toy or knows_toy(model) and not clip:               # the run's own teacher
        teacher = load_teacher(device)
    else:
        clip_weights = clip_weights or settings.get("clip_weights")
        teacher = open_teacher(clip or settings.get("clip"), clip_weights, device)
    texts = teacher.encode_phrases(names).to(device)
    same = texts.shape[1] == model.dim
    if same and model.witness is not None:
        now = teacher.encode_phrases([model.witness]).to(model.phrases)
        same = functional.cosine_similarity(now, model.phrases[:1]).item() > 0.999
    require(same, f"{checkpoint}: was trained with another teacher, whose embeddings differ; "
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
    add_scores_flag(parser)


def list_videos(args, split, tuned=None):
    """The annotated videos of COIN or EPIC, and the names of the classes; None for a task without
    texts. A csv holds no names: they come from --steps, or from `tuned`."""
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
    names = lists.load_phrases(args.steps) if args.steps else labels
    names = names if any(names) else tuned
    require(names, f"{path}: a csv has no class names; add --steps FILE")
    if not all(names):
        print(f"{path}: {names.count('')} of {len(names)} ids are in no annotation: classes "
              "without a name; number the classes without gaps, or add --steps FILE")
    lists.check_names(args.steps or "the checkpoint", names, path, labels)
    return videos, names


def open_labeled(args, split, model, device, with_teacher=True, skip=()):
    """The source of a split's videos, the teacher that looks at them, and the label set's text
    embeddings (S, D). The last two may be None: without texts, or with_teacher=False."""
    toy, view, features = args.data == "toy", view_of(model.encoder), args.features
    refuse_other_paths(args)
    require((args.data == "features") == (not view.size) == bool(features), f"{args.checkpoint}: "
            f"reads {'videos' if view.size else 'features, by --data features --features F.npz'}")
    if toy:
        require(not skip, "--data toy has no videos to --skip")
        require(view.size == render.SIZE, f"--data toy: its pictures are {render.SIZE} pixels "
                f"wide, but the checkpoint reads {view.size}; use --data coin")
        names = grammar.STEPS if args.task != "activity" else None
    else:
        require(args.annotations and (args.videos or features),
                f"--data {args.data} needs --annotations and --videos")
        videos, names = list_videos(args, split, model.settings.get("classes"))
    teacher, texts = None, None
    if names:
        args.classes = [*names]                            # a fine-tuned checkpoint keeps them
        teacher, texts = open_texts(names, toy, model, args.checkpoint, args.clip,
                                    args.clip_weights, device)
    teacher = teacher if with_teacher else None
    if toy:
        source = ToySource(split, args.toy_videos, view.frames)
        return source, teacher and teacher.watch(source), texts
    if args.data == "epic":
        view = view._replace(frames=EPIC_FRAMES)
    kind = FeatureSource if features else VideoSource
    source = kind(videos, kind.find(features or args.videos), view, teacher.size if teacher else 0,
                  None, skip)
    if features:
        require_widths(source.paths, model.encoder.features, model.dim)
    return source, teacher, texts


# --- Clips through f ---
@torch.no_grad()
def encode_examples(model, teacher, source, examples, args, device):
    """The examples' windows through f and the teacher -> x (M N, D); the teacher's features
    (M N, D), None without one; the M examples that could be read: InputError if they are too few.
    """
    x, features, readable, view = [], [], [], view_of(model.encoder)
    N = max(len(example.windows) for example in examples)
    count = max(READ // N, 1)                              # examples that are read at once
    batches = [examples[i:i + count] for i in range(0, len(examples), count)]
    pixels = view.size ** 2 + (teacher.size ** 2 if teacher else 0)
    size = 3 * count * N * view.frames * pixels            # bytes

    def name(batch):
        return " or ".join(dict.fromkeys(source.videos[one.video].name for one in batch))
    for loaded in prefetch(source.load, batches, args.workers, "encode", size, name=name):
        source.unreadable |= loaded.failed
        if loaded.requests:
            readable += loaded.requests
            with mixed_precision(device):
                x.append(encode_parts(model, loaded.clips, args.micro_batch))
            if teacher:
                features.append(teacher.encode_clips(loaded.views).to(device))
    require_readable(source, args.max_unreadable)
    return torch.cat(x), torch.cat(features) if teacher else None, readable


def write_features(args):
    """--task features: write a file for files/features.py, a row for each STRIDE s of all videos
    of a folder, or of the toy world. It has `teacher` for the toy world, or with --clip."""
    device = pick_device(args.device)
    model = weights.load(args.checkpoint).to(device)
    view, teacher, examples = view_of(model.encoder), None, []
    require(view.size, f"{args.checkpoint}: reads features; give a checkpoint that reads pictures")
    if args.videos:
        teacher = open_teacher(args.clip, args.clip_weights, device) if args.clip else None
        source = open_folder(args.videos, None, None, view, teacher.size if teacher else 0)
    else:
        source, teacher, _ = open_labeled(args, args.split, model, device)
    for i, video in enumerate(source.videos):
        try:
            end = video.duration or source.duration(i)
        except Unreadable as error:
            source.unreadable[video.name] = str(error)
            continue
        middles = np.arange(STRIDE / 2, max(end, STRIDE), STRIDE)
        windows = np.array([window_around(m, m, STRIDE, end) for m in middles])
        for first in range(0, len(windows), PART):
            examples.append(Example(i, windows[first:first + PART], 0, 0))
    require_readable(source, args.max_unreadable)
    x, seen, examples = encode_examples(model, teacher, source, examples, args, device)
    windows = np.concatenate([example.windows for example in examples])
    names = [source.videos[example.video].name for example in examples for _ in example.windows]
    write_atomically(args.out, lambda file: np.savez(
        file, video=names, start=windows[:, 0], end=windows[:, 1], embedding=x.cpu().numpy(),
        **({"teacher": seen.cpu().numpy()} if teacher else {})))
    print(f"{args.out}: {len(x)} windows; {len(source.unreadable)} of {len(source.videos)} videos "
          "unreadable")
    if warning := warn_of_data(model, toy=not args.videos):
        print(f"warning: {warning}")
    if not teacher:
        print("no `teacher` in it: to train from it, add --clip")
