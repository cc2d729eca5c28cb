"""Lists, names and captions: each in its real layout, rolling text, errors with their line."""
import functools
import json
import math
import os
import pickle

import pytest

from data import UNKNOWN, Lists, Step, Video
from files.captions import Captions
from files.lists import load_coin, load_epic, load_ids, load_released_csv
from support.errors import InputError
from support.read import load_names, load_phrases, video_name

STEPS = "th2wZ0W8ulA.mp4 580 163.1434 59.0 65.0\n-INaRI8Nb_E 0 112.2917 0 1\n"
NEXT = "th2wZ0W8ulA.mp4 581 130.0 0 65.0\nth2wZ0W8ulA.mp4 582 130.0 0 84.0\n"
TASK = "coin/4bgWwnZQPaA.mkv 123 157.3572\n-INaRI8Nb_E 98 112.2917\n"
EPIC = ("narration_id,participant_id,video_id,narration_timestamp,start_timestamp,stop_timestamp,"
        "start_frame,stop_frame,narration,verb,verb_class,noun,noun_class,all_nouns,"
        "all_noun_classes\n"
        "P01_11_0,P01,P01_11,00:00:00.560,00:00:00.00,00:00:01.89,1,113,take plate,take,0,plate,2,"
        "\"['plate', 'cup']\",\"[2, 13]\"\n"
        "P01_11_1,P01,P01_11,,01:02:03.5,01:02:04,1,2,open tap,open,96,tap,299,['tap'],[0]\n")


def written(folder, text):
    """The path of a file with this text, or these bytes."""
    (folder / "list").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / "list"


def entry(*steps, subset="training", **changes):
    """A video of COIN.json, with steps (id, [start s, end s], label)."""
    steps = [dict(zip(("id", "segment", "label"), step, strict=True)) for step in steps]
    return {"duration": 60.5, "class": "Omelette", "video_url": "u", "start": 1.0, "end": 9.0,
            "subset": subset, "recipe_type": 7, "annotation": steps} | changes


def coin(**videos):
    return json.dumps({"database": videos})


def test_coin_in_its_spellings(tmp_path, capsys):
    """Catches: labels off by one, unsorted steps, fields swapped; a spelling, no duration or a step
    that ends before its start refused; such a step kept, or left out in silence; "validation" taken
    for testing in a file that has both, or for a split of its own in one that has not; names of
    activities lost."""
    last = entry(("3", [1, 2.5], "fold "), ("4", [3, 4], "fold"), subset="validation")
    del last["duration"]
    egg = "crack the egg"
    first = entry(("3", [5, 6], "fold"), ("1", [1.5, 2], egg), ("1", [9, 8], egg.title()),
                  ("1", [7, 7], egg), subset="testing")
    ours = {"JfuwHhfxN28": entry()}
    path = written(tmp_path, "\ufeff" + coin(zz=first, aa=last, **ours))     # as from Windows
    assert load_coin(path) == Lists(
        [Video("zz", "test", 7, 60.5, (Step(1.5, 2.0, 0), Step(5.0, 6.0, 2))),
         Video("aa", "validation", 7, None, (Step(1.0, 2.5, 2), Step(3.0, 4.0, 3))),
         Video("JfuwHhfxN28", "train", 7, 60.5)],
        {0: "crack the egg", 2: "fold", 3: "fold"}, {7: "Omelette"})
    assert f"{path}: video zz: 2 steps do not end" in capsys.readouterr().out
    lists = load_coin(written(tmp_path, coin(aa=last, bb=entry(recipe_type=2, **{"class": None}),
                                             **ours)))
    assert [video.split for video in lists.videos] == ["test", "train", "train"]
    assert lists.activities == {7: "Omelette", 2: ""}


def test_released_lists(tmp_path):
    """Catches: a path misread, columns exchanged; an id's dot taken for a suffix."""
    assert load_released_csv(written(tmp_path, STEPS), "classify").videos == [
        Video("th2wZ0W8ulA", None, 580, 163.1434, (Step(59, 65, 580),)),
        Video("-INaRI8Nb_E", None, 0, 112.2917, (Step(0, 1, 0),))]
    assert load_released_csv(written(tmp_path, NEXT), "forecast").videos == [
        Video("th2wZ0W8ulA", None, 581, 130, (Step(0, 65, UNKNOWN), Step(65, 65, 581))),
        Video("th2wZ0W8ulA", None, 582, 130, (Step(0, 84, UNKNOWN), Step(84, 84, 582)))]
    lists = load_released_csv(written(tmp_path, TASK), "activity")
    assert lists.videos == [
        Video("4bgWwnZQPaA", None, 123, 157.3572), Video("-INaRI8Nb_E", None, 98, 112.2917)]
    assert (lists.activities, lists.names, lists.split) == ({123: "", 98: ""}, {}, "list")
    assert [video_name(path) for path in ("a.mp4", "x/y.b.MKV", "c.d")] == ["a", "y.b", "c.d"]


