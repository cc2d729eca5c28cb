"""What the benchmark measures: see benchmark.py.

Each part is a function of the settings, the device and an empty folder. It prints its table and
returns its numbers. B clips or videos, F frames, K phrases, M samples.
"""
import functools
import json
import os
import resource
import shutil
import statistics
import subprocess
import time
from types import SimpleNamespace
from unittest import mock

import av
import numpy as np
import open_clip
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode
from tqdm import tqdm

from data import CLIP_SECONDS, CLIPS, PIECES, Video, View, frame_times
from encoder import TimeSformer
from experiments.text_table import text_table
from files.captions import open_captions
from files.sources import VideoSource
from files.video import Unreadable, duration, find_videos, read_frames, short_side_for, shrink
from model import encode_parts
from pseudo_labels import Teacher
from support.command import BadInput
from support.device import mixed_precision, send
from toy.teacher import build_teacher
from training.pretrain import (PIXELS, SIZES, TAU, encode_batch, load_step, make_optimizer,
                               objective)
from training.run import Stage
from weights.checkpoint import build_model

REPEATS = 5                   # rounds, after one to warm up
SECONDS = 180.0               # of the generated video
PHRASES = 9871                # K of the paper
FUTURES = 1, 5, 50            # M
MICRO_BATCH = 36              # step: clips of paper size that f encodes at once, 1.3 GiB for each
FRAMES, SIZE = 8, 224         # loader: F and the side of the paper's pictures, pixels
PACE = 7.0                    # loader: s between neighboring clips, every second sentence of
                              # HowTo100M: 136 M in 1.22 M videos of 6.5 minutes


# ---- Measuring -----------------------------------------------------------------------------------
def machine():
    """What the numbers belong to."""
    return {"cores": os.cpu_count(), "threads": torch.get_num_threads(),
            "load": os.getloadavg()[0], "torch": torch.__version__, "av": av.__version__,
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None}


def finished(work, device, round=0):
    """work(round) in the precision of training, until the GPU has done it; gives its result."""
    with mixed_precision(device):
        result = work(round)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return result


def processor_seconds():
    """s of the processors so far: user and system, of this process and its ended children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def in_turn(ways, device):
    """Medians of `ways`, {name: function of the round}, which take turns.

    Returns: {name: s of the clock} and {name: s of the processors}.
    """
    taken = {name: [] for name in ways}
    for round in range(-1, REPEATS):                                       # one to warm up
        for name, work in ways.items():
            began, before = time.perf_counter(), processor_seconds()
            finished(work, device, round)
            taken[name].append((time.perf_counter() - began, processor_seconds() - before))
    return tuple({name: statistics.median(row[i] for row in rows[1:])
                  for name, rows in taken.items()} for i in range(2))


def peak(work, device):
    """MiB of GPU memory that work() allocates beyond what was allocated; None on a CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    finished(work, device)
    return (torch.cuda.max_memory_allocated(device) - before) / 2 ** 20


def show(header, rows):
    """Print a table: texts as they are, numbers with four digits, None as a dash."""
    print(text_table(header, [["-" if cell is None else cell if isinstance(cell, str)
                               else f"{cell:.4g}" for cell in row] for row in rows]), flush=True)


def random_model(size, device, dim=512):
    """f and h of a size, with random weights and texts, in training mode."""
    torch.manual_seed(0)
    return build_model(torch.randn(PHRASES, dim), **SIZES[size], order="diffusion", tau=TAU,
                       pixels=PIXELS).to(device)


# ---- encoder -------------------------------------------------------------------------------------
def plain_attention(q, k, v):
    """softmax(q k^T / sqrt(d)) v as it is written: all weights are in memory."""
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


def timesformer_model(image, patch, frames, width, depth, heads):
    """transformers.TimesformerModel; None, after a line that says so, if it is not installed."""
    try:
        from transformers import TimesformerConfig, TimesformerModel
    except ImportError:
        print("transformers is not installed: TimesformerModel is left out (pip install it)")
        return None
    return TimesformerModel(TimesformerConfig(
        image_size=image, patch_size=patch, num_frames=frames, hidden_size=width,
        num_hidden_layers=depth, num_attention_heads=heads, intermediate_size=4 * width))


