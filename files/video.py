"""Read frames of real video files at given times, cut them to the encoder's size, shrink files.

    word        here             meaning
    time        times            s from the start of the file, where players and annotations start
    shown       shown            the picture at time t: the last frame whose timestamp is at most t
    outside     outside          s by which t lies after the last frame's end or before the first
    key frame   key_frame_ahead  a frame that needs no other: only here can decoding begin
    short side  short_side       the smaller of height and width; pixels are taken as square
    n pictures of a file, F of a clip, H W pixels, S the encoder's; a picture is uint8 RGB, 0-255.

All pictures of a sample come from one opening of the file and one walk through it, on one thread
(a loader's workers are the parallelism). What is wrong with a file is Unreadable, one line that
says what; a wrong argument is a ValueError; anything else is a bug of ours.
"""
import math
import os
from collections import deque
from contextlib import closing, contextmanager, suppress
from fractions import Fraction
from itertools import chain
from pathlib import Path

import av
import numpy as np
import torch
from av.stream import Disposition
from av.video.reformatter import VideoReformatter
from torchvision.transforms.v2 import functional as transform

from files.listings import VIDEO_SUFFIXES
from support.command import BadInput, write_atomically

SLACK = 1.0               # s outside the video in which its first or last frame still counts
BLIND = 10.0              # s from a key frame to the next: rarely more
JITTER = 256, 320         # short side before a crop of 224, pixels; the first in evaluation


class Unreadable(Exception):
    """A file that cannot be opened or decoded, has no video, or ends before the frame asked for."""


# ------------------------------------------------------------------------------------------------
# Files
# ------------------------------------------------------------------------------------------------
def find_videos(folder):
    """{stem: path, a str} of all videos below a folder, by extension, in any case.

    Of several files with the same stem the first path in sorted order counts. Links to folders
    are not followed. BadInput if there is no such folder.
    """
    if not Path(folder).is_dir():
        raise BadInput(f"{folder}: no such folder; a folder of videos is needed")
    folders, files = [str(folder)], []
    while folders:
        with suppress(PermissionError), os.scandir(folders.pop()) as entries:
            for entry in entries:                      # its kind is known without a further call
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif (os.path.splitext(entry.name)[1].lower() in VIDEO_SUFFIXES
                      and entry.is_file()):
                    files.append(entry.path)
    return {os.path.splitext(os.path.basename(path))[0]: path
            for path in sorted(files, reverse=True)}


@contextmanager
def open_video(path):
    """(container, its first video stream), closed at the end; what FFmpeg raises is Unreadable."""
    doing = "opened"
    try:
        # "file:" because an id may hold a colon, which would be read as a protocol.
        with av.open(f"file:{path}", metadata_errors="replace") as container:
            streams = [stream for stream in container.streams.video        # but no cover pictures
                       if not stream.disposition & Disposition.attached_pic]
            if not streams:
                raise Unreadable(f"{path}: no video stream")
            if streams[0].codec_context is None:
                raise Unreadable(f"{path}: no decoder for its video stream")
            streams[0].thread_type, streams[0].codec_context.thread_count = "NONE", 1
            doing = "decoded"
            yield container, streams[0]
    except av.FFmpegError as error:
        raise Unreadable(f"{path}: cannot be {doing}: {error.strerror}") from None


def duration(path):
    """s from the start of the file to the end of its video, as its header says.

    mkv and webm state that of the whole file, sound included; a recorded webm states none, and all
    its packets are read. The header of a file that was cut off is still that of the whole.
    """
    with open_video(path) as (container, stream):
        if (stream.duration or 0) > 0:
            end = ((stream.start_time or 0) + stream.duration) * stream.time_base
        elif (container.duration or 0) > 0:            # mkv: counted from 0, as the timestamps are
            end = container.duration / av.time_base
        else:
            end = max((packet.pts + (packet.duration or 0) for packet in container.demux(stream)
                       if packet.pts is not None), default=0) * stream.time_base
        return max(0.0, float(end) - (container.start_time or 0) / av.time_base)


