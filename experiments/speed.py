"""What benchmark.py measures: a part -> {table: {row: {"s": its median, "clips/s"}}}."""
import tempfile
import time
from functools import partial
from pathlib import Path

import av
import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from data import classify_windows, frame_times, missing_rows
from files.video import read_frames, short_side_for, shrink
from losses import TAU
from model import encode_parts
from support.device import mixed_precision, pick_device
from training.pretrain import SIZES
from weights.checkpoint import build_model
from weights.names import PIXELS

REPEATS, PHRASES, SAMPLES = 5, 9871, (1, 5, 50)        # rounds; K of the paper; M
SECONDS = 180.0                                        # of the video that is read
WINDOWS = classify_windows(57.5, 122.5, SECONDS, 9)    # (9, 2) s, every second sentence: 7 s apart


def measure(settings, clips, ways, trained=None):
    """Time functions {row: function} of so many clips; with gradients of the model `trained`."""
    device, seconds = pick_device(settings.device), {name: [] for name in ways}
    for name in [*ways] * (REPEATS + 1):                               # the first is to warm up
        began = time.perf_counter()
        with mixed_precision(device), torch.set_grad_enabled(trained is not None):
            y = ways[name]()
        if trained is not None:
            y.float().square().sum().backward()
            trained.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds[name].append(time.perf_counter() - began)
    medians = {name: float(np.median(times[1:])) for name, times in seconds.items()}
    return {name: {"s": s, "clips/s": clips / s} for name, s in medians.items()}


def random_model(settings, clips):
    """Of random numbers: a model; pixels of so many clips; and their embeddings x (clips, D)."""
    device, sizes = pick_device(settings.device), SIZES[settings.size]
    texts = torch.randn(PHRASES, 64 if settings.size == "small" else 512)
    model = build_model(texts, sizes["encoder"], sizes["denoiser"], order="diffusion", tau=TAU,
                        pixels=PIXELS).to(device)
    shape = clips, model.encoder.frames, 3, model.encoder.image, model.encoder.image
    x = torch.nn.functional.normalize(torch.randn(clips, model.dim, device=device), dim=-1)
    return model, torch.randint(256, shape, dtype=torch.uint8, device=device), x


def encoder(settings):
    """f on clips; naive: with PyTorch's plain softmax(q k^T / sqrt(d)) v."""
    model, clips, _ = random_model(settings, settings.batch)
    work = partial(model.class_token, clips)
    ways = {"ours": work, "naive": sdpa_kernel(SDPBackend.MATH)(work)}
    return {"forward": measure(settings, len(clips), ways),
            "forward_backward": measure(settings, len(clips), ways, model)}


def sampling(settings):
    """Forecasts of a video's next clip: of zero noise, and of M samples with it (Eq. 11)."""
    model, _, x = random_model(settings, 8)
    noise, forecast = torch.randn(1, 1 + max(SAMPLES), x.shape[1]).to(x), model.eval().forecast_next
    return {"8 clips": measure(settings, 8, {
        f"M = {M}" if M else "zero noise": partial(forecast, x[None], noise[:, :1 + M])
        for M in (0, *SAMPLES)})}


def step(settings):
    """The parts of a pre-training step; train.py logs clips_per_s of whole ones."""
    videos = [WINDOWS] * settings.batch
    model, clips, x = random_model(settings, len(WINDOWS) * len(videos))
    drawn = missing_rows(videos, np.arange(len(x)), np.zeros(len(x)), 1, np.random.default_rng(0))
    rows, j = (part.to(x.device) for part in drawn)
    observed, zt = (rows >= 0).scatter(1, j, False), torch.randn_like(x[rows[:, :1]])
    part = 36 if settings.size == "paper" and len(clips) > 36 else None        # 1.3 GiB a clip
    denoise = partial(model.h, zt, x[rows], observed, j, torch.zeros_like(j[:, 0]))
    return {f"{len(videos)} videos, {len(clips)} clips, {len(rows)} rows": measure(
        settings, len(clips), {"f": partial(encode_parts, model, clips, part), "h and matching":
                               lambda: model.match(model.standardize.inverse(denoise()))}, model)}


def loader(settings):
    """Reading 8 frames of each window: from a video of FFmpeg's test picture, and a small copy."""
    times, pictures = frame_times(WINDOWS, 8).reshape(-1), f"testsrc2=640x360:30:{SECONDS}"
    with tempfile.TemporaryDirectory() as folder:
        made, small = Path(folder, "made.mp4"), Path(folder, "small.mp4")
        with av.open(pictures, format="lavfi") as source, av.open(str(made), "w") as file:
            stream = file.add_stream("libx264", 30, width=640, height=360)
            for frame in source.decode(video=0):
                file.mux(stream.encode(frame.reformat(format="yuv420p")))
            file.mux(stream.encode())
        shrink(made, small)
        ways = {name: partial(read_frames, path, times, short_side_for(224))
                for name, path in (("file", made), ("small copy", small))}
        return {"made": measure(settings, len(WINDOWS), ways)}
