"""What the benchmark measures: see benchmark.py.

Each part is a function of the settings, the device and an empty folder. It yields tables, as a name
and {row: {column: number or None}}. s are of the clock. B clips or videos, F frames, K phrases, M
samples.
"""
import functools
import shutil
import statistics
import subprocess
import time
from unittest import mock

import av
import numpy as np
import open_clip
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from data import (CLIP_SECONDS, CLIPS, PIECES, Video, View, classify_windows, frame_times,
                  missing_clips)
from encoder import TimeSformer
from files.sources import VideoSource
from files.video import Unreadable, duration, find_videos, read_frames, short_side_for, shrink
from model import encode_parts
from pseudo_labels import Teacher
from support.command import BadInput, require
from support.device import mixed_precision, send
from toy.teacher import build_teacher
from training.pretrain import PIXELS, SIZES, TAU
from weights.checkpoint import build_model

REPEATS = 5                   # rounds, after one to warm up
SECONDS = 180.0               # of the generated video
PHRASES = 9871                # K of the paper
FUTURES = 1, 5, 50            # M
MICRO_BATCH = 36              # step: clips of paper size that f encodes at once, 1.3 GiB for each
FRAMES, SIZE = 8, 224         # loader: F and the side of the paper's pictures, pixels
PACE = 7.0                    # loader: s between clips, every second sentence of HowTo100M


# ---- Measuring -----------------------------------------------------------------------------------
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
    return build_model(torch.randn(PHRASES, dim), **SIZES[size], order="diffusion", tau=TAU,
                       teacher_tau=TAU, pixels=PIXELS).to(device)


# ---- encoder -------------------------------------------------------------------------------------
def encoder_ways(settings, device):
    """{name: (module, clips (B, 3, F, H, W) -> class tokens (B, width))}.

    ours: encoder.py; naive: the same with softmax(q k^T / sqrt(d)) v as it is written, all weights
    in memory; hf: TimesformerModel, if transformers is installed.
    """
    sizes = SIZES[settings.size]["encoder"]
    f = TimeSformer(**sizes).to(device)

    @mock.patch.object(functional, "scaled_dot_product_attention",
                       lambda q, k, v: (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v)
    def naive(clips):
        return f.features(clips)
    ways = {"ours": (f, f.features), "naive": (f, naive)}
    try:
        from transformers import TimesformerConfig, TimesformerModel
    except ImportError:
        print("transformers is not installed: TimesformerModel is left out (pip install it)")
        return ways
    hf = TimesformerModel(TimesformerConfig(
        image_size=sizes["image"], patch_size=sizes["patch"], num_frames=sizes["frames"],
        hidden_size=sizes["width"], num_hidden_layers=sizes["depth"],
        num_attention_heads=sizes["heads"], intermediate_size=4 * sizes["width"])).to(device)
    return ways | {"hf": (hf, lambda clips: hf(clips.transpose(1, 2)).last_hidden_state[:, 0])}


def encoder(settings, device, folder):
    """Ways to encode B clips, forward and with backward. A product and a sum are two FLOP."""
    ways, sizes = encoder_ways(settings, device), SIZES[settings.size]["encoder"]
    clips = torch.randn(settings.batch, 3, *(sizes[name] for name in ("frames", "image", "image")),
                        device=device)

    @torch.no_grad()
    def forward(module, way):
        way(clips)

    def forward_backward(module, way):
        way(clips).float().square().sum().backward()
        module.zero_grad(set_to_none=True)
    for work in (forward, forward_backward):
        works = {name: functools.partial(work, *way) for name, way in ways.items()}
        table = measure(works, device)
        for name, row in table.items():
            with FlopCounterMode(display=False) as counter, mixed_precision(device):
                works[name]()
            row["TFLOP"] = counter.get_total_flops() / 1e12
            row["TFLOP/s"] = row["TFLOP"] / row["s"]
        yield work.__name__, table


# ---- sampling ------------------------------------------------------------------------------------
def sampling(settings, device, folder):
    """Forecasts of a video's next clip: of zero noise, and of M futures with it (Eq. 11)."""
    model, size = random_model(settings.size, device).eval(), SIZES[settings.size]["encoder"]
    clips = torch.randint(256, (PIECES, size["frames"], 3, size["image"], size["image"]),
                          dtype=torch.uint8)
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


# ---- step ----------------------------------------------------------------------------------------
def step(settings, device, folder):
    """The parts of a pre-training step on clips; it decodes in this process.

    Of a whole step, with its workers, train.py writes clips_per_s to metrics.jsonl.
    """
    B, paper, made = settings.batch, settings.size == "paper", folder / "made.mp4"
    part = MICRO_BATCH if paper and B * CLIPS > MICRO_BATCH else None
    clip = open_clip.create_model("ViT-B-16-quickgelu") if paper else build_teacher()[0]
    make_video(made, SECONDS)
    size = SIZES[settings.size]["encoder"]
    source = VideoSource([Video(str(i)) for i in range(B)], {str(i): str(made) for i in range(B)},
                         View(size["image"], size["frames"]),
                         Teacher(clip, None, 0.5, 0.25, device))
    model = random_model(settings.size, device, clip.visual.output_dim)
    loaded = source.load([(i, windows_of(duration(made))) for i in range(B)])
    x = functional.normalize(torch.randn(B, CLIPS, model.dim, device=device), dim=-1)
    real = torch.ones(B, CLIPS, dtype=torch.bool, device=device)
    j, t = missing_clips(real), torch.zeros(B, dtype=torch.int64, device=device)
    zt = torch.randn(B, 1, model.dim, device=device)

    def encode():
        encode_parts(model, send(loaded.clips, device), part).sum().backward()
        model.zero_grad(set_to_none=True)

    def denoise():
        z_hat = model.denoise(zt, x, real.scatter(1, j, False), j, t)
        model.match(model.standardize.inverse(z_hat)).sum().backward()
        model.zero_grad(set_to_none=True)
    table = measure({"decode": lambda: source.load(loaded.requests),
                     "teacher": lambda: source.teacher_features(loaded.views),
                     "encoder": encode, "denoiser and matching": denoise}, device)
    for row in table.values():
        row["clips/s"] = len(loaded.clips) / row["s"]
    yield f"{B} videos, {len(loaded.clips)} clips, K = {PHRASES}, micro-batch {part}", table


# ---- loader --------------------------------------------------------------------------------------
def make_video(path, length, size="640x360", rate=30):
    """An H.264 mp4 of `length` s with x264's defaults: groups of up to 250 frames, B-frames.

    It shows FFmpeg's moving test picture: some 2 Mbit/s, more than such a video has on the web.
    """
    pictures = f"testsrc2=size={size}:rate={rate}:duration={length}"
    with av.open(pictures, format="lavfi") as source, av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=rate)
        stream.width, stream.height = map(int, size.split("x"))
        for frame in source.decode(video=0):
            file.mux(stream.encode(frame.reformat(format="yuv420p")))
        file.mux(stream.encode())


