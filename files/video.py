"""Read frames of video files at given times, crop them to the encoder's size, shrink files.

Times are s from the start of the file. The picture at t is the last frame whose timestamp is at
most t. A file is opened once for all pictures of a sample and decoded forward, on one thread.
n pictures of a file, F of a clip, H W pixels, taken as square; uint8 RGB. A bad file is Unreadable.
"""
import json
import math
import os
from collections import deque
from contextlib import closing, contextmanager
from fractions import Fraction
from itertools import chain

import av
import numpy as np
import torch
from av.stream import Disposition
from av.video.reformatter import VideoReformatter
from torchvision.transforms.v2 import functional as transform

from data import forecast_windows, frame_times, view_of
from files.listings import VIDEO_SUFFIXES
from support.command import require, write_atomically

SLACK = 1.0               # s outside the video in which its first or last frame still counts
LONGEST = 1e5             # s of a video; a header that says more is damaged
KEY_FRAME_GAP = 10.0      # s between key frames, assumed where no index tells
JITTER = 256, 320         # short side before a crop of 224, pixels; 256 in evaluation


class Unreadable(Exception):
    """A file that cannot be opened or decoded, has no video, or ends before the requested time."""


# --- Files ---
def find_videos(folder):
    """{stem: path, a str} of all videos below a folder, also by links; the first path of a stem."""
    require(os.path.isdir(folder), f"{folder}: no such folder; a folder of videos is needed")
    files, closed, entered = [], [], set()
    for parent, folders, names in os.walk(folder, onerror=closed.append, followlinks=True):
        folders.sort()
        place = os.path.realpath(parent)
        if place in entered:                           # a link leads here, perhaps one below
            folders.clear()
            continue
        entered.add(place)
        files += [os.path.join(parent, name) for name in names
                  if os.path.splitext(name)[1].lower() in VIDEO_SUFFIXES]
    if closed:
        print(f"{folder}: folders that cannot be entered: {len(closed)}, the first "
              f"{closed[0].filename}: {closed[0].strerror}")
    return {os.path.splitext(os.path.basename(path))[0]: path
            for path in sorted(files, reverse=True)}


@contextmanager
def open_video(path):
    """(container, its first video stream), closed at the end. FFmpeg's errors become Unreadable."""
    if not os.path.isfile(path):                       # a pipe would be waited for
        raise Unreadable(f"{path}: no such file, or not a file")
    try:
        # "file:" because an id may hold a colon, which would be read as a protocol.
        with av.open(f"file:{path}", metadata_errors="replace") as container:
            streams = [stream for stream in container.streams.video if stream.codec_context
                       and not stream.disposition & Disposition.attached_pic]    # a cover picture
            if not streams:
                raise Unreadable(f"{path}: no video stream that can be decoded")
            streams[0].thread_type, streams[0].codec_context.thread_count = "NONE", 1
            yield container, streams[0]
    except av.FFmpegError as error:                    # too little memory too: a damaged size
        raise Unreadable(f"{path}: cannot be read: {error.strerror}") from None


def duration(path):
    """s from the start of the file to the end of its video, by its header, also if it is cut off;
    mkv and webm give that of the whole file, a recorded webm none: all its packets are read.
    Unreadable if the header says more than LONGEST."""
    with open_video(path) as (container, stream):
        if (stream.duration or 0) > 0:
            end = ((stream.start_time or 0) + stream.duration) * stream.time_base
        elif (container.duration or 0) > 0:            # mkv: from 0, as its timestamps
            end = container.duration / av.time_base
        else:
            end = max((packet.pts + (packet.duration or 0) for packet in container.demux(stream)
                       if packet.pts is not None), default=0) * stream.time_base
        seconds = float(end) - (container.start_time or 0) / av.time_base
        if seconds > LONGEST:
            raise Unreadable(f"{path}: lasts {seconds:g} s, as its header says: it is damaged")
        return max(0.0, seconds)


