"""Every figure in README.md and docs/ by `python -m experiments.reproduce`: runs, then tables.

tables.toml says which runs there are, how each is evaluated, and where the numbers of each cell
come from. A run is trained, fine-tuned and evaluated once, in OUT/RECIPE-SEED, for all tables; the
command continues where it was interrupted. The numbers go to results.json, beside this file; the
tables are written from them between `<!-- table: NAME -->` and `<!-- end -->`. Runs with other
settings than their recipe's, and runs and numbers of another embedded world, are refused before
anything is written. With --toy-videos nothing outside OUT changes.
"""
import re
from dataclasses import dataclass
from pathlib import Path

from support.command import DATA, WHAT, Settings, check, opt, require, run, write_text

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class ReproduceSettings(Settings):
    """Make the runs behind the tables of README.md and docs/, each once, and write the tables."""
    tables: str = opt("whose runs to make: names of tables.toml, separated by commas, or all",
                      "all", WHAT, flag=False)
    seeds: str = opt("of the runs, separated by commas", "100,101,102,103,104", WHAT)
    coin: Path = opt("folder with COIN.json, texts.npz and the features files that tables.toml "
                     "names; without it no run on COIN is made", None, DATA)
    toy_videos: int = opt("a trial: so many videos of the embedded world, for training and for "
                          "each evaluation; the tables go to OUT/tables.md alone", None, DATA,
                          low=1)
    jobs: int = opt("runs at a time, with one thread each", 2, low=1, high=256)
    out: Path = opt("folder of the runs", Path("runs/reproduce"), folder=True)
    pages: Path = opt("folder of README.md, docs/ and experiments/", ROOT, folder=True,
                      toy_videos=(None,))
    device: str = opt("auto: a CUDA GPU if there is one", "auto")
    default_from: Path = opt("make no table, but the checkpoint that comes with the code, from "
                             "this run: `python train.py`, seed 0", None)

    def __post_init__(self):
        super().__post_init__()
        check(all(re.fullmatch("[0-9]{1,9}", seed) for seed in self.seeds.split(",")), "seeds",
              self.seeds, "must be numbers of at most nine digits, separated by commas")


def main(settings):
    """Make the missing runs; after each, write its numbers and the tables."""
    from experiments.runs import make_all, require_same, write_default
    from experiments.tables import TABLES, collect, fill, markdown, needs
    if settings.default_from:
        return write_default(settings.default_from)
    names = [*TABLES] if settings.tables == "all" else settings.tables.split(",")
    for name in names:
        require(name in TABLES, f"{name}: no such table; there are {', '.join(TABLES)}")

    def write():
        require_same(settings)
        if settings.toy_videos:
            results = collect(settings.out)
            settings.out.mkdir(parents=True, exist_ok=True)
            return write_text(settings.out / "tables.md",
                              "\n".join(markdown(name, results) for name in names))
        results = collect(settings.out, settings.pages / "experiments/results.json")
        for page in (settings.pages / "README.md", *sorted(settings.pages.glob("docs/*.md"))):
            text = page.read_text(encoding="utf-8")
            if fill(text, results) != text:
                write_text(page, fill(text, results))
                print(page)
    write()
    seeds = list(dict.fromkeys(map(int, settings.seeds.split(","))))
    for _ in make_all(settings, seeds, needs(names)):
        write()
    if settings.toy_videos:
        print(settings.out / "tables.md")


if __name__ == "__main__":
    run(main, ReproduceSettings)
