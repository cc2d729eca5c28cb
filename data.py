"""Protocols: which windows of a video are its clips. Seconds in, seconds out; numpy only.

    protocol (paper, appendix B)                    function             windows (start s, end s)
    pre-training: around narrated sentences         sentence_windows     up to N = 9 of 9 s
    what is said in a window                        said_during          -
    pre-training on annotated steps (features)      step_windows         up to N = 9
    missing clips among these                       missing_clips        -
    a forecast out of these, as at inference        history_windows      8, and the missing clips
    step forecasting: the last 68 s, cut into 8     forecast_windows     8
    step classification: 3 views of one step        classify_windows     3 of 9 s
    activity classification: the whole video        activity_windows     8
    EPIC-Kitchens-100: views of one action          classify_windows     of 2 s
    F frames of a clip                              frame_times          -
    N clips, P missing ones, n windows of one video, rng a numpy Generator.
"""
import numpy as np

CLIPS = 9                     # N: clips per video in pre-training, and positions of h
HISTORY, PIECES = 68.0, 8     # s of observed video in step forecasting, cut into so many clips
CLIP_SECONDS = 9.0            # of a clip in pre-training and step classification
EPIC_FRAMES, EPIC_SECONDS = 32, 2.0                # of a clip of an action: 16 frames/s
MIN_WORDS = 12                # a shorter sentence is joined with its neighbours
STRIDE = 2                    # every second sentence gives a clip


def around(start, end, seconds, duration):
    """A window of `seconds` with the same middle as (start, end), moved into (0, duration)."""
    first = max(0.0, min((start + end - seconds) / 2, duration - seconds))
    return first, min(first + seconds, duration)


def sentence_windows(sentences, duration, rng):
    """Pre-training windows of one narrated video: 9 s around every second sentence.

    A sentence of fewer than 12 words is joined with the next, then the one before, and so on; its
    span grows with it. Of more than N windows a random run of N is kept; fewer are all kept, and
    the batch is padded (the released code repeats the last sentence instead).

    Args:
        sentences: list of (start s, end s, text), by start. Those without words are left out.
        duration:  s.
        rng:       numpy Generator: which sentence is first, which run is kept.
    Returns: (n, 2) float64, n <= N; n = 0 where nothing is said.
    """
    sentences = [s for s in sentences if s[2].split()]
    words = [len(text.split()) for _, _, text in sentences]
    windows = []
    for i in range(rng.integers(min(STRIDE, max(len(sentences), 1))), len(sentences), STRIDE):
        first = last = i
        while sum(words[first:last + 1]) < MIN_WORDS and (first > 0 or last < len(words) - 1):
            after = last < len(words) - 1 and (last - i <= i - first or first == 0)
            first, last = (first, last + 1) if after else (first - 1, last)
        windows.append(around(sentences[first][0], sentences[last][1], CLIP_SECONDS, duration))
    return random_run(np.array(windows).reshape(-1, 2), rng)


def said_during(sentences, windows):
    """Which sentences belong to each window: those whose middle lies in it, else the nearest one.

    Args:    sentences [(start s, end s, text), ...]; windows (n, 2) s.
    Returns: (n, m) float64, the share of each of the m sentences; rows sum to 1.
    """
    middle = np.array([(start + end) / 2 for start, end, _ in sentences])           # (m,)
    inside = (windows[:, :1] <= middle) & (middle <= windows[:, 1:])                # (n, m)
    distance = np.abs(middle - windows.mean(1, keepdims=True))
    if len(sentences):
        alone = ~inside.any(1)
        inside[alone, distance[alone].argmin(1)] = True
    return inside / np.maximum(inside.sum(1, keepdims=True), 1)


def step_windows(segments, rng):
    """Pre-training windows of a video without narration: its annotated segments, labels unused."""
    return random_run(np.asarray(segments, float).reshape(-1, 2), rng)


def random_run(windows, rng):
    """At most N consecutive windows, the first of them drawn uniformly."""
    first = rng.integers(max(len(windows) - CLIPS, 0) + 1)
    return windows[first:first + CLIPS]


def missing_clips(count, missing, rng):
    """The paper's missing clip, drawn uniformly; or several, one after another.

    As in the released code, also all that follow a uniformly drawn clip after them are hidden:
    otherwise h would never see that the future is unknown.

    Args:    count clips of a video, at least `missing` = P.
    Returns: j (P,) int64, and which clips may be read, (count,) bool.
    """
    j, place = rng.integers(count - missing + 1) + np.arange(missing), np.arange(count)
    return j, ~np.isin(place, j) & (place < rng.integers(j[-1], count) + 1)


def history_windows(before, missing, rng):
    """Forecasts as they are asked at inference: what comes next, after a history.

    The history ends in the second half of the clip before the missing ones, and is cut into 8
    windows however long it is. The clips themselves come one after another at the pace of the
    narration; a model that has seen nothing else is lost where 8 windows show two steps.

    Args:    before (m, 2) s, missing (m, P, 2) s: windows of pre-training.
    Returns: (m, 8 + P, 2) s: eight of the history, and the missing clips.
    """
    history = forecast_windows(rng.uniform(before.mean(1), before[:, 1]))       # (m, 8, 2)
    return np.concatenate([history, missing], 1)


def forecast_windows(end):
    """The observed history before `end` s: its last 68 s (or all there is) cut into 8 windows.

    end (...) -> (..., 8, 2).
    """
    edges = np.linspace(np.maximum(0.0, end - HISTORY), end, PIECES + 1, axis=-1)
    return np.stack([edges[..., :-1], edges[..., 1:]], -1)


def classify_windows(start, end, duration, views, seconds=CLIP_SECONDS):
    """`views` windows spread over a step; all around its middle where it is shorter than one."""
    spare = max(end - start - seconds, 0.0)
    middles = (start + end) / 2 + spare * (np.arange(views) - (views - 1) / 2) / max(views - 1, 1)
    return np.array([around(m, m, seconds, duration) for m in middles])


def random_window(start, end, seconds, rng):
    """(1, 2) s: a window anywhere within (start, end), or around its middle where it is longer."""
    middle = (start + end) / 2 + max(end - start - seconds, 0.0) * (rng.random() - 0.5)
    return np.array([around(middle, middle, seconds, np.inf)])


def activity_windows(duration):
    """The whole of a video cut into 8 windows: duration s -> (8, 2)."""
    edges = np.linspace(0.0, duration, PIECES + 1)
    return np.stack([edges[:-1], edges[1:]], -1)


def frame_times(windows, frames, seconds=None):
    """(n, F) s: the middles of F equal parts of each window (n, 2), or of its middle `seconds`."""
    windows = np.asarray(windows, float).reshape(-1, 2)
    if seconds is not None:
        spare = np.maximum(windows[:, 1] - windows[:, 0] - seconds, 0.0) / 2
        windows = windows + np.stack([spare, -spare], -1)
    part = (np.arange(frames) + 0.5) / frames
    return windows[:, :1] + (windows[:, 1:] - windows[:, :1]) * part
