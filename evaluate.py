"""Measure a checkpoint, zero-shot or fine-tuned: `python evaluate.py --task forecast --oracle 5`.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.3, 4.1, 4.2 and 4.4, appendix C.

    task                     measures                                            paper
    forecast                 which step comes next, from the clips before it     Tables 1, 4, 5
    classify                 which step a clip shows                             Tables 2, 4
    activity                 which activity a video shows, fine-tuned            Table A
    classify, --data epic    verb, noun and action, fine-tuned                   Table 3
    features                 writes embeddings of whole videos to a file         -

A `Task` is the interface to what is measured, and fine-tuned for: one line of TASKS.
M examples, N <= 8 clips of each, Q Monte Carlo samples, S steps (the label set), D embedding.
"""
import math
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Callable, NamedTuple

import torch

import weights
from data import (CLIP_SECONDS, EPIC_FRAMES, EPIC_SECONDS, NOUNS, VERBS, activity_examples,
                  classify_examples, forecast_examples)
from diffusion import expectation
from losses import match
from model import match_labels
from sources import (SOURCES, data_set, history_of, open_labeled, open_unlabeled, open_teacher,
                     warn_of_data)
from support.arguments import (Parser, add_data_flags, add_history_flag, add_run_flags,
                               add_teacher_flags, default_checkpoint, peek, pick_device, positive)
from support.encode import encode_examples
from support.errors import require, run
from support.metrics import accuracies, draw_correct, pack, percent, print_lines, topk_correct
from support.write import write_json

EPIC_VIEWS = 10           # clips of an action (release)


class Asked(NamedTuple):
    """M examples of a task, and all that its lines are made of."""
    model: object              # ProcedureModel
    x: torch.Tensor            # (M, N, D) f's embeddings of their clips
    n: torch.Tensor            # (M,) how many of the N clips each has
    seen: torch.Tensor | None  # (M, N, D) the teacher's
    texts: torch.Tensor | None # (S, D) of the label set; None for a task without texts
    labels: torch.Tensor       # (M,), or (M, label sets)
    examples: list             # data.Example
    source: object             # data.Source
    args: object               # of the command


class Task(NamedTuple):
    """Something to measure, and to fine-tune for."""
    examples: Callable         # (videos, spacing, min_steps) -> [data.Example, ...]
    read: Callable             # (model, x (B, N, D), n (B,)) -> what the classifier reads (B, V, D)
    lines: Callable            # Asked -> lines of the table, a dict of the JSON
    trained: str | None        # fine-tuning also trains this part: "encoder", "denoiser"
    needs: tuple = ("steps", "names")          # what its data set must have (data.Source.has);
    #                            with names, the classes have texts: it can be done zero-shot
    views: bool = False        # an example's windows are views, of which training shows one
    frames: int | None = None  # of a clip, if f is trained on others than in pre-training
    epochs: float = 15.0       # of fine-tuning: how often it shows each example
    lr: float = 1e-3           # its peak rate
    decay: float = 1e-2        # its weight decay
    clip: float = math.inf     # the most that the norm of its gradient may be
    classes: Callable = lambda videos, names: [len(names)]     # of each label set


# --- Inference (Sec. 3.3): the clips of M examples -> p over the S steps of a label set ---
@torch.no_grad()
def score(model, x, n, texts, noise, batch):
    """Forecast the clip that follows each history, `batch` histories at a time, on the CPU.

    Monte Carlo: h denoises Q draws of x_j^T ~ N(0, I) to x_hat_j^0, and Eq. 6 gives p(y | x_hat).
    The approximate inference takes the peak of the Gaussian, x_j^T = 0.

    Args:    x (M, N, D), n (M,): how many of the N clips a history has; texts (S, D), None once
             fine-tuned; noise (M, Q, D), standard normal.
    Returns: log p(y) of zero noise (M, S), and of each sample (M, Q, S).
    """
    zero, samples = [], []
    for x, n, noise in zip(x.split(batch), n.split(batch), noise.split(batch)):
        x_hat = model.forecast_next(x, torch.zeros_like(x[:, :1]), n)      # (B, 1, D)
        zero.append(match_labels(model, x_hat[:, 0], texts).cpu())
        x_hat = model.forecast_next(x, noise.to(x.device), n)              # (B, Q, D)
        samples.append(match_labels(model, x_hat, texts).cpu())
    return torch.cat(zero), torch.cat(samples)


