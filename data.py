"""What an example is: which windows of a video are its clips, and what is to be predicted.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3, Sec. 4 and appendix B.

Times are in seconds; rng is a numpy Generator. A video has n windows. A batch has C clips, numbered
0 to C - 1. h reads R rows of nine clips. toy/source.py and files/sources.py give the clips.
"""
from typing import NamedTuple

import numpy as np
import torch

CLIPS = 9                     # N: places in a row of h
HISTORY, PIECES = 68.0, 8     # s of video that a forecast observes; clips they are cut into
CLIP_SECONDS = 9.0            # of a narrated clip, and of a clip to classify; as in the release
EPIC_FRAMES, EPIC_SECONDS = 32, 2.0                # of a clip of an action: 16 frames/s
MIN_WORDS, STRIDE = 12, 2     # shorter sentences are joined; every second gives a clip (release)


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
    size: int                          # side of a picture, pixels
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


def window_around(start, end, seconds, duration):
    """A window of `seconds` with the same middle as (start s, end s), moved into (0, duration)."""
    first = max(0.0, min((start + end - seconds) / 2, duration - seconds))
    return first, min(first + seconds, duration)


def joined(sentences, i):
    """First and last of the sentences that are joined with sentence i. As long as they have fewer
    than 12 words, the next sentence and the one before are added in turn."""
    first = last = i
    while sum(len(text.split()) for _, _, text in sentences[first:last + 1]) < MIN_WORDS:
        before, after = first > 0, last + 1 < len(sentences)
        if not (before or after):
            break
        if after and (last - i <= i - first or not before):
            last += 1
        else:
            first -= 1
    return first, last


def sentence_windows(sentences, duration, rng):
    """9-s windows around every second sentence, and what is `joined` with it: (n, 2) float64.

    A draw decides whether to begin with the first or the second sentence.
    sentences: [(start s, end s, text), ...], by start, each with words.
    """
    windows = []
    for i in range(rng.integers(min(STRIDE, max(len(sentences), 1))), len(sentences), STRIDE):
        first, last = joined(sentences, i)
        start, end = sentences[first][0], sentences[last][1]
        windows.append(window_around(start, end, CLIP_SECONDS, duration))
    return np.array(windows).reshape(-1, 2)


def consecutive_windows(windows, clips, rng):
    """At most `clips` consecutive windows of these (n, 2) s. The first is drawn uniformly."""
    first = rng.integers(max(len(windows) - clips, 0) + 1)
    return windows[first:first + clips]


def paper_rows(videos, rng=None, hide_tail=False):
    """Sec. 3: rows of up to nine consecutive clips; each clip of a video is missing in one row. By
    default, training/rows.py uses this on one clip of each step.

    If a video has more than nine clips, the place of the missing clip in its row is drawn uniformly
    (without rng: the middle place). It shifts if the row would pass an end of the video.
    hide_tail: from a random place after the missing clip, clips become padding, as in the release.

    Args:    videos: [[clip, ...], ...], the numbers of each video's clips in time order.
    Returns: [(row, j), ...]: nine numbers of clips, -1 = padding; the place of the missing clip.
    """
    rows = []
    for clips in videos:
        for k in range(len(clips)):
            place = CLIPS // 2 if rng is None else int(rng.integers(CLIPS))
            first = max(0, min(k - place, len(clips) - CLIPS))
            row, j = clips[first:first + CLIPS], k - first
            if hide_tail and j + 1 < len(row):
                row = row[:rng.integers(j + 1, len(row))]
            rows.append((row + [-1] * (CLIPS - len(row)), j))
    return rows


def forecast_windows(end, history=HISTORY, start=0.0):
    """The last 68 s before `end`, not before `start`, cut into 8 windows: (...) -> (..., 8, 2)."""
    edges = np.linspace(np.maximum(start, end - history), end, PIECES + 1, axis=-1)
    return np.stack([edges[..., :-1], edges[..., 1:]], -1)


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


def examples_of(task, videos, min_steps=2):
    """The examples of a task. To forecast and infill, a video needs at least min_steps steps.

        "classify"  every annotated step, in three views
        "forecast"  for two consecutive steps: the history that ends with one, the label of the next
        "infill"    one clip of every step, in videos with at least three steps
        "activity"  the whole video, cut into 8
    """
    if task == "classify":
        return classify_examples(videos)
    if task == "infill":
        return [example for example in classify_examples(videos, 1)
                if len(videos[example.video].steps) >= max(min_steps, 3)]
    examples = []
    for i, video in enumerate(videos):
        if task == "activity":
            end = video.duration or max((step.end for step in video.steps), default=0.0)
            examples.append(Example(i, forecast_windows(end, np.inf), video.activity, 0))
        elif len(video.steps) >= min_steps:
            pairs = enumerate(zip(video.steps, video.steps[1:]), start=1)
            examples += [Example(i, forecast_windows(now.end), then.label, k)
                         for k, (now, then) in pairs if now.end > 0]
    return examples


def observed_steps(example, video):
    """Labels of the steps seen for 1 s or more; whether the video's first step is among them."""
    start = example.windows[0, 0]
    observed = [k for k in range(example.step) if video.steps[k].end - start >= 1]
    return [video.steps[k].label for k in observed], 0 in observed
