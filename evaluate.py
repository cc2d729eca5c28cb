"""Measure a checkpoint, zero-shot: `python evaluate.py --task forecast --oracle 5`.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.3, 4.1, 4.2.

    forecast    which step comes next, from the clips before it     (Tables 1, 5)
    classify    which step a clip shows                             (Table 2)

Beside the model's rows stand the label-free baselines and, in the embedded world, the truth.
M samples of a task, N = 8 observed clips, Q Monte Carlo samples, S steps (the label set), D.
"""
import math
import time

from settings import BadInput, EvaluateSettings, pick_device, run, set_seed, write_json

DRAWS = 200               # sampled steps per forecast for the total variation


def load_data(settings, model, device, needed=True):
    """The split's videos, and the text embeddings of its label set (S, D)."""
    import data
    if settings.data == "coin":
        return data.open_coin(settings, settings.split, needed)
    import toy
    teacher = data.toy_teacher(device)
    frames = model.encoder.frames
    return (data.ToySource(settings.split, settings.videos, frames, teacher.encode_frames),
            teacher.encode_phrases(toy.STEPS))


def distinct_texts(texts):
    """COIN has steps with the same text: which rows are the first of their kind.

    Scores of equal texts must tie exactly (ties go to the lowest index), whatever a matrix product
    does to two equal columns: so each text is scored once.

    Returns: unique (U, D), and index (S,) with unique[index] == texts.
    """
    import torch
    return torch.unique(texts, dim=0, return_inverse=True)


def in_batches(size, *columns):
    """Slices of `size` rows of lists and tensors of the same length, side by side."""
    for i in range(0, len(columns[0]), size):
        yield tuple(column[i:i + size] for column in columns)


def encode_samples(model, source, samples, settings, device, title):
    """Embeddings of the samples' windows, and the teacher's features: (M, N, D) twice.

    All samples have the same number of windows N.
    """
    import torch
    from tqdm import tqdm
    ours, teachers = [], []
    batches = list(in_batches(settings.batch, samples))
    with torch.no_grad():
        for (batch,) in tqdm(batches, desc=title, mininterval=1):
            requests = [(sample.video, sample.windows) for sample in batch]
            ours.append(model.encode(source.clips(requests).to(device)))
            teachers.append(source.teacher(requests).to(device))
    N = len(samples[0].windows)
    return tuple(torch.cat(rows).view(len(samples), N, -1) for rows in (ours, teachers))


def score(match, x, texts):
    """log p over the label set, equal texts exactly equal: (..., D) -> (..., S).

    match: model.match for predictions, model.read for clips that were observed.
    """
    unique, index = distinct_texts(texts)
    log_p = match(x, unique)
    return (log_p - log_p[..., index].logsumexp(-1, keepdim=True))[..., index]


def forecasts(model, x, texts, samples, seed, batch):
    """Zero-noise log p (M, S), and log p of Q Monte Carlo samples (M, Q, S): Sec. 3.3.

    The noise of a sample depends on the seed and its place in the list, not on the batch.
    """
    import torch
    M, N, D = x.shape
    noise = torch.randn(M, samples, D, generator=torch.Generator().manual_seed(seed)).to(x.device)
    zero, drawn = [], []
    with torch.no_grad():
        for clips, eps in in_batches(batch, x, noise):
            B = len(clips)
            padded = torch.cat([clips, clips.new_zeros(B, 1, D)], 1)           # j = N is missing
            observed = torch.arange(N + 1, device=x.device).expand(B, -1) < N
            j = torch.full((B,), N, device=x.device)
            queries = torch.cat([torch.zeros_like(eps[:, :1]), eps], 1)        # (B, 1 + Q, D)
            log_p = score(model.match, model.forecast(padded, observed, j, queries), texts)
            zero.append(log_p[:, 0])
            drawn.append(log_p[:, 1:])
    return torch.cat(zero), torch.cat(drawn)


