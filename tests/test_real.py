"""Real files from end to end: exported, checked, shrunk, trained on and evaluated by the commands.

The files are those of `data.py export-toy`: real mp4, captions, COIN.json, a CLIP in a folder.
"""
import dataclasses
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import data  # noqa: E402
from files import commands  # noqa: E402
from toy import grammar  # noqa: E402
from toy import render  # noqa: E402
from commands import call, fails, flags_of, make_teacher  # noqa: E402
from support.command import BadInput  # noqa: E402
from pseudo_labels import open_teacher  # noqa: E402
from settings import TrainSettings  # noqa: E402
from settings_optional import ExportSettings  # noqa: E402
from files.video import duration, evaluation_view, read_frames  # noqa: E402

TINY = (*flags_of("batch", 4), *flags_of("epochs", 0.5), "--size", "small", "--device", "cpu")
VIDEOS = ("--videos", "ex/videos")
TRAIN = ("--data", "howto100m", *VIDEOS, "--captions", "ex/captions", "--phrases",
         "ex/phrases.txt", "--clip", "local-dir:ex/clip", *TINY)
COIN = ("--data", "coin", *VIDEOS, "--clip", "local-dir:ex/clip", "--device", "cpu")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the exported world in ex/ and a run trained on it in runs/real."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("real")
    make_teacher(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        commands.export_toy(ExportSettings(out=Path("ex"), train=12, test=3))
        call("train.py", *TRAIN, "--ids", "ex/train.txt", "--out", "runs/real", "--workers", "2")
    yield folder
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def here(place, monkeypatch):
    """Work in that folder."""
    monkeypatch.chdir(place)


def evaluate(*flags):
    """The JSON of an evaluation of runs/real."""
    call("evaluate.py", *COIN, "--checkpoint", "runs/real", "--json", "out.json", *flags)
    return json.loads(Path("out.json").read_text())


def test_exported_pictures_are_those_of_the_embedded_world():
    """Catches: lossy files, a border that the middle view does not cut off, times that drift."""
    video = grammar.make_video("train", 1)
    frames = render.render(video).astype(int)
    times = (np.arange(len(frames)) + .5) / render.FPS
    read = read_frames(Path("ex/videos") / f"{video.name}.mp4", times)
    shown = evaluation_view(read, render.SIZE).numpy().astype(int)
    assert abs(shown - frames).mean() < 1 < abs(shown[1:] - frames[:-1]).mean()


def test_exported_lists_are_those_of_the_embedded_world():
    """Catches: ids that start at 0, a split in the wrong place, captions without words."""
    database = json.loads(Path("ex/COIN.json").read_text())["database"]
    assert len(database) == 15 and Path("ex/steps.txt").read_text().split("\n")[:-1] == [*grammar.STEPS]
    for split, index in (("train", 3), ("test", 2)):
        video = grammar.make_video(split, index)
        entry = database[video.name]
        assert entry["subset"] == {"train": "training", "test": "testing"}[split]
        assert [int(row["id"]) - 1 for row in entry["annotation"]] == list(video.steps)
        said = Path(f"ex/captions/{video.name}.csv").read_text().splitlines()
        assert len(said) == len(render.narrate(video)) + 1


def test_targets_of_what_is_said():
    """Catches: --targets or --phrases that does not arrive, in the embedded world or in real files;
    the narration of a video that is read ahead lost on the way."""
    def first_loss(targets, *flags):
        call("train.py", *flags, "--targets", targets, "--order", "none", "--log-every", "1",
             "--out", "runs/said")
        row = Path("runs/said/metrics.jsonl").read_text().splitlines()[0]
        phrases = torch.load("runs/said/checkpoint.pt", weights_only=True)["model"]["phrases"]
        shutil.rmtree("runs/said")
        return json.loads(row)["loss"], len(phrases)
    Path("pool.txt").write_text("Add the salt.\nStir the egg.\nFry the egg in a pan.\n")
    world = ("--toy-videos", "8", *flags_of("batch", 4), *flags_of("epochs", 0.5), "--device",
             "cpu", "--phrases", "pool.txt")
    both, vision, spoken, toy_vision, toy_spoken = (
        first_loss(targets, *flags) for flags, targets in (
            (TRAIN, "both"), (TRAIN, "vision"), (TRAIN, "narration"),
            (world, "vision"), (world, "narration")))
    assert len({both, vision, spoken}) == 3 and both[1] == len(grammar.PHRASES)
    assert toy_vision != toy_spoken and toy_spoken[1] == 3


@pytest.mark.parametrize("task", ["forecast", "classify"])
def test_coin_videos_are_evaluated(task):
    """Catches: samples or classes that go astray between a file and the table."""
    result = evaluate("--task", task, "--annotations", "ex/COIN.json")
    steps = [len(grammar.make_video("test", i).steps) for i in range(3)]
    listed = sum(steps) - 3 * (task == "forecast")
    assert (result["listed"], result["evaluated"], result["classes"]) == (listed, listed, 40)
    assert result["missing"] == result["unreadable"] == 0
    if task == "forecast":
        assert result["baselines"]["clip"] is not None and result["baselines"]["bigram"] is None
    else:
        assert result["top1"]["teacher"] is not None


def test_a_released_list_is_evaluated():
    """Catches: the history cut at the wrong end, labels counted from 1."""
    rows = []
    for i in range(3):
        video = grammar.make_video("test", i)
        rows += [f"some/where/{video.name} {video.steps[k + 1]} {video.duration} 0 "
                 f"{video.segments[k][1]}" for k in range(len(video.steps) - 1)]
    Path("next.csv").write_text("\n".join(rows) + "\n")
    by_json = evaluate("--annotations", "ex/COIN.json", "--steps", "ex/steps.txt")
    by_csv = evaluate("--annotations", "next.csv", "--steps", "ex/steps.txt")
    assert by_csv["listed"] == by_csv["evaluated"] == len(rows)
    assert by_csv["top1"]["zero_noise"] == by_json["top1"]["zero_noise"]
    assert by_csv["top5"] == by_json["top5"]


FINETUNE = ("--stage", "finetune", *COIN, "--epochs", "1", "--batch", "8", "--init", "runs/real")


def test_steps_are_fine_tuned_from_video_files():
    """Catches: windows of the frozen path that are not those of evaluation; a teacher that is
    asked about every clip."""
    call("train.py", *FINETUNE, "--task", "classify", "--annotations", "ex/COIN.json", "--workers",
         "2", "--out", "runs/steps")
    result = evaluate("--task", "classify", "--annotations", "ex/COIN.json", "--checkpoint",
                      "runs/steps")
    assert result["setting"] == "fine-tuned" and result["top1"]["teacher"] is not None
    assert result["evaluated"] == sum(len(grammar.make_video("test", i).steps) for i in range(3))


def test_activities_of_a_released_list():
    """Catches: class names or a teacher asked for where there is nothing to match; a label that
    the checkpoint does not have."""
    kinds, rows = list(grammar.PROCEDURES), {}
    for split, count in (("train", 12), ("test", 3)):
        videos = [grammar.make_video(split, i) for i in range(count)]
        rows[split] = [f"a/{v.name} {kinds.index(v.procedure)} {v.duration}" for v in videos]
        Path(f"{split}.csv").write_text("\n".join(rows[split]) + "\n")
    flags = ("--data", "coin", *VIDEOS, "--device", "cpu")
    call("train.py", "--stage", "finetune", *flags, "--task", "activity", "--annotations",
         "train.csv", "--epochs", "1", "--batch", "8", "--init", "runs/real", "--out",
         "runs/kinds")
    call("evaluate.py", *flags, "--task", "activity", "--annotations", "test.csv", "--checkpoint",
         "runs/kinds", "--json", "out.json")
    result = json.loads(Path("out.json").read_text())
    assert result["listed"] == result["evaluated"] == 3 and list(result["top1"]) == ["ours"]


def test_missing_and_unreadable_videos_are_counted(capsys):
    """Catches: another video in place of a broken one, a score without its count."""
    names = [grammar.make_video("test", i).name for i in range(3)]
    shutil.copytree("ex/videos", "some", dirs_exist_ok=True)
    Path(f"some/{names[0]}.mp4").unlink()
    whole = Path(f"some/{names[1]}.mp4").read_bytes()
    Path(f"some/{names[1]}.mp4").write_bytes(whole[:len(whole) // 3])
    some = ("--videos", "some", "--annotations", "ex/COIN.json", "--task", "classify")
    result = evaluate(*some, "--max-unreadable", "0.6")
    assert (result["missing"], result["unreadable"]) == (1, 1)
    assert result["evaluated"] == len(grammar.make_video("test", 2).steps) < result["listed"]
    with pytest.raises(SystemExit) as end:
        evaluate(*some)
    assert end.value.code == 2 and names[1] in capsys.readouterr().err.splitlines()[-1]


def test_check_counts_what_is_there():
    """Catches: samples counted for videos, an unreadable file that is no longer found."""
    call("data.py", "check", "--annotations", "ex/COIN.json", "--json", "check.json")
    listed = json.loads(Path("check.json").read_text())
    assert listed["forecast"]["test"]["found"] is None and listed["classes"] == 40
    shutil.copytree("ex/videos", "few", dirs_exist_ok=True)
    Path(f"few/{grammar.make_video('test', 0).name}.mp4").unlink()
    Path(f"few/{grammar.make_video('test', 1).name}.mp4").write_bytes(b"no video")
    call("data.py", "check", "--annotations", "ex/COIN.json", "--videos", "few", "--json",
         "check.json")
    row = json.loads(Path("check.json").read_text())["classify"]["test"]
    steps = sum(len(grammar.make_video("test", i).steps) for i in range(3))
    assert row == {"listed": steps, "videos": 3, "found": 2, "missing": 1, "unreadable": 1}


def test_check_names_classes_without_a_step(capsys):
    """Catches: a class that nobody can be right about among those to choose from, without a word.

    Of COIN's 778 classes one has no step in training.
    """
    for ids in (["1", "2"], ["2", "4"]):
        steps = [{"id": number, "segment": [0, 9], "label": "stir"} for number in ids]
        Path("few.json").write_text(json.dumps({"database": {"v": {
            "subset": "training", "recipe_type": 0, "annotation": steps}}}))
        call("data.py", "check", "--annotations", "few.json")
        said = capsys.readouterr().out
        assert ("unnamed: 2 of 4 classes, that no step has (id 1, 3): " in said) == ("4" in ids)


def test_shrink_makes_copies_and_goes_on_where_it_stopped(capsys):
    """Catches: a copy made twice, a broken file that ends the run, a half-written copy."""
    shutil.copytree("ex/videos", "large", dirs_exist_ok=True)
    for path in sorted(Path("large").iterdir())[3:]:
        path.unlink()
    Path("large/broken.mp4").write_bytes(b"no video")
    flags = ("shrink", "--videos", "large", "--out", "small", "--short-side", "16")
    call("data.py", *flags)
    made = {path: path.stat().st_mtime_ns for path in Path("small").iterdir()}
    assert len(made) == 3 and "broken" in capsys.readouterr().out
    next(iter(made)).unlink()
    call("data.py", *flags)
    again = {path: path.stat().st_mtime_ns for path in Path("small").iterdir()}
    assert sum(again[path] != made[path] for path in made) == 1
    assert read_frames(next(iter(made)), [0.0]).shape[-1] <= 18


TEACH = ("teach", "--videos", "some", "--out", "kept", "--clip", "local-dir:ex/clip")


def test_kept_teacher_features_are_those_of_the_frames(capsys):
    """Catches: a row of another second, a file made twice, a broken video that ends the run."""
    shutil.copytree("ex/videos", "some", dirs_exist_ok=True)
    Path("some/broken.mp4").write_bytes(b"no video")
    call("data.py", *TEACH)
    assert "broken" in capsys.readouterr().out
    made = {path: path.stat().st_mtime_ns for path in sorted(Path("kept").iterdir())}
    assert len(made) == len(list(Path("ex/videos").iterdir()))
    path, gone, *_ = made
    gone.unlink()
    call("data.py", *TEACH)
    assert path.stat().st_mtime_ns == made[path] and gone.stat().st_mtime_ns != made[gone]
    teacher = open_teacher("local-dir:ex/clip")
    rows, source = np.load(path), Path(f"ex/videos/{path.stem}.mp4")
    assert rows.dtype == np.float16 and len(rows) == round(duration(source))
    for second in (0, 7, len(rows) - 1):
        frame = evaluation_view(read_frames(source, [second + 0.5]), teacher.size)
        np.testing.assert_allclose(teacher.encode_frames(frame)[0], rows[second], atol=2e-3)


def test_kept_teacher_features_are_used_where_present(capsys):
    """Catches: features of another second or video, frames decoded for nothing, a file of another
    teacher or none at all that is taken for good."""
    call("data.py", *TEACH)
    teacher = open_teacher("local-dir:ex/clip")
    Path("kept/broken.npy").unlink(missing_ok=True)
    first, *_, last = sorted(Path("kept").iterdir())
    last.unlink()                                      # it is shown to the teacher instead
    settings = TrainSettings(data="howto100m", videos=Path("ex/videos"), phrases=Path("none"),
                               captions=Path("ex/captions"), teacher_features=Path("kept"))
    source = data.open_narrated(settings, 32, 4, teacher)
    windows = np.array([[2.0, 10.0], [5.0, 9.0]])      # frames at 3, 5, 7, 9 and 5.5, 6.5, 7.5, 8.5
    requests = [(v, windows) for v in range(len(source))
                if source.videos[v].name in (first.stem, last.stem)]
    loaded = source.load(requests)
    ours = dict(zip((source.videos[v].name for v, _ in requests),
                    source.teach(loaded.looks).split(2)))
    rows = np.load(first).astype(np.float32)
    np.testing.assert_allclose(ours[first.stem], [rows[[3, 5, 7, 9]].mean(0), rows[5:9].mean(0)],
                               rtol=1e-5)
    settings = dataclasses.replace(settings, teacher_features=None)
    source = data.open_narrated(settings, 32, 4, teacher)
    looked = source.teach(source.load(requests).looks).split(2)
    looked = dict(zip((source.videos[v].name for v, _ in requests), looked))
    torch.testing.assert_close(ours[last.stem], looked[last.stem])     # with others in one pass
    assert not torch.equal(ours[first.stem], looked[first.stem])

    kept = (*TRAIN, "--teacher-features", "kept")
    call("train.py", *kept, "--out", "runs/kept")
    source = data.open_narrated(dataclasses.replace(settings, teacher_features=Path("kept")), 32, 4,
                                teacher)
    for content in (rows[:, 1:], rows * np.nan, rows[0], rows[:0]):
        np.save(first, content)
        with pytest.raises(BadInput, match=first.name):
            source.load(requests)
    first.write_bytes(b"no npy")
    with pytest.raises(BadInput, match=first.name):
        source.load(requests)
    assert "nowhere" in fails(capsys, 2, "train.py", *TRAIN, "--teacher-features", "nowhere",
                              "--out", "runs/never")


@pytest.mark.parametrize("flags, naming", [
    (("--videos", "nowhere"), "nowhere"), (("--captions", "nowhere"), "nowhere"),
    (("--phrases", "nowhere"), "nowhere"), (("--clip", "local-dir:nowhere"), "nowhere"),
    (("--ids", "nowhere"), "nowhere"), (("--captions", "ex/clip"), "ex/clip")])
def test_training_on_files_that_are_not_there(flags, naming, capsys):
    """Catches: a traceback where a flag is wrong."""
    assert naming in fails(capsys, 2, "train.py", *TRAIN, *flags, "--out", "runs/never")


@pytest.mark.parametrize("argv, naming", [
    (("shrunk",), "shrunk"), (("check",), "--annotations"), (("export-toy", "--out", "ex"), "ex"),
    (("shrink", "--videos", "ex/clip", "--out", "none"), "ex/clip")])
def test_data_commands_refuse_in_one_line(argv, naming, capsys):
    """Catches: a folder that is overwritten, a command nobody knows."""
    assert naming in fails(capsys, 2, "data.py", *argv)


def test_listed_videos_without_a_file_or_a_narration_are_missing():
    """Catches: an id of --ids that is forgotten without a word."""
    names = Path("ex/train.txt").read_text().split()[:4]
    Path("ids.txt").write_text("\n".join([*names, "nowhere"]))
    shutil.copytree("ex/captions", "said", dirs_exist_ok=True)
    Path(f"said/{names[0]}.csv").unlink()
    call("train.py", *TRAIN, "--captions", "said", "--ids", "ids.txt",
         *flags_of("epochs", 1), "--out", "runs/ids")
    assert json.loads(Path("runs/ids/missing.json").read_text()) == [names[0], "nowhere"]


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGSEGV"])
@pytest.mark.parametrize("program, flags", [
    ("train.py", (*TRAIN, "--out", "runs/killed")),
    ("data.py", ("check", "--annotations", "ex/COIN.json", *VIDEOS)),
    ("data.py", ("shrink", *VIDEOS, "--out", "killed"))])
def test_a_worker_that_is_killed_is_reported(program, flags, signal, monkeypatch, capsys):
    """Catches: a command that waits for ever for a process that memory or a codec has ended."""
    import os
    import signal as signals
    from files import video

    def killed(*arguments):
        os.kill(os.getpid(), getattr(signals, signal))
    monkeypatch.setattr(video, "read_frames", killed)
    monkeypatch.setattr(video, "shrink", killed)
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        call(program, *flags, "--workers", "2")
    line = capsys.readouterr().err.rstrip("\n").split("\n")[-1]
    assert end.value.code == 2 and "--workers" in line
    assert line.split("\r")[-1].startswith(f"{program}: error: DataLoader worker (pid")


def test_a_forecast_table_loads_one_teacher(monkeypatch):
    """Catches: CLIP and 28 prompts of every class read anew for the second split."""
    from evaluation import inference
    import pseudo_labels
    opened, whole = [], pseudo_labels.open_teacher
    monkeypatch.setattr(pseudo_labels, "open_teacher",
                        lambda *args: opened.append(args) or whole(*args))
    inference.teacher_of.cache_clear()
    evaluate("--annotations", "ex/COIN.json", "--steps", "ex/steps.txt")
    assert len(opened) == 1
