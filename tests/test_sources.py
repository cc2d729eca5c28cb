"""sources.py: which videos of a list are used, and by which names; flags of data sets."""
import importlib
import subprocess
import sys
from argparse import Namespace
from types import SimpleNamespace

import pytest
from commands import ROOT, fails

import evaluate
import sources
import train
import weights
from data import UNKNOWN, Lists, Source, Step, Video
from support.arguments import INCLUDED
from support.errors import InputError
from toy import grammar


def config(**changes):
    """What a checkpoint knows, of a model.Config."""
    known = {"task": None, "hold_out": None, "names": None, "classes": ()}
    return SimpleNamespace(**known | changes)


def steps(*labels):
    """A video whose steps have these labels, 10 s each."""
    return Video("v", "test", steps=tuple(Step(10. * i, 10. * i + 9, label)
                                          for i, label in enumerate(labels)))


# --- Which videos ---
def test_a_share_of_training_stands_in_for_validation():
    """Catches: another hash, a test video held out; scores of what a checkpoint was tuned on."""
    videos = [Video(f"v{i}", "train") for i in range(30)] + [Video("v76", "test")]
    for tuned, held in ((config(), [4, 5, 8, 17]), (None, [4, 5, 8, 17]),
                        (config(task="classify", hold_out=0.3),
                         [0, 4, 5, 7, 8, 16, 17, 20, 21, 27])):
        found = sources.of_split(videos, "validation", tuned)
        assert [int(video.name[1:]) for video in found] == held
    with pytest.raises(InputError, match="no such videos.*; fine-tune it with --hold-out"):
        sources.of_split(videos, "validation", config(task="classify"))
    own = Video("own", "validation")
    assert sources.of_split([*videos, own], "validation", config(task="classify")) == [own]
    assert sources.of_split(videos, "test") == videos[30:]
    whole = [video._replace(split=None) for video in videos]
    assert sources.of_split(whole, "validation", config()) == whole


class Listed(Source):
    """A data set of a list alone."""

    def __init__(self, *names, found=None, split=None):
        self.lists, self.there = Lists([Video(name, split) for name in names], split="own"), found

    def read_lists(self, args, split):
        return self.lists

    def found(self):
        return self.there


def test_videos_that_are_held_out_or_absent():
    """Catches: --hold-out that a data set forgets; a split by another name; an absent video among
    the used ones, or not named; a list of other videos taken."""
    args = Namespace(data="own", hold_out=0.1)
    source = Listed(*(f"v{i}" for i in range(30)), split="train", found={"v1", "v2", "w"})
    source.paths = {"w": "w.mp4"}
    lists = sources.list_videos(source, args, "train")
    assert len(lists.videos) == 26 and source.split == "train"
    sources.choose(source, lists.videos)
    assert [video.name for video in source.videos] == ["v1", "v2"] and len(source.listed) == 26
    assert source.left_out["v3"][0] == "absent" and len(source.left_out) == 24
    source.there = {"w"}
    with pytest.raises(InputError, match="none of 26 .* is 'v0', there is the video 'w'"):
        sources.choose(source, lists.videos)
    source = Listed("a", "b")
    sources.list_videos(source, args, "train")
    assert source.split == "own"
    with pytest.raises(InputError, match="no video of the split test"):
        sources.list_videos(Listed("a", split="train"), args, "test")


# --- Names ---
@pytest.mark.parametrize("named, lines, tuned, names, labels", [
    ({0: "cut", 1: "fry"}, None, None, ["cut", "fry"], [0, 1, UNKNOWN]),
    ({0: "cut", 2: "fry"}, None, None, ["cut", "fry"], [0, UNKNOWN, 1]),         # 1 has no name
    ({0: "cut", 2: "fry"}, "cut\nfold\nfry\neat", None, ["cut", "fold", "fry", "eat"],
     [0, 1, 2]),                                                       # every line is a candidate
    ({0: "cut", 2: "Fry "}, None, ["cut", "fry"], ["cut", "fry"], [0, UNKNOWN, 1]),
    ({0: "cut", 2: "fry"}, None, ["cut", "fold", "fry"], ["cut", "fold", "fry"], [0, 1, 2]),
    ({}, None, ["cut", "fold", "fry"], ["cut", "fold", "fry"], [0, 1, 2]),
    ({0: "", 2: "fry", 1: "a"}, None, None, ["a", "fry"], [UNKNOWN, 0, 1])])
def test_classes_are_those_with_a_name(tmp_path, capsys, named, lines, tuned, names, labels):
    """Catches: a class without a name as a candidate, or one that --steps names left out; labels
    that are not renumbered with the names; those of a checkpoint taken for other classes."""
    args = Namespace(data="own", annotations="COIN.json", steps=None)
    if lines:
        args.steps = tmp_path / "steps.txt"
        args.steps.write_text(lines)
    lists, found = sources.name_classes(Lists([steps(0, 1, 2)], named), args, tuned)
    assert found == names and [step.label for step in lists.videos[0].steps] == labels
    left_out = labels.count(UNKNOWN)
    told = f"COIN.json: {left_out} of 3 classes have no name and are no candidates\n"
    assert capsys.readouterr().out == (told if left_out else "")