# ------------------------------------------------------------------------------------------------
# Frames
# ------------------------------------------------------------------------------------------------
def read_frames(path, times, short_side=None):
    """The pictures shown at `times`, from one opening of the file.

    Before its first and after its last frame a video shows these for SLACK = 1 s more, since
    annotations often end a little late; beyond, it is Unreadable. A frame *between* others counts
    however long it is held: still slides do, and damage that leaves a gap looks the same.

    Args:
        times:      (n,) s, n at least 1, 0 to 1e9; in any order, repeated or not.
        short_side: pixels; larger pictures are reduced to it, smaller ones are left as they are.
    Returns: (n, 3, H, W) uint8, row i is shown at times[i]; upright (rotation metadata applied).
    Raises:  Unreadable; ValueError if `times` are not as above.
    """
    times = np.asarray(times, float)
    if times.ndim != 1 or not times.size or not np.all((times >= 0) & (times < 1e9)):
        raise ValueError(f"times must be (n,) s from 0 to 1e9, n at least 1; they are {times}")
    distinct, which = np.unique(times, return_inverse=True)                  # sorted; (n,)
    with closing(shown(path, distinct, short_side)) as pictures:
        for i, (picture, outside) in enumerate(pictures):
            if abs(outside) > SLACK:
                where = "begins {:.1f} s after" if outside < 0 else "ends {:.1f} s before"
                raise Unreadable(f"{path}: its video {where.format(abs(outside))} the picture "
                                 f"asked for, at {distinct[i]:.1f} s")
            if i == 0:
                frames = np.empty((len(times), 3, *picture.shape[:2]), np.uint8)
            frames[which == i] = picture.transpose(2, 0, 1)
    return torch.from_numpy(frames)


def shown(path, times, short_side=None):
    """Yield what is shown at each of the sorted `times` (s): (picture (H, W, 3), outside).

    `outside`, s: how far the time lies after the end (+) or before the first frame (-), else 0.
    All pictures have the size of the first. Raises Unreadable.
    """
    with open_video(path) as (container, stream):
        start, scaler, size = (container.start_time or 0) / av.time_base, VideoReformatter(), None
        frames = frame = after = None            # `after` is the last one decoded, `frame` before
        for time in times:
            time += start + 1e-6                         # float rounding must not miss a frame
            if frames is None or key_frame_ahead(stream, time, (after or frame).time):
                frames = frames_around(container, stream, time, start, lambda: time)
                frame, after = None, next(frames, None)
                if after is None:
                    raise Unreadable(f"{path}: cannot be decoded: no frame found at "
                                     f"{time - start:.1f} s")
            while after is not None and after.time <= time:
                frame, after = after, next(frames, None)
            picture, outside = frame or after, 0.0
            if frame is None:
                outside = time - after.time
            elif after is None:            # the last frame lasts as it says, or for one interval
                lasts = frame.duration * frame.time_base or 1 / (stream.average_rate or math.inf)
                outside = max(0.0, time - frame.time - float(lasts))
            if picture.is_corrupt and abs(outside) <= SLACK:
                raise Unreadable(f"{path}: damaged at {picture.time - start:.1f} s")
            if size is None:
                sides = picture.width, picture.height
                factor = min(1.0, (short_side or math.inf) / min(sides))
                size = [max(1, round(side * factor)) for side in sides]
            rgb = scaler.reformat(picture, *size, "rgb24", threads=1).to_ndarray()
            yield np.ascontiguousarray(np.rot90(rgb, round(picture.rotation / 90))), outside


def key_frame_ahead(stream, time, reached):
    """Whether decoding can begin nearer to `time` than at `reached`, where it is (s).

    An mp4 lists its frames when it is opened, an mkv at the first seek. Where the list ends before
    `time` there is probably a key frame among BLIND seconds.

    An mp4 lists when frames are *decoded*, some ticks before they are shown: a seek for a key frame
    that is shown after `time` would lead back to the one before, and all of its group again.
    """
    index, ticks = stream.index_entries, math.floor(time / stream.time_base)
    early = max(0, (stream.start_time or 0) - index[0].timestamp) if len(index) else 0    # ticks
    key = index.search_timestamp(ticks - early)
    if key >= 0 and index[key].timestamp > round(reached / stream.time_base):
        return True
    return (not len(index) or index[-1].timestamp < ticks) and time - reached > BLIND


