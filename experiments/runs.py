"""The runs that the paper's tables need: each made once, kept under OUT/RECIPE-SEED.

A run is trained, fine-tuned and evaluated by train.py, finetune.py and evaluate.py; its JSON files
lie in its folder as SPLIT.EVALUATION.json. What a recipe is, and which cells name it, is in
paper_tables.py. Called by tables.py.
"""
import contextlib
import functools
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from experiments import paper_tables
from experiments.paper_tables import RECIPES, TABLES
from support.command import BadInput, write_json
from settings import EvaluateSettings, FinetuneSettings, TrainSettings

HERE = Path(__file__).parent
SMALL = {"match_epochs": 7.0}     # beside --toy-videos: fewer videos than by default, seen oftener
LABELS = 0.25             # share of the training videos whose labels fine-tuning may use


def split_cell(cell, column):
    """What a cell asks for: recipe, evaluation, key."""
    recipe, _, key = cell.partition(" ")
    recipe, _, evaluation = recipe.partition("/")
    return recipe, evaluation or column[1], key or column[2]


def needs(names):
    """{recipe: its evaluations}, of the tables named."""
    needed = {}
    for name in names:
        if name == "open-vocabulary":
            cells = [("diffusion", paper_tables.CLASSIFY), ("diffusion", paper_tables.FORECAST)]
        else:
            table = TABLES.get(name)
            cells = [split_cell(cell, column)[:2] for _, *row in (table.ours if table else ())
                     for cell, column in zip(row, table.columns) if cell]
        for recipe, evaluation in cells:
            needed.setdefault(recipe, {})[evaluation] = True
    return {recipe: list(evaluations) for recipe, evaluations in needed.items()}


def result_path(settings, recipe, seed, evaluation):
    """The JSON file of an evaluation; it is there once that has been made."""
    return settings.out / f"{recipe}-{seed}" / f"{settings.split}.{evaluation}.json"


def begin_worker():
    """One thread for each process, and every video rendered once in it."""
    import torch

    import data
    torch.set_num_threads(1)
    data.KEPT = {}


def make(settings, recipe, flags, seed, evaluations):
    """One run, as far as it is not there yet; what it prints goes to its log.txt."""
    folder = settings.out / f"{recipe}-{seed}"
    folder.mkdir(exist_ok=True)
    with (open(folder / "log.txt", "a", encoding="utf-8") as log, contextlib.redirect_stdout(log),
          contextlib.redirect_stderr(log)):
        for evaluation in evaluations:
            path = result_path(settings, recipe, seed, evaluation)
            if not path.exists():
                if evaluation == paper_tables.PROBE:
                    probe(settings, seed, path)
                else:
                    train_and_evaluate(settings, flags, seed, evaluation, path)


def train_and_evaluate(settings, flags, seed, evaluation, path):
    """Pre-train, fine-tune if the evaluation says so, and write its JSON to path."""
    import evaluate
    from training import finetune
    import train
    checkpoint, (task, _, tuned) = path.parent, evaluation.partition("-")
    common = {"seed": seed, "device": settings.device, "resume": True}
    flags = {**SMALL, **flags, **common, "toy_videos": settings.toy_videos}
    if "phrases" in flags:
        flags["phrases"] = HERE / flags["phrases"]
    train.main(TrainSettings(out=checkpoint, **flags))
    if tuned:
        init, checkpoint = checkpoint, checkpoint / task
        finetune.main(FinetuneSettings(task=task, init=init, out=checkpoint, labels=LABELS,
                                       toy_videos=settings.toy_videos, **common))
    evaluate.main(EvaluateSettings(task=task, checkpoint=checkpoint, split=settings.split,
                                   toy_videos=settings.test_videos, seed=seed,
                                   device=settings.device, json=path))


