"""Settings: one frozen dataclass per script is its defaults, its command line, its help and checks.

How they are read from a command line, and how a script ends on a wrong one, is in program.py.
"""
import math
from dataclasses import dataclass, fields
from pathlib import Path

from program import check, opt

HOWTO, COIN, EPIC = ("howto100m",), ("coin",), ("epic",)                 # kinds of --data
NARRATED = ("toy", "howto100m")                                # those with narrations
FEATURES = ("annotations", "text_embeddings", "features")      # a features file and what it needs
PICTURES = (".png", ".pdf", ".svg")                            # kinds of figures


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


def check_files(settings, *names, suffixes=None):
    """BadInput now, not after the work, if a file could not be written, or is of no such kind."""
    for name in names:
        path = getattr(settings, name)
        check(path is None or path.parent.is_dir() and not path.is_dir(), name, path,
              "is a folder, or there is none to put it in; name a file in a folder that is there")
        check(path is None or not suffixes or path.suffix in suffixes, name, path,
              f"must end in {', '.join(suffixes or ())}")


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
    epochs: float = opt("times each sample is seen", 15.0)
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


@dataclass(frozen=True)
class PhrasesSettings:
    """Collect verb phrases from narrations, for the pool that clips are matched with."""
    captions: Path = opt("folder of ID.csv (start,end,text), ID.srt or ID.vtt, or caption.json",
                         None)
    out: Path = opt("file to write: phrase,count,concreteness per line", Path("phrases.txt"))
    top: int = opt("keep so many, the most frequent; the paper's 9871", 9871)
    min_count: int = opt("leave out phrases that were said less often", 12)
    concreteness: Path = opt("table with columns Word and Conc.M (Brysbaert et al. 2014); without "
                             "it the third column is empty", None)
    min_concreteness: float = opt("leave out phrases whose most concrete word has less, 1 to 5; "
                                  "those released have at least 4.2", 0.0)
    spacy_model: str = opt("name or folder of a spaCy model with a parser", "en_core_web_sm")

    def __post_init__(self):
        check(self.captions is not None, "captions", "is missing", "a folder of narrations, or a "
              "caption.json, is needed")
        check(self.top >= 2, "top", self.top, "must be at least 2")
        check(self.min_count >= 1, "min_count", self.min_count, "must be at least 1")
        check(0 <= self.min_concreteness <= 5, "min_concreteness", self.min_concreteness,
              "must be 0 to 5")
        check(self.min_concreteness == 0 or self.concreteness is not None, "min_concreteness",
              self.min_concreteness, "--concreteness is needed beside it")
        check(self.out.parent.is_dir(), "out", self.out, f"there is no folder {self.out.parent}")


@dataclass(frozen=True)
class TextSettings:
    """Embed phrases, or step names, with CLIP: the mean over 28 prompts, not normalised."""
    phrases: Path = opt("file with a phrase per line, or phrase,count,concreteness", None)
    out: Path = opt("npz to write: names (K,) and embeddings (K, D)", Path("texts.npz"))
    clip: str = opt("open_clip model, or local-dir:DIR with open_clip_config.json and weights; "
                    "OpenAI's weights need a -quickgelu model", "ViT-B-16-quickgelu")
    clip_weights: str = opt("open_clip's tag of the weights (downloaded once), or a file; default "
                            "openai, and DIR's own with local-dir:DIR", None)
    device: str = opt("auto: a CUDA GPU where there is one", "auto")

    def __post_init__(self):
        check(self.phrases is not None, "phrases", "is missing", "a file with a phrase per line is "
              "needed; phrases.py writes one")
        check(self.out.parent.is_dir(), "out", self.out, f"there is no folder {self.out.parent}")


@dataclass(frozen=True)
class WeightsSettings:
    """Write a checkpoint of TimeSformer, DistantSup or ProcedureVRL as a file of ours."""
    source: Path = opt("the file: .pyth, .pth, .safetensors")
    target: Path = opt("the file to write, for --checkpoint and --init")
    heads: int = opt("attention heads of TimeSformer, which its weights do not tell; default what "
                     "the file says, else 64 wide each (12 at 768)", None)

    def __post_init__(self):
        check(self.heads is None or self.heads >= 1, "heads", self.heads, "must be at least 1")
        check(self.target.parent.is_dir(), "target", self.target,
              f"there is no folder {self.target.parent}")


@dataclass(frozen=True)
class CheckSettings:
    """Count what a list of COIN holds, and what of it is there and readable."""
    data: str = opt("kind of list", "coin", ("coin", "epic"))
    annotations: Path = opt("COIN.json, or EPIC_100_validation.csv and the like (epic)", None)
    videos: Path = opt("folder of videos; without it only the list is counted", None)
    min_steps: int = opt("of a forecast: leave out videos with fewer annotated steps", 2)
    workers: int = opt("processes that read videos", 0)
    json: Path = opt("also write the counts here", None)

    def __post_init__(self):
        check(self.annotations is not None, "annotations", "is missing",
              "COIN.json, or with --data epic one of its csv, is needed")


