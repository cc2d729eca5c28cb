"""`python -m files`: counts, names, phrases of parses by hand; from files to a score."""
import multiprocessing
import os
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import sources
import toy.__main__
import train
from commands import call, fails, read_json
from files.lists import count_coin, list_labeled, load_phrases
from files.sources import VideoSource
from files.video import pictures_of
from test_lists import coin, entry
from test_train import same_run
from test_video import write
from toy.__main__ import BORDER
from toy.truth import Truth

# Of each text: its tokens (text, part of speech, relation, its head's place, lemma if another), and
# the places of its noun chunks.
PARSES = {" ".join(token.split()[0] for token in tokens.split("|")): (tokens, chunks)
          for tokens, chunks in [
    ("Take VERB ROOT 0 take|off ADP prt 0|the DET det 3|covers NOUN dobj 0 cover", [(2, 4)]),
    ("we PRON nsubj 1|put VERB ROOT 1|a DET det 3|link NOUN dobj 1|in ADP prep 1|the DET det 6|"
     "Box NOUN pobj 4|for ADP prep 1|you PRON pobj 7", [(0, 1), (2, 4), (5, 7), (8, 9)]),
    ("adding VERB ROOT 0 add|our PRON poss 2|salt NOUN dobj 0|take VERB conj 0|no DET det 5|"
     "salt NOUN dobj 3|from ADP prep 3|it PRON pobj 6", [(1, 3), (4, 6), (7, 8)]),
    ("stirring VERB ROOT 0 stir|it PRON dobj 0|gently ADV advmod 0", [(1, 2)])]}


def parse(text):
    """What the rule reads of a spacy Doc."""
    words, chunks = PARSES[text]
    words = [word.split() for word in words.split("|")]
    tokens = [SimpleNamespace(i=i, text=word[0], text_with_ws=f"{word[0]} ", pos_=word[1],
                              dep_=word[2], lemma_=(word + word[:1])[4])
              for i, word in enumerate(words)]
    for token, word in zip(tokens, words):
        token.head = tokens[int(word[3])]
        token.children = [t for t, w in zip(tokens, words) if int(w[3]) == token.i != t.i]
    doc = type("Doc", (list,), {})(tokens)
    doc.noun_chunks = [type("Span", (list,), {"root": tokens[end - 1]})(tokens[begin:end])
                       for begin, end in chunks]
    return doc


def narrate(folder, **videos):
    """A folder of ID.csv, each with these texts."""
    folder.mkdir()
    for name, texts in videos.items():
        rows = "".join(f"0,1,{text}\n" for text in texts)
        (folder / f"{name}.csv").write_text("start,end,text\n" + rows)
    return folder


def test_phrases_are_counted_and_sorted(tmp_path, monkeypatch, capsys):
    """Catches: a particle lost; the object as its lemma; a pronoun or subject; a preposition; "our
    salt" and "the salt" as two phrases; "no" dropped. Counts per video, --min-count not honored."""
    take, put, add, it = PARSES
    captions = narrate(tmp_path / "captions", a=[take, put, take], b=[take, add, it], c=[])
    monkeypatch.setitem(sys.modules, "spacy", SimpleNamespace(load=lambda name, exclude: (
        {"en_core_web_sm": SimpleNamespace(pipe=lambda texts: map(parse, texts))}[name])))
    pool = tmp_path / "pool.txt"
    flags = "phrases", "--captions", captions, "--out", pool
    assert "lower --min-count" in fails(capsys, "files", *flags)
    call("files", *flags, "--min-count", "1")
    assert load_phrases(pool) == [
        "take off covers", "add salt", "put link in box", "take no salt from it"]
    (captions / "c.csv").write_text("no narration")    # promise 21: one of three is above 5 %
    assert "3 narrations, 1 unreadable" in fails(capsys, "files", *flags, "--min-count", "1")


