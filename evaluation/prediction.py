"""What predict.py needs: the observed part of a video, ranked steps, counted futures, the truth.

Q Monte Carlo samples, each with a future of H steps; S steps to choose among, D embedding.
"""
from collections import Counter
from typing import NamedTuple

import numpy as np
import torch

from data import Example, Video, forecast_windows, frame_times, observed_steps
from files.features import FeatureSource, find_rows, require_widths
from files.lists import load_phrases, video_name
from files.video import duration, read_clips, read_frames
from support.errors import require
from toy import grammar, render


class Observed(NamedTuple):
    """What is observed of a video."""
    name: str
    windows: np.ndarray                    # (8, 2) s
    clips: torch.Tensor                    # (8, F, 3, S, S) uint8, the encoder's view; or (8, F)
    pictures: np.ndarray | None            # (8, 3, H, W) uint8, the middle of each window
    script: Video | None                   # of the toy world: its steps are known


def read_steps(steps, toy):
    """The names to choose among: a list, those in a file, or the toy world's if `toy` and None."""
    names = grammar.STEPS if toy and steps is None else steps
    require(names is not None, "--steps is needed: a file with a step per line")
    names = list(names) if isinstance(names, (list, tuple)) else load_phrases(names)
    require(len(names) > 1, "--steps: one step leaves no choice; give two or more")
    return names


def observe_file(path, model, at, name=None):
    """The last 68 s before `at` s, or before the end if None, of a video file, or of the video
    `name` in a file of features -> Observed."""
    require((name is None) == bool(model.encoder.image), "the checkpoint reads "
            f"{'features: give F.npz --video ID' if name is None else 'videos, not features'}")
    if name:
        source = FeatureSource([Video(video_name(name))], find_rows(path), None)
        require_widths(source.paths, model.encoder.features)
    length = source.duration(0) if name else duration(path)
    end = length if at is None else at
    require(0 < end <= length, f"--at {end:g}: {path} ends at {length:.1f} s")
    windows = forecast_windows(end)                                            # (8, 2)
    if name:
        return Observed(name, windows, source.clips(0, windows, None)[0], None, None)
    clips = read_clips(path, model.encoder, windows)
    pictures = read_frames(path, windows.mean(1), 512).numpy()
    return Observed(str(path), windows, clips, pictures, None)


def observe_toy(number, model, at, left):
    """A test video of the toy world, up to `at` s, or until `left` steps remain -> Observed."""
    script = grammar.make_video("test", number)
    end = script.steps[max(len(script.steps) - 1 - left, 0)].end if at is None else at
    require(0 < end <= script.duration,
            f"--at {end:g}: {script.name} ends at {script.duration:.1f} s")
    windows, frames = forecast_windows(end), render.render(script)
    taken, middle = (render.last_taken(times, len(frames)) for times in (
        frame_times(windows, model.encoder.frames), windows.mean(1)))
    clips = torch.from_numpy(frames[taken])
    return Observed(script.name, windows, clips, frames[middle], script)


# --- What comes next ---
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
