"""One video in, the steps it shows and the futures it may take out: `python predict.py VIDEO`.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.3 and Fig. 3.

The observed part is what h was trained on: the last 68 s before --at, cut into 8 windows. How the
forecast is made: evaluation/prediction.py. In Python:

    from predict import predict, table
    forecast = predict("video.mp4", steps=["crack egg", "melt butter", "pour oil"])
    print(table(forecast))
"""
from dataclasses import dataclass, fields
from pathlib import Path

from support.command import DATA, PAPER, PICTURES, WHAT, Settings, check, opt, run, write_json

ROWS = 5                  # next steps and futures in the printed table


@dataclass(frozen=True)
class PredictSettings(Settings):
    """The steps that one video shows, and several futures it may take; any list of steps works."""
    video: Path = opt("the video; without one, a test video of the embedded world, with the truth "
                      "next to the forecast", None, flag=False)
    checkpoint: Path = opt("run folder, a checkpoint file of ours, or a published one",
                           Path("runs/pretrain"), WHAT)
    at: float = opt("s: forecast from here, where the observed part ends; default the end of the "
                    "video", None, WHAT, above=0)
    steps: Path = opt("the steps to choose among, one per line; default those of the embedded "
                      "world, for a checkpoint of it", None, DATA)
    text_embeddings: Path = opt("npz of such steps and their embeddings, instead of --steps and "
                                "the teacher: pseudo_labels.py writes it once", None, DATA)
    clip: str = opt("open_clip model that embeds the steps, that of the checkpoint's training: or "
                    "local-dir:DIR", "ViT-B-16-quickgelu", DATA)
    clip_weights: str = opt("open_clip's tag of its weights, or a file; default openai", None, DATA)
    samples: int = opt("M, Monte Carlo samples (Eq. 11): so many futures", 50, PAPER, low=1)
    horizon: int = opt("steps of a future", 3, PAPER, low=1)
    json: Path = opt("also write the forecast here", None, file=())
    figure: Path = opt("also draw it: FILE.png, .pdf or .svg (needs matplotlib)", None,
                       file=PICTURES)
    keyframes: Path = opt("also paint the likeliest next steps from the last observed frame, into "
                          "this folder (needs diffusers and transformers)", None)
    keyframe_model: str = opt("a Stable Diffusion model of diffusers: a name of the hub, or a "
                              "folder", "stable-diffusion-v1-5/stable-diffusion-v1-5")
    seed: int = opt("of the noise; without a video also which test video, and of its pixels", 0,
                    low=0, high=2 ** 32 - 1)
    device: str = opt("auto: a CUDA GPU if there is one", "auto")

    def __post_init__(self):
        super().__post_init__()
        check(self.steps is None or self.text_embeddings is None, "steps", self.steps,
              "--text-embeddings is given as well, with steps of its own; give one of them")
        check(self.keyframes is None or not self.keyframes.is_file(), "keyframes", self.keyframes,
              "is a file; name a folder")


def predict(video=None, **flags):
    """The command as a function: a path, and the flags by name -> the JSON's content, a dict.

    `steps` may be a list of texts. Raises BadInput (a ValueError) where the command ends with 2.
    """
    kinds = {field.name: field.type for field in fields(PredictSettings)}
    flags = {name: Path(value) if kinds.get(name) is Path and isinstance(value, str) else value
             for name, value in {"video": video, **flags}.items()}
    return produce(PredictSettings(**flags))[0]


def produce(settings):
    """The forecast, and the files that were asked for: JSON, key frames, figure.

    Returns: the JSON's content, s of reading and encoding, s of forecasting.
    """
    from evaluation.prediction import forecast
    from experiments import charts, keyframes
    from experiments.forecast_figure import plot_forecast
    if settings.figure:
        charts.require()                               # fail before the work, not after it
    painter = keyframes.open_painter(settings) if settings.keyframes else None
    content, observed, reading, forecasting = forecast(settings)
    if settings.json:
        write_json(settings.json, content)
    painted = {}
    if painter:
        steps = list(dict.fromkeys(row["step"] for row in content["next"]))[:keyframes.PAINTED]
        painted = keyframes.paint_steps(painter, observed.pictures[-1], steps, settings)
    if settings.figure:
        charts.save(plot_forecast(content, observed.pictures, painted), settings.figure)
    return content, reading, forecasting


def aligned(head, lines, true):
    """Rows of strings as lines of a table; with a last column where the truth is known."""
    rows = [[*row, end] for row, end in zip([head, *lines], ["truth", *true])] if true else \
        [head, *lines]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["", *("  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)]


def table(content, rows=ROWS):
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
