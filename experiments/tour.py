"""The method in eight pictures: `python -m experiments.tour` writes tour.md and tour.ipynb."""
import base64
import inspect
import re
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

from support.command import WHAT, Settings, opt, run, write_atomically, write_json, write_text
from support.flags import CHECKPOINT, adopt_run

PAGE = Path(__file__).parent.parent / "docs/tour.md"


@dataclass(frozen=True)
class TourSettings(Settings):
    """Draw the method in eight pictures, one for each equation; write page and notebook of them."""
    checkpoint: Path = CHECKPOINT
    video: int = opt("which test video; all before it are rendered", 10, WHAT, low=0, high=999)
    after: int = opt("how many of its steps are observed", 6, WHAT, low=1)
    out: Path = opt("folder of tour.md and tour.ipynb; the pictures go to its folder figures/",
                    Path("runs/tour"), folder=True)
    lead: int = opt("also print which of so many test videos has the median forecast", None, WHAT,
                    low=1)
    seed: int = opt("of the noise", 0, low=0, high=2 ** 32 - 1)

    def __post_init__(self):
        super().__post_init__()
        adopt_run(self)


def main(settings):
    """Write the page, docs/tour.md with its code, of pictures.py, anew; run and write the notebook,
    whose outputs are the page's pictures."""
    import torch

    from experiments import notebook
    from experiments.pictures import PICTURES
    from toy.grammar import STEPS
    page = PAGE.read_text(encoding="utf-8")
    for compute in PICTURES:
        code = re.sub(r' *""".*?"""\n', "", inspect.getsource(compute))
        page = re.sub(rf"(?s)def {compute.__name__}\(.*?(?=```)", lambda _: code, page)
    cells = notebook.make_cells(page, settings)
    with torch.no_grad():
        with chdir(notebook.ROOT):
            forecast = notebook.run_cells(cells)["forecast"]
        lead = forecast.median_video(settings.lead) if settings.lead else None
    shown = ", ".join(STEPS[step] for step in forecast.shown[0])
    page = re.sub(r"(?<=Observed so far:\n).*", f"{shown}. The next step is "
                  f"{STEPS[forecast.sample.label]}.", page)
    (settings.out / "figures").mkdir(parents=True, exist_ok=True)
    for cell in cells[1::2]:
        if cell["id"].startswith("tour-"):
            png = base64.b64decode(cell["outputs"][0]["data"]["image/png"])
            write_atomically(settings.out / f"figures/{cell['id']}.png", lambda f: f.write(png))
    write_text(settings.out / "tour.md", page)
    write_json(settings.out / "tour.ipynb", {"cells": cells, **notebook.FORMAT})
    print(settings.out / "tour.md", *[f"; median forecast: --seed {lead}"] * (lead is not None))


if __name__ == "__main__":
    run(main, TourSettings)
