"""Show the steps of one video, and sample what may come next: `python predict.py VIDEO`.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.3 and Fig. 3.

The observed part is the last 68 s before --at, cut into 8 windows. A future is sampled step by
step: the embedding that h predicts counts as an observed clip of 9 s, the last 68 s are cut into 8
windows again, and h forecasts again. The parts of this command are in evaluation/prediction.py.
`predict` and `table` do the same from Python.
"""
from dataclasses import dataclass, fields
from numbers import Integral, Real
from os import PathLike
from pathlib import Path

from support.command import (DATA, PAPER, PICTURES, WHAT, BadInput, Settings, check, opt, run,
                             write_json)
from support.flags import CHECKPOINT, TEACHER, TEACHER_WEIGHTS, adopt_run

TOP = 5                   # steps listed for a window; next steps and futures that are printed
TOY_WARNING = ("this checkpoint knows only the embedded world, rendered pictures of 32 pixels: on "
               "any other video its answers mean nothing")
SHORT = 16.0              # s; of a shorter observed part a window has less than 2 s
SHORT_WARNING = "the observed part is short, {:.3g} s in 8 windows; clips in training last 9 s each"
NO_ORDER_WARNING = ("this checkpoint was trained without order: it recognizes steps, but forecasts "
                    "none")


@dataclass(frozen=True)
class PredictSettings(Settings):
    """The steps that one video shows, and several futures it may take; any list of steps works."""
    video: Path = opt("the video; without one, a test video of the embedded world, with the truth "
                      "next to the forecast", None, flag=False)
    checkpoint: Path = CHECKPOINT
    at: float = opt("s: forecast from here, where the observed part ends; default the end of the "
                    "video", None, WHAT, above=0)
    steps: Path = opt("the steps to choose among, one per line; default those of the embedded "
                      "world, for a checkpoint of it", None, DATA, text_embeddings=(None,))
    text_embeddings: Path = opt("npz of such steps and their embeddings, instead of --steps and "
                                "the teacher: python -m files embed writes it once", None, DATA)
    clip: str = TEACHER
    clip_weights: str = TEACHER_WEIGHTS
    samples: int = opt("Monte Carlo samples (Eq. 11): so many futures", 50, PAPER, low=1,
                       high=10_000)
    horizon: int = opt("steps of a future; the paper forecasts one", 3, WHAT, low=1, high=100)
    json: Path = opt("also write the forecast here", None, file=())
    figure: Path = opt("also draw it: FILE.png, .pdf or .svg (needs matplotlib)", None,
                       file=PICTURES)
    keyframes: Path = opt("also paint the likeliest next steps from the last observed frame, into "
                          "this folder (needs diffusers and transformers)", None, folder=True)
    keyframe_model: str = opt("a Stable Diffusion model of diffusers: a name of the hub, or a "
                              "folder", "stable-diffusion-v1-5/stable-diffusion-v1-5", keyframes=())
    seed: int = opt("of the noise; without a video also which test video, and of its pixels", 0,
                    low=0, high=2 ** 32 - 1)
    device: str = opt("auto: a CUDA GPU if there is one", "auto")

    def __post_init__(self):
        super().__post_init__()
        adopt_run(self, real=self.video is not None)


