"""How fast: `python -m experiments.benchmark --parts encoder,sampling,step,loader`: medians, s."""
from dataclasses import dataclass
from pathlib import Path

from support.command import WHAT, Settings, check, opt, run, write_json

PARTS = ("encoder", "sampling", "step", "loader")


@dataclass(frozen=True)
class BenchmarkSettings(Settings):
    """Measure speed on this machine."""
    parts: str = opt(f"what to measure, separated by commas: {', '.join(PARTS)}", "loader", WHAT)
    size: str = opt("of f and h: paper, ViT-B on 8 frames of 224 x 224; small, 4 frames of 32 x 32",
                    "paper", WHAT, choices=("small", "paper"))
    batch: int = opt("encoder: clips at once; step: videos", 1, WHAT, low=1)
    device: str = opt("auto: a CUDA GPU if there is one", "auto")
    json: Path = opt("also write the numbers here", None, file=())


def main(settings):
    """Measure the parts; each table is printed at once."""
    check(set(settings.parts.split(",")) <= set(PARTS), "parts", settings.parts,
          f"must be some of {', '.join(PARTS)}")
    import torch

    from experiments import speed
    from experiments.tables import text_table
    result = {"torch": torch.__version__, "threads": torch.get_num_threads(), "size": settings.size}
    for part in settings.parts.split(","):
        result[part] = getattr(speed, part)(settings)
        for name, table in result[part].items():
            rows = [[row, *(f"{n:.4g}" for n in kinds.values())] for row, kinds in table.items()]
            print(text_table([f"{part}: {name}", "s", "clips/s"], rows), flush=True)
    write_json(settings.json, result)


if __name__ == "__main__":
    run(main, BenchmarkSettings)
