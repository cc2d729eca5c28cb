"""Forecast from one video (Sec. 3.3, Fig. 3): what is observed of it, the futures it may take.

Q Monte Carlo samples, each with a future of H steps; S steps to choose among, D embedding.
"""
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from data import Sample, Video, forecast_windows, frame_times, observed_steps
from evaluation.labeled import cached_teacher, cached_texts, require_teacher, require_width
from files.annotations import load_text_embeddings
from files.listings import load_steps
from files.video import Unreadable, duration, read_clips, read_frames
from support.command import BadInput, check, require
from support.flags import adopt_teacher
from toy import grammar, render
from toy.source import load_teacher
from weights.checkpoint import load_model


class Observed(NamedTuple):
    """What is observed of a video."""
    name: str
    windows: np.ndarray                    # (8, 2) s
    clips: torch.Tensor                    # (8, F, 3, S, S) uint8, the encoder's view
    pictures: np.ndarray | None            # (8, 3, H, W) uint8, the middle of each window
    script: Video | None                   # of the embedded world: its steps are known


# --- A model, a list of steps, a video ---
def open_model(checkpoint, device):
    """The checkpoint in eval mode, and whether it was trained on the embedded world."""
    model = load_model(checkpoint)[0]
    require(not model.task, f"{checkpoint}: is fine-tuned for --task {model.task}, to classes of "
            "its own; give the checkpoint it was made from, which takes any steps")
    require(model.encoder, f"{checkpoint}: was trained on features and has no encoder; one that "
            "was trained on videos is needed")
    return model.to(device), tuple(model.pixels) == (render.MEAN, render.STD)


def open_steps(settings, model, of_toy, device):
    """The steps to choose among: S names, and their text embeddings (S, D) on the device."""
    if settings.text_embeddings:
        names, texts = load_text_embeddings(settings.text_embeddings)
        texts = torch.from_numpy(texts)
    else:
        for name in ("clip", "clip_weights") if of_toy else ():
            check(getattr(settings, name) is None, name, getattr(settings, name), "has no effect: "
                  f"{settings.checkpoint} is of the embedded world, which has a teacher of its own")
        adopt_teacher(settings, settings.checkpoint)
        settings.check_files()                         # nor may what is written replace that one
        names = grammar.STEPS if of_toy and settings.steps is None else settings.steps
        require(names is not None, "--steps is missing: a file with a step per line, or "
                "--text-embeddings FILE, is needed")
        names = load_steps(names) if isinstance(names, Path) else tuple(names)
        require(len(names) > 1, "--steps: nothing to choose from; two are needed")
        teacher = (load_teacher(device) if of_toy else
                   cached_teacher(settings.clip, settings.clip_weights, device))
        require_teacher(teacher, model, settings.checkpoint)
        texts = cached_texts(teacher, tuple(names))
    require_width(model, texts, settings.checkpoint)
    return list(names), texts.to(device)


def observe_file(path, model, at, pictured):
    """The last 68 s of a video file before `at` s -> Observed; pictured: whether with pictures."""
    try:
        length = duration(path)
        end = at or length
        check(0 < end <= length, "at", f"{end:g}",
              f"{path} ends at {length:.1f} s, as its header says")
        windows = forecast_windows(end)                                         # (8, 2)
        clips = read_clips(path, model.encoder, windows)
        pictures = read_frames(path, windows.mean(1), 512).numpy() if pictured else None
    except Unreadable as error:
        raise BadInput(f"{error}; if it is cut off, --at SECONDS names a moment before") from None
    return Observed(str(path), windows, clips, pictures, None)


def observe_toy(number, model, at, left):
    """A test video of the embedded world, until `at` s or `left` steps are left -> Observed."""
    script = grammar.make_video("test", number)
    ends = [step.end for step in script.steps]
    end = at or ends[max(len(ends) - 1 - left, 0)]
    check(end <= script.duration, "at", f"{end:g}",
          f"{script.name} ends at {script.duration:.1f} s")
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
    likeliest, picks (Q,)."""
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
    """What the embedded world knows: steps observed, what follows, and the exact probabilities.

    Returns: {"clips": [step or None, ...], "next": [{"step", "p"}], "futures": [{"steps",
             "share"}], "follows": [step, ...]}; next and futures are empty once all were observed.
    """
    script, windows = observed.script, observed.windows
    begun = sum(step.start <= windows[-1, 1] - 1 for step in script.steps)
    clips = [next((grammar.STEPS[step.label] for step in script.steps
                   if step.start <= middle < step.end), None) for middle in windows.mean(1)]
    truth = {"clips": clips, "next": [], "futures": [],
             "follows": [grammar.STEPS[step.label] for step in script.steps[begun:]]}
    if truth["follows"]:
        exact, sample = grammar.Grammar(), Sample(0, windows, -1, begun)
        before = observed_steps(sample, script) if begun else ([], True)
        rows = rank_steps(exact.next_step(*before), grammar.STEPS)
        truth["next"] = [row for row in rows if row["p"] > 0]
        for future in futures:
            steps = [grammar.STEP_ID.get(step, -1) for step in future["steps"]]
            truth["futures"].append({**future, "share": exact.chance(*before, steps)})
    return truth
