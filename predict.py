"""One video in, the steps it shows and the futures it may take out: `python predict.py VIDEO`.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.3 and Fig. 3.

    paper          here       shape       meaning
    {x_i}          x          (N, D)      embeddings of the observed windows, N = 8
    y              texts      (S, D)      embeddings of the steps to choose among, any list
    p(y_i | x_i)   clips      (N, S)      which step each window shows (Eq. 6)
    p(y_j | ..)    first      (M, S)      the next step, one row per Monte Carlo sample; their mean
                                          is the forecast (Eq. 11)
    -              picks      (M, H)      a future per sample: of each row the likeliest step
    M samples, H steps ahead (the horizon), S steps, D embedding.

What is observed is what h was trained on: the last 68 s before --at, cut into 8 windows. In Python:

    from predict import predict, table
    forecast = predict("video.mp4", steps=["crack egg", "melt butter", "pour oil"])
    print(table(forecast))
"""
import time
from collections import Counter, namedtuple
from dataclasses import fields
from pathlib import Path

from support.command import BadInput, pick_device, run, write_json
from settings_optional import PredictSettings

SHOWN = 5                 # steps listed for a window; rows of the printed table
PICTURE = 512             # pixels, short side of the frames kept for figures and key frames
TOY_WARNING = ("this checkpoint knows only the embedded world, rendered pictures of 32 pixels: on "
               "any other video its answers mean nothing")
NO_ORDER_WARNING = "this checkpoint was trained without order: it recognises steps, but no next one"
# What is seen of a video: windows (8, 2) s; clips (8, F, 3, S, S) uint8, the encoder's view;
# pictures (8, 3, H, W) uint8, the middle of each window, or None; script, a grammar.Video, or None.
Observed = namedtuple("Observed", "name windows clips pictures script")


# ------------------------------------------------------------------------------------------------
# What is asked: a model, a list of steps, a video
# ------------------------------------------------------------------------------------------------
def open_model(settings, device):
    """The checkpoint in eval mode, and whether it knows only the embedded world.

    Raises: BadInput if it has no encoder, or is fine-tuned: its classes are then those of its
            labels, and no list of steps can be put in their place.
    """
    from toy import render
    from model import load_model
    model, _ = load_model(settings.checkpoint)
    if model.task:
        raise BadInput(f"{settings.checkpoint}: is fine-tuned for --task {model.task}, to classes "
                       "of its own; give the checkpoint it was made from, which takes any steps")
    if model.encoder is None:
        raise BadInput(f"{settings.checkpoint}: was trained on features and has no encoder; a "
                       "checkpoint that was trained on videos is needed")
    return model.to(device), tuple(model.pixels) == (render.MEAN, render.STD)


def open_steps(settings, model, of_toy, device):
    """The steps to choose among: S names, and their text embeddings (S, D) on the device.

    They are embedded by the teacher of the checkpoint's training, or come from a file.
    """
    import torch

    from files import annotations
    import data
    from toy import grammar
    from evaluation.inference import require_teacher, teacher_of, texts_of
    from files.listings import load_steps
    if settings.text_embeddings:
        names, texts = annotations.load_text_embeddings(settings.text_embeddings)
        texts = torch.from_numpy(texts)
    elif settings.steps is None and not of_toy:
        raise BadInput("--steps is missing: a file with a step per line, or --text-embeddings "
                       "FILE, is needed")
    else:
        names = (grammar.STEPS if settings.steps is None else settings.steps
                 if isinstance(settings.steps, (list, tuple)) else load_steps(settings.steps))
        if len(names) < 2:
            raise BadInput("--steps: one step: nothing to choose from; at least two are needed")
        teacher = (data.toy_teacher(device) if of_toy else
                   teacher_of(settings.clip, settings.clip_weights, device))
        require_teacher(teacher, model, settings)
        texts = texts_of(teacher, tuple(names))
    if texts.shape[1] != model.dim:
        raise BadInput(f"{settings.checkpoint}: embeddings of width {model.dim}, those of the "
                       f"steps have {texts.shape[1]}; use the teacher it was trained with: --clip")
    return list(names), texts.to(device)


