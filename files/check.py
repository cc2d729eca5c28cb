"""`python -m files check`: what annotations or captions hold, and what of it can be read."""
import itertools
import json

from tqdm import tqdm

from data import Video, samples_of
from files import annotations, listings
from files.captions import Captions
from files.video import Unreadable, duration, find_videos, read_frames
from support.command import BadInput, write_json
from support.workers import prefetch


def read_ends(video):
    """Read the first picture of (id, path, end) and the one at `end` s; None: where it ends."""
    _, path, end = video
    read_frames(path, [0.0, duration(path) if end is None else end], 32)


def try_videos(settings, videos):
    """{id: path} of the videos found, {id: reason} of the unreadable; None, {} without --videos."""
    if settings.videos is None:
        return None, {}
    ends = {video.name: max((step.end for step in video.steps), default=None) for video in videos}
    paths = find_videos(settings.videos)
    present = [(name, paths[name], end) for name, end in ends.items() if name in paths]
    tried = prefetch(read_ends, present, settings.workers, "read", (Unreadable,))
    return paths, {name: str(error) for error, (name, *_) in zip(tried, present) if error}


def count_videos(listed, paths, bad):
    """{"videos", "found", "missing", "unreadable"} of a set of ids."""
    counts = (None,) * 3 if paths is None else map(len, (
        listed & paths.keys(), listed - paths.keys(), listed & bad.keys()))
    return {"videos": len(listed), **dict(zip(("found", "missing", "unreadable"), counts))}


def check_epic(settings):
    """A csv of EPIC-Kitchens-100: its actions and videos -> counts, unreadable videos."""
    videos = listings.load_epic(settings.annotations)
    paths, bad = try_videos(settings, videos)
    actions = sum(len(video.steps) for video in videos)
    return {"segments": {listings.epic_split(settings.annotations): actions},
            "verbs": listings.VERBS, "nouns": listings.NOUNS,
            **count_videos({video.name for video in videos}, paths, bad)}, bad


def check_coin(settings):
    """COIN.json: what each task and split lists -> counts, unreadable videos."""
    videos, names = annotations.load_coin(settings.annotations)
    videos = [video for video in videos if video.steps]
    paths, bad = try_videos(settings, videos)
    result = {task: {} for task in ("classify", "forecast", "activity")}
    for task, split in itertools.product(result, ("train", "validation", "test")):
        chosen = [video for video in videos if video.split == split]
        samples = samples_of(task, chosen)
        listed = {chosen[sample.video].name for sample in samples}
        result[task][split] = {"listed": len(samples), **count_videos(listed, paths, bad)}
    annotations.note_unnamed(names)
    return result | {"classes": len(names), "distinct_texts": len(set(names))}, bad


def check_captions(settings):
    """Narrations and their videos -> counts, unreadable files and videos."""
    captions = Captions(settings.captions)
    wrong, sentences, seconds = {}, 0, 0.0
    for name in tqdm(captions, "captions", mininterval=1):
        try:
            ends = [end for _, end, _ in captions.sentences(name)]
            sentences, seconds = sentences + len(ends), seconds + max(ends, default=0.0)
        except BadInput as error:
            wrong[name] = str(error)
    paths, bad = try_videos(settings, [Video(name) for name in captions])
    return {"captions": len(captions), "unreadable_captions": len(wrong), "sentences": sentences,
            "hours": round(seconds / 3600, 2),
            **count_videos({*captions}, paths, bad)}, wrong | bad


def report(settings):
    """Print what a list holds, and (with --videos) what of it is present."""
    checks = {"coin": check_coin, "epic": check_epic, "howto100m": check_captions}
    result, bad = checks[settings.data](settings)
    write_json(settings.json, result)
    print(json.dumps(result, indent=2))
    for name, reason in bad.items():
        print(f"unreadable: {name}: {reason}")
