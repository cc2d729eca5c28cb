"""Fine-tune a checkpoint with labels: `python train.py --stage finetune --task classify`.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.3, 4.1, 4.2 and appendices B, C.

    task                   the classifier reads                     trained            paper
    classify               x = f(v), a clip of a step               classifier         Table 2
    forecast               x_hat = h(0, {x_i}), the clip after 8    h and classifier   Table 1
    activity               the same; the 8 clips are all the video  h and classifier   App. C
    classify, --data epic  x = f(v), 32 frames of an action         f and classifier   Table 3

The classifier is one linear layer on the embedding, its logits divided by tau; where the classes
have texts it starts as their embeddings, so that training starts from the zero-shot model. The loss
is its cross entropy alone, and noise is zero, as in the released code: both are measured in
README.md (Where we differ). f is frozen but for EPIC, so each clip goes through it once.
A checkpoint of `--order none` has no h: in its place a new one is trained, which predicts once.
M samples, N clips of each, B samples per step, S classes, D embedding.
"""
import functools
import math
import os
import time

from evaluation.inference import encode_samples, load_data
from training.run import (Run, count_unreadable, earlier_unreadable, prepare_run, report_missing,
                  videos_of_step)
from support.command import BadInput, pick_device, set_seed, write_json


def sizes_of(init):
    """Arguments of a checkpoint's model, ours or published."""
    return init.arguments.get("released", init.arguments)


def matches_texts(init):
    """Whether embeddings of f lie among those of texts.

    Those of a published f without h do not: TimeSformer's and DistantSup's heads are classifiers.
    """
    return "released" not in init.arguments or init.denoiser is not None


def extend(init, settings, texts, classes):
    """The checkpoint's model with a classifier, as the task needs it -> a new model of its kind.

    Where the head of f is a classifier of other classes, the class token before it becomes the
    embedding, as where TimeSformer is fine-tuned.

    Args:
        init:    ProcedureModel or released.Released that is not fine-tuned.
        texts:   (S, D) embeddings of the classes, of any length. None, or with an f that does not
                 match texts: the classifier starts at 0.
        classes: sizes of the label sets.
    """
    import torch
    from torch.nn import functional

    from model import ProcedureModel
    arguments = {**sizes_of(init), "task": settings.task, "classes": classes}
    state, published = init.state_dict(), "released" in init.arguments
    if not matches_texts(init):
        width = init.encoder.head.in_features
        arguments["encoder"] = {**arguments["encoder"], "dim": width}
        state["encoder.head.weight"] = torch.eye(width)
        state["encoder.head.bias"] = torch.zeros(width)
    if arguments["denoiser"] and not published:
        arguments["denoiser"] = {**arguments["denoiser"], "dropout": settings.dropout}
    if settings.data == "epic":
        from protocols import EPIC_FRAMES
        arguments["encoder"] = {**arguments["encoder"], "frames": EPIC_FRAMES}
        place = state["encoder.time_embed"].transpose(1, 2)                    # (1, width, F)
        state["encoder.time_embed"] = functional.interpolate(place, EPIC_FRAMES).transpose(1, 2)
    model = type(init)(**arguments) if published else ProcedureModel(init.phrases, **arguments)
    new, _ = model.load_state_dict(state, strict=False)
    parts = {name.split(".")[0] for name in new}
    assert parts <= {"classifier", "denoiser"}, parts
    with torch.no_grad():
        for parameter in model.classifier.parameters():
            parameter.zero_()
        if texts is not None and matches_texts(init):
            weight = next(model.classifier.parameters())                       # (S, D)
            weight.copy_(functional.normalize(texts, dim=-1))
    return model


def count_classes(settings, source, texts):
    """Sizes of the label sets: as many as texts, or as the labels of all listed videos need."""
    import tasks
    from files import listings
    if settings.data == "epic":
        return [listings.VERBS, listings.NOUNS]
    if texts is not None:
        return [len(texts)]
    labels = {sample.label for sample in tasks.activity_samples(source.listed)}
    if max(labels) < 1:
        raise BadInput(f"{settings.annotations}: one activity: nothing to choose from; at least "
                       "two are needed")
    return [max(labels) + 1]


