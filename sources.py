"""What --data means: where each data set is, its flags, and what all data sets have in common.

To add one, write a data.Source in a module of its own, and a line of SOURCES. If its videos have
narrations, it serves for pre-training; if its lists have what a task needs, for that task.
"""
import sys
import zlib
from functools import partial
from pkgutil import resolve_name

from torch.nn.functional import cosine_similarity

from data import UNKNOWN, Pictures
from support.arguments import peek
from support.errors import InputError, require
from support.read import load_names, video_name

SOURCES = {                # --data: module:class, imported when it is asked for
    "toy": "toy.source:Toy",
    "howto100m": "files.howto100m:HowTo100M",
    "features": "files.features:Features",
    "coin": "files.coin:Coin",
    "epic": "files.epic:Epic",
}
TEACHERS = {"toy": "toy.source:load_teacher"}          # --clip: function; others: weights.teacher
VALIDATION_SHARE = 0.1     # share of the training videos that stand in for a validation split


def data_set(name):
    """The data.Source class of a value of --data."""
    return resolve_name(SOURCES[name])


# --- Flags of a data set ---
def serving(command):
    """{name: data.Source class} of the data sets that serve a command. All are imported."""
    kinds = {}
    for name in SOURCES:
        kind = data_set(name)
        if kind.serves(command):
            kinds[name] = kind
    return kinds


def flags_of(kinds, command):
    """The flags of data sets, {name: data.Source class} -> {flag: {name: options of add_argument}}.
    """
    flags = {}

    def note(name, flag, **options):
        flags.setdefault(flag, {})[name] = options
    for name, kind in kinds.items():
        kind.add_flags(partial(note, name), command)
    return flags


def add_for_help(parser, flags):
    """Add the flags of several data sets, as `flags_of` gives them, so that help shows all. Those
    that the same data sets have are a group; a flag that several have is declared once, with what
    each says of it. None is required, since help is asked for without any."""
    groups = {}
    for flag, by_name in flags.items():
        title = "--data " + ", ".join(by_name)
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        names_of = {}                                      # {help: data sets that say so}
        for name, options in by_name.items():
            text = options["help"]
            if options.get("required"):
                text += "; required"
            names_of.setdefault(text, []).append(name)
        told = list(names_of)
        if len(told) > 1:
            told = [f"{', '.join(names)}: {text}" for text, names in names_of.items()]
        shown = dict(next(iter(by_name.values())), required=False, help=". ".join(told))
        groups[title].add_argument(flag, **shown)


def add_data_flags(parser, argv, command, default="toy"):
    """Add --data and --skip, and the flags of the data set that argv names; with --help, of all.

    command: what `serves` and `add_flags` of a data.Source are told. Returns the chosen class.
    InputError for another name, or for a data set that does not serve the command.
    """
    chosen = peek(argv, "--data", default)
    require(chosen in SOURCES, f"--data {chosen}: must be one of {', '.join(SOURCES)}")
    kind = data_set(chosen)
    if not kind.serves(command):
        raise InputError(f"--data {chosen}: cannot be used to {command}; that needs --data "
                         f"{' or '.join(serving(command))}")

    def whose(flag):
        owners = flags_of(serving(command), command).get(flag)
        if not owners:
            return ""
        return f"{flag}: --data {chosen} has no such flag; it is for --data {' or '.join(owners)}"
    parser.whose = whose

    words = sys.argv[1:] if argv is None else argv
    helps = "-h" in words or "--help" in words
    told, kinds = "which data set", {}
    if helps:
        kinds = serving(command)
        lines = [f"{name}: {(one.__doc__ or '').strip()}" for name, one in kinds.items()]
        told = " ".join(line.split("\n")[0] for line in lines)
    add = parser.add_argument_group("data").add_argument
    add("--data", choices=list(SOURCES), default=default, help=told)
    if command != "check":
        add("--skip", nargs="+", default=[], metavar="ID", help="videos that are never opened")
    if helps:
        add_for_help(parser, flags_of(kinds, command))
    else:
        kind.add_flags(parser.add_argument, command)
    return kind


# --- Teachers, and what a checkpoint knows ---
def open_teacher(clip, clip_weights=None, device="cpu"):
    """The frozen pseudo_labels.Teacher of a name: one of TEACHERS, or as in weights/teacher.py."""
    if clip not in TEACHERS:
        from weights.teacher import open_pretrained  # open_clip takes seconds to load
        return open_pretrained(clip, clip_weights, device)
    require(clip_weights is None, f"--clip-weights {clip_weights}: --clip {clip} has its own")
    return resolve_name(TEACHERS[clip])(device)