def forecast(settings):
    """Forecast, and write the files asked for. Returns: the JSON's content, a dict."""
    import torch

    from diffusion import expectation
    from evaluation.inference import draw_noise, sample_in_turn, score_texts
    from evaluation.prediction import (count_futures, observe_file, observe_toy, open_model,
                                       open_steps, rank_next, rank_steps, truth_of)
    from experiments import charts, keyframes
    from support.device import pick_device

    # 1. The checkpoint, the steps to choose among, the video.
    if settings.figure:
        charts.require()                               # fail before the work, not after it
    painter = keyframes.open_painter(settings) if settings.keyframes else None
    device = pick_device(settings.device)
    model, of_toy = open_model(settings.checkpoint, device)
    if settings.video is None and not of_toy:
        raise BadInput(f"VIDEO is missing: {settings.checkpoint} was trained on real videos; one "
                       "of the embedded world is taken only for a checkpoint of it")
    names, texts = open_steps(settings, model, of_toy, device)                 # (S, D)
    pictured = bool(settings.figure or settings.keyframes)
    observed = (observe_file(settings.video, model, settings.at, pictured) if settings.video else
                observe_toy(settings.seed, model, settings.at, settings.horizon))

    # 2. The step of each window, and what may come next.
    following, futures = [], []
    seconds = float(observed.windows[-1, 1] - observed.windows[0, 0])
    with torch.no_grad():
        x = model.encode(observed.clips.to(device))                            # x_i = f(v_i) (8, D)
        p = score_texts(x, texts, model.tau).exp().cpu()                      # Eq. 6        (8, S)
        if model.denoiser is not None:
            noise = draw_noise(settings.horizon, (settings.samples, model.dim),    # (H, Q, D)
                               settings.seed)
            first, picks = sample_in_turn(model, x, seconds, texts, noise.to(device))
            mean = expectation(first[None].cpu())[0]                           # Eq. 11        (S,)
            following = rank_next(mean, picks[:, 0], names)
            futures = count_futures(picks, names)

    # 3. What is handed over.
    content = {"video": observed.name,
               "clips": [{"start": start, "end": end, "steps": rank_steps(row, names)[:TOP]}
                         for (start, end), row in zip(observed.windows.tolist(), p)],
               "next": following, "futures": futures,
               "warning": "; ".join([TOY_WARNING] * bool(of_toy and settings.video)
                                    + [NO_ORDER_WARNING] * (model.denoiser is None)
                                    + [SHORT_WARNING.format(seconds)] * (seconds < SHORT)) or None,
               **({"truth": truth_of(observed, futures)} if observed.script else {})}
    write_json(settings.json, content)
    painted = {}
    if painter:
        steps = list(dict.fromkeys(row["step"] for row in following))[:keyframes.PAINTED]
        painted = keyframes.paint_steps(painter, observed.pictures[-1], steps, settings)
    if settings.figure:
        charts.save(settings.figure, charts.plot_forecast, content, observed.pictures, painted)
    return content


def predict(video=None, **flags):
    """The command as a function: a path, and the flags by name -> the JSON's content.

    `steps` may be a list of texts. Raises BadInput (a ValueError) where the command ends with 2.
    """
    given = {"video": video, **flags}
    for field in fields(PredictSettings):
        value, kind = given.get(field.name, field.default), field.type
        good = value is field.default or not isinstance(value, bool) and isinstance(
            value, {int: Integral, float: Real, Path: (str, PathLike)}.get(kind, kind)
            ) and "\0" not in str(value)
        if field.name == "steps" and isinstance(value, (list, tuple)):
            good = all(isinstance(step, str) and step.strip() for step in value)
        elif good and value is not None:               # also numpy's numbers
            given[field.name] = kind(value)
        check(good, field.name, f"{value!r:.60}", f"must be of type {kind.__name__}"
              + ", or a list of texts" * (field.name == "steps"))
    settings = PredictSettings(**given)
    settings.check_files()
    return forecast(settings)


def aligned(head, lines, true):
    """Rows of strings as lines of a table; with a last column where the truth is known."""
    columns = [*zip(head, *lines)] + [("truth", *true)] * bool(true)
    padded = [[text.ljust(max(map(len, column))) for text in column] for column in columns]
    return ["", *("  " + "  ".join(row).rstrip() for row in zip(*padded))]


def table(content):
    """The JSON's content as text: the windows, and the first TOP of next steps and futures."""
    truth = content.get("truth", {"clips": [], "next": [], "futures": []})
    bayes, following = {row["step"]: row["p"] for row in truth["next"]}, content["next"][:TOP]
    text = [content["video"] + " of the embedded world" * ("truth" in content), *aligned(
        ["observed", "shows"],
        [[f"{clip['start']:.1f} - {clip['end']:.1f} s",
          ", ".join(f"{row['step']} {row['p']:.0%}" for row in clip["steps"][:2])]
         for clip in content["clips"]], [step or "-" for step in truth["clips"]])]
    if following:
        text += aligned(["next", "share", "p"],
                        [[row["step"], f"{row['share']:.0%}", f"{row['p']:.0%}"]
                         for row in following],
                        [f"{bayes.get(row['step'], 0.0):.0%}" for row in following if bayes])
        text += aligned(["futures", "share"],
                        [[", ".join(future["steps"]), f"{future['share']:.0%}"]
                         for future in content["futures"][:TOP]],
                        [f"{future['share']:.0%}" for future in truth["futures"][:TOP]])
        text += ["", "  share is how many samples have that step as their likeliest, or that "
                 "future; p is the mean of their probabilities"]
    if "truth" in content:
        text += ["", "  what follows: " + (", ".join(truth["follows"]) or "nothing")]
    if content["warning"]:
        text += ["", f"  warning: {content['warning']}"]
    return "\n".join(text)


def main(settings):
    """Forecast, write what was asked for, and print."""
    print(table(forecast(settings)))


if __name__ == "__main__":
    run(main, PredictSettings)
