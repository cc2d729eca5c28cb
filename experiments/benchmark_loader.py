"""What reading videos costs: parts of `python benchmark.py`, and how its parts are measured.

    part    measured in one run, on this machine
    loader  9 clips x 8 frames of one video: ours, and one ffmpeg process per clip, taken in turn
    memory  of a worker that reads sample after sample, for the leak that a long run would die of
    start   what happens before the first sample of a training list of HowTo100M's size

Times are medians over `--repeats`, in s: of the wall clock, and of the processors (user and system,
all threads and processes). Where every core has a worker of its own, it is the latter that counts:
ffmpeg decodes with as many threads as there are cores, a worker of ours with one.
"""
import functools
import json
import os
import resource
import shutil
import statistics
import subprocess
import time
from pathlib import Path

from support.command import BadInput

FRAMES = 8                    # F of the paper's TimeSformer
SIZE = 224                    # and the side of its pictures, pixels
PACE = 7.0                    # s between neighbouring clips: every second sentence of HowTo100M,
                              # 136 M in 1.22 M videos of 6.5 minutes
SAMPLES, ROUND = 10_000, 1_000          # of `memory`, and between two looks at it
LISTED = 1_200_000            # videos of `start`
SENTENCES = 110               # of each of them in a caption.json


# ------------------------------------------------------------------------------------------------
# Measuring
# ------------------------------------------------------------------------------------------------
def seconds(work):
    """(s of the clock, s of the processors) that work() takes, its child processes included."""
    def spent():
        both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(usage.ru_utime + usage.ru_stime for usage in both)
    began, before = time.perf_counter(), spent()
    work()
    return time.perf_counter() - began, spent() - before


def in_turn(ways, repeats):
    """{name: (clock, processors)}, medians of `ways`, {name: function of the round}, in turn."""
    taken = {name: [] for name in ways}
    for round in range(-1, repeats):
        for name, work in ways.items():
            taken[name].append(seconds(functools.partial(work, round)))
    return {name: tuple(statistics.median(column) for column in zip(*rows[1:]))    # one to warm up
            for name, rows in taken.items()}


