"""The commands of the embedded world: `python -m toy COMMAND`, each a class of flags."""
from dataclasses import dataclass
from pathlib import Path

from support.command import Settings, dispatch, opt


@dataclass(frozen=True)
class ExportSettings(Settings):
    """The embedded world as real files: videos, captions, COIN.json, phrases and its teacher."""
    out: Path = opt("folder, empty or new", None, required=True, folder=True)
    train: int = opt("training videos; a tenth become validation, by their ids", 6000, low=0)
    test: int = opt("test videos", 1000, low=0)
    workers: int = opt("processes", 0, low=0, high=256)


@dataclass(frozen=True)
class TeacherSettings(Settings):
    """Train the embedded world's teacher again: 200 steps on pictures, a minute on one CPU core."""
    out: Path = opt("file to write", Path(__file__).with_name("teacher.safetensors"), file=())


COMMANDS = {"export": ExportSettings, "teacher": TeacherSettings}


def start(settings):
    """Run the command that has these flags."""
    from toy.export import export_toy
    from toy.teacher import make
    {ExportSettings: export_toy, TeacherSettings: make}[type(settings)](settings)


if __name__ == "__main__":
    dispatch(COMMANDS, start)
