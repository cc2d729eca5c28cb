"""Pre-training around the loop of train.py: data, model, stages, and the batch of each step.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 4: SGD, then AdamW, on f and h together.

B videos, C clips of them, R rows of N places, P missing clips in each, K phrases, D embedding.
"""
import functools
import time
from typing import NamedTuple

import numpy as np
import torch

from data import PIECES, View, missing_rows, random_run, view_of, with_histories
from evaluation.embedding import teacher_features
from files.listings import load_phrases
from files.sources import open_coin_features, open_folder
from losses import TAU
from model import encode_parts
from pseudo_labels import estimate_tau
from support import parallel
from support.command import BadInput, check, require
from support.device import memory_of, mixed_precision, pick_device, send
from support.workers import prefetch
from toy import grammar, render, teacher as toy_teacher
from toy.source import ToySource, load_teacher
from training.run import Run, Stage, prepare_run, report_missing, videos_of_step
from weights.checkpoint import build_model, fill, open_start, same_texts
from weights.names import PIXELS
from weights.teacher import open_teacher

# Sizes of f and h, the most consecutive clips of a video in a step, weight decay, AdamW's betas.
# "small" suits a CPU. A weight decay of 1e-4 is the release's. Of features there are few: 1e-2.
SIZES = {
    "paper": {"encoder": dict(image=224, patch=16, frames=8, width=768, depth=12, heads=12),
              "denoiser": dict(layers=4, heads=8), "run": 9, "decay": 1e-4, "betas": (.9, .95)},
    "small": {"encoder": dict(image=32, patch=16, frames=4, width=64, depth=2, heads=2),
              "denoiser": dict(layers=4, heads=4), "run": 16, "decay": 1e-4, "betas": (.9, .95)},
    "h only": {"encoder": None, "denoiser": dict(layers=1, heads=8, dropout=0.3), "run": 16,
               "decay": 1e-2, "betas": (.9, .999)},
}
MVIT = {                  # --encoder mvit: f of these; "paper": 16 of 96 frames (appendix D)
    "paper": dict(kind="mvit", image=224, frames=16, seconds=3.2),
    "small": dict(kind="mvit", image=32, frames=4, seconds=None, width=16, heads=1,
                  stages=[1, 1, 1], kv_stride=4),
}
SGD_LR = 5e-3             # peak learning rate of SGD, the release's


# --- Before the first step ---
def size_of(settings):
    """Which of SIZES a run has."""
    return {"toy": "small", "coin": "h only"}.get(settings.data, settings.size)


def open_material(settings, encoder, device):
    """Videos, the pool's embeddings (K, D), and the model's arguments that depend on both."""
    if settings.data == "coin":
        source, texts = open_coin_features(settings.annotations, settings.features,
                                           settings.text_embeddings, "train")
        some = [(i, source.pretrain_windows(i, None)) for i in range(len(source))[:1000]]
        tau = settings.tau or estimate_tau(source.load(some).clips, texts)
        return source, texts, {"tau": tau, "pixels": None, "witness": None}
    phrases = load_phrases(settings.phrases) if settings.phrases else grammar.PHRASES
    if settings.data == "howto100m":
        teacher = open_teacher(settings.clip, settings.clip_weights, device)
        view = View(encoder["image"], encoder["frames"], encoder.get("seconds"))
        source = open_folder(settings.videos, settings.captions, settings.ids, view, teacher,
                             settings.teacher_features)
        tau, pixels = settings.tau or TAU, PIXELS
    else:
        teacher = load_teacher(device)
        source = ToySource("train", settings.toy_videos, encoder["frames"], teacher,
                           settings.clips == "annotated")
        tau, pixels = settings.tau or toy_teacher.TAU, (render.MEAN, render.STD)
    arguments = {"tau": tau, "pixels": pixels, "witness": phrases[0]}
    return source, teacher.encode_phrases(phrases), arguments


def open_model(settings, resumed, device):
    """The model, new, from --init or resumed; how it is built (for its checkpoints); the videos."""
    size = size_of(settings)
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
    try:
        model = build_model(phrases, **arguments).to(device)
    except ValueError as error:                        # h cannot have tokens of this width
        raise BadInput(f"{settings.text_embeddings or settings.clip}: {error}") from None
    if start is not None:
        fill(settings.init, model, start)
    return model, arguments, source


