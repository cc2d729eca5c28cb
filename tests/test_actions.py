"""EPIC-Kitchens-100: fine-tuning f on clips of actions, Table 3."""
import json
from fractions import Fraction
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from commands import call, fails, measure, same_run
from data import EPIC_SECONDS, View, classify_samples
from evaluation import tasks
from files.listings import load_epic
from files.sources import VideoSource
from files.video import find_videos
from test_finetune import BASE, TUNE
from test_video import MPEG4, write
from train import FinetuneSettings
from training import finetune
from weights.checkpoint import load_model

TRAIN, TEST = "EPIC_100_train.csv", "EPIC_100_test_timestamps.csv"
EPIC = ("--data", "epic", "--videos", "kitchens")
LABELED = (*EPIC, "--annotations", TRAIN)
REAL = Path(__file__).resolve().parent.parent.parent / "shared/epic/EPIC_100_validation_head.csv"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Three videos of 6 s, and lists of 9 actions: with labels, and as the test list has them."""
    folder = tmp_path_factory.mktemp("epic")
    (folder / "kitchens" / "P01").mkdir(parents=True)
    rows = []
    for i in range(3):
        write(folder / f"kitchens/P01/P01_0{i}.MP4", count=96, base=Fraction(1, 16), **MPEG4)
        rows += [(f"P01_0{i}_{k}", f"P01_0{i}", f"00:00:0{k}.50", f"00:00:0{2 * k + 1}.75",
                  3 * i + k, 10 * k) for k in range(3)]
    head = "narration_id,video_id,start_timestamp,stop_timestamp,verb_class,noun_class".split(",")
    for name, width in ((TRAIN, 6), (TEST, 4)):
        (folder / name).write_text("".join(",".join(map(str, row[:width])) + "\n"
                                           for row in (head, *rows)))
    return folder


@pytest.fixture(autouse=True)
def kitchens(inits, here, made):
    """These files in the test's folder."""
    for name in ("kitchens", TRAIN, TEST):
        (here / name).symlink_to(made / name)


def opened():
    return VideoSource(load_epic(Path(TRAIN)), find_videos("kitchens"), View(32, 32))


def test_action_samples_are_all_actions_of_all_videos():
    """Catches: 9-s clips of an action, views that leave it, labels of another action."""
    found = classify_samples(opened().videos, 10, EPIC_SECONDS)
    assert [s.label for s in found] == [(3 * i + k, 10 * k) for i in range(3) for k in range(3)]
    starts = [2.5 + (5.75 - 2.5 - 2) * k / 9 for k in range(10)]
    assert np.allclose(found[2].windows, [(start, start + 2) for start in starts])


def test_a_random_window_lies_anywhere_in_the_action():
    """Catches: the middle alone, windows that leave a long action or do not surround a short."""
    rng = np.random.default_rng(0)
    found = np.concatenate([finetune.random_window(10.0, 20.0, 2.0, rng) for _ in range(500)])
    assert np.allclose(found[:, 1] - found[:, 0], 2)
    assert 10 <= found.min() < 10.2 and 19.8 < found.max() <= 20
    assert finetune.random_window(10.0, 11.0, 2.0, rng).tolist() == [[9.5, 11.5]]
    assert finetune.random_window(0.0, 1.0, 2.0, rng).tolist() == [[0, 2]]


def test_mixup_mixes_clips_and_labels_alike(monkeypatch):
    """Catches: labels mixed in other shares than clips, verbs and nouns in different ones."""
    monkeypatch.setattr(finetune, "MIXUP", 1.0)         # shares are seldom 0 or 1
    torch.manual_seed(0)
    clips = torch.zeros(2, 2, 3, 4, 4, dtype=torch.uint8)
    clips[1] = 200
    mixed, target = finetune.mix(clips, torch.tensor([[0, 2], [1, 0]]), [2, 3])
    share = 1 - float(mixed[0].mean()) / 200
    assert type(mixed) is torch.Tensor and 0 < share < 1
    expected = torch.tensor([[share, 1 - share, 1 - share, 0, share],
                             [1 - share, share, share, 0, 1 - share]])
    torch.testing.assert_close(target, expected)
    assert torch.allclose(mixed[1], torch.full_like(mixed[1], 200 * share))


