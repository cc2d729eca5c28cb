"""Measure a checkpoint, zero-shot or fine-tuned: `python evaluate.py --task forecast --oracle 5`.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.3, 4.1, 4.2, appendix C.

    forecast    which step comes next, from the clips before it     (Tables 1, 5)
    classify    which step a clip shows                             (Table 2)
    activity    which activity a video shows, fine-tuned            (App. C)
    classify, --data epic    verb, noun and action, fine-tuned      (Table 3)
    features    every 4 s of all videos, written to a features file

Beside the model's rows stand the label-free baselines and, in the embedded world, the truth.
M samples of a task, N = 8 observed clips, Q Monte Carlo samples, S steps (the label set), D.
"""
import functools
import math
import time

from inference import answer, encode_samples, forecasts, in_batches, load_data, score
from program import BadInput, pick_device, run, set_seed, write_atomically, write_json
from settings import EvaluateSettings

DRAWS = 200               # sampled steps per forecast for the total variation
SAMPLINGS = 5             # times M samples are drawn for a standard deviation; the paper's


def train_sequences(model, settings, device):
    """Embeddings of the training sequences as the model saw them: (V, N, D) and which are there.

    What the label-free bigram counts. (None, None) where no training video has features.
    """
    import numpy as np
    import torch

    import data
    import protocols
    from tqdm import tqdm
    if settings.videos:                            # what it was trained on is not at hand here
        return None, None
    if settings.data == "coin":
        source, _ = data.open_coin(settings, "train", needed=False)
        if not len(source):
            return None, None
    else:
        source = data.ToySource("train", settings.toy_videos, model.encoder.frames)
    rng, rows, counts = np.random.default_rng(settings.seed), [], []
    with torch.no_grad():
        for (videos,) in tqdm(list(in_batches(settings.batch, range(len(source)))),
                              desc="bigram counts", mininterval=1):
            requests = [(video, source.pretrain_windows(video, rng)) for video in videos]
            requests = [request for request in requests if len(request[1])]
            counts += [len(windows) for _, windows in requests]
            rows.append(model.encode(source.load(requests).clips.to(device)))
    return data.pad_clips(torch.cat(rows), torch.tensor(counts, device=device), protocols.CLIPS)


def bigrams(model, x, texts, settings, device):
    """The two label-free baselines, (M, S) each: by the nearest step, and by the posterior."""
    import torch

    from metrics import bigram_counts, bigram_forecast
    rows, there = train_sequences(model, settings, device)
    if rows is None:
        return None, None
    labels = torch.where(there, score(model.read, rows, texts).argmax(-1), -1).cpu()
    counts = bigram_counts(labels, len(texts))
    posterior = score(model.read, x[:, -1], texts).exp().cpu()                      # (M, S)
    nearest = torch.nn.functional.one_hot(posterior.argmax(1), len(texts))
    return bigram_forecast(counts, nearest), bigram_forecast(counts, posterior)


def toy_truth(samples, videos):
    """The exact next-step distribution of each forecast, (M, S), and what the filter must know.

    A step is shown if at least a second of it lies in the window.
    Returns: truth (M, S); from_start (M,) bool; clip_seconds (M,).
    """
    import numpy as np

    import toy
    grammar, truth, from_start, seconds = toy.Grammar(), [], [], []
    for sample in samples:
        video, begin = videos[sample.video], sample.windows[0, 0]
        shown = [k for k in range(sample.step) if video.segments[k][1] - begin >= 1]
        truth.append(grammar.next_step([video.steps[k] for k in shown], shown[0] == 0))
        from_start.append(shown[0] == 0)
        seconds.append(sample.windows[0, 1] - begin)
    return grammar, np.array(truth), np.array(from_start), np.array(seconds)


def percent(fraction):
    """A fraction or a tensor of hits -> percent, unrounded; None stays None."""
    if fraction is None:
        return None
    value = fraction if isinstance(fraction, float) else float(fraction.double().mean())
    return 100 * value if math.isfinite(value) else None


