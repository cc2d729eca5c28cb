"""What predict.py needs: the observed part of a video, sampled futures, ranked steps, the truth.

Q Monte Carlo samples, each with a future of H steps; S steps to choose among, N clips, D embedding.
"""
from collections import Counter
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import normalize

from data import PIECES, Example, Video, frame_times, history_windows
from files.features import FeatureSource, find_rows, require_widths
from files.lists import load_phrases, video_name
from files.video import duration, read_clips, read_frames
from support.errors import require
from toy import grammar, render


class Observed(NamedTuple):
    """What is observed of a video."""
    name: str
    windows: np.ndarray                    # (N, 2) s, N <= 8
    clips: torch.Tensor                    # (N, F, 3, S, S) uint8, the encoder's view; or (N, F)
    pictures: np.ndarray | None            # (N, 3, H, W) uint8, the middle of each window
    script: Video | None                   # of the toy world: its steps are known


def read_steps(steps, toy):
    """The names to choose among: a list, those in a file, or the toy world's if `toy` and None."""
    names = grammar.STEPS if toy and steps is None else steps
    require(names is not None, "--steps is needed: a file with a step per line")
    names = list(names) if isinstance(names, (list, tuple)) else load_phrases(names)
    require(len(names) > 1, "--steps: one step leaves no choice; give two or more")
    return names


def observe_file(path, model, at, name=None):
    """The last clips before `at` s, or before the end if None, of a video file, or of the video
    `name` in a file of features -> Observed."""
    require((name is None) == bool(model.encoder.image), "the checkpoint reads "
            f"{'features: give F.npz --video ID' if name is None else 'videos, not features'}")
    if name:
        source = FeatureSource([Video(video_name(name))], find_rows(path), None)
        require_widths(source.paths, model.encoder.features)
    length = source.duration(0) if name else duration(path)
    end = length if at is None else at
    require(0 < end <= length, f"--at {end:g}: {path} ends at {length:.1f} s")
    windows = history_windows(end, model.pitch)                                # (N, 2)
    if name:
        return Observed(name, windows, source.clips(0, windows, None)[0], None, None)
    clips = read_clips(path, model.encoder, windows)
    pictures = read_frames(path, windows.mean(1), 512).numpy()
    return Observed(str(path), windows, clips, pictures, None)


def observe_toy(number, model, at, left):
    """A test video of the toy world, up to `at` s; None: to the end of a step that is drawn, such
    that `left` steps remain -> Observed."""
    script = grammar.make_video("test", number)
    if at is None:
        step = np.random.default_rng(number).integers(max(len(script.steps) - left, 1))
        at = script.steps[step].end
    require(0 < at <= script.duration,
            f"--at {at:g}: {script.name} ends at {script.duration:.1f} s")
    windows, frames = history_windows(at, model.pitch), render.render(script)
    taken, middle = (render.last_taken(times, len(frames)) for times in (
        frame_times(windows, model.encoder.frames), windows.mean(1)))
    return Observed(script.name, windows, torch.from_numpy(frames[taken]), frames[middle], script)


# --- What comes next ---
def match_labels(model, x, texts):
    """log p over the label set, (..., D) -> (..., S): by texts, or by a fine-tuned classifier."""
    return model.classify(x)[0] if model.task else model.match(x, texts)


@torch.no_grad()
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
    """Labels of the steps seen for 1 s or more; whether the video's first step is among them."""
    start = example.windows[0, 0]
    observed = [k for k in range(example.step) if video.steps[k].end - start >= 1]
    return [video.steps[k].label for k in observed], 0 in observed


def rank_steps(names, p, share=None):
    """[{"step", "p"}, ...] of probabilities (S,), the largest first; equal ones as listed.
    With a share (S,), [{"step", "p", "share"}, ...], by share and then by p."""
    rows = [{"step": name, "p": value} for name, value in zip(names, p.tolist())]
    if share is not None:
        rows = [row | {"share": value} for row, value in zip(rows, share.tolist())]
    return sorted(rows, key=lambda row: (-row.get("share", 0), -row["p"]))


def count_futures(picks, names):
    """[{"steps", "share"}, ...] of futures (Q, H): each with its share of the Q, largest first."""
    counts = Counter(map(tuple, picks.tolist())).most_common()
    return [{"steps": [names[step] for step in future], "share": count / len(picks)}
            for future, count in counts]


def truth_of(observed, futures):
    """What the toy world knows: {"clips": [step or None, ...], "next": [{"step", "p"}],
    "futures": [{"steps", "share"}], "follows": [step, ...]}; after the last step, next and futures
    are empty."""
    script, windows, exact = observed.script, observed.windows, grammar.Grammar()
    clips = [next((grammar.STEPS[step.label] for step in script.steps
                   if step.start <= middle < step.end), None) for middle in windows.mean(1)]
    begun = sum(step.start <= windows[-1, 1] - 1 for step in script.steps)
    follows = [grammar.STEPS[step.label] for step in script.steps[begun:]]
    truth = {"clips": clips, "next": [], "futures": [], "follows": follows}
    if follows:
        before = observed_steps(Example(0, windows, -1, begun), script) if begun else ([], True)
        rows = rank_steps(grammar.STEPS, exact.next_step(*before))
        truth["next"] = [row for row in rows if row["p"] > 0]
        for future in futures:
            steps = [grammar.STEP_ID.get(step, -1) for step in future["steps"]]
            truth["futures"].append({**future, "share": exact.chance(*before, steps)})
    return truth
