"""How fast this machine is: `python -m experiments.benchmark`. All times are medians, in s.

The table of a GPU in docs/training.md:
    python -m experiments.benchmark --device cuda --batch 8 --page docs/training.md
"""
from pathlib import Path

import torch
from torch.nn import functional
from torch.utils.benchmark import Timer

from data import CLIPS
from diffusion import noise_levels
from experiments.tables import replace, text_table
from losses import TAU
from model import encode_parts
from support.arguments import Parser, count
from support.device import mixed_precision, pick_device
from support.errors import run
from support.write import write_text
from weights.checkpoint import build_model
from weights.names import PIXELS

SECONDS, PHRASES, D = 5.0, 9871, 512                   # s per row; K and D of the paper
ENCODER = {}                                           # of f: its defaults are the paper's, too


def measure(device, work, trained):
    """The median time of work() in SECONDS s; with gradients of a model, if one is trained."""
    def once():
        with mixed_precision(device), torch.set_grad_enabled(trained is not None):
            y = work()
        if trained is not None:
            y.float().square().sum().backward()
            trained.zero_grad()
    timer = Timer("once()", globals=locals(), num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=SECONDS).median


def ways(args, device):
    """What is measured, of a model of random numbers: {name: (function, model or None)}."""
    model = build_model(torch.randn(PHRASES, D), ENCODER, {}, "diffusion", tau=TAU, pixels=PIXELS,
                        alpha_bar=noise_levels(D).tolist()).to(device)
    B, F, H = args.batch, model.encoder.frames, model.encoder.image
    clips = torch.randint(256, (CLIPS * B, F, 3, H, H), dtype=torch.uint8, device=device)
    x = functional.normalize(torch.randn(len(clips), D, device=device), dim=-1)
    noise = torch.randn(1, 50, D, device=device)
    rows = torch.arange(CLIPS * B, device=device).view(B, CLIPS).repeat(CLIPS, 1)  # --rows paper
    j = torch.arange(CLIPS, device=device).repeat_interleave(B)
    observed = torch.arange(CLIPS, device=device) != j[:, None]
    zt, t = torch.randn(len(rows), D, device=device), torch.zeros_like(j)
    return {
        f"f on {B} clips": (lambda: model.encode(clips[:B]), None),
        f"f on {B} clips, with gradients": (lambda: model.encode(clips[:B]), model),
        "forecast, zero noise": (lambda: model.forecast_next(x[None, :8], noise[:, :1]), None),
        "forecast, 5 samples": (lambda: model.forecast_next(x[None, :8], noise[:, :5]), None),
        "forecast, 50 samples": (lambda: model.forecast_next(x[None, :8], noise), None),
        f"update of {B} videos, f": (lambda: encode_parts(model, clips, 24), model),
        f"update of {B} videos, h on {len(rows)} rows":
            (lambda: model.match(model.denoise(zt, x[rows], observed, j, t)), model)}


def main(args):
    """Measure, print a table, and write it into a page."""
    device = pick_device(args.device)
    machine = (torch.cuda.get_device_name() if device.type == "cuda" else
               f"{torch.get_num_threads()} CPU threads")
    rows = [[name, f"{measure(device, *way):.3g}"] for name, way in ways(args, device).items()]
    table = text_table([machine, "s"], rows)
    print(table)
    if args.page:
        page = args.page.read_text(encoding="utf-8")
        write_text(args.page, replace(page, f"speed-{device.type}", table + "\n"))


def parse(argv=None):
    """The command line."""
    parser = Parser("Measure f, sampling, and the parts of an update.")
    add = parser.add_argument
    add("--batch", type=count, default=1, help="clips that f encodes, and videos of an update")
    add("--device", default="auto", help="cpu, cuda or mps; auto: a GPU if any")
    add("--page", type=Path, help="write the table into this page, between its marks "
        "`<!-- table: speed-cuda -->`, or speed-cpu, and `<!-- end -->`")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main, parse)
