"""Pre-training around the loop of train.py: data, stages, batches, cached embeddings.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 4.

    stage    trained    reads
    sgd      f and h    clips, by SGD (the paper begins with SGD)
    adamw    f and h    clips, by AdamW
    order    h          cached embeddings: f has finished
    B videos, N clips, C clips in all, P missing ones, K phrases, D embedding.
"""
import dataclasses
import functools
import time

import numpy as np
import torch

from data import CLIPS, PIECES, View, pad_clips, view_of
from evaluation.embedding import embed_videos, teacher_features
from files.annotations import FeaturesFile
from files.listings import load_phrases
from files.sources import open_coin_features, open_folder
from model import encode_parts
from pseudo_labels import estimate_tau
from support import parallel
from support.command import check, require
from support.device import memory_of, mixed_precision, pick_device, send
from support.workers import prefetch
from toy import grammar, render
from toy.source import ToySource, load_teacher
from training.cache import CachedRows
from training.run import Run, Stage, prepare_run, report_missing, videos_of_step
from weights.checkpoint import build_model, same_texts
from weights.fill import fill, open_start
from weights.teacher import open_teacher

# Sizes of f and h. "small" is for two CPU cores, "h only" for features files.
SIZES = {
    "paper": {"encoder": dict(image=224, patch=16, frames=8, width=768, depth=12, heads=12),
              "denoiser": dict(width=512, layers=4, heads=8)},
    "small": {"encoder": dict(image=32, patch=8, frames=4, width=64, depth=2, heads=2),
              "denoiser": dict(width=64, layers=4, heads=4)},
    "h only": {"encoder": None, "denoiser": dict(width=128, layers=4, heads=4, dropout=0.3)},
}
MVIT = {                  # --encoder mvit: f of these two; 16 of 96 frames, as in the paper
    "paper": dict(kind="mvit", image=224, frames=16, seconds=3.2),
    "small": dict(kind="mvit", image=32, frames=4, seconds=None, width=16, heads=1,
                  stages=[1, 1, 1], kv_stride=4),
}
PIXELS = 0.45, 0.225      # mean and deviation of pixels / 255, those of TimeSformer's weights
TAU = 0.02                # temperature of Eq. 6 with a features file, the paper's
SHARPER = 0.6             # temperature of soft targets from a features file, times the calibrated
SGD_LR = 5e-3             # peak learning rate of SGD, the release's
WEIGHT_DECAY = 1e-2       # of every stage; the release's 1e-4
CLIP_NORM = 0.3           # of f's gradient: what comes through a young h would disturb f
ORDER_BATCH = 128         # rows per step of the last stage
GRID = 4.0                # s between two of the cached embeddings of a video
MEMORY = 0.5              # share of the device's memory for what autograd keeps of clips
PASSES = 6                # over each video for the last stage, each with other windows


# --- Before the first step ---
def open_material(settings, encoder, device):
    """Videos, the pool's embeddings (K, D), and the model's arguments that depend on both."""
    if settings.data == "coin":
        source, texts = open_coin_features(settings.annotations, settings.features,
                                           settings.text_embeddings, "train")
        rng = np.random.default_rng(0)
        some = [(video, source.pretrain_windows(video, rng)) for video in range(len(source))[:1000]]
        tau = settings.teacher_tau or SHARPER * estimate_tau(source.load(some).clips, texts)
        return source, texts, {"tau": TAU, "teacher_tau": tau, "pixels": None, "witness": None}
    phrases = load_phrases(settings.phrases) if settings.phrases else grammar.PHRASES
    if settings.data == "howto100m":
        teacher = open_teacher(settings.clip, settings.clip_weights, device)
        view = View(encoder["image"], encoder["frames"], encoder.get("seconds"))
        source = open_folder(settings.videos, settings.captions, settings.ids, view, teacher,
                             settings.teacher_features)
        pixels = PIXELS
    else:
        teacher = load_teacher(device)
        source = ToySource("train", settings.toy_videos, encoder["frames"], teacher)
        pixels = render.MEAN, render.STD
    tau = 1 / float(teacher.model.logit_scale.exp())       # of the teacher's training: CLIP's 0.01
    return source, teacher.encode_phrases(phrases), {
        "tau": 2 * tau, "teacher_tau": settings.teacher_tau or tau, "pixels": pixels,
        "witness": phrases[0]}


