"""Measure a checkpoint, zero-shot or fine-tuned: `python evaluate.py --task forecast --oracle 5`.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.3, 4.1, 4.2 and 4.4, appendix C.

    task                     measures                                            paper
    forecast                 which step comes next, from the clips before it     Tables 1, 4, 5
    classify                 which step a clip shows                             Tables 2, 4
    activity                 which activity a video shows, fine-tuned            Table A
    classify, --data epic    verb, noun and action, fine-tuned                   Table 3
    features                 writes embeddings of whole videos to a file         -

A `Task` defines what is measured: a class, and a line in TASKS. finetune.py fine-tunes a model for
a task.
M examples, N clips of each, Q Monte Carlo samples, S steps (the label set), D embedding.
"""
import time
from argparse import Namespace
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

import torch

import weights
from data import (
    CLIP_SECONDS,
    EPIC_FRAMES,
    EPIC_SECONDS,
    NOUNS,
    VERBS,
    activity_examples,
    classify_examples,
    forecast_examples,
)
from diffusion import expectation
from losses import match
from model import match_labels, merge
from sources import (
    add_data_flags,
    data_set,
    history_of,
    open_labeled,
    open_teacher,
    open_unlabeled,
    warn_of_data,
)
from support.arguments import (
    Parser,
    add_checkpoint_flag,
    add_history_flag,
    add_run_flags,
    add_teacher_flags,
    default_checkpoint,
    limit_threads,
    peek,
    pick_device,
    positive,
)
from support.encode import encode_examples, read_lengths
from support.errors import require, require_readable, run_command
from support.metrics import (
    accuracies,
    by_class,
    draw_correct,
    each_correct,
    pack,
    percent,
    percents,
    print_lines,
    share_of,
    topk_correct,
)
from support.write import write_json

VIEWS = 3                 # clips of a step (release)
EPIC_VIEWS = 10           # clips of an action (release)
# Flags that some tasks take, and how errors name them; those that --task features does not take.
FORECAST_FLAGS = {"samples": "--samples (--oracle)", "repeats": "--repeats",
                  "min_steps": "--min-steps", "history": "--history"}
NO_FEATURES = {"json": "--json", "steps": "--steps"}


# --- Inference (Sec. 3.3): the clips of M examples -> p over the S steps of a label set ---
@torch.no_grad()
def score(model, x, n, texts, noise, batch):
    """Forecast the clip that follows each history, once per noise.

    Monte Carlo: h denoises Q draws of x_j^T ~ N(0, I) to x_hat_j^0, and Eq. 6 gives p(y | x_hat).
    The approximate inference takes the peak of the Gaussian, x_j^T = 0: zeros, and Q = 1.

    Args:    x (M, N, D), n (M,): how many of the N clips a history has; texts (S, D), not read once
             fine-tuned; noise (M, Q, D); batch: how many histories at a time.
    Returns: log p(y), (M, Q, S), on the CPU.
    """
    log_p, order = [], []
    for N in n.unique().tolist():          # those of a length together, so that h reads no padding
        for rows in torch.nonzero(n.cpu() == N).flatten().split(batch):
            x_hat = model.forecast_next(x[rows, :N], noise[rows].to(x.device))     # (B, Q, D)
            log_p.append(match_labels(model, x_hat, texts).cpu())                  # (B, Q, S)
            order.append(rows)
    return torch.cat(log_p)[torch.cat(order).argsort()]


def counted_as(model, source, S):
    """The step that each of S steps counts as, (S,) int64: itself, but for look-alikes of the toy
    world. Zero-shot, no label tells the two of a pair apart, so both count as the first. This is
    the `as_one` of model.merge."""
    if source.truth and not model.config.task:
        return source.truth.as_one
    return torch.arange(S)


# --- The tasks ---
class Inputs(NamedTuple):
    """M examples of a task, as a model sees them, and all else that its numbers are made of. x, n,
    seen and texts are on the model's device, the other tensors on the CPU."""
    model: object                  # ProcedureModel
    x: torch.Tensor                # (M, N, D) f's embeddings of their clips
    n: torch.Tensor                # (M,) how many of the N clips each has; zeros follow them
    seen: torch.Tensor | None      # (M, N, D) the teacher's; None for a task without names
    texts: torch.Tensor | None     # (S, D) of the label set; None for a task without names
    labels: torch.Tensor | None    # (M,), or (M, label sets); None for a task without labels
    examples: list                 # data.Example
    source: object                 # data.Source
    zero_noise: torch.Tensor | None = None     # (M, S) log p, of a task that forecasts
    samples: tuple = ()            # (M, Q, S) log p, for each time that samples are drawn

    def ids(self):
        """The id of each example's video."""
        return [self.source.videos[example.video].name for example in self.examples]


