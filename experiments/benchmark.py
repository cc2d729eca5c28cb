"""How fast: `python -m experiments.benchmark --parts encoder,sampling,step,loader`.

Each part is a function of speed.py. The ways that it compares take turns, five rounds after one to
warm up; times are medians, s of the clock. Precision is that of training. Weights and pixels are
random: speed is the same.
"""
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from support.command import DATA, WHAT, Settings, check, opt, run, write_json

PARTS = ("encoder", "sampling", "step", "loader")


@dataclass(frozen=True)
class BenchmarkSettings(Settings):
    """Measure speed and memory on this machine."""
    parts: str = opt(f"what to measure, separated by commas: {', '.join(PARTS)}", "loader", WHAT)
    size: str = opt("of f and h: paper, ViT-B on 8 frames of 224 x 224; small, 4 frames of 32 x 32",
                    "paper", WHAT, choices=("small", "paper"))
    batch: int = opt("encoder: clips at once; step: videos; default 1, on a GPU 16", None, WHAT,
                     low=1)
    videos: Path = opt("loader: folder of videos to read as well as the generated one", None, DATA)
    device: str = opt("auto: a CUDA GPU if there is one", "auto")
    json: Path = opt("also write the numbers here", None, file=())

    def __post_init__(self):
        super().__post_init__()
        check(set(self.parts.split(",")) <= set(PARTS), "parts", self.parts,
              f"must be some of {', '.join(PARTS)}")
        for name, parts in (("videos", {"loader"}), ("batch", {"encoder", "step"}),
                            ("size", {"encoder", "sampling", "step"})):
            check(getattr(self, name) == getattr(type(self), name)
                  or parts & set(self.parts.split(",")), name, getattr(self, name), f"has no effect with --parts {self.parts}")


def main(settings):
    """Measure the parts, in a folder that is removed at the end; each table is printed at once."""
    import torch

    from experiments import speed
    from experiments.tables import text_table
    from support.device import pick_device
    device = pick_device(settings.device)
    settings.default("batch", 16 if device.type == "cuda" else 1)
    machine = {"device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
               "cores": os.cpu_count(), "threads": torch.get_num_threads(),
               "torch": torch.__version__}
    result = {"machine": machine, "size": settings.size, "batch": settings.batch}
    with tempfile.TemporaryDirectory() as folder:
        for part in settings.parts.split(","):
            result[part] = {}
            for name, table in getattr(speed, part)(settings, device, Path(folder)):
                result[part][name] = table
                lines = [[row, *("-" if n is None else f"{n:.4g}" for n in columns.values())]
                         for row, columns in table.items()]
                header = [f"{part}: {name}", *next(iter(table.values()))]
                print(text_table(header, lines), flush=True)
    print(machine)
    write_json(settings.json, result)


if __name__ == "__main__":
    run(main, BenchmarkSettings)
