"""The files of `python -m toy export` from end to end: mp4, captions, COIN.json, a CLIP folder."""
import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
from safetensors.torch import load_file, save_file

from commands import EPOCHS, call, fails, measure, read_json, read_rows
from data import View
from evaluation import labeled
from files import check, sources
from files.video import duration, evaluation_view, read_frames
from support.command import BadInput
from toy import grammar, render
from weights.teacher import open_teacher

TINY = ("--batch", "4", *EPOCHS, "--device", "cpu")
VIDEOS = ("--videos", "ex/videos")
CLIP = ("--clip", "local-dir:ex/clip")
TRAIN = ("--data", "howto100m", *VIDEOS, "--captions", "ex/captions", "--phrases",
         "ex/phrases.txt", *CLIP, *TINY, "--size", "small")
COIN = ("--data", "coin", *VIDEOS, "--device", "cpu", "--annotations", "ex/COIN.json")
TRAINED, TEST = ([grammar.make_video(split, i) for i in range(count)]
                 for split, count in (("train", 12), ("test", 3)))
STEPS = sum(len(video.steps) for video in TEST)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The exported world in ex/, a run on it in real/: a narration is removed, an id is nowhere."""
    folder = tmp_path_factory.mktemp("real")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        call("toy", "export", "--out", "ex", "--train", "12", "--test", "3")
        Path(f"ex/captions/{TRAINED[0].name}.csv").unlink()
        Path("ids.txt").write_text(Path("ex/train.txt").read_text() + "nowhere\n")
        call("train.py", *TRAIN, "--ids", "ids.txt", "--out", "real", "--workers", "2")
    return folder


@pytest.fixture(autouse=True)
def linked(exported, here):
    """The exported world and the run in the current folder, which is a new one."""
    for name in ("ex", "real"):
        Path(name).symlink_to(exported / name)


def evaluate(*flags):
    """The JSON of an evaluation of the run."""
    return measure(*COIN, "--checkpoint", "real", *flags)


def copy_videos(folder, *videos):
    """Some of the videos, with a broken one after them."""
    Path(folder).mkdir()
    for video in videos:
        shutil.copy(f"ex/videos/{video.name}.mp4", folder)
    Path(f"{folder}/broken.mp4").write_bytes(b"no video")


def test_exported_files_are_those_of_the_embedded_world():
    """Catches: lossy files, times that drift; ids from 0, a wrong split; a forgotten video."""
    video = TRAINED[1]
    frames = render.render(video).astype(int)
    times = (np.arange(len(frames)) + .5) / render.FPS
    read = read_frames(Path(f"ex/videos/{video.name}.mp4"), times)
    shown = evaluation_view(read, render.SIZE).numpy().astype(int)
    assert abs(shown - frames).mean() < 1 < abs(shown[1:] - frames[:-1]).mean()
    database = read_json("ex/COIN.json")["database"]
    assert len(database) == 15 and Path("ex/steps.txt").read_text() == "".join(
        f"{step}\n" for step in grammar.STEPS)
    for split, video in (("training", TRAINED[3]), ("testing", TEST[2])):
        entry = database[video.name]
        assert entry["subset"] == split
        assert [int(row["id"]) - 1 for row in entry["annotation"]] == [
            step.label for step in video.steps]
        lines = Path(f"ex/captions/{video.name}.csv").read_text().splitlines()
        assert len(lines) == len(render.narrate(video)) + 1
    assert read_json("real/missing.json") == [TRAINED[0].name, "nowhere"]


def test_targets_of_what_is_said():
    """Catches: --targets or --phrases that does not arrive; a narration lost in a worker."""
    Path("pool.txt").write_text("Add the salt.\nStir the egg.\nFry the egg in a pan.\n")
    world = (*TINY, "--toy-videos", "8", "--phrases", "pool.txt")
    losses, counts, one = [], [], ("--order", "none", "--epochs", "0")
    for flags, targets in ((TRAIN, "both"), (TRAIN, "vision"), (TRAIN, "narration"),
                           (world, "vision"), (world, "narration")):
        out = Path(f"run-{len(losses)}")
        call("train.py", *flags, *one, "--targets", targets, "--out", f"{out}")
        losses.append(read_rows(out)[0]["loss"])
        model = torch.load(out / "checkpoint.pt", weights_only=True)["model"]
        counts.append(len(model["phrases"]))
    assert len({*losses}) == 5 and counts == 3 * [len(grammar.PHRASES)] + [3, 3]


def test_coin_videos_and_a_released_list_are_evaluated(monkeypatch, capsys):
    """Catches: samples or classes gone astray; prompts read twice; a csv's history cut wrongly."""
    opened, create = [], open_clip.create_model
    monkeypatch.setattr(open_clip, "create_model",
                        lambda *args, **flags: opened.append(args) or create(*args, **flags))
    labeled.cached_teacher.cache_clear()
    Path("next.csv").write_text("".join(
        f"some/where/{video.name} {then.label} {video.duration} 0 {now.end}\n" for video in TEST
        for now, then in zip(video.steps, video.steps[1:])))
    steps = ("--steps", "ex/steps.txt")
    by_csv, forecast = (evaluate("--annotations", path, *steps)
                        for path in ("next.csv", "ex/COIN.json"))
    assert "unnamed" not in capsys.readouterr().out
    classify = evaluate("--task", "classify")
    shown = {step.label for video in TRAINED + TEST for step in video.steps}
    assert f"unnamed: {40 - len(shown)} of 40 classes" in capsys.readouterr().out
    assert len(opened) == 1
    for result, listed in ((by_csv, STEPS - 3), (forecast, STEPS - 3), (classify, STEPS)):
        assert [result[key] for key in ("listed", "evaluated", "missing", "unreadable",
                                        "classes")] == [listed, listed, 0, 0, 40]
    assert forecast["baselines"]["clip"] is not None and forecast["baselines"]["bigram"] is None
    assert classify["top1"]["teacher"] is not None
    assert by_csv["top1"]["zero_noise"] == forecast["top1"]["zero_noise"]
    assert by_csv["top5"] == forecast["top5"]