# --- Frames ---
def read_frames(path, times, short_side=None):
    """The pictures at `times`, from one opening of the file: (n, 3, H, W) uint8, upright.
    times: (n,) s, 0 to 1e9, in any order, else a ValueError; up to SLACK outside the video, since
    annotations often end late. short_side: pixels; larger pictures are reduced to it."""
    times = np.asarray(times, float)
    if times.ndim != 1 or not times.size or not np.all((times >= 0) & (times < 1e9)):
        raise ValueError(f"times must be (n,) s from 0 to 1e9, n at least 1; they are {times}")
    distinct, which = np.unique(times, return_inverse=True)                  # sorted; (n,)
    with closing(pictures_at(path, distinct, short_side)) as pictures:
        for i, (picture, outside) in enumerate(pictures):
            if abs(outside) > SLACK:
                where = "begins {:.1f} s after" if outside < 0 else "ends {:.1f} s before"
                raise Unreadable(f"{path}: its video {where.format(abs(outside))} the picture "
                                 f"asked for, at {distinct[i]:.1f} s")
            if i == 0:
                frames = np.empty((len(times), 3, *picture.shape[:2]), np.uint8)
            frames[which == i] = picture.transpose(2, 0, 1)
    return torch.from_numpy(frames)


def pictures_at(path, times, short_side=None):
    """Yield (picture (H, W, 3), outside) for each of the sorted `times`, s; all of one shape.
    outside: s that the time is after the end (+) or before the first frame (-), else 0."""
    with open_video(path) as (container, stream):
        start, scaler, shape = (container.start_time or 0) / av.time_base, VideoReformatter(), None
        if "444" in (stream.codec_context.pix_fmt or ""):      # of the first frame FFmpeg learns
            next(container.decode(stream), None)               # which x264 wrote it, and how
        frames = frame = after = None            # `after` was decoded last, `frame` is before it
        for time in times:
            time += start + 1e-6                         # rounding of floats must not miss a frame
            if frames is None or key_frame_ahead(stream, time, (after or frame).time):
                # The lambda gives `time` of the present loop, also when the frames are read later.
                frames = frames_around(container, stream, time, start, lambda: time)
                frame, after = None, next(frames, None)
                if after is None:
                    raise Unreadable(f"{path}: no frame found at {time - start:.1f} s")
            while after is not None and after.time <= time:
                frame, after = after, next(frames, None)
            picture, outside = frame or after, 0.0
            if frame is None:
                outside = time - after.time
            elif after is None:            # the last frame: its own duration, or one interval
                lasts = frame.duration * frame.time_base or 1 / (stream.average_rate or math.inf)
                outside = max(0.0, time - frame.time - float(lasts))
            if picture.is_corrupt and abs(outside) <= SLACK:
                raise Unreadable(f"{path}: damaged at {picture.time - start:.1f} s")
            if shape is None:
                sides = picture.width, picture.height
                factor = min(1.0, (short_side or math.inf) / min(sides))
                size = [max(2, round(side * factor)) for side in sides]
            rgb = scaler.reformat(picture, *size, "rgb24", threads=1).to_ndarray()
            upright = np.ascontiguousarray(np.rot90(rgb, round(picture.rotation / 90)))
            shape = shape or upright.shape
            if upright.shape != shape:
                raise Unreadable(f"{path}: is turned on its side at {time - start:.1f} s")
            yield upright, outside


def key_frame_ahead(stream, time, reached):
    """Whether decoding can begin nearer to `time` (s) than `reached` (s), its present position. If
    the index (of an mp4: decoding times, some ticks before display) ends before, see KEY_FRAME_GAP.
    """
    index, ticks = stream.index_entries, math.floor(time / stream.time_base)
    early = max(0, (stream.start_time or 0) - index[0].timestamp) if len(index) else 0    # ticks
    key = index.search_timestamp(ticks - early)
    if key >= 0 and index[key].timestamp > round(reached / stream.time_base):
        return True
    return (not len(index) or index[-1].timestamp < ticks) and time - reached > KEY_FRAME_GAP


def frames_around(container, stream, time, start, wanted):
    """Seek: the frames from a key frame at or before `time`, or from the first. `wanted`: `decode`.
    A seek that ends after `time` is repeated further and further back."""
    back = 0.0
    while True:
        try:
            container.seek(math.floor(max(time - back, start) / stream.time_base), stream=stream)
        except av.FFmpegError:             # FFmpeg calls it "Operation not permitted"
            return iter(())
        frames = decode(container, stream, wanted)
        first = next(frames, None)
        if time - back <= start or first is not None and first.time <= time:
            return frames if first is None else chain([first], frames)
        back = 2 * back + 1


