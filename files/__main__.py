"""The commands around data: `python -m files COMMAND`, each a class of flags; `start` runs it."""
from dataclasses import dataclass
from pathlib import Path

from support.command import DATA, WHAT, Settings, dispatch, opt
from support.flags import CLIP


@dataclass(frozen=True)
class CheckSettings(Settings):
    """Count what annotations or captions hold, and what of it is readable."""
    data: str = opt("kind of list", "coin", DATA, choices=("coin", "epic", "howto100m"))
    annotations: Path = opt("COIN.json, or EPIC's csv", None, DATA, data=("coin", "epic"))
    captions: Path = opt("ID.csv, .srt or .vtt; or caption.json", None, DATA, data=("howto100m",))
    videos: Path = opt("folder of videos; without it only the list is counted", None, DATA)
    json: Path = opt("also write the counts here", None, file=())
    workers: int = opt("processes that read videos", 0, low=0, high=256, videos=())

    def __post_init__(self):
        super().__post_init__()
        self.require(["captions" if self.data == "howto100m" else "annotations"], "the command")


@dataclass(frozen=True)
class ShrinkSettings(Settings):
    """Small all-key-frame copies of videos; existing copies that are whole are left as they are."""
    videos: Path = opt("folder of videos", None, DATA, required=True)
    out: Path = opt("folder for the copies, ID.mp4", None, required=True, folder=True)
    fps: float = opt("frames per second of the copies", 1.0, low=0.001, high=1000)
    short_side: int = opt("pixels", 256, low=2)
    workers: int = opt("processes", 0, low=0, high=256)


@dataclass(frozen=True)
class TeachSettings(Settings):
    """Cache the teacher's features of videos, one row a second, for train.py --teacher-features."""
    videos: Path = opt("folder of videos", None, DATA, required=True)
    out: Path = opt("folder of ID.npz; those there are kept", None, required=True, folder=True)
    clip: str = opt("the teacher: open_clip model, or local-dir:DIR", CLIP, DATA)
    clip_weights: str = opt("open_clip's tag of its weights, or a file; default openai", None, DATA)
    device: str = opt("auto: a CUDA GPU if there is one", "auto")
    workers: int = opt("processes that read videos ahead; 0: none", 0, low=0, high=256)


@dataclass(frozen=True)
class PhrasesSettings(Settings):
    """Collect verb phrases from narrations, for the pool that clips are matched with."""
    captions: Path = opt("ID.csv, ID.srt or ID.vtt; or caption.json", None, DATA, required=True)
    top: int = opt("how many to keep, the most frequent; the paper's 9871", 9871, WHAT, low=2)
    min_count: int = opt("leave out phrases that occur less often", 12, WHAT, low=1)
    spacy_model: str = opt("name or folder of a spaCy model with a parser", "en_core_web_sm")
    out: Path = opt("file to write: `phrase,count,` per line", Path("phrases.txt"), file=())


@dataclass(frozen=True)
class EmbedSettings(Settings):
    """Embed phrases, or step names, with CLIP: the mean over 28 prompts, not normalized."""
    phrases: Path = opt("phrase per line, or phrase,count,concreteness", None, DATA, required=True)
    clip: str = opt("the teacher: open_clip model, or local-dir:DIR", CLIP, DATA)
    clip_weights: str = opt("open_clip's tag of its weights, or a file; default openai", None, DATA)
    out: Path = opt("npz to write: names (K,) and embeddings (K, D)", Path("texts.npz"), file=())
    device: str = opt("auto: a CUDA GPU if there is one", "auto")


COMMANDS = {"check": CheckSettings, "shrink": ShrinkSettings, "teach": TeachSettings,
            "phrases": PhrasesSettings, "embed": EmbedSettings}


def start(settings):
    """Run the command that has these flags."""
    from files.check import report
    from files.copies import encode_all, shrink_all, write_texts
    from files.phrases import collect
    {CheckSettings: report, ShrinkSettings: shrink_all, TeachSettings: encode_all,
     PhrasesSettings: collect, EmbedSettings: write_texts}[type(settings)](settings)


if __name__ == "__main__":
    dispatch(COMMANDS, start)