def open_model(settings, resumed, device):
    """The model, how it is built (for its checkpoints), and the videos.

    Its weights are new, those of --init as far as they fit, or those of the checkpoint to resume.
    """
    size = {"toy": "small", "coin": "h only"}.get(settings.data, settings.size)
    encoder = MVIT[size] if settings.encoder == "mvit" else SIZES[size]["encoder"]
    start = open_start(settings.init) if settings.init and not resumed else None   # fail early
    source, phrases, arguments = open_material(settings, encoder, device)
    report_missing(source, settings)
    require(len(phrases.unique(dim=0)) > 1, f"{settings.phrases or settings.text_embeddings}: all "
            "texts are the same; at least two different ones are needed")
    if resumed:
        model = resumed["model"].to(device)
        require(same_texts(model.phrases, phrases), f"--resume: {settings.out} was trained with "
                "other phrases, or another teacher, than are given now; give the same")
        return model, resumed["arguments"], source
    torch.manual_seed(settings.seed)
    denoiser = {**SIZES[size]["denoiser"], "clips": PIECES + settings.missing}
    arguments = {"encoder": encoder, "denoiser": denoiser, "order": settings.order, **arguments}
    model = build_model(phrases, **arguments).to(device)
    if start is not None:
        fill(settings.init, model, start)
    return model, arguments, source


