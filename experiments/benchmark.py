"""How fast: `python -m experiments.benchmark --parts encoder,sampling,step,loader`.

    part      measured in one run, on this machine
    encoder   f, forward and forward + backward, versus plain softmax attention, and versus
              transformers.TimesformerModel (optional) with the same weights
    sampling  M futures of a video versus the one of zero noise, and versus encoding its clips
    step      a pre-training step of the joint stage and its parts
    loader    9 clips x 8 frames of one video: ours versus one ffmpeg process per clip

The ways to be compared take turns, five rounds after one to warm up. Times are medians in s, of the
clock and (*_cpu_s) of the processors: of all threads and processes. Where every core has a worker
of its own the latter count: ffmpeg decodes with as many threads as there are cores, a worker of
ours with one. Matrix products are bfloat16 on a GPU and float32 elsewhere, as in training. Weights
and pixels are random: speed does not depend on them.
"""
import tempfile
from dataclasses import dataclass
from pathlib import Path

from support.command import DATA, WHAT, Settings, check, opt, run, write_json

PARTS = ("encoder", "sampling", "step", "loader")


@dataclass(frozen=True)
class BenchmarkSettings(Settings):
    """Measure speed and memory on this machine, ours and others in one run."""
    parts: str = opt(f"what to measure, separated by commas: {', '.join(PARTS)} (needs ffmpeg)",
                     "loader", WHAT)
    size: str = opt("of f and h: paper, ViT-B on 8 frames of 224 x 224; small, 4 frames of 32 x 32",
                    "paper", WHAT, choices=("small", "paper"))
    batch: int = opt("encoder: clips at once; step: videos; default 1, on a GPU 16", None, WHAT,
                     low=1)
    compiled: bool = opt("encoder: by torch.compile as well (on a CPU it needs a compiler)", False,
                         WHAT)
    videos: Path = opt("loader: folder of videos to read as well as the generated one", None, DATA)
    device: str = opt("auto: a CUDA GPU if there is one", "auto")
    json: Path = opt("also write the numbers here", None, file=())

    def __post_init__(self):
        super().__post_init__()
        check(set(self.parts.split(",")) <= set(PARTS), "parts", self.parts,
              f"must be some of {', '.join(PARTS)}")


def main(settings):
    """Each part in a folder of its own, removed at its end; its table is printed at once."""
    from experiments import speed
    from support.device import pick_device
    device = pick_device(settings.device)
    gpu = device.type == "cuda"
    settings.default("batch", 16 if gpu else 1)
    precision, result = "bfloat16" if gpu else "float32", {}
    for part in settings.parts.split(","):
        print(f"\n{part}: {settings.size} size, {precision}, {device}")
        with tempfile.TemporaryDirectory() as folder:
            numbers = getattr(speed, part)(settings, device, Path(folder))
        result[part] = numbers if part == "loader" else {**numbers, "precision": precision}
    result["machine"] = speed.machine()
    if settings.json:
        write_json(settings.json, result)


if __name__ == "__main__":
    run(main, BenchmarkSettings)