def open_data(settings, init, device):
    """The labelled videos, and the texts of their classes or None."""
    from files import epic
    from protocols import EPIC_FRAMES
    if bool(init.pixels) != (settings.features is None):
        raise BadInput(f"--data {settings.data}: {settings.init} reads "
                       f"{'frames' if init.pixels else 'features'}; give the --data it was "
                       "trained on")
    if settings.data == "epic":
        source, texts = epic.open_actions(settings, init.encoder.image, EPIC_FRAMES), None
    else:
        source, texts = load_data(settings, init, device, compare=False)
    given = source.features.embedding if settings.features else texts
    if given is not None and given.shape[1] != init.dim and matches_texts(init):
        raise BadInput(f"--init {settings.init}: embeddings of width {init.dim}, those given have "
                       f"{given.shape[1]}; give the --data it was trained on")
    report_missing(source, settings)
    return source, texts


def labelled_samples(settings, source):
    """The samples of --labels of the videos, drawn by the seed: at least one video."""
    import tasks
    from files import epic
    import numpy as np
    if settings.data == "epic":
        every = epic.samples(source.videos, 1)
        epic.require_labels(every, settings.annotations)
    else:
        every = tasks.samples_of(settings.task, source.videos, settings.min_steps)
    videos = sorted({sample.video for sample in every})
    order = np.random.default_rng((settings.seed, 4)).permutation(videos)
    chosen = set(order[:math.ceil(settings.labels * len(videos))].tolist())
    samples = [sample for sample in every if sample.video in chosen]
    if not samples:
        raise BadInput(f"{settings.annotations}: no labelled {settings.split} sample for --task "
                       f"{settings.task}; there is nothing to fine-tune on")
    return samples


def set_up(settings):
    """Run folder, device, data, model.

    Returns: model, source, samples, device, and the checkpoint to resume from or None.
    """
    from model import load_model
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise BadInput("--stage finetune: runs in one process; start it without torchrun")
    resumed = prepare_run(settings)
    device = pick_device(settings.device)
    init, _ = load_model(settings.out if resumed else settings.init)
    sizes = sizes_of(init)
    if settings.data == "epic" and sizes["encoder"] and sizes["encoder"].get("kind") == "mvit":
        raise BadInput(f"--init {settings.init}: its encoder is MViT-v2, whose number of frames is "
                       "fixed; --data epic needs a TimeSformer")
    if init.task and not resumed:
        raise BadInput(f"--init {settings.init}: is fine-tuned already, to {init.task}; give a "
                       "checkpoint of --stage pretrain")
    if settings.task != "classify" and sizes["denoiser"] is None:
        raise BadInput(f"--init {settings.init}: holds no h, nor its size; --task {settings.task} "
                       "trains one (give a checkpoint of train.py, or of ProcedureVRL before it "
                       "was fine-tuned)")
    source, texts = open_data(settings, init, device)
    samples = labelled_samples(settings, source)
    set_seed(settings.seed)
    model = init if resumed else extend(init, settings, texts,
                                        count_classes(settings, source, texts))
    return model.to(device), source, samples, device, resumed


def make_optimizer(model, settings):
    """AdamW on the classifier and what is trained with it; everything else is frozen."""
    import torch
    parts = {"classify": [model.encoder] if settings.data == "epic" else [],
             "forecast": [model.denoiser], "activity": [model.denoiser]}[settings.task]
    model.requires_grad_(False)
    for part in (model.classifier, *parts):
        part.requires_grad_(True)
    trained = [p for p in model.parameters() if p.requires_grad]
    print(f"{sum(p.numel() for p in trained):,} of {sum(p.numel() for p in model.parameters()):,} "
          "parameters are trained")
    return torch.optim.AdamW([{"params": trained, "peak": settings.lr}], lr=0.0,
                             weight_decay=settings.weight_decay)