def test_actions_are_augmented_the_same_in_all_frames(monkeypatch):
    """Catches: RandAugment drawn for each frame, drawn from a global generator, or not at all."""
    source, still = opened(), torch.randint(256, (3, 48, 64), dtype=torch.uint8)
    monkeypatch.setattr("files.sources.read_frames", lambda *_: still.expand(32, 3, 48, 64))
    state, chosen = torch.random.get_rng_state(), classify_samples(source.videos, 1, EPIC_SECONDS)
    settings = FinetuneSettings(data="epic", annotations=Path("a"), videos=Path("b"))
    loaded, labels = finetune.load_actions(source, chosen, settings, 0)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.rand(1)
    again, _ = finetune.load_actions(source, chosen, settings, 0)
    plain = source.load([(s.video, s.windows) for s in chosen], np.random.default_rng(0))
    assert torch.equal(loaded.clips, again.clips) and loaded.clips.dtype == torch.uint8
    assert (loaded.clips == loaded.clips[:, :1]).all()
    assert loaded.clips.shape == plain.clips.shape and not torch.equal(loaded.clips, plain.clips)
    assert sorted(labels.tolist()) == sorted(list(s.label) for s in chosen)


def test_frames_are_stretched_to_32():
    """Catches: the embedding of frame 0 for all; one that is interpolated across the width."""
    init, arguments, _ = load_model("diffusion.pt")
    with torch.no_grad():
        init.encoder.time_embed.copy_(torch.randn(1, 4, 32))
    settings = FinetuneSettings(data="epic", annotations=Path("a"), videos=Path("b"))
    model, _ = finetune.extend(init, arguments, settings, None, [97, 300])
    expected = init.encoder.time_embed[0].repeat_interleave(8, 0)
    assert torch.equal(model.encoder.time_embed[0], expected)


def test_the_table_equals_counting():
    """Catches: an action that is right in part, top 5 of verbs alone, classes mixed up."""
    rng = np.random.default_rng(0)
    verb, noun = (rng.dirichlet(np.ones(n), 40) for n in (6, 7))
    labels = [(int(rng.integers(6)), int(rng.integers(7))) for _ in range(40)]
    model = SimpleNamespace(classify=lambda x: [torch.from_numpy(p[:, None]).log() for p in x])
    samples = [SimpleNamespace(label=label) for label in labels]
    found = tasks.actions(model, None, samples, (verb, noun), None, None, None)
    for k in (1, 5):
        right = {"verb": 0, "noun": 0, "action": 0}
        for p, q, (v, n) in zip(verb, noun, labels):
            right["verb"] += v in np.argsort(-p)[:k]
            right["noun"] += n in np.argsort(-q)[:k]
            right["action"] += 7 * v + n in np.argsort(-np.outer(p, q).ravel())[:k]
        assert found[f"top{k}"] == pytest.approx({key: 2.5 * n for key, n in right.items()})


def test_actions_are_fine_tuned_and_evaluated(monkeypatch, capsys):
    """Catches: f frozen, 8 frames for 32, a test list that is scored."""
    monkeypatch.setattr(tasks, "VIEWS", 2)
    for init in ("published", "diffusion"):
        call("train.py", *BASE, *LABELED, "--init", f"{init}.pt", "--out", init)
        model, before = load_model(init)[0], load_model(f"{init}.pt")[0]
        assert model.encoder.frames == 32 and model.classes == [97, 300]
        assert not torch.equal(before.encoder.head.weight, model.encoder.head.weight)
        content = measure(*LABELED, "--checkpoint", init)
        assert content["task"] == "classify" and content["split"] == "train"
        assert list(content["top1"]) == list(content["top5"]) == ["verb", "noun", "action"]
        assert content["listed"] == content["evaluated"] == 9
        assert content["setting"] == "fine-tuned" and None not in content["top1"].values()
    assert "has no labels" in fails(capsys, 2, "evaluate.py", *EPIC, "--annotations", TEST,
                                    "--checkpoint", "diffusion")


