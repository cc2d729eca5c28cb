"""Look after data: `python data.py check | shrink | export-toy`.

    check       what of a list is there, found, missing and unreadable, before anything is trained
    shrink      small copies of videos, all key frames: fast to read at any time
    export-toy  the embedded world as the files that real data come as
"""
import functools
import json
import sys
from fractions import Fraction

import settings as s
from settings import BadInput, run, write_atomically, write_json

SPLITS = ("train", "validation", "test")
BORDER = 2, 3                 # pixels around an exported picture of 32: the middle view (video.py)
                              # of the 37 is the 32 within


# ------------------------------------------------------------------------------------------------
# check
# ------------------------------------------------------------------------------------------------
def readable(paths, ends, name):
    """(id, None), or (id, reason) where the first or the last picture needed cannot be read."""
    from video import Unreadable, read_frames
    try:
        read_frames(paths[name], [0.0, ends[name]], 32)
    except (Unreadable, OSError) as error:
        return name, str(error)
    return name, None


def check(settings):
    """COIN.json: what each task and split lists, and (with --videos) what is there of it."""
    import annotations
    import data
    from tqdm import tqdm
    videos, names = annotations.load_coin(settings.annotations)
    videos = [video for video in videos if video.steps]
    paths, bad = None, {}
    if settings.videos:
        from video import find_videos
        paths = find_videos(settings.videos)
        ends = {video.name: max(step.end for step in video.steps) for video in videos}
        there = [name for name in ends if name in paths]
        read = data.prefetch(functools.partial(readable, paths, ends), there, settings.workers)
        read = tqdm(read, desc="read", total=len(there), mininterval=1)
        bad = {name: reason for name, reason in read if reason}
    tasks = {"classify": data.classify_samples,
             "forecast": lambda videos: data.forecast_samples(videos, settings.min_steps),
             "activity": lambda videos: [data.Sample(i, None, video.activity, 0)
                                         for i, video in enumerate(videos)]}
    result = {}
    for task, samples_of in tasks.items():
        result[task] = {}
        for split in SPLITS:
            chosen = [video for video in videos if video.split == split]
            samples = samples_of(chosen)
            listed = {chosen[sample.video].name for sample in samples}
            found = None if paths is None else len(listed & paths.keys())
            result[task][split] = {
                "listed": len(samples), "videos": len(listed), "found": found,
                "missing": None if paths is None else len(listed) - found,
                "unreadable": None if paths is None else len(listed & bad.keys())}
    result |= {"classes": len(names), "distinct_texts": len(set(names))}
    print(json.dumps(result, indent=2))
    unnamed = [number for number, name in enumerate(names, start=1) if not name]
    if unnamed:
        print(f"unnamed: {len(unnamed)} of {len(names)} classes, that no step has (id "
              f"{', '.join(map(str, unnamed[:5]))}{', ..' * (len(unnamed) > 5)}): they are chosen "
              "among with an empty text; --steps FILE names all")
    for name, reason in bad.items():
        print(f"unreadable: {name}: {reason}")
    if settings.json:
        write_json(settings.json, result)


# ------------------------------------------------------------------------------------------------
# shrink
# ------------------------------------------------------------------------------------------------
def shrink_one(settings, item):
    """(id, None), or (id, reason) where the source cannot be read."""
    from video import Unreadable, shrink
    name, source = item
    try:
        shrink(source, settings.out / f"{name}.mp4", settings.fps, settings.short_side)
    except Unreadable as error:
        return name, str(error)
    return name, None


def shrink_all(settings):
    """Copies of all videos of a folder that are not in --out yet; the unreadable are named."""
    import data
    from tqdm import tqdm
    from video import find_videos
    found = find_videos(settings.videos)
    if not found:
        raise BadInput(f"--videos {settings.videos}: no video below it")
    settings.out.mkdir(parents=True, exist_ok=True)
    todo = [(name, path) for name, path in found.items()
            if not (settings.out / f"{name}.mp4").exists()]
    made = data.prefetch(functools.partial(shrink_one, settings), todo, settings.workers)
    bad = {name: reason for name, reason in tqdm(made, total=len(todo), desc="shrink",
                                                 mininterval=1) if reason}
    for name, reason in bad.items():
        print(f"unreadable: {name}: {reason}")
    print(f"{settings.out}: {len(todo) - len(bad)} copies made, {len(found) - len(todo)} were "
          f"there, {len(bad)} unreadable")
    if bad and len(bad) == len(found):
        raise BadInput(f"--videos {settings.videos}: not one of {len(found)} videos can be read")


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
    import toy
    import toy_render
    split, index = item
    video = toy.make_video(split, index)
    write_video(out / "videos" / f"{video.name}.mp4", toy_render.render(video), toy_render.FPS)
    rows = "".join(f"{start},{end},{text}\n" for start, end, text in toy_render.narrate(video))
    write_atomically(out / "captions" / f"{video.name}.csv",
                     lambda file: file.write(f"start,end,text\n{rows}".encode()))
    return video.name, {
        "duration": video.duration, "class": video.procedure, "video_url": "",
        "start": 0, "end": video.duration, "subset": "testing" if split == "test" else "training",
        "recipe_type": list(toy.PROCEDURES).index(video.procedure),
        "annotation": [{"id": str(step + 1), "segment": list(segment), "label": toy.STEPS[step]}
                       for step, segment in zip(video.steps, video.segments)]}


def export_toy(settings):
    """videos/, captions/, COIN.json, steps.txt, phrases.txt, train.txt and the teacher, clip/."""
    import data
    import toy
    import toy_render
    from safetensors.torch import save
    from tqdm import tqdm
    out = settings.out
    if out.exists() and any(out.iterdir()):
        raise BadInput(f"--out {out}: is not empty; choose another folder")
    for folder in ("videos", "captions", "clip"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    items = [(split, i) for split, count in (("train", settings.train), ("test", settings.test))
             for i in range(count)]
    made = data.prefetch(functools.partial(export_one, out), items, settings.workers)
    database = dict(tqdm(made, desc="export", total=len(items), mininterval=1))
    write_json(out / "COIN.json", {"database": database})
    for name, lines in (("steps.txt", toy.STEPS), ("phrases.txt", toy.PHRASES),
                        ("train.txt", [name for name in database if name.startswith("train")])):
        text = "".join(f"{line}\n" for line in lines).encode()
        write_atomically(out / name, lambda file, text=text: file.write(text))
    weights = {name: value.contiguous() for name, value in
               data.toy_teacher("cpu").model.state_dict().items()}
    write_json(out / "clip" / "open_clip_config.json", toy_render.TEACHER_CONFIG)
    write_atomically(out / "clip" / "open_clip_model.safetensors",
                     lambda file: file.write(save(weights)))
    print(f"{out}: {len(items)} videos")


def main():
    """`python data.py COMMAND ...`"""
    commands = {"check": (check, s.CheckSettings), "shrink": (shrink_all, s.ShrinkSettings),
                "export-toy": (export_toy, s.ExportSettings)}
    if len(sys.argv) < 2 or sys.argv[1] not in commands:
        given = sys.argv[1] if len(sys.argv) > 1 else "nothing"
        if given in ("-h", "--help"):
            print(__doc__)
            return
        sys.exit(s.fail("data.py", f"{given}: not a command; one of {', '.join(commands)} is", 2))
    function, cls = commands[sys.argv[1]]
    run(function, cls, sys.argv[2:])
