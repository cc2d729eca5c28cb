"""What a sample is: which windows of a video are its clips, and what is to be predicted.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 4 and appendix B.

Times are seconds. N clips, P missing ones, n windows of one video, S steps that they show, m rows,
rng a numpy Generator. Clips of several videos are stacked, (C, ...). Where clips come from:
toy/source.py and files/sources.py.
"""
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

CLIPS = 9                     # N: places in a row of h when one clip is missing
HISTORY, PIECES = 68.0, 8     # s of observed video in step forecasting, cut into so many clips
CLIP_SECONDS = 9.0            # of a narrated clip, and of a clip to classify; as in the release
EPIC_FRAMES, EPIC_SECONDS = 32, 2.0                # of a clip of an action: 16 frames/s
MIN_WORDS = 12                # a shorter sentence is joined with its neighbors (release)
STRIDE = 2                    # every second sentence gives a clip (release)
AMONG = 3                     # every third step is also missing among the steps around it
UNSURE = 1 / 3                # share of all clips, the least sure, not asked for as a next step


# --- Videos, samples, clips ---
class Step(NamedTuple):
    """One annotated step, from `start` to `end` s. label: class; (verb, noun) of EPIC."""
    start: float
    end: float
    label: int


@dataclass(frozen=True, slots=True)
class Video:
    """One listed video. `name` is the stem of its file; None where a list does not say."""
    name: str
    split: str | None = None           # "train", "validation" or "test"
    activity: int | None = None        # COIN's recipe_type, 0 to 179
    duration: float | None = None      # s
    steps: tuple = ()                  # Step, sorted by start


class View(NamedTuple):
    """What f sees of a window."""
    size: int                          # side of a picture, pixels
    frames: int                        # F
    seconds: float | None = None       # of the window's middle; None: all of it


def view_of(encoder):
    """The View of a TimeSformer or MViT."""
    return View(encoder.image, encoder.frames, encoder.seconds)


@dataclass(frozen=True)
class Sample:
    """One thing to predict: what is observed of which video, and the right answer."""
    video: int                    # position in source.videos
    windows: np.ndarray           # (n, 2) s
    label: int                    # a class; (verb, noun) of EPIC-Kitchens-100
    step: int                     # which step of the video: the labeled one


class Loaded(NamedTuple):         # a tuple, so that the DataLoader pins its tensors
    """What a source gives for some requests, [(video, windows (n, 2) s), ...]."""
    requests: list                # those that could be read
    clips: torch.Tensor           # of all of them, (C, F, 3, H, W) uint8, or embeddings (C, D)
    views: object                 # what the teacher sees: a tensor, or a list of one per video
    failed: dict                  # {id: reason} of the others


# --- Pre-training ---
def window_around(start, end, seconds, duration):
    """A window of `seconds` with the same middle as (start s, end s), moved into (0, duration)."""
    first = max(0.0, min((start + end - seconds) / 2, duration - seconds))
    return first, min(first + seconds, duration)


def sentence_windows(sentences, duration, rng):
    """Pre-training windows of one narrated video: 9 s around every second sentence.

    A sentence of fewer than 12 words is joined with the next, then the previous one, and so on.

    Args:    sentences [(start s, end s, text), ...], by start, each with words.
    Returns: (n, 2) float64; n = 0 where nothing is said.
    """
    words = [len(text.split()) for _, _, text in sentences]
    windows = []
    for i in range(rng.integers(min(STRIDE, max(len(sentences), 1))), len(sentences), STRIDE):
        first = last = i
        while sum(words[first:last + 1]) < MIN_WORDS and (first > 0 or last < len(words) - 1):
            after = last < len(words) - 1 and (last - i <= i - first or first == 0)
            first, last = (first, last + 1) if after else (first - 1, last)
        windows.append(window_around(sentences[first][0], sentences[last][1], CLIP_SECONDS,
                                     duration))
    return np.array(windows).reshape(-1, 2)


