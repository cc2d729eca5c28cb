"""finetune.py and epic.py: protocols against slow versions, real commands at a tiny size, errors.

What is fine-tuned here is a random model; the embedded world's teacher is barely trained.
"""
import json
import signal
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from files import epic  # noqa: E402
from training import finetune  # noqa: E402
import protocols  # noqa: E402
import tasks  # noqa: E402
from toy import grammar  # noqa: E402
from files.annotations import AnnotatedVideo, Step  # noqa: E402
from commands import call, coin_flags, fails, make_coin, make_teacher  # noqa: E402
from files.listings import Listed  # noqa: E402
from model import ProcedureModel, load_model, save_checkpoint  # noqa: E402
from weights.released import Released  # noqa: E402
from settings import FinetuneSettings  # noqa: E402
from train import SIZES  # noqa: E402

TASKS = ("classify", "forecast", "activity")
TINY = ("--stage", "finetune", "--toy-videos", "8", "--epochs", "2", "--batch", "8", "--log-every",
        "1", "--save-every", "1", "--device", "cpu")
EPIC = ("--data", "epic", "--videos", "kitchens", "--device", "cpu")


def make_init(path, order="diffusion", D=64, features=False):
    """A random checkpoint as pre-training leaves it: on frames, or on features."""
    torch.manual_seed(0)
    size = SIZES["h only" if features else "small"]
    model = ProcedureModel(torch.randn(12, D) + 1, size["encoder"], size["denoiser"], order, 0.05,
                           None if features else (.4, .25))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "denoiser.out" in name:
                value.normal_(std=.3)
    save_checkpoint(path, model)
    return model


def make_published(path, dim=64, layers=2, task=None, **encoder):
    """A random published checkpoint, small: without h where there are no layers of it."""
    torch.manual_seed(0)
    sizes = encoder or dict(image=32, patch=8, frames=4, width=32, depth=2, heads=2)
    model = Released(sizes | {"dim": dim}, dict(dim=dim, layers=layers) if layers else None, task,
                     [40] if task else []).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(.1 * torch.randn_like(parameter))
    save_checkpoint(path, model)
    return model