def test_fine_tuned_from_video_files():
    """Catches: other windows than evaluation's; class names or a teacher asked for without need."""
    for name, videos in (("train.csv", TRAINED), ("test.csv", TEST)):
        Path(name).write_text("".join(f"a/{v.name} {v.activity} {v.duration}\n" for v in videos))
    listed = ("--task", "activity", "--annotations")
    rows = []
    for trained, tested in ((("--task", "classify"),) * 2, ((*listed, "train.csv"),
                                                            (*listed, "test.csv"))):
        call("train.py", "--stage", "finetune", *COIN, "--epochs", "1", "--batch", "8", "--init",
             "real", *trained, "--workers", "2", "--out", f"tuned-{len(rows)}")
        rows.append(evaluate(*tested, "--checkpoint", f"tuned-{len(rows)}"))
    assert [row["setting"] for row in rows] == ["fine-tuned"] * 2
    assert [row["evaluated"] for row in rows] == [STEPS, 3]
    assert rows[0]["top1"]["teacher"] is not None and list(rows[1]["top1"]) == ["ours"]


def test_missing_and_unreadable_videos_are_counted(capsys):
    """Catches: another video in place of a broken one, a score without its count."""
    copy_videos("some", TEST[2])
    whole = Path(f"ex/videos/{TEST[1].name}.mp4").read_bytes()
    Path(f"some/{TEST[1].name}.mp4").write_bytes(whole[:len(whole) // 3])
    some = ("--videos", "some", "--task", "classify")
    result = evaluate(*some, "--max-unreadable", "0.6")
    assert (result["missing"], result["unreadable"]) == (1, 1)
    assert result["evaluated"] == len(TEST[2].steps) < result["listed"]
    with pytest.raises(SystemExit) as end:
        evaluate(*some)
    assert end.value.code == 2 and TEST[1].name in capsys.readouterr().err.splitlines()[-1]
    for flags, found in ((("--videos", "some"), [2, 1, 1]), ((), [None] * 3)):
        call("files", "check", *COIN[-2:], *flags, "--json", "check.json")
        counts = read_json("check.json")
        assert counts["classes"] == 40 >= counts["distinct_texts"]
        assert counts["classify"]["test"] == {"listed": STEPS, "videos": 3, **dict(
            zip(("found", "missing", "unreadable"), found))}


def test_check_names_classes_without_a_step(capsys):
    """Catches: a class that nobody can be right about, without a word: COIN has one of 778."""
    for ids in (["1", "2"], ["2", "4"]):
        steps = [{"id": number, "segment": [int(number), 9], "label": "stir"} for number in ids]
        Path("few.json").write_text(json.dumps({"database": {"v": {
            "subset": "training", "recipe_type": 0, "annotation": steps}}}))
        call("files", "check", "--annotations", "few.json")
        out = capsys.readouterr().out
        assert ("unnamed: 2 of 4 classes that no step has, the first id 1: " in out) == ("4" in ids)


@pytest.mark.parametrize("argv, named", [
    *((("train.py", *TRAIN, "--out", "run", flag, name), name.removeprefix("local-dir:"))
      for flag, name in (("--clip", "local-dir:nowhere"), ("--captions", "ex/clip"),
                         ("--teacher-features", "nowhere"))),
    *((("evaluate.py", *COIN, "--checkpoint", "real", "--steps", f"{names}.txt"), named)
      for names, named in (("few", "39 names, but ex/COIN.json has 40 classes"),
                           ("many", "41 names, but ex/COIN.json has 40 classes"),
                           ("turned", "turned.txt: class "))),
    (("files", "shrunk"), "shrunk"), (("files",), "nothing"),
    (("toy", "export", "--out", "ex"), "ex: not empty"),
    (("files", "shrink", "--videos", "ex/clip", "--out", "none"), "ex/clip")])
def test_what_is_not_there_is_one_line(argv, named, capsys):
    """Catches: a traceback, a folder that is overwritten, a command nobody knows; scores with the
    texts of other classes, or with one class more."""
    names = *grammar.STEPS,
    for file, lines in (("few", names[1:]), ("many", (*names, "x")), ("turned", names[::-1])):
        Path(f"{file}.txt").write_text("\n".join(lines))
    assert named in fails(capsys, 2, *argv)


@pytest.mark.parametrize("command, flags", [("shrink", ("--short-side", "16")), ("teach", CLIP)])
def test_each_video_gets_a_file_once(command, flags, capsys):
    """Catches: a file made twice, or kept where settings or video changed; another's replaced."""
    def times():
        return {path: path.stat().st_mtime_ns for path in sorted(Path("made").iterdir())}
    copy_videos("some", *TEST)
    argv = (command, "--videos", "some", "--out", "made", *flags)
    call("files", *argv)
    assert "unreadable: broken: " in capsys.readouterr().out
    made = times()
    assert [path.stem for path in made] == [video.name for video in TEST]
    gone, path, broken = made
    gone.unlink()
    half = broken.read_bytes()[:broken.stat().st_size // 2]
    broken.write_bytes(half)
    call("files", *argv)
    out = capsys.readouterr().out
    assert f"{broken}: is in the way" in out and broken.read_bytes() == half
    assert "1 made, of these 0 again (" in out and "), 1 were there and whole, 2 unreadable" in out
    broken.unlink()
    call("files", *argv)
    assert [time == made[path] for path, time in times().items()] == [False, True, False]
    os.utime(f"some/{path.stem}.mp4", ns=(0, 0))                  # another file in its place
    call("files", *argv)
    assert "1 made, of these 1 again (" in capsys.readouterr().out
    assert times()[path] != made[path]
    gone.unlink()
    original = Path(f"some/{gone.stem}.mp4")
    content = original.read_bytes()
    gone.symlink_to(original.resolve())                           # would be written through
    if command == "shrink":
        call("files", *argv, "--fps", "2")
    else:
        shutil.copytree("ex/clip", "other")
        other = Path("other/open_clip_model.safetensors")
        weights = load_file(other)
        save_file(weights | {"logit_scale": weights["logit_scale"] + 1}, other)
        call("files", *argv[:-1], "local-dir:other")
    assert "2 made, of these 2 again (" in capsys.readouterr().out
    assert original.read_bytes() == content
    source = Path(f"ex/videos/{path.stem}.mp4")
    if command == "shrink":
        assert read_frames(path, [0.0]).shape[-1] <= 18 < read_frames(source, [0.0]).shape[-1]
        return
    teacher, rows = open_teacher("local-dir:ex/clip"), np.load(path)["rows"]
    assert rows.dtype == np.float16 and len(rows) == round(duration(source))
    for second in (0, 7, len(rows) - 1):
        frame = evaluation_view(read_frames(source, [second + 0.5]), teacher.size)
        np.testing.assert_allclose(teacher.encode_frames(frame)[0], rows[second], atol=2e-3)


@pytest.mark.parametrize("command, flags", [("shrink", ()), ("teach", CLIP)])
def test_videos_in_odd_places(command, flags, capsys):
    """Catches: a pipe that is waited for; a name too long; a copy of itself, through a link."""
    Path("some").mkdir()
    Path("made").mkdir()
    name, film = TEST[0].name, f"ex/videos/{TEST[0].name}.mp4"
    shutil.copy(film, f"some/{'x' * 240}.mp4")
    os.mkfifo("some/pipe.mp4")
    Path("some/z").mkdir()
    shutil.copy(film, f"some/z/{name}.mp4")
    argv = command, "--videos", "some", "--out", "made", *flags
    call("files", *argv)
    out = capsys.readouterr().out
    assert "pipe.mp4: no such file, or not a file" in out
    assert "name is too long" in out and "1 made" in out
    if command == "shrink":
        Path("some/a").symlink_to(Path("made").resolve())
        before = Path(f"made/{name}.mp4").read_bytes()
        with pytest.raises(SystemExit, match="2"):
            call("files", *argv, "--fps", "2")
        assert Path(f"made/{name}.mp4").read_bytes() == before


def test_cached_teacher_features_are_used_where_present():
    """Catches: features of another second, video or teacher, frames decoded for nothing."""
    call("files", "teach", *VIDEOS, "--out", "made", *CLIP)
    teacher = open_teacher("local-dir:ex/clip")
    _, cached, *_, other = sorted(Path("made").glob("train*"))     # the first has no narration
    other.unlink()                                     # it is shown to the teacher instead
    windows = np.array([[2.0, 10.0], [5.0, 9.0]])      # frames at 3, 5, 7, 9 and 5.5, 6.5, 7.5, 8.5

    def features(folder):
        """{id: the teacher's features (2, D)} of the two videos."""
        source = sources.open_folder(Path("ex/videos"), Path("ex/captions"), None, View(32, 4),
                                     teacher, folder and Path(folder))
        requests = [(i, windows) for i, video in enumerate(source.videos)
                    if video.name in (cached.stem, other.stem)]
        rows = source.teacher_features(source.load(requests).views).split(2)
        return {source.videos[i].name: row for (i, _), row in zip(requests, rows)}
    ours, computed, rows = features("made"), features(None), np.load(cached)["rows"]
    expected = [rows[[3, 5, 7, 9]].astype(float).mean(0), rows[5:9].astype(float).mean(0)]
    np.testing.assert_allclose(ours[cached.stem], expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(ours[other.stem], computed[other.stem])   # with others in one pass
    assert not torch.equal(ours[cached.stem], computed[cached.stem])
    call("train.py", *TRAIN, "--teacher-features", "made", "--out", "run")
    made = np.load(cached)["made"]
    for content in (rows * np.nan, rows[0], rows[:0], b"no npz"):
        if isinstance(content, bytes):
            cached.write_bytes(content)
        else:
            np.savez(cached, rows=content, made=made)
        with pytest.raises(BadInput, match=cached.name):
            features("made")
    for stale in (str(made).replace('"teach", ', '"teach", 1'), str(made)[:-1] + "0]", ""):
        np.savez(cached, rows=rows, made=stale)
        assert len(features("made")) == 1              # the other video's


@pytest.mark.parametrize("program, flags, number", [
    ("train.py", (*TRAIN, "--out", "run"), signal.SIGKILL),
    ("files", ("check", "--annotations", "ex/COIN.json", *VIDEOS), signal.SIGSEGV)])
def test_a_worker_that_is_killed_is_reported(program, flags, number, monkeypatch, capsys):
    """Catches: a command that waits for ever for a process that memory or a codec has ended."""
    for module in (sources, check):
        monkeypatch.setattr(module, "read_frames", lambda *args: os.kill(os.getpid(), number))
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        call(program, *flags, "--workers", "2")
    line = capsys.readouterr().err.rstrip("\n").split("\n")[-1].split("\r")[-1]
    assert end.value.code == 2 and "--workers" in line
    assert line.startswith(f"{program}: error: DataLoader worker (pid")
