"""The commands around data: `python data.py COMMAND`, each with its own --help.

A command is a class of flags and a function, which imports what is slow to import when it runs.
"""
import sys
from dataclasses import dataclass
from pathlib import Path

from support.command import DATA, WHAT, Settings, fail, opt, run
from support.flags import CLIP, RunSettings


@dataclass(frozen=True)
class CheckSettings(Settings):
    """Count what a list of COIN or EPIC-Kitchens-100 holds, and what of it is readable."""
    data: str = opt("kind of list", "coin", DATA, choices=("coin", "epic"))
    annotations: Path = opt("COIN.json, or EPIC_100_validation.csv and the like (epic)", None, DATA,
                            required=True)
    videos: Path = opt("folder of videos; without it only the list is counted", None, DATA)
    min_steps: int = opt("of a forecast: leave out videos with fewer annotated steps", 2, DATA,
                         low=2)
    json: Path = opt("also write the counts here", None, file=())
    workers: int = opt("processes that read videos", 0, low=0)


def check(settings):
    """Runs `data.py check`."""
    from files.check import report
    report(settings)


@dataclass(frozen=True)
class ShrinkSettings(Settings):
    """Small all-key-frame copies of videos; existing copies are left as they are."""
    videos: Path = opt("folder of videos", None, DATA, required=True)
    out: Path = opt("folder for the copies, ID.mp4", None, required=True, folder=True)
    fps: float = opt("frames per second of the copies", 1.0, above=0, high=1000)
    short_side: int = opt("pixels", 256, low=2)
    workers: int = opt("processes", 0, low=0)


def shrink(settings):
    """Runs `data.py shrink`."""
    from files.copies import shrink_all
    shrink_all(settings)


@dataclass(frozen=True)
class TeachSettings(Settings):
    """Cache the teacher's features of videos, one row a second, for train.py --teacher-features."""
    videos: Path = opt("folder of videos", None, DATA, required=True)
    out: Path = opt("folder of ID.npy; videos that have one are left out", None, required=True,
                    folder=True)
    clip: str = opt("the teacher: open_clip model, or local-dir:DIR", CLIP, DATA)
    clip_weights: str = opt("open_clip's tag of its weights, or a file; default openai", None, DATA)
    device: str = opt("auto: a CUDA GPU if there is one", "auto")
    workers: int = opt("processes that read videos ahead; 0: none", 0, low=0)


def teach(settings):
    """Runs `data.py teach`."""
    from files.copies import encode_all
    encode_all(settings)


@dataclass(frozen=True)
class ExportSettings(Settings):
    """The embedded world as real files: videos, captions, COIN.json, phrases and its teacher."""
    out: Path = opt("folder, empty or new", None, required=True, folder=True)
    train: int = opt("training videos; COIN.json makes a tenth of them validation", 6000, low=0)
    test: int = opt("test videos", 1000, low=0)
    workers: int = opt("processes", 0, low=0)


def export(settings):
    """Runs `data.py export-toy`."""
    from toy.export import export_toy
    export_toy(settings)


@dataclass(frozen=True)
class PhrasesSettings(Settings):
    """Collect verb phrases from narrations, for the pool that clips are matched with."""
    captions: Path = opt("folder of ID.csv (start,end,text), ID.srt or ID.vtt, or caption.json",
                         None, DATA, required=True)
    concreteness: Path = opt("table with columns Word and Conc.M (Brysbaert et al. 2014); without "
                             "it the third column is empty", None, DATA)
    top: int = opt("how many to keep, the most frequent; the paper's 9871", 9871, WHAT, low=2)
    min_count: int = opt("leave out phrases that occur less often", 12, WHAT, low=1)
    spacy_model: str = opt("name or folder of a spaCy model with a parser", "en_core_web_sm")
    out: Path = opt("file to write: phrase,count,concreteness per line", Path("phrases.txt"),
                    file=())


def phrases(settings):
    """Runs `data.py phrases`."""
    from files.phrases import collect
    collect(settings)


@dataclass(frozen=True)
class FeaturesSettings(RunSettings):
    """Write the embeddings of 9-s windows of whole videos as a features file."""
    checkpoint: Path = opt("run folder, a checkpoint file of ours, or a published one",
                           Path("runs/pretrain"), WHAT)
    videos: Path = opt("folder of videos; without it the embedded world", None, DATA)
    ids: Path = opt("only these videos, an id per line", None, DATA)
    split: str = opt("of the embedded world", "test", DATA, choices=("test", "validation", "train"))
    toy_videos: int = opt("videos of the embedded world's split", 1000, DATA, low=1)
    stride: float = opt("s between two windows", 4.0, WHAT, above=0)
    out: Path = opt("the file to write", Path("features.npz"), file=())


def features(settings):
    """Runs `data.py features`."""
    from evaluation.embedding import write_features
    write_features(settings)


@dataclass(frozen=True)
class TextSettings(Settings):
    """Embed phrases, or step names, with CLIP: the mean over 28 prompts, not normalized."""
    phrases: Path = opt("file with a phrase per line, or phrase,count,concreteness", None, DATA,
                        required=True)
    clip: str = opt("open_clip model, or local-dir:DIR with open_clip_config.json and weights; "
                    "OpenAI's weights need a -quickgelu model", CLIP, DATA)
    clip_weights: str = opt("open_clip's tag of the weights (downloaded once), or a file; default "
                            "openai, and DIR's own with local-dir:DIR", None, DATA)
    out: Path = opt("npz to write: names (K,) and embeddings (K, D)", Path("texts.npz"), file=())
    device: str = opt("auto: a CUDA GPU if there is one", "auto")


def texts(settings):
    """Runs `pseudo_labels.py`."""
    from files.copies import write_texts
    write_texts(settings)


COMMANDS = {"check": (check, CheckSettings), "shrink": (shrink, ShrinkSettings),
            "teach": (teach, TeachSettings), "export-toy": (export, ExportSettings),
            "phrases": (phrases, PhrasesSettings), "features": (features, FeaturesSettings)}


def main():
    """`python data.py COMMAND ...`"""
    given = sys.argv[1] if len(sys.argv) > 1 else "nothing"
    if given in ("-h", "--help"):
        print("usage: data.py COMMAND [flags]; data.py COMMAND --help shows the flags\n")
        for name, (_, flags) in COMMANDS.items():
            print(f"  {name:12}{flags.__doc__}")
    elif given not in COMMANDS:
        sys.exit(fail("data.py", f"{given}: not a command; use one of {', '.join(COMMANDS)}", 2))
    else:
        run(*COMMANDS[given], sys.argv[2:], command=given)


def embed_texts():
    """`python pseudo_labels.py ...`"""
    run(texts, TextSettings)
