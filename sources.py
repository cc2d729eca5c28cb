"""What --data means: one table, read by all commands, of how each data set is opened.

To add one, write a data.Source and a line of DATA. If it can be opened with narrations, it serves
for pre-training; if with labels, for fine-tuning and evaluation.
"""
from pathlib import Path
from typing import Callable, NamedTuple

from files.captions import count_narrations
from files.features import FeatureSource, find_rows, require_widths
from files.lists import count_coin, count_epic, epic_split, list_labeled, load_epic
from files.sources import VideoSource, open_folder
from files.video import find_videos, pictures_of
from losses import TAU
from support.arguments import limit_threads
from support.errors import require
from toy import grammar, render
from toy.source import ToySource, load_teacher
from weights.teacher import open_teacher as open_pretrained
from weights.teacher import texts_of

FLAGS = ("videos", "features", "captions", "ids", "phrases", "annotations", "steps", "skip",
         "hold_out")                   # of which each data set has its own


class Way(NamedTuple):
    """How a data set is opened, with narrations or with labels.

    open: of narrations, (args, pictures, teacher) -> Source; of labels, (args, pictures, teacher,
    task, model, split) -> Source, names of the classes or None. pictures: what f reads of a window;
    teacher: what looks at the clips, or None.
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
    frames: int = 8                    # of a clip, as f of this size reads it
    clip: str | None = None            # the teacher; None: the paper's
    phrases: tuple | None = None       # the pool; None: of --phrases
    world: int | None = None           # version of a world that is made up
    has: tuple = ()                    # what its lists give of that a Task needs: evaluate.py
    split: Callable = lambda args: args.split          # args -> the name of what is measured
    count: Callable | None = None      # for `python -m files check`: args -> what is listed
    kind: Callable = VideoSource       # also for it: VideoSource, or a class with its interface
    find: Callable = find_videos       # also for it: folder -> {id: path}
    one: Callable | None = None        # (model, number) -> Source of one test video
    steps: tuple | None = None         # names of its steps


def labeled(kind, find, flag):
    """Videos in COIN's layout, or their features, of a folder or file that `flag` names."""
    def open_kind(args, pictures, teacher, task, model, split):
        videos, names = list_labeled(args, task, split, model.config)
        source = kind(videos, find(getattr(args, flag)), pictures, teacher, skip=args.skip)
        if not pictures.size:
            require_widths(source, model.encoder.features, model.dim)
        return source, names
    return open_kind


def labeled_epic(args, pictures, teacher, task, model, split):
    """Actions of EPIC-Kitchens-100, whose verbs and nouns have no texts here."""
    return VideoSource(load_epic(args.annotations), find_videos(args.videos), pictures, teacher,
                       skip=args.skip), None


def labeled_toy(args, pictures, teacher, task, model, split):
    """The toy world's videos of a split."""
    names = list(grammar.STEPS) if "names" in task.needs else None
    return ToySource(split, range(args.toy_videos), pictures.frames, teacher), names


def narrated(kind, find, flag):
    """Narrated videos, or features, of a folder or file that `flag` names."""
    return lambda args, pictures, teacher: open_folder(
        getattr(args, flag), args.captions, args.ids, pictures, teacher, args.skip,
        args.max_unreadable, kind, find)


def split_of(args):
    """A released csv is one split: its own name tells which."""
    return args.annotations.stem if args.annotations.suffix == ".csv" else args.split


COIN_HAS = "steps", "names", "activities"              # of COIN's layout, and of the toy world