def clip_of(model, clip, clip_weights):
    """--clip and --clip-weights, by default those that a checkpoint was trained with."""
    if clip:
        return clip, clip_weights
    return model.config.clip, clip_weights or model.config.clip_weights


def teacher_of(model):
    """The teacher that a model was trained with, on its device. InputError if it is not there."""
    config = model.config
    return open_teacher(config.clip, config.clip_weights, model.phrases.device)


def world_of(model):
    """The made-up world that a model was trained in, a data.Source class, or None. It and its
    teacher have the same name."""
    if model.config.clip in TEACHERS:
        return data_set(model.config.clip)
    return None


def steps_of(model):
    """The names of the steps that a model knows: those it is fine-tuned to, or the toy world's if
    it was trained there; else None."""
    config, world = model.config, world_of(model)
    if config.names and config.task != "activity":         # whose names are no steps
        return list(config.names)
    if world:
        return list(world.steps)
    return None


def look_alikes_of(model):
    """The pairs of steps that no label told a model apart, by name: the toy world's look-alikes, if
    the model was trained there and is not fine-tuned; else ()."""
    world = world_of(model)
    if model.config.task or not world:
        return ()
    return world.look_alikes


def require_classes(model, names):
    """InputError if a checkpoint is fine-tuned to other classes than `names`, with the first that
    differs."""
    config = model.config
    if config.task is None:
        return
    tuned = config.names or names                          # a published file holds no names
    if list(config.classes) == [len(names)] and list(tuned) == list(names):
        return
    known, here = tuned[0], names[0]
    for one, other in zip(tuned, names):
        if one != other:
            known, here = one, other
            break
    raise InputError(f"{model.path}: is fine-tuned to {sum(config.classes)} classes, such as "
                     f"{known!r}; here are {len(names)}, with {here!r} in its place; give the "
                     "--data or --steps of its training")


def texts_of(model, teacher, names):
    """The teacher's embeddings (S, D) of a label set, on the model's device. InputError for another
    teacher than the checkpoint was trained with, or for other classes than it is fine-tuned to. If
    the model has no text space, any teacher will do."""
    require_classes(model, names)
    texts = teacher.encode_phrases(names).to(model.phrases.device)
    if not model.config.text_space:                    # nothing of the model's is matched with them
        return texts
    first = model.config.first_phrase
    same = texts.shape[1] == model.dim
    if same and first is not None and len(model.phrases):
        now = teacher.encode_phrases([first]).to(model.phrases)
        same = cosine_similarity(now, model.phrases[:1]).item() > 0.999
    require(same, f"{model.path}: was trained with another teacher, whose embeddings differ; "
            "give the same --clip and --clip-weights (the toy world's is --clip toy)")
    return texts


def require_world(model):
    """Raises InputError if a checkpoint was trained in another version of a synthetic world."""
    world, name = model.settings.get("world"), model.settings.get("data")
    if world is None or name not in SOURCES:
        return
    now = data_set(name).world
    require(world == now, f"{model.path}: was trained in version {world} of the {name} world; this "
            f"code has {now}")


def history_of(model, given=None):
    """What a forecast observes -> "spaced" or "paper"; and data.history_windows' spacing.

    given: --history. None: what the checkpoint is fine-tuned on; else clips as far apart as in
    training, if the checkpoint says how far; else the paper's. InputError if it does not say.
    """
    config = model.config
    history = given or config.history
    if not history:
        history = "spaced" if config.spacing else "paper"
    if history == "paper":
        return history, None
    require(config.spacing, f"--history spaced: {model.path} does not say how far apart its "
            "training clips were; give --history paper")
    return history, config.spacing


def warn_of_data(model, source):
    """A warning if the model knows only the toy world and the videos are not from it, else None."""
    if model.config.clip == "toy" and source.truth is None:
        return ("this checkpoint knows only the toy world, rendered pictures of 32 pixels: on "
                "any other video its answers mean nothing")
    return None


# --- Which videos ---
def is_held_out(video, share):
    """Whether a video of the training split is in the share held out, by the CRC-32 of its id."""
    return zlib.crc32(video.name.encode()) % 1000 < 1000 * share