def resident():
    """MiB of this process that are in memory (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2 ** 20


# ------------------------------------------------------------------------------------------------
# loader
# ------------------------------------------------------------------------------------------------
def texture(height, width, seed):
    """A picture (H, W, 3) uint8 of blobs of all sizes, as natural ones have them."""
    import torch
    generator, picture = torch.Generator().manual_seed(seed), torch.full((3, height, width), 128.)
    for cell, contrast in ((128, 60), (32, 40), (8, 20), (3, 8)):        # pixels, grey values
        noise = torch.randn(1, 3, height // cell + 3, width // cell + 3, generator=generator)
        picture += contrast * torch.nn.functional.interpolate(noise, (height, width),
                                                              mode="bicubic")[0]
    return picture.clamp(0, 255).byte().permute(1, 2, 0).contiguous().numpy()


def make_video(path, duration, size=(360, 640), fps=30):
    """An H.264 mp4 as x264 makes it by default: a group of up to 250 frames, B-frames.

    A camera that moves over a texture, before it five things that move otherwise, a cut every 8 s:
    some 0.8 Mbit/s, as a video of this size has on the web.
    """
    import av
    import numpy as np
    from tqdm import tqdm
    height, width = size
    ground = texture(3 * height, 3 * width, 0)
    things = [texture(height // 4, width // 5, 1 + k) for k in range(5)]
    rng = np.random.default_rng(0)
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=fps)
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        for i in tqdm(range(int(duration * fps)), desc="make a video", mininterval=1):
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


def windows_of(duration, round):
    """(9, 2) s: windows of 9 s, PACE apart (closer where the video is shorter), from a place
    that `round` decides."""
    import numpy as np
    from protocols import CLIP_SECONDS, CLIPS
    length = min(CLIP_SECONDS, duration)
    pace = min(PACE, (duration - length) / (CLIPS - 1))
    spare = duration - length - pace * (CLIPS - 1)
    starts = np.random.default_rng(round + 1).uniform(0, spare) + pace * np.arange(CLIPS)
    return np.stack([starts, starts + length], 1)


def ours(path, duration, round):
    """All clips from one opening, as data.VideoSource reads them in pre-training."""
    from protocols import frame_times
    from files.video import read_frames, short_side_for
    times = frame_times(windows_of(duration, round), FRAMES).reshape(-1)
    return read_frames(path, times, short_side_for(SIZE)).split(FRAMES)


def ffmpegs(path, duration, round):
    """A process per clip, as the released loaders of ProcedureVRL, DistantSup and MIL-NCE have it.

    Of each: a seek to the clip, so many whole frames per second that F are there, 640 x 360 pixels,
    RGB through a pipe; F of them are kept.
    """
    import numpy as np
    import torch
    clips = []
    for start, end in windows_of(duration, round):
        rate = int(np.ceil(FRAMES / (end - start)))
        done = subprocess.run(
            ["ffmpeg", "-nostdin", "-loglevel", "error", "-ss", f"{start:.3f}", "-t",
             f"{end - start:.3f}", "-i", f"file:{path}", "-vf", f"fps={rate},scale=640:360", "-f",
             "rawvideo", "-pix_fmt", "rgb24", "pipe:"], capture_output=True)
        pictures = np.frombuffer(done.stdout, np.uint8).reshape(-1, 360, 640, 3)
        if done.returncode or not len(pictures):
            reason = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise BadInput(f"{path}: ffmpeg gives no picture of it: {''.join(reason)}")
        kept = np.linspace(0, len(pictures) - 1, FRAMES).astype(int)
        clips.append(torch.from_numpy(pictures[kept]).permute(0, 3, 1, 2))
    return clips


def loader(settings, folder):
    """{video: seconds of ours and of ffmpeg, from the file and from its small copy}."""
    from protocols import CLIPS
    from files.video import Unreadable, duration, find_videos, shrink
    if not shutil.which("ffmpeg"):
        raise BadInput("ffmpeg: not found; it is what the released code reads videos with, to be "
                       "compared with (Debian: apt-get install ffmpeg)")
    make_video(folder / "made.mp4", settings.seconds)
    paths = {"made": str(folder / "made.mp4")}
    paths |= find_videos(settings.videos) if settings.videos else {}
    result = {}
    for name, path in paths.items():
        small = folder / "small.mp4"
        try:
            shrink(path, small)
            length = duration(path)
            ways = {f"{who.__name__}{of}": functools.partial(who, file, length)
                    for of, file in (("", path), ("_small", small)) for who in (ours, ffmpegs)}
            taken = in_turn(ways, settings.repeats)
        except Unreadable as error:
            raise BadInput(str(error)) from None
        row = {"seconds": length, "bytes": os.path.getsize(path),
               "bytes_small": os.path.getsize(small)}
        for way, (clock, processors) in taken.items():
            row |= {f"{way}_s": clock, f"{way}_cpu_s": processors}
        row["clips_per_s_per_worker"] = CLIPS / row["ours_cpu_s"]
        row["clips_per_s_per_worker_small"] = CLIPS / row["ours_small_cpu_s"]
        result[name] = row
        print(f"\n{name}: {length:.0f} s, {row['bytes'] / 1e6:.1f} MB, small copy "
              f"{row['bytes_small'] / 1e6:.1f} MB; {CLIPS} clips x {FRAMES} frames; clips/s of a "
              f"worker: {row['clips_per_s_per_worker']:.1f}, from the copy "
              f"{row['clips_per_s_per_worker_small']:.1f}\n"
              f"{'':24}{'clock s':>9}{'ratio':>7}{'processor s':>13}{'ratio':>7}")
        for title, way in (("one ffmpeg per clip", "ffmpegs"), ("ours", "ours"),
                           ("ffmpegs on the copy", "ffmpegs_small"), ("ours on the copy",
                                                                      "ours_small")):
            faster = [a / b for a, b in zip(taken["ffmpegs"], taken[way])]
            print(f"{title:24}{taken[way][0]:9.3f}{faster[0]:7.1f}{taken[way][1]:13.3f}"
                  f"{faster[1]:7.1f}")
    return result


# ------------------------------------------------------------------------------------------------
# memory
# ------------------------------------------------------------------------------------------------
def sample_and_memory(source, number):
    """Read one sample as a training step does -> MiB of this process that are in memory."""
    import numpy as np
    rng = np.random.default_rng(number)
    video = int(rng.integers(len(source)))
    source.load([(video, source.pretrain_windows(video, rng))], rng)
    return resident()


def memory(settings, folder):
    """{samples: MiB of a worker that has read so many} of small files; a third is broken."""
    import data
    from files.captions import open_captions
    from tqdm import tqdm
    from files.video import find_videos
    from support.workers import prefetch
    videos, captions = folder / "videos", folder / "captions"
    videos.mkdir()
    captions.mkdir()
    make_video(videos / "a.mp4", 12, (64, 96), 10)
    whole = (videos / "a.mp4").read_bytes()
    spoiled = bytearray(whole)
    spoiled[len(whole) // 3:len(whole) // 2] = bytes(len(whole) // 2 - len(whole) // 3)
    for name, content in (("b", whole), ("c", whole), ("d", whole), ("cut", whole[:-500]),
                          ("spoiled", spoiled)):
        (videos / f"{name}.mp4").write_bytes(content)
    for name in "a", "b", "c", "d", "cut", "spoiled":
        rows = [f"{t},{t + 1},stir the egg and then add {t} cups of flour to the large bowl"
                for t in range(11)]
        (captions / f"{name}.csv").write_text("\n".join(["start,end,text", *rows]) + "\n")
    source = data.VideoSource([data.Narrated(name) for name in find_videos(videos)],
                              find_videos(videos), 32, FRAMES, None, open_captions(captions))
    made = prefetch(functools.partial(sample_and_memory, source), range(1, SAMPLES + 1), 1)
    result = {}
    for number, mib in enumerate(tqdm(made, desc="samples", total=SAMPLES, mininterval=1), start=1):
        if number % ROUND == 0:
            result[number] = mib
    print("\nMiB of a worker after so many samples: "
          + ", ".join(f"{number}: {mib:.0f}" for number, mib in result.items()))
    return result


# ------------------------------------------------------------------------------------------------
# start
# ------------------------------------------------------------------------------------------------
def start(settings, folder):
    """s until the source of a list as long as HowTo100M's stands; files are empty, none is read.

    And, for a hundredth of its videos, s and MiB of a caption.json, which is read whole.
    """
    from files.captions import open_captions
    from data import Narrated, VideoSource
    from files.listings import load_ids
    from tqdm import tqdm
    from files.video import find_videos
    names = [f"{number:011x}" for number in range(LISTED)]
    for kind, suffix in (("videos", "mp4"), ("captions", "csv")):
        (folder / kind).mkdir()
        for name in tqdm(names, desc=f"make {kind}", mininterval=1):
            os.close(os.open(folder / kind / f"{name}.{suffix}", os.O_CREAT | os.O_WRONLY))
    (folder / "ids.txt").write_text("\n".join(names) + "\n")
    spoken = {"start": [3.54 * i for i in range(SENTENCES)],
              "end": [3.54 * i + 5.12 for i in range(SENTENCES)],
              "text": [f"and then we add {i} cups of flour to it" for i in range(SENTENCES)]}
    (folder / "caption.json").write_text(json.dumps(dict.fromkeys(names[:LISTED // 100], spoken)))
    made, result = {}, {"listed": LISTED, "json_listed": LISTED // 100,
                        "json_bytes": (folder / "caption.json").stat().st_size}
    steps = {"json": lambda: open_captions(folder / "caption.json"),
             "captions": lambda: open_captions(folder / "captions"),
             "videos": lambda: find_videos(folder / "videos"),
             "ids": lambda: load_ids(folder / "ids.txt"),
             "source": lambda: VideoSource([Narrated(name) for name in made["ids"]],
                                           made["videos"], SIZE, FRAMES, None, made["captions"])}
    print(f"\n{LISTED} listed videos; {result['json_listed']} of them in a caption.json of "
          f"{result['json_bytes'] / 1e6:.0f} MB\n"
          f"{'':16}{'clock s':>9}{'processor s':>13}{'MiB':>7}")
    for name, step in steps.items():
        before = resident()
        clock, processors = seconds(lambda: made.update({name: step()}))
        result |= {f"{name}_s": clock, f"{name}_cpu_s": processors,
                   f"{name}_mib": resident() - before}
        print(f"{name:16}{clock:9.1f}{processors:13.1f}{result[f'{name}_mib']:7.0f}")
        made.pop("json", None)
    assert len(made["source"]) == LISTED
    for what in "s", "cpu_s", "mib":
        result[f"total_{what}"] = sum(result[f"{name}_{what}"] for name in list(steps)[1:])
    print(f"{'without json':16}{result['total_s']:9.1f}{result['total_cpu_s']:13.1f}"
          f"{result['total_mib']:7.0f}")
    return result