def steps_of(settings, count):
    """range of the steps of --epochs over so many samples: at least one."""
    return range(max(1, round(settings.epochs * max(count // settings.batch, 1))))


# ------------------------------------------------------------------------------------------------
# f is frozen: each clip is encoded once and kept
# ------------------------------------------------------------------------------------------------
def keep_clips(model, source, samples, settings, device):
    """Embeddings (M, N, D) and labels (M,) of the samples; what cannot be read is named."""
    import torch
    x, _, samples = encode_samples(model, source, samples, settings, device, "encode")
    if source.unreadable:
        write_json(settings.out / "unreadable.json", source.unreadable)
    return x, torch.tensor([sample.label for sample in samples], device=device)


def kept_terms(model, x, y, settings, step, _):
    """Cross entropy of a batch of kept samples, as a dict, and how many clips were read.

    Of a step's views (classify) one is drawn; a history or a whole video is read as one.
    """
    import torch
    from torch.nn import functional
    chosen = torch.from_numpy(videos_of_step(step, len(y), settings.batch, settings.seed))
    clips, labels = x[chosen], y[chosen]                                       # (B, N, D), (B,)
    B, N, D = clips.shape
    if model.task == "classify":
        answer = clips[torch.arange(B), torch.randint(N, (B,))]                # (B, D)
    else:
        answer = model.forecast_next(clips, clips.new_zeros(B, 1, D))[:, 0]    # (B, D)
    return {"loss": functional.nll_loss(model.classify(answer)[0], labels)}, B * N


# ------------------------------------------------------------------------------------------------
# EPIC-Kitchens-100: f is trained, so clips are read anew
# ------------------------------------------------------------------------------------------------
def load_step(source, samples, settings, step):
    """Clips and labels of one step, drawn from (seed, step): in a worker, if there are any."""
    import numpy as np

    from files import epic
    rng = np.random.default_rng((settings.seed, 2, step))
    chosen = videos_of_step(step, len(samples), settings.batch, settings.seed)
    return epic.load_actions(source, [samples[i] for i in chosen], rng)


def action_terms(model, source, settings, unreadable, device, _, ready):
    """Cross entropies of verb and noun of mixed clips, summed, as a dict, and how many clips."""
    import torch

    from files import epic
    loaded, labels = ready
    count_unreadable(unreadable, loaded.failed, source, settings)
    if not len(labels):
        return None, 0
    clips, target = epic.mix(loaded.clips.to(device), labels.to(device), model.classes)
    x = model.encode(model.encoder.head(model.tokens(clips)))                  # (B, D)
    log_p = torch.cat(model.classify(x), 1)                                    # (B, V + U)
    return {"loss": -(target * log_p).sum(1).mean()}, len(labels)


def main(settings):
    """Fine-tuning. A step is one optimiser update."""
    from support.workers import prefetch
    model, source, samples, device, resumed = set_up(settings)
    first, began = resumed["step"] if resumed else 0, time.perf_counter()
    optimizer = make_optimizer(model, settings)
    if resumed:
        optimizer.load_state_dict(resumed["optimizer"])
    if settings.data == "epic":
        unreadable = earlier_unreadable(settings.out) if resumed else {}
        terms_of = functools.partial(action_terms, model, source, settings, unreadable, device)
        make, count = functools.partial(load_step, source, samples, settings), len(samples)
    else:
        x, y = keep_clips(model.eval(), source, samples, settings, device)
        terms_of, count = functools.partial(kept_terms, model, x, y, settings), len(y)
    span = steps_of(settings, count)
    todo = range(first, span.stop)
    batches = prefetch(make, todo, settings.workers) if settings.data == "epic" else todo
    print(f"{count} samples, {len(span)} steps, on {device}")
    with Run(settings, model, device, first, span.stop, count) as going:
        going.train("finetune", span, settings.batch, optimizer, batches, terms_of)
    print(f"{settings.out}/checkpoint.pt: {len(span)} steps, {time.perf_counter() - began:.0f} s")
