"""What the benchmark measures: see benchmark.py.

Each part is a function of the settings, the device and an empty folder. It yields tables, as a name
and {row: {column: number or None}}. B clips or videos, F frames, K phrases, M samples.
"""
import functools
import statistics
import time

import av
import numpy as np
import open_clip
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from data import (CLIP_SECONDS, CLIPS, PIECES, Video, classify_windows, frame_times, missing_rows,
                  view_of)
from encoder import TimeSformer
from files.sources import VideoSource
from files.video import Unreadable, duration, find_videos, read_frames, short_side_for, shrink
from losses import TAU
from model import encode_parts
from pseudo_labels import Teacher
from support.command import BadInput
from support.device import mixed_precision, send
from toy.teacher import build_teacher
from training.pretrain import PIXELS, SIZES
from weights.checkpoint import build_model

REPEATS = 5                   # rounds, after one to warm up
SECONDS = 180.0               # of the generated video
PHRASES = 9871                # K of the paper
FUTURES = 1, 5, 50            # M
MICRO_BATCH = 36              # step: clips of paper size that f encodes at once, 1.3 GiB for each
FRAMES, SIZE = 8, 224         # loader: F and the side of the paper's pictures, pixels
PACE = 7.0                    # loader: s between clips, every second sentence of HowTo100M


# --- Measuring ---
def measure(ways, device):
    """{name: function} -> {name: {"s": its median, "MiB": its peak}}; the functions take turns.

    MiB: of GPU memory allocated beyond what was allocated before; None on a CPU.
    """
    gpu, seconds, mib = device.type == "cuda", {name: [] for name in ways}, {}
    for _ in range(REPEATS + 1):                                           # one to warm up
        for name, work in ways.items():
            if gpu:
                torch.cuda.reset_peak_memory_stats(device)
                before = torch.cuda.memory_allocated(device)
            began = time.perf_counter()
            with mixed_precision(device):
                work()
            if gpu:
                torch.cuda.synchronize(device)
                mib[name] = (torch.cuda.max_memory_allocated(device) - before) / 2 ** 20
            seconds[name].append(time.perf_counter() - began)
    return {name: {"s": statistics.median(times[1:]), "MiB": mib.get(name)}
            for name, times in seconds.items()}


def random_model(size, device, dim=512):
    """f and h of a size, with random weights and texts, in training mode."""
    torch.manual_seed(0)
    return build_model(torch.randn(PHRASES, dim), SIZES[size]["encoder"], SIZES[size]["denoiser"],
                       order="diffusion", tau=TAU, pixels=PIXELS).to(device)


# --- encoder ---
def encoder(settings, device, folder):
    """Ways to encode B clips, forward and with backward. A product and a sum are two FLOP.

    ours: encoder.py; naive: the same with PyTorch's plain softmax(q k^T / sqrt(d)) v, all weights
    in memory.
    """
    f = TimeSformer(**SIZES[settings.size]["encoder"]).to(device)
    clips = torch.randn(settings.batch, 3, f.frames, f.image, f.image, device=device)

    @torch.no_grad()
    def forward(way):
        way(clips)

    def forward_backward(way):
        way(clips).float().square().sum().backward()
        f.zero_grad(set_to_none=True)
    for work in (forward, forward_backward):
        works = {"ours": functools.partial(work, f.class_token),
                 "naive": functools.partial(sdpa_kernel(SDPBackend.MATH)(work), f.class_token)}
        table = measure(works, device)
        for name, row in table.items():
            with FlopCounterMode(display=False) as counter, mixed_precision(device):
                works[name]()
            row["TFLOP"] = counter.get_total_flops() / 1e12
            row["TFLOP/s"] = row["TFLOP"] / row["s"]
        yield work.__name__, table


