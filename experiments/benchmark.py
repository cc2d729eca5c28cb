"""How fast: `python benchmark.py --parts encoder,sampling,step,growth,loader [--json out.json]`.

    part      measured in one run, on this machine
    encoder   f, forward and forward + backward, beside transformers.TimesformerModel (optional)
              with the same weights, and beside f with plain softmax attention
    sampling  M futures of a video beside the one of zero noise, and beside encoding its clips
    step      a pre-training step and its parts; a step of h alone on kept embeddings
    growth    with frames, clips and phrases
    loader, memory, start: see benchmark_loader.py

What is compared is done in turn, once to warm up and then --repeats times; times are medians, in s.
Weights and pixels are random: speed does not depend on them. FLOPs are counted as they are run, a
product and a sum as two, and set beside the rate of one large matrix product in the same run.
"""
import functools
import os
import platform
import tempfile
from pathlib import Path

from experiments.benchmark_encoder import compare_encoders
from experiments.benchmark_loader import in_turn, loader, make_video, memory, resident, start
from support.command import pick_device, run, send, write_json
from settings_optional import BenchmarkSettings

PHRASES = 9871                           # K of the paper
FUTURES = 1, 5, 50                       # M
FRAMES_GROWN, CLIPS_GROWN = (4, 8, 16), (9, 18, 36, 72)
PHRASES_GROWN = 1000, 10_000, 100_000
SENTENCE = "stir the egg and then add {} cups of flour to the large bowl"


def machine():
    """What the figures belong to."""
    import av
    import torch
    return {"cores": os.cpu_count(), "processor": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(), "load": os.getloadavg()[0],
            "torch": torch.__version__, "av": av.__version__,
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None}


class Bench:
    """Device, precision and size that the parts share, and how a piece of work is measured."""

    def __init__(self, settings):
        import torch
        import train
        self.settings, self.device = settings, pick_device(settings.device)
        self.cuda = self.device.type == "cuda"
        self.precision = settings.precision or ("bfloat16" if self.cuda else "float32")
        self.batch = settings.batch or (16 if self.cuda else 1)
        self.sizes = train.SIZES[settings.size]
        self.generator = torch.Generator().manual_seed(0)

    def random(self, *shape):
        """Normal numbers on the device, the same in every run."""
        import torch
        return torch.randn(*shape, generator=self.generator).to(self.device)

    def mixed(self):
        """Within it matrix products have the precision that is measured."""
        import torch
        return torch.autocast(self.device.type, torch.bfloat16, self.precision == "bfloat16")

    def finished(self, work, *args):
        """work(*args), until the GPU has done it, in that precision."""
        import torch
        with self.mixed():
            work(*args)
        if self.cuda:
            torch.cuda.synchronize()

    def in_turn(self, ways):
        """{name: s of the clock} and {name: s of the processors}, medians in turn.

        The latter is steadier where other work shares a CPU; see benchmark_loader.py.
        """
        taken = in_turn({name: functools.partial(self.finished, work)
                         for name, work in ways.items()}, self.settings.repeats)
        return tuple({name: both[i] for name, both in taken.items()} for i in range(2))

    def peak(self, work):
        """MiB that work(0) holds at most, beyond what was held before (of main memory: Linux)."""
        import torch
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            self.finished(work, 0)
            return (torch.cuda.max_memory_allocated() - before) / 2 ** 20
        Path("/proc/self/clear_refs").write_text("5")                  # the peak begins anew
        before = resident()
        self.finished(work, 0)
        status = Path("/proc/self/status").read_text().split()
        return max(int(status[status.index("VmHWM:") + 1]) / 1024 - before, 0)

    def model(self, phrases=PHRASES, dim=512, encoder=True):
        """f and h with random weights and texts, in training mode."""
        import torch
        import train
        from model import ProcedureModel
        torch.manual_seed(0)
        texts = torch.randn(phrases, dim, generator=self.generator)
        return ProcedureModel(texts, self.sizes["encoder"] if encoder else None,
                              self.sizes["denoiser"], "diffusion", 0.02, train.PIXELS
                              ).to(self.device)


# ------------------------------------------------------------------------------------------------
# Parts
# ------------------------------------------------------------------------------------------------
def encoder(settings, folder):
    """See benchmark_encoder.py."""
    return compare_encoders(Bench(settings))