def encoder_ways(settings, device):
    """{name: (module, clips (B, 3, F, H, W) -> class tokens (B, width))}.

    ours: encoder.py; naive: the same with plain softmax attention; hf: TimesformerModel, which has
    no other attention; *_compiled: by torch.compile.
    """
    sizes = SIZES[settings.size]["encoder"]
    f, hf = TimeSformer(**sizes).to(device), timesformer_model(**sizes)
    for p in f.parameters():                           # with zeros half of it would do nothing
        if not p.any():
            torch.nn.init.normal_(p, std=0.02)

    def naive(clips):
        with mock.patch.object(functional, "scaled_dot_product_attention", plain_attention):
            return f.features(clips)
    ways = {"ours": (f, f.features), "naive": (f, naive)}
    if hf is not None:
        ways["hf"] = hf.to(device), lambda clips: hf(clips.transpose(1, 2)).last_hidden_state[:, 0]
    if settings.compiled:
        ways |= {f"{name}_compiled": (ways[name][0], torch.compile(ways[name][1]))
                 for name in ("ours", "hf") if name in ways}
    return ways


def encoder(settings, device, folder):
    """f versus TimesformerModel and plain attention, forward and with backward; s per clip.

    FLOPs are those executed, a product and a sum as two, and are compared with the rate of one
    large matrix product in the same run.
    """
    ways, sizes, B = encoder_ways(settings, device), SIZES[settings.size]["encoder"], settings.batch
    clips = torch.randn(B, 3, sizes["frames"], sizes["image"], sizes["image"], device=device)
    side = 4096 if device.type == "cuda" else 2048
    left, right = torch.randn(2, side, side, device=device)

    @torch.no_grad()
    def forward(module, way, round):
        return way(clips).float()

    def forward_backward(module, way, round):
        module.zero_grad(set_to_none=True)
        way(clips).float().square().sum().backward()
    one, other = (finished(functools.partial(forward, *ways[name]), device)
                  for name in ("ours", "naive"))
    result = {"clips": B, "difference": float((one - other).abs().max())}
    for work in (forward, forward_backward):
        works = {name: functools.partial(work, *way) for name, way in ways.items()}
        taken, spent = in_turn({**works, "matrix": lambda round: left @ right}, device)
        rate, lines = 2 * side ** 3 / taken.pop("matrix"), []                  # FLOP/s
        result[work.__name__] = row = {"ours_s": None, "hf_s": None, "naive_s": None,
                                       "matrix_tflops": rate / 1e12}
        for name, clock in taken.items():
            with FlopCounterMode(display=False) as counter:
                finished(works[name.removesuffix("_compiled")], device)
            flop, mib = counter.get_total_flops(), peak(works[name], device)
            row |= {f"{name}_s": clock / B, f"{name}_cpu_s": spent[name] / B, f"{name}_mib": mib,
                    f"{name}_gflop": flop / B / 1e9, f"{name}_share": flop / clock / rate}
            lines.append([name, clock / B, clock / taken["ours"], spent[name] / B, flop / B / 1e9,
                          f"{100 * flop / clock / rate:.0f} %", mib])
        show([work.__name__, "s per clip", "versus ours", "processor s", "GFLOP",
              "of the matrix rate", "MiB"], lines)
    print(f"{B} clips at once; ours and naive differ by at most {result['difference']:.1e}; matrix "
          f"rate {rate / 1e12:.2f} TFLOP/s")
    return result


# ---- sampling ------------------------------------------------------------------------------------
def sampling(settings, device, folder):
    """Forecasts of a video's next clip: s of zero noise, and of M futures with it (Eq. 11)."""
    model, size = random_model(settings.size, device).eval(), SIZES[settings.size]["encoder"]
    clips = torch.randint(256, (PIECES, size["frames"], 3, size["image"], size["image"]),
                          dtype=torch.uint8)
    x = functional.normalize(torch.randn(1, PIECES, model.dim, device=device), dim=-1)

    @torch.no_grad()
    def encode(round):
        model.encode(send(clips, device))

    @torch.no_grad()
    def forecast(noise, round):
        model.match_predicted(model.forecast_next(x, noise))
    ways = {"encode": encode}
    for M in (0, *FUTURES):
        noise = torch.randn(1, 1 + M, model.dim, device=device)
        noise[:, 0] = 0                                                        # the zero noise
        ways[f"m{M}"] = functools.partial(forecast, noise)
    taken, _ = in_turn(ways, device)
    encode, zero = taken["encode"], taken["m0"]
    more = {M: 100 * (taken[f"m{M}"] - zero) / (encode + zero) for M in (0, *FUTURES)}
    show([f"futures and zero noise; {PIECES} clips encoded in {encode:.4g} s", "s",
          "more, of a forecast from video"],
         [[str(M), taken[f"m{M}"], f"{more[M]:.2f} %"] for M in more])
    return {"encode_s": encode, "zero_noise_s": zero,
            **{f"m{M}_s": taken[f"m{M}"] for M in FUTURES},
            **{f"m{M}_more_percent": more[M] for M in FUTURES}}


