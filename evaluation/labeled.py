"""Labeled videos, the texts of their label set, and whether a checkpoint fits them.

S steps, D embedding. What does not fit is an InputError.
"""
from pathlib import Path

from torch.nn import functional

from data import EPIC_FRAMES, examples_of, view_of
from files import lists
from files.sources import VideoSource, require_videos
from files.video import find_videos
from support.errors import require
from toy import grammar, render
from toy.source import ToySource, load_teacher
from weights.teacher import open_teacher


# --- Does the checkpoint fit? ---
def require_task(model, args):
    """The checkpoint must be able to do the task of evaluate.py, zero-shot or fine-tuned for it."""
    path, epic = args.checkpoint, args.data == "epic"
    finetune = f"python train.py --stage finetune --task {args.task} --data {args.data}"
    require(model.task or not (args.task == "activity" or epic), f"{path}: is not fine-tuned, and "
            f"--task {args.task} of --data {args.data} needs that; run `{finetune}`")
    actions = len(model.classes) > 1
    require(not model.task or (model.task, actions) == (args.task, epic), f"{path}: is tuned for "
            f"{'verbs and nouns' if actions else f'--task {model.task}'}; run `{finetune}`")
    require(args.task not in ("forecast", "infill") or model.denoiser, f"{path}: trained with "
            "--order none; to forecast, train with --order diffusion or mask")


def require_teacher(teacher, model, path):
    """The checkpoint must have been trained with this teacher, which embeds its witness again."""
    if model.witness is None:                          # published
        return
    now = teacher.encode_phrases([model.witness]).to(model.phrases)
    same = now.shape[1] == model.dim and functional.cosine_similarity(
        now, model.phrases[:1]).item() > 0.999
    require(same, f"{path}: was trained with another teacher, which embeds \"{model.witness}\" "
            "differently; give the same --clip and --clip-weights (the embedded world's teacher is "
            "toy/teacher.pt)")


def require_classes(model, source, texts, args):
    """A fine-tuned checkpoint must have as many classes as the data."""
    if model.task is None or args.data == "epic":
        return
    largest = max((e.label for e in examples_of(args.task, source.listed)), default=-1)
    count = len(texts) if texts is not None else max(model.classes[0], largest + 1)
    require(count == model.classes[0] and largest < count, f"{args.checkpoint}: is fine-tuned to "
            f"{model.classes[0]} classes, there are {max(count, largest + 1)} here; give the "
            "--data it was fine-tuned on")


# --- Videos and texts ---
def add_labeled_flags(parser):
    """--data and what it reads, of the commands that read labeled videos."""
    add = parser.add_argument
    add("--data", choices=["toy", "coin", "epic"], default="toy", help="toy: the embedded world; "
        "coin: COIN, or own videos in its layout; epic: EPIC-Kitchens-100, verbs and nouns")
    add("--annotations", type=Path, help="COIN.json or a released csv, or EPIC's csv")
    add("--videos", type=Path, help="folder of videos, ID.mp4 and the like")
    add("--steps", type=Path, help="line i names class i (default: the names in COIN.json)")
    add("--clip", help="the teacher that embeds the names: a model of open_clip, or local-dir:DIR "
        "(default: the run's)")
    add("--clip-weights", help="its weights: a tag of open_clip, or a file (default: the run's)")


def teacher_of(model, args, device):
    """The teacher for real videos: --clip, or the one that the checkpoint was trained with."""
    clip = args.clip or model.settings.get("clip") or "ViT-B-16-quickgelu"
    return open_teacher(clip, args.clip_weights or model.settings.get("clip_weights"), device)


def list_videos(args, split):
    """The annotated videos of COIN or EPIC, and the names of their classes, "" if unknown."""
    path = args.annotations
    if args.data == "epic":
        return lists.load_epic(path), []
    if path.suffix == ".csv":                          # a released list holds one split, no names
        videos = lists.load_released_csv(path, args.task)
        return videos, [""] * (1 + max(video.activity for video in videos))
    videos, names = lists.load_coin(path)
    return [video for video in videos if video.split == split and video.steps], names


def class_names(args, labels):
    """The names of the label set: of --steps, else of the annotations."""
    if not args.steps:
        require(any(labels), f"{args.annotations}: a csv has no class names; add --steps FILE")
        return labels
    names = lists.load_steps(args.steps)
    lists.check_names(args.steps, names, args.annotations, labels)
    return names


def open_labeled(args, split, model, device, with_teacher=True):
    """The videos of a split, and the text embeddings of its label set.

    with_teacher: whether the source gives the teacher's features of clips.
    Returns: a source, and (S, D) float on the device; None if the task matches no texts.
    """
    view = view_of(model.encoder)
    named = args.task != "activity" and args.data != "epic"
    if args.data == "toy":
        require(view.size == render.SIZE, f"--data toy: its pictures are {render.SIZE} pixels "
                f"wide, the checkpoint reads {view.size}; give it --data coin")
        teacher = load_teacher(device)
        require_teacher(teacher, model, args.checkpoint)
        texts = teacher.encode_phrases(grammar.STEPS).to(device) if named else None
        teacher = teacher if with_teacher else None
        return ToySource(split, args.toy_videos, view.frames, teacher), texts
    require(args.annotations and args.videos,
            f"--data {args.data} needs --annotations and --videos")
    videos, labels = list_videos(args, split)
    if args.data == "epic":
        view = view._replace(frames=EPIC_FRAMES)
    teacher = texts = None
    if named:
        names = class_names(args, labels)
        teacher = teacher_of(model, args, device)
        require_teacher(teacher, model, args.checkpoint)
        texts = teacher.encode_phrases(names).to(device)
        require(texts.shape[1] == model.dim, f"{args.checkpoint}: embeddings of width {model.dim}, "
                f"--clip's have {texts.shape[1]}; give the --clip it was trained with")
    source = VideoSource(videos, find_videos(args.videos), view, teacher if with_teacher else None)
    return require_videos(source, args.videos), texts