def as_counted(p, labels, model, truth):
    """{name: p (..., S)} and labels (M,) as they are scored, and how many steps are told apart.
    Zero-shot, no label tells look-alikes of the toy world apart, so a pair counts as one step, with
    the sum of their p."""
    S = next(iter(p.values())).shape[-1]
    first = truth.first if truth and not model.config.task else torch.arange(S)
    sums = {name: torch.zeros_like(q).index_add_(-1, first, q) for name, q in p.items()}
    return sums, first[labels], len(first.unique())


# --- The tasks ---
def names_of(examples, source):
    """The id of each example's video."""
    return [source.videos[example.video].name for example in examples]


def next_clip(model, x, n):
    """What h predicts with zero noise after the clips x (B, N, D), of which n (B,): (B, 1, D)."""
    return model.forecast_next(x, torch.zeros_like(x[:, :1]), n)


def sampled(asked, seed):
    """Forecasts by zero noise and by samples of one seed -> {way: p (M, S)}, {way: which are right
    (M,)} and {way: percent}. Table 5: an oracle picks a sample whose likeliest step is right."""
    model, x, n, _, texts, labels, _, source, args = asked
    noise = torch.randn(len(x), args.samples, model.dim,
                        generator=torch.Generator().manual_seed(seed))                 # x_j^T
    zero, samples = score(model, x, n, texts, noise, args.batch)
    p = {"zero_noise": zero.exp(), "expectation": expectation(samples), "samples": samples.exp()}
    p, y, _ = as_counted(p, labels, model, source.truth)                               # Eq. 11
    best = (p.pop("samples").argmax(-1) == y[:, None]).any(1)
    chance, drawn = draw_correct(p["zero_noise"], y, args.samples)
    right = {way: topk_correct(q, y) for way, q in p.items()}
    right |= {"oracle": best, "oracle_softmax": drawn}
    return p, right, {way: percent(hits) for way, hits in right.items()} | {
        "oracle_softmax": percent(chance)}


def forecast_lines(asked):
    """Which step comes next: zero noise, mean and best of the samples, and what stands beside."""
    model, x, n, seen, texts, labels, examples, source, args = asked
    truth, parts = source.truth, {}
    clips = seen.sum(1) / n[:, None]         # the paper re-purposes CLIP: their mean    (M, D)
    beside = {"teacher": match(clips, texts, model.tau).exp().cpu()}
    if args.similar:
        beside["similar"] = truth.similar_histories(model, x, n, texts, args)
    if truth:
        beside |= truth.next_steps(examples)
    beside, y, classes = as_counted(beside, labels, model, truth)
    draws = [sampled(asked, seed) for seed in range(args.seed, args.seed + args.repeats)]
    ours, right, _ = draws[0]
    right |= {name: topk_correct(q, y) for name, q in beside.items()}
    repeated = {way: [top1[way] for *_, top1 in draws] for way in draws[0][2]}
    lines = {"samples": args.samples, "top1": {way: mean(row) for way, row in repeated.items()},
             "top1_std": None, "top5": {way: percent(topk_correct(q, y, 5))
                                        for way, q in ours.items()},
             "baselines": {"random": 100 / classes, "teacher": percent(right["teacher"]),
                           "similar": None},
             "truth": None, "by_place": None, "new": None, "futures": None}
    if args.repeats > 1:
        lines["top1_std"] = {way: stdev(row) for way, row in repeated.items()}
    if truth:
        more, parts["new"] = truth.forecast_lines(ours | beside, right, y, examples, args.samples)
        lines["baselines"]["similar"] = more.pop("similar", None)
        lines |= more
    if args.horizon > 1:
        lines["futures"] = truth.sampled_futures(model, x, n, texts, examples, args.horizon,
                                                 args.seed)
    return lines | {"right": pack(right, names_of(examples, source), parts)}


