"""Measure a checkpoint, zero-shot or fine-tuned: `python evaluate.py --task forecast --oracle 5`.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.3, 4.1, 4.2, appendix C.

    forecast    which step comes next, from the clips before it     (Tables 1, 5)
    classify    which step a clip shows                             (Table 2)
    activity    which activity a video shows, fine-tuned            (App. C)
    infill      which step is missing, from the others              (Sec. 3.1)
    classify, --data epic    verb, noun and action, fine-tuned      (Table 3)
    features    every 4 s of all videos, written to a features file

Beside the model's rows stand the label-free baselines and, in the embedded world, the truth.
M samples of a task, N = 8 observed clips, Q Monte Carlo samples, S steps (the label set), D.
"""
import functools
import time

from evaluation.inference import answer, encode_samples, forecasts, load_data, score
from support.command import BadInput, pick_device, run, set_seed, write_atomically, write_json
from settings import EvaluateSettings


def classify(model, source, texts, settings, device):
    """Step classification: the softmax averaged over 3 views; ours beside the teacher."""
    import torch

    import losses
    from evaluation import metrics
    import tasks
    from evaluation.metrics import percent
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
        from toy import grammar
        for kind, steps in (("held_out", grammar.HELD_OUT), ("motion_only", sum(grammar.MOTION_ONLY, ()))):
            of_kind = torch.isin(y, torch.tensor([grammar.STEP_ID[step] for step in steps]))
            apart[kind] = {name: percent(hit[of_kind]) for name, hit in hits.items()}
    rows = {f"top{k}": {name: percent(metrics.topk_correct(p[name], y, k)) if name in p else None
                        for name in ("ours", "teacher")} for k in (1, 5)}
    rows["mean_class"] = {name: 100 * metrics.mean_class(hits[name], y) if name in hits else None
                          for name in ("ours", "teacher")}
    return ({**rows, **apart, "ours_minus_teacher":
             None if difference is None else [100 * value for value in difference],
             "by_class": metrics.by_class(hits["ours"], y, ours.shape[1])},
            len(samples), len(tasks.classify_samples(source.listed)))


def activity(model, source, _, settings, device):
    """Activity classification of whole videos: the classifier on h's zero-noise prediction."""
    import torch

    from evaluation import metrics
    import tasks
    from evaluation.metrics import percent
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
    from files import epic
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
    from training import cache
    source = data.open_videos(settings, model)

    def encode(clips):
        tokens = model.tokens(clips)                                           # (C, W)
        return torch.cat([model.encode(model.encoder.head(tokens)), tokens], 1)

    with torch.no_grad():
        names, windows, x, _, failed = cache.embed_videos(source, encode, settings.stride,
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

    from evaluation import forecasting
    from evaluation import missing
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
        "forecast": forecasting.forecast, "classify": classify, "activity": activity,
        "infill": missing.infill}[settings.task]
    with torch.no_grad():
        result, evaluated, listed = task(model, source, texts, settings, device)
    split = settings.split
    if settings.data == "epic":
        from files import epic
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
    show({name: value for name, value in content.items() if "by_class" not in name})
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