def train_sequences(model, settings, device):
    """Embeddings of the training sequences as the model saw them: (V, N, D) and which are there.

    What the label-free bigram counts. (None, None) where no training video has features.
    """
    import numpy as np
    import torch

    import data
    import protocols
    from tqdm import tqdm
    if settings.data == "coin":
        source, _ = data.open_coin(settings, "train", needed=False)
        if not len(source):
            return None, None
    else:
        source = data.ToySource("train", settings.videos, model.encoder.frames)
    rng, rows, counts = np.random.default_rng(settings.seed), [], []
    with torch.no_grad():
        for (videos,) in tqdm(list(in_batches(settings.batch, range(len(source)))),
                              desc="bigram counts", mininterval=1):
            requests = [(video, source.pretrain_windows(video, rng)) for video in videos]
            requests = [request for request in requests if len(request[1])]
            counts += [len(windows) for _, windows in requests]
            rows.append(model.encode(source.clips(requests).to(device)))
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

    The pseudo label of a forecast is the soft target of the clip that shows the next step. None
    where no validation video has features.
    """
    import dataclasses

    import data
    import protocols
    import torch
    from metrics import fit_temperature
    from pseudo_labels import soft_targets
    held = dataclasses.replace(settings, split="validation", videos=max(settings.videos // 5, 20))
    source, _ = load_data(held, model, device, needed=False)
    samples = data.forecast_samples(source.videos, settings.min_steps)
    if not samples:
        return None
    x, _ = encode_samples(model, source, samples, settings, device, "validation")
    zero, _ = forecasts(model, x, texts, 1, settings.seed, settings.batch)
    steps = [(data.steps_of(source.videos[s.video])[s.step]) for s in samples]
    windows = [protocols.classify_windows(start, end, end, 1) for start, end, _ in steps]
    features = torch.cat([source.teacher([(s.video, w)]) for s, w in zip(samples, windows)])
    target = soft_targets(features.to(device), texts, model.teacher_tau)
    return fit_temperature(zero, target)


def forecast(model, source, texts, settings, device):
    """Every row of the forecast table: the numbers that SPEC's JSON names."""
    import torch

    import data
    import diffusion
    import metrics
    samples = data.forecast_samples(source.videos, settings.min_steps)
    if not samples:
        raise BadInput(f"--split {settings.split}: no video with {settings.min_steps} steps; "
                       "there is nothing to forecast")
    x, teacher = encode_samples(model, source, samples, settings, device, "encode")
    y = torch.tensor([sample.label for sample in samples])
    zero, drawn = (log_p.cpu() for log_p in
                   forecasts(model, x, texts, settings.samples, settings.seed, settings.batch))
    mean = diffusion.expectation(drawn)                                        # Eq. 11  (M, S)
    picks = drawn.argmax(-1)                                                   # (M, Q)
    temperature = fitted_temperature(model, settings, texts, device)
    hard, soft = bigrams(model, x, texts, settings, device)
    clip = torch.log_softmax(teacher.mean(1) @ torch.nn.functional.normalize(texts, dim=-1).T, -1)

    def top(scores, k=1):
        return None if scores is None else percent(metrics.topk_correct(scores.cpu(), y, k))

    result = {
        "top1": {"zero_noise": top(zero), "expectation": top(mean),
                 "oracle": percent(metrics.oracle_correct(picks, y)),
                 "oracle_softmax": None if temperature is None else percent(metrics.oracle_softmax(
                     (zero / temperature).softmax(-1), y, settings.samples))},
        "top5": {"zero_noise": top(zero, 5), "expectation": top(mean, 5)},
        "distinct": float(metrics.distinct(picks).double().mean()),
        "baselines": {"random": 100 / len(texts),
                      "unigram": percent((y == y.mode().values).double()),
                      "clip": top(clip), "bigram": top(hard), "bigram_soft": top(soft)},
        "truth": None}
    if settings.data == "toy":
        result["truth"] = toy_rows(model, x, texts, samples, source.videos, y, settings)
    return result, len(samples), len(data.forecast_samples(source.listed, settings.min_steps))


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
    import data
    import torch

    import metrics
    from pseudo_labels import soft_targets
    samples = data.classify_samples(source.videos)
    if not samples:
        raise BadInput(f"--split {settings.split}: no annotated step; there is nothing to classify")
    x, teacher = encode_samples(model, source, samples, settings, device, "encode")
    y = torch.tensor([sample.label for sample in samples])
    ours = score(model.read, x, texts).exp().mean(1).cpu()                     # (M, S)
    unique, index = distinct_texts(texts)
    theirs = soft_targets(teacher, unique, model.teacher_tau).mean(1)[:, index].cpu()  # (M, S)
    hits = {name: metrics.topk_correct(p, y, 1) for name, p in (("ours", ours),
                                                                ("teacher", theirs))}
    groups = torch.tensor([sample.video for sample in samples])
    difference = metrics.paired_bootstrap(hits["ours"].double(), hits["teacher"].double(),
                                          groups=groups)
    apart = {}
    if settings.data == "toy":
        import toy
        for kind, steps in (("held_out", toy.HELD_OUT), ("motion_only", sum(toy.MOTION_ONLY, ()))):
            of_kind = torch.isin(y, torch.tensor([toy.STEP_ID[step] for step in steps]))
            apart[kind] = {name: percent(hit[of_kind]) for name, hit in hits.items()}
    return {"top1": {name: percent(hit) for name, hit in hits.items()}, **apart,
            "top5": {"ours": percent(metrics.topk_correct(ours, y, 5)),
                     "teacher": percent(metrics.topk_correct(theirs, y, 5))},
            "ours_minus_teacher": [100 * value for value in difference]}, len(samples), len(
                data.classify_samples(source.listed))


def main(settings):
    """Load, measure, print, and write the JSON if asked for."""
    import torch

    from model import load_model
    began = time.perf_counter()
    if settings.json and not settings.json.parent.is_dir():
        raise BadInput(f"--json {settings.json}: there is no folder {settings.json.parent}")
    device = pick_device(settings.device)
    set_seed(settings.seed)
    model, _ = load_model(settings.checkpoint)
    model.to(device)
    if bool(model.pixels) != (settings.data == "toy"):
        raise BadInput(f"--data {settings.data}: {settings.checkpoint} reads "
                       f"{'frames' if model.pixels else 'features'}; give the --data it was "
                       "trained on")
    if settings.task == "forecast" and model.order == "none":
        raise BadInput(f"{settings.checkpoint}: trained with --order none; matching alone has no "
                       "zero-shot forecasts (train with --order diffusion or mask)")
    source, texts = load_data(settings, model, device)
    texts = texts.to(device)
    if texts.shape[1] != model.phrases.shape[1]:
        raise BadInput(f"{settings.checkpoint}: embeddings of width {model.phrases.shape[1]}, the "
                       f"texts have {texts.shape[1]}; give the --data it was trained on")
    task = {"forecast": forecast, "classify": classify}[settings.task]
    with torch.no_grad():
        result, evaluated, listed = task(model, source, texts, settings, device)
    head = {"task": settings.task, "data": settings.data, "split": settings.split,
            "setting": "zero-shot", "order": model.order, "listed": listed, "evaluated": evaluated,
            "missing": len(source.missing), "unreadable": 0, "classes": len(texts)}
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
