"""files/lists.py: each list in its real layout, each error with its line."""
import functools
import json
import math
from types import SimpleNamespace

import pytest

from data import Step, Video
from files.lists import (UNKNOWN, check_names, load_coin, load_epic, load_ids, load_phrases,
                         load_released_csv, of_split, video_name)
from support.errors import InputError

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
    for testing in a file that has both, or for a split of its own in one that has not."""
    last = entry(("3", [1, 2.5], "fold "), ("4", [3, 4], "fold"), subset="validation")
    del last["duration"]
    egg = "crack the egg"
    first = entry(("3", [5, 6], "fold"), ("1", [1.5, 2], egg), ("1", [9, 8], egg.title()),
                  ("1", [7, 7], egg), subset="testing")
    ours = {"JfuwHhfxN28": entry()}
    path = written(tmp_path, "\ufeff" + coin(zz=first, aa=last, **ours))     # as from Windows
    assert load_coin(path) == (
        [Video("zz", "test", 7, 60.5, (Step(1.5, 2.0, 0), Step(5.0, 6.0, 2))),
         Video("aa", "validation", 7, None, (Step(1.0, 2.5, 2), Step(3.0, 4.0, 3))),
         Video("JfuwHhfxN28", "train", 7, 60.5)], ["crack the egg", "", "fold", "fold"])
    assert f"{path}: video zz: 2 steps do not end" in capsys.readouterr().out
    videos, _ = load_coin(written(tmp_path, coin(aa=last, **ours)))
    assert [video.split for video in videos] == ["test", "train"]


def test_a_share_of_training_stands_in_for_validation():
    """Catches: another hash, a test video held out; the share of the run not taken; scores of what
    a checkpoint was tuned on."""
    videos = [Video(f"v{i}", "train") for i in range(30)] + [Video("v76", "test")]
    for task, share, held in ((None, None, [4, 5, 8, 17]),
                              ("classify", 0.3, [0, 4, 5, 7, 8, 16, 17, 20, 21, 27])):
        config = SimpleNamespace(task=task, hold_out=share)
        found = of_split(videos, "validation", config, "F")
        assert [int(video.name[1:]) for video in found] == held
    with pytest.raises(InputError, match="F: has no validation .*; fine-tune it with --hold-out"):
        of_split(videos, "validation", SimpleNamespace(task="classify", hold_out=None), "F")
    own = Video("own", "validation")
    assert of_split([*videos, own], "validation", config, "F") == [own]


def test_released_lists(tmp_path):
    """Catches: a path misread, columns exchanged; an id's dot taken for a suffix."""
    assert load_released_csv(written(tmp_path, STEPS), "classify") == [
        Video("th2wZ0W8ulA", None, 580, 163.1434, (Step(59, 65, 580),)),
        Video("-INaRI8Nb_E", None, 0, 112.2917, (Step(0, 1, 0),))]
    assert load_released_csv(written(tmp_path, NEXT), "forecast") == [
        Video("th2wZ0W8ulA", None, 581, 130, (Step(0, 65, UNKNOWN), Step(65, 65, 581))),
        Video("th2wZ0W8ulA", None, 582, 130, (Step(0, 84, UNKNOWN), Step(84, 84, 582)))]
    assert load_released_csv(written(tmp_path, TASK), "activity") == [
        Video("4bgWwnZQPaA", None, 123, 157.3572), Video("-INaRI8Nb_E", None, 98, 112.2917)]
    assert [video_name(path) for path in ("a.mp4", "x/y.b.MKV", "c.d")] == ["a", "y.b", "c.d"]


def test_epic_lists(tmp_path):
    """Catches: frame numbers for times, hours forgotten, quotes, verb and noun exchanged."""
    assert load_epic(written(tmp_path, EPIC)) == [Video("P01_11", duration=math.inf, steps=(
        Step(0, 1.89, (0, 2)), Step(3723.5, 3724, (96, 299))))]


def test_names_phrases_and_ids(tmp_path):
    """Catches: another order, equal names joined, a phrase's commas cut; a header in the pool; a
    file's suffix in an id; an id whose accents are apart taken for another."""
    for text in ("stir\nput honey, oil\nstir", "stir,28,5.0\nput honey, oil,5\nstir,",
                 'phrase,count\nstir,1,\n"put honey, oil",2\n stir \n\n'):
        assert load_phrases(written(tmp_path, text)) == ["stir", "put honey, oil", "stir"]
    assert load_ids(written(tmp_path, "\ufeff-a\r\nmy video.v2\nb.webm\n\n-a\nsub/c.MP4\n")) == [
        "-a", "my video.v2", "b", "c"]
    apart = "cre\u0300me"                               # of macOS; composed, it is one letter less
    assert load_ids(written(tmp_path, f"{apart}\ncr\u00e8me.mp4\n")) == ["cr\u00e8me"]


READERS = {"epic": load_epic, "coin": load_coin, "phrases": load_phrases, "ids": load_ids}
READERS |= {task: functools.partial(load_released_csv, task=task)
            for task in ("classify", "forecast", "activity")}


@pytest.mark.parametrize("name, text, message", [
    ("classify", STEPS + TASK, "list:3: .*to classify, `path label duration start end` is needed"),
    ("classify", NEXT, "list:1: a list for another task"),
    ("epic", EPIC.replace("01:02:04", "01:62:x"), "list:3: .*; times HH:MM:SS.ss, and"),
    ("epic", EPIC.replace("stop_timestamp", "stop"), "list:1: the first line must name video_id,"),
    ("epic", EPIC.replace(",['tap'],", ","), "list:3: another number of columns than in the first"),
    ("coin", '{"database":\n{', "list: .*line 2.*; needed is"),
    ("coin", coin(bad=entry(subset="dev")), "list: video bad: .*'dev'.*; needed is"),
    ("coin", coin(bad=entry(("0", [1, 2], "x"))), "list: .*an id of 0"),
    ("coin", coin(a=entry(("1", [1, 2], "x")), bad=entry(("1", [1, 2], "y"))),
     "list: video bad: id 1 is 'y', before it was 'x'"),
    ("phrases", "stir\n", "list: at least two"),
    ("phrases", "stir\n1. fold\n", "list:2: '1. fold' is not `phrase`"),
    ("phrases", "stir\nadd_kimchi\n", "list:2: 'add_kimchi' is not `phrase`"),
    ("ids", " \n\r\n", "list: the file is empty"),
    ("epic", b"flamb\xe9 it\n", "list: not UTF-8; save it as")])
def test_a_list_at_fault_is_named_with_its_line(tmp_path, name, text, message):
    """Catches: a bad value let through, an error without its line; a list for another task."""
    with pytest.raises(InputError, match=message) as error:
        READERS[name](written(tmp_path, text))
    assert str(error.value).startswith(f"{tmp_path}/list:") and "\n" not in str(error.value)


def test_names_that_contradict_the_annotations():
    """Catches: rows of other classes scored; spelling, unnamed classes, or names of classes above
    the highest that has a step, refused."""
    names, labels = ["Stir ", "fold", "fry", "serve"], ["stir", "", "Fry"]
    check_names("T", names, "COIN.json", labels)
    with pytest.raises(InputError, match="T:3: class 3 is 'serve', but 'Fry' in C; line i"):
        check_names("T", ["stir", "fold", "serve", "fry"], "C", labels)
    with pytest.raises(InputError, match="T: 2 names, but 3 classes in C"):
        check_names("T", names[:2], "C", labels)
