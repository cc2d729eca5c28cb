"""listings.py: each list in its real layout, each error with its line."""
import math
from pathlib import Path

import pytest

from data import Step, Video
from files.listings import (UNKNOWN, load_epic, load_ids, load_phrases, load_released_csv,
                            load_steps, video_name)
from support.command import BadInput

REAL = Path(__file__).resolve().parents[2] / "shared"
STEPS = "th2wZ0W8ulA.mp4 580 163.1434 59.0 65.0\n-INaRI8Nb_E 0 112.2917 0.5 1\n"
NEXT = "th2wZ0W8ulA.mp4 581 130.0 0 65.0\nth2wZ0W8ulA.mp4 582 130.0 0 84.0\n"
TASK = "coin/4bgWwnZQPaA.mkv 123 157.3572\n-INaRI8Nb_E 98 112.2917\n"
EPIC = ("narration_id,participant_id,video_id,narration_timestamp,start_timestamp,stop_timestamp,"
        "start_frame,stop_frame,narration,verb,verb_class,noun,noun_class,all_nouns,"
        "all_noun_classes\n"
        "P01_11_0,P01,P01_11,00:00:00.560,00:00:00.00,00:00:01.89,1,113,take plate,take,0,plate,2,"
        "\"['plate', 'cup']\",\"[2, 13]\"\n"
        "P01_11_1,P01,P01_11,,01:02:03.5,01:02:04,1,2,open tap,open,96,tap,299,['tap'],[0]\n")
TEST = ("narration_id,participant_id,video_id,narration_timestamp,start_timestamp,stop_timestamp,"
        "start_frame,stop_frame\nP01_12_0,P01,P01_12,00:00:01.000,00:00:01.50,00:00:02.00,1,2\n")
PHRASES = "add water,2878,5.0\nuse a q - tip,50,\n"


def written(folder, text):
    """The path of a file with this text, or bytes; of no file if it is None."""
    path = folder / "list"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_released_lists(tmp_path):
    """Catches: a path misread, columns exchanged; an id's dot taken for a suffix."""
    assert load_released_csv(written(tmp_path, STEPS), "classify") == [
        Video("th2wZ0W8ulA", None, 580, 163.1434, (Step(59, 65, 580),)),
        Video("-INaRI8Nb_E", None, 0, 112.2917, (Step(.5, 1, 0),))]
    assert load_released_csv(written(tmp_path, NEXT), "forecast") == [
        Video("th2wZ0W8ulA", None, 581, 130, (Step(0, 65, UNKNOWN), Step(65, 65, 581))),
        Video("th2wZ0W8ulA", None, 582, 130, (Step(0, 84, UNKNOWN), Step(84, 84, 582)))]
    assert load_released_csv(written(tmp_path, TASK), "activity") == [
        Video("4bgWwnZQPaA", None, 123, 157.3572), Video("-INaRI8Nb_E", None, 98, 112.2917)]
    with pytest.raises(BadInput, match="list: holds no whole videos; --task infill needs COIN"):
        load_released_csv(written(tmp_path, STEPS), "infill")
    assert [video_name(path) for path in ("a.mp4", "x/y.b.MKV", "c.d", "x\\e.mov")] == [
        "a", "y.b", "c.d", "e"]


def test_epic_list(tmp_path):
    """Catches: frame numbers for times, hours forgotten, quotes, verb and noun exchanged."""
    assert load_epic(written(tmp_path, EPIC)) == [Video("P01_11", duration=math.inf, steps=(
        Step(0, 1.89, (0, 2)), Step(3723.5, 3724, (96, 299))))]
    assert load_epic(written(tmp_path, TEST)) == [
        Video("P01_12", duration=math.inf, steps=(Step(1.5, 2, (None, None)),))]


def test_names_phrases_and_ids(tmp_path):
    """Catches: another order, equal names joined, a phrase's commas cut; a header in the pool."""
    assert load_steps(written(tmp_path, "stir\nput honey, oil\nstir")) == [
        "stir", "put honey, oil", "stir"]
    assert load_phrases(written(tmp_path, PHRASES)) == ["add water", "use a q - tip"]
    assert load_phrases(written(tmp_path, "put honey, oil\n\n stir \nstir\n")) == [
        "put honey, oil", "stir", "stir"]
    expected = ["add water", "put honey, oil"]
    for text in ("add water,2878\nput honey, oil,5", "add water\t2878\t5\nput honey, oil\t1\t.5",
                 "add water,2878,5.0,-1e-3\nput honey, oil,nan,2%,",
                 '"add water",1\n"put honey, oil",2',
                 'Phrase, count\nadd water,2878\n"put honey, oil",5',
                 ',phrase,count,concreteness\n0,add water,2878,5.0\n1,"put honey, oil",5,'):
        assert load_phrases(written(tmp_path, text)) == expected
    assert load_steps(written(tmp_path, PHRASES)) == ["add water", "use a q - tip"]
    assert load_ids(written(tmp_path, "-a\nmy video.v2\nb.webm\n\n-a\nsub/c.MP4\n")) == [
        "-a", "my video.v2", "b", "c"]


READERS = {
    "steps": (lambda path: load_released_csv(path, "classify"), STEPS),
    "next": (lambda path: load_released_csv(path, "forecast"), NEXT),
    "task": (lambda path: load_released_csv(path, "activity"), TASK),
    "epic": (load_epic, EPIC), "epic test": (load_epic, TEST),
    "step names": (load_steps, "stir\nfold in\n"), "phrases": (load_phrases, PHRASES),
    "ids": (load_ids, "a\nb\n")}