def make_kitchens(folder):
    """Three videos of 6 s, and lists of 9 actions: with labels, and as the test list has them."""
    (folder / "kitchens" / "P01").mkdir(parents=True)
    rng, rows = np.random.default_rng(0), []
    for i in range(3):
        with av.open(str(folder / f"kitchens/P01/P01_0{i}.MP4"), "w", format="mp4") as file:
            stream = file.add_stream("mpeg4", rate=16)
            stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
            for picture in rng.integers(0, 256, (96, 48, 64, 3), dtype=np.uint8):
                file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
            file.mux(stream.encode())
        rows += [(f"P01_0{i}_{k}", "P01", f"P01_0{i}", "00:00:00.500", f"00:00:0{k}.50",
                  f"00:00:0{k + 1 + k}.75", 1, 2, "take cup", "take", 3 * i + k, "cup", 10 * k,
                  "['cup']", "[1]") for k in range(3)]
    head = ("narration_id,participant_id,video_id,narration_timestamp,start_timestamp,"
            "stop_timestamp,start_frame,stop_frame,narration,verb,verb_class,noun,noun_class,"
            "all_nouns,all_noun_classes")
    for name, width in (("EPIC_100_train.csv", 15), ("EPIC_100_test_timestamps.csv", 8)):
        (folder / name).write_text("\n".join([",".join(head.split(",")[:width]), *(
            ",".join(map(str, row[:width])) for row in rows)]) + "\n")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A working folder: a teacher, COIN files in coin/, kitchens, checkpoints to begin with."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("finetune")
    make_teacher(folder)
    (folder / "coin").mkdir()
    make_coin(folder / "coin")
    make_kitchens(folder)
    for order in ("diffusion", "none"):
        make_init(folder / f"{order}.pt", order)
    make_init(folder / "coin.pt", D=8, features=True)
    make_published(folder / "published.pt")
    make_published(folder / "timesformer.pt", 7, None)
    make_published(folder / "mvit.pt", kind="mvit", image=32, frames=4, width=8, heads=2,
                   stages=[1, 2])
    make_published(folder / "tuned.pt", task="forecast")
    yield folder
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def here(place, monkeypatch):
    """Work in that folder; leave the process's SIGTERM as it was."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.chdir(place)
    yield
    signal.signal(signal.SIGTERM, before)


def measure(*flags):
    """The JSON of an evaluation; strict: no NaN."""
    call("evaluate.py", "--toy-videos", "6", "--device", "cpu", *flags, "--json", "out.json")
    return json.loads(Path("out.json").read_text(), parse_constant=lambda text: pytest.fail(text))


def weights(out):
    return torch.load(Path(out) / "checkpoint.pt", weights_only=True)["model"]


# ---- protocols ---------------------------------------------------------------------------------
@pytest.mark.parametrize("duration", [0.5, 68.0, 240.0])
def test_activity_windows_are_eighths_of_the_whole_video(duration):
    """Catches: the last 68 s instead of all, a gap between two windows."""
    expected = [(duration * k / 8, duration * (k + 1) / 8) for k in range(8)]
    assert np.allclose(protocols.activity_windows(duration), expected)


def test_a_random_window_lies_anywhere_in_the_action():
    """Catches: the middle alone, windows that leave a long action or do not surround a short."""
    rng = np.random.default_rng(0)
    starts = [protocols.random_window(10.0, 20.0, 2.0, rng)[0] for _ in range(500)]
    assert all(end - start == pytest.approx(2) for start, end in starts)
    assert 10 <= min(s for s, _ in starts) < 10.2 and 17.8 < max(s for s, _ in starts) <= 18
    assert protocols.random_window(10.0, 11.0, 2.0, rng).tolist() == [[9.5, 11.5]]
    assert protocols.random_window(0.0, 1.0, 2.0, rng).tolist() == [[0, 2]]


def test_activity_samples_of_every_kind_of_list():
    """Catches: a label of the step instead of the video, a length that is not the video's."""
    world = grammar.make_video("train", 3)
    given = [world, Listed("a", 17, 50.0, 0.0, 50.0),
             AnnotatedVideo("b", "train", 5, 80.0, (Step(1.0, 2.0, 0),)),
             AnnotatedVideo("c", "train", 6, None, (Step(1.0, 2.0, 0), Step(3.0, 30.0, 1)))]
    found = tasks.activity_samples(given)
    assert [s.label for s in found] == [list(grammar.PROCEDURES).index(world.procedure), 17, 5, 6]
    assert [s.windows[-1, 1] for s in found] == [world.duration, 50, 80, 30]
    assert [s.video for s in found] == [0, 1, 2, 3]


def test_action_samples_are_all_actions_of_all_videos():
    """Catches: 9-s clips of an action, views that leave it, labels of another action."""
    settings = SimpleNamespace(annotations=Path("EPIC_100_train.csv"), videos=Path("kitchens"))
    source = epic.open_actions(settings, 32, 32)
    found = epic.samples(source.videos, 10)
    assert [s.label for s in found] == [(3 * i + k, 10 * k) for i in range(3) for k in range(3)]
    start, end = 2.5, 5.75
    expected = [(start + (end - start - 2) * k / 9, start + (end - start - 2) * k / 9 + 2)
                for k in range(10)]
    assert np.allclose(found[2].windows, expected) and found[0].windows.shape == (10, 2)