def windows_of(length):
    """(9, 2) s: windows of 9 s, PACE apart (closer in a shorter video), in the middle of it."""
    span = min(PACE * (CLIPS - 1) + CLIP_SECONDS, length)
    return classify_windows((length - span) / 2, (length + span) / 2, length, CLIPS)


def read_ours(path, windows):
    """All clips from one opening, as files.sources.VideoSource reads them in pre-training."""
    times = frame_times(windows, FRAMES).reshape(-1)
    return read_frames(path, times, short_side_for(SIZE)).split(FRAMES)


def read_ffmpegs(path, windows):
    """A process per clip, like the released loaders of ProcedureVRL, DistantSup and MIL-NCE.

    Each seeks to its clip and gives so many frames per second, a whole number, that F are there,
    640 x 360 pixels, RGB through a pipe; F of them are taken.
    """
    clips = []
    for start, end in windows:
        rate = int(np.ceil(FRAMES / (end - start)))
        done = subprocess.run(
            ["ffmpeg", "-nostdin", "-loglevel", "error", "-ss", f"{start:.3f}", "-t",
             f"{end - start:.3f}", "-i", f"file:{path}", "-vf", f"fps={rate},scale=640:360", "-f",
             "rawvideo", "-pix_fmt", "rgb24", "pipe:"], capture_output=True)
        pictures = np.frombuffer(done.stdout, np.uint8).reshape(-1, 360, 640, 3)
        require(len(pictures) and not done.returncode,
                f"{path}: ffmpeg gives no picture: {done.stderr!r}")
        chosen = np.linspace(0, len(pictures) - 1, FRAMES).astype(int)
        clips.append(torch.from_numpy(pictures[chosen]).permute(0, 3, 1, 2))
    return clips


def loader(settings, device, folder):
    """A table for each video: ours and ffmpeg, from the file and from its small copy."""
    require(shutil.which("ffmpeg"), "ffmpeg: not found; the released code reads videos with it, "
            "and ours is compared with that (Debian: apt-get install ffmpeg)")
    make_video(folder / "made.mp4", SECONDS)
    mine, small = find_videos(settings.videos) if settings.videos else {}, folder / "small.mp4"
    for name, path in {"made": folder / "made.mp4", **mine}.items():
        try:
            shrink(path, small)
            windows = windows_of(duration(path))
            table = measure({who + copy: functools.partial(read, file, windows)
                             for copy, file in (("", path), ("_small", small))
                             for who, read in (("ffmpegs", read_ffmpegs), ("ours", read_ours))},
                            device)
        except Unreadable as error:
            raise BadInput(str(error)) from None
        yield name, {way: {"s": row["s"], "times as fast": table["ffmpegs"]["s"] / row["s"],
                           "clips/s": CLIPS / row["s"]} for way, row in table.items()}