def probe(settings, seed, path):
    """One linear layer on the teacher's features, trained as finetune.py trains it on f's."""
    import torch
    from torch.nn import functional

    import data
    from training import finetune
    from evaluation import metrics
    import tasks
    from toy import grammar
    from model import ProcedureModel
    from support.command import pick_device, set_seed
    from training.run import Run
    from train import SIZES
    device = pick_device(settings.device)
    set_seed(seed)
    tuning = FinetuneSettings(task="classify", labels=LABELS, seed=seed, out=path.parent)
    x, y = {}, {}
    for split, count in (("train", settings.toy_videos), (settings.split, settings.test_videos)):
        source = data.open_toy(split, count, SIZES["small"]["encoder"]["frames"], True, device)
        samples = (finetune.labelled_samples(tuning, source) if split == "train" else
                   tasks.classify_samples(source.videos))
        looks = source.load([(sample.video, sample.windows) for sample in samples]).looks
        features = functional.normalize(source.teach(looks), dim=-1)
        x[split] = features.unflatten(0, (len(samples), -1))                   # (M, 3, D)
        y[split] = torch.tensor([sample.label for sample in samples])
    texts = source.teacher.encode_phrases(grammar.STEPS)
    model = ProcedureModel(texts, None, None, "none", TrainSettings().tau, None, task="classify",
                           classes=[len(texts)])
    model.classifier.weight.data.copy_(functional.normalize(texts, dim=-1))    # the zero-shot model
    model.classifier.bias.data.zero_()
    count = len(y["train"])
    span = finetune.steps_of(tuning, count)
    terms_of = functools.partial(finetune.kept_terms, model, x["train"], y["train"], tuning)
    with Run(tuning, model, device, 0, span.stop, count) as going:
        going.train("finetune", span, tuning.batch, finetune.make_optimizer(model, tuning), span,
                    terms_of)
    with torch.no_grad():
        p = model.classify(x[settings.split])[0].exp().mean(1)                 # (M, S)
    hits = metrics.topk_correct(p, y[settings.split], 1)
    write_json(path, {"task": "classify", "setting": "fine-tuned", "evaluated": len(hits),
                      "top1": {"ours": metrics.percent(hits)}, "seed": seed})


def make_all(settings, seeds, needed):
    """Make what is missing, --jobs runs at a time; yields after each run."""
    from tqdm import tqdm
    todo = [(recipe, RECIPES.get(recipe, {}), seed, evaluations) for seed in seeds
            for recipe, evaluations in needed.items() if not
            all(result_path(settings, recipe, seed, evaluation).exists()
                for evaluation in evaluations)]
    if not todo:
        return
    import data
    from support.command import pick_device
    data.toy_teacher(pick_device(settings.device))                 # trained before many want it
    spawn = multiprocessing.get_context("spawn")
    with (tqdm(total=len(todo), desc="runs", smoothing=0) as bar,
          ProcessPoolExecutor(settings.jobs, spawn, begin_worker) as workers):
        try:
            for done in as_completed([workers.submit(make, settings, *job) for job in todo]):
                done.result()
                bar.update()
                yield
        except BaseException:                      # wait for no other run; each saves where it is
            workers.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def require_same(settings):
    """BadInput if OUT holds runs of another size; else note the size of these."""
    path = settings.out / "size.json"
    size = {name: getattr(settings, name) for name in ("toy_videos", "test_videos")}
    settings.out.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write_json(path, size)
    for name, value in read_json(path, size).items():
        if value != size[name]:
            raise BadInput(f"--{name.replace('_', '-')} {size[name]}: the runs in {settings.out} "
                           f"have {value}; give the same, or another --out")


def read_json(path, keys):
    """A JSON object that has these keys; BadInput if the file holds none."""
    try:
        content = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: {type(error).__name__}; a JSON file is needed, as evaluate.py "
                       "--json writes it") from None
    if not isinstance(content, dict) or not set(keys) <= content.keys():
        raise BadInput(f"{path}: without {', '.join(keys) or 'an object'}; a JSON file of "
                       "evaluate.py is needed")
    return content