class Task:
    """Something to measure, and maybe to fine-tune for. To add one, write a subclass that overrides
    what differs, and a line of TASKS.

    A data set can do a task if it `has` (data.Source) all that the task needs. A task that needs
    nothing has no labels. It can be done on any videos; its examples have the label None. Without
    --task, a command takes the first of TASKS that --data can do.
    """
    # The word of --task that asks for it; None: its name in TASKS.
    word = None
    # What its data set must have: "steps" (labeled), "names" (texts of their classes),
    # "activities", "actions" (labeled by verb and noun).
    needs = ()
    # Whether `examples` needs to know how long each video is; then the files are looked at. Else
    # `duration` is what the list says, and None if it says nothing.
    needs_length = False
    # Whether a model without h cannot do it.
    needs_h = False
    # Whether h forecasts the clip after those of an example. Then `numbers` is given log p of zero
    # noise, and a tuned classifier reads what h forecasts; else it reads one of the clips.
    forecasts = False
    # Which of FORECAST_FLAGS it takes. With "samples", `numbers` is also given log p of samples.
    flags = ()
    # What is printed for keys of the JSON that are its own: {key: words}.
    words = {}
    # What fine-tuning trains: "classifier", alone; "denoiser", or "encoder" of a task that does not
    # forecast, beside it. None: it cannot be tuned.
    trained = None
    # How many frames a clip has, if f is trained on others than in pre-training.
    frames = None

    def examples(self, videos, spacing, min_steps):
        """[data.Example, ...] of [data.Video, ...], the same ones at each call. If the task needs
        lengths, a video's `duration` is its file's. spacing: as in data.history_windows; min_steps:
        the flag."""
        raise NotImplementedError

    def classes(self, videos, names):
        """How many classes each label set of a tuned classifier has. names: of the classes of the
        whole list, not of a split alone, or None for a task without names."""
        return [len(names)]

    def numbers(self, inputs):
        """Inputs -> the keys of the JSON that are the task's own.

        "top1" is printed as "% right", and keys of its own if `words` has them. "right" is what
        experiments/compare.py reads: pack({column: (M,) bool}, inputs.ids()), where the examples
        of a video follow each other. In the toy world the inputs have look-alikes apart;
        `counted_as` and model.merge make one step of two.
        """
        raise NotImplementedError


class Forecast(Task):
    """Which step comes next: zero noise, mean and best of the samples, and baselines."""
    needs = "steps", "names"
    needs_h = forecasts = True
    flags = tuple(FORECAST_FLAGS)
    trained = "denoiser"

    def examples(self, videos, spacing, min_steps):
        return forecast_examples(videos, spacing, min_steps)

    def numbers(self, inputs):
        """See Task.numbers. "top1" is the mean over the draws of samples; all else that is made of
        samples is of the first draw."""
        # 1. By zero noise; by the teacher, as the paper re-purposes CLIP; by what can be known.
        truth, S = inputs.source.truth, inputs.zero_noise.shape[1]
        Q = inputs.samples[0].shape[1]
        as_one = counted_as(inputs.model, inputs.source, S)
        y = as_one[inputs.labels]                                                  # (M,)
        classes = len(as_one.unique())
        history = inputs.seen.sum(1) / inputs.n[:, None]                           # (M, D) means
        teacher = match(history, inputs.texts, inputs.model.tau)                   # (M, S)
        p = {"zero_noise": inputs.zero_noise.exp(), "teacher": teacher.exp().cpu()}
        if truth:
            p |= truth.next_steps(inputs.examples)
        p = {way: merge(q, as_one, S) for way, q in p.items()}
        right = each_correct(p, y)                                                 # (M,) bool each
        right["five_likeliest"] = topk_correct(p["zero_noise"], y, 5)
        numbers = {"classes": classes, "samples": Q, "draws": len(inputs.samples)}
        numbers["baselines"] = {"random": 100 / classes, "teacher": percent(right["teacher"])}
        numbers["by_class"] = by_class(right["zero_noise"], inputs.labels, S)

        # 2. By samples: their mean (Eq. 11), and the best of them (Table 5), beside the best of as
        #    many draws from the softmax of zero noise.
        drawn = [by_samples(log_p, y, as_one) for log_p in inputs.samples]
        p["expectation"], right["expectation"], right["oracle"] = drawn[0]
        chance, right["oracle_softmax"] = draw_correct(p["zero_noise"], y, Q)
        draws = {"zero_noise": [percent(right["zero_noise"])],
                 "expectation": [percent(of_mean) for _, of_mean, _ in drawn],
                 "oracle": [percent(best) for _, _, best in drawn],
                 "oracle_softmax": [percent(chance)]}
        numbers["top1"] = {way: mean(shares) for way, shares in draws.items()}
        numbers["top1_std"] = None
        if len(inputs.samples) > 1:
            numbers["top1_std"] = {way: deviation(shares) for way, shares in draws.items()}
        numbers["top5"] = {"zero_noise": percent(right["five_likeliest"]),
                         "expectation": percent(topk_correct(p["expectation"], y, 5))}

        # 3. Where the truth is known, by places and parts.
        numbers["truth"] = numbers["by_place"] = numbers["new"] = None
        parts = {}
        if truth:
            parts = truth.parts(inputs.labels)
            parts["new"] = truth.is_new(inputs.examples)
            known = {"exact": right["exact"], "set": right["set"]}
            numbers["truth"] = percents(known)
            known["zero_noise"] = right["zero_noise"]
            numbers["by_place"] = truth.by_place(known, inputs.examples)
            numbers["new"] = share_of(known, parts["new"])
        numbers["right"] = pack(right, inputs.ids(), parts)
        return numbers


