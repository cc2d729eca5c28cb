"""What an example is: which windows of a video are its clips, and what is to be predicted.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3, Sec. 4 and appendix B.

Times are in seconds; rng is a numpy Generator. A video has n windows. C clips have F frames each.
"""
from typing import NamedTuple

import numpy as np
import torch

CLIPS = 9                     # N: clips of a video that h reads, the missing one included
PIECES = CLIPS - 1            # clips of a history, at most
HISTORY = 68.0                # s of video that a forecast observes, by the released protocol
CLIP_SECONDS = 9.0            # of a narrated clip, and of a clip to classify; as in the release
EPIC_FRAMES, EPIC_SECONDS = 32, 2.0                # of a clip of an action: 16 frames/s
MIN_WORDS = 12                # of a sentence; shorter ones are joined (release)
STRIDE = 2                    # every second sentence gives a clip (release)


class Step(NamedTuple):
    """One annotated step, from `start` to `end` s. label: class; (verb, noun) of EPIC."""
    start: float
    end: float
    label: int


class Video(NamedTuple):
    """One listed video. A field is None if the list lacks it."""
    name: str                          # the stem of its file
    split: str | None = None           # "train", "validation" or "test"
    activity: int | None = None        # COIN's recipe_type, 0 to 179
    duration: float | None = None      # s
    steps: tuple = ()                  # Step, sorted by start


class View(NamedTuple):
    """What f sees of a window."""
    size: int                          # side of a picture, pixels; 0: features
    frames: int                        # F
    seconds: float | None = None       # only the middle of the window; None: all


class Example(NamedTuple):
    """One thing to predict: what is observed of which video, and the right answer."""
    video: int                    # position in source.videos
    windows: np.ndarray           # (n, 2) s
    label: int                    # a class; (verb, noun) of EPIC-Kitchens-100
    step: int                     # which step of the video: the labeled one


class Loaded(NamedTuple):
    """What a source gives for requests (video, windows (n, 2) s, ...), such as Examples."""
    requests: list                # those that could be read
    clips: torch.Tensor           # of all of them, (C, F, 3, H, W) uint8
    views: torch.Tensor           # what the teacher sees of them: Teacher.encode_clips takes it
    failed: dict                  # {id: reason} of the others


# --- Pre-training: narrated clips ---
def window_around(start, end, seconds, duration):
    """A window of `seconds` with the middle of (start s, end s), moved into (0, duration)."""
    first = max(0.0, min((start + end - seconds) / 2, duration - seconds))
    return first, min(first + seconds, duration)


def joined(sentences, i):
    """First and last of the sentences that are joined with sentence i: until they have 12 words,
    the next sentence and the one before are added in turn."""
    first, last, end = i, i, len(sentences) - 1
    while ((first > 0 or last < end) and
           sum(len(text.split()) for _, _, text in sentences[first:last + 1]) < MIN_WORDS):
        if last < end and (first == 0 or last - i <= i - first):
            last += 1
        else:
            first -= 1
    return first, last


def sentence_windows(sentences, duration, rng, stride=STRIDE):
    """9-s windows around every `stride`-th sentence, and what is `joined` with it: (n, 2) float64.
    The first is drawn. sentences: [(start s, end s, text), ...], by start, each with words."""
    windows = []
    for i in range(rng.integers(min(stride, max(len(sentences), 1))), len(sentences), stride):
        first, last = joined(sentences, i)
        start, end = sentences[first][0], sentences[last][1]
        windows.append(window_around(start, end, CLIP_SECONDS, duration))
    return np.array(windows).reshape(-1, 2)


def consecutive(windows, rng):
    """Nine consecutive windows of (n, 2) s, the first one drawn; fewer are repeated, evenly."""
    n = len(windows)
    if n < CLIPS:
        return windows[np.linspace(0, max(n - 1, 0), CLIPS if n else 0).round().astype(int)]
    first = rng.integers(n - CLIPS + 1)
    return windows[first:first + CLIPS]


# --- Labeled examples ---
def equal_windows(start, end, n):
    """(start s, end s), cut into n equal windows: (n, 2)."""
    edges = np.linspace(start, end, n + 1)
    return np.stack([edges[:-1], edges[1:]], -1)


def history_windows(end, pitch=None):
    """What a forecast observes of a video before `end` s: (n, 2) s.

    pitch: s, the length of a window, so that h reads clips as far apart as in training; n <= 8 fit
    into the video. None: the released protocol, the last 68 s cut into eight.
    """
    n = PIECES if pitch is None else min(max(round(end / pitch), 1), PIECES)
    seconds = HISTORY if pitch is None else n * pitch
    return equal_windows(max(0.0, end - seconds), end, n)


def classify_windows(start, end, duration, views, seconds=CLIP_SECONDS):
    """`views` windows spread over a step; all at its middle if it is shorter than a window."""
    spare = max(end - start - seconds, 0.0)
    middles = (start + end) / 2 + spare * (np.arange(views) - (views - 1) / 2) / max(views - 1, 1)
    return np.array([window_around(m, m, seconds, duration) for m in middles])


def frame_times(windows, frames, seconds=None):
    """(n, F) s: the middles of F equal parts of each window (n, 2), or of its middle `seconds`."""
    windows = np.asarray(windows, float).reshape(-1, 2)
    if seconds is not None:
        spare = np.maximum(windows[:, 1] - windows[:, 0] - seconds, 0.0) / 2
        windows = windows + np.stack([spare, -spare], -1)
    part = (np.arange(frames) + 0.5) / frames
    return windows[:, :1] + (windows[:, 1:] - windows[:, :1]) * part


def classify_examples(videos, views=3, seconds=CLIP_SECONDS):
    """One example for every annotated step, or action: see `classify_windows`."""
    examples = []
    for i, video in enumerate(videos):
        duration = max([video.duration or 0.0] + [step.end for step in video.steps])
        for k, step in enumerate(video.steps):
            windows = classify_windows(step.start, step.end, duration, views, seconds)
            examples.append(Example(i, windows, step.label, k))
    return examples


def activity_examples(videos):
    """One example for every video: all of it, cut into eight."""
    return [Example(i, equal_windows(0.0, video.duration or max(
        (step.end for step in video.steps), default=0.0), PIECES), video.activity, 0)
        for i, video in enumerate(videos)]


def forecast_examples(videos, pitch=None, min_steps=2):
    """One example for two consecutive steps of a video with min_steps steps or more: the history
    that ends with the first, and before the second begins, unless both begin at 0; the label of the
    second. pitch: as in `history_windows`."""
    examples = []
    for i, video in enumerate(videos):
        if len(video.steps) < min_steps:
            continue
        for k, (now, then) in enumerate(zip(video.steps, video.steps[1:]), start=1):
            end = min(now.end, then.start) if then.start > 0 else now.end
            if end > 0:
                examples.append(Example(i, history_windows(end, pitch), then.label, k))
    return examples
