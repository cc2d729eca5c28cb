"""The method in eight pictures: `python -m experiments.tour` writes runs/tour/tour.md.

What is drawn, and the text beside it: pictures.py.
"""
import inspect
import re
from dataclasses import dataclass
from pathlib import Path

from support.command import WHAT, Settings, opt, run, write_text
from support.flags import CHECKPOINT, adopt_run

PAGE = """# The method in eight pictures

Somebody cooks. After some steps of the video, what comes next? The pictures follow one forecast
through the method: from a clip to the forecast, and then to training. Observed so far:
{shown}. The next step is {following}.

Made by `python -m experiments.tour` from the default checkpoint. The code below a picture computes
what it shows; its arguments, and the code that draws, are in `experiments/pictures.py`.
"""


@dataclass(frozen=True)
class TourSettings(Settings):
    """Draw the method in eight pictures, one for each equation, and write the page around them."""
    checkpoint: Path = CHECKPOINT
    video: int = opt("which test video", 10, WHAT, low=0)
    after: int = opt("how many of its steps are observed", 6, WHAT, low=1)
    out: Path = opt("folder of tour.md; the pictures go to its folder figures/", Path("runs/tour"),
                    folder=True)
    lead: int = opt("also print which of so many test videos has the median forecast", None, WHAT,
                    low=1)
    seed: int = opt("of the noise", 0, low=0, high=2 ** 32 - 1)

    def __post_init__(self):
        adopt_run(self)
        super().__post_init__()


def main(settings):
    """Draw all pictures and write the page."""
    import torch

    from experiments import charts
    from experiments.pictures import PICTURES, Forecast
    from toy.grammar import STEPS
    (settings.out / "figures").mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        forecast = Forecast(settings)
        page = PAGE.format(shown=", ".join(STEPS[step] for step in forecast.shown[0]),
                           following=STEPS[forecast.sample.label])
        for number, (compute, draw) in enumerate(PICTURES.items(), start=1):
            file, given = f"figures/tour-{number}.png", inspect.signature(compute).parameters
            computed = compute(*(getattr(forecast, name) for name in given))
            charts.save(settings.out / file, draw, forecast, computed)
            title, formula, text = inspect.getdoc(compute).split("\n\n")
            code = re.sub(r' *""".*?"""\n', "", inspect.getsource(compute), flags=re.DOTALL)
            page += (f"\n## {number}. {title}\n\n    {formula}\n\n{text}\n\n![{title}]({file})\n\n"
                     f"```python\n{code}```\n")
        write_text(settings.out / "tour.md", page)
        lead = forecast.median_video(settings.lead) if settings.lead else None
    print(settings.out / "tour.md", *[f"; median forecast: --seed {lead}"] * (lead is not None))


if __name__ == "__main__":
    run(main, TourSettings)