def test_epic_lists(tmp_path):
    """Catches: frame numbers for times, hours forgotten, quotes, verb and noun exchanged."""
    assert load_epic(written(tmp_path, EPIC)) == Lists([Video("P01_11", duration=math.inf, steps=(
        Step(0, 1.89, (0, 2)), Step(3723.5, 3724, (96, 299))))], split="validation")
    path = tmp_path / "EPIC_100_train.csv"
    path.write_text(EPIC)
    assert load_epic(path).split == "train"


def test_names_phrases_and_ids(tmp_path):
    """Catches: equal names joined, a name's commas, numbers or marks cut or refused; a phrase's
    commas cut, its count kept; a suffix in an id; accents apart."""
    for text in ("stir\nput honey, oil\nstir", "stir,28,5.0\nput honey, oil,5,\nstir,1,0",
                 'phrase,count\nstir,1,\n\n"put honey, oil",2,3.5\n stir \n\n'):
        assert load_phrases(written(tmp_path, text)) == ["stir", "put honey, oil", "stir"]
    assert load_phrases(written(tmp_path, "set oven to 1,5\n2 eggs\nadd 1,5 cups\n")) == [
        "set oven to 1,5", "2 eggs", "add 1,5 cups"]
    names = ["set oven to 1,5", "2 eggs", "step_one", "stir,28,5.0", "phrase,count", "1. fold",
             "stir", "stir"]
    assert load_names(written(tmp_path, "\n".join(names) + "\n\n")) == names
    assert load_ids(written(tmp_path, "\ufeff-a\r\nmy video.v2\nb.webm\n\n-a\nsub/c.MP4\n")) == [
        "-a", "my video.v2", "b", "c"]
    apart = "cre\u0300me"                               # of macOS; composed, it is one letter less
    assert load_ids(written(tmp_path, f"{apart}\ncr\u00e8me.mp4\n")) == ["cr\u00e8me"]


READERS = {"epic": load_epic, "coin": load_coin, "phrases": load_phrases, "ids": load_ids,
           "names": load_names}
READERS |= {task: functools.partial(load_released_csv, task=task)
            for task in ("classify", "forecast", "activity")}


@pytest.mark.parametrize("name, text, message", [
    ("classify", STEPS + TASK, "list:3: .*to classify, `path label duration start end` is needed"),
    ("classify", NEXT, "list:1: a list for another task"),
    ("epic", EPIC.replace("01:02:04", "01:62:x"), "list:3: .*; times HH:MM:SS.ss, and"),
    ("epic", EPIC.replace(",['tap'],", ","), "list:3: another number of columns than in the first"),
    ("coin", '{"database":\n{', "list: .*line 2.*; expected"),
    ("coin", coin(bad=entry(subset="dev")), "list: video bad: .*'dev'.*; expected"),
    ("coin", coin(a=entry(("1", [1, 2], "x")), bad=entry(("1", [1, 2], "y"))),
     "list: video bad: id 1 is 'y', before it was 'x'"),
    ("phrases", "stir\n", "list: at least two"),
    ("phrases", "stir\n1. fold\n", "list:2: '1. fold' is not `phrase`"),
    ("phrases", "stir\nadd_kimchi\n", "list:2: 'add_kimchi' is not `phrase`"),
    ("names", "stir\n\nfold", "list:2: the line is empty"), ("names", "stir", "list: at least two"),
    ("classify", STEPS + "a 1000000000 9 1 2\n", "list:3: class 1000000000; classes count from 0"),
    ("classify", "a -7 9 1 2\n", "list:1: class -7; classes count"),
    ("classify", "a 0 9 -1e9 5\n", "list:1: a step from -1e.09 to 5 s; times must be finite"),
    ("classify", "a 0 9 1 inf\n", "list:1: a step from 1 to inf s; times must"),
    ("classify", "a 0 9 nan 2\n", "list:1: a step from nan"),
    ("classify", "a 0 9 3 2\n", "list:1: starts at 3 s and ends at 2 s"),
    ("classify", "a 0 -9 1 2\n", "list:1: a duration of -9"),
    ("activity", "a 0 nan\n", "list:1: a duration of nan"),
    ("epic", EPIC.replace("00:00:01.89", "inf"), "list:2: a step from 0 to inf s"),
    ("epic", EPIC.split("P01")[0], "list: no action"),
    ("coin", coin(bad=entry(("1", [-1, 2], "x"))), "list: video bad: a step from -1 to 2 s"),
    ("coin", coin(bad=entry(("1", [1, math.inf], "x"))), "list: video bad: a step from 1 to inf"),
    ("coin", coin(bad=entry((math.inf, [1, 2], "x"))), "list: video bad: OverflowError.*expected"),
    ("coin", coin(bad=entry((1e9, [1, 2], "x"))), "list: video bad: id .*, which counts from 1"),
    ("coin", coin(bad=entry(("0", [1, 2], "x"))), "list: video bad: id 0, which counts from 1"),
    ("coin", coin(bad=entry(recipe_type=-1)), "list: video bad: recipe_type: class -1"),
    ("coin", coin(bad=entry(duration=-1)), "list: video bad: a duration of -1"),
    ("coin", coin(a=entry(), bad=entry(**{"class": "Soup"})),
     "list: video bad: the class of recipe_type 7 is 'Soup', before it was 'Omelette'"),
    ("coin", "[" * 100_000, "list: RecursionError.*; expected"),
    ("coin", '{"database": []}', "list: AttributeError.*; expected"),
    ("ids", " \n\r\n", "list: the file is empty"),
    ("epic", b"flamb\xe9 it\n", "list: not UTF-8; save it as")])