def test_an_interrupted_run_goes_on_as_if_it_had_not_been():
    """Catches: crops, RandAugment, MixUp or order of samples that start again on resuming."""
    flags, steps = (*BASE, *LABELED, "--batch", "3", "--init", "diffusion.pt", "--out"), count(1)

    def interrupt(*_):
        if next(steps) > 2:
            raise KeyboardInterrupt
    call("train.py", *flags, "whole")
    hook = register_optimizer_step_pre_hook(interrupt)
    with pytest.raises(SystemExit, match="130"):
        call("train.py", *flags, "part")
    hook.remove()
    assert load_model("part")[2]["step"] == 2
    call("train.py", *flags, "part", "--resume", "--workers", "2")
    assert same_run("whole", "part")


def test_unreadable_kitchens_are_named_and_left_out():
    """Catches: another video in place of a broken one; labels that move up."""
    Path("some").mkdir()
    Path("some/P01_00.MP4").symlink_to(Path("kitchens/P01/P01_00.MP4").resolve())
    Path("some/P01_01.MP4").write_bytes(b"no video")
    call("train.py", *BASE, *EPIC, "--videos", "some", "--annotations", TRAIN, "--max-unreadable",
         "0.5", "--init", "diffusion.pt", "--out", "run")
    assert json.loads(Path("run/unreadable.json").read_text()).keys() == {"P01_01"}
    assert json.loads(Path("run/missing.json").read_text()) == ["P01_02"]


@pytest.mark.parametrize("annotations, flags, expected", [
    (TRAIN, (), {"segments": {"train": 9}, "verbs": 97, "nouns": 300, "videos": 3, "found": None}),
    (TRAIN, ("--videos", "kitchens"), {"found": 3, "missing": 0, "unreadable": 0}),
    pytest.param(REAL, (), {"segments": {"validation": 400}}, marks=pytest.mark.skipif(
        not REAL.exists(), reason="no ../shared/epic"))], ids=["list", "videos", "real"])
def test_check_counts_actions(annotations, flags, expected):
    """Catches: videos counted for actions, the split of another file, actions that are lost."""
    call("files", "check", "--data", "epic", "--annotations", str(annotations), *flags, "--json",
         "c.json")
    assert expected.items() <= json.loads(Path("c.json").read_text()).items()


@pytest.mark.parametrize("argv, named", [
    (("--annotations", TEST, "--init", "diffusion.pt"), "no labels"), ((), "--annotations"),
    (("--annotations", TRAIN, "--init", "mvit.pt"), "MViT-v2"),
    (("--annotations", TRAIN, "--init", "coin.pt"), "--data epic")])
def test_what_cannot_be_fine_tuned_is_one_line(argv, named, capsys):
    """Catches: a traceback, a run folder with a checkpoint of nothing."""
    assert named in fails(capsys, 2, "train.py", *BASE, *EPIC, *argv, "--out", "never")
    assert not Path("never/checkpoint.pt").exists()


def test_what_has_no_table_is_one_line(capsys):
    """Catches: a zero-shot table of actions; the classifier of steps read as that of actions."""
    call("train.py", *TUNE, "--task", "classify", "--init", "diffusion.pt", "--out", "steps")
    for checkpoint, named in (("diffusion.pt", "not fine-tuned"), ("steps", "--task classify")):
        assert named in fails(capsys, 2, "evaluate.py", *LABELED, "--checkpoint", checkpoint)