def random_run(windows, clips, rng):
    """At most `clips` consecutive windows, of (n, 2) s, the first drawn uniformly."""
    first = rng.integers(max(len(windows) - clips, 0) + 1)
    return windows[first:first + clips]


def with_histories(windows):
    """Windows of steps (n, 2) s, then the 8 before each but the first: (9n - 8, 2)."""
    return np.concatenate([windows, forecast_windows(windows[:-1, 1]).reshape(-1, 2)])


def history_clips(windows, k):
    """The clips that stand for the history of clip k: (n, 2) s and k (m,) -> (m, 8) int64.

    The history is up to 68 s that end with clip k - 1, but not before the first clip, cut in 8.
    Each piece takes the clip whose middle is nearest to its own, of those before k.
    """
    pieces = forecast_windows(windows[k - 1, 1], start=windows[0, 0]).mean(2)       # (m, 8) s
    distance = np.abs(pieces[..., None] - windows.mean(1))                          # (m, 8, n)
    return np.where(np.arange(len(windows)) < k[:, None, None], distance, np.inf).argmin(2)


def next_step_rows(windows, begin, drawn, asked, P, histories):
    """Rows that ask what comes next, for each asked clip of all steps but the first and last P - 1.

    A row: 8 clips of the history before the clip's step, the clip, and a clip of each of the P - 1
    steps after it. The history is `history_clips`, or the clip's own 8: see `with_histories`.

    Args:    windows (n, 2) s; begin, drawn (S,): the first clip of each step, and one of its clips;
             asked (n,) bool.
    Returns: rows (m, 8 + P) of clips, j (m,): the place of the first missing one.
    """
    n, S = len(windows), len(begin)
    step = np.repeat(np.arange(S), np.diff(begin, append=n))         # (n,) of each clip
    k = np.flatnonzero(asked & (step > 0) & (step <= S - P))         # (m,) the missing clips
    if histories:
        history = n + PIECES * (k[:, None] - 1) + np.arange(PIECES)  # (m, 8) behind the n windows
    else:
        history = history_clips(windows, begin[step[k]])
    after = drawn[step[k][:, None] + np.arange(1, P)]                # (m, P - 1)
    return np.concatenate([history, k[:, None], after], 1), np.full(len(k), PIECES)


def any_step_rows(drawn, P, rng):
    """Rows that ask for a step among those around it: every third step is missing.

    Args:    drawn (S,): a clip of each step.
    Returns: rows (m, 8 + P), a clip of each of up to 8 + P consecutive steps, -1 = padding; j (m,):
             the place of the first missing one, drawn.
    """
    S, N = len(drawn), PIECES + P
    step = np.arange(rng.integers(np.clip(S - P + 1, 1, AMONG)), S - P + 1, AMONG)         # (m,)
    first = np.clip(step - rng.integers(PIECES + 1, size=len(step)), 0, max(S - N, 0))
    row = first[:, None] + np.arange(N)                              # (m, N) of steps
    return np.where(row < S, drawn[np.minimum(row, S - 1)], -1), step - first