def frames_around(container, stream, time, start, asked):
    """Seek: the frames from a key frame at or before `time` on; from the first, where none is.

    A seek may end at a key frame *after* `time` (an index is in order of decoding, and B-frames are
    shown before what they need): then it is repeated from ever further back. `asked`: see `decode`.
    """
    back = 0.0
    while True:
        try:
            container.seek(math.floor(max(time - back, start) / stream.time_base), stream=stream)
        except av.FFmpegError:             # FFmpeg calls it "Operation not permitted"
            return iter(())
        frames = decode(container, stream, asked)
        first = next(frames, None)
        if time - back <= start or first is not None and first.time <= time:
            return frames if first is None else chain([first], frames)
        back = 2 * back + 1


def decode(container, stream, asked):
    """Yield the frames from here on, without those of H.264 that are neither needed nor asked for.

    A frame is passed over, undecoded, if no frame refers to it and a later one is known that is
    shown no later than `asked()` (s), the earliest time still to be answered. Other codecs give
    all frames: HEVC calls frames unreferenced to which its higher temporal layers refer.

    An avi only tells when frames are decoded. H.264 shows them in another order, though at the same
    times: the n-th that comes out is shown when the n-th was to be decoded.
    """
    context, tick, newest = stream.codec_context, float(stream.time_base), -math.inf
    h264 = context.name == "h264"
    avi, ticks = h264 and container.format.name == "avi", deque()
    for packet in container.demux(stream):
        if avi and packet.dts is not None:
            ticks.append(packet.dts)
        elif h264:
            pts = newest if packet.pts is None else packet.pts
            unasked = pts < newest and newest * tick + 1e-6 <= asked()
            context.skip_frame = "NONREF" if unasked else "DEFAULT"
            newest = max(newest, pts)
        for frame in packet.decode():
            if avi:
                frame.pts = ticks.popleft() if ticks else None
            if frame.pts is not None:
                yield frame


# ------------------------------------------------------------------------------------------------
# Small copies of files
# ------------------------------------------------------------------------------------------------
def shrink(source, target, fps=1.0, short_side=256):
    """Write a small mp4 (Motion JPEG) without sound of which every frame is a key frame.

    At the same size and quality JPEG is decoded some six times as fast as key frames of H.264.

    At t = k / fps the copy shows what the source shows at t (its first frame where it begins
    later), to its end; where the source is cut off the copy ends too. It stands at `target` whole
    or not at all (written beside and renamed).

    Args: fps > 0, frames/s; short_side: pixels, at least 2 (both sides become even).
    Raises: Unreadable for the source, OSError for the target.
    """
    rate = Fraction(fps).limit_denominator(1000)
    count = max(1, math.ceil(duration(source) * rate - 1e-6))
    times = (float(k / rate) for k in range(count))
    with closing(shown(source, times, short_side)) as pictures:
        write_atomically(target, lambda file: encode(file, pictures, rate))


def encode(file, pictures, rate):
    """Write pictures, `rate` of them per second, up to the end of what they were taken from."""
    with av.open(file, "w", format="mp4") as container:
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


# ------------------------------------------------------------------------------------------------
# Views: what the encoder sees of a clip
# ------------------------------------------------------------------------------------------------
def short_side_for(size):
    """Pixels that a picture's short side needs for any view of `size`, so that none is enlarged."""
    return round(size * JITTER[1] / 224)


def training_view(frames, size, rng):
    """A random square of a clip, perhaps mirrored: the same one of all its frames.

    The paper's: short side drawn from 256 to 320, a crop of 224, flipped in half of the draws; in
    proportion for other sizes. Here the square is cut out first and only it is resized.

    Args:    frames (F, 3, H, W) uint8; size: S, pixels; rng: numpy Generator, four draws.
    Returns: (F, 3, S, S) uint8.
    """
    height, width = frames.shape[-2:]
    side = round(min(height, width) * 224 / rng.uniform(*JITTER))
    top, left = rng.integers(height - side + 1), rng.integers(width - side + 1)
    frames = transform.resized_crop(frames, top, left, side, side, [size, size])
    return transform.horizontal_flip(frames) if rng.random() < 0.5 else frames


def evaluation_view(frames, size):
    """The middle square of a clip: that of 224 where the short side is 256, resized to `size`.

    (F, 3, H, W) uint8 -> (F, 3, size, size) uint8.
    """
    height, width = frames.shape[-2:]
    side = round(min(height, width) * 224 / JITTER[0])
    return transform.resized_crop(frames, (height - side) // 2, (width - side) // 2, side, side,
                                  [size, size])
