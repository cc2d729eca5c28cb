"""Fine-tune a checkpoint with labels: `python train.py --stage finetune --task classify`.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.3, 4.1, 4.2 and appendices B, C.

    task                   the classifier reads                     trained            paper
    classify               x = f(v), a clip of a step               classifier         Table 2
    forecast               x_hat = h(0, {x_i}), the clip after 8    h and classifier   Table 1
    activity               the same; the 8 clips are all the video  h and classifier   App. C
    classify, --data epic  x = f(v), 32 frames of an action         f and classifier   Table 3

The classifier is one linear layer, its logits divided by tau; it starts as the embeddings of its
classes, if they have texts. The loss is its cross entropy alone, and noise is zero, as in the
release. Where f is frozen, each clip goes through it once. After `--order none` a new h is trained.
N clips of a sample, B samples per step, S classes, V verbs, U nouns, D embedding.
"""
import functools
import math
import os
from dataclasses import replace

import numpy as np
import torch
from torch.nn import functional
from torchvision.transforms import v2
from torchvision.tv_tensors import Video

from data import EPIC_FRAMES, EPIC_SECONDS, samples_of, window_around
from evaluation.embedding import encode_samples, load_samples
from evaluation.labeled import open_labeled, require_width
from files import listings
from support.command import check, require
from support.device import mixed_precision, pick_device
from support.workers import prefetch
from training.run import Run, Stage, learning_rate, prepare_run, report_missing, videos_of_step
from weights.checkpoint import build_model, load_model
from weights.mvit import MViT

DROPOUT = 0.1             # of h's tokens
MIXUP = 0.1               # alpha of MixUp, with actions; the released configuration's


# --- Before the first step ---
def matches_texts(init):
    """Whether f embeds clips among texts; TimeSformer's and DistantSup's heads are classifiers."""
    return init.denoiser is not None or len(init.phrases) > 0


def extend(init, arguments, settings, texts, classes):
    """The checkpoint's model with a classifier, as the task needs it -> a new model, its arguments.

    If the head of f classifies other classes, the class token before it becomes the embedding. For
    EPIC, the embeddings of f's frames are repeated to 32. texts: (S, D); without them, or where f
    does not match texts, the classifier starts at 0. classes: sizes of the label sets.
    """
    state, phrases = init.state_dict(), init.phrases
    arguments = {**arguments, "task": settings.task, "classes": list(classes)}
    if not matches_texts(init):
        width = init.encoder.head.in_features
        phrases = state["phrases"] = torch.zeros(0, width)
        state["standardize.mean"] = torch.zeros(width)
        state["encoder.head.weight"] = torch.eye(width)
        state["encoder.head.bias"] = torch.zeros(width)
    if arguments["denoiser"]:
        arguments["denoiser"] = {**arguments["denoiser"], "dropout": DROPOUT}
    if settings.data == "epic":
        arguments["encoder"] = {**arguments["encoder"], "frames": EPIC_FRAMES}
        place = state["encoder.time_embed"].transpose(1, 2)                    # (1, width, F)
        state["encoder.time_embed"] = functional.interpolate(place, EPIC_FRAMES).transpose(1, 2)
    model = build_model(phrases, **arguments)
    new, _ = model.load_state_dict(state, strict=False)
    assert all(name.startswith(("classifier.", "denoiser.")) for name in new), new
    with torch.no_grad():
        for parameter in model.classifier.parameters():
            parameter.zero_()
        if texts is not None and matches_texts(init):
            model.classifier.weight.copy_(functional.normalize(texts, dim=-1))          # (S, D)
    return model, arguments


def labeled_samples(settings, source):
    """The task's samples of --labels of the videos, drawn from the seed; BadInput if none."""
    samples = samples_of(settings.task, source.videos)
    videos = sorted({sample.video for sample in samples})
    order = np.random.default_rng((settings.seed, 4)).permutation(videos)
    chosen = set(order[:math.ceil(settings.labels * len(videos))].tolist())
    require(chosen, f"{settings.annotations}: no labeled train sample for --task {settings.task}")
    return [sample for sample in samples if sample.video in chosen]


def set_up(settings):
    """Model, its arguments, source, samples, device, and the checkpoint to resume from or None."""
    require(os.environ.get("WORLD_SIZE", "1") == "1", "--stage finetune: start it without torchrun")
    resumed = prepare_run(settings)
    device = pick_device(settings.device)
    init, arguments, _ = load_model(settings.out if resumed else settings.init)
    check(settings.data != "epic" or not isinstance(init.encoder, MViT), "init", settings.init,
          "its encoder is MViT-v2, of a fixed number of frames; --data epic needs a TimeSformer")
    check(not init.task or resumed, "init", settings.init,
          f"is fine-tuned already, for {init.task}; give a checkpoint of --stage pretrain")
    check(settings.task == "classify" or arguments["denoiser"], "init", settings.init,
          f"holds no h; --task {settings.task} trains one (give a checkpoint of train.py, or of "
          "ProcedureVRL before it was fine-tuned)")
    source, texts = open_labeled(settings, "train", init, settings.init, device, with_teacher=False)
    given = source.features.embedding if settings.features else texts
    if given is not None and matches_texts(init):
        require_width(init, given, settings.init)
    report_missing(source, settings)
    samples = labeled_samples(settings, source)
    torch.manual_seed(settings.seed)
    model = init
    if not resumed:
        classes = [listings.VERBS, listings.NOUNS] if settings.data == "epic" else [
            len(texts) if texts is not None else 1 + max(v.activity for v in source.listed)]
        require(classes != [1], f"{settings.annotations}: one activity: nothing to choose from")
        model, arguments = extend(init, arguments, settings, texts, classes)
    return model.to(device), arguments, source, samples, device, resumed