def plan_stages(settings, count):
    """The stages that have steps, as a list of Stage; count = number of videos."""
    plan, start = [], 0
    for name, epochs, lr in (("sgd", settings.sgd_epochs, SGD_LR),
                             ("adamw", settings.epochs, settings.lr)):
        stop = start + round(epochs * max(count // settings.batch, 1))
        if stop > start:
            plan.append(Stage(name, range(start, stop), settings.batch, lr, epochs))
        start = stop
    require(plan, "--epochs 0 and the like: not one step to train; raise one of them")
    return plan


def measure_clip(model, device):
    """Bytes that autograd keeps of one clip, and the seconds that it takes f, both ways."""
    view, kept, began = view_of(model.encoder), {}, time.perf_counter()
    clip = torch.zeros(1, view.frames, 3, view.size, view.size, dtype=torch.uint8, device=device)

    def keep(x):                                           # {place: bytes}
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x), mixed_precision(device):
        model.encode(clip).sum().backward()
    model.zero_grad()
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    return (sum(size for place, size in kept.items() if place not in weights),
            time.perf_counter() - began)


def plan_memory(settings, size, seconds, count, device):
    """Choose --micro-batch unless given: as many of `count` clips as fit. Returns: it in words."""
    room = int(0.5 * memory_of(device) / size)             # half for what autograd keeps of clips
    settings.default("micro_batch", max(room, 1) if room < count else None)
    slow = device.type == "cpu" and size > 2 ** 28         # a small f needs longer to warm up
    return (f"f encodes {settings.micro_batch or 'all'} of {count} clips at once, "
            f"{size / 2 ** 20:.1f} MiB each" +
            f"; a step takes about {4 / 3 * count * seconds / 60:.0f} min; faster are a GPU, or "
            "--size small" * slow)


# --- Batches ---
class Batch(NamedTuple):
    """What one step learns from: C clips of B videos."""
    clips: torch.Tensor        # (C', F, 3, H, W) uint8, this process's; or embeddings (C, D)
    teacher: torch.Tensor      # (C, D) the teacher's features, of which soft targets are made
    runs: list                 # [(n, 2) s, ...] the consecutive windows of each video
    rng: np.random.Generator   # of its rows, the same in every process
    counts: tuple              # C' of each process


def histories_apart(settings):
    """Whether clips are steps, with histories of their own: data.with_histories."""
    return settings.data == "coin" or settings.clips == "annotated"


def load_step(source, settings, stage, step, place=(0, 1)):
    """What f reads in one step, drawn from (seed, step): data.Loaded, and the run of windows of
    each of its videos, as they were read, without histories. place: this process, of how many that
    share the videos.
    """
    rng = np.random.default_rng((settings.seed, 2, step))
    run = SIZES[size_of(settings)]["run"]
    videos = videos_of_step(step - stage.span.start, len(source), stage.batch, settings.seed)
    runs = {video: random_run(source.pretrain_windows(video, rng), run, rng) for video in videos}
    requests = [(video, with_histories(windows) if histories_apart(settings) else windows)
                for video, windows in runs.items() if len(windows)]
    if place[0]:                                       # other views than the first process's
        rng = np.random.default_rng((settings.seed, 2, step, place[0]))
    loaded = source.load(parallel.share(requests, place), rng if settings.augment else None)
    return loaded, [windows[:len(runs[video])] for video, windows in loaded.requests]


class Pretraining(Run):
    """A run of pre-training: its stages, and their batches. A step is one optimizer update."""

    def __init__(self, settings):
        check(settings.batch >= parallel.place()[1], "batch", settings.batch,
              f"{parallel.place()[1]} processes need a video each")
        resumed = prepare_run(settings)
        self.device = pick_device(settings.device)
        model, arguments, self.source = open_model(settings, resumed, self.device)
        stages = plan_stages(settings, len(self.source))
        super().__init__(settings, model, arguments, stages, resumed)
        steps = ", ".join(f"{len(stage.span)} steps {stage.name}" for stage in stages)
        print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(self.source)} "
              f"videos, {steps}, on {self.device}")
        print(f"tau {model.tau:.3f}; alpha_bar " + ", ".join(f"{a:.4f}" for a in model.alpha_bar))
        if model.encoder is not None:
            count = settings.batch * SIZES[size_of(settings)]["run"]
            count *= PIECES + 1 if histories_apart(settings) else 1
            print(plan_memory(settings, *measure_clip(model, self.device), count, self.device))

    def make_optimizer(self, stage):
        """SGD with momentum, then AdamW (paper, Sec. 4)."""
        size, weights = SIZES[size_of(self.settings)], self.model.parameters()
        if stage.name == "sgd":
            return torch.optim.SGD(weights, lr=0.0, momentum=0.9, weight_decay=size["decay"])
        return torch.optim.AdamW(weights, lr=0.0, betas=size["betas"], weight_decay=size["decay"],
                                 fused=True)

    def batches(self, stage, optimizer):
        """(step, Batch) for each step left of a stage; logging, checkpoints, interrupts between."""
        make = functools.partial(load_step, self.source, self.settings, stage,
                                 place=parallel.place())
        items_of = functools.partial(prefetch, make, workers=self.settings.workers)
        for step, (loaded, runs) in self.steps(stage, optimizer, items_of):
            failed, runs, counts = zip(*parallel.gather_objects(       # of each process
                (loaded.failed, runs, len(loaded.clips))))
            for reasons in failed:
                self.add_unreadable(reasons, self.source)
            if not any(counts):
                continue
            features = torch.zeros(0, self.model.dim, device=self.device)
            if len(loaded.clips):                      # one process of several may have none
                features = teacher_features(self.source, loaded, self.settings.targets)
            clips, features = (send(x, self.device) for x in (loaded.clips, features))
            yield step, Batch(clips, parallel.gather(features, counts), sum(runs, []),
                              np.random.default_rng((self.settings.seed, 3, step)), counts)

    def missing_rows(self, batch, phrase, sure):
        """data.missing_rows of a batch, on the device. phrase, sure (C,): the likeliest of each
        clip, and its log p."""
        apart = histories_apart(self.settings)
        if apart or self.settings.clips == "clips":    # each clip is a step, and asked for
            phrase, sure = np.arange(len(phrase)), np.zeros(len(phrase))
        else:                                          # a GPU is waited for here, once a step
            phrase, sure = phrase.cpu().numpy(), sure.cpu().numpy()
        rows = missing_rows(batch.runs, phrase, sure, self.settings.missing, batch.rng, apart)
        return [send(part, self.device) for part in rows]

    def encode(self, batch):
        """x_i = f(v_i) of this process's clips -> those of all processes, (C, D)."""
        x = torch.zeros(0, self.model.dim, device=self.device, requires_grad=True)
        if len(batch.clips):
            x = encode_parts(self.model, batch.clips, self.settings.micro_batch)
        return parallel.gather(x, batch.counts)