def by_samples(log_p, y, as_one):
    """Forecasts of the steps y (M,) by samples, log p (M, Q, S) -> p (M, S) of their mean (Eq. 11);
    whether its likeliest step is right, (M,) bool; and whether that of a sample is, which an oracle
    picks (Table 5), (M,) bool. as_one (S,): as `counted_as` gives it."""
    p = merge(expectation(log_p), as_one, len(as_one))
    likeliest = merge(log_p.exp(), as_one, len(as_one)).argmax(-1)                   # (M, Q)
    return p, topk_correct(p, y), (likeliest == y[:, None]).any(1)


def deviation(shares):
    """The standard deviation of what was drawn several times; 0 of what involves no draw."""
    return stdev(shares) if len(shares) > 1 else 0.0


class Classify(Task):
    """Which step a clip shows; the softmaxes of an example's three clips are averaged."""
    needs = "steps", "names"
    trained = "classifier"

    def examples(self, videos, spacing, min_steps):
        return classify_examples(videos, VIEWS, CLIP_SECONDS)

    def numbers(self, inputs):
        truth, labels = inputs.source.truth, inputs.labels
        ours = match_labels(inputs.model, inputs.x, inputs.texts)                  # (M, N, S)
        teacher = match(inputs.seen, inputs.texts, inputs.model.tau)
        p = {"ours": ours.exp().mean(1).cpu(), "teacher": teacher.exp().mean(1).cpu()}     # (M, S)
        S = p["ours"].shape[1]
        as_one = counted_as(inputs.model, inputs.source, S)
        y = as_one[labels]
        parts = {}
        merged = {name: merge(q, as_one, S) for name, q in p.items()}
        right = each_correct(merged, y)                                            # (M,) bool each
        numbers = accuracies(merged, y)
        numbers["classes"] = len(as_one.unique())
        numbers["by_class"] = by_class(right["ours"], labels, S)
        numbers["held_out"] = numbers["look_alikes"] = None
        if truth:
            parts = truth.parts(labels)
            apart = {name: truth.told_apart(q, labels) for name, q in p.items()}
            numbers["held_out"] = percents(right, parts["held_out"])
            numbers["look_alikes"] = percents(apart, parts["look_alikes"])
            right["look_alikes"] = apart["ours"]
        numbers["right"] = pack(right, inputs.ids(), parts)
        return numbers


class Activity(Task):
    """Which activity a video shows: the classifier on what h predicts after its clips."""
    needs = ("activities",)
    needs_h = forecasts = True
    trained = "denoiser"

    def examples(self, videos, spacing, min_steps):
        return activity_examples(videos)

    def numbers(self, inputs):
        return accuracies({"ours": inputs.zero_noise}, inputs.labels)