# --- Steps ---
def random_window(start, end, seconds, rng):
    """(1, 2) s: a window anywhere within (start, end), or around its middle if it is longer."""
    middle = (start + end) / 2 + max(end - start - seconds, 0.0) * (rng.random() - 0.5)
    return np.array([window_around(middle, middle, seconds, np.inf)])


def load_actions(source, samples, settings, step):
    """One step's clips, each from anywhere in its action, augmented, drawn from (seed, step):
    data.Loaded, and labels (B, 2) of the clips that could be read."""
    rng, drawn = np.random.default_rng((settings.seed, 2, step)), []
    for place in videos_of_step(step, len(samples), settings.batch, settings.seed):
        sample = samples[place]
        start, end, _ = source.videos[sample.video].steps[sample.step]
        drawn.append(replace(sample, windows=random_window(start, end, EPIC_SECONDS, rng)))
    loaded, read = load_samples(source, drawn, rng)
    with torch.random.fork_rng(devices=[]):            # torchvision draws from torch's generator
        torch.manual_seed(int(rng.integers(2 ** 31)))
        augment = v2.RandAugment()                     # one draw for all frames of a clip
        if loaded.requests:
            loaded = loaded._replace(clips=torch.stack([augment(clip) for clip in loaded.clips]))
    return loaded, torch.tensor([sample.label for sample in read], dtype=torch.int64).view(-1, 2)


def mix(clips, labels, classes):
    """MixUp: each clip with the one before it, in shares drawn from Beta(MIXUP, MIXUP).
    clips (B, F, 3, H, W), labels (B, 2), classes [V, U] -> clips float 0-255, target (B, V + U)."""
    target = torch.cat([functional.one_hot(label, count) for label, count in
                        zip(labels.T, classes)], 1).float()
    blend = v2.MixUp(alpha=MIXUP, labels_getter=lambda batch: batch[1])
    clips, target = blend(Video(clips.float()), target)
    return clips.as_subclass(torch.Tensor), target


def action_loss(model, clips, labels):
    """Cross entropies of verb and noun, summed, of clips (B, F, 3, H, W) that are mixed."""
    clips, target = mix(clips, labels, model.classes)
    x = functional.normalize(model.encoder.head(model.class_token(clips)).float(), dim=-1)
    log_p = torch.cat(model.classify(x), 1)                                    # (B, V + U)
    return -(target * log_p).sum(1).mean()


def cached_loss(model, clips, labels):
    """Cross entropy on embeddings (B, N, D), one view drawn to classify, with labels (B,)."""
    B, N, D = clips.shape
    if model.task == "classify":
        read = clips[torch.arange(B), torch.randint(N, (B,))]                  # (B, D)
    else:
        read = model.forecast_next(clips, clips.new_zeros(B, 1, D))[:, 0]
    return functional.nll_loss(model.classify(read)[0], labels)


def finetune(settings):
    """`python train.py --stage finetune`: --epochs times all samples, a step is one update."""
    model, arguments, source, samples, device, resumed = set_up(settings)
    epic = settings.data == "epic"
    if epic:                                           # f is trained: clips are read every epoch
        parts, make = [model.encoder], functools.partial(load_actions, source, samples, settings)
    else:
        x, _, samples = encode_samples(model.eval(), source, samples, settings, device)
        y = torch.tensor([sample.label for sample in samples], device=device)
        parts = [] if settings.task == "classify" else [model.denoiser]
    for part in (model.requires_grad_(False).classifier, *parts):              # the rest is frozen
        part.requires_grad_(True)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.0,
                                  weight_decay=1e-2)
    count = len(samples)
    steps = max(1, round(settings.epochs * max(count // settings.batch, 1)))
    stage = Stage("finetune", range(steps), settings.batch, settings.lr, settings.epochs)
    print(f"{count} samples, {steps} steps, on {device}")
    run = Run(settings, model, arguments, [stage], resumed)
    run.add_unreadable(source.unreadable, source)
    items_of = functools.partial(prefetch, make, workers=settings.workers) if epic else iter
    for step, item in run.steps(stage, optimizer, items_of):
        optimizer.param_groups[0]["lr"] = learning_rate(step, stage)
        if epic:
            loaded, labels = item
            run.add_unreadable(loaded.failed, source)
            if not len(labels):
                continue
            clips, labels, loss_of = loaded.clips.to(device), labels.to(device), action_loss
        else:
            chosen = videos_of_step(step, count, settings.batch, settings.seed)
            clips, labels, loss_of = x[chosen], y[chosen], cached_loss
        with mixed_precision(device):
            loss = loss_of(model, clips, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(len(clips) if epic else clips.shape[:2].numel(), loss=loss)
