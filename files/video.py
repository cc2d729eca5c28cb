"""Read frames of video files at given times, and crop them to the encoder's size.

Times are s from the start of the file. The picture at t is the last one taken at or before t; up to
1 s before the first, it is the first. n pictures of a file, F of a clip, H W pixels; uint8 RGB.
"""
import os
from contextlib import contextmanager
from pathlib import Path

import av
import numpy as np
import torch
from av.video.reformatter import VideoReformatter
from torchvision.transforms.v2 import functional as transform

from data import Pictures, Unreadable, frame_times, history_windows
from support.errors import require
from support.read import VIDEO_SUFFIXES, video_name

SLACK = 1.0               # s before the first picture, or after the last, in which it still counts
AHEAD = 10.0              # s up to which decoding goes on; x264 has a key frame each 250 frames
JITTER = 256, 320         # short side before a crop of 224, pixels; 256 in evaluation


# --- Files ---
def find_videos(folder):
    """{id: path} of the videos in a folder and below, or of one file. InputError if there are none,
    or if two files have one id."""
    if Path(folder).is_file():
        return {video_name(folder): Path(folder)}
    paths, found, visited = [], {}, set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        if os.path.realpath(parent) in visited:            # links in a circle would never end
            folders.clear()
            continue
        visited.add(os.path.realpath(parent))
        paths += [Path(parent, name) for name in names if name.lower().endswith(VIDEO_SUFFIXES)]
    for path in sorted(paths):
        first = found.setdefault(video_name(path), path)
        require(first == path or first.samefile(path), f"{first} and {path}: two files of one id; "
                "rename one")
    require(found, f"{folder}: not there, or a folder without {', '.join(VIDEO_SUFFIXES)}")
    return found


@contextmanager
def open_video(path):
    """Open a file as (container, its first video stream). Errors of FFmpeg become Unreadable."""
    try:
        with av.open(str(path), metadata_errors="replace") as container:
            streams = [stream for stream in container.streams.video if stream.codec_context]
            if not streams:
                raise Unreadable(f"{path}: no video stream that can be decoded")
            streams[0].codec_context.thread_count = 1  # FFmpeg's threads can hang in a worker
            yield container, streams[0]
    except av.FFmpegError as error:
        raise Unreadable(f"{path}: cannot be read: {error.strerror}") from None


def duration(path):
    """The seconds from the start of a file to the end of its video, by the header, even if the file
    is cut off; a recorded webm is read to its end. Raises Unreadable."""
    with open_video(path) as (container, stream):
        if stream.duration:
            end = ((stream.start_time or 0) + stream.duration) * stream.time_base
        elif container.duration:                       # mkv: from 0, as its time stamps
            end = container.duration / av.time_base
        else:
            last = 0
            for packet in container.demux(stream):
                if packet.pts is not None:
                    last = max(last, packet.pts + (packet.duration or 0))
            end = last * stream.time_base
        return float(end) - (container.start_time or 0) / av.time_base


# --- Frames ---
def read_frames(path, times, short_side=None):
    """Return the pictures at `times`, from one opening of the file, decoded forward.

    Args:    times (n,) s, in any order, up to 1 s after the end, since annotations often end late;
             short_side: pixels; pictures with a longer one are reduced to it.
    Returns: (n, 3, H, W) uint8, upright, of the size of the first.
    Raises:  Unreadable if the file cannot be decoded, is damaged there, or ends too early.
    """
    distinct, which = np.unique(times, return_inverse=True)                  # sorted; (n,)
    pictures, scaler = [], VideoReformatter()
    with open_video(path) as (container, stream):
        for frame in frames_at(path, container, stream, distinct):
            if not pictures:
                factor = min(1.0, (short_side or np.inf) / min(frame.width, frame.height))
                width, height = round(frame.width * factor), round(frame.height * factor)
                turns = round(frame.rotation / 90)     # of a phone; FFmpeg does not turn frames
            rgb = scaler.reformat(frame, width, height, "rgb24", threads=1).to_ndarray()
            pictures.append(np.rot90(rgb, turns).transpose(2, 0, 1))                 # (3, H, W)
    return torch.from_numpy(np.ascontiguousarray(np.stack(pictures)[which]))


def frames_at(path, container, stream, times):
    """Yield the av.VideoFrame that is shown at each of the sorted `times` (n,), s."""
    start = (container.start_time or 0) / av.time_base
    shown = following = frames = None                  # `following` was decoded last
    for time in times + start + 1e-6:                  # rounding must not miss a frame
        if frames is None or time > (following or shown).time + AHEAD:
            for target in (time, time - 1, start):     # a seek can end too late, or amid frames
                container.seek(int(max(target, start) / stream.time_base), stream=stream)
                frames = (frame for frame in container.decode(stream) if frame.time is not None)
                shown, following = None, next(frames, None)
                if following is not None and following.time <= time and not following.is_corrupt:
                    break
        while following is not None and following.time <= time:
            shown, following = following, next(frames, None)
        frame = shown or following
        if frame is None or frame.is_corrupt:
            raise Unreadable(f"{path}: damaged at {time - start:.1f} s")
        if frame.time > time + SLACK:
            raise Unreadable(f"{path}: begins after {time - start:.1f} s")
        end = frame.time + float(frame.duration * frame.time_base)
        if following is None and time > end + SLACK:   # a file that is cut off may not say so
            raise Unreadable(f"{path}: ends before {time - start:.1f} s; times must be seconds")
        yield frame


# --- Crops: the squares of a clip that the encoder is given ---
def short_side_for(size):
    """The short side, pixels, from which no crop of `size` is enlarged."""
    return round(size * JITTER[1] / 224)


def training_crop(frames, size, rng):
    """(F, 3, H, W) uint8 -> (F, 3, size, size): a random square, mirrored in half of the draws."""
    height, width = frames.shape[-2:]
    side = round(min(height, width) * 224 / rng.uniform(*JITTER))
    top, left = rng.integers(height - side + 1), rng.integers(width - side + 1)
    frames = transform.resized_crop(frames, top, left, side, side, [size, size])
    return transform.horizontal_flip(frames) if rng.random() < 0.5 else frames


def evaluation_crop(frames, size):
    """(F, 3, H, W) uint8 -> (F, 3, size, size): the center square, 224 of a short side of 256."""
    height, width = frames.shape[-2:]
    side = round(min(height, width) * 224 / JITTER[0])
    top, left = (height - side) // 2, (width - side) // 2
    return transform.resized_crop(frames, top, left, side, side, [size, size])


def read_clips(path, encoder, windows=None):
    """Clips of a file as an encoder reads them: (n, F, 3, H, W) uint8. Raises Unreadable. windows:
    (n, 2) s; None: the last 68 s in 8 windows, as in a forecast at the end."""
    windows = history_windows(duration(path)) if windows is None else windows
    size, F, seconds = Pictures.of(encoder)
    frames = read_frames(path, frame_times(windows, F, seconds).flatten(), short_side_for(size))
    return evaluation_crop(frames, size).unflatten(0, (-1, F))