class Actions(Task):
    """Table 3: the softmaxes of an action's ten clips are averaged. An action is right if verb and
    noun are. Its top 5 have the largest p(verb) p(noun)."""
    word = "classify"
    needs = ("actions",)
    trained = "encoder"
    frames = EPIC_FRAMES

    def examples(self, videos, spacing, min_steps):
        return classify_examples(videos, EPIC_VIEWS, EPIC_SECONDS)

    def classes(self, videos, names):
        return [VERBS, NOUNS]

    def numbers(self, inputs):
        log_p = inputs.model.classify(inputs.x)                  # (M, 10, verbs), (M, 10, nouns)
        verb, noun = [q.exp().mean(1).cpu() for q in log_p]
        v, u = inputs.labels.T                                  # (M,) each
        verbs, nouns = accuracies({"verb": verb}, v), accuracies({"noun": noun}, u)
        best = []
        for p, q in zip(verb, noun):
            best.append(torch.outer(p, q).flatten().topk(5).indices)
        action = v * noun.shape[1] + u
        hits = torch.stack(best) == action[:, None]                                # (M, 5)
        return {"top1": verbs["top1"] | nouns["top1"] | {"action": percent(hits[:, 0])},
                "top5": verbs["top5"] | nouns["top5"] | {"action": percent(hits.any(1))}}


TASKS = {
    "forecast": Forecast,
    "classify": Classify,
    "activity": Activity,
    "actions": Actions,
}


def task_name(args):
    """Which of TASKS --task means for --data; without --task, the first that --data can do.
    InputError if it can do none, or another."""
    has = set(data_set(args.data).has)
    names = {}                             # {word of --task: name in TASKS}
    for name, task in TASKS.items():
        if set(task.needs) <= has:
            names.setdefault(task.word or name, name)
    require(names, f"--data {args.data} has no labels, and every task needs them")
    word = args.task or next(iter(names))
    require(word in names, f"--task {word}: --data {args.data} supports only {', '.join(names)}")
    return names[word]


def require_task(model, name, args):
    """InputError unless the model can do the task: it is fine-tuned for it; or it is not
    fine-tuned, has h if the task needs it, and can match clips with the names of all labels."""
    config, task = model.config, TASKS[name]
    need = "a run of `python train.py` that is not fine-tuned"
    if task.needs_h:
        need = "a run of `python train.py` with h, that is not fine-tuned"
    if task.trained:
        need = (f"a checkpoint of `python train.py --stage finetune --task {args.task} --data "
                f"{args.data}`")
    if config.task:
        require(config.task == name, f"{model.path}: is fine-tuned for {config.task}; expected "
                f"{need}")
        return
    require(model.denoiser or not task.needs_h, f"{model.path}: was trained without h; expected "
            f"{need}")
    named = not task.needs or ("names" in task.needs and config.text_space)
    require(named and not task.frames, f"{model.path}: is not fine-tuned; expected {need}")


def examples_of(task, source, spacing, min_steps):
    """The examples of a task in the videos of a source -> [data.Example, ...]; how many there would
    be if all listed videos could be used; {id: reason} of videos whose length cannot be read.

    A listed video whose length is needed, but not known, counts as one example.
    """
    if not task.needs_length:
        listed = task.examples(source.listed, spacing, min_steps)
        return task.examples(source.videos, spacing, min_steps), len(listed), {}
    lengths, unreadable = read_lengths(source)
    places = list(lengths)                                     # in source.videos
    videos = [source.videos[i]._replace(duration=lengths[i]) for i in places]
    examples = []
    for example in task.examples(videos, spacing, min_steps):
        examples.append(example._replace(video=places[example.video]))
    return examples, len(examples) + len(source.listed) - len(videos), unreadable


# --- The command ---
def measured(args, model, source, history):
    """What was measured, and by what: keys of the JSON that all tasks have."""
    config = model.config
    left_out = [kind for kind, _ in source.left_out.values()]
    return {"task": args.task, "data": args.data, "split": source.split,
            "setting": "fine-tuned" if config.task else "zero-shot",
            "order": config.order, "history": history, "absent": left_out.count("absent"),
            "classes": sum(config.classes) or None, "samples": None,
            "seed": args.seed, "run_seed": model.settings.get("seed"),
            "checkpoint": str(args.checkpoint)}