# --- sampling ---
def sampling(settings, device, folder):
    """Forecasts of a video's next clip: of zero noise, and of M futures with it (Eq. 11)."""
    model = random_model(settings.size, device).eval()
    f = model.encoder
    clips = torch.randint(256, (PIECES, f.frames, 3, f.image, f.image), dtype=torch.uint8)
    x = functional.normalize(torch.randn(1, PIECES, model.dim, device=device), dim=-1)

    @torch.no_grad()
    def forecast(noise):
        model.match(model.forecast_next(x, noise))
    ways = {"encode": torch.no_grad()(lambda: model.encode(send(clips, device)))}
    for M in (0, *FUTURES):
        noise = torch.randn(1, 1 + M, model.dim, device=device)
        noise[:, 0] = 0                                                        # the zero noise
        ways[f"M = {M}" if M else "zero noise"] = functools.partial(forecast, noise)
    yield f"{PIECES} clips", measure(ways, device)


# --- step ---
def step(settings, device, folder):
    """The parts of a pre-training step on clips; of whole steps train.py logs clips_per_s."""
    B, paper, made = settings.batch, settings.size == "paper", folder / "made.mp4"
    part = MICRO_BATCH if paper and B * CLIPS > MICRO_BATCH else None
    clip = open_clip.create_model("ViT-B-16-quickgelu") if paper else build_teacher()[0]
    make_video(made)
    model = random_model(settings.size, device, clip.visual.output_dim)
    source = VideoSource([Video("made")] * B, {"made": str(made)}, view_of(model.encoder),
                         Teacher(clip, None, 0.5, 0.25, device))
    windows = [windows_of(duration(made))] * B
    loaded = source.load([*enumerate(windows)])
    x = functional.normalize(torch.randn(B * CLIPS, model.dim, device=device), dim=-1)
    rng = np.random.default_rng(0)
    rows, j = (send(part, device) for part in missing_rows(windows, 1, rng))
    observed, t = (rows >= 0).scatter(1, j, False), torch.zeros(len(j), dtype=torch.int64,
                                                                device=device)
    zt = torch.randn(len(j), 1, model.dim, device=device)

    def encode():
        encode_parts(model, send(loaded.clips, device), part).sum().backward()
        model.zero_grad(set_to_none=True)

    def denoise():
        z_hat = model.h(zt, x[rows], observed, j, t)
        model.match(model.standardize.inverse(z_hat)).sum().backward()
        model.zero_grad(set_to_none=True)
    table = measure({"decode": lambda: source.load(loaded.requests),
                     "teacher": lambda: source.teacher_features(loaded.views),
                     "f": encode, "rows": lambda: missing_rows(windows, 1, rng),
                     "h and matching": denoise}, device)
    for row in table.values():
        row["clips/s"] = len(loaded.clips) / row["s"]
    yield (f"{B} videos, {len(loaded.clips)} clips, {len(rows)} rows, K = {PHRASES}, "
           f"micro-batch {part}"), table


# --- loader ---
def make_video(path):
    """SECONDS of FFmpeg's moving test picture as an H.264 mp4, with x264's defaults."""
    pictures = f"testsrc2=size=640x360:rate=30:duration={SECONDS}"
    with av.open(pictures, format="lavfi") as source, av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=30)
        stream.width, stream.height = 640, 360
        for frame in source.decode(video=0):
            file.mux(stream.encode(frame.reformat(format="yuv420p")))
        file.mux(stream.encode())


def windows_of(length):
    """(9, 2) s: windows of 9 s, PACE apart (closer in a shorter video), in the middle of it."""
    span = min(PACE * (CLIPS - 1) + CLIP_SECONDS, length)
    return classify_windows((length - span) / 2, (length + span) / 2, length, CLIPS)


def loader(settings, device, folder):
    """A table for each video: its clips from the file, and from its small copy."""
    made, small = folder / "made.mp4", folder / "small.mp4"
    make_video(made)
    mine = find_videos(settings.videos) if settings.videos else {}
    for name, path in {"made": made, **mine}.items():
        try:
            shrink(path, small)
            times = frame_times(windows_of(duration(path)), FRAMES).reshape(-1)
            table = measure({way: functools.partial(read_frames, file, times, short_side_for(SIZE))
                             for way, file in (("file", path), ("small copy", small))}, device)
        except Unreadable as error:
            raise BadInput(error) from None
        yield name, {way: {"s": row["s"], "clips/s": CLIPS / row["s"]}
                     for way, row in table.items()}
