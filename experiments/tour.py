"""The method in eight pictures: `python -m experiments.tour` writes docs/tour.md from a checkpoint.

What is drawn, and the text beside it: pictures.py.
"""
import inspect
import textwrap
from dataclasses import dataclass
from pathlib import Path

from support.command import WHAT, Settings, opt, run, write_text
from support.flags import CHECKPOINT, adopt_run

PAGE = """# The method in eight pictures

Somebody cooks. After some steps of the video, what comes next? The pictures follow one forecast
through the method: from a clip to the forecast, and then to training. Observed so far:
{shown}. The next step is {following}.

Made by `python -m experiments.tour` from the default checkpoint. The code below each picture drew
it.
"""


@dataclass(frozen=True)
class TourSettings(Settings):
    """Draw the method in eight pictures, one for each equation, and write the page around them."""
    checkpoint: Path = CHECKPOINT
    video: int = opt("which test video", 10, WHAT, low=0)
    after: int = opt("how many of its steps are observed", 6, WHAT, low=1)
    out: Path = opt("folder of tour.md; the pictures go to its folder figures/", Path("docs"),
                    folder=True)
    seed: int = opt("of the noise", 0, low=0, high=2 ** 32 - 1)

    def __post_init__(self):
        super().__post_init__()
        adopt_run(self)


def main(settings):
    """Draw all pictures and write the page."""
    import torch

    from data import observed_steps
    from experiments import charts
    from experiments.pictures import PICTURES, Forecast
    from toy.grammar import STEPS
    (settings.out / "figures").mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        forecast = Forecast(settings)
        shown = [STEPS[step] for step in observed_steps(forecast.sample, forecast.video)[0]]
        page = PAGE.format(shown=", ".join(shown), following=STEPS[forecast.sample.label])
        for number, draw in enumerate(PICTURES, start=1):
            file = f"figures/tour-{number}.png"
            charts.save(settings.out / file, draw, forecast)
            title, formula, text = inspect.getdoc(draw).split("\n\n")
            code = textwrap.dedent(inspect.getsource(draw).split('"""\n')[1])
            page += (f"\n## {number}. {title}\n\n    {formula}\n\n{text}\n\n![{title}]({file})\n\n"
                     f"```python\n{code}```\n")
    write_text(settings.out / "tour.md", page)
    print(settings.out / "tour.md")


if __name__ == "__main__":
    run(main, TourSettings)