def evaluate(args):
    """Score a checkpoint -> the content of --json."""
    # 1. The checkpoint, its task, the videos, and the texts of their label set.
    began = time.perf_counter()
    device = pick_device(args.device)
    model = weights.load(args.checkpoint).to(device)
    name = task_name(args)
    require_task(model, name, args)
    limit_threads(model.encoder.image, device)
    task = TASKS[name]()
    source, _, teacher, texts = open_labeled(args, task, model, device, args.split)
    history, spacing = history_of(model, args.history)
    tuned = model.config.history
    warnings = [warn_of_data(model, source)]
    if "history" not in task.flags:
        history = None
    else:
        if tuned not in (None, history):
            warnings.append(f"forecasts observe --history {history}; the checkpoint is tuned on "
                            f"{tuned}")
        if history == "spaced" and not (source.truth or args.history):
            print("forecasts observe clips as far apart as in training; the paper's: --history "
                  "paper")
    examples, listed, unreadable = examples_of(task, source, spacing, args.min_steps)
    require_readable(unreadable, len(source.videos), args.max_unreadable)
    require(examples, f"no {args.split} video has an example for --task {args.task}")

    # 2. Their clips through f; if the task forecasts, through h, from zero noise and from samples.
    x, n, seen, examples, failed = encode_examples(model, teacher, source, examples, args)
    unreadable |= failed
    labels, zero_noise, samples = None, None, []
    if examples[0].label is not None:
        labels = torch.tensor([example.label for example in examples])
    if task.forecasts:
        zeros = x.new_zeros(len(x), 1, model.dim)                                  # x_j^T = 0
        zero_noise = score(model, x, n, texts, zeros, args.batch)[:, 0]            # (M, S)
    if "samples" in task.flags:
        for seed in range(args.seed, args.seed + args.repeats):
            generator = torch.Generator().manual_seed(seed)
            noise = torch.randn(len(x), args.samples, model.dim, generator=generator)  # x_j^T
            samples.append(score(model, x, n, texts, noise, args.batch))           # (M, Q, S)

    # 3. What the task makes of it.
    inputs = Inputs(model, x, n, seen, texts, labels, examples, source, zero_noise, tuple(samples))
    with torch.no_grad():
        numbers = task.numbers(inputs)
    content = measured(args, model, source, history)
    content |= {"listed": listed, "evaluated": len(examples), "unreadable": len(unreadable)}
    content |= numbers
    content["warning"] = "; ".join(filter(None, warnings)) or None
    content["seconds"] = time.perf_counter() - began
    return content


def main(args):
    """Score, print, and write the JSON if asked for; or write a features file."""
    if args.task == "features":
        from files.features import write_features  # files/ is loaded when it is needed
        device = pick_device(args.device)
        teacher = None
        model = weights.load(args.checkpoint).to(device)
        if args.clip:
            teacher = open_teacher(args.clip, args.clip_weights, device)
        limit_threads(model.encoder.image, device)
        source = open_unlabeled(args, model, teacher, args.split)
        write_features(args, model, teacher, source)
        warning = warn_of_data(model, source)
        if warning:
            print(f"warning: {warning}")
        return
    content = evaluate(args)
    print_lines(content, TASKS[task_name(args)].words)
    if args.json:
        write_json(args.json, content)


def refuse_flags(args, parser, argv):
    """InputError for a flag of the command line that has no effect on --task, be its value the
    default or not."""
    blank = Namespace()                    # a parser sets no default where there is a value
    for name in vars(args):
        setattr(blank, name, None)
    given = vars(parser.parse_args(argv, blank))           # None: the flag is not given
    refused = {"out": "--out"}
    if args.task == "features":
        refused = FORECAST_FLAGS | NO_FEATURES
    else:
        taken = TASKS[task_name(args)].flags
        refused |= {name: FORECAST_FLAGS[name] for name in FORECAST_FLAGS if name not in taken}
    for name, flag in refused.items():
        require(given.get(name) is None, f"{flag}: has no effect on --task {args.task}")


def parse(argv=None):
    """The command line."""
    parser = Parser("Measure a checkpoint: forecasting, classification.")
    data = "toy"
    if peek(argv, "--task") == "features":
        data = "howto100m"                                 # a folder of videos
    add_data_flags(parser, argv, "evaluate", data)

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

    add = parser.add_argument_group("model").add_argument
    add_checkpoint_flag(add)
    add_teacher_flags(add)

    add = add_run_flags(parser)
    add("--batch", type=positive(int), default=64, help="examples at once; no effect on the result")
    add("--json", type=Path, help="also write the numbers here")
    add("--out", type=Path, default=Path("features.npz"), help="features: the file to write")
    args = parser.parse_args(argv)
    if args.task == "features":
        require(args.out.suffix == ".npz", f"--out {args.out}: must end in .npz")
    else:
        name = task_name(args)
        args.task = TASKS[name].word or name
    refuse_flags(args, parser, argv)
    args.checkpoint = args.checkpoint or default_checkpoint()
    return args


if __name__ == "__main__":
    run_command(main, parse)
