"""How fast a machine is, and how much memory a card needs: `python -m experiments.benchmark`.

Times are medians, in s. Memory and operations are counted, without a GPU, on tensors that have a
shape but no data. These write the tables of docs/training.md, one of them for a GPU:
    python -m experiments.benchmark --device cuda --batch 8 --page docs/training.md
    python -m experiments.benchmark --memory --page docs/training.md
"""
import copy
import weakref
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode

from data import CLIPS, EPIC_FRAMES
from diffusion import noise_levels
from evaluation.tasks import VIEWS
from experiments.tables import replace, text_table
from losses import TAU
from model import ProcedureModel
from support.arguments import Parser, count, mixed_precision, pick_device
from support.errors import run
from support.write import write_text
from weights.checkpoint import build_model
from weights.names import PIXELS

SECONDS, PHRASES, D = 5.0, 9871, 512                   # s per line; K and D of the paper
ENCODER = {}                                           # of f: its defaults are the paper's, too
CARDS, USED = (16, 24, 80), 0.9    # GB; share for tensors, the rest for CUDA and gaps
TEACHER = 149_620_737                                  # parameters of CLIP ViT-B/16
SIZES = 1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 640


def make_model(**sizes):
    """A model with random weights, with f of these sizes."""
    return build_model(torch.randn(PHRASES, D), ENCODER | sizes, {}, "diffusion", tau=TAU,
                       pixels=PIXELS, alpha_bar=noise_levels(D).tolist())


def predict_rows(model, x):
    """log p (C, K) of each clip as h predicts it from its video's eight others: --rows paper."""
    rows = torch.arange(len(x), device=x.device).view(-1, CLIPS).repeat_interleave(CLIPS, 0)
    j = torch.arange(len(x), device=x.device) % CLIPS
    observed = torch.arange(CLIPS, device=x.device) != j[:, None]
    return model.match(model.denoise(torch.randn_like(x), x[rows], observed, j, j * 0))


def objective(model, clips):
    """What the losses of a group of pre-training read, (2 C, K)."""
    x = model.encode(clips)
    return torch.cat([model.match(x), predict_rows(model, x)])


COMMANDS = {            # {command: (clips in all, their frames, work, clips of a video if trained)}
    "`train.py --data howto100m`": (128 * CLIPS, 8, objective, CLIPS),
    "`train.py --stage finetune --data epic`": (64, EPIC_FRAMES, ProcedureModel.encode, 1),
    "`evaluate.py --task forecast`, `features`": (64 * 8, 8, ProcedureModel.encode, None),
    "`evaluate.py --task classify`": (64 * 3, 8, ProcedureModel.encode, None),
    "`evaluate.py --data epic`": (64 * VIEWS, EPIC_FRAMES, ProcedureModel.encode, None)}


# --- Speed ---
def measure(device, work, trained):
    """The median time of work(); with the gradients of a model, if one is trained."""
    def once():
        with mixed_precision(device), torch.set_grad_enabled(trained is not None):
            y = work()
        if trained is not None:
            y.float().square().sum().backward()
            trained.zero_grad()
    timer = Timer("once()", globals=locals(), num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=SECONDS).median


def ways(B, device):
    """What is measured of B videos or clips: {name: (function, model or None)}."""
    model = make_model().to(device)
    F, H = model.encoder.frames, model.encoder.image
    clips = torch.randint(256, (CLIPS * B, F, 3, H, H), dtype=torch.uint8, device=device)
    x = functional.normalize(torch.randn(len(clips), D, device=device), dim=-1)
    noise = torch.randn(1, 50, D, device=device)
    return {
        f"f on {B} clips": (lambda: model.encode(clips[:B]), None),
        f"f on {B} clips, with gradients": (lambda: model.encode(clips[:B]), model),
        "forecast, zero noise": (lambda: model.forecast_next(x[None, :8], noise[:, :1]), None),
        "forecast, 5 samples": (lambda: model.forecast_next(x[None, :8], noise[:, :5]), None),
        "forecast, 50 samples": (lambda: model.forecast_next(x[None, :8], noise), None),
        f"group of {B} videos, f": (lambda: model.encode(clips), model),
        f"group of {B} videos, h on {len(x)} rows": (lambda: predict_rows(model, x), model)}


