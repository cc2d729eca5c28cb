"""The method in eight pictures: `python -m experiments.tour` writes runs/tour/tour.md."""
import inspect
import re
from dataclasses import dataclass
from pathlib import Path

from support.command import WHAT, Settings, opt, run, write_text
from support.flags import CHECKPOINT, adopt_run

PAGE = Path(__file__).parent.parent / "docs/tour.md"


@dataclass(frozen=True)
class TourSettings(Settings):
    """Draw the method in eight pictures, one for each equation, and write the page around them."""
    checkpoint: Path = CHECKPOINT
    video: int = opt("which test video; all before it are rendered", 10, WHAT, low=0, high=999)
    after: int = opt("how many of its steps are observed", 6, WHAT, low=1)
    out: Path = opt("folder of tour.md; the pictures go to its folder figures/", Path("runs/tour"),
                    folder=True)
    lead: int = opt("also print which of so many test videos has the median forecast", None, WHAT,
                    low=1)
    seed: int = opt("of the noise", 0, low=0, high=2 ** 32 - 1)

    def __post_init__(self):
        super().__post_init__()
        adopt_run(self)


def main(settings):
    """Draw all pictures and write the page: docs/tour.md with its code, of pictures.py, anew."""
    import torch

    from experiments import charts
    from experiments.pictures import PICTURES, Forecast
    from toy.grammar import STEPS
    (settings.out / "figures").mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        forecast = Forecast(settings)
        shown = ", ".join(STEPS[step] for step in forecast.shown[0])
        page = re.sub(r"(?<=Observed so far:\n).*", f"{shown}. The next step is "
                      f"{STEPS[forecast.sample.label]}.", PAGE.read_text(encoding="utf-8"))
        for number, (compute, draw) in enumerate(PICTURES.items(), start=1):
            given = inspect.signature(compute).parameters
            computed = compute(*(getattr(forecast, name) for name in given))
            charts.save(settings.out / f"figures/tour-{number}.png", draw, forecast, computed)
            code = re.sub(r' *""".*?"""\n', "", inspect.getsource(compute))
            page = re.sub(rf"(?s)def {compute.__name__}\(.*?(?=```)", lambda _: code, page)
        write_text(settings.out / "tour.md", page)
        lead = forecast.median_video(settings.lead) if settings.lead else None
    print(settings.out / "tour.md", *[f"; median forecast: --seed {lead}"] * (lead is not None))


if __name__ == "__main__":
    run(main, TourSettings)