def observe_file(settings, model):
    """The last 68 s of a video file before --at, as evaluate.py reads them -> Observed.

    Raises: BadInput if there is no such file, or --at lies after its end; video.Unreadable.
    """
    import data
    import protocols
    from files.video import Unreadable, duration, read_frames
    path = settings.video
    if not path.is_file():
        raise BadInput(f"{path}: no such file; a video is needed")
    length = duration(path)
    end = settings.at or length
    if not 0 < end <= length:
        raise BadInput(f"--at {end:g}: {path} ends at {length:.1f} s, as its header says")
    windows = protocols.forecast_windows(end)                                   # (8, 2)
    source = data.VideoSource([data.Narrated(path.stem)], {path.stem: str(path)},
                              model.encoder.image, model.encoder.frames,
                              seconds=model.encoder.seconds)
    loaded = source.load([(0, windows)])
    if loaded.failed:
        raise Unreadable(f"{loaded.failed[path.stem]}; --at SECONDS says where the observed part "
                         "ends")
    pictures = (read_frames(path, windows.mean(1), PICTURE).numpy()
                if settings.figure or settings.keyframes else None)
    return Observed(str(path), windows, loaded.clips, pictures, None)


def observe_toy(settings, model):
    """Test video number --seed of the embedded world -> Observed.

    Without --at it is seen up to the end of a step, after which `horizon` steps are left, if it has
    so many.
    """
    import numpy as np
    import torch

    import protocols
    from toy import grammar
    from toy import render
    script = grammar.make_video("test", settings.seed)
    ends = [end for _, end in script.segments]
    end = settings.at or ends[max(len(ends) - 1 - settings.horizon, 0)]
    if end > script.duration:
        raise BadInput(f"--at {end:g}: {script.name} ends at {script.duration:.1f} s")
    windows, frames = protocols.forecast_windows(end), render.render(script)

    def shown(times):
        rows = np.floor(times * render.FPS).astype(int).clip(0, len(frames) - 1)
        return frames[rows]                                                     # (.., 3, H, W)

    clips = torch.from_numpy(shown(protocols.frame_times(windows, model.encoder.frames)))
    return Observed(script.name, windows, clips, shown(windows.mean(1)), script)


# ------------------------------------------------------------------------------------------------
# What comes next
# ------------------------------------------------------------------------------------------------
def ranked(p, names, count=None):
    """[{"step", "p"}, ...] of probabilities (S,), the largest first; equal ones as listed."""
    pairs = sorted(zip(names, p.tolist()), key=lambda pair: -pair[1])
    return [{"step": name, "p": value} for name, value in pairs[:count]]


def shared(picks, names):
    """[{"steps", "share"}, ...] of futures (M, H): how many of the M took each, the most first."""
    counts = Counter(map(tuple, picks.tolist())).most_common()
    return [{"steps": [names[step] for step in future], "share": count / len(picks)}
            for future, count in counts]


def truth_of(observed, futures):
    """What the embedded world knows: steps shown, what follows, and the exact probabilities.

    A step counts as shown if at least a second of it was (as in evaluate.py's table). `next` is
    P(next step | steps shown, procedure unknown); that of a future is the product over its steps.

    Returns: {"clips": [step or None, ...], "next": [{"step", "p"}], "futures": [{"steps",
             "share"}], "follows": [step, ...]}; next and futures are empty once all are shown.
    """
    from toy import grammar
    script, windows = observed.script, observed.windows
    begin, end = windows[0, 0], windows[-1, 1]
    begun = sum(start <= end - 1 for start, _ in script.segments)
    shown = [k for k in range(begun) if script.segments[k][1] - begin >= 1]
    from_start = not shown or shown[0] == 0
    clips = [next((grammar.STEPS[step] for step, (start, stop) in zip(script.steps, script.segments)
                   if start <= middle < stop), None) for middle in windows.mean(1)]
    result = {"clips": clips, "next": [], "futures": [],
              "follows": [grammar.STEPS[step] for step in script.steps[begun:]]}
    if result["follows"]:
        grammar, shown = grammar.Grammar(), [script.steps[k] for k in shown]
        p = grammar.next_step(shown, from_start)
        result["next"] = [row for row in ranked(p, grammar.STEPS) if row["p"] > 0]
        result["futures"] = [{"steps": future["steps"],
                              "share": grammar.chance(shown, from_start, [
                                  grammar.STEP_ID.get(step, -1) for step in future["steps"]])}
                             for future in futures]
    return result