@dataclass(frozen=True)
class ShrinkSettings:
    """Small all-key-frame copies of videos; those that are there already are left as they are."""
    videos: Path = opt("folder of videos", None)
    out: Path = opt("folder for the copies, ID.mp4", None)
    fps: float = opt("frames per second of the copies", 1.0)
    short_side: int = opt("pixels", 256)
    workers: int = opt("processes", 0)

    def __post_init__(self):
        for name in ("videos", "out"):
            check(getattr(self, name) is not None, name, "is missing", "a folder is needed")
        check(0 < self.fps <= 1000, "fps", self.fps, "must be above 0")
        check(self.short_side >= 2, "short_side", self.short_side, "must be at least 2")


@dataclass(frozen=True)
class TeachSettings:
    """Keep the teacher's features of videos, one row a second, for train.py --teacher-features."""
    videos: Path = opt("folder of videos", None)
    out: Path = opt("folder of ID.npy; videos that have one are left out", None)
    clip: str = opt("the teacher: open_clip model, or local-dir:DIR", "ViT-B-16-quickgelu")
    clip_weights: str = opt("open_clip's tag of its weights, or a file; default openai", None)
    device: str = opt("auto: a CUDA GPU where there is one", "auto")
    workers: int = opt("processes that read videos ahead; 0: none", 0)

    def __post_init__(self):
        for name in ("videos", "out"):
            check(getattr(self, name) is not None, name, "is missing", "a folder is needed")


@dataclass(frozen=True)
class ExportSettings:
    """The embedded world as real files: videos, captions, COIN.json, phrases and its teacher."""
    out: Path = opt("folder, empty or new", None)
    train: int = opt("training videos; COIN.json makes a tenth of them validation", 6000)
    test: int = opt("test videos", 1000)
    workers: int = opt("processes", 0)

    def __post_init__(self):
        check(self.out is not None, "out", "is missing", "a folder is needed")
        check(self.train >= 0 and self.test >= 0, "train", self.train, "must be 0 or more")


