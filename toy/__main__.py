"""Write the toy world as real files (export), or train its teacher again (teacher)."""
from fractions import Fraction
from functools import partial
from pathlib import Path

import av
import numpy as np
import torch
from safetensors.torch import save_model
from tqdm.contrib.concurrent import thread_map

from support.arguments import Parser, positive
from support.errors import run_command
from support.write import write_json, write_text
from toy import grammar, render
from toy.source import TEST_VIDEOS, TRAINING_VIDEOS, load_teacher
from toy.teacher import TEACHER_CONFIG, train_teacher, write_weights

BORDER = 2, 3                 # pixels around the 32; a reader of files crops the middle 32 of 37


def write_video(path, frames):
    """Write frames (n, 3, H, W) uint8 as lossless H.264 of RGB: readers get the same pixels."""
    pictures = np.pad(frames.transpose(0, 2, 3, 1), ((0, 0), BORDER, BORDER, (0, 0)), "edge")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264rgb", rate=Fraction(render.FPS))
        stream.height, stream.width = pictures.shape[1:3]
        stream.pix_fmt = "rgb24"
        stream.options = {"crf": "0", "preset": "ultrafast"}
        for picture in pictures:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        container.mux(stream.encode())


def export_video(out, video):
    """Write a video and its captions -> its name and entry in COIN.json."""
    write_video(out / "videos" / f"{video.name}.mp4", render.render(video))
    rows = "".join(f"{start},{end},{text}\n" for start, end, text in render.narrate(video))
    write_text(out / "captions" / f"{video.name}.csv", f"start,end,text\n{rows}")
    annotation = []
    for start, end, label in video.steps:                  # COIN counts classes from 1
        name = grammar.STEPS[label]
        annotation.append({"id": str(label + 1), "segment": [start, end], "label": name})
    entry = {"duration": video.duration, "recipe_type": video.activity, "subset": "training",
             "class": list(grammar.PROCEDURES)[video.activity], "annotation": annotation}
    if video.split == "test":
        entry["subset"] = "testing"
    return video.name, entry


def export(out, train, test):
    """Write videos/, captions/, COIN.json, steps.txt, phrases.txt, train.txt (the training ids) and
    clip/, the teacher for open_clip."""
    for folder in ("videos", "captions", "clip"):
        (out / folder).mkdir(parents=True)
    videos = [grammar.make_video("train", i) for i in range(train)]
    ids = [video.name for video in videos]
    videos += [grammar.make_video("test", i) for i in range(test)]
    database = dict(thread_map(partial(export_video, out), videos, desc="export"))
    write_json(out / "COIN.json", {"database": database})
    for name, lines in (("steps", grammar.STEPS), ("phrases", grammar.PHRASES), ("train", ids)):
        write_text(out / f"{name}.txt", "".join(f"{line}\n" for line in lines))
    write_json(out / "clip" / "open_clip_config.json", TEACHER_CONFIG)
    save_model(load_teacher("cpu").model, out / "clip" / "open_clip_model.safetensors")


def parse(argv=None):
    """The command line."""
    parser = Parser(__doc__, prog="python -m toy")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    export_flags = commands.add_parser("export", help="write the toy world as real files",
                                       description="Write the toy world as real files.")
    add = export_flags.add_argument
    add("--out", type=Path, required=True, help="folder, new")
    add("--train", type=positive(int, zero=True, most=1_000_000), default=TRAINING_VIDEOS,
        help="videos for training and validation")
    add("--test", type=positive(int, zero=True, most=1_000_000), default=TEST_VIDEOS,
        help="test videos")
    commands.add_parser("teacher", help="train the teacher again",
                        description="Train the teacher: a minute on one core.")
    return parser.parse_args(argv)


def main(args):
    """Run the command."""
    if args.command == "export":
        export(args.out, args.train, args.test)
    else:
        torch.set_num_threads(1)                           # sums are added in one order
        write_weights(train_teacher())


if __name__ == "__main__":
    run_command(main, parse)