def sampling(settings, folder):
    """Forecasts of a video's next clip: s of zero noise, and of M futures beside it (Eq. 11)."""
    import torch
    from protocols import PIECES
    bench = Bench(settings)
    model, size = bench.model().eval(), bench.sizes["encoder"]
    clips = torch.randint(256, (PIECES, size["frames"], 3, size["image"], size["image"]),
                          dtype=torch.uint8, generator=bench.generator)
    x = torch.nn.functional.normalize(bench.random(1, PIECES, model.dim), dim=-1)

    def forecast(noise, round):
        with torch.no_grad():
            model.match_predicted(model.forecast_next(x, noise))

    def encode(round):
        with torch.no_grad():
            model.encode(send(clips, bench.device))
    ways = {"encode": encode}
    for M in (0, *FUTURES):
        noise = bench.random(1, 1 + M, model.dim)
        noise[:, 0] = 0                                                        # the zero noise
        ways[f"m{M}"] = functools.partial(forecast, noise)
    taken, _ = bench.in_turn(ways)
    more = {M: 100 * (taken[f"m{M}"] - taken["m0"]) / (taken["encode"] + taken["m0"])
            for M in FUTURES}
    print(f"\nsampling: {settings.size} size, {bench.precision}, {bench.device}; "
          f"{PIECES} clips encoded in {taken['encode']:.4f} s\n"
          f"{'futures beside zero noise':28}{'s':>9}{'more, of a forecast from video':>34}")
    for M in (0, *FUTURES):
        print(f"{M:<28}{taken[f'm{M}']:9.4f}{more.get(M, 0):33.2f}%")
    return ({"encode_s": taken["encode"], "zero_noise_s": taken["m0"], "precision": bench.precision}
            | {f"m{M}_s": taken[f"m{M}"] for M in FUTURES}
            | {f"m{M}_more_percent": more[M] for M in FUTURES})


def narrated_videos(bench, folder, teacher):
    """A data.VideoSource of as many videos as a step has, all of them one that is made here."""
    from files.captions import open_captions
    from data import Narrated, VideoSource
    from files.video import find_videos
    videos, captions = folder / "videos", folder / "captions"
    videos.mkdir()
    captions.mkdir()
    make_video(folder / "made.mp4", bench.settings.seconds)
    starts = range(0, int(bench.settings.seconds) - 4, 4)
    rows = "\n".join(["start,end,text", *(f"{t},{t + 4},{SENTENCE.format(t)}" for t in starts)])
    for i in range(bench.batch):
        os.link(folder / "made.mp4", videos / f"{i}.mp4")
        (captions / f"{i}.csv").write_text(rows + "\n")
    size = bench.sizes["encoder"]
    return VideoSource([Narrated(f"{i}") for i in range(bench.batch)], find_videos(videos),
                       size["image"], size["frames"], teacher, open_captions(captions))


def random_teacher(bench):
    """A pseudo_labels.Teacher with random weights: CLIP's ViT-B/16, or the embedded world's."""
    import open_clip
    from toy import render
    from pseudo_labels import Teacher
    model = (open_clip.create_model("ViT-B-16-quickgelu") if bench.settings.size == "paper" else
             render.build_teacher()[0])
    return Teacher(model, None, 0.5, 0.25, bench.device)


class PretrainStep:
    """A step of the joint stage of train.py, part by part, in its order; `everything` is all of it.

    What a part leaves behind, those after it find.
    """

    PARTS = "decode", "teacher", "encoder", "denoiser", "loss", "optimiser"

    def __init__(self, bench, folder):
        import torch
        import train
        from settings import TrainSettings
        look = random_teacher(bench)
        blank = torch.zeros(1, 3, look.size, look.size, dtype=torch.uint8)
        self.bench, self.given = bench, TrainSettings(micro_batch=bench.settings.micro_batch)
        self.source = narrated_videos(bench, folder, look)
        self.model = bench.model(dim=look.encode_frames(blank).shape[1])
        self.optimizer = train.make_optimizer(self.model, self.given, "joint")
        self.decode(-1)
        with bench.mixed(), torch.no_grad():
            self.batch = self.encode_batch()

    def encode_batch(self):
        import train
        return train.encode_batch(self.model, self.source, self.loaded, self.asked,
                                  self.bench.device, part=self.given.micro_batch)

    def decode(self, round):
        import train
        self.loaded, self.asked = train.load_step(self.source, self.given, self.bench.batch, True,
                                                  0, round + 1)

    def teacher(self, round):
        self.source.teach(self.loaded.looks)

    def encoder(self, round):
        from model import encode_parts
        self.model.zero_grad(set_to_none=True)
        encode_parts(self.model, send(self.loaded.clips, self.bench.device),
                     self.given.micro_batch).sum().backward()

    def denoiser(self, round):
        import torch
        x, _, observed, j = self.batch
        zt = self.bench.random(len(j), 2, self.model.dim)
        predict = self.model.predictor(x.detach().requires_grad_(), observed, j)
        self.x_hat, z_hat = predict(zt, torch.zeros(len(j), 2, dtype=torch.int64, device=j.device))
        (self.x_hat.sum() + z_hat.sum()).backward()

    def loss(self, round):
        import losses
        x, x_hat = (rows.detach().requires_grad_() for rows in (self.batch[0], self.x_hat))
        _, targets, observed, _ = self.batch
        (losses.xe_loss(self.model.match(x), targets, observed)
         + losses.mc_loss(self.model.match_predicted(x_hat), targets[:, :2])
         + losses.mse_loss(x_hat, x[:, :2])).backward()

    def optimiser(self, round):
        self.optimizer.step()

    def everything(self, round):
        import train
        self.decode(round)
        self.optimizer.zero_grad(set_to_none=True)
        train.objective(self.model, *self.encode_batch(), True)["loss"].backward()
        self.optimizer.step()


