"""The embedded world as the files that real data come as."""
import functools
from fractions import Fraction

import av
import numpy as np

from support.command import require, write_atomically, write_json, write_text
from support.device import write_tensors
from support.process import lock
from support.workers import prefetch
from toy import grammar, render
from toy.source import load_teacher
from toy.teacher import TEACHER_CONFIG

BORDER = 2, 3                 # pixels around the 32: a reader of files crops the middle of 37 to 32


def write_video(path, frames):
    """Frames (n, 3, H, W) uint8 as lossless H.264, with a border that a reader's crop removes."""
    pictures = np.pad(frames.transpose(0, 2, 3, 1), ((0, 0), BORDER, BORDER, (0, 0)), "edge")

    def write(file):
        with av.open(file, "w", format="mp4") as container:
            stream = container.add_stream("libx264", rate=Fraction(render.FPS))
            stream.height, stream.width, stream.pix_fmt = *pictures.shape[1:3], "yuv444p"
            stream.options = {"crf": "0", "preset": "ultrafast"}
            stream.codec_context.thread_count = 1
            for picture in pictures:
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
            container.mux(stream.encode())
    write_atomically(path, write)


def export_one(out, item):
    """One video, `item` of make_video: its file, its captions and its entry in COIN.json."""
    video = grammar.make_video(*item)
    write_video(out / "videos" / f"{video.name}.mp4", render.render(video))
    rows = "".join(f"{start},{end},{text}\n" for start, end, text in render.narrate(video))
    write_text(out / "captions" / f"{video.name}.csv", f"start,end,text\n{rows}")
    return video.name, {
        "duration": video.duration, "class": list(grammar.PROCEDURES)[video.activity],
        "recipe_type": video.activity, "video_url": "", "start": 0, "end": video.duration,
        "subset": "testing" if video.split == "test" else "training",
        "annotation": [{"id": str(label + 1), "segment": [start, end],
                        "label": grammar.STEPS[label]} for start, end, label in video.steps]}


def export_toy(settings):
    """videos/, captions/, COIN.json, steps.txt, phrases.txt, train.txt and the teacher, clip/."""
    out = settings.out
    require(not out.exists() or not any(out.iterdir()), f"--out {out}: not empty; choose another")
    out.mkdir(parents=True, exist_ok=True)
    lock(out)
    for folder in ("videos", "captions", "clip"):
        (out / folder).mkdir(exist_ok=True)
    items = [(split, i) for split, count in (("train", settings.train), ("test", settings.test))
             for i in range(count)]
    database = dict(prefetch(functools.partial(export_one, out), items, settings.workers, "export"))
    write_json(out / "COIN.json", {"database": database})
    for name, lines in (("steps.txt", grammar.STEPS), ("phrases.txt", grammar.PHRASES),
                        ("train.txt", [name for name in database if name.startswith("train")])):
        write_text(out / name, "".join(f"{line}\n" for line in lines))
    write_json(out / "clip" / "open_clip_config.json", TEACHER_CONFIG)
    write_tensors(out / "clip/open_clip_model.safetensors", load_teacher("cpu").model.state_dict())
    print(f"{out}: {len(items)} videos")