def test_line_ends_and_byte_order_marks(tmp_path):
    """Catches: a file from Windows: its mark in the first id, \\r in the last field."""
    for read, text in READERS.values():
        expected = read(written(tmp_path, text))
        assert read(written(tmp_path, "\ufeff" + text.replace("\n", "\r\n"))) == expected
        assert read(written(tmp_path, text.rstrip() + "\n\n")) == expected


@pytest.mark.parametrize("name, text, message", [
    ("steps", STEPS + TASK, "list:3: 3 columns; to classify, `path label duration start end`"),
    ("steps", "my video.mp4 1 9 0 3\n", "list:1: 6 columns; .*no space within a path"),
    ("steps", "a 1 9 5 4\n", "list:1: its end, 4 s, is before its start, 5 s"),
    ("steps", "a -1 9 3 4\n", "list:1: label is '-1'; .*from 0"),
    ("steps", "a 1 9 3 nan\n", "list:1: a time is 'nan'"),
    ("steps", NEXT, "list:2: th2wZ0W8ulA from 0 s again, as in a list for forecasting"),
    ("steps", STEPS + "-INaRI8Nb_E 7 112.2917 0.5 1\n", "list:3: -INaRI8Nb_E has a label for"),
    ("next", NEXT + "th2wZ0W8ulA 5 130.0 0 84.0\n", "list:3: th2wZ0W8ulA has a label for these"),
    ("task", TASK + "-INaRI8Nb_E 99 112.3\n", "list:3: -INaRI8Nb_E has a label for these times"),
    ("next", STEPS, "list:1: starts at 59 s; .*is it the list of steps"),
    ("epic", EPIC.replace("01.89", "00.00").replace("00:00.00,", "01:00.00,", 1),
     "list:2: its end, 0 s, is before its start, 60 s"),
    ("epic", EPIC.replace(",96,", ",97,"), "list:3: verb_class is '97'; .*from 0 to 96"),
    ("epic", EPIC.replace(",299,", ",300,"), "list:3: noun_class is '300'; .*from 0 to 299"),
    ("epic", EPIC.replace("01:02:04", "01:62:04"), "list:3: '01:62:04' is not a time HH:MM:SS.ss"),
    ("epic", EPIC.replace("stop_timestamp", "stop"), "list:1: no column stop_timestamp, or two; "),
    ("epic", EPIC.replace("noun_class,", "n,", 1), "list:2: noun_class is ''; "),
    ("epic", EPIC.replace(",['tap'],", ","), "list:3: 14 columns, but the first line names 15"),
    ("epic", EPIC.split("\n")[0], "list: nothing after the first line"),
    ("epic", EPIC.rstrip() + ',"\n', "list:3: (not valid csv|16 columns)"),
    ("epic", EPIC.replace(",take plate,", ',"take" plate,'), "list:2: not valid csv"),
    ("step names", "stir\n\nfold\n", "list:2: no text, which leaves the class"),
    ("step names", "stir\n", "list: one class: nothing to choose from"),
    ("phrases", ",3,4.5\n", "list:1: ',3,4.5' has no phrase, or NUL, or a number before"),
    ("phrases", "0,stir,3\n1,cut,2\n", "list:1: '0,stir,3' has no phrase"),
    ("phrases", "stir,3,x\ncut,2,y\n", "list:1: 'stir,3,x' has no phrase"),
    ("phrases", '"",3\n"",4\n', "list:1: .* has no phrase"),
    ("phrases", "s\0t\0i\0r\0\nc\0u\0t\0\n", "list:1: .* has no phrase, or NUL"),
    ("phrases", "text,count\nstir,3\n", "list:2: 1 columns of numbers at its end, but 0 in the f"),
    ("phrases", PHRASES + "stir\n", "list:3: 0 columns of numbers at its end, but 2 in the first"),
    ("phrases", "phrase,count\nstir,3,4\n", "list:2: 3 columns, but the first line names 2"),
    ("step names", "1\n2\n", "list:1: '1' has no class"),
    *[(name, None, "list: No such file") for name in READERS],
    *[(name, " \n\r\n", "list: the file is empty") for name in READERS],
    *[(name, b"\xff\xfea\x00", "list: invalid start byte at byte 0; save it as UTF-8")
      for name in READERS]])
def test_list_at_fault_is_named_with_its_line(tmp_path, name, text, message):
    """Catches: a bad value let through, an error without its line; a list for another task."""
    with pytest.raises(BadInput, match=message) as caught:
        READERS[name][0](written(tmp_path, text))
    assert str(caught.value).startswith(f"{tmp_path}/list:") and "\n" not in str(caught.value)


@pytest.mark.skipif(not REAL.is_dir(), reason="no shared")
def test_real_files():
    """Catches: an action, one of 9,871 phrases or of COIN's 778 steps refused, lost or cut."""
    videos = load_epic(REAL / "epic" / "EPIC_100_validation_head.csv")
    assert sum(len(video.steps) for video in videos) == 400
    assert {video.name for video in videos} == {f"P01_1{i}" for i in range(1, 5)}
    assert Step(870.55, 882.72, (10, 45)) == videos[-1].steps[-1]
    phrases = load_phrases(REAL / "phrases" / "ht100m_asr_verb_phrase.txt")
    assert len(phrases) == 9871 and phrases[0] == "give up a thumbs"
    assert not any(phrase[-1].isdigit() and "," in phrase for phrase in phrases)
    steps = load_steps(REAL / "coin" / "steps.txt")
    assert len(steps) == 778 and len(set(steps)) == 749
    assert load_phrases(REAL / "coin" / "steps.txt") == steps