# ---- step ----------------------------------------------------------------------------------------
def narrated_videos(settings, teacher, folder):
    """A VideoSource of --batch narrated videos, all of them the generated one."""
    size, names = SIZES[settings.size]["encoder"], [str(i) for i in range(settings.batch)]
    make_video(folder / "made.mp4", SECONDS)
    starts = list(range(0, int(SECONDS) - 4, 4))
    spoken = {"start": starts, "end": [t + 4 for t in starts],
              "text": [f"stir the egg and then add {t} cups of flour to the bowl" for t in starts]}
    (folder / "caption.json").write_text(json.dumps(dict.fromkeys(names, spoken)))
    return VideoSource([Video(name) for name in names],
                       dict.fromkeys(names, str(folder / "made.mp4")),
                       View(size["image"], size["frames"]), teacher,
                       open_captions(folder / "caption.json"))


def step(settings, device, folder):
    """A pre-training step of the joint stage and its parts; and one of h alone -> s."""
    B, paper = settings.batch, settings.size == "paper"
    part = MICRO_BATCH if paper and B * CLIPS > MICRO_BATCH else None
    clip = open_clip.create_model("ViT-B-16-quickgelu") if paper else build_teacher()[0]
    source = narrated_videos(settings, Teacher(clip, None, 0.5, 0.25, device), folder)
    model = random_model(settings.size, device, clip.visual.output_dim)
    given = SimpleNamespace(seed=0, order="diffusion", augment=True, lr=2e-3, order_lr=4e-3)
    stage, optimizer = Stage("joint", range(REPEATS + 1), B), make_optimizer(model, given, "joint")
    for group in optimizer.param_groups:
        group["lr"] = group["peak"]
    loaded, _ = load_step(source, given, stage, 0)

    def decode(round):
        load_step(source, given, stage, round + 1)

    def teach(round):
        source.teacher_features(loaded.views)

    def encode(round):
        model.zero_grad(set_to_none=True)
        encode_parts(model, send(loaded.clips, device), part).sum().backward()

    def everything(round):
        loaded, masks = load_step(source, given, stage, round + 1)
        batch = encode_batch(model, source, loaded, masks, device, part=part)
        optimizer.zero_grad(set_to_none=True)
        objective(model, *batch, ordering=True)["loss"].backward()
        optimizer.step()
    taken, _ = in_turn({"decode": decode, "teacher": teach, "encoder": encode,
                        "everything": everything}, device)
    mib, clips, whole = peak(everything, device), len(loaded.clips), taken["everything"]
    show([f"{B} videos, {clips} clips, K = {PHRASES}, micro-batch {part}", "s", "of the step"],
         [[name, value, f"{100 * value / whole:.1f} %"] for name, value in taken.items()])
    print(f"{clips / whole:.2f} clips/s with decoding in this process; peak MiB of a step: {mib}")
    return {"videos": B, "clips": clips, "mib": mib, "micro_batch": part,
            **{f"{name}_s": value for name, value in taken.items()}}