@dataclass(frozen=True)
class PredictSettings:
    """The steps that one video shows, and several futures it may take; any list of steps does."""
    video: Path = opt("the video; without one, a test video of the embedded world, and the truth "
                      "beside the forecast", None, flag=False)
    steps: Path = opt("the steps to choose among, one per line; default those of the embedded "
                      "world, for a checkpoint of it", None)
    text_embeddings: Path = opt("npz of such steps and their embeddings, in place of --steps and "
                                "the teacher: pseudo_labels.py writes it once", None)
    checkpoint: Path = opt("run folder, a checkpoint file of ours, or a published one",
                           Path("runs/pretrain"))
    clip: str = opt("open_clip model that embeds the steps, that of the checkpoint's training: or "
                    "local-dir:DIR", "ViT-B-16-quickgelu")
    clip_weights: str = opt("open_clip's tag of its weights, or a file; default openai", None)
    samples: int = opt("M, Monte Carlo samples (Eq. 11): so many futures", 50)
    horizon: int = opt("steps of a future", 3)
    at: float = opt("s: forecast from here, where the observed part ends; default the end of the "
                    "video", None)
    json: Path = opt("also write the forecast here", None)
    figure: Path = opt("also draw it: FILE.png, .pdf or .svg (needs matplotlib)", None)
    keyframes: Path = opt("also paint the likeliest next steps from the last observed frame, into "
                          "this folder (needs diffusers and transformers)", None)
    keyframe_model: str = opt("a Stable Diffusion model of diffusers: a name of the hub, or a "
                              "folder", "stable-diffusion-v1-5/stable-diffusion-v1-5")
    seed: int = opt("of the noise; without a video also which test video, and of its pixels", 0)
    device: str = opt("auto: a CUDA GPU where there is one", "auto")

    def __post_init__(self):
        for name in ("samples", "horizon"):
            check(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        check(self.at is None or 0 < self.at < math.inf, "at", self.at, "must be above 0 s")
        check(0 <= self.seed < 2 ** 32, "seed", self.seed, "must be 0 to 2^32 - 1")
        check(self.steps is None or self.text_embeddings is None, "steps", self.steps,
              "--text-embeddings is given as well, with steps of its own; give one of them")
        check_files(self, "json")
        check_files(self, "figure", suffixes=PICTURES)
        check(self.keyframes is None or not self.keyframes.is_file(), "keyframes", self.keyframes,
              "is a file; name a folder")


@dataclass(frozen=True)
class FiguresSettings:
    """Draw a run's training curves, or its sampled next steps beside the true ones."""
    what: str = opt("training: curves of RUN/metrics.jsonl; distributions: next steps, sampled and "
                    "true, in the embedded world", choices=("training", "distributions"))
    run: Path = opt("the run folder", Path("runs/pretrain"))
    out: Path = opt("file to write: .png, .pdf or .svg; default WHAT.png", None)
    samples: int = opt("distributions: Monte Carlo samples per forecast", 200)
    seed: int = opt("distributions: of the noise, and the first of six test videos", 0)
    device: str = opt("auto: a CUDA GPU where there is one", "auto")

    def __post_init__(self):
        check(self.samples >= 1, "samples", self.samples, "must be at least 1")
        check(0 <= self.seed < 2 ** 32, "seed", self.seed, "must be 0 to 2^32 - 1")
        if self.out is None:
            object.__setattr__(self, "out", Path(f"{self.what}.png"))
        check_files(self, "out", suffixes=PICTURES)


@dataclass(frozen=True)
class BenchmarkSettings:
    """Measure speed and memory on this machine, ours beside others, in one run."""
    parts: str = opt("what to measure, separated by commas: encoder, sampling, step, growth, "
                     "loader (needs ffmpeg), memory, start", "loader")
    size: str = opt("of f and h: paper, ViT-B on 8 frames of 224 x 224; small, 4 frames of 32 x 32",
                    "paper", ("small", "paper"))
    batch: int = opt("encoder: clips at once; step: videos; default 1, on a GPU 16", None)
    micro_batch: int = opt("step: as in train.py", None)
    precision: str = opt("of matrix products; default bfloat16 on a GPU, else float32", None,
                         ("float32", "bfloat16"))
    compiled: bool = opt("encoder: by torch.compile as well (on a CPU it needs a compiler)", False)
    device: str = opt("auto: a CUDA GPU where there is one", "auto")
    videos: Path = opt("loader: folder of videos to be read, besides the one made here", None)
    seconds: float = opt("loader, step: length of that one", 180.0)
    repeats: int = opt("rounds, after one to warm up; medians are shown", 5)
    json: Path = opt("also write the numbers here", None)

    def __post_init__(self):
        for part in self.parts.split(","):
            check(part in ("encoder", "sampling", "step", "growth", "loader", "memory", "start"),
                  "parts", self.parts,
                  "must be some of encoder, sampling, step, growth, loader, memory, start")
        for name in ("batch", "micro_batch"):
            value = getattr(self, name)
            check(value is None or value >= 1, name, value, "must be at least 1")
        check(1 <= self.seconds <= 3600, "seconds", self.seconds, "must be 1 to 3600")
        check(self.repeats >= 1, "repeats", self.repeats, "must be at least 1")


@dataclass(frozen=True)
class TablesSettings:
    """The paper's tables, ours beside them: every run they need, made once and kept."""
    tables: str = opt("which, separated by commas: forecasting, classification, epic, ablation, "
                      "inference, activity, step-source, backbone, targets, concepts, "
                      "open-vocabulary; or all", "all", flag=False)
    seeds: str = opt("of the runs, separated by commas", "100,101,102,103,104")
    split: str = opt("which videos are evaluated; choose settings on validation",
                     "test", ("test", "validation"))
    toy_videos: int = opt("training videos of the embedded world", 2000)
    test_videos: int = opt("videos of its split that are evaluated", 500)
    jobs: int = opt("runs at a time, with one thread each", 2)
    out: Path = opt("folder of the runs and of tables.md, tables.json, open-vocabulary.png",
                    Path("runs/tables"))
    rows: str = opt("JSON files of evaluate.py, separated by commas: a row for each, and no runs "
                    "beside those that are there", None)
    steps: Path = opt("with --rows or alone: the label set, a step per line, for concepts and "
                      "open-vocabulary", None)
    phrases: Path = opt("and the pool of its pre-training, a phrase per line", None)
    device: str = opt("auto: a CUDA GPU where there is one", "auto")

    def __post_init__(self):
        for name in ("toy_videos", "test_videos", "jobs"):
            check(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        seeds = self.seeds.split(",")
        check(all(seed.isdecimal() and int(seed) < 2 ** 32 for seed in seeds), "seeds", self.seeds,
              "must be numbers from 0, separated by commas")
        check((self.steps is None) == (self.phrases is None), "steps", self.steps,
              "give --steps and --phrases together, or none of them")
        check(self.out.parent.is_dir() or self.out.parent == Path("runs"), "out", self.out,
              f"there is no folder {self.out.parent}")