def missing_rows(runs, steps, sure, most, rng, histories=False):
    """Rows of clips for h: clips are missing as what comes next, and among the steps around them.

    Consecutive clips of a run with equal numbers in `steps` show one step. A row has N = 8 + P
    places; one clip of each of P consecutive steps is missing (the paper's P is 1). The third of
    all clips that f is least sure of, many of which show no step, is not asked for as a next one.
    The paper hides one of nine consecutive clips instead: docs/differences.md.

    Args:    runs: [(n, 2) s, ...], the consecutive windows of each video, in time order;
             steps, sure: (C,) int and float: the likeliest phrase of each clip of all runs, and
             its probability, or anything that grows with it;
             most: P is drawn from 1 to this, or to the steps of the longest run;
             histories: whether the clips of each run are those of `with_histories`.
    Returns: rows (R, N) int64, R > 0, which of the C clips of all runs stands where, -1 = padding;
             j (R, P) int64, the places of the missing ones.
    Raises:  ValueError if a run has no window, or there are more or fewer clips than windows.
    """
    if not all(map(len, runs)):
        raise ValueError("a run without windows; leave out videos in which nothing is said")
    sizes = [len(windows) + histories * PIECES * (len(windows) - 1) for windows in runs]
    if len(steps) != sum(sizes):
        raise ValueError(f"{len(steps)} clips, but the runs have {sum(sizes)}")
    asked = sure >= np.quantile(sure, UNSURE)                        # (C,)
    starts = np.cumsum([0] + sizes[:-1])                             # the first clip of each run
    begins = [np.flatnonzero(np.diff(steps[start:start + len(windows)], prepend=-1))
              for start, windows in zip(starts, runs)]               # of each step of each run
    P = rng.integers(1, min(most, max(map(len, begins))) + 1)
    rows, places = [], []
    for start, windows, begin in zip(starts, runs, begins):
        n = len(windows)
        drawn = begin + rng.integers(np.diff(begin, append=n))       # (S,) a clip of each step
        for part, j in (next_step_rows(windows, begin, drawn, asked[start:start + n], P, histories),
                        any_step_rows(drawn, P, rng)):
            rows.append(np.where(part < 0, -1, start + part))
            places.append(j)
    j = np.concatenate(places)[:, None] + np.arange(P)
    return torch.from_numpy(np.concatenate(rows)), torch.from_numpy(j)


# --- Windows of the tasks, and frames ---
def forecast_windows(end, history=HISTORY, start=0.0):
    """The last 68 s before `end` s, or all from `start`, cut in 8 windows: (...) -> (..., 8, 2)."""
    edges = np.linspace(np.maximum(start, end - history), end, PIECES + 1, axis=-1)
    return np.stack([edges[..., :-1], edges[..., 1:]], -1)


def classify_windows(start, end, duration, views, seconds=CLIP_SECONDS):
    """`views` windows spread over a step; if it is shorter than one, all are around its middle."""
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


# --- Samples of the tasks ---
def forecast_samples(videos, min_steps=2):
    """One sample for every pair of consecutive steps: the history of one, the label of the next.

    Left out are videos of fewer than min_steps steps, and steps that end at 0 s.
    """
    return [Sample(i, forecast_windows(now.end), then.label, k)
            for i, video in enumerate(videos) if len(video.steps) >= min_steps
            for k, (now, then) in enumerate(zip(video.steps, video.steps[1:]), start=1)
            if now.end > 0]


def classify_samples(videos, views=3, seconds=CLIP_SECONDS):
    """One sample for every annotated step, or action: see `classify_windows`."""
    samples = []
    for i, video in enumerate(videos):
        duration = max([video.duration or 0.0] + [step.end for step in video.steps])
        samples += [Sample(i, classify_windows(step.start, step.end, duration, views, seconds),
                           step.label, k) for k, step in enumerate(video.steps)]
    return samples


def samples_of(task, videos, min_steps=2):
    """The samples of "classify", "forecast", "activity" or "infill".

    To infill: a clip of every step, of the videos with min_steps and at least three of them. An
    activity: the whole video, cut into 8.
    """
    if task == "forecast":
        return forecast_samples(videos, min_steps)
    if task == "classify":
        return classify_samples(videos)
    if task == "infill":
        return [sample for sample in classify_samples(videos, 1)
                if len(videos[sample.video].steps) >= max(min_steps, 3)]
    ends = [video.duration or max((step.end for step in video.steps), default=0.0)
            for video in videos]
    return [Sample(i, forecast_windows(end, np.inf), video.activity, 0)        # all of it, in 8
            for i, (video, end) in enumerate(zip(videos, ends))]


def observed_steps(sample, video):
    """Labels of the steps seen for 1 s or more; whether the video's first step is among them."""
    observed = [k for k in range(sample.step) if video.steps[k].end - sample.windows[0, 0] >= 1]
    return [video.steps[k].label for k in observed], observed[0] == 0
