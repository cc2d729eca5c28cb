"""The paper's tables by one command, ours beside them: `python tables.py`.

    name             paper                                         ours, in the embedded world
    forecasting      Table 1, zero-shot and fine-tuned             and bigram, oracle of a softmax
    classification   Table 2, zero-shot and fine-tuned             and a linear layer on the teacher
    epic             Table 3                                       - (rows of --rows)
    ablation         Table 4: matching, mask, diffusion            the same
    inference        Table 5: zero noise, expectation, oracle      the same
    activity         Table A                                       the same
    concepts         Table B: phrases that are near a new step     the steps held out
    open-vocabulary  Fig. A: steps by BLEU-1 with the phrases      the same
    step-source      Table C: wikiHow or narrations                how-to sentences, howto.txt
    backbone         Table D: TimeSformer or MViT                  the same
    targets          -                                             teacher: vision, narration, both

A run is trained, fine-tuned and evaluated by train.py, finetune.py and evaluate.py, once: it is
kept under OUT/RECIPE-SEED with its JSON files, and stands in every table that names its recipe
(paper_tables.py). Stopped, the same command goes on. All recipes of a seed come before the next, so
that the tables of an unfinished set are whole, of fewer seeds.
"""
import contextlib
import dataclasses
import json
import multiprocessing
import statistics
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import paper_tables
from paper_tables import RECIPES, TABLES
from program import BadInput, run, write_atomically, write_json
from settings import EvaluateSettings, FinetuneSettings, TablesSettings, TrainSettings

HERE = Path(__file__).parent
SEEN = 0.7                # BLEU-1 from which the paper calls a step seen
OPEN = ("concepts", "open-vocabulary")
SMALL_WORDS = frozenset("a an and for from in into my of off on or out the to up with your".split())


# ------------------------------------------------------------------------------------------------
# Runs: what a table needs of them, in a process of their own
# ------------------------------------------------------------------------------------------------
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


def make(settings, recipe, seed, evaluations):
    """One run, as far as it is not there yet; what it prints goes to its log.txt."""
    folder = settings.out / f"{recipe}-{seed}"
    folder.mkdir(exist_ok=True)
    with (open(folder / "log.txt", "a", encoding="utf-8") as log, contextlib.redirect_stdout(log),
          contextlib.redirect_stderr(log)):
        for evaluation in evaluations:
            path = result_path(settings, recipe, seed, evaluation)
            if not path.exists():
                measure = probe if evaluation == paper_tables.PROBE else train_and_evaluate
                measure(settings, recipe, seed, evaluation, path)


def train_and_evaluate(settings, recipe, seed, evaluation, path):
    """Pre-train, fine-tune if the evaluation says so, and write its JSON to path."""
    import evaluate
    import finetune
    import train
    checkpoint, (task, _, tuned) = path.parent, evaluation.partition("-")
    common = {"seed": seed, "device": settings.device, "resume": True}
    flags = dict(RECIPES[recipe])
    if "phrases" in flags:
        flags["phrases"] = HERE / flags["phrases"]
    train.main(TrainSettings(out=checkpoint, toy_videos=settings.toy_videos, **common, **flags))
    if tuned:
        init, checkpoint = checkpoint, checkpoint / task
        finetune.main(FinetuneSettings(task=task, init=init, out=checkpoint, **common,
                                       toy_videos=settings.toy_videos))
    evaluate.main(EvaluateSettings(task=task, checkpoint=checkpoint, split=settings.split, json=path,
                                   toy_videos=settings.test_videos, seed=seed,
                                   device=settings.device))