def classify_lines(asked):
    """Which step a clip shows; the softmaxes of an example's three clips are averaged."""
    model, x, _, seen, texts, labels, examples, source, _ = asked
    log_p = {"ours": match_labels(model, x, texts), "teacher": match(seen, texts, model.tau)}
    p, parts = {name: q.exp().mean(1).cpu() for name, q in log_p.items()}, {}          # (M, S)
    merged, y, _ = as_counted(p, labels, model, source.truth)
    right, S = {name: topk_correct(q, y) for name, q in merged.items()}, p["ours"].shape[1]
    lines = accuracies(merged, y) | {"held_out": None, "look_alikes": None}
    lines["by_class"] = [percent(right["ours"][labels == k]) for k in range(S)]
    if source.truth:
        more, parts, right["look_alikes"] = source.truth.classify_lines(p, right, labels)
        lines |= more
    return lines | {"right": pack(right, names_of(examples, source), parts)}


def activity_lines(asked):
    """Which activity a video shows: the classifier on what h predicts after its clips."""
    log_p, _ = score(asked.model, asked.x, asked.n, None, 0 * asked.x[:, :1], asked.args.batch)
    return accuracies({"ours": log_p}, asked.labels)


def action_lines(asked):
    """Table 3: the softmaxes of an action's ten clips are averaged. An action is right if verb and
    noun are. Its top 5 have the largest p(verb) p(noun)."""
    verb, noun = (q.exp().mean(1).cpu() for q in asked.model.classify(asked.x))   # (M, V), (M, U)
    v, u = asked.labels.T                                                      # (M,) each
    verbs, nouns = accuracies({"verb": verb}, v), accuracies({"noun": noun}, u)
    lines = {name: verbs[name] | nouns[name] for name in verbs}
    best = torch.stack([torch.outer(p, q).flatten().topk(5).indices for p, q in zip(verb, noun)])
    hits = best == (v * noun.shape[1] + u)[:, None]                            # (M, 5)
    lines["top1"]["action"], lines["top5"]["action"] = percent(hits[:, 0]), percent(hits.any(1))
    return lines


TASKS = {
    "forecast": Task(forecast_examples, next_clip, forecast_lines, "denoiser"),
    "classify": Task(lambda videos, spacing, min_steps: classify_examples(videos, 3, CLIP_SECONDS),
                     lambda model, x, n: x, classify_lines, None, views=True),
    "activity": Task(lambda videos, spacing, min_steps: activity_examples(videos), next_clip,
                     activity_lines, "denoiser", needs=("activities",), epochs=60.0),
    "actions": Task(lambda videos, spacing, min_steps: classify_examples(
                        videos, EPIC_VIEWS, EPIC_SECONDS), lambda model, x, n: x, action_lines,
                    "encoder", needs=("actions",), views=True, frames=EPIC_FRAMES, epochs=50.0,
                    lr=1e-4, decay=5e-2, clip=1.0,
                    classes=lambda videos, names: [VERBS, NOUNS]),
}


def task_name(args):
    """Which of TASKS --task means for --data, which has what the task needs; the first by default.
    InputError if none."""
    has = set(data_set(args.data).has)
    names = {}
    for name, task in TASKS.items():
        if set(task.needs) <= has:
            word = "classify" if "actions" in task.needs else name
            names[word] = name
    require(names, f"--data {args.data} has no labels, which every task needs")
    args.task = args.task or next(iter(names))
    require(args.task in names, f"--task {args.task}: --data {args.data} can only "
            f"{', '.join(names)}")
    return names[args.task]


def require_task(model, name, args):
    """InputError unless the model can do the task: it is fine-tuned for it; or it is not
    fine-tuned, and matches texts."""
    config, task = model.config, TASKS[name]
    fits = ("names" in task.needs and not task.frames
            and (task.trained != "denoiser" or model.denoiser))
    if config.task:
        fits = config.task == name
    state = f"fine-tuned for {config.task}" if config.task else "not fine-tuned"
    require(fits, f"{model.path}: is {state}, of --order {config.order}; needed is a checkpoint of "
            f"`python train.py --stage finetune --task {args.task} --data {args.data}`")


