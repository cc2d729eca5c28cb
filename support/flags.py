"""Flags that several commands have."""
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from support.command import DATA, PAPER, RUN, WHAT, Settings, check, opt

COIN, EPIC = ("coin",), ("epic",)                              # kinds of --data
FEATURES = ("annotations", "features", "text_embeddings")      # a features file and what it needs
CLIP = "ViT-B-16-quickgelu"                                    # the paper's teacher, in open_clip
OWN, DEFAULT = Path("runs/pretrain"), Path(__file__).parents[1] / "toy" / "default.safetensors"
CHECKPOINT = opt("run folder, a checkpoint file of ours, or a published one; in the embedded "
                 "world without a run of one's own: the one that comes with the code", OWN, WHAT)
# of --task, where the names of steps are embedded
NAMED = dict(task=("forecast", "classify", "infill"), features=(None,), text_embeddings=(None,))
TEACHER = opt("open_clip model, or local-dir:DIR [the run's]", None, DATA, data=COIN, **NAMED)
TEACHER_WEIGHTS = opt("open_clip's tag, or a file [the run's]", None, DATA, data=COIN, **NAMED)


@dataclass(frozen=True)
class RunSettings(Settings):
    """Flags of every command that runs a model over videos, whatever it reads."""
    seed: int = opt("of all that is random", 0, low=0, high=2 ** 32 - 1)
    device: str = opt("cpu, cuda, cuda:1; auto: a GPU if any", "auto")
    workers: int = opt("processes that read videos ahead; 0: none", 0, low=0, high=256)
    max_unreadable: float = opt("share of videos that may be unreadable", 0.05, low=0, high=1)


def adopt_run(settings, name="checkpoint", real=False):
    """Where there is no runs/pretrain, read what comes with the code, but not for `real` videos."""
    if getattr(settings, name) == OWN and not OWN.exists() and not real:
        object.__setattr__(settings, name, DEFAULT)
        print(f"no {OWN}: the default checkpoint that comes with the code (seed 0)")


def adopt_teacher(settings, checkpoint):
    """Set --clip and --clip-weights, unless given, to those of the checkpoint's run folder."""
    folder, clip, weights = checkpoint if checkpoint.is_dir() else checkpoint.parent, CLIP, None
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):    # from elsewhere
        trained = json.loads((folder / "config.json").read_text(encoding="utf-8"))["settings"]
        if isinstance(trained["clip"], str) and isinstance(trained["clip_weights"], str | None):
            clip, weights = trained["clip"], trained["clip_weights"]
    settings.default("clip", clip)
    if settings.clip == clip:
        settings.default("clip_weights", weights)


@dataclass(frozen=True)
class LabeledSettings(RunSettings):
    """Flags of the commands that read labeled videos. They add --task."""
    data: str = opt("toy: the embedded world; coin: COIN; epic: EPIC-Kitchens-100, verbs and nouns",
                    "toy", DATA, choices=("toy", "coin", "epic"))
    annotations: Path = opt("COIN.json or a released csv, or EPIC's", None, DATA, data=COIN + EPIC)
    videos: Path = opt("folder of videos, ID.mp4 and the like", None, DATA)
    features: Path = opt("npz of embeddings of clips", None, DATA, data=COIN, videos=(None,))
    text_embeddings: Path = opt("npz of the classes' text embeddings", None, DATA, data=COIN)
    steps: Path = opt("line i names class i [names in COIN.json]", None, DATA, data=COIN, **NAMED)
    clip: str = TEACHER
    clip_weights: str = TEACHER_WEIGHTS

    def __post_init__(self):
        """COIN's lists need videos or a features file, EPIC's need videos."""
        super().__post_init__()
        check(self.data != "toy" or self.videos is None or self.task == "features", "videos",
              self.videos, "has no effect with --data toy; give --data coin or epic")
        check(self.data != "epic" or self.task == "classify", "task", self.task,
              "--data epic has actions to classify")
        check(self.data == "toy" or self.task != "features", "task", self.task,
              f"reads --videos, or the embedded world's; leave out --data {self.data}")
        check(self.text_embeddings is None or self.features or self.task != "activity",
              "text_embeddings", self.text_embeddings, "has no effect with --task activity")
        needed = {"toy": (), "epic": ("annotations", "videos"),
                  "coin": ("annotations",) if self.videos else FEATURES}
        self.require(needed[self.data], f"--data {self.data}")


@dataclass(frozen=True)
class FinetuneSettings(LabeledSettings):
    """Fine-tune a checkpoint with labels (paper, Sec. 4): a classifier, and h or f with it."""
    stage: str = opt("pretrain has flags of its own: --help", "finetune", WHAT,
                     choices=("pretrain", "finetune"))
    task: str = opt("classify: the classifier on f's embedding; forecast, activity: h and the "
                    "classifier; f is frozen, except with --data epic", "classify", WHAT,
                    choices=("classify", "forecast", "activity"))
    init: Path = opt("start from this checkpoint: a run folder, or a file, also a published one",
                     OWN, WHAT)
    toy_videos: int = opt("training videos of the embedded world", 6000, DATA, low=1, data=("toy",))
    labels: float = opt("share of the labeled videos that is used", 1.0, DATA, above=0, high=1)
    epochs: float = opt("times each sample is seen; default the paper's 15, and 60 for activities, "
                        "where a whole video is one sample", None, PAPER, above=0)
    batch: int = opt("samples per step; the paper's 64", 64, PAPER, low=1)
    lr: float = opt("peak learning rate of AdamW", 1e-3, PAPER, above=0)
    out: Path = opt("run folder; default runs/finetune-TASK", None, RUN, folder=True)
    resume: bool = opt("continue from OUT/checkpoint.pt", False, RUN)

    def __post_init__(self):
        self.default("epochs", 60.0 if self.task == "activity" else 15.0)
        self.default("out", Path(f"runs/finetune-{self.task}"))
        super().__post_init__()
        adopt_teacher(self, self.init)