def test_names_that_contradict_the_annotations(tmp_path):
    """Catches: rows of other classes scored; spelling, or classes without a step, refused; a list
    without names scored by numbers."""
    args = Namespace(data="own", annotations="C", steps=tmp_path / "T")
    lists = Lists([steps(0, 2)], {0: "stir", 2: "Fry"})
    args.steps.write_text("Stir \nfold\nfry\nserve\n")
    assert sources.name_classes(lists, args)[1] == ["Stir", "fold", "fry", "serve"]
    for lines, told in (("stir\nfold\nserve\nfry", "T:3: class 3 is 'serve', but 'Fry' in C; line"),
                        ("stir\nfold", "T: 2 names, but 3 classes in C; line i must")):
        args.steps.write_text(lines)
        with pytest.raises(InputError, match=told):
            sources.name_classes(lists, args)
    args.steps = None
    with pytest.raises(InputError, match="the checkpoint:3: class 3 is 'cut', but 'Fry' in C; num"):
        sources.name_classes(lists, args, ["stir", "fold", "cut"])
    with pytest.raises(InputError, match="the checkpoint: 2 names, but 3 classes in C"):
        sources.name_classes(Lists([steps(0, 2)]), args, ["stir", "fold"])
    with pytest.raises(InputError, match="C: its classes have no names; add --steps FILE"):
        sources.name_classes(Lists([steps(0, 2)]), args)


def test_activities_that_contradict_the_checkpoint():
    """Catches: activities in another order scored; their number taken from the videos of a split; a
    list of numbers alone refused."""
    args = Namespace(data="own", annotations="C")
    lists = Lists([], activities={0: "soup", 2: "pizza"})
    assert sources.name_activities(lists, args, config()) == ["soup", "", "pizza"]
    tuned = config(task="activity", names=["Soup", "cake", "pizza", "pie"], classes=(4,))
    assert sources.name_activities(lists, args, tuned) == tuned.names
    published = config(task="activity", classes=(3,))
    assert len(sources.name_activities(lists, args, published)) == 3
    for activities, told in (
            ({0: "pizza", 2: "soup"}, "C: activity 0 is 'pizza'; .* with 'Soup'"),
            ({4: ""}, "C: 5 activities; .*fine-tuned to 4"), ({}, "no activities")):
        with pytest.raises(InputError, match=told):
            sources.name_activities(Lists([], activities=activities), args, tuned)


# --- What a model knows ---
def test_the_teacher_and_the_steps_of_a_model():
    """Catches: another teacher than the model's own; one that looks at clips in vain; the model's
    steps lost, or those of activities."""
    model = weights.load(INCLUDED)
    args = evaluate.parse(["--toy-videos", "2", "--checkpoint", str(INCLUDED)])
    source, _, teacher, texts = sources.open_labeled(args, evaluate.Classify(), model, "cpu",
                                                     "test", looks=False)
    assert teacher is None and len(source.features) == 0 and texts.shape == (40, model.dim)
    first = sources.teacher_of(model).encode_phrases([model.config.first_phrase])[0]
    assert first @ model.phrases[0] > 0.999 * first.norm()
    assert sources.steps_of(model) == [*grammar.STEPS]
    model.config.names, model.config.task = ["stir", "fold"], "forecast"
    assert sources.steps_of(model) == ["stir", "fold"]
    model.config.names, model.config.task = ["soup", "cake"], "activity"
    assert sources.steps_of(model) == [*grammar.STEPS]
    model.config.clip = None
    assert sources.steps_of(model) is None


# --- Who loads whom, and whose a flag is ---
def test_a_data_set_is_imported_when_it_is_asked_for(monkeypatch):
    """Catches: a reader of the method who has to read readers of files first."""
    lines = "import sys, train; print(*sys.modules)"
    printed = subprocess.run([sys.executable, "-c", lines], cwd=ROOT, capture_output=True,
                             text=True, check=True).stdout
    rooms, modules = {"files", "toy", "experiments"}, printed.split()
    assert not rooms & {name.split(".")[0] for name in modules}
    assert len([name for name in modules
                if (ROOT / f"{name.replace('.', '/')}.py").exists() or name in (
                    "support", "weights")]) <= 28
    asked, import_module = [], importlib.import_module

    def note(name):
        asked.append(name)
        return import_module(name)
    monkeypatch.setattr(importlib, "import_module", note)
    train.parse(["--data", "toy"])
    assert "toy.source" in asked and not any(name.startswith("files") for name in asked)


def test_help_has_the_flags_of_all_data_sets(capsys):
    """Catches: a data set whose flags nobody finds; a flag of two that is declared twice."""
    with pytest.raises(SystemExit):
        train.parse(["--stage", "finetune", "--help"])
    text = capsys.readouterr().out
    for group in "toy", "coin, epic", "features, coin, epic", "features, coin":
        assert f"--data {group}:" in text
    assert text.count("  --annotations ") == 1 and "  --captions" not in text
    assert "features, coin: COIN.json, or a released csv; required. epic: the official csv" in (
        " ".join(text.split()))
    assert "(default: 0.001)" in text and "(default: 15.0)" in text


def test_a_flag_of_another_data_set_is_told(capsys):
    """Catches: a flag that is dropped in silence, or called unknown."""
    for line, told in {
            "train.py --captions c": "--captions: --data toy has no such flag; it is for --data "
                                     "howto100m or features",
            "train.py --annotations=a": "unknown: --annotations=a",
            "train.py --data coin": "--data coin: cannot be used to pretrain; that needs",
            "train.py --stage finetune --data howto100m": "cannot be used to finetune; that needs",
            "train.py --data nothing": "--data nothing: must be one of toy, ",
            "evaluate.py --captoins c": "unknown: --captoins c; see --help",
            "evaluate.py --toy-videos 3 --data epic --annotations . --videos .":
                "--toy-videos: --data epic has no such flag; it is for --data toy"}.items():
        assert told in fails(capsys, *line.split()), line
