"""EPIC-Kitchens-100: actions, each a verb and a noun, in long videos of kitchens.

Lists: the official EPIC_100_train.csv, _validation.csv and _test_timestamps.csv (no labels), one
split each. Videos: P01_101.MP4 and the like, in any subfolder.
"""
from typing import NamedTuple

from data import Video
from files.listings import load_epic
from files.sources import VideoSource, require_videos
from files.video import find_videos


class Action(NamedTuple):
    """One action; a data.Step with a name."""
    start: float                       # s
    end: float                         # s
    label: tuple                       # (verb, noun); (None, None) in the test list
    name: str                          # narration_id, P01_11_0


def split_of(path):
    """Which split an official csv is, by its name; validation if the name does not say."""
    return next((split for split in ("train", "test") if split in path.name), "validation")


def open_actions(annotation_file, folder, view, needed=True):
    """The videos of a csv, each with its actions in the file's order -> VideoSource."""
    actions = {}
    for row in load_epic(annotation_file):
        actions.setdefault(row.video, []).append(Action(row.start, row.end, (row.verb, row.noun),
                                                        row.name))
    source = VideoSource([Video(name, steps=tuple(rows)) for name, rows in actions.items()],
                         find_videos(folder), view)
    return require_videos(source, folder) if needed else source
