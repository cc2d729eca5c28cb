"""What predict.py needs: the observed part of a video, sampled futures, ranked steps, the truth.

Q Monte Carlo samples, each with a future of H steps; S steps to choose among, N clips, D embedding.
"""
from collections import Counter

import numpy as np
import torch
from torch.nn.functional import normalize

from data import PIECES, Example, Video, frame_times, history_windows
from files.features import FeatureSource, find_rows
from files.lists import video_name
from files.sources import VideoSource
from files.video import read_frames, view_of
from support.errors import require
from toy import grammar, render


# --- What is observed ---
def observe_file(path, model, at, name=None):
    """What is observed before `at` s, or before the end if None, of a video file, or of the video
    `name` in a file of features -> windows (N, 2) s, N <= 8; their clips (N, F, 3, S, S) uint8, or
    (N, F); pictures (N, 3, H, W) uint8 of their middles, None of features."""
    view, video = view_of(model.encoder), Video(video_name(name or path))
    require(bool(view.size) != bool(name), "the checkpoint reads "
            f"{'videos, not features' if name else 'features: give F.npz --video ID'}")
    kind, paths = (FeatureSource, find_rows(path)) if name else (VideoSource, {video.name: path})
    source = kind([video], paths, view)
    length = source.duration(0)
    end = length if at is None else at
    require(0 < end <= length, f"--at {end:g}: {path} ends at {length:.1f} s")
    windows = history_windows(end, model.pitch)
    clips, _ = source.clips(0, windows, None)
    return windows, clips, None if name else read_frames(path, windows.mean(1), 512).numpy()


def observe_toy(script, number, model, at, left):
    """As `observe_file`, of test video `number` of the toy world. at: None: the end of a step that
    is drawn, such that `left` steps remain."""
    if at is None:
        step = np.random.default_rng(number).integers(max(len(script.steps) - left, 1))
        at = script.steps[step].end
    require(0 < at <= script.duration,
            f"--at {at:g}: {script.name} ends at {script.duration:.1f} s")
    windows, frames = history_windows(at, model.pitch), render.render(script)
    taken, middle = (render.last_taken(times, len(frames)) for times in (
        frame_times(windows, model.encoder.frames), windows.mean(1)))
    return windows, torch.from_numpy(frames[taken]), frames[middle]


# --- What comes next ---
def match_labels(model, x, texts):
    """log p over the label set, (..., D) -> (..., S): by texts, or by a fine-tuned classifier."""
    return model.classify(x)[0] if model.task else model.match(x, texts)


def sample_in_turn(model, x, texts, noise):
    """Q futures of H steps of a video, each sampled step by step (Sec. 3.3, repeated).

    What h predicted, x_hat at unit length, is then the last clip observed; of nine, the first
    leaves. x (N, D), noise (H, Q, D) -> (Q, S), log p of the next step, and (Q, H) int64, the
    likeliest steps.
    """
    log_p, x = [], x.expand(noise.shape[1], -1, -1)                            # (Q, N, D)
    for eps in noise.to(x.device):
        x_hat = model.forecast_next(x, eps[:, None])                           # (Q, 1, D)
        log_p.append(match_labels(model, x_hat[:, 0], texts))                  # (Q, S)
        x = torch.cat([x, normalize(x_hat, dim=-1)], 1)[:, -PIECES:]
    return log_p[0], torch.stack(log_p, 1).argmax(-1)


def observed_steps(example, video):
    """What a forecast may know in the toy world: labels of the steps that are seen for 1 s or more;
    whether the video's first step is among them."""
    seen = [step.end - example.windows[0, 0] >= 1 for step in video.steps]
    return [video.steps[k].label for k in range(example.step) if seen[k]], seen[0]


def rank_steps(names, **columns):
    """[{"step": name, column: number, ...}, ...] of columns (S,), the largest of the first column
    first, of equal ones that of the next; then as listed."""
    numbers = zip(*(column.tolist() for column in columns.values()))
    rows = [{"step": name, **dict(zip(columns, row))} for name, row in zip(names, numbers)]
    return sorted(rows, key=lambda row: [-row[column] for column in columns])


def count_futures(picks, names):
    """[{"steps", "share"}, ...] of futures (Q, H): each with its share of the Q, largest first."""
    counts = Counter(map(tuple, picks.tolist())).most_common()
    return [{"steps": [names[step] for step in future], "share": count / len(picks)}
            for future, count in counts]


def truth_of(script, windows, futures):
    """What the toy world knows: the step of each window or None, the exact "next" step and share of
    each of the futures, if the video goes on, and what "follows" in it."""
    exact, shown = grammar.Grammar(), []
    for middle in windows.mean(1):
        labels = [step.label for step in script.steps if step.start <= middle < step.end]
        shown.append(grammar.STEPS[labels[0]] if labels else None)
    begun = sum(step.start <= windows[-1, 1] - 1 for step in script.steps)
    before = observed_steps(Example(0, windows, -1, begun), script)
    rows = rank_steps(grammar.STEPS, p=exact.next_step(*before))
    ids = [[grammar.STEP_ID.get(step, -1) for step in future["steps"]] for future in futures]
    return {"clips": shown, "next": [row for row in rows if row["p"] > 0],
            "futures": [future | {"share": exact.chance(*before, steps)}
                        for future, steps in zip(futures, ids)],
            "follows": [grammar.STEPS[step.label] for step in script.steps[begun:]]}