def kept_step(bench, model, source):
    """A step of h alone (train.py, order_terms) on kept embeddings of the videos, here random."""
    import numpy as np
    import train
    from files.annotations import FeaturesFile
    from training.cache import KeptRows
    from settings import TrainSettings
    given = TrainSettings()
    middles = np.tile(np.arange(train.GRID / 2, bench.settings.seconds, train.GRID), len(source))
    names = np.repeat([video.name for video in source.videos], len(middles) // len(source))
    x = bench.random(len(middles), model.dim).cpu()
    rows = KeptRows(source, FeaturesFile(names, middles, x.numpy()), x, None, given.keep,
                    given.missing, np.random.default_rng(0))
    optimizer = train.make_optimizer(model, given, "order")

    def step(round):
        optimizer.zero_grad(set_to_none=True)
        terms, _ = train.order_terms(model, rows, given, bench.device, round + 1, None)
        terms["loss"].backward()
        optimizer.step()
    return step


def step(settings, folder):
    """A pre-training step and its parts; and one of h alone, on kept embeddings -> s."""
    from settings import TrainSettings
    bench = Bench(settings)
    whole = PretrainStep(bench, folder)
    ways = {part: getattr(whole, part) for part in (*PretrainStep.PARTS, "everything")}
    taken, _ = bench.in_turn({**ways, "kept": kept_step(bench, whole.model, whole.source)})
    mib, clips, rows = bench.peak(whole.everything), len(whole.loaded.clips), TrainSettings()
    print(f"\nstep: {settings.size} size, {bench.batch} videos, {clips} clips, K = {PHRASES}, "
          f"{bench.precision}, {bench.device}, micro-batch {settings.micro_batch}\n"
          f"{'':24}{'s':>9}{'share':>8}")
    for part, seconds in taken.items():
        share = f"{100 * seconds / taken['everything']:7.1f}%" if part != "kept" else ""
        print(f"{part:24}{seconds:9.4f}{share}")
    print(f"{clips / taken['everything']:.2f} clips/s with decoding in this process; from kept "
          f"embeddings {rows.order_batch / taken['kept']:.0f} rows/s; {mib:.0f} MiB")
    return ({f"{part}_s": seconds for part, seconds in taken.items()}
            | {"videos": bench.batch, "clips": clips, "precision": bench.precision, "mib": mib,
               "micro_batch": settings.micro_batch, "kept_rows": rows.order_batch})


def growth(settings, folder):
    """s of f with frames, of h with clips, of the objective with phrases, and MiB of the latter."""
    import torch
    import train
    from denoiser import Denoiser
    from encoder import TimeSformer
    from pseudo_labels import soft_targets
    bench, B, N = Bench(settings), 16, 9
    size, works = bench.sizes["encoder"], {"frames": {}, "clips": {}, "phrases": {}}
    for F in FRAMES_GROWN:
        f = TimeSformer(**{**size, "frames": F}).to(bench.device)
        clips = bench.random(1, 3, F, size["image"], size["image"])
        works["frames"][F] = torch.no_grad()(lambda round, f=f, clips=clips: f(clips))
    for clips in CLIPS_GROWN:
        h = Denoiser(clips=clips, **bench.sizes["denoiser"]).to(bench.device)
        x, seen = bench.random(B, clips, 512), torch.ones(B, clips, dtype=torch.bool)
        j = torch.zeros(B, 1, dtype=torch.int64, device=bench.device)
        works["clips"][clips] = (lambda round, h=h, x=x, seen=seen.to(bench.device), j=j:
                                 h(h.remember(x, seen), seen, x[:, :2], j, j.expand(B, 2)
                                   ).sum().backward())
    for K in PHRASES_GROWN:
        model = bench.model(K, encoder=False)
        x, seen = bench.random(B, N, 512), torch.ones(B, N, dtype=torch.bool, device=bench.device)

        def matching(round, model=model, x=x, seen=seen):
            targets = soft_targets(x, model.phrases, model.teacher_tau)
            train.objective(model, x.clone().requires_grad_(), targets, seen, j,
                            True)["loss"].backward()
        works["phrases"][K] = matching
    result = {}
    for what, ways in works.items():
        taken, _ = bench.in_turn({str(count): work for count, work in ways.items()})
        result[what] = {count: {"s": seconds, "mib": bench.peak(ways[int(count)])}
                        for count, seconds in taken.items()}
        print(f"\ngrowth with {what}: {bench.precision}, {bench.device}")
        for count, row in result[what].items():
            print(f"{count:>9}{row['s']:9.4f} s{row['mib']:8.0f} MiB")
    return result


PARTS = {"encoder": encoder, "sampling": sampling, "step": step, "growth": growth,
         "loader": loader, "memory": memory, "start": start}


def main(settings):
    """Each part in a folder of its own, removed at its end; its table is printed at once."""
    result = {}
    for part in settings.parts.split(","):
        with tempfile.TemporaryDirectory() as folder:
            result[part] = PARTS[part](settings, Path(folder))
    result["machine"] = machine()
    if settings.json:
        write_json(settings.json, result)


if __name__ == "__main__":
    run(main, BenchmarkSettings)
