"""`python -m files copy`: small copies of videos, which are faster to read."""
import functools

import av
import numpy as np

from files.video import JITTER, Unreadable, duration, find_videos, frames_at, open_video, upright
from support.errors import require
from support.workers import prefetch
from support.write import write_atomically


def picture_times(path, fps=None):
    """When a file shows a new picture: (n,) s, sorted, from 0. fps: the first in each 1 / fps s."""
    with open_video(path) as (container, stream):
        start = round((container.start_time or 0) / (av.time_base * stream.time_base))
        stamps = [packet.dts if packet.pts is None else packet.pts
                  for packet in container.demux(stream) if packet.size]
        ticks = np.unique([0, *(max(stamp - start, 0) for stamp in stamps)])
        times = ticks * float(stream.time_base)
    if fps:                                            # 1 ms is what mkv rounds a time to
        times = times[np.unique(np.floor((times + 0.001) * fps), return_index=True)[1]]
    return times


def write_copy(path, fps, file):
    """Write a video as mp4 (H.264) into a binary file: upright, without sound, its short side 320
    pixels or less. fps: at most so many pictures a second; None: all. At their times `read_frames`
    gives the same of the copy. Raises Unreadable if a part of the video cannot be read."""
    times, end = picture_times(path, fps), duration(path)
    options = {"preset": "veryfast", "crf": "23", "tune": "fastdecode", "bf": "0",
               "g": str(max(round(fps or 30), 1))}     # a key frame each second
    copy = av.open(file, "w", format="mp4")            # `with` would hide that the disk is full
    with open_video(path) as (container, stream):
        clock, out = stream.time_base, copy.add_stream("libx264", rate=30, options=options)
        out.codec_context.time_base, out.codec_context.thread_count = clock, 1
        frames = frames_at(path, container, stream, np.append(times, end))
        for time, picture in zip(times, upright(frames, JITTER[1])):
            if time == 0:                              # H.264 needs even sides
                out.height, out.width = (side // 2 * 2 for side in picture.shape[:2])
            picture = np.ascontiguousarray(picture[:out.height, :out.width])
            frame = av.VideoFrame.from_ndarray(picture, "rgb24")
            frame.pts, frame.time_base = round(time / clock), clock
            copy.mux(out.encode(frame))
        next(frames)                                   # the end: the file is not cut off
        *packets, last = out.encode()
        last.duration = max(round(end / clock) - last.pts, 1)
        copy.mux([*packets, last])
        copy.close()


def copy_one(fps, item):
    """Copy a video, item = (its path, the copy's) -> None, or why it cannot be read."""
    try:
        write_atomically(item[1], functools.partial(write_copy, item[0], fps))
    except Unreadable as error:
        return str(error)


def copy(args):
    """Copy each video of a folder that has no copy yet. args: see __main__.py."""
    require(not args.out.resolve().is_relative_to(args.videos.resolve()), f"--out {args.out}: lies "
            "in --videos, where a copy would be a second file of its id; choose another folder")
    items = [(path, args.out / path.relative_to(args.videos).with_suffix(".mp4"))
             for path in find_videos(args.videos).values()]
    new = [item for item in items if not item[1].exists()]
    made = prefetch(functools.partial(copy_one, args.fps), new, args.workers, "copy",
                    name=lambda item: str(item[0]))
    failed = [reason for reason in made if reason]
    told = (f"{args.videos}: of {len(items)} videos {len(new) - len(failed)} copied, "
            f"{len(items) - len(new)} were there, {len(failed)} unreadable")
    require(len(failed) < len(items), f"{told}; {next(iter(failed), '')}")
    print(*failed, told, sep="\n")