# ---- the classifier ----------------------------------------------------------------------------
def test_the_classifier_equals_its_formula_by_loops():
    """Catches: a prediction whose length is lost, tau left out, label sets softmaxed together."""
    torch.manual_seed(0)
    model = ProcedureModel(torch.randn(5, 4), None, None, "none", 0.05, None, task="classify",
                           classes=[2, 3])
    x = torch.randn(2, 3, 4)
    verb, noun = model.classify(x)
    assert verb.shape == (2, 3, 2) and noun.shape == (2, 3, 3)
    W, b = model.classifier.weight.double(), model.classifier.bias.double()
    for i in range(2):
        for n in range(3):
            row = x[i, n].double()
            logits = [(sum(W[s, d] * row[d] for d in range(4)) + b[s]) / 0.05 for s in range(5)]
            for got, part in ((verb, logits[:2]), (noun, logits[2:])):
                total = sum(value.exp() for value in part)
                expected = torch.stack([(value.exp() / total).log() for value in part])
                torch.testing.assert_close(got[i, n].double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("task", TASKS)
def test_training_starts_from_the_zero_shot_model(task):
    """Catches: weights of f or h lost on the way, texts that are not normalised, a chance start."""
    init, texts = make_init(Path("x.pt")).eval(), torch.randn(40, 64) * 3
    settings = FinetuneSettings(task=task, dropout=0.3)
    model = finetune.extend(init, settings, None if task == "activity" else texts, [40]).eval()
    clips = torch.nn.functional.normalize(torch.randn(2, 8, 64), dim=-1)
    x_hat = init.forecast_next(clips, torch.randn(2, 3, 64, generator=torch.manual_seed(1)))
    again = model.forecast_next(clips, torch.randn(2, 3, 64, generator=torch.manual_seed(1)))
    torch.testing.assert_close(again, x_hat)
    log_p = model.classify(again)[0]
    expected = (torch.full_like(log_p, 1 / 40).log() if task == "activity" else
                init.match_predicted(x_hat, texts))
    torch.testing.assert_close(log_p, expected, rtol=1e-4, atol=1e-4)
    assert {block.dropout.p for block in model.denoiser.blocks} == {0.3}


@torch.no_grad()
@pytest.mark.parametrize("task", TASKS)
def test_training_starts_from_the_published_model(task):
    """Catches: our h, or a new one, in place of the published; its forecasts divided by tau."""
    init, texts = make_published(Path("x.pt")), torch.randn(40, 64) * 3
    model = finetune.extend(init, FinetuneSettings(task=task), None if task == "activity" else
                            texts, [40]).eval()
    clips = torch.nn.functional.normalize(torch.randn(2, 8, 64), dim=-1)
    x_hat = model.forecast(clips)
    torch.testing.assert_close(x_hat, init.forecast(clips))
    assert model.task == task and model.arguments["released"]["task"] == task
    if task == "classify":
        torch.testing.assert_close(model.classify(clips)[0], init.match(clips, texts))
        return
    log_p = model.classify(x_hat)[0]
    texts = torch.nn.functional.normalize(texts, dim=-1)
    expected = torch.zeros_like(log_p) if task == "activity" else x_hat @ texts.T
    torch.testing.assert_close(log_p, expected.log_softmax(-1))


@torch.no_grad()
@pytest.mark.parametrize("texts, classes", [(64, [40]), (32, [40]), (None, [97, 300])])
def test_without_h_the_class_token_is_classified(texts, classes):
    """Catches: a linear layer on the logits of other classes; texts as the start of one that reads
    no texts' space, even where the widths agree by chance."""
    init, texts = make_published(Path("x.pt"), 7, None), texts and torch.randn(40, texts)
    model = finetune.extend(init, FinetuneSettings(), texts, classes).eval()
    frames = torch.randint(256, (2, 4, 3, 32, 32), dtype=torch.uint8)
    tokens = init.encoder.features(((frames / 255 - .45) / .225).transpose(1, 2))
    torch.testing.assert_close(model.encode(frames),
                               torch.nn.functional.normalize(tokens, dim=-1))
    assert [tuple(p.shape) for p in model.classify(model.encode(frames))] == [
        (2, count) for count in classes]
    assert not any(parameter.any() for parameter in model.classifier.parameters())


# ---- the embedded world and COIN ---------------------------------------------------------------
KEYS = {"classify": ["ours", "teacher"], "activity": ["ours"],
        "forecast": ["zero_noise", "expectation", "oracle", "oracle_softmax"]}


@pytest.mark.parametrize("kind, task", [
    *((kind, task) for kind in ("toy", "coin", "published") for task in TASKS),
    ("timesformer", "classify"), ("mvit", "classify")])
def test_fine_tuned_and_evaluated(kind, task):
    """Catches: a task that trains f, or not what it should; a zero-shot row called fine-tuned; a
    checkpoint that cannot be measured; a run folder that is not complete."""
    flags, init = {"toy": ((), "diffusion.pt"), "coin": (coin_flags(), "coin.pt")}.get(
        kind, ((), f"{kind}.pt"))
    out = f"runs/{kind}-{task}"
    call("train.py", *TINY, *flags, "--task", task, "--init", init, "--out", out)
    before, after = load_model(init)[0].state_dict(), weights(out)
    changed = {key.split(".")[0] for key in before if not torch.equal(before[key], after[key])}
    changed -= {"encoder"} if kind == "timesformer" else set()     # the head: see its own test
    assert changed == (set() if task == "classify" else {"denoiser"})
    rows = [json.loads(line) for line in Path(out, "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1)) and len(rows) > 1
    assert json.loads(Path(out, "config.json").read_text())["settings"]["task"] == task
    content = measure(*flags, "--task", task, "--checkpoint", out)
    assert content["setting"] == "fine-tuned" and list(content["top1"]) == KEYS[task]
    assert content["evaluated"] > 0 and all(
        0 <= value <= 100 for value in content["top1"].values() if value is not None)
    counts = (3, 6) if kind == "coin" else (6, 40)
    assert content["classes"] == counts[task != "activity"]
    if task == "forecast":
        assert list(content["deviation"]) == ["expectation", "oracle"]
        assert content["top1"]["oracle_softmax"] is not None


def test_folder_and_epochs_depend_on_the_task():
    """Catches: a fine-tuned run in runs/pretrain; steps seen as often as activities."""
    assert FinetuneSettings(task="activity").out == Path("runs/finetune-activity")
    epochs = [FinetuneSettings(task=task).epochs for task in ("classify", "forecast", "activity")]
    assert epochs == [15, 15, 60]
    assert FinetuneSettings(task="activity", epochs=2.0).epochs == 2


def test_training_lowers_the_loss_on_a_task_that_can_be_learnt():
    """Catches: labels beside the wrong clips, an optimiser without the classifier, a frozen h."""
    rng = np.random.default_rng(0)
    Path("easy").mkdir()
    make_coin(Path("easy"))
    table = dict(np.load("easy/features.npz"))
    database = json.loads(Path("easy/COIN.json").read_text())["database"]
    kinds = {name: entry["recipe_type"] for name, entry in database.items()}
    places = rng.standard_normal((3, 8))
    table["embedding"] = np.float32([places[kinds[name]] + .1 * rng.standard_normal(8)
                                     for name in table["video"]])
    np.savez("easy/features.npz", **table)
    call("train.py", *TINY, *coin_flags("easy"), "--epochs", "60", "--lr", "0.01", "--task",
         "activity", "--save-every", "100", "--init", "coin.pt", "--out", "runs/easy")
    assert measure(*coin_flags("easy"), "--task", "activity", "--checkpoint",
                   "runs/easy")["top1"]["ours"] == 100


def test_without_h_a_new_one_is_trained():
    """Catches: `--order none` refused, or forecast from a random h that stays as it is."""
    call("train.py", *TINY, "--task", "forecast", "--init", "none.pt", "--out", "runs/none")
    model, _ = load_model("runs/none")
    assert model.order == "none" and model.denoiser.out.weight.abs().max() > 0
    assert measure("--task", "forecast", "--checkpoint", "runs/none")["distinct"] == 1


@pytest.mark.parametrize("init, flags", [
    ("diffusion", ()), ("diffusion", (*EPIC, "--annotations", "EPIC_100_train.csv")),
    ("published", ())])
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(init, flags):
    """Catches: dropout, views, crops, MixUp or order of samples that start again on resuming."""
    task = "classify" if flags else "forecast"
    run = (*TINY, *flags, "--batch", "3", "--task", task, "--init", f"{init}.pt",
           *(() if flags else ("--toy-videos", "3", "--epochs", "1")))
    name, count = f"{init}-{task}", [0]
    call("train.py", *run, "--out", f"runs/whole-{name}")

    def interrupt(optimizer, *_):
        count[0] += 1
        if count[0] > 2:
            raise KeyboardInterrupt
    hook = register_optimizer_step_pre_hook(interrupt)
    try:
        with pytest.raises(SystemExit) as end:
            call("train.py", *run, "--out", f"runs/part-{name}")
    finally:
        hook.remove()
    assert end.value.code == 130 and load_model(f"runs/part-{name}")[1]["step"] == 2
    call("train.py", *run, "--out", f"runs/part-{name}", "--resume", "--workers", "2")
    whole, part = weights(f"runs/whole-{name}"), weights(f"runs/part-{name}")
    assert all(torch.equal(whole[key], part[key]) for key in whole)


def test_a_share_of_the_labels_is_a_share_of_the_videos():
    """Catches: a share of samples, which shows something of every video; a share without any."""
    source = SimpleNamespace(videos=[grammar.make_video("train", i) for i in range(20)])
    found = {}
    for share in (.01, .1, .5, 1.):
        settings = FinetuneSettings(task="forecast", labels=share)
        samples = finetune.labelled_samples(settings, source)
        found[share] = {sample.video for sample in samples}
        assert len(samples) == sum(len(source.videos[i].steps) - 1 for i in found[share])
    assert [len(videos) for videos in found.values()] == [1, 2, 10, 20]
    assert found[.01] <= found[.1] <= found[.5]


# ---- EPIC-Kitchens-100 -------------------------------------------------------------------------
def test_epic_is_fine_tuned_and_evaluated(monkeypatch):
    """Catches: f frozen, 8 frames for 32, a submission that names other actions or sums to no 1."""
    monkeypatch.setattr(epic, "VIEWS", 2)
    flags = (*EPIC, "--annotations", "EPIC_100_train.csv")
    call("train.py", *TINY, *flags, "--init", "diffusion.pt", "--out", "runs/epic")
    model, _ = load_model("runs/epic")
    assert model.encoder.frames == 32 and model.classes == [97, 300]
    before = load_model("diffusion.pt")[0].encoder.head.weight
    assert not torch.equal(before, model.encoder.head.weight)
    call("train.py", *TINY, *flags, "--init", "published.pt", "--out", "runs/epic-published")
    model, _ = load_model("runs/epic-published")
    before = load_model("published.pt")[0].encoder.head.weight
    assert model.encoder.frames == 32 and not torch.equal(before, model.encoder.head.weight)
    assert None not in measure(*flags, "--checkpoint", "runs/epic-published")["top1"].values()
    content = measure(*flags, "--checkpoint", "runs/epic")
    assert content["task"] == "classify" and content["split"] == "train"
    assert list(content["top1"]) == list(content["top5"]) == ["verb", "noun", "action"]
    assert content["listed"] == content["evaluated"] == 9 and content["setting"] == "fine-tuned"
    assert None not in content["top1"].values()
    content = measure(*EPIC, "--annotations", "EPIC_100_test_timestamps.csv", "--checkpoint",
                      "runs/epic", "--submission", "test.zip")
    assert content["top1"] == dict.fromkeys(["verb", "noun", "action"])
    with zipfile.ZipFile("test.zip") as packed:
        file = json.loads(packed.read("test.json"))
    assert file["version"] == "0.2" and file["challenge"] == "action_recognition"
    assert {"sls_pt", "sls_tl", "sls_td"} <= file.keys()
    assert list(file["results"]) == [f"P01_0{i}_{k}" for i in range(3) for k in range(3)]
    for scores in file["results"].values():
        for part, count in (("verb", 97), ("noun", 300)):
            assert list(scores[part]) == [str(i) for i in range(count)]
            assert sum(np.exp(list(scores[part].values()))) == pytest.approx(1, abs=1e-3)


def test_frames_are_stretched_to_32():
    """Catches: the embedding of frame 0 for all; one that is interpolated across the width."""
    init = make_init(Path("x.pt"))
    with torch.no_grad():
        init.encoder.time_embed.copy_(torch.randn(1, 4, 64))
    model = finetune.extend(init, FinetuneSettings(data="epic", annotations=Path("a"),
                                                   videos=Path("b")), None, [97, 300])
    expected = torch.stack([init.encoder.time_embed[0, f * 4 // 32] for f in range(32)])
    assert torch.equal(model.encoder.time_embed[0], expected)


def test_epic_rows_equal_counting():
    """Catches: an action that is right in part, top 5 of verbs alone, classes mixed up."""
    rng = np.random.default_rng(0)
    verb, noun = (torch.from_numpy(rng.dirichlet(np.ones(n), 40)) for n in (6, 7))
    labels = [(int(rng.integers(6)), int(rng.integers(7))) for _ in range(40)]
    found = epic.rows(verb, noun, labels)
    for k in (1, 5):
        right = {"verb": 0, "noun": 0, "action": 0}
        for p, q, (v, n) in zip(verb.tolist(), noun.tolist(), labels):
            right["verb"] += v in sorted(range(6), key=lambda i: -p[i])[:k]
            right["noun"] += n in sorted(range(7), key=lambda i: -q[i])[:k]
            pairs = sorted(((a, b) for a in range(6) for b in range(7)),
                           key=lambda ab: -p[ab[0]] * q[ab[1]])
            right["action"] += (v, n) in pairs[:k]
        assert found[f"top{k}"] == pytest.approx({key: 2.5 * n for key, n in right.items()})
    per_class = [np.mean([p.argmax() == v for p, (v, _) in zip(verb, labels) if v == c])
                 for c in {v for v, _ in labels}]
    assert found["mean_class"]["verb"] == pytest.approx(100 * np.mean(per_class))


def test_mixup_mixes_clips_and_labels_alike(monkeypatch):
    """Catches: labels mixed in other shares than clips, verbs and nouns in different ones."""
    monkeypatch.setattr(epic, "MIXUP", 1.0)            # shares are seldom 0 or 1
    torch.manual_seed(0)
    clips = torch.zeros(2, 2, 3, 4, 4, dtype=torch.uint8)
    clips[1] = 200
    mixed, target = epic.mix(clips, torch.tensor([[0, 2], [1, 0]]), [2, 3])
    share = 1 - float(mixed[0].mean()) / 200
    assert type(mixed) is torch.Tensor and 0 < share < 1
    expected = torch.tensor([[share, 1 - share, 1 - share, 0, share],
                             [1 - share, share, share, 0, 1 - share]])
    torch.testing.assert_close(target, expected)
    assert torch.allclose(mixed[1], torch.full_like(mixed[1], 200 * share))


def test_actions_are_augmented_the_same_in_all_frames():
    """Catches: RandAugment drawn for each frame, drawn from a global generator, or not at all."""
    settings = SimpleNamespace(annotations=Path("EPIC_100_train.csv"), videos=Path("kitchens"))
    source = epic.open_actions(settings, 32, 32)
    still = torch.randint(256, (3, 48, 64), dtype=torch.uint8).expand(32, 3, 48, 64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("video.read_frames", lambda *_: still)
        state = torch.random.get_rng_state()
        chosen = epic.samples(source.videos, 1)
        loaded, labels = epic.load_actions(source, chosen, np.random.default_rng(0))
        assert torch.equal(torch.random.get_rng_state(), state)
        torch.manual_seed(int(torch.randint(1000, ())) + 1)
        again, _ = epic.load_actions(source, chosen, np.random.default_rng(0))
        plain = source.load([(s.video, s.windows) for s in chosen], np.random.default_rng(0))
    assert torch.equal(loaded.clips, again.clips) and loaded.clips.dtype == torch.uint8
    assert (loaded.clips == loaded.clips[:, :1]).all()
    assert loaded.clips.shape == plain.clips.shape and not torch.equal(loaded.clips, plain.clips)
    assert labels.tolist() == [list(s.label) for s in chosen]


def test_unreadable_kitchens_are_named_and_left_out():
    """Catches: another video in place of a broken one; labels that move up."""
    Path("some").mkdir()
    for path in sorted(Path("kitchens/P01").iterdir())[:2]:
        Path("some", path.name).write_bytes(path.read_bytes())
    Path("some/P01_01.MP4").write_bytes(b"no video")
    flags = (*EPIC, "--videos", "some", "--annotations", "EPIC_100_train.csv")
    call("train.py", *TINY, *flags, "--max-unreadable", "0.5", "--init", "diffusion.pt", "--out",
         "runs/some")
    assert json.loads(Path("runs/some/unreadable.json").read_text()).keys() == {"P01_01"}
    assert json.loads(Path("runs/some/missing.json").read_text()) == ["P01_02"]


def test_check_counts_epic():
    """Catches: videos counted for segments, the split of another file."""
    call("data.py", "check", "--data", "epic", "--annotations", "EPIC_100_train.csv", "--json",
         "check.json")
    found = json.loads(Path("check.json").read_text())
    assert found["segments"] == {"train": 9} and (found["verbs"], found["nouns"]) == (97, 300)
    assert found["videos"] == 3 and found["found"] is None
    call("data.py", "check", "--data", "epic", "--annotations", "EPIC_100_train.csv", "--videos",
         "kitchens", "--json", "check.json")
    found = json.loads(Path("check.json").read_text())
    assert (found["found"], found["missing"], found["unreadable"]) == (3, 0, 0)


REAL = ROOT.parent / "shared" / "epic" / "EPIC_100_validation_head.csv"


@pytest.mark.skipif(not REAL.exists(), reason="the real EPIC csv is not here")
def test_check_counts_the_real_epic_list():
    """Catches: segments of the real list that are lost."""
    call("data.py", "check", "--data", "epic", "--annotations", str(REAL), "--json", "check.json")
    found = json.loads(Path("check.json").read_text())
    assert found["segments"] == {"validation": 400}


# ---- errors ------------------------------------------------------------------------------------
@pytest.mark.parametrize("argv, naming", [
    (("--init", "nowhere"), "nowhere"), (("--init", "coin.pt"), "--data"),
    ((*coin_flags(), "--init", "diffusion.pt"), "--data"), (("--labels", "0"), "--labels"),
    (("--labels", "1.5"), "--labels"), (("--epochs", "0"), "--epochs"),
    (("--dropout", "1"), "--dropout"), (("--task", "features"), "features"),
    (("--data", "epic"), "--annotations"), ((*EPIC, "--task", "forecast"), "--task"),
    ((*EPIC, "--annotations", "EPIC_100_test_timestamps.csv", "--init", "diffusion.pt"),
     "no labels"), (("--init", "none-old.pt", "--task", "forecast"), "none-old.pt"),
    (("--init", "runs/done"), "fine-tuned already"), (("--lr", "-1"), "--lr"),
    ((*coin_flags(), "--videos", "kitchens"), "--features"),
    ((*coin_flags(), "--min-steps", "9", "--task", "forecast", "--init", "coin.pt"), "nothing"),
    ((*coin_flags("wide"), "--init", "coin.pt"), "width"),
    (("--task", "forecast", "--init", "timesformer.pt"), "timesformer.pt: holds no h"),
    (("--task", "activity", "--init", "timesformer.pt"), "or of ProcedureVRL before it was fine"),
    (("--task", "classify", "--init", "tuned.pt"), "tuned.pt: is fine-tuned already, to forecast"),
    ((*coin_flags(), "--init", "published.pt"), "published.pt reads frames"),
    ((*EPIC, "--annotations", "EPIC_100_train.csv", "--init", "mvit.pt"), "MViT-v2"),
    ((*EPIC, "--annotations", "EPIC_100_train.csv", "--init", "coin.pt"), "--data epic")])
def test_what_cannot_be_fine_tuned_is_one_line(argv, naming, capsys):
    """Catches: a traceback, a run folder with a checkpoint of nothing."""
    if "none-old.pt" in argv:
        model = load_model("none.pt")[0]
        model.arguments["denoiser"] = None
        save_checkpoint("none-old.pt", model)
    if "runs/done" in argv and not Path("runs/done").exists():
        call("train.py", *TINY, "--task", "classify", "--init", "diffusion.pt", "--out",
             "runs/done")
    if "wide/COIN.json" in argv and not Path("wide").exists():
        Path("wide").mkdir()
        make_coin(Path("wide"), D=12)
    assert naming in fails(capsys, 2, "train.py", *TINY, *argv, "--out", "runs/never")
    assert not Path("runs/never/checkpoint.pt").exists()


@pytest.mark.parametrize("task, init, flags, naming", [
    ("classify", "coin.pt", ("--task", "activity", *coin_flags()), "not fine-tuned"),
    ("classify", "runs/bad", ("--task", "forecast", *coin_flags()), "--task classify"),
    ("classify", "runs/bad", (*coin_flags("more"), "--task", "classify"), "6 classes"),
    ("activity", "runs/bad", (*coin_flags("more"), "--task", "activity"), "3 classes"),
    ("classify", "diffusion.pt", (*EPIC, "--annotations", "EPIC_100_train.csv"), "not fine-tuned"),
    ("toy", "runs/bad", (*EPIC, "--annotations", "EPIC_100_train.csv"), "--task classify"),
    ("toy", "runs/bad", ("--submission", "x.zip"), "--submission"),
])
def test_what_a_checkpoint_cannot_answer_is_one_line(task, init, flags, naming, capsys):
    """Catches: the head of one task read as another's; classes that do not fit."""
    if not Path("more").exists():
        Path("more").mkdir()
        make_coin(Path("more"), classes=7)
        text = Path("more/COIN.json").read_text()
        Path("more/COIN.json").write_text(text.replace('"recipe_type": 2', '"recipe_type": 5'))
    if init == "runs/bad":
        init = f"runs/bad-{task}"
        given = () if task == "toy" else coin_flags()
        if not Path(init).exists():
            call("train.py", *TINY, *given, "--task", "classify" if task == "toy" else task,
                 "--init", "diffusion.pt" if task == "toy" else "coin.pt", "--out", init)
    Path("o.json").unlink(missing_ok=True)
    line = fails(capsys, 2, "evaluate.py", *flags, "--checkpoint", init, "--json", "o.json")
    assert naming in line and not Path("o.json").exists()