DATA = {
    "toy": Data(
        Way(lambda args, pictures, teacher: ToySource(
            "train", range(args.toy_videos), pictures.frames, teacher, narrated=True),
            takes=("phrases",)),
        Way(labeled_toy), fits=lambda size: size == render.SIZE, tau=0.045, size="small",
        frames=4, clip="toy", phrases=grammar.PHRASES, world=grammar.VERSION, has=COIN_HAS,
        steps=grammar.STEPS,
        one=lambda model, number: ToySource("test", [number], model.encoder.frames)),
    "howto100m": Data(
        Way(narrated(VideoSource, find_videos, "videos"), ("videos", "captions", "phrases"),
            ("ids", "skip")), count=count_narrations),
    "features": Data(
        Way(narrated(FeatureSource, find_rows, "features"), ("features", "captions", "phrases"),
            ("ids", "skip")),
        Way(labeled(FeatureSource, find_rows, "features"), ("annotations", "features"),
            ("steps", "skip", "hold_out")),
        fits=lambda size: not size, size="small", encoder="adapter", has=COIN_HAS, split=split_of),
    "coin": Data(
        labeled=Way(labeled(VideoSource, find_videos, "videos"), ("annotations", "videos"),
                    ("steps", "skip", "hold_out")),
        has=COIN_HAS, split=split_of, count=count_coin),
    "epic": Data(
        labeled=Way(labeled_epic, ("annotations", "videos"), ("skip",)),
        has=("actions",), split=lambda args: epic_split(args.annotations),
        count=count_epic),
}


def require_flags(args, way):
    """InputError if a file is missing that --data needs, or one is given that is not there, or that
    --data does not read."""
    absent = [name for name in way.needs if not getattr(args, name, None)]
    require(not absent, f"--data {args.data} needs --{' and --'.join(absent)}")
    for name in FLAGS:
        require(name in way.needs + way.takes or not getattr(args, name, None),
                f"--data {args.data} has no --{name.replace('_', '-')}")
    for name in way.needs + way.takes:
        path = getattr(args, name, None)
        require(not isinstance(path, Path) or path.exists(),
                f"--{name} {path}: no such file or folder")


def open_teacher(clip, clip_weights=None, device="cpu"):
    """The frozen pseudo_labels.Teacher of a name: "toy", the toy world's, or as in
    weights/teacher.py."""
    if clip != "toy":
        return open_pretrained(clip, clip_weights, device)
    require(clip_weights is None, f"--clip-weights {clip_weights}: the toy world's has its own")
    return load_teacher(device)


def require_world(model):
    """InputError if a checkpoint was trained in another version of the toy world."""
    world = model.settings.get("world") or grammar.VERSION
    require(world == grammar.VERSION, f"{model.path}: was trained in version {world} of the toy "
            f"world; this code has {grammar.VERSION}")


def clip_of(model, args):
    """--clip and --clip-weights, by default those that a checkpoint was trained with."""
    if args.clip:
        return args.clip, args.clip_weights
    return model.config.clip, args.clip_weights or model.config.clip_weights


def open_labeled(args, task, model, device, split, looks=True):
    """The videos of a Task, as a checkpoint reads them -> their Source; names of the classes; the
    teacher, and its texts (S, D). The last three are None for a task without names. looks: whether
    the teacher sees the clips, too."""
    data, f = DATA[args.data], model.encoder
    limit_threads(f.image, device)
    require_world(model)
    require_flags(args, data.labeled)
    require(data.fits(f.image), f"{model.path}: reads "
            f"{f'pictures of {f.image} pixels' if f.image else 'features'}, not --data {args.data}")
    pictures, teacher = pictures_of(f)._replace(frames=task.frames or f.frames), None
    if "names" in task.needs:
        teacher = open_teacher(*clip_of(model, args), device)
    source, names = data.labeled.open(args, pictures, teacher if looks else None, task, model,
                                      split)
    return source, names, teacher, texts_of(model, teacher, names) if teacher else None


def history_of(model, given=None):
    """What a forecast observes -> "spaced" or "paper"; and data.history_windows' spacing.

    given: --history. None: what the checkpoint is fine-tuned on; else clips as far apart as in
    training, if the checkpoint says how far; else the paper's. InputError if it does not say.
    """
    config = model.config
    history = given or config.history or ("spaced" if config.spacing else "paper")
    require(history == "paper" or config.spacing, f"--history spaced: {model.path} does not say "
            "how far apart its training clips were; give --history paper")
    return history, config.spacing if history == "spaced" else None


def warn_of_data(model, source):
    """A warning if the model knows only the toy world and the videos are not from it, else None."""
    if model.config.clip == "toy" and source.truth is None:
        return ("this checkpoint knows only the toy world, rendered pictures of 32 pixels: on "
                "any other video its answers mean nothing")
    return None