def plan_stages(settings, model, count):
    """The stages of the header that have steps, as a list of Stage; count = number of videos."""
    plan, start = [], 0
    has_f, has_h = model.encoder is not None, model.denoiser is not None
    for name, epochs, batch in (("sgd", settings.sgd_epochs * has_f, settings.batch),
                                ("adamw", settings.epochs * has_f, settings.batch),
                                ("order", settings.order_epochs * has_h, ORDER_BATCH)):
        stop = start + round(epochs * max(count // batch, 1))
        if stop > start:
            plan.append(Stage(name, range(start, stop), batch, epochs))
        start = stop
    require(plan, "--epochs 0 and the like: not one step to train; raise one of them")
    return plan


def plan_memory(settings, model, device):
    """Choose --micro-batch unless it is given, by what a clip takes; what will happen, in words."""
    view, count = view_of(model.encoder), settings.batch * CLIPS
    kept, began = {}, time.perf_counter()              # of autograd: {place: bytes}

    def keep(x):
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x), mixed_precision(device):
        model.encode(torch.zeros(1, view.frames, 3, view.size, view.size, dtype=torch.uint8,
                                 device=device)).sum().backward()
    minutes = 4 / 3 * count * (time.perf_counter() - began) / 60
    model.zero_grad()
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    clip = sum(size for place, size in kept.items() if place not in weights)
    room = int(MEMORY * memory_of(device) / clip)                              # clips
    settings.default("micro_batch", max(room, 1) if room < count else None)
    return (f"f encodes {settings.micro_batch or 'all'} of {count} clips at once, "
            f"{clip / 2 ** 20:.0f} MiB each" + f"; a step takes about {minutes:.0f} min" * (
                device.type == "cpu" and clip > 2 ** 28))      # a small f needs longer to warm up


# --- Batches ---
@dataclasses.dataclass
class Batch:
    """What one step learns from."""
    clips: torch.Tensor        # (C, F, 3, H, W) uint8, this process's; or embeddings (B, N, D)
    teacher: torch.Tensor      # (B, N, D) its features, of which soft targets are made
    real: torch.Tensor         # (B, N) bool, False = padding
    last: torch.Tensor         # (B,) bool, the missing clips are the last ones, as in forecasting
    missing: int = 1           # P


def load_step(source, settings, stage, step, place=(0, 1)):
    """What f reads in one step, drawn from (seed, step); in a worker, if there are any.

    place:   this process, of how many that share the videos.
    Returns: data.Loaded, and the number of clips of each of its videos.
    """
    rng = np.random.default_rng((settings.seed, 2, step))
    requests = [(video, source.pretrain_windows(video, rng)) for video in videos_of_step(
        step - stage.span.start, len(source), stage.batch, settings.seed)]
    requests = [(video, windows) for video, windows in requests if len(windows)]
    if place[0]:                                       # other views than the first process's
        rng = np.random.default_rng((settings.seed, 2, step, place[0]))
    loaded = source.load(parallel.share(requests, place), rng if settings.augment else None)
    return loaded, [len(windows) for _, windows in loaded.requests]


def cache_rows(model, source, settings, device):
    """CachedRows for the last stage, and {id: reason} of the videos that could not be read."""
    if model.encoder is None:
        teacher = torch.from_numpy(source.features.embedding)
        x = torch.cat([model.encode(part.to(device)).cpu() for part in teacher.split(10_000)])
        features = dataclasses.replace(source.features, embedding=x.numpy())
        failed = {}
    else:
        with torch.no_grad(), mixed_precision(device):
            names, windows, x, teacher, failed = embed_videos(
                source, model.encode, GRID, settings.workers, device, settings.targets)
        features = FeaturesFile(names, windows.mean(1), x.numpy())
    rng = np.random.default_rng((settings.seed, 3))
    rows = CachedRows(source, features, teacher, PASSES, settings.missing, rng)
    return rows, failed | source.unreadable


class Pretraining(Run):
    """A run of pre-training: its stages, and their batches. A step is one optimizer update."""

    def __init__(self, settings):
        check(settings.batch >= parallel.place()[1], "batch", settings.batch,
              f"{parallel.place()[1]} processes need a video each")
        resumed = prepare_run(settings)
        self.device = pick_device(settings.device)
        model, arguments, self.source = open_model(settings, resumed, self.device)
        stages = plan_stages(settings, model, len(self.source))
        super().__init__(settings, model, arguments, stages, resumed)
        print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(self.source)} "
              "videos, " + ", ".join(f"{len(stage.span)} steps {stage.name}"
                                     for stage in stages) + f", on {self.device}")
        if stages[0].name != "order":                  # f is trained
            print(plan_memory(settings, model, self.device))

    def make_optimizer(self, stage):
        """SGD with momentum, then AdamW (paper, Sec. 4); f and h at their own rates."""
        settings, sgd = self.settings, stage.name == "sgd"
        parts = [(self.model.encoder, SGD_LR if sgd else settings.lr)] * (stage.name != "order")
        parts += [(self.model.denoiser, SGD_LR if sgd else settings.order_lr)]
        groups = [{"params": list(part.parameters()), "peak": rate} for part, rate in parts
                  if part is not None]
        if sgd:
            return torch.optim.SGD(groups, lr=0.0, momentum=0.9, weight_decay=WEIGHT_DECAY)
        return torch.optim.AdamW(groups, lr=0.0, weight_decay=WEIGHT_DECAY)

    def batches(self, stage, optimizer):
        """A Batch for each step left of a stage: logging, checkpoints and interrupts between."""
        left = self.steps_left(stage)
        if not left:                                   # done before the run was interrupted
            return
        if stage.name == "order":
            rows, failed = cache_rows(self.model, self.source, self.settings, self.device)
            self.add_unreadable(failed, self.source)
            self.model.standardize.fit(rows.x.to(self.device))
            for step, _ in self.steps(stage, optimizer, left):
                rng = np.random.default_rng((self.settings.seed, 2, step))
                *parts, missing = rows.batch(ORDER_BATCH, rng)
                yield Batch(*(send(part, self.device) for part in parts), missing)
            return
        make = functools.partial(load_step, self.source, self.settings, stage,
                                 place=parallel.place())
        items = prefetch(make, left, self.settings.workers)
        for _, (loaded, counts) in self.steps(stage, optimizer, items):
            for failed in parallel.gather_objects(loaded.failed):
                self.add_unreadable(failed, self.source)
            counts = [n for part in parallel.gather_objects(counts) for n in part]
            if counts:
                yield self.clip_batch(loaded, counts)

    def clip_batch(self, loaded, counts):
        """A Batch of this process's clips; counts: of all processes' videos."""
        counts = send(torch.tensor(counts), self.device)
        features = torch.zeros(0, self.model.dim, device=self.device)
        if len(loaded.clips):                          # one process of several may have none
            features = send(teacher_features(self.source, loaded, self.settings.targets),
                            self.device)
        features, real = pad_clips(parallel.gather(features), counts, CLIPS)
        return Batch(send(loaded.clips, self.device), features, real,
                     torch.zeros(len(counts), dtype=torch.bool, device=self.device))

    def clip_gradient_of_f(self):
        """Scale the gradient of f down to CLIP_NORM; there is none in the last stage."""
        if self.model.encoder is not None:
            torch.nn.utils.clip_grad_norm_(self.model.encoder.parameters(), CLIP_NORM)

    def encode(self, batch):
        """x_i = f(v_i) of a batch's clips, of all processes: (B, N, D). Cached ones are that."""
        if batch.clips.ndim == 3:
            return batch.clips
        if len(batch.clips):
            x = encode_parts(self.model, batch.clips, self.settings.micro_batch)       # (C, D)
        else:
            x = torch.zeros(0, self.model.dim, device=self.device, requires_grad=True)
        every = parallel.gather(x)
        x = pad_clips(every, batch.real.sum(1), CLIPS)[0]
        if len(every):                                 # nothing has no mean
            self.model.standardize.update(x.detach(), batch.real)
        return x