# --- The command ---
def evaluate(args):
    """Score a checkpoint -> the content of --json."""
    # 1. The checkpoint, the videos, and the texts of their label set.
    began, device = time.perf_counter(), pick_device(args.device)
    model, name = weights.load(args.checkpoint).to(device), task_name(args)
    require_task(model, name, args)
    task = TASKS[name]
    source, names, teacher, texts = open_labeled(args, task, model, device, args.split)
    require(source.truth or not args.similar and args.horizon == 1,
            f"--similar and --horizon: --data {args.data} has no truth to compare with")
    history, spacing = history_of(model, args.history)
    tuned, other = model.config.history or history, None
    if history != tuned:
        other = f"forecasts observe --history {history}; the checkpoint is tuned on {tuned}"
    if task.trained == "denoiser" and history == "spaced" and not (source.truth or args.history):
        print("forecasts observe clips as far apart as in training; the paper's: --history paper")
    listed, examples = (task.examples(videos, spacing, args.min_steps)
                        for videos in (source.listed, source.videos))
    require(examples, f"no {args.split} video has {args.min_steps} steps, or one to {args.task}")

    # 2. Their clips through f, and the task.
    x, n, seen, examples, unreadable = encode_examples(model, teacher, source, examples, args)
    labels = torch.tensor([example.label for example in examples])
    with torch.no_grad():
        lines = task.lines(Asked(model, x, n, seen, texts, labels, examples, source, args))

    # 3. The table.
    return {"task": args.task, "data": args.data,
            "split": source.split,
            "setting": "fine-tuned" if model.config.task else "zero-shot",
            "order": model.config.order, "listed": len(listed), "evaluated": len(examples),
            "absent": sum(kind == "absent" for kind, _ in source.left_out.values()),
            "unreadable": len(unreadable),
            "classes": sum(model.config.classes) if texts is None else len(texts),
            "samples": None, **lines, "seed": args.seed,
            "warning": "; ".join(filter(None, (warn_of_data(model, source), other))) or None,
            "run_seed": model.settings.get("seed"), "checkpoint": str(args.checkpoint),
            "seconds": time.perf_counter() - began}


def main(args):
    """Score, print, and write the JSON if asked for; or write a features file."""
    if args.task == "features":
        from files.features import write_features          # files/ is loaded when it is needed
        device, teacher = pick_device(args.device), None
        model = weights.load(args.checkpoint).to(device)
        if args.clip:
            teacher = open_teacher(args.clip, args.clip_weights, device)
        write_features(args, model, teacher, open_unlabeled(args, model, teacher))
        return
    content = evaluate(args)
    print_lines(content)
    if args.json:
        write_json(args.json, content)


def parse(argv=None):
    """The command line."""
    parser = Parser("Measure a checkpoint: forecasting, classification.")
    data = "toy"
    if peek(argv, "--task") == "features":
        data = "howto100m"                                 # a folder of videos
    add_data_flags(parser, argv, list(SOURCES), data_set, "evaluate", data)

    add = parser.add_argument_group("what is measured").add_argument
    add("--task", help="what to measure: forecast, classify or activity (default: forecast; epic: "
        "classify); features: write those of --videos to --out")
    add("--split", choices=["test", "validation", "train"], default="test", help="which videos")
    add("--min-steps", type=positive(int), default=2, help="leave out videos with fewer annotated "
        "steps")
    add_history_flag(add)
    add("--samples", "--oracle", type=positive(int, most=100_000), default=5, dest="samples",
        help="Monte Carlo samples per forecast (Eq. 11); the oracle counts the best of them")
    add("--repeats", type=positive(int), default=1, help="draw the samples this many times: "
        "mean and deviation (Table 5)")
    add("--similar", action="store_true", help="also forecast by similar training histories (toy)")
    add("--horizon", type=positive(int, most=1000), default=1, help="also sample futures of this "
        "many steps (toy)")

    add = parser.add_argument_group("model").add_argument
    add("--checkpoint", type=Path, help="a run folder, a checkpoint file, or a published one "
        "(default: runs/pretrain, else the checkpoint that comes with the code)")
    add_teacher_flags(add)

    add = add_run_flags(parser)
    add("--batch", type=positive(int), default=64, help="examples at once; no effect on the result")
    add("--json", type=Path, help="also write the numbers here")
    add("--out", type=Path, default=Path("features.npz"), help="features: the file to write")
    args = parser.parse_args(argv)
    args.checkpoint = args.checkpoint or default_checkpoint()
    return args


if __name__ == "__main__":
    run(main, parse)
