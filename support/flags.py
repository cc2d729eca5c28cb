"""Flags that several commands have."""
import json
from dataclasses import dataclass
from pathlib import Path

from support.command import DATA, Settings, check, opt

COIN, EPIC = ("coin",), ("epic",)                              # kinds of --data
FEATURES = ("annotations", "features", "text_embeddings")      # a features file and what it needs
CLIP = "ViT-B-16-quickgelu"                                    # the paper's teacher, in open_clip
TEACHER = opt("open_clip model, or local-dir:DIR; default: the run's teacher", None, DATA)
TEACHER_WEIGHTS = opt("open_clip's tag, or a file; default: those of the run's teacher", None, DATA)


@dataclass(frozen=True)
class RunSettings(Settings):
    """Flags of every command that runs a model over videos."""
    seed: int = opt("of all that is random", 0, low=0, high=2 ** 32 - 1)
    device: str = opt("cpu, cuda, cuda:1; auto: a GPU if any", "auto")
    workers: int = opt("processes that read videos ahead; 0: none", 0, low=0)
    max_unreadable: float = opt("share of videos that may be unreadable", 0.05, low=0, high=1)


def adopt_teacher(settings, checkpoint):
    """Set --clip and --clip-weights, unless given, to those of the checkpoint's run folder."""
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    try:
        trained = json.loads((folder / "config.json").read_text(encoding="utf-8"))["settings"]
        clip, weights = trained["clip"], trained["clip_weights"]
    except (OSError, ValueError, KeyError, TypeError):             # a file from elsewhere
        clip, weights = CLIP, None
    settings.default("clip", clip)
    if settings.clip == clip:
        settings.default("clip_weights", weights)


@dataclass(frozen=True)
class LabeledSettings(RunSettings):
    """Flags of the commands that read labeled videos. They add --task."""
    data: str = opt("toy: the embedded world; coin: COIN with videos, or with a features file; "
                    "epic: EPIC-Kitchens-100, verbs and nouns", "toy", DATA,
                    choices=("toy", "coin", "epic"))
    annotations: Path = opt("COIN.json or a released csv, or EPIC's csv", None, DATA,
                            data=COIN + EPIC)
    videos: Path = opt("folder of videos, ID.mp4 and the like", None, DATA)
    features: Path = opt("npz of clip embeddings, one row per window", None, DATA, data=COIN)
    text_embeddings: Path = opt("npz of the classes' text embeddings", None, DATA, data=COIN)
    steps: Path = opt("names of the classes, line i is class i; default those in COIN.json", None,
                      DATA, data=COIN)
    clip: str = TEACHER
    clip_weights: str = TEACHER_WEIGHTS

    def __post_init__(self):
        """COIN's lists need videos or a features file, EPIC's need videos."""
        super().__post_init__()
        check(self.videos is None or self.features is None, "features", self.features,
              "--videos is given as well; give one of them")
        check(self.data != "toy" or self.videos is None or self.task == "features", "videos",
              self.videos, "has no effect with --data toy; give --data coin or epic")
        check(self.data != "epic" or self.task in ("classify", "features"), "task", self.task,
              "--data epic has actions to classify")
        self.require({"toy": (), "epic": ("annotations", "videos"),
                      "coin": ("annotations",) if self.videos else FEATURES}[self.data],
                     f"--data {self.data}")
