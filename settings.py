"""Settings: one frozen dataclass per script is its defaults, its command line, its help and checks.

Here those of train.py and evaluate.py; of the optional scripts: settings_optional.py.

How they are read from a command line, and how a script ends on a wrong one, is in program.py.
"""
import math
from dataclasses import dataclass, fields
from pathlib import Path

from support.command import check, opt

HOWTO, COIN, EPIC = ("howto100m",), ("coin",), ("epic",)                 # kinds of --data
NARRATED = ("toy", "howto100m")                                # those with narrations
FEATURES = ("annotations", "text_embeddings", "features")      # a features file and what it needs


def check_labelled(settings):
    """What labelled data needs: COIN's lists with videos or a features file, EPIC's with videos."""
    check(settings.videos is None or settings.features is None, "features", settings.features,
          "--videos is given as well; give one of them")
    check(settings.data != "epic" or settings.task in ("classify", "features"), "task",
          settings.task, "--data epic has actions to classify")
    needs = {"toy": (), "epic": ("annotations", "videos"),
             "coin": ("annotations",) if settings.videos else FEATURES}[settings.data]
    check_common(settings, needs)


def check_common(settings, needs):
    """What both scripts need: a seed that every generator takes, and the files named in `needs`."""
    check(settings.workers >= 0, "workers", settings.workers, "must be 0 or more")
    check(0 <= settings.max_unreadable <= 1, "max_unreadable", settings.max_unreadable,
          "must be 0 to 1")
    check(0 <= settings.seed < 2 ** 32, "seed", settings.seed, "must be 0 to 2^32 - 1")
    for f in fields(settings):
        kinds = f.metadata["data"]
        value = getattr(settings, f.name)
        check(not kinds or settings.data in kinds or value == f.default, f.name, value,
              f"has no effect with --data {settings.data}, but with {' or '.join(kinds)}")
    for name in needs:
        check(getattr(settings, name) is not None, name, "is missing", f"--data {settings.data} "
              f"needs --{', --'.join(needs).replace('_', '-')} (see README.md, Data)")


