"""What is asked of a video: the samples of forecasting, step and activity classification.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 4 and appendix B. The windows are those of
protocols.py; EPIC-Kitchens-100 is in epic.py.
"""
from dataclasses import dataclass

import numpy as np

from toy import grammar
from files.listings import Listed
from protocols import activity_windows, classify_windows, forecast_windows


@dataclass(frozen=True)
class Sample:
    """One thing to predict: what is observed of which video, and what is right."""
    video: int                    # position in source.videos
    windows: np.ndarray           # (n, 2) s
    label: int                    # a class; (verb, noun) of EPIC-Kitchens-100
    step: int                     # which step of the video: the labelled one


def steps_of(video):
    """[(start s, end s, label), ...] of a grammar.Video or an annotations.AnnotatedVideo."""
    if isinstance(video, grammar.Video):
        return [(*segment, step) for segment, step in zip(video.segments, video.steps)]
    return [(step.start, step.end, step.label) for step in video.steps]


def forecast_samples(videos, min_steps=2):
    """One sample for every pair of consecutive steps (k, k + 1): see `forecast_windows`.

    Videos with fewer than min_steps steps are left out. A step that ends at 0 s shows nothing and
    is left out too.
    """
    samples = []
    for i, video in enumerate(videos):
        if isinstance(video, Listed):
            samples.append(Sample(i, forecast_windows(video.end), video.label, 1))
            continue
        steps = steps_of(video)
        if len(steps) >= min_steps:
            samples += [Sample(i, forecast_windows(end), steps[k + 1][2], k + 1)
                        for k, (_, end, _) in enumerate(steps[:-1]) if end > 0]
    return samples


def classify_samples(videos, views=3):
    """One sample for every annotated step: see `classify_windows`."""
    samples = []
    for i, video in enumerate(videos):
        steps = [(video.start, video.end, video.label)] if isinstance(video, Listed) else \
            steps_of(video)
        duration = max([video.duration or 0.0] + [end for _, end, _ in steps])
        samples += [Sample(i, classify_windows(start, end, duration, views), label, k)
                    for k, (start, end, label) in enumerate(steps)]
    return samples


def activity_samples(videos):
    """One sample for every video: the whole of it, and its activity (COIN's recipe_type)."""
    samples = []
    for i, video in enumerate(videos):
        if isinstance(video, Listed):
            label, end = video.label, video.duration
        elif isinstance(video, grammar.Video):
            label, end = list(grammar.PROCEDURES).index(video.procedure), video.duration
        else:
            label, end = video.activity, video.duration or max(step.end for step in video.steps)
        samples.append(Sample(i, activity_windows(end), label, 0))
    return samples


def samples_of(task, videos, min_steps=2):
    """The samples of "classify", "forecast" or "activity"."""
    if task == "forecast":
        return forecast_samples(videos, min_steps)
    return classify_samples(videos) if task == "classify" else activity_samples(videos)


def shown_steps(sample, video):
    """The steps that a forecast is shown of a grammar.Video, and whether they begin with its first.

    A step is shown if at least a second of it lies in the window.
    """
    shown = [k for k in range(sample.step) if video.segments[k][1] - sample.windows[0, 0] >= 1]
    return [video.steps[k] for k in shown], shown[0] == 0