def probe(settings, _, seed, __, path):
    """One linear layer on the teacher's features, trained as finetune.py trains it on f's."""
    import torch
    from torch.nn import functional

    import data
    import finetune
    import metrics
    import tasks
    import toy
    from model import ProcedureModel
    from program import pick_device, set_seed
    from runs import schedule
    from train import SIZES
    device = pick_device(settings.device)
    set_seed(seed)
    tuning = FinetuneSettings(task="classify", seed=seed)
    x, y = {}, {}
    for split, count in (("train", settings.toy_videos), (settings.split, settings.test_videos)):
        source = data.open_toy(split, count, SIZES["small"]["encoder"]["frames"], True, device)
        samples = tasks.classify_samples(source.videos)
        looks = source.load([(sample.video, sample.windows) for sample in samples]).looks
        x[split] = functional.normalize(source.teach(looks), dim=-1).unflatten(0, (len(samples), -1))
        y[split] = torch.tensor([sample.label for sample in samples])
    texts = source.model.encode_phrases(toy.STEPS)
    model = ProcedureModel(texts, None, None, "none", TrainSettings().tau, None, task="classify",
                           classes=[len(texts)])
    model.classifier.weight.data.copy_(functional.normalize(texts, dim=-1))    # the zero-shot model
    model.classifier.bias.data.zero_()
    optimizer = finetune.make_optimizer(model, tuning)
    steps = round(tuning.epochs * max(len(y["train"]) // tuning.batch, 1))
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = tuning.lr * schedule(step, steps)
        terms, _ = finetune.kept_terms(model, x["train"], y["train"], tuning, step, None)
        optimizer.zero_grad(set_to_none=True)
        terms["loss"].backward()
        optimizer.step()
    with torch.no_grad():
        p = model.classify(x[settings.split])[0].exp().mean(1)                 # (M, S)
    hits = metrics.topk_correct(p, y[settings.split], 1)
    write_json(path, {"task": "classify", "setting": "fine-tuned", "evaluated": len(hits),
                      "top1": {"ours": metrics.percent(hits)}, "seed": seed})


def make_all(settings, seeds, needed):
    """Make what is missing, --jobs runs at a time; yields after each run."""
    from tqdm import tqdm
    todo = [(recipe, seed, evaluations) for seed in seeds for recipe, evaluations in needed.items()
            if not all(result_path(settings, recipe, seed, evaluation).exists()
                       for evaluation in evaluations)]
    if not todo:
        return
    import data
    from program import pick_device
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
    absent = [key for key in keys if not isinstance(content, dict) or key not in content]
    if absent:
        raise BadInput(f"{path}: no {', '.join(absent)}; a JSON file of evaluate.py is needed")
    return content


# ------------------------------------------------------------------------------------------------
# Rows: (whose, label, a list of values or a text for each column)
# ------------------------------------------------------------------------------------------------
def look_up(content, key):
    """content["a"]["b"] for the key "a.b"; None where there is none."""
    for part in key.split("."):
        content = content.get(part) if isinstance(content, dict) else None
    return content


def paper_rows(rows):
    """The paper's rows: one value for each column, as it is printed."""
    return [("paper", label, [[] if cell is None else [cell] for cell in cells])
            for label, *cells in rows]


def our_rows(table, results):
    """Each cell: the values of its number over the seeds that are there.

    results: {(recipe, seed, evaluation): content}.
    """
    rows = []
    for label, *cells in table.ours:
        row = []
        for cell, column in zip(cells, table.columns):
            recipe, evaluation, key = split_cell(cell, column) if cell else (None, None, "")
            row.append([value for (r, _, e), content in results.items()
                        if (r, e) == (recipe, evaluation)
                        and (value := look_up(content, key)) is not None])
        rows.append(("ours", label, row))
    return [row for row in rows if any(row[2])]


def evaluation_of(content):
    """Which evaluation a JSON file of evaluate.py holds."""
    if content["data"] == "epic":
        return paper_tables.EPIC
    return content["task"] + "-tuned" * (content["setting"] == "fine-tuned")


def file_rows(table, files):
    """A row for each file that has a number for one of the table's columns."""
    rows = []
    for name, content in files.items():
        values = [look_up(content, key) if evaluation == evaluation_of(content) else None
                  for _, evaluation, key in table.columns]
        if any(value is not None for value in values):
            rows.append((name, content["order"], [[] if v is None else [v] for v in values]))
    return rows


def shown(values):
    """Values of a cell -> text: mean ± standard deviation over seeds; "-" where there is none."""
    if not values or isinstance(values[0], str):
        return values[0] if values else "-"
    mean = statistics.mean(values)
    text = f"{mean:.1f}" if abs(mean) >= 1 or not mean else f"{mean:.2g}"
    return text + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def markdown(title, columns, rows):
    """A table as text. The last column counts the seeds of a row of ours."""
    header = ["", "", *columns, "seeds"]
    lines = [[whose, label, *map(shown, cells), str(max(map(len, cells))) if whose == "ours"
              and not isinstance(cells[0][0], str) else ""] for whose, label, cells in rows]
    widths = [max(len(line[i]) for line in (header, *lines)) for i in range(len(header))]
    lines = [[text.ljust(width) for text, width in zip(line, widths)] for line in
             (header, ["-" * max(width, 3) for width in widths], *lines)]
    return "\n".join([f"**{title}**", "", *("| " + " | ".join(line) + " |" for line in lines), ""])


# ------------------------------------------------------------------------------------------------
# Steps that pre-training had no phrase for
# ------------------------------------------------------------------------------------------------
def vocabulary(settings):
    """Steps, the pool of phrases, and the BLEU-1 of each step with the nearest phrase."""
    import toy
    from listings import load_phrases, load_steps
    from metrics import largest_bleu1
    steps, pool = toy.STEPS, toy.PHRASES
    if settings.steps:
        steps = load_steps(settings.steps)
        pool = [phrase.text for phrase in load_phrases(settings.phrases)]
    return steps, pool, largest_bleu1(steps, pool)


def concept_rows(steps, pool, bleu, most=3):
    """Novel steps, and the phrases that share the most words with them, earlier ones first.

    The paper's steps where they are in the label set, else the first ten.
    """
    novel = [step for step, score in zip(steps, bleu) if score < SEEN]
    same = [step for step, _ in paper_tables.CONCEPTS if step in novel]
    rows = []
    for step in same or novel[:10]:
        words = set(step.lower().split()) - SMALL_WORDS
        shared = [len(words & set(phrase.lower().split())) for phrase in pool]
        near = sorted(range(len(pool)), key=lambda i: (-shared[i], i))[:most]
        rows.append(("ours", step, [[", ".join(pool[i] for i in near if shared[i]) or "--"]]))
    return rows


def by_task(results, steps):
    """{evaluation: [(S,) percent or None, one for each run]} of zero-shot results."""
    found = {paper_tables.CLASSIFY: [], paper_tables.FORECAST: []}
    for name, evaluation, content in results:
        if evaluation in found and "by_class" in content:
            if len(content["by_class"]) != len(steps):
                raise BadInput(f"{name}: {len(content['by_class'])} classes, but there are "
                               f"{len(steps)} steps; give the --steps it was evaluated on")
            found[evaluation].append(content["by_class"])
    return found


def open_rows(bleu, found):
    """Accuracy of seen and of novel steps: the mean over the steps of a group that occur."""
    rows = []
    for name, group in (("seen", [b >= SEEN for b in bleu]), ("novel", [b < SEEN for b in bleu])):
        cells = [[statistics.mean(values) for run in runs if
                  (values := [v for v, member in zip(run, group) if member and v is not None])]
                 for runs in found.values()]
        rows.append(("ours", name, [[str(sum(group))], *cells]))
    return rows


def draw_open(settings, bleu, found):
    """The chart of Fig. A, OUT/open-vocabulary.png: accuracies are means over the runs."""
    import figures
    path = settings.out / "open-vocabulary.png"
    accuracy = {}
    for title, runs in zip(("classification", "forecasting"), found.values()):
        known = [[value for value in values if value is not None] for values in zip(*runs)]
        accuracy[title] = [statistics.mean(values) / 100 if values else float("nan")
                           for values in known]
    try:
        figures.save(figures.plot_open_vocabulary(bleu, {k: v for k, v in accuracy.items() if v}),
                     path)
    except BadInput as error:                              # matplotlib is optional
        print(f"{path} is not drawn: {error}")


# ------------------------------------------------------------------------------------------------
# The command
# ------------------------------------------------------------------------------------------------
def build(settings, names, seeds, needed, files):
    """All tables from what is there: {name: (title, columns, rows)}."""
    results = {(recipe, seed, evaluation): read_json(path, ("top1",)) for seed in seeds
               for recipe, evaluations in needed.items() for evaluation in evaluations
               if (path := result_path(settings, recipe, seed, evaluation)).exists()}
    tables, words = {}, vocabulary(settings) if set(OPEN) & set(names) else None
    for name in names:
        if name == "concepts":
            rows = paper_rows(paper_tables.CONCEPTS) + concept_rows(*words)
            tables[name] = "Table B: new steps", ["phrases that share a verb or a noun"], rows
        elif name == "open-vocabulary":
            found = by_task([(file, evaluation_of(content), content) for file, content in
                             files.items()] + [(recipe, evaluation, content) for
                             (recipe, _, evaluation), content in results.items()
                             if recipe == "diffusion"], words[0])
            rows = paper_rows(paper_tables.OPEN_VOCABULARY) + open_rows(words[2], found)
            tables[name] = ("Fig. A: steps by BLEU-1 with the phrases, seen from 0.7, zero-shot",
                            ["steps", "classification", "forecasting"], rows)
            if any(found.values()):
                draw_open(settings, words[2], found)
        else:
            table = TABLES[name]
            rows = paper_rows(table.paper) + our_rows(table, results) + file_rows(table, files)
            tables[name] = table.title, [column[0] for column in table.columns], rows
    return tables


def save(settings, tables):
    """Write tables.md and tables.json."""
    text = "\n".join(markdown(*table) for table in tables.values())
    write_atomically(settings.out / "tables.md", lambda file: file.write(text.encode()))
    write_json(settings.out / "tables.json", {
        name: {"title": title, "columns": columns,
               "rows": [{"source": whose, "model": label, "values": cells}
                        for whose, label, cells in rows]}
        for name, (title, columns, rows) in tables.items()})
    return text


def main(settings):
    """Make the runs that are missing, and print the tables."""
    names = [*TABLES, *OPEN] if settings.tables == "all" else settings.tables.split(",")
    unknown = [name for name in names if name not in (*TABLES, *OPEN)]
    if unknown:
        raise BadInput(f"{unknown[0]}: no such table; there are {', '.join((*TABLES, *OPEN))}")
    seeds = [int(seed) for seed in settings.seeds.split(",")]
    files = {name: read_json(name, ("task", "data", "setting", "order", "top1"))
             for name in (settings.rows.split(",") if settings.rows else ())}
    needed = {} if files or settings.steps else needs(names)
    require_same(settings)
    for _ in make_all(settings, seeds, needed):
        save(settings, build(settings, names, seeds, needed, files))
    print(save(settings, build(settings, names, seeds, needed, files)))
    print(f"{settings.out}/tables.md, tables.json")


if __name__ == "__main__":
    run(main, TablesSettings)