# ---- loader --------------------------------------------------------------------------------------
def texture(height, width, seed):
    """A picture (H, W, 3) uint8 of blobs of all sizes, like natural ones."""
    generator, picture = torch.Generator().manual_seed(seed), torch.full((3, height, width), 128.)
    for cell, contrast in ((128, 60), (32, 40), (8, 20), (3, 8)):        # pixels, gray values
        noise = torch.randn(1, 3, height // cell + 3, width // cell + 3, generator=generator)
        picture += contrast * functional.interpolate(noise, (height, width), mode="bicubic")[0]
    return picture.clamp(0, 255).byte().permute(1, 2, 0).contiguous().numpy()


def make_video(path, length, size=(360, 640), fps=30):
    """An H.264 mp4 of `length` s with x264's defaults: groups of up to 250 frames, B-frames.

    A camera moves over a texture, five things in front of it move otherwise, and there is a cut
    every 8 s: some 0.8 Mbit/s, as a video of this size has on the web.
    """
    height, width = size
    ground = texture(3 * height, 3 * width, 0)
    things = [texture(height // 4, width // 5, 1 + k) for k in range(5)]
    rng = np.random.default_rng(0)
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=fps)
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        for i in tqdm(range(int(length * fps)), desc="make a video", mininterval=1):
            if i % (8 * fps) == 0:
                top, left = rng.integers(height), rng.integers(width)
            y = int(top + height / 2 * (1 + np.sin(i / 97)))
            x = int(left + width / 2 * (1 + np.sin(i / 131)))
            picture = ground[y:y + height, x:x + width].copy()
            for k, thing in enumerate(things):
                y = int(.37 * height * (1 + np.sin(i / (20 + 7 * k) + k)))
                x = int(.39 * width * (1 + np.cos(i / (25 + 5 * k) + 2 * k)))
                picture[y:y + len(thing), x:x + thing.shape[1]] = thing
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        file.mux(stream.encode())


def windows_of(length, round):
    """(9, 2) s: windows of 9 s, PACE apart (closer in a shorter video); `round` draws the first."""
    clip = min(CLIP_SECONDS, length)
    pace = min(PACE, (length - clip) / (CLIPS - 1))
    spare = length - clip - pace * (CLIPS - 1)
    starts = np.random.default_rng(round + 1).uniform(0, spare) + pace * np.arange(CLIPS)
    return np.stack([starts, starts + clip], 1)


def read_ours(path, length, round):
    """All clips from one opening, as files.sources.VideoSource reads them in pre-training."""
    times = frame_times(windows_of(length, round), FRAMES).reshape(-1)
    return read_frames(path, times, short_side_for(SIZE)).split(FRAMES)


def read_ffmpegs(path, length, round):
    """A process per clip, like the released loaders of ProcedureVRL, DistantSup and MIL-NCE.

    Each seeks to its clip and gives so many frames per second, a whole number, that F are there,
    640 x 360 pixels, RGB through a pipe; F of them are taken.
    """
    clips = []
    for start, end in windows_of(length, round):
        rate = int(np.ceil(FRAMES / (end - start)))
        done = subprocess.run(
            ["ffmpeg", "-nostdin", "-loglevel", "error", "-ss", f"{start:.3f}", "-t",
             f"{end - start:.3f}", "-i", f"file:{path}", "-vf", f"fps={rate},scale=640:360", "-f",
             "rawvideo", "-pix_fmt", "rgb24", "pipe:"], capture_output=True)
        pictures = np.frombuffer(done.stdout, np.uint8).reshape(-1, 360, 640, 3)
        if done.returncode or not len(pictures):
            reason = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise BadInput(f"{path}: ffmpeg gives no picture of it: {''.join(reason)}")
        chosen = np.linspace(0, len(pictures) - 1, FRAMES).astype(int)
        clips.append(torch.from_numpy(pictures[chosen]).permute(0, 3, 1, 2))
    return clips


def loader(settings, device, folder):
    """{video: s of ours and of ffmpeg, from the file and from its small copy}."""
    if not shutil.which("ffmpeg"):
        raise BadInput("ffmpeg: not found; the released code reads videos with it, and ours is "
                       "compared with that (Debian: apt-get install ffmpeg)")
    make_video(folder / "made.mp4", SECONDS)
    videos = {"made": str(folder / "made.mp4"),
              **(find_videos(settings.videos) if settings.videos else {})}
    result, small = {}, folder / "small.mp4"
    for name, path in videos.items():
        try:
            shrink(path, small)
            length = duration(path)
            taken, spent = in_turn(
                {who + copy: functools.partial(read, file, length)
                 for copy, file in (("", path), ("_small", small))
                 for who, read in (("ffmpegs", read_ffmpegs), ("ours", read_ours))}, device)
        except Unreadable as error:
            raise BadInput(str(error)) from None
        rates = [CLIPS / spent[way] for way in ("ours", "ours_small")]
        result[name] = {"seconds": length, "bytes": os.path.getsize(path),
                        "bytes_small": os.path.getsize(small), "clips_per_s_per_worker": rates[0],
                        "clips_per_s_per_worker_small": rates[1],
                        **{f"{way}_s": value for way, value in taken.items()},
                        **{f"{way}_cpu_s": value for way, value in spent.items()}}
        print(f"{name}: {length:.0f} s, {os.path.getsize(path) / 1e6:.1f} MB, small copy "
              f"{os.path.getsize(small) / 1e6:.1f} MB; {CLIPS} clips x {FRAMES} frames; clips/s of "
              f"a worker: {rates[0]:.1f}, from the copy {rates[1]:.1f}")
        show(["", "clock s", "times as fast", "processor s", "times as fast"],
             [[way, taken[way], taken["ffmpegs"] / taken[way], spent[way],
               spent["ffmpegs"] / spent[way]] for way in taken])
    return result