def of_split(videos, split, config=None):
    """The videos of a split; those without a split are of any.

    If no video is for validation, a share of the training videos takes its place: the share that a
    fine-tuned checkpoint, whose model.Config is given, left out; fine-tuning trains on the rest.
    InputError if it left out none.
    """
    splits = {video.split for video in videos}
    if split == "validation" and "train" in splits and split not in splits:
        tuned = config is not None and config.task
        require(not tuned or config.hold_out, "--split validation: the list has no such videos, "
                "and the checkpoint was tuned on all training videos; fine-tune it with --hold-out "
                f"{VALIDATION_SHARE}, or give --split test")
        share = config.hold_out if tuned else VALIDATION_SHARE
        return [video for video in videos if video.split == "train" and is_held_out(video, share)]
    return [video for video in videos if video.split in (None, split)]


def list_videos(source, args, split, config=None):
    """Read the lists of a source -> data.Lists, with the videos of a split, without those that
    --hold-out leaves out. config: of the checkpoint. InputError if there are none."""
    lists = source.read_lists(args, split)
    videos = of_split(lists.videos, split, config)
    hold_out = getattr(args, "hold_out", None)             # of fine-tuning
    if hold_out:
        videos = [video for video in videos if not is_held_out(video, hold_out)]
    require(videos, f"--data {args.data}: no video of the split {split} is listed")
    source.split = split
    if all(video.split is None for video in videos):
        source.split = lists.split
    return lists._replace(videos=videos)


def choose(source, videos, skip=()):
    """Set which videos of a source are listed, can be used, and are left out. Those to skip keep
    their place, so that a resumed run may skip one more. InputError if none is there, or if one to
    skip is not listed."""
    names = dict.fromkeys(video.name for video in videos)
    found = source.found()
    left_out = {}
    if found is not None:
        for name in names:
            if name not in found:
                left_out[name] = "absent", "no file, or no narration"
        there = next(iter(source.paths or found), None)
        require(len(left_out) < len(names), f"none of {len(names)} listed videos has a file of its "
                f"name, with captions if it needs them; listed is {next(iter(names))!r}, there is "
                f"the video {there!r}")
    source.listed = videos
    source.videos = [video for video in videos if video.name not in left_out]
    for name in map(video_name, skip):
        require(name in names, f"--skip {name}: not among the listed videos")
        left_out.setdefault(name, ("skipped", "left out by --skip"))
    source.left_out = left_out


# --- Names of classes ---
def same_name(a, b):
    """Whether two names are the same, ignoring case and spacing."""
    return a.casefold().split() == b.casefold().split()


def labels_from(args):
    """Where labels come from, for messages."""
    return getattr(args, "annotations", None) or f"--data {args.data}"


def count_classes(lists):
    """How many classes of steps the lists have, by their highest number."""
    highest = max(lists.names, default=UNKNOWN)
    for video in lists.videos:
        for step in video.steps:
            highest = max(highest, step.label)
    return 1 + highest


def choose_names(lists, args, tuned):
    """The classes of steps to choose among -> their names; the number of each in the lists.

    Names are those of --steps, where line i is class i; else the lists', without the classes that
    they do not name; else those that a checkpoint is fine-tuned to, `tuned` or None, by number.
    InputError if names contradict each other, or there are none.
    """
    numbers = [k for k in sorted(lists.names) if lists.names[k]]
    names = [lists.names[k] for k in numbers]
    steps = getattr(args, "steps", None)
    if steps:
        names = load_names(steps)
        check_names(steps, names, lists, args)
        return names, range(len(names))
    if tuned and len(names) == len(tuned) and all(map(same_name, names, tuned)):
        return list(tuned), numbers
    if tuned:
        check_names("the checkpoint", tuned, lists, args, "number the classes as in its training")
        return list(tuned), range(len(tuned))
    require(names, f"{labels_from(args)}: its classes have no names; add --steps FILE")
    return names, numbers


def check_names(path, names, lists, args, rule="line i must be class i"):
    """InputError, which ends with the rule, if the names in `path`, class by class, contradict
    those of the lists. There may be more names: the last classes may have no step."""
    need = f"in {labels_from(args)}; {rule}"
    count = count_classes(lists)
    require(count <= len(names), f"{path}: {len(names)} names, but {count} classes {need}")
    for k, known in sorted(lists.names.items()):
        require(not known or same_name(names[k], known), f"{path}:{k + 1}: class {k + 1} is "
                f"{names[k]!r}, but {known!r} {need}")