@dataclass(frozen=True)
class TrainSettings:
    """Pre-train the encoder f and the denoiser h (paper, Sec. 3.2), without labels."""
    stage: str = opt("what to train; finetune has settings of its own: --stage finetune --help",
                     "pretrain", ("pretrain", "finetune"))
    data: str = opt("toy: the embedded world, nothing needed; howto100m: videos with captions; "
                    "coin: COIN.json with a features file, h alone", "toy",
                    ("toy", "howto100m", "coin"))
    order: str = opt("how h models the order of steps: a diffusion; mask: one masked prediction; "
                     "none: matching only (the paper's ablation)", "diffusion",
                     ("diffusion", "mask", "none"))
    annotations: Path = opt("COIN.json", None, data=COIN)
    features: Path = opt("npz of clip embeddings, one row per window", None, data=COIN)
    text_embeddings: Path = opt("npz of the classes' text embeddings", None, data=COIN)
    videos: Path = opt("folder of videos, ID.mp4 and the like", None, data=HOWTO)
    captions: Path = opt("folder of ID.csv, ID.srt or ID.vtt, or caption.json", None, data=HOWTO)
    phrases: Path = opt("the pool: a phrase per line; default, in the embedded world, its own",
                        None, data=NARRATED)
    targets: str = opt("soft targets are the teacher's, of the frames (vision, the paper), of what "
                       "is said meanwhile (narration), or of their mean (both, the release)",
                       "vision", ("vision", "narration", "both"), data=NARRATED)
    ids: Path = opt("use only these videos: an id per line", None, data=HOWTO)
    clip: str = opt("the teacher: open_clip model, or local-dir:DIR", "ViT-B-16-quickgelu",
                    data=HOWTO)
    clip_weights: str = opt("open_clip's tag of its weights, or a file; default openai", None,
                            data=HOWTO)
    teacher_features: Path = opt("folder of the teacher's features, a row a second: `data.py "
                                 "teach` writes it; used where present", None, data=HOWTO)
    size: str = opt("of f and h: paper, ViT-B on 8 frames of 224 x 224; small, 4 frames of 32 x "
                    "32, as with --data toy", "paper", ("small", "paper"), data=HOWTO)
    augment: bool = opt("f sees a random square of every clip, mirrored in half of the draws; "
                        "otherwise the middle one, as in evaluation", True, data=HOWTO)
    encoder: str = opt("f: TimeSformer, or MViT-v2 (the paper's appendix)", "timesformer",
                       ("timesformer", "mvit"))
    init: Path = opt("start from these weights, as far as they fit: a run folder, a file of ours, "
                     "TimeSformer, DistantSup or ProcedureVRL, a ViT of ImageNet; or timm: the one "
                     "that the paper starts from, downloaded once", None)
    out: Path = opt("run folder: checkpoint.pt, config.json, metrics.jsonl", Path("runs/pretrain"))
    resume: bool = opt("go on from OUT/checkpoint.pt", False)
    seed: int = opt("of weights, batches and noise", 0)
    device: str = opt("auto: a CUDA GPU where there is one", "auto")
    toy_videos: int = opt("training videos of the embedded world", 6000)
    sgd_epochs: float = opt("epochs of SGD on the matching loss, the first stage", 0.25)
    match_epochs: float = opt("epochs of AdamW on the matching loss", 4.0)
    joint_epochs: float = opt("epochs of AdamW on the whole objective", 1.0)
    order_epochs: float = opt("epochs of AdamW on h alone, embeddings kept", 120.0)
    keep: int = opt("times each video is gone through for these, with other windows", 6)
    missing: int = opt("the most clips that are missing together in that stage, 1 to 3; the "
                       "paper's 1; evaluate.py --horizon H needs H", 1)
    batch: int = opt("videos per step; the paper's 128", 16)
    micro_batch: int = opt("clips that f encodes at once, its activations computed again for the "
                           "gradients: a third more time, memory of so many; default: all, kept",
                           None)
    order_batch: int = opt("rows per step of that stage", 256)
    sgd_lr: float = opt("peak learning rate of SGD; the release's 5e-3", 5e-3)
    lr: float = opt("peak learning rate of f with AdamW; the release's 5e-5", 2e-3)
    order_lr: float = opt("peak learning rate of h with AdamW", 4e-3)
    weight_decay: float = opt("of every stage; the release's 1e-4", 1e-2)
    tau: float = opt("temperature of the student's matching (Eq. 6); the paper's 0.02", 0.02)
    teacher_tau: float = opt("temperature of the soft targets; smaller makes them sharper; default "
                             "0.6 of the calibrated one: 0.05 in the embedded world, estimated "
                             "from the clips of a features file", None)
    workers: int = opt("processes that read videos ahead; 0: none", 0)
    max_unreadable: float = opt("share of the videos found that may be unreadable", 0.05)
    log_every: int = opt("steps between two rows of metrics.jsonl", 20)
    save_every: int = opt("steps between two checkpoints", 500)

    def __post_init__(self):
        for name in ("toy_videos", "keep", "batch", "order_batch", "log_every", "save_every"):
            check(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        check(1 <= self.missing <= 3, "missing", self.missing, "must be 1 to 3")
        for name in ("tau", "lr", "order_lr", "sgd_lr"):
            check(0 < getattr(self, name) < math.inf, name, getattr(self, name),
                  "must be above 0, and finite")
        for name in ("sgd_epochs", "match_epochs", "joint_epochs", "order_epochs", "weight_decay"):
            check(0 <= getattr(self, name) < math.inf, name, getattr(self, name),
                  "must be 0 or more, and finite")
        check(self.micro_batch is None or self.micro_batch >= 1, "micro_batch", self.micro_batch,
              "must be at least 1")
        check(self.teacher_tau is None or 0 < self.teacher_tau < math.inf, "teacher_tau",
              self.teacher_tau, "must be above 0, and finite")
        check(self.teacher_features is None or self.teacher_features.is_dir(), "teacher_features",
              self.teacher_features, "no such folder; `python data.py teach` makes one")
        check_common(self, {"toy": (), "howto100m": ("videos", "captions", "phrases"),
                            "coin": FEATURES}[self.data])
        check(self.encoder != "mvit" or self.data != "coin", "encoder", "mvit",
              "--data coin trains h alone: a features file is read by no encoder")
        check(self.order != "none" or self.data != "coin", "order", "none",
              "--data coin trains h alone: without it there is nothing to train")


@dataclass(frozen=True)
class FinetuneSettings:
    """Fine-tune a checkpoint with labels (paper, Sec. 4): a classifier, and h or f with it."""
    stage: str = opt("what to train; pretrain has settings of its own: --help", "finetune",
                     ("pretrain", "finetune"))
    task: str = opt("classify: the classifier on f's embedding; forecast, activity: h and the "
                    "classifier; f stays as it is, but with --data epic", "classify",
                    ("classify", "forecast", "activity"))
    init: Path = opt("begin with this checkpoint: a run folder, or a file, also a published one",
                     Path("runs/pretrain"))
    data: str = opt("toy: the embedded world; coin: COIN with videos, or with a features file; "
                    "epic: EPIC-Kitchens-100, verbs and nouns, f and the classifier", "toy",
                    ("toy", "coin", "epic"))
    annotations: Path = opt("COIN.json or a released csv (--data coin), EPIC_100_train.csv (epic)",
                            None)
    features: Path = opt("npz of clip embeddings, one row per window (--data coin)", None)
    text_embeddings: Path = opt("npz of the classes' text embeddings (--data coin)", None)
    videos: Path = opt("folder of videos, ID.mp4 and the like (--data coin, epic)", None)
    steps: Path = opt("names of the classes, line i is class i; default those in COIN.json", None)
    clip: str = opt("open_clip model that embeds the names: or local-dir:DIR", "ViT-B-16-quickgelu")
    clip_weights: str = opt("open_clip's tag of its weights, or a file; default openai", None)
    labels: float = opt("share of the labelled videos that is used, 0 to 1", 1.0)
    out: Path = opt("run folder; default runs/finetune-TASK", None)
    resume: bool = opt("go on from OUT/checkpoint.pt", False)
    seed: int = opt("of weights, batches, dropout and which labels are used", 0)
    device: str = opt("auto: a CUDA GPU where there is one", "auto")
    toy_videos: int = opt("training videos of the embedded world", 6000)
    min_steps: int = opt("of a forecast: leave out videos with fewer annotated steps", 2)
    epochs: float = opt("times each sample is seen; default the paper's 15, and 60 where a whole "
                        "video is one sample, that is for activities", None)
    batch: int = opt("samples per step; the paper's 64", 64)
    lr: float = opt("peak learning rate of AdamW", 1e-3)
    weight_decay: float = opt("of AdamW", 1e-2)
    dropout: float = opt("share of each block's output in h that is set to zero; a published h "
                         "has none", 0.1)
    workers: int = opt("processes that read videos ahead; 0: none", 0)
    max_unreadable: float = opt("share of the videos found that may be unreadable", 0.05)
    log_every: int = opt("steps between two rows of metrics.jsonl", 20)
    save_every: int = opt("steps between two checkpoints", 500)
    split = "train"                                    # not a setting: what the loaders ask for

    def __post_init__(self):
        if self.epochs is None:
            object.__setattr__(self, "epochs", 60.0 if self.task == "activity" else 15.0)
        for name in ("toy_videos", "batch", "log_every", "save_every"):
            check(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        for name in ("lr", "epochs"):
            check(0 < getattr(self, name) < math.inf, name, getattr(self, name),
                  "must be above 0, and finite")
        check(0 < self.labels <= 1, "labels", self.labels, "must be above 0 and at most 1")
        check(0 <= self.dropout < 1, "dropout", self.dropout, "must be 0 or more, and below 1")
        check(0 <= self.weight_decay < math.inf, "weight_decay", self.weight_decay,
              "must be 0 or more, and finite")
        check(self.min_steps >= 2, "min_steps", self.min_steps, "a forecast needs 2 steps or more")
        if self.out is None:
            object.__setattr__(self, "out", Path(f"runs/finetune-{self.task}"))
        check_labelled(self)


@dataclass(frozen=True)
class EvaluateSettings:
    """Measure a checkpoint: classification and forecasting, zero-shot or fine-tuned."""
    task: str = opt("what to measure; features: write a features file; default forecast, and "
                    "classify with --data epic", None,
                    ("forecast", "classify", "activity", "infill", "features"))
    data: str = opt("toy: the embedded world; coin: COIN with videos, or with a features file; "
                    "epic: EPIC-Kitchens-100, verbs and nouns", "toy", ("toy", "coin", "epic"))
    checkpoint: Path = opt("run folder, a checkpoint file of ours, or a published one",
                           Path("runs/pretrain"))
    annotations: Path = opt("COIN.json or a released csv, or EPIC's csv", None,
                            data=COIN + EPIC)
    features: Path = opt("npz of clip embeddings, one row per window", None, data=COIN)
    text_embeddings: Path = opt("npz of the classes' text embeddings", None, data=COIN)
    videos: Path = opt("folder of videos, ID.mp4 and the like (--data coin, epic)", None)
    ids: Path = opt("--task features: only these videos, an id per line", None)
    out: Path = opt("--task features: the file to write", Path("features.npz"))
    stride: float = opt("--task features: s between two windows", 4.0)
    steps: Path = opt("names of the classes, line i is class i; default those in COIN.json", None,
                      data=COIN)
    clip: str = opt("open_clip model that embeds the names, and is compared with: or local-dir:DIR",
                    "ViT-B-16-quickgelu")
    clip_weights: str = opt("open_clip's tag of its weights, or a file; default openai", None)
    split: str = opt("which videos", "test", ("test", "validation", "train"))
    toy_videos: int = opt("videos of the embedded world's split", 1000)
    samples: int = opt("M, Monte Carlo samples per forecast (Eq. 11)", 5)
    oracle: int = opt("the same, for the oracle rows: --oracle 5 is --samples 5", None)
    horizon: int = opt("--task forecast: how many of the next steps, denoised together, 1 to 3", 1)
    min_steps: int = opt("leave out videos with fewer annotated steps", 2)
    json: Path = opt("also write the numbers here", None)
    submission: Path = opt("also write the challenge's file here, FILE.zip", None, data=EPIC)
    seed: int = opt("of the noise", 0)
    device: str = opt("auto: a CUDA GPU where there is one", "auto")
    batch: int = opt("samples per step; changes speed and memory, not the result", 64)
    workers: int = opt("processes that read videos ahead; 0: none", 0)
    max_unreadable: float = opt("share of the videos found that may be unreadable", 0.05)

    def __post_init__(self):
        for name in ("toy_videos", "samples", "batch"):
            check(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        check(self.min_steps >= 2, "min_steps", self.min_steps, "a forecast needs 2 steps or more")
        check(1 <= self.horizon <= 3, "horizon", self.horizon, "must be 1 to 3")
        check(0 < self.stride < math.inf, "stride", self.stride, "must be above 0")
        if self.oracle is not None:
            check(self.oracle >= 1, "oracle", self.oracle, "must be at least 1")
            object.__setattr__(self, "samples", self.oracle)
        if self.task is None:
            task = "classify" if self.data == "epic" else "forecast"
            object.__setattr__(self, "task", task)
        check_labelled(self)