def test_a_list_at_fault_is_named_with_its_line(tmp_path, name, text, message):
    """Catches: a bad value let through, an error without its line; a list for another task."""
    with pytest.raises(InputError, match=message) as error:
        READERS[name](written(tmp_path, text))
    assert str(error.value).startswith(f"{tmp_path}/list:") and "\n" not in str(error.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no such pipes")
def test_a_pipe_is_no_list(tmp_path):
    """Catches: a command that waits for ever."""
    os.mkfifo(tmp_path / "pipe")
    for path in tmp_path / "pipe", tmp_path:
        with pytest.raises(InputError, match="a file is needed, no folder and no pipe"):
            load_names(path)
    with pytest.raises(OSError, match="gone"):
        load_names(tmp_path / "gone")


# --- captions.py ---
CSV = "start,end,text\n0.5,2,add the egg\n2,4.25,\"stir it, gently\"\n"
SRT = ("1\n00:00:00,500 --> 00:00:02,000\nadd the egg\n\n"
       "2\n00:00:02,000 --> 00:00:04,250\nstir it,\ngently\n")
VTT = ("WEBVTT\nKind: captions\nLanguage: en\n\nNOTE by hand\n\nSTYLE\n::cue { color: red }\n\n"
       "00:00.500 --> 00:00:02.000 align:start position:0%\n<i>add</i> the egg\n\n"
       "second\n00:00:02.000 --> 00:00:04.250\nstir<00:00:03.000><c> it,</c>\ngently\n")
JSON = json.dumps({"v": {"start": [0.5, 2], "end": [2, 4.25],
                         "text": ["add the egg", "stir it, gently"]}})
LAYOUTS = {"v.csv": CSV, "v.srt": SRT, "v.vtt": VTT, "caption.json": JSON}


def read(folder, name, content):
    """The sentences of video v in a file that is written into the folder."""
    (folder / name).write_bytes(content.encode())
    captions = Captions(folder / name if name.endswith(".json") else folder)
    return pickle.loads(pickle.dumps(captions)).sentences("v")               # as in a worker


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_says_the_same(tmp_path, name):
    """Catches: tags, notes or styles taken for speech; times, line ends and marks misread."""
    text = LAYOUTS[name]
    for content in (text, "\ufeff" + text, text.replace("\n", "\r\n"), text + "\n\n\n"):
        assert read(tmp_path, name, content) == [(0.5, 2.0, "add the egg"),
                                                 (2.0, 4.25, "stir it, gently")]


def test_padding_sounds_and_tags_are_no_speech(tmp_path):
    """Catches: [Music] or NaN for a sentence; a word lost between two signs; hours for minutes."""
    assert read(tmp_path, "v.csv", ",text,note,start,end\n0,later,x,9,10\n1,NaN,,3,4\n2,,,5,6\n"
                "3,flambé it,,1,2\n") == [(1, 2, "flambé it"), (9, 10, "later")]
    (tmp_path / "v.csv").unlink()
    assert read(tmp_path, "v.srt", (
        "1\n00:00:01,000 --> 00:00:02,000\n[Music]\n\n2\n00:00:02,000 --> 00:00:03,000\n- \u266a\n"
        "\n3\n00:00:03,000 --> 00:00:04,000\n{\\an8}salt &amp;\u00a0 pepper [Applause] <3\n\n"
        "4\n01:02:03,500 --> 10:00:00,000\n<v Bob><i>if</i> a < b </I>\n")) == [
        (3, 4, "salt & pepper <3"), (3723.5, 36000, "if a < b")]


def rolling_vtt(lines):
    """As YouTube writes: a line is shown word by word for 2 s, alone for 10 ms, above the next."""
    text, above = "WEBVTT\nKind: captions\nLanguage: en\n\n", " "
    for i, line in enumerate(lines):
        first, *rest = line.split()
        timed = first + "".join(f"<00:00:{2 * i}.100><c> {word}</c>" for word in rest)
        for start, end, shown in ((2 * i, 2 * i + 1.99, f"{above}\n{timed}"),
                                  (2 * i + 1.99, 2 * i + 2, f"{line}\n ")):
            text += f"00:{start:06.3f} --> 00:{end:06.3f} align:start position:0%\n{shown}\n\n"
        above = line
    return text


def test_rolling_captions_are_said_once(tmp_path):
    """Catches: a line twice, lost, or with the times of the one above; words lost that recur."""
    lines = ["so today we whisk", "the egg with a fork", "and then", "and then we fry it"]
    later = "01:00.000 --> 01:01.000\nand then we fry it\n\n01:01.000 --> 01:02.000\nit is done\n"
    assert read(tmp_path, "v.vtt", rolling_vtt(lines) + later) == [
        *((2 * i, 2 * i + 2, line) for i, line in enumerate(lines)),
        (60, 61, "and then we fry it"), (61, 62, "it is done")]


def test_a_folder_is_listed_by_the_names_of_videos(tmp_path):
    """Catches: an id cut at a dot; other files; German before English; an automatic translation
    before a plain file; accents left apart; an order of the disk."""
    names = {"my.video.CSV": "my.video", "d.de.vtt": None, "d.en.vtt": "d",
             "e.de.vtt": None, "e.vtt": "e", "e.en.vtt": None, "readme.txt": None,
             "lasagna.raw.srt": "lasagna.raw", "lasagna.en.srt": "lasagna",
             "g.en-orig.vtt": None, "g.en.vtt": "g", "h.en-orig.vtt": "h", "h.fr.vtt": None,
             "i.eng.srt": "i", "i.de.srt": None, "j.fr.vtt": None, "j.de.vtt": "j",
             "k.srt": None, "k.csv": "k",
             "Title [x_1].en-orig.vtt": "Title [x_1]", "cre\u0300me.en.vtt": "cr\u00e8me"}
    for name in names:
        (tmp_path / name).write_text("no narration")
    found = Captions(tmp_path)
    assert dict(found) == {id: name for name, id in names.items() if id}
    assert list(found) == sorted(found)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty: no narrations; a folder of ID\.csv"):
        Captions(tmp_path / "empty")


def test_the_videos_that_are_there_say_whose_a_narration_is(tmp_path):
    """Catches: cake.hd.srt, whose video is cake.hd.mp4, taken for one of cake in a language hd."""
    for name in "cake.hd.srt", "cake.hd.en.srt", "cake.de.srt", "pie.hd.srt":
        (tmp_path / name).write_text("no narration")
    assert dict(Captions(tmp_path, {"cake.hd", "cake", "pie"})) == {
        "cake.hd": "cake.hd.srt", "cake": "cake.de.srt", "pie": "pie.hd.srt"}


@pytest.mark.parametrize("name, content, message", [
    ("v.csv", "start,end,text\n0,1,a\n2,1,b\n", "v.csv:3: starts at 2 s and ends at 1 s"),
    ("v.csv", "start,end,text\n0,x,a\n", "v.csv:2: .*'x'.*; times must be"),
    ("v.csv", "start,end,text\n0,inf,a\n", "v.csv:2: starts at 0 s and ends at inf s"),
    ("v.csv", "start,end,text\n-1,1,a\n", "v.csv:2: starts at -1 s"),
    ("c.json", "[" * 100_000, "c.json: RecursionError.*; a folder of ID.csv"),
    ("c.json", '["v"]', "c.json: AttributeError.*; a folder of ID.csv"),
    ("v.csv", f'start,end,text\n0,1,"{"a" * 140_000}\n', "v.csv: .*limit.*; a quote may be open"),
    ("v.srt", "1\n00:00:01,000 --> soon\na\n", "v.srt:2: .*'soon'.*; times must be"),
    ("c.json", '{"v":\n{"start": [', "c.json: .*line 2.*; a folder of ID.csv"),
    ("c.json", '{"v": {"start": [0], "end": [1, 2], "text": ["a"]}}', "video v: .*of one length")])
def test_a_narration_at_fault_is_named_with_its_line(tmp_path, name, content, message):
    """Catches: a traceback, a sentence without length, an error without file and line."""
    with pytest.raises(InputError, match=message) as error:
        read(tmp_path, name, content)
    assert str(error.value).startswith(str(tmp_path)) and "\n" not in str(error.value)
