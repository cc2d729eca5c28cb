"""What --data means: one table, read by all commands, of how each data set is opened.

To add one, write a data.Source and a line of DATA. It is then pre-trained on, if it is opened with
narrations, and fine-tuned and evaluated on, if it is opened with labels.
"""
from typing import Callable, NamedTuple

from files.captions import count_narrations
from files.features import FeatureSource, find_rows, require_widths
from files.lists import count_coin, count_epic, epic_split, list_labeled, load_epic
from files.sources import VideoSource, open_folder
from files.video import find_videos, pictures_of
from losses import TAU
from support.errors import require
from toy import grammar, render
from toy.source import ToySource, load_teacher
from weights.teacher import open_teacher as open_pretrained

FLAGS = ("videos", "features", "captions", "ids", "phrases", "annotations", "steps", "skip",
         "hold_out")                   # of which each data set has its own


class Way(NamedTuple):
    """How a data set is opened, with narrations or with labels.

    open: of narrations, (args, pictures, teacher) -> Source; of labels, (args, task, model, split,
    teacher) -> Source, names of the classes or None. teacher: what looks at the clips, or None.
    """
    open: Callable
    needs: tuple = ()                  # flags for files that must be given
    takes: tuple = ()                  # and that may be


class Data(NamedTuple):
    """One value of --data."""
    narrated: Way | None = None
    labeled: Way | None = None
    fits: Callable = bool              # (side of f's pictures; 0: features) -> whether it fits
    tau: float = TAU                   # of Eq. 6
    size: str = "base"                 # defaults of pre-training: train.py:SIZES
    encoder: str = "timesformer"
    clip: str | None = None            # the teacher; None: the paper's
    phrases: tuple | None = None       # the pool; None: of --phrases
    world: int | None = None           # version of a world that is made up
    tasks: dict = {}                   # {--task: Task of evaluate.py} of its own; {}: all others
    split: Callable = lambda args: args.split          # args -> the name of what is measured
    count: Callable | None = None      # args -> what is listed: for `python -m files check`, as are
    kind: Callable = VideoSource       # that, or a class of its arguments and methods, and
    find: Callable = find_videos       # folder -> {id: path}
    one: Callable | None = None        # (model, number) -> Source of one test video
    steps: tuple | None = None         # names of its steps


def pictures_for(task, model):
    """What f reads of a window for a Task: data.Pictures."""
    pictures = pictures_of(model.encoder)
    return pictures._replace(frames=task.frames or pictures.frames)


def labeled_videos(args, task, model, split, teacher=None):
    """Videos in COIN's layout."""
    videos, names = list_labeled(args, task, split, model.config)
    return VideoSource(videos, find_videos(args.videos), pictures_for(task, model), teacher,
                       skip=args.skip), names


def labeled_features(args, task, model, split, teacher=None):
    """Features of videos in COIN's layout."""
    videos, names = list_labeled(args, task, split, model.config)
    source = FeatureSource(videos, find_rows(args.features), None, teacher, skip=args.skip)
    require_widths(source, model.encoder.features, model.dim)
    return source, names


def labeled_epic(args, task, model, split, teacher=None):
    """Actions of EPIC-Kitchens-100, whose verbs and nouns have no texts here."""
    return VideoSource(load_epic(args.annotations), find_videos(args.videos),
                       pictures_for(task, model), teacher, skip=args.skip), None


def labeled_toy(args, task, model, split, teacher=None):
    """The toy world's videos of a split."""
    frames = pictures_for(task, model).frames
    names = [*grammar.STEPS] if task.texts else None
    return ToySource(split, range(args.toy_videos), frames, teacher), names


def folder(kind, find, flag):
    """Narrated videos, or features, of a folder or file that `flag` names."""
    return lambda args, pictures, teacher: open_folder(
        getattr(args, flag), args.captions, args.ids, pictures, teacher, args.skip,
        args.max_unreadable, kind, find)


def split_of(args):
    """A released csv is one split: its own name tells which."""
    return args.annotations.stem if args.annotations.suffix == ".csv" else args.split


DATA = {
    "toy": Data(
        Way(lambda args, pictures, teacher: ToySource(
            "train", range(args.toy_videos), pictures.frames, teacher), takes=("phrases",)),
        Way(labeled_toy), fits=lambda size: size == render.SIZE, tau=0.045, size="small",
        clip="toy", phrases=grammar.PHRASES, world=grammar.VERSION, steps=grammar.STEPS,
        one=lambda model, number: ToySource("test", [number], model.encoder.frames)),
    "howto100m": Data(
        Way(folder(VideoSource, find_videos, "videos"), ("videos", "captions", "phrases"),
            ("ids", "skip")), count=count_narrations),
    "features": Data(
        Way(folder(FeatureSource, find_rows, "features"), ("features", "captions", "phrases"),
            ("ids", "skip")),
        Way(labeled_features, ("annotations", "features"), ("steps", "skip", "hold_out")),
        fits=lambda size: not size, size="small", encoder="adapter", split=split_of),
    "coin": Data(
        labeled=Way(labeled_videos, ("annotations", "videos"), ("steps", "skip", "hold_out")),
        split=split_of, count=count_coin),
    "epic": Data(
        labeled=Way(labeled_epic, ("annotations", "videos"), ("skip",)),
        tasks={"classify": "actions"}, split=lambda args: epic_split(args.annotations),
        count=count_epic),
}


def flags_of(data):
    """The flags for files that a Data has."""
    return {name for way in (data.narrated, data.labeled) if way for name in way.needs + way.takes}


def require_flags(args, way):
    """InputError if a file is missing that --data needs, or one is given that it does not read."""
    absent = [name for name in way.needs if not getattr(args, name, None)]
    require(not absent, f"--data {args.data} needs --{' and --'.join(absent)}")
    for name in FLAGS:
        require(name in way.needs + way.takes or not getattr(args, name, None),
                f"--data {args.data} has no --{name.replace('_', '-')}; another --data has: "
                f"{', '.join(other for other in DATA if name in flags_of(DATA[other]))}")


def open_teacher(clip, clip_weights=None, device="cpu"):
    """The frozen pseudo_labels.Teacher of a name: "toy", the toy world's, or as in
    weights/teacher.py."""
    return load_teacher(device) if clip == "toy" else open_pretrained(clip, clip_weights, device)


def require_world(model):
    """InputError if a checkpoint was trained in another version of the toy world."""
    world = model.settings.get("world") or grammar.VERSION
    require(world == grammar.VERSION, f"{model.path}: was trained in version {world} of the toy "
            f"world; this code has {grammar.VERSION}")


def teacher_of(model, args, device):
    """The teacher that a checkpoint was trained with, or that of --clip."""
    return open_teacher(args.clip or model.config.clip,
                        args.clip_weights or model.config.clip_weights, device)


def history_of(model, given=None):
    """What a forecast observes -> "spaced" or "paper"; and data.history_windows' spacing.

    given: of --history. None: that which a checkpoint is fine-tuned on; else as far apart as in
    training, if the checkpoint says how far; else the paper's. InputError if it does not say.
    """
    config = model.config
    history = given or config.history or ("spaced" if config.spacing else "paper")
    require(history == "paper" or config.spacing, f"--history spaced: {model.path} does not say "
            "how far apart its training clips were; give --history paper")
    return history, config.spacing if history == "spaced" else None


def warn_of_data(model, source):
    """A warning, or None: whether these videos are not of the only world that the model knows."""
    if model.config.clip == "toy" and source.truth is None:
        return ("this checkpoint knows only the toy world, rendered pictures of 32 pixels: on "
                "any other video its answers mean nothing")
    return None
