"""The method in eight pictures: `python -m experiments.tour` writes docs/tour.md from a checkpoint.

What is drawn, and the text beside it: pictures.py.
"""
import inspect
import textwrap
from dataclasses import dataclass
from pathlib import Path

from support.command import WHAT, Settings, opt, run, write_text


@dataclass(frozen=True)
class TourSettings(Settings):
    """Draw the method in eight pictures, one for each equation, and write the page around them."""
    checkpoint: Path = opt("a run folder of the embedded world", Path("runs/pretrain"), WHAT)
    video: int = opt("which test video", 10, WHAT, low=0)
    after: int = opt("how many of its steps are observed", 6, WHAT, low=1)
    out: Path = opt("folder of tour.md; the pictures go to its folder figures/", Path("docs"),
                    folder=True)
    seed: int = opt("of the noise", 0, low=0)


def section(number, draw, file):
    """One part of the page, of the docstring of its function and of its code."""
    title, formula, text = inspect.cleandoc(draw.__doc__).split("\n\n")
    code = inspect.getsource(draw)
    code = textwrap.dedent(code[code.index('"""', code.index('"""') + 3) + 4:])
    return (f"## {number}. {title}\n\n    {formula.strip()}\n\n{text}\n\n![{title}]({file})\n\n"
            f"```python\n{code}```\n")


def main(settings):
    """Draw all pictures and write the page."""
    import torch

    from data import observed_steps
    from experiments import charts
    from experiments.pictures import PICTURES, Forecast
    (settings.out / "figures").mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        forecast, parts = Forecast(settings), []
        for number, draw in enumerate(PICTURES, start=1):
            file = f"figures/tour-{number}.png"
            charts.save(charts.styled(draw)(forecast), settings.out / file)
            parts.append(section(number, draw, file))
    shown = ", ".join(forecast.steps[s] for s in observed_steps(forecast.sample, forecast.video)[0])
    write_text(settings.out / "tour.md", "# The method in eight pictures\n\n"
               "Somebody cooks. After some steps of the video, what comes next? The pictures\n"
               "follow one forecast through the method, in the order of the paper's Sec. 3.\n"
               f"Observed so far: {shown}. The next step is\n{forecast.steps[forecast.label]}.\n\n"
               "Made by `python -m experiments.tour` from the default checkpoint. The code below\n"
               "each picture drew it.\n\n" + "\n".join(parts))
    print(settings.out / "tour.md")


if __name__ == "__main__":
    run(main, TourSettings)
