"""`python -m files`: counts, names, phrases of parses by hand; from files to a score."""
import os
import pickle
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from commands import call, fails, read_json
from test_lists import EPIC, coin, entry
from test_video import write

import train
from data import Pictures
from files.folder import VideoFolder
from sources import list_narrated
from support.read import load_phrases
from support.workers import epoch_order
from toy.source import Toy, load_teacher
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
    """Catches: a particle lost; the object as its lemma; a pronoun or subject; "our salt" and "the
    salt" as two phrases; "no" dropped; --min-count not honored; spaCy absent as a traceback."""
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
    assert "exists; give another name" in fails(capsys, "files", *flags)
    pool.unlink()
    (captions / "c.csv").write_text("no narration")    # promise 21: one of three is above 5 %
    assert "3 narrations, 1 unreadable" in fails(capsys, "files", *flags, "--min-count", "1")

    def no_model(name, exclude):
        raise OSError(f"[E050] Can't find model '{name}'.\nmore lines")
    for module in None, SimpleNamespace(load=no_model):
        monkeypatch.setitem(sys.modules, "spacy", module)
        line = fails(capsys, "files", *flags)
        assert "`pip install spacy` and `python -m spacy download" in line


def test_check_names_what_training_refuses(tmp_path, capsys):
    """Catches: a file at fault that ends the check; an unreadable video passed, a share unsaid."""
    folder = narrate(tmp_path / "v", a=["add salt"], b=["stir", "cut"], late=[], music=["[Music]"],
                     gone=["x"])
    (folder / "gone.csv").write_text("no narration")
    (folder / "late.csv").write_text("start,end,text\n2000,3000,add\n5000,6000,salt\n")     # ms
    for name in "a", "mute", "late", "music":
        write(folder / f"{name}.mp4")                  # 4 s
    (folder / "b.mkv").write_bytes(b"damaged")
    file = tmp_path / "o.json"
    flags = "files", "check", "--data", "howto100m", "--captions", folder, "--videos", folder
    assert "2 of 4 videos are unreadable, more than --max" in fails(capsys, *flags, "--json", file)
    result = read_json(file)
    reasons = result.pop("unreadable_ids")
    assert result == {"captions": 5, "unreadable_captions": 1, "sentences": 5, "hours": 1.67,
                      "seconds_between_captions": 1500.0, "seconds_between_steps": None,
                      "stride": None, "clips_per_video": 0.8,
                      "video_hours": 0.0, "videos": 5, "found": 4, "absent": 1, "unreadable": 2,
                      "absent_ids": ["gone"], "silent_ids": ["music"],
                      "without_captions_ids": ["mute"]}
    assert reasons.keys() == {"b", "gone", "late"} and "gone.csv:1: " in reasons["gone"]
    assert "0 of 2 captions begin before the video ends" in reasons["late"]
    far = entry(("1", [0, 2], "stir"), ("3", [4500, 4600], "cut"), subset="testing")
    (tmp_path / "COIN.json").write_text(coin(a=far))
    call(*flags[:6], "--annotations", tmp_path / "COIN.json", "--json", file)
    assert (read_json(file)["stride"], read_json(file)["clips_per_video"]) == (3, 0.6)
    steps = ("1", [0, 2], "stir"), ("3", [1.5, 3.5], "stir")
    videos = {name: entry(*steps, subset="testing") for name in ("a", "b", "lost")}
    (tmp_path / "COIN.json").write_text(coin(**videos))
    flags = "files", "check", "--annotations", tmp_path / "COIN.json", "--json", file
    assert "1 of 2 videos are unreadable" in fails(capsys, *flags, "--videos", folder)
    result = read_json(file)
    assert result["forecast"]["test"] == {"listed": 3, "videos": 3, "found": 2, "absent": 1,
                                          "unreadable": 1}
    assert (result["classes"], result["distinct_texts"], result["absent_ids"]) == (3, 1, ["lost"])
    (tmp_path / "EPIC_train.csv").write_text(EPIC)
    call("files", "check", "--data", "epic", "--annotations", tmp_path / "EPIC_train.csv", "--json",
         file)
    assert read_json(file) == {"segments": {"train": 2}, "verbs": 97, "nouns": 300, "videos": 1,
                               "found": None, "absent": None, "unreadable": None,
                               "absent_ids": None, "unreadable_ids": {}}
    call("files", "check", "--data", "toy", "--toy-videos", "2", "--json", file)
    found = read_json(file)
    assert found["forecast"]["validation"]["listed"] == 14 and "activity" in found
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Toy, "has", ("steps", "names"))      # a data set without activities
        call("files", "check", "--data", "toy", "--toy-videos", "2", "--json", file)
    assert "forecast" in read_json(file) and "activity" not in read_json(file)