def decode(container, stream, wanted):
    """Yield the frames from here on, but those of H.264 undecoded to which no frame refers, if a
    later one is displayed at or before `wanted()`, s. (HEVC marks frames that higher temporal
    layers use.) An avi only has decoding times: H.264's n-th frame is displayed at the n-th."""
    context, tick, newest = stream.codec_context, float(stream.time_base), -math.inf
    h264 = context.name == "h264"
    avi, ticks = h264 and container.format.name == "avi", deque()
    for packet in container.demux(stream):
        if avi and packet.dts is not None:
            ticks.append(packet.dts)
        elif h264:
            pts = newest if packet.pts is None else packet.pts
            unneeded = pts < newest and newest * tick + 1e-6 <= wanted()
            context.skip_frame = "NONREF" if unneeded else "DEFAULT"
            newest = max(newest, pts)
        for frame in packet.decode():
            if avi:
                frame.pts = ticks.popleft() if ticks else None
            if frame.pts is not None:
                yield frame


# --- Small copies of files ---
def record(path, *made):
    """What a file made of a video was made with, and the video's size and time: text (JSON)."""
    found = os.stat(path)
    return json.dumps([*made, found.st_size, found.st_mtime_ns])


def shrink(source, target, comment="", *, fps=1.0, short_side=256):
    """Write a small mp4 (Motion JPEG, all key frames) without sound: frame k is the source's at
    k / fps. Raises Unreadable for the source, OSError for the target."""
    rate = Fraction(fps).limit_denominator(1000)
    count = max(1, math.ceil(duration(source) * rate - 1e-6))
    times = (float(k / rate) for k in range(count))
    with closing(pictures_at(source, times, short_side)) as pictures:
        try:
            write_atomically(target, lambda file: encode(file, pictures, rate, comment))
        except (av.error.ArgumentError, av.error.InvalidDataError) as error:
            raise Unreadable(f"{source}: no copy can be made: {error.strerror}") from None


def comment_of(path):
    """The comment of a copy whose first and last pictures can be decoded; None without one."""
    read_frames(path, [0.0, max(0.0, duration(path) - 1e-3)])
    with open_video(path) as (container, _):
        return container.metadata.get("comment")


def encode(file, pictures, rate, comment):
    """Write (picture, outside) pairs, `rate` pictures/s, up to the first after the source's end."""
    with av.open(file, "w", format="mp4") as container:
        container.metadata["comment"] = comment
        stream = container.add_stream("mjpeg", rate=rate, options={"qmin": "2", "qmax": "2"})
        stream.codec_context.thread_count = 1
        for k, (picture, outside) in enumerate(pictures):
            if k and outside > 0:
                break
            picture = picture[:len(picture) // 2 * 2, :picture.shape[1] // 2 * 2]
            if k == 0:
                stream.height, stream.width, stream.pix_fmt = *picture.shape[:2], "yuvj420p"
            frame = av.VideoFrame.from_ndarray(picture, "rgb24")
            frame.pts, frame.time_base = k, 1 / rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


# --- Views: the squares of a clip that the encoder is given ---
def short_side_for(size):
    """The short side, pixels, from which no view of `size` is enlarged."""
    return round(size * JITTER[1] / 224)


def training_view(frames, size, rng):
    """(F, 3, H, W) uint8 -> (F, 3, size, size): a random square, mirrored in half of the draws."""
    height, width = frames.shape[-2:]
    side = round(min(height, width) * 224 / rng.uniform(*JITTER))
    top, left = rng.integers(height - side + 1), rng.integers(width - side + 1)
    frames = transform.resized_crop(frames, top, left, side, side, [size, size])
    return transform.horizontal_flip(frames) if rng.random() < 0.5 else frames


def evaluation_view(frames, size):
    """(F, 3, H, W) uint8 -> (F, 3, size, size): the center square, 224 of a short side of 256."""
    height, width = frames.shape[-2:]
    side = round(min(height, width) * 224 / JITTER[0])
    top, left = (height - side) // 2, (width - side) // 2
    return transform.resized_crop(frames, top, left, side, side, [size, size])


def read_clips(path, encoder, windows=None):
    """Clips of a video file as an encoder reads them: (n, F, 3, H, W) uint8; raises Unreadable.
    windows: (n, 2) s, else a ValueError; None: the observed part of a forecast at the end, 68 s in
    8 windows."""
    windows = np.asarray(forecast_windows(duration(path)) if windows is None else windows, float)
    if windows.shape[1:] != (2,) or not np.all(windows[:, 0] <= windows[:, 1]):
        raise ValueError(f"windows must be (n, 2) s, each start before its end; they are {windows}")
    size, frames, seconds = view_of(encoder)
    pictures = read_frames(path, frame_times(windows, frames, seconds).flatten(),
                           short_side_for(size))
    return evaluation_view(pictures, size).unflatten(0, (-1, frames))