# --- Memory ---
class Live(TorchDispatchMode):
    """Within it, `storages` are those of all live tensors, and `peak` the most bytes they had."""

    def __init__(self, tensors):
        super().__init__()
        self.peak, self.storages = 0, weakref.WeakKeyDictionary()      # {storage: bytes}
        self.add(tensors)

    def add(self, tensors):
        self.storages.update((t.untyped_storage(), t.untyped_storage().nbytes()) for t in tensors)
        self.peak = max(self.peak, sum(self.storages.values()))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        outs = out if isinstance(out, (list, tuple)) else [out]
        self.add(one for one in outs if isinstance(one, torch.Tensor))
        return out


def rehearse(real, command, size, counter=Live):
    """Run a command's work on `size` clips of fake tensors: inference, or two updates: the first
    makes AdamW's moments. A CPU stands in for the card. Returns counter(tensors), a mode."""
    (_, frames, work, trained), fake = command, FakeTensorMode()
    H = real.encoder.image
    with FakeCopyMode(fake):
        model = copy.deepcopy(real)
    with fake, counter(model.state_dict().values()) as counted:
        clips = torch.empty(size, frames, 3, H, H, dtype=torch.uint8)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(2 if trained else 1):
            with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(bool(trained)):
                y = work(model, clips)
            if trained:                                # gradients of earlier groups are there, too
                y.square().sum().backward()
                optimizer.step()
    return counted


def memory_lines():
    """For each command the largest micro-batch that fits each card, GiB, and the operations."""
    for name, command in COMMANDS.items():
        number, frames, _, trained = command
        real, unit = make_model(frames=frames), trained or 1           # whole videos
        a, b = 4 * unit, 6 * unit
        at_a, at_b = ((rehearse(real, command, size).peak + 4 * TEACHER) / 2**30
                      for size in (a, b))
        gib = {size: at_a + (at_b - at_a) * (size - a) / (b - a)       # linear in the micro-batch
               for size in (unit * videos for videos in SIZES) if size <= number}
        best = [max(size for size in gib if gib[size] <= USED * card) for card in CARDS]
        with sdpa_kernel(SDPBackend.MATH):                 # made of products that the counter knows
            flop = rehearse(real, command, b, lambda _: FlopCounterMode(display=False))
        flop = flop.get_total_flops() / (2 if trained else 1) / b * number
        yield [name, *(f"{size}: {gib[size]:.1f}" for size in best), f"{flop / 1e12:.0f}"]


def main(args):
    """Measure or count, print a table, and write it into a page."""
    if args.memory:
        name, lines = "memory", memory_lines()
        header = ["micro-batch: GiB", *(f"{card} GB" for card in CARDS), "TFLOP"]
    else:
        device = pick_device(args.device)
        machine = (torch.cuda.get_device_name() if device.type == "cuda" else
                   f"{torch.get_num_threads()} CPU threads")
        name, header = f"speed-{device.type}", [machine, "s"]
        lines = ([way, f"{measure(device, *work):.3g}"]
                 for way, work in ways(args.batch, device).items())
    table = text_table(header, [*lines])
    print(table)
    if args.page:
        page = args.page.read_text(encoding="utf-8")
        write_text(args.page, replace(page, name, table + "\n"))


def parse(argv=None):
    """The command line."""
    parser = Parser("Measure f, sampling, and the parts of an update; or count their memory.")
    add = parser.add_argument
    add("--memory", action="store_true", help="count memory and operations; needs no GPU")
    add("--batch", type=count, default=1, help="clips that f encodes, and videos of an update")
    add("--device", default="auto", help="cpu, cuda or mps; auto: a GPU if any")
    add("--page", type=Path, help="write the table into this page, between its marks")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main, parse)