def test_spacy_is_not_installed(monkeypatch, capsys):
    """Catches: ImportError, or spaCy's own error about a model, as a traceback."""
    def no_model(name, exclude):
        raise OSError(f"[E050] Can't find model '{name}'.\nmore lines")
    for module in None, SimpleNamespace(load=no_model):
        monkeypatch.setitem(sys.modules, "spacy", module)
        line = fails(capsys, "files", "phrases", "--captions", "x", "--out", "no.txt")
        assert "`pip install spacy` and `python -m spacy download" in line


def test_check_names_what_training_refuses(tmp_path, capsys):
    """Catches: a file at fault that ends the check, or is not named; a video that training finds
    unreadable passed; a video without a caption; a share above 5% unsaid."""
    folder = narrate(tmp_path / "v", a=["add salt"], b=["stir", "cut"], late=[], music=["[Music]"],
                     gone=["x"])
    (folder / "gone.csv").write_text("no narration")
    (folder / "late.csv").write_text("start,end,text\n2000,3000,add\n5000,6000,salt\n")     # ms
    for name in "a", "mute", "late", "music":
        write(folder / f"{name}.mp4")                  # 4 s
    whole = write(tmp_path / "b.mkv").read_bytes()
    (folder / "b.mkv").write_bytes(whole[:len(whole) // 2])
    file = tmp_path / "o.json"
    flags = "files", "check", "--data", "howto100m", "--captions", folder, "--videos", folder
    assert "2 of 3 videos are unreadable, more than --max" in fails(capsys, *flags, "--json", file)
    result = read_json(file)
    reasons = result.pop("unreadable_ids")
    assert result == {"captions": 5, "unreadable_captions": 1, "sentences": 5, "hours": 1.67,
                      "video_hours": 0.0, "videos": 5, "found": 4, "absent": 1, "unreadable": 2,
                      "absent_ids": ["gone"], "silent_ids": ["music"],
                      "without_captions_ids": ["mute"]}
    assert reasons.keys() == {"b", "gone", "late"} and "gone.csv:1: " in reasons["gone"]
    assert re.search("b.mkv: (ends|damaged)", reasons["b"])
    assert "0 of 2 captions begin before the video ends" in reasons["late"]
    steps = ("1", [0, 2], "stir"), ("3", [1.5, 3.5], "stir")
    videos = {name: entry(*steps, subset="testing") for name in ("a", "b", "lost")}
    (tmp_path / "COIN.json").write_text(coin(**videos))
    coin_flags = "files", "check", "--annotations", tmp_path / "COIN.json", "--json", file
    call(*coin_flags)
    assert read_json(file)["forecast"]["test"]["found"] is None
    assert "1 of 2 videos are unreadable" in fails(capsys, *coin_flags, "--videos", folder)
    result = read_json(file)
    assert result["forecast"]["test"] == {"listed": 3, "videos": 3, "found": 2, "absent": 1,
                                          "unreadable": 1}
    assert (result["classes"], result["distinct_texts"], result["absent_ids"]) == (3, 2, ["lost"])


def test_what_is_not_there_is_one_line(here, capsys, monkeypatch):
    """Catches: a traceback for a file or folder that does not exist, or for a flag left out; a
    folder of other videos that is counted in silence; CLIP fetched for a run that cannot begin."""
    monkeypatch.setattr(train, "open_teacher", lambda *args: pytest.fail("downloaded"))
    captions, other = narrate(here / "captions", a=["add salt"]), here / "other"
    other.mkdir()
    (other / "b.mp4").touch()
    check = "files", "check", "--data", "howto100m", "--captions"
    pretrain = "train.py", "--data", "howto100m", "--videos", "gone"
    for argv, reason in (
            (check[:4], "needs --captions"), ((*check, "gone"), "gone"),
            ((*check, captions, "--videos", "gone"), "gone: no such folder"),
            ((*check, captions, "--videos", other), "listed is 'a', there is 'b'"),
            (("files", "check", "--annotations", "gone"), "gone"),
            ((*pretrain, "--captions", "gone", "--phrases", "gone"), "gone"),
            (("train.py", "--init", "gone"), "gone"), (("predict.py", "gone.mp4"), "gone"),
            (("evaluate.py", "--checkpoint", "gone"), "gone")):
        assert reason in fails(capsys, *argv)


@pytest.mark.parametrize("command, flag, others", [
    ("files check --data coin --annotations a", "captions", "howto100m, features"),
    ("files check --data howto100m --captions c", "annotations", "features, coin, epic"),
    ("train.py --data toy", "ids", "howto100m, features"),
    ("train.py --data howto100m --videos v --captions c --phrases p", "features", "features"),
    ("train.py --data features --features f --captions c --phrases p", "videos", "coin, epic"),
    ("train.py --stage finetune --data toy", "skip", "howto100m, features, coin, epic"),
    ("train.py --stage finetune --data epic --annotations a --videos v", "steps", "features, coin"),
    ("evaluate.py --data coin --annotations a --videos v", "features", "features"),
    ("evaluate.py --data features --annotations a --features f", "videos", "coin, epic")])
def test_a_file_that_is_not_read_is_refused(here, capsys, command, flag, others):
    """Catches: a flag that is dropped in silence: captions of COIN, videos beside features."""
    line = fails(capsys, *command.split(), f"--{flag}", "F")
    assert f" has no --{flag}; another --data has: " in line and line.endswith(f" {others}")


# --- From files to a score ---
FILES = ("--size", "small", "--videos", "world/videos", "--captions", "world/captions",
         "--phrases", "world/phrases.txt", "--ids", "world/train.txt", "--clip",
         "local-dir:world/clip", "--tau", "0.045", "--epochs", "1", "--device", "cpu")
LABELED = ("--annotations", "world/COIN.json", "--videos", "world/videos", "--steps",
           "world/steps.txt")


def same_scores(checkpoint, task, count, *flags):
    """Whether all test videos of files are scored as so many of the toy world in memory."""
    found = []
    for given in flags, ("--toy-videos", count):
        call("evaluate.py", "--task", task, *given, "--checkpoint", checkpoint, "--device", "cpu",
             "--json", "o.json")
        result = read_json("o.json")
        found.append([result.get(key) for key in ("top1", "top5", "by_class", "evaluated")])
    return found[0] == found[1] and result["evaluated"] > 5 * count


@pytest.fixture
def told_apart(monkeypatch):
    """Look-alikes do not count as one, since files do not know them."""
    monkeypatch.setattr(Truth, "first", torch.arange(len(Truth.steps)))


def test_scores_of_files_are_those_of_memory(here, start_method, told_apart):
    """Catches: pictures, captions or annotations that a file tells otherwise; another teacher or
    order of the clips; --ids ignored; workers that need what only the command has, or that read
    something else if they are spawned."""
    call("toy", "export", "--out", "world", "--train", "16", "--test", "4")
    methods = {"fork", "spawn"} & {*multiprocessing.get_all_start_methods()}
    for method in methods:
        start_method(method)
        call("train.py", "--data", "howto100m", *FILES, "--workers", "2", "--out", method)
    assert all(same_run(method, "spawn") for method in methods)
    settings = read_json("spawn/config.json")["settings"]
    assert settings["list of videos"].startswith("16 (")                   # of 20: --ids
    for task in "forecast", "classify":
        assert same_scores("spawn", task, 4, "--data", "coin", *LABELED)


class Folders(VideoSource):
    """A data set of one's own: each video is a folder of pictures, one each 2 s."""

    @staticmethod
    def duration_of(path):
        return 2.0 * len([*path.iterdir()])

    @staticmethod
    def pictures_of(path, times, short_side=None):
        pictures = [Image.open(path / f"{int(time / 2)}.png") for time in times]
        return torch.from_numpy(np.stack(pictures).transpose(0, 3, 1, 2))


def find_folders(folder):
    return {path.name: path for path in folder.iterdir()}


def open_labeled(args, task, model, split, teacher=None):
    videos, names = list_labeled(args, task, split, model.config)
    return Folders(videos, find_folders(args.videos), pictures_of(model.encoder), teacher), names


def test_a_data_set_of_ones_own_is_a_source_and_a_line(here, monkeypatch, told_apart):
    """Catches: a name, a reader of files or a flag of --data that is fixed outside of the table; a
    hook of the source, or its split, that a command does not ask."""
    def write_pictures(path, frames):
        path.with_suffix("").mkdir()
        for k, picture in enumerate(frames.transpose(0, 2, 3, 1)):
            picture = np.pad(picture, (BORDER, BORDER, (0, 0)), "edge")
            Image.fromarray(picture).save(path.with_suffix("") / f"{k}.png")
    monkeypatch.setattr(toy.__main__, "write_video", write_pictures)
    monkeypatch.setitem(sources.DATA, "own", sources.Data(                 # the line
        sources.Way(sources.folder(Folders, find_folders, "videos"),
                    ("videos", "captions", "phrases"), ("ids",)),
        sources.Way(open_labeled, ("videos", "annotations"), ("steps",)),
        count=count_coin, kind=Folders, find=find_folders))
    call("toy", "export", "--out", "world", "--train", "8", "--test", "2")
    data, run = ("--data", "own"), ("--device", "cpu", "--epochs", "1", "--workers", "1")
    call("files", "check", *data, *LABELED[:4], "--json", "o.json")
    assert read_json("o.json")["classify"]["test"]["found"] == 2
    call("train.py", *data, *FILES, *run, "--batch", "4", "--clip", "toy", "--out", "run")
    assert read_json("run/config.json")["settings"]["list of videos"].startswith("8 (")
    call("train.py", "--stage", "finetune", *data, *LABELED, *run, "--init", "run", "--out",
         "tuned")
    for checkpoint, task in ("run", "forecast"), ("tuned", "classify"):
        assert same_scores(checkpoint, task, 2, *data, *LABELED), task


def test_a_run_goes_on_without_a_video_that_kills_its_worker(here, forked, monkeypatch, capsys):
    """Catches: a run that waits for a killed worker for good, or that no resuming can save, since
    its draws are fixed; a video left out that moves the draws of the others, is opened, counts as
    unreadable, or is not listed; other videos than the run's; one that is absent, unsaid."""
    call("toy", "export", "--out", "world", "--train", "10", "--test", "1")
    Path("world/videos/train_00009.mp4").unlink()
    read = VideoSource.pictures_of

    def kill(path, *args):
        if path.stem in ("train_00002", "test_00000"):
            os.kill(os.getpid(), signal.SIGKILL)
        return read(path, *args)
    monkeypatch.setattr(VideoSource, "pictures_of", staticmethod(kill))
    start = "train.py", "--data", "howto100m", *FILES, "--out", "run"
    line = fails(capsys, *start, "--workers", "1")
    assert "while it read train_00002 (leave it out with --skip train_00002)" in line
    flags = *start, "--resume", "--skip", "train_00002"
    call(*flags, "--workers", "1")
    assert read_json("run/unreadable.json") == {"train_00002": "left out by --skip"}
    assert read_json("run/absent.json") == ["train_00009"]
    assert read_json("run/config.json")["settings"]["list of videos"].startswith("9 (")
    Path("world/train.txt").write_text("train_00000\ntrain_00002\n")
    assert "has list of videos 9 (sha256" in fails(capsys, *flags)
    line = fails(capsys, "evaluate.py", "--data", "coin", *LABELED, "--checkpoint", "run",
                 "--workers", "1")
    assert "killed" in line and "while it read test_00000 (leave it out with --skip" in line

