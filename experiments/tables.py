"""The paper's tables by one command, with our rows below the paper's.

    python -m experiments.tables ablation,inference --seeds 100,101

Tables 1 to 5, A, C and D of the paper and its Fig. A (paper_tables.toml), in the embedded world or,
with --rows, from JSON files of evaluate.py. A run serves every table that names its recipe. If the
command is interrupted, it continues when it is given again. Seeds are finished one by one.
"""
from dataclasses import dataclass
from pathlib import Path

from experiments.paper_tables import TABLES
from support.command import DATA, WHAT, Settings, check, opt, require, run


@dataclass(frozen=True)
class TablesSettings(Settings):
    """Make the runs that the paper's tables need, each once, and print the tables."""
    tables: str = opt(f"which, separated by commas: {', '.join(TABLES)}; or all", "all", WHAT,
                      flag=False)
    rows: str = opt("JSON files of evaluate.py, separated by commas: a row for each. No run is "
                    "made then; existing ones are used", None, WHAT)
    split: str = opt("which videos are evaluated; choose settings on validation", "test", DATA,
                     choices=("test", "validation"))
    toy_videos: int = opt("training videos of the embedded world", 2000, DATA, low=1)
    test_videos: int = opt("videos of its split that are evaluated", 500, DATA, low=1)
    steps: Path = opt("with --rows or alone: the label set, a step per line, for "
                      "open-vocabulary", None, DATA)
    phrases: Path = opt("with --steps: the pool of its pre-training, a phrase per line", None, DATA)
    seeds: str = opt("of the runs, separated by commas", "100,101,102,103,104")
    jobs: int = opt("runs at a time, with one thread each", 2, low=1)
    out: Path = opt("folder of the runs and of tables.md, tables.json", Path("runs/tables"),
                    folder=True)
    device: str = opt("auto: a CUDA GPU if there is one", "auto")

    def __post_init__(self):
        super().__post_init__()
        for name in self.names():
            require(name in TABLES, f"{name}: no such table; there are {', '.join(TABLES)}")
        check(all(seed.isdecimal() and int(seed) < 2 ** 32 for seed in self.seeds.split(",")),
              "seeds", self.seeds, "must be numbers from 0, separated by commas")
        check((self.steps is None) == (self.phrases is None), "steps", self.steps,
              "give --steps and --phrases together, or none of them")

    def names(self):
        """Names of the tables."""
        return [*TABLES] if self.tables == "all" else self.tables.split(",")


def main(settings):
    """Make the missing runs, then print the tables."""
    from experiments.rows import build, save
    from experiments.runs import make_all, needs, read_object, require_same
    seeds = list(dict.fromkeys(map(int, settings.seeds.split(","))))
    files = {name: read_object(name, ("task", "data", "setting", "order", "top1"))
             for name in (settings.rows.split(",") if settings.rows else ())}
    needed = {} if settings.steps else needs(settings.names())
    require_same(settings)
    for _ in make_all(settings, seeds, {} if files else needed):
        save(settings, build(settings, seeds, needed, files))
    print(save(settings, build(settings, seeds, needed, files)))
    print(f"{settings.out}/tables.md, tables.json")


if __name__ == "__main__":
    run(main, TablesSettings)