def name_classes(lists, args, tuned=None):
    """Lists whose classes are renumbered to those with a name, and the names. A line says how many
    are no candidates. Arguments are those of `choose_names`."""
    names, numbers = choose_names(lists, args, tuned)
    count = count_classes(lists)
    if count > len(names):
        print(f"{labels_from(args)}: {count - len(names)} of {count} classes have no name and are "
              "no candidates")
    places = {k: i for i, k in enumerate(numbers)}
    videos = []
    for video in lists.videos:
        steps = []
        for step in video.steps:
            steps.append(step._replace(label=places.get(step.label, UNKNOWN)))
        videos.append(video._replace(steps=tuple(steps)))
    return lists._replace(videos=videos), names


def name_activities(lists, args, config):
    """The names of all activities of a list, "" where it has none. InputError if they are others
    than those that a checkpoint is tuned to, or in another order."""
    where = labels_from(args)
    require(lists.activities, f"{where}: no activities")
    count = 1 + max(lists.activities)
    names = [lists.activities.get(k, "") for k in range(count)]
    if not config.task:
        return names
    tuned = config.names or [""] * sum(config.classes)
    require(count <= len(tuned), f"{where}: {count} activities; the checkpoint is fine-tuned to "
            f"{len(tuned)}")
    for k, (its, ours) in enumerate(zip(tuned, names)):
        require(not its or not ours or same_name(its, ours), f"{where}: activity {k} is {ours!r}; "
                f"the checkpoint is fine-tuned with {its!r} in its place")
    return list(tuned)


# --- Opened for a command ---
def fits(kind, side):
    """Whether f, which reads pictures of `side` pixels (0: features), can read a data set."""
    if kind.side is None:
        return side > 0
    return side == kind.side


def require_widths(source, width, dim):
    """InputError if f reads features of another `width` (None: any), or if the texts have another
    `dim` than what the teacher sees."""
    F, D = source.widths
    require(width in (None, F), f"--data features: embedding is (R, {F}), the checkpoint reads (R, "
            f"{width})")
    require(dim == D, f"--data features: teacher is (R, {D}), (R, {dim}) of --clip is needed")


def list_narrated(args):
    """The narrated training videos of --data, not yet opened: data.Source."""
    source = data_set(args.data)(args)
    lists = list_videos(source, args, "train")
    choose(source, lists.videos, args.skip)
    return source


def list_for(args, model, split):
    """The videos of a split of --data for a checkpoint: data.Source, in which none is chosen yet,
    and its data.Lists. InputError if the model cannot read them, or is of another world."""
    side = model.encoder.image
    require_world(model)
    reads = f"pictures of {side} pixels" if side else "features"
    kind = data_set(args.data)
    require(fits(kind, side), f"{model.path}: reads {reads}, not --data {args.data}")
    source = kind(args)
    return source, list_videos(source, args, split, model.config)


def open_unlabeled(args, model, teacher, split="test"):
    """The videos of --data, as a checkpoint reads them, without their labels: data.Source. teacher:
    the one that looks at the clips, or None."""
    source, lists = list_for(args, model, split)
    choose(source, lists.videos, args.skip)
    source.open(Pictures.of(model.encoder), teacher)
    return source


def open_labeled(args, task, model, device, split, looks=True):
    """The videos of a Task, as a checkpoint reads them -> their Source; names of the classes, None
    if they have none; the teacher, if it `looks` at the clips, too; its texts (S, D) of the names,
    None for a task without names of steps, or for a model without a text space that the teacher
    does not look for."""
    f, config = model.encoder, model.config
    source, lists = list_for(args, model, split)
    names = teacher = texts = None
    if "names" in task.needs:
        tuned = config.names if config.task else None
        lists, names = name_classes(lists, args, tuned)
    elif "activities" in task.needs:
        names = name_activities(lists, args, config)
    choose(source, lists.videos, args.skip)
    if source.widths:
        require_widths(source, f.features, model.dim)
    if "names" in task.needs and (looks or config.text_space):
        clip, clip_weights = clip_of(model, args.clip, args.clip_weights)
        teacher = open_teacher(clip, clip_weights, device)
        texts = texts_of(model, teacher, names)
    if not looks:
        teacher = None
    source.open(Pictures.of(f)._replace(frames=task.frames or f.frames), teacher)
    return source, names, teacher, texts
