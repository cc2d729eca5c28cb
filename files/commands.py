"""Look after data: `python data.py check | shrink | teach | export-toy`.

    check       what of a list is there, found, missing and unreadable, before anything is trained
    shrink      small copies of videos, all key frames: fast to read at any time
    teach       the teacher's features of videos, kept: each epoch would compute them again
    export-toy  the embedded world as the files that real data come as
"""
import functools
import json
import sys
from fractions import Fraction

import settings_optional as s
from support.command import BadInput, fail, pick_device, run, write_atomically, write_json

SPLITS = ("train", "validation", "test")
BORDER = 2, 3                 # pixels around an exported picture of 32: the middle view (video.py)
                              # of the 37 is the 32 within


# ------------------------------------------------------------------------------------------------
# check
# ------------------------------------------------------------------------------------------------
def readable(paths, ends, name):
    """(id, None), or (id, reason) where the first or the last picture needed cannot be read."""
    from files.video import Unreadable, read_frames
    try:
        read_frames(paths[name], [0.0, ends[name]], 32)
    except (Unreadable, OSError) as error:
        return name, str(error)
    return name, None


def read_ends(settings, ends):
    """Which videos can be read to where their annotations end: ends {id: s}.

    Returns: {id: path} of those found, and {id: reason} of the unreadable; None, {} without
             --videos.
    """
    from tqdm import tqdm
    from support.workers import prefetch
    if settings.videos is None:
        return None, {}
    from files.video import find_videos
    paths = find_videos(settings.videos)
    there = [name for name in ends if name in paths]
    read = prefetch(functools.partial(readable, paths, ends), there, settings.workers)
    read = tqdm(read, desc="read", total=len(there), mininterval=1)
    return paths, {name: reason for name, reason in read if reason}


def count_videos(listed, paths, bad):
    """{"videos", "found", "missing", "unreadable"} of a set of ids."""
    found = None if paths is None else len(listed & paths.keys())
    return {"videos": len(listed), "found": found,
            "missing": None if paths is None else len(listed) - found,
            "unreadable": None if paths is None else len(listed & bad.keys())}


def check(settings):
    """What a list holds, and (with --videos) what is there of it."""
    result, bad, unnamed = {"coin": check_coin, "epic": check_epic}[settings.data](settings)
    print(json.dumps(result, indent=2))
    if unnamed:
        print(f"unnamed: {len(unnamed)} of {result['classes']} classes, that no step has (id "
              f"{', '.join(map(str, unnamed[:5]))}{', ..' * (len(unnamed) > 5)}): they are chosen "
              "among with an empty text; --steps FILE names all")
    for name, reason in bad.items():
        print(f"unreadable: {name}: {reason}")
    if settings.json:
        write_json(settings.json, result)


def check_epic(settings):
    """A csv of EPIC-Kitchens-100: its actions and videos -> counts, unreadable, unnamed classes."""
    from files import epic
    from files import listings
    segments = listings.load_epic(settings.annotations)
    ends = {}
    for segment in segments:
        ends[segment.video] = max(segment.end, ends.get(segment.video, 0.0))
    paths, bad = read_ends(settings, ends)
    return {"segments": {epic.split_of(settings.annotations): len(segments)},
            "verbs": listings.VERBS, "nouns": listings.NOUNS,
            **count_videos(ends.keys(), paths, bad)}, bad, []


def check_coin(settings):
    """COIN.json: what each task and split lists -> counts, unreadable videos, unnamed classes."""
    from files import annotations
    import tasks
    videos, names = annotations.load_coin(settings.annotations)
    videos = [video for video in videos if video.steps]
    paths, bad = read_ends(settings, {video.name: max(step.end for step in video.steps)
                                      for video in videos})
    result = {}
    for task in ("classify", "forecast", "activity"):
        result[task] = {}
        for split in SPLITS:
            chosen = [video for video in videos if video.split == split]
            samples = tasks.samples_of(task, chosen, settings.min_steps)
            listed = {chosen[sample.video].name for sample in samples}
            result[task][split] = {"listed": len(samples), **count_videos(listed, paths, bad)}
    unnamed = [number for number, name in enumerate(names, start=1) if not name]
    return result | {"classes": len(names), "distinct_texts": len(set(names))}, bad, unnamed


# ------------------------------------------------------------------------------------------------
# shrink and teach: a file in --out for each video of --videos
# ------------------------------------------------------------------------------------------------
def for_each_video(settings, suffix, make, keep):
    """Fill the folder --out; videos that have ID`suffix` there are left out, unreadable ones named.

    make: callable, (id, path) -> (id, made, None) or (id, None, reason), called in the workers.
    keep: callable, (path of ID`suffix`, made), called here.
    """
    from tqdm import tqdm
    from files.video import find_videos
    from support.workers import prefetch
    found = find_videos(settings.videos)
    if not found:
        raise BadInput(f"--videos {settings.videos}: no video below it")
    settings.out.mkdir(parents=True, exist_ok=True)
    todo = [(name, path) for name, path in found.items()
            if not (settings.out / f"{name}{suffix}").exists()]
    bad = {}
    for name, made, reason in tqdm(prefetch(make, todo, settings.workers), total=len(todo),
                                   desc=f"write {suffix}", mininterval=1):
        if reason:
            bad[name] = reason
        else:
            keep(settings.out / f"{name}{suffix}", made)
    for name, reason in bad.items():
        print(f"unreadable: {name}: {reason}")
    print(f"{settings.out}: {len(todo) - len(bad)} made, {len(found) - len(todo)} were there, "
          f"{len(bad)} unreadable")
    if bad and len(bad) == len(found):
        raise BadInput(f"--videos {settings.videos}: not one of {len(found)} videos can be read")