def test_what_is_not_there_or_not_read_is_one_line(here, capsys, monkeypatch):
    """Catches: a traceback; other videos counted in silence; CLIP fetched in vain; a flag that is
    dropped in silence: captions of COIN, videos beside features."""
    monkeypatch.setattr(train, "open_teacher", lambda *args: pytest.fail("downloaded"))
    narrate(here / "captions", a=["add salt"])
    Path("other").mkdir()
    Path("other/b.mp4").touch()
    Path("F").touch()
    check, tune = "files check --data", "train.py --stage finetune --data"
    pretrain = "train.py --data howto100m --phrases F"
    for line, reason in {
            f"{check} howto100m": "--captions", f"{check} howto100m --captions gone": "gone",
            f"{check} howto100m --captions captions --videos gone":
                "argument --videos: gone: no such file or folder",
            f"{check} howto100m --captions captions --videos other":
                "listed is 'a', there is the video 'b'",
            f"{check} howto100m --captions captions --workers -3": "-3: must be at least 0",
            "files check --annotations gone": "gone",
            f"{pretrain} --videos gone --captions gone": "gone",
            f"{pretrain} --videos other": "required: --captions",
            f"{pretrain} --videos other --captions captions": "F: the file is empty",
            "train.py --data howto100m --videos other --captions captions": "required: --phrases",
            "train.py --init gone": "gone", "predict.py gone.mp4": "gone",
            "evaluate.py --checkpoint gone": "gone",
            f"{check} coin --annotations F --captions F": "--captions: --data coin has no such",
            "train.py --ids F": "--ids: --data toy has no such",
            "train.py --data features --features F --captions F --phrases F --videos F":
                "--videos: --data features has no such",
            f"{tune} epic --annotations F --videos F --steps F": "--steps: --data epic has no such",
            "evaluate.py --data coin --annotations F --videos F --features F":
                "--features: --data coin has no such"}.items():
        told = fails(capsys, *line.split())
        assert reason in told, told


def test_the_commands_are_listed(capsys):
    """Catches: a command that `python -m files --help` does not name."""
    for program, names in ("files", ("check", "phrases")), ("toy", ("export", "teacher")):
        with pytest.raises(SystemExit):
            call(program, "--help")
        lines = capsys.readouterr().out.splitlines()
        for name in names:
            assert any(line.strip().startswith(f"{name} ") for line in lines), name


# --- From files to a score ---
FILES = ("--size", "small", "--videos", "world/videos", "--captions", "world/captions",
         "--phrases", "world/phrases.txt", "--ids", "world/train.txt", "--clip",
         "local-dir:world/clip", "--tau", "0.045", "--sgd-epochs", "0", "--epochs", "1", "--device",
         "cpu")
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
def world(here, monkeypatch):
    """Ten videos to train on and two to test, as files. They know no look-alikes: none counts."""
    monkeypatch.setattr(Truth, "as_one", torch.arange(len(Truth.steps)))
    call("toy", "export", "--out", "world", "--train", "10", "--test", "2")


def test_scores_of_files_are_those_of_memory(world):
    """Catches: what a file tells otherwise; another teacher; --ids ignored; a source that cannot be
    sent to a worker."""
    source = list_narrated(train.parse(["--data", "howto100m", *FILES]))
    source.open(Pictures(32, 4), load_teacher("cpu"))
    pickle.dumps(source)                               # as for a spawned worker
    call("train.py", "--data", "howto100m", *FILES, "--workers", "1", "--out", "run")
    settings = read_json("run/config.json")["settings"]
    assert settings["list of videos"].startswith("10 (")                   # of 12: --ids
    for task in "forecast", "classify":
        assert same_scores("run", task, 2, "--data", "coin", *LABELED)


def test_a_run_goes_on_without_a_video_that_kills_its_worker(world, forked, monkeypatch, capsys):
    """Catches: a run that waits for a killed worker for good; another video named; one left out
    that is opened, counts as unreadable, or is not listed; other videos than the run's."""
    Path("world/videos/train_00009.mp4").unlink()
    first, read, slow = f"train_{epoch_order(9, 0, 0)[0]:05}", VideoFolder.pictures_of, [1]

    def kill(path, *args):
        if path.stem in (first, "test_00000"):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(sum(slow))                          # another worker still reads
        return read(path, *args)
    monkeypatch.setattr(VideoFolder, "pictures_of", staticmethod(kill))
    start = "train.py", "--data", "howto100m", *FILES, "--out", "run", "--workers"
    line = fails(capsys, *start, "2")
    assert "DataLoader worker" in line and f"--skip {first} " in line
    slow.clear()
    flags = *start, "0", "--resume", "--skip", first
    call(*flags)
    left_out = {name: kind for name, (kind, _) in read_json("run/left_out.json").items()}
    assert left_out == {first: "skipped", "train_00009": "absent"}
    assert not Path("run/unreadable.txt").exists()
    assert read_json("run/config.json")["settings"]["list of videos"].startswith("9 (")
    Path("world/train.txt").write_text("train_00000\ntrain_00002\n")
    assert "has list of videos 9 (sha256" in fails(capsys, *flags[:-2])
    line = fails(capsys, "evaluate.py", "--data", "coin", *LABELED, "--checkpoint", "run",
                 "--workers", "1")
    assert "DataLoader worker" in line and "--skip test_00000" in line