# ------------------------------------------------------------------------------------------------
# The answer, as SPEC's JSON, as a table and as a function
# ------------------------------------------------------------------------------------------------
def forecast(settings):
    """All of it: (the JSON's content, Observed, s of reading and encoding, s of forecasting)."""
    import torch

    import diffusion
    from evaluation.inference import score
    from evaluation.missing import sample_in_turn
    from files.video import Unreadable
    device = pick_device(settings.device)
    model, of_toy = open_model(settings, device)
    if settings.video is None and not of_toy:
        raise BadInput(f"VIDEO is missing: {settings.checkpoint} was trained on real videos; one "
                       "of the embedded world is taken only for a checkpoint of it")
    names, texts = open_steps(settings, model, of_toy, device)
    began = time.perf_counter()
    try:
        observed = (observe_file if settings.video else observe_toy)(settings, model)
    except Unreadable as error:
        raise BadInput(error) from None
    windows, warnings = observed.windows, [TOY_WARNING] * bool(of_toy and settings.video)
    following, futures = [], []
    with torch.no_grad():
        x = model.encode(observed.clips.to(device))                            # (8, D)
        clips = score(model.read, x, texts).exp().cpu()                        # (8, S)
        read = time.perf_counter()
        if model.denoiser is None:
            warnings.append(NO_ORDER_WARNING)
        else:
            noise = torch.randn(settings.horizon, 1, settings.samples, model.dim,
                                generator=torch.Generator().manual_seed(settings.seed))
            seconds = torch.tensor([windows[-1, 1] - windows[0, 0]])
            first, picks = sample_in_turn(model, x[None], seconds, texts, noise.to(device))
            following = ranked(diffusion.expectation(first)[0].cpu(), names)
            futures = shared(picks[0].cpu(), names)
    content = {"video": observed.name,
               "clips": [{"start": start, "end": end, "steps": ranked(p, names, SHOWN)}
                         for (start, end), p in zip(windows.tolist(), clips)],
               "next": following, "futures": futures, "warning": "; ".join(warnings) or None}
    if observed.script:
        content["truth"] = truth_of(observed, futures)
    return content, observed, read - began, time.perf_counter() - read


def produce(settings):
    """`forecast`, and the files that were asked for: JSON, key frames, figure.

    Returns: the JSON's content, s of reading and encoding, s of forecasting.
    """
    painter, painted = None, {}
    if settings.figure:
        from experiments import charts
        from experiments.forecast_figure import plot_forecast
        charts.require()                              # before the work, not after it
    if settings.keyframes:
        from experiments import keyframes
        painter = keyframes.open_painter(settings)
    content, observed, reading, forecasting = forecast(settings)
    if settings.json:
        write_json(settings.json, content)
    if painter:
        steps = list(dict.fromkeys(row["step"] for row in content["next"]))[:keyframes.PAINTED]
        painted = keyframes.paint_steps(painter, observed.pictures[-1], steps, settings)
    if settings.figure:
        charts.save(plot_forecast(content, observed.pictures, painted), settings.figure)
    return content, reading, forecasting


def predict(video=None, **flags):
    """The command as a function: a path, and the flags by name -> the JSON's content, a dict.

    `steps` may be a list of texts. Raises BadInput (a ValueError) where the command ends with 2.
    """
    kinds = {field.name: field.type for field in fields(PredictSettings)}
    flags = {name: Path(value) if kinds.get(name) is Path and isinstance(value, str) else value
             for name, value in {"video": video, **flags}.items()}
    return produce(PredictSettings(**flags))[0]


def aligned(head, lines, true):
    """Rows of strings as lines of a table; with a last column where the truth is known."""
    rows = [[*row, end] for row, end in zip([head, *lines], ["truth", *true])] if true else \
        [head, *lines]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["", *("  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)]


def table(content, rows=SHOWN):
    """The JSON's content as text: the windows, and the first `rows` of next steps and futures."""
    def percent(p):
        return f"{100 * p:.0f} %"

    truth = content.get("truth", {"clips": [], "next": [], "futures": []})
    bayes, following = {row["step"]: row["p"] for row in truth["next"]}, content["next"][:rows]
    text = [content["video"] + " of the embedded world" * ("truth" in content), *aligned(
        ["observed", "shows"],
        [[f"{clip['start']:.1f} - {clip['end']:.1f} s",
          ", ".join(f"{row['step']} {percent(row['p'])}" for row in clip["steps"][:2])]
         for clip in content["clips"]], [step or "-" for step in truth["clips"]])]
    if following:
        text += aligned(["next", "p"], [[row["step"], percent(row["p"])] for row in following],
                        [percent(bayes.get(row["step"], 0.0)) for row in following if bayes])
        text += aligned(["futures", "share"],
                        [[", ".join(future["steps"]), percent(future["share"])]
                         for future in content["futures"][:rows]],
                        [percent(future["share"]) for future in truth["futures"][:rows]])
    if "truth" in content:
        text += ["", "  what follows: " + (", ".join(truth["follows"]) or "nothing")]
    if content["warning"]:
        text += ["", f"  warning: {content['warning']}"]
    return "\n".join(text)


def main(settings):
    """Forecast, write what was asked for, and print."""
    content, reading, forecasting = produce(settings)
    print(table(content))
    print(f"\n  {reading:.2f} s to read and encode, {forecasting:.2f} s to forecast")


if __name__ == "__main__":
    run(main, PredictSettings)