def shrink_one(settings, item):
    """The copy of one video, written here: (id, None, None), or (id, None, reason)."""
    from files.video import Unreadable, shrink
    name, source = item
    try:
        shrink(source, settings.out / f"{name}.mp4", settings.fps, settings.short_side)
    except Unreadable as error:
        return name, None, str(error)
    return name, None, None


def shrink_all(settings):
    """Small copies of all videos of a folder."""
    for_each_video(settings, ".mp4", functools.partial(shrink_one, settings),
                   lambda path, made: None)


def every_second(size, item):
    """One video as the teacher sees it at 0.5, 1.5, ... s: id, (n, 3, size, size) uint8, None."""
    import numpy as np
    from files.video import Unreadable, duration, evaluation_view, read_frames, short_side_for
    name, path = item
    try:
        times = np.arange(0.5, max(duration(path), 1.0))
        frames = read_frames(path, times, short_side_for(size))
    except (Unreadable, OSError) as error:
        return name, None, str(error)
    return name, evaluation_view(frames, size), None


def teach_all(settings):
    """The teacher's features of a folder's videos: ID.npy, (n, D) float16, row i = second i."""
    import numpy as np
    from pseudo_labels import open_teacher
    teacher = open_teacher(settings.clip, settings.clip_weights, pick_device(settings.device))

    def keep(path, frames):
        rows = np.concatenate([teacher.encode_frames(part).cpu().numpy()
                               for part in frames.split(256)])
        write_atomically(path, lambda file: np.save(file, rows.astype(np.float16)))

    for_each_video(settings, ".npy", functools.partial(every_second, teacher.size), keep)


# ------------------------------------------------------------------------------------------------
# export-toy
# ------------------------------------------------------------------------------------------------
def write_video(path, frames, fps):
    """Frames (n, 3, H, W) uint8 as H.264, with a border, so that the middle view is all of them.

    Without loss (crf 0): the noise of the pixels is part of what makes them hard.
    """
    import av
    import numpy as np
    pictures = np.pad(frames.transpose(0, 2, 3, 1), ((0, 0), BORDER, BORDER, (0, 0)), "edge")

    def write(file):
        with av.open(file, "w", format="mp4") as container:
            stream = container.add_stream("libx264", rate=Fraction(fps))
            stream.height, stream.width, stream.pix_fmt = *pictures.shape[1:3], "yuv444p"
            stream.options = {"crf": "0", "preset": "ultrafast"}
            stream.codec_context.thread_count = 1
            for picture in pictures:
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
            container.mux(stream.encode())
    write_atomically(path, write)


def export_one(out, item):
    """One video of the embedded world: its file, its captions and its entry in COIN.json."""
    from toy import grammar
    from toy import render
    split, index = item
    video = grammar.make_video(split, index)
    write_video(out / "videos" / f"{video.name}.mp4", render.render(video), render.FPS)
    rows = "".join(f"{start},{end},{text}\n" for start, end, text in render.narrate(video))
    write_atomically(out / "captions" / f"{video.name}.csv",
                     lambda file: file.write(f"start,end,text\n{rows}".encode()))
    return video.name, {
        "duration": video.duration, "class": video.procedure, "video_url": "",
        "start": 0, "end": video.duration, "subset": "testing" if split == "test" else "training",
        "recipe_type": list(grammar.PROCEDURES).index(video.procedure),
        "annotation": [{"id": str(step + 1), "segment": list(segment), "label": grammar.STEPS[step]}
                       for step, segment in zip(video.steps, video.segments)]}


def export_toy(settings):
    """videos/, captions/, COIN.json, steps.txt, phrases.txt, train.txt and the teacher, clip/."""
    import data
    from toy import grammar
    from toy import render
    from safetensors.torch import save
    from tqdm import tqdm
    from support.workers import prefetch
    out = settings.out
    if out.exists() and any(out.iterdir()):
        raise BadInput(f"--out {out}: is not empty; choose another folder")
    for folder in ("videos", "captions", "clip"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    items = [(split, i) for split, count in (("train", settings.train), ("test", settings.test))
             for i in range(count)]
    made = prefetch(functools.partial(export_one, out), items, settings.workers)
    database = dict(tqdm(made, desc="export", total=len(items), mininterval=1))
    write_json(out / "COIN.json", {"database": database})
    for name, lines in (("steps.txt", grammar.STEPS), ("phrases.txt", grammar.PHRASES),
                        ("train.txt", [name for name in database if name.startswith("train")])):
        text = "".join(f"{line}\n" for line in lines).encode()
        write_atomically(out / name, lambda file, text=text: file.write(text))
    weights = {name: value.contiguous() for name, value in
               data.toy_teacher("cpu").model.state_dict().items()}
    write_json(out / "clip" / "open_clip_config.json", render.TEACHER_CONFIG)
    write_atomically(out / "clip" / "open_clip_model.safetensors",
                     lambda file: file.write(save(weights)))
    print(f"{out}: {len(items)} videos")


def main():
    """`python data.py COMMAND ...`"""
    commands = {"check": (check, s.CheckSettings), "shrink": (shrink_all, s.ShrinkSettings),
                "teach": (teach_all, s.TeachSettings), "export-toy": (export_toy, s.ExportSettings)}
    if len(sys.argv) < 2 or sys.argv[1] not in commands:
        given = sys.argv[1] if len(sys.argv) > 1 else "nothing"
        if given in ("-h", "--help"):
            print(__doc__)
            return
        sys.exit(fail("data.py", f"{given}: not a command; one of {', '.join(commands)} is", 2))
    function, cls = commands[sys.argv[1]]
    run(function, cls, sys.argv[2:])