def fitted_temperature(model, settings, texts, device):
    """Temperature of least NLL of the zero-noise softmax, on validation, against pseudo labels.

    The pseudo label of a forecast is the soft target of the clip that shows the next step. Once
    fine-tuned, labels were seen in training, and the label it is. None where no validation video
    has features.
    """
    import dataclasses

    import tasks
    import numpy as np
    import protocols
    import torch

    from metrics import fit_temperature
    from pseudo_labels import soft_targets
    if settings.annotations and settings.annotations.suffix == ".csv":     # one split, this one
        return None
    held = dataclasses.replace(settings, split="validation",
                               toy_videos=max(settings.toy_videos // 5, 20))
    source, _ = load_data(held, model, device, needed=False, compare=not model.task)
    samples = tasks.forecast_samples(source.videos, settings.min_steps)
    if not samples:
        return None
    if model.task:
        x, _, samples = encode_samples(model, source, samples, settings, device, "validation")
        zero, _ = forecasts(model, x, texts, 1, settings.seed, settings.batch)
        return fit_temperature(zero.cpu(), torch.tensor([sample.label for sample in samples]))
    for i, sample in enumerate(samples):                   # a ninth window: the next step's
        start, end, _ = tasks.steps_of(source.videos[sample.video])[sample.step]
        windows = [sample.windows, protocols.classify_windows(start, end, end, 1)]
        samples[i] = dataclasses.replace(sample, windows=np.concatenate(windows))
    x, features, _ = encode_samples(model, source, samples, settings, device, "validation")
    if features is None:
        return None
    zero, _ = forecasts(model, x[:, :-1], texts, 1, settings.seed, settings.batch)
    target = soft_targets(features[:, -1], texts, model.teacher_tau)
    return fit_temperature(zero, target)


def forecast(model, source, texts, settings, device):
    """Every row of the forecast table: the numbers that SPEC's JSON names."""
    import torch

    import tasks
    import diffusion
    import losses
    import metrics
    samples = tasks.forecast_samples(source.videos, settings.min_steps)
    if not samples:
        raise BadInput(f"--split {settings.split}: no video with {settings.min_steps} steps; "
                       "there is nothing to forecast")
    x, teacher, samples = encode_samples(model, source, samples, settings, device, "encode")
    y = torch.tensor([sample.label for sample in samples])
    zero, drawn = (log_p.cpu() for log_p in
                   forecasts(model, x, texts, settings.samples, settings.seed, settings.batch))
    mean = diffusion.expectation(drawn)                                        # Eq. 11  (M, S)
    picks = drawn.argmax(-1)                                                   # (M, Q)
    again = [(mean, picks)]
    for i in range(1, SAMPLINGS):
        other = forecasts(model, x, texts, settings.samples, settings.seed * 1000 + 500 + i,
                          settings.batch)[1].cpu()
        again.append((diffusion.expectation(other), other.argmax(-1)))
    temperature = fitted_temperature(model, settings, texts, device)
    hard, soft = bigrams(model, x, texts, settings, device)
    read = functools.partial(losses.match, tau=model.teacher_tau)
    clip = None if teacher is None else score(read, teacher.mean(1), texts)    # (M, S)

    def top(scores, k=1):
        return None if scores is None else percent(metrics.topk_correct(scores.cpu(), y, k))

    def deviation(values):
        return float(torch.tensor(values, dtype=torch.float64).std())

    result = {
        "top1": {"zero_noise": top(zero), "expectation": top(mean),
                 "oracle": percent(metrics.oracle_correct(picks, y)),
                 "oracle_softmax": None if temperature is None else percent(metrics.oracle_softmax(
                     (zero / temperature).softmax(-1), y, settings.samples))},
        "top5": {"zero_noise": top(zero, 5), "expectation": top(mean, 5)},
        "mean_class": {name: 100 * metrics.mean_class(metrics.topk_correct(p, y, 1), y)
                       for name, p in (("zero_noise", zero), ("expectation", mean))},
        "deviation": {"expectation": deviation([top(p) for p, _ in again]),
                      "oracle": deviation([percent(metrics.oracle_correct(draws, y))
                                           for _, draws in again])},
        "distinct": float(metrics.distinct(picks).double().mean()),
        "baselines": {"random": 100 / len(texts),
                      "unigram": percent((y == y.mode().values).double()),
                      "clip": top(clip), "bigram": top(hard), "bigram_soft": top(soft)},
        "truth": None}
    if settings.data == "toy":
        result["truth"] = toy_rows(model, x, texts, samples, source.videos, y, settings)
    return result, len(samples), len(tasks.forecast_samples(source.listed, settings.min_steps))


def toy_rows(model, x, texts, samples, videos, y, settings):
    """Rows against the exact truth of the embedded world."""
    import torch

    import metrics
    grammar, truth, from_start, seconds = toy_truth(samples, videos)
    believed = torch.cat([                     # P(clip | step) is the posterior times S, flat prior
        torch.from_numpy(grammar.next_step_from_clips(p.numpy(), start, gap)) for p, start, gap in
        in_batches(256, score(model.read, x, texts).exp().cpu().double() * len(texts),
                   from_start, seconds)])
    truth = torch.from_numpy(truth)
    generator = torch.Generator().manual_seed(settings.seed)
    ideal = torch.multinomial(truth, DRAWS, replacement=True, generator=generator)
    rounds = -(-DRAWS // 50)
    drawn = torch.cat([forecasts(model, x, texts, 50, settings.seed * 1000 + 1 + i,
                                 settings.batch)[1].argmax(-1).cpu() for i in range(rounds)], 1)
    few = ideal[:, :settings.samples]
    return {"bayes_top1": percent(metrics.topk_correct(truth, y, 1)),
            "bayes_top1_pixels": percent(metrics.topk_correct(believed, y, 1)),
            "ideal_oracle": percent(metrics.oracle_correct(few, y)),
            "ideal_distinct": float(metrics.distinct(few).double().mean()),
            "tv": float(metrics.total_variation(drawn[:, :DRAWS], truth).mean()),
            "tv_ideal": float(metrics.total_variation(ideal, truth).mean()), "tv_draws": DRAWS}


def classify(model, source, texts, settings, device):
    """Step classification: the softmax averaged over 3 views; ours beside the teacher."""
    import tasks
    import losses
    import metrics
    import torch
    samples = tasks.classify_samples(source.videos)
    if not samples:
        raise BadInput(f"--split {settings.split}: no annotated step; there is nothing to classify")
    x, teacher, samples = encode_samples(model, source, samples, settings, device, "encode")
    y = torch.tensor([sample.label for sample in samples])
    log_p = answer(model, x, None) if model.task else score(model.read, x, texts)
    ours = log_p.exp().mean(1).cpu()                                           # (M, S)
    p = {"ours": ours}
    if teacher is not None:
        read = functools.partial(losses.match, tau=model.teacher_tau)
        p["teacher"] = score(read, teacher, texts).exp().mean(1).cpu()
    hits = {name: metrics.topk_correct(scores, y, 1) for name, scores in p.items()}
    groups = torch.tensor([sample.video for sample in samples])
    difference = None if teacher is None or settings.features else metrics.paired_bootstrap(
        hits["ours"].double(), hits["teacher"].double(), groups=groups)
    apart = {}
    if settings.data == "toy":
        import toy
        for kind, steps in (("held_out", toy.HELD_OUT), ("motion_only", sum(toy.MOTION_ONLY, ()))):
            of_kind = torch.isin(y, torch.tensor([toy.STEP_ID[step] for step in steps]))
            apart[kind] = {name: percent(hit[of_kind]) for name, hit in hits.items()}
    rows = {f"top{k}": {name: percent(metrics.topk_correct(p[name], y, k)) if name in p else None
                        for name in ("ours", "teacher")} for k in (1, 5)}
    rows["mean_class"] = {name: 100 * metrics.mean_class(hits[name], y) if name in hits else None
                          for name in ("ours", "teacher")}
    return ({**rows, **apart, "ours_minus_teacher":
             None if difference is None else [100 * value for value in difference]},
            len(samples), len(tasks.classify_samples(source.listed)))


def activity(model, source, _, settings, device):
    """Activity classification of whole videos: the classifier on h's zero-noise prediction."""
    import tasks
    import torch

    import metrics
    samples = tasks.activity_samples(source.videos)
    if not samples:
        raise BadInput(f"--split {settings.split}: no annotated video; there is nothing to "
                       "classify")
    x, _, samples = encode_samples(model, source, samples, settings, device, "encode")
    y = torch.tensor([sample.label for sample in samples])
    p, _ = forecasts(model, x, None, 1, settings.seed, settings.batch)         # (M, S)
    hits = [metrics.topk_correct(p.cpu(), y, k) for k in (1, 5)]
    return ({"top1": {"ours": percent(hits[0])}, "top5": {"ours": percent(hits[1])},
             "mean_class": {"ours": 100 * metrics.mean_class(hits[0], y)}},
            len(samples), len(source.listed))


def actions(model, source, _, settings, device):
    """Verbs, nouns and both of EPIC-Kitchens-100: the softmax averaged over clips of an action."""
    import epic
    samples = epic.samples(source.videos, epic.VIEWS)
    x, _, samples = encode_samples(model, source, samples, settings, device, "encode")
    verb, noun = (log_p.exp().mean(1).cpu() for log_p in model.classify(x))    # (M, 97), (M, 300)
    if settings.submission:
        names = [source.videos[sample.video].actions[sample.step].name for sample in samples]
        epic.write_submission(settings.submission, names, verb.log(), noun.log())
    return (epic.rows(verb, noun, [sample.label for sample in samples]), len(samples),
            sum(len(video.actions) for video in source.listed))


def require_task(model, settings):
    """BadInput unless the checkpoint can answer what is asked."""
    path, epic = settings.checkpoint, settings.data == "epic"
    if bool(model.pixels) != (settings.features is None):
        raise BadInput(f"--data {settings.data}: {path} reads "
                       f"{'frames' if model.pixels else 'features'}; give the --data it was "
                       "trained on")
    if settings.task == "features":
        if model.encoder is None:
            raise BadInput(f"{path}: was trained on features and has no encoder; --task features "
                           "needs one that was trained on videos")
        return
    finetune = f"python train.py --stage finetune --task {settings.task}" + " --data epic" * epic
    if model.task is None and (settings.task == "activity" or epic):
        raise BadInput(f"{path}: is not fine-tuned, and there is no zero-shot --task "
                       f"{settings.task} of --data {settings.data}; `{finetune}` does it")
    if model.task not in (None, settings.task) or model.task and epic != (len(model.classes) > 1):
        what = "verbs and nouns" if len(model.classes) > 1 else f"--task {model.task}"
        raise BadInput(f"{path}: is fine-tuned for {what}; `{finetune}` makes what is asked for "
                       "here")
    if settings.task == "forecast" and model.denoiser is None:
        raise BadInput(f"{path}: trained with --order none; matching alone has no "
                       "zero-shot forecasts (train with --order diffusion or mask)")


def require_classes(model, source, texts, settings):
    """BadInput unless labels, texts and checkpoint fit each other."""
    import tasks
    path = settings.checkpoint
    matched = model.task != "classify" or settings.features        # else texts are not matched
    if texts is not None and matched and texts.shape[1] != model.dim:
        raise BadInput(f"{path}: embeddings of width {model.dim}, the texts have "
                       f"{texts.shape[1]}; give the --data it was trained on")
    if model.task is None or settings.data == "epic":
        return
    labels = [sample.label for sample in tasks.samples_of(settings.task, source.listed)]
    count = len(texts) if texts is not None else model.classes[0]
    if count != model.classes[0] or max(labels, default=0) >= count:
        raise BadInput(f"{path}: is fine-tuned to {model.classes[0]} classes, there are "
                       f"{max([count, *(label + 1 for label in labels)])} here; give the --data "
                       "it was fine-tuned on")


def write_features(model, settings, device):
    """Embeddings of 9-s windows of whole videos as a features file, beside it f's class token."""
    import numpy as np
    import torch

    import data
    import kept
    source = data.open_videos(settings, model)

    def encode(clips):
        tokens = model.tokens(clips)                                           # (C, W)
        return torch.cat([model.encode(model.encoder.head(tokens)), tokens], 1)

    with torch.no_grad():
        names, windows, x, _, failed = kept.embed_videos(source, encode, settings.stride,
                                                         settings.workers, device)
    D = model.dim
    write_atomically(settings.out, lambda file: np.savez(
        file, video=names, start=windows[:, 0], end=windows[:, 1], embedding=x[:, :D].numpy(),
        encoder_cls=x[:, D:].numpy(), stride=settings.stride))
    print(f"{settings.out}: {len(x)} windows of 9 s, one every {settings.stride:g} s, of "
          f"{len(source) - len(failed)} videos; {len(source.missing)} missing, "
          f"{len(failed)} unreadable")


def main(settings):
    """Load, measure, print, and write the JSON if asked for."""
    import torch

    from model import load_model
    began = time.perf_counter()
    for name in ("json", "submission", "out"):
        path = getattr(settings, name)
        if path and (path.is_dir() or not path.parent.is_dir()):
            raise BadInput(f"--{name} {path}: is a folder, or there is none to put it in; name a "
                           "file in a folder that is there")
    device = pick_device(settings.device)
    set_seed(settings.seed)
    model, _ = load_model(settings.checkpoint)
    model.to(device)
    require_task(model, settings)
    if settings.task == "features":
        return write_features(model, settings, device)
    source, texts = load_data(settings, model, device)
    require_classes(model, source, texts, settings)
    texts = None if texts is None else texts.to(device)
    task = actions if settings.data == "epic" else {
        "forecast": forecast, "classify": classify, "activity": activity}[settings.task]
    with torch.no_grad():
        result, evaluated, listed = task(model, source, texts, settings, device)
    split = settings.split
    if settings.data == "epic":
        import epic
        split = epic.split_of(settings.annotations)
    head = {"task": settings.task, "data": settings.data, "split": split,
            "setting": "fine-tuned" if model.task else "zero-shot", "order": model.order,
            "listed": listed, "evaluated": evaluated,
            "missing": len(source.missing), "unreadable": len(source.unreadable),
            "classes": sum(model.classes) if texts is None else len(texts)}
    if settings.task == "forecast":
        head["samples"] = settings.samples
    content = {**head, **result, "seed": settings.seed, "checkpoint": str(settings.checkpoint),
               "seconds": time.perf_counter() - began}
    show(content)
    if settings.json:
        write_json(settings.json, content)


def show(content, indent=""):
    """Print a result as aligned rows."""
    for name, value in content.items():
        if isinstance(value, dict):
            print(f"{indent}{name}")
            show(value, indent + "  ")
        else:
            print(f"{indent}{name:<20} {value:.2f}" if isinstance(value, float)
                  else f"{indent}{name:<20} {value}")


if __name__ == "__main__":
    run(main, EvaluateSettings)
