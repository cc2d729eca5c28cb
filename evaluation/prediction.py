"""What predict.py needs: the observed part of a video, ranked steps, counted futures, the truth.

Q Monte Carlo samples, each with a future of H steps; S steps to choose among, D embedding.
"""
from collections import Counter
from typing import NamedTuple

import numpy as np
import torch

from data import Example, Video, forecast_windows, frame_times, observed_steps
from evaluation.labeled import require_teacher, teacher_of
from files.lists import load_steps
from files.video import Unreadable, duration, read_clips, read_frames
from support.errors import InputError, require
from toy import grammar, render
from toy.source import load_teacher


class Observed(NamedTuple):
    """What is observed of a video."""
    name: str
    windows: np.ndarray                    # (8, 2) s
    clips: torch.Tensor                    # (8, F, 3, S, S) uint8, the encoder's view
    pictures: np.ndarray                   # (8, 3, H, W) uint8, the middle of each window
    script: Video | None                   # of the embedded world: its steps are known


def of_embedded_world(model):
    """Whether a checkpoint was trained on the embedded world."""
    return tuple(model.pixels) == (render.MEAN, render.STD)


def open_steps(steps, model, args, device):
    """The steps to choose among: S names, and their text embeddings (S, D) on the device."""
    toy = of_embedded_world(model)
    if steps is None:
        require(toy, "--steps is needed: a file with a step per line")
        steps = grammar.STEPS
    names = list(steps) if isinstance(steps, (list, tuple)) else load_steps(steps)
    require(len(names) > 1, "--steps: one step: nothing to choose from; give two or more")
    teacher = load_teacher(device) if toy else teacher_of(model, args, device)
    require_teacher(teacher, model, args.checkpoint)
    return names, teacher.encode_phrases(names).to(device)


def observe_file(path, model, at):
    """The last 68 s of a video file before `at` s; None: before its end -> Observed."""
    try:
        length = duration(path)
        end = length if at is None else at
        require(0 < end <= length, f"--at {end:g}: {path} ends at {length:.1f} s")
        windows = forecast_windows(end)                                        # (8, 2)
        clips = read_clips(path, model.encoder, windows)
        pictures = read_frames(path, windows.mean(1), 512).numpy()
    except Unreadable as error:
        raise InputError(f"{error}; if it is cut off, --at names an earlier moment") from None
    return Observed(str(path), windows, clips, pictures, None)


def observe_toy(number, model, at, left):
    """A test video of the embedded world, until `at` s or `left` steps are left -> Observed."""
    script = grammar.make_video("test", number)
    ends = [step.end for step in script.steps]
    end = ends[max(len(ends) - 1 - left, 0)] if at is None else at
    require(0 < end <= script.duration, f"--at {end:g}: {script.name} ends at "
            f"{script.duration:.1f} s")
    windows, frames = forecast_windows(end), render.render(script)

    def frames_at(times):
        return frames[np.floor(times * render.FPS).astype(int).clip(0, len(frames) - 1)]

    clips = torch.from_numpy(frames_at(frame_times(windows, model.encoder.frames)))
    return Observed(script.name, windows, clips, frames_at(windows.mean(1)), script)


# --- What comes next ---
def rank_steps(p, names):
    """[{"step", "p"}, ...] of probabilities (S,), the largest first; equal ones as listed."""
    pairs = sorted(zip(names, p.tolist()), key=lambda pair: -pair[1])
    return [{"step": name, "p": value} for name, value in pairs]


def rank_next(p, picks, names):
    """[{"step", "p", "share"}, ...] of next steps, by share and then by p, the largest first.

    p (S,): the mean of Q samples (Eq. 11); share: how many of them have the step as their
    likeliest, picks (Q,).
    """
    counts = Counter(picks.tolist())
    rows = [{"step": name, "p": value, "share": counts[step] / len(picks)}
            for step, (name, value) in enumerate(zip(names, p.tolist()))]
    return sorted(rows, key=lambda row: (-row["share"], -row["p"]))


def count_futures(picks, names):
    """[{"steps", "share"}, ...] of futures (Q, H): how many of the Q took each, the most first."""
    counts = Counter(map(tuple, picks.tolist())).most_common()
    return [{"steps": [names[step] for step in future], "share": count / len(picks)}
            for future, count in counts]


def truth_of(observed, futures):
    """What the embedded world knows: the steps observed, what follows, the exact probabilities.

    Returns: {"clips": [step or None, ...], "next": [{"step", "p"}], "futures": [{"steps",
             "share"}], "follows": [step, ...]}; next and futures are empty after the last step.
    """
    script, windows = observed.script, observed.windows
    begun = sum(step.start <= windows[-1, 1] - 1 for step in script.steps)
    clips = [next((grammar.STEPS[step.label] for step in script.steps
                   if step.start <= middle < step.end), None) for middle in windows.mean(1)]
    truth = {"clips": clips, "next": [], "futures": [],
             "follows": [grammar.STEPS[step.label] for step in script.steps[begun:]]}
    if truth["follows"]:
        exact = grammar.Grammar()
        before = observed_steps(Example(0, windows, -1, begun), script) if begun else ([], True)
        rows = rank_steps(exact.next_step(*before), grammar.STEPS)
        truth["next"] = [row for row in rows if row["p"] > 0]
        for future in futures:
            steps = [grammar.STEP_ID.get(step, -1) for step in future["steps"]]
            truth["futures"].append({**future, "share": exact.chance(*before, steps)})
    return truth
