"""Settings of the optional scripts; those of train.py and evaluate.py are in settings.py."""
import math
from dataclasses import dataclass
from pathlib import Path

from support.command import check, opt

PICTURES = (".png", ".pdf", ".svg")                            # kinds of figures


def check_files(settings, *names, suffixes=None):
    """BadInput now, not after the work, if a file could not be written, or is of no such kind."""
    for name in names:
        path = getattr(settings, name)
        check(path is None or path.parent.is_dir() and not path.is_dir(), name, path,
              "is a folder, or there is none to put it in; name a file in a folder that is there")
        check(path is None or not suffixes or path.suffix in suffixes, name, path,
              f"must end in {', '.join(suffixes or ())}")


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
    """Draw training curves, next steps sampled beside true ones, or accuracy by share of labels."""
    what: str = opt("training: curves of RUN/metrics.jsonl; distributions: next steps, sampled and "
                    "true, in the embedded world; labels: of evaluate.py's JSON files in RUN",
                    choices=("training", "distributions", "labels"))
    run: Path = opt("the run folder; labels: a folder of JSON files", Path("runs/pretrain"))
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
