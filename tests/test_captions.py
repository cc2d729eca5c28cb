"""captions.py: narrations in every layout, rolling text, each error with its line."""
import json
import os
import pickle
from pathlib import Path

import pytest

from commands import call
from files.captions import Captions, unroll
from support.command import BadInput

CSV = "start,end,text\n0.5,2,add the egg\n2,4.25,\"stir it, gently\"\n"
SRT = ("1\n00:00:00,500 --> 00:00:02,000\nadd the egg\n\n"
       "2\n00:00:02,000 --> 00:00:04,250\nstir it,\ngently\n")
VTT = ("WEBVTT\nKind: captions\nLanguage: en\n\nNOTE made up\n\nSTYLE\n::cue { color: red }\n\n"
       "00:00.500 --> 00:00:02.000 align:start position:0%\n<i>add</i> the egg\n\n"
       "second\n00:00:02.000 --> 00:00:04.250\nstir<00:00:03.000><c> it,</c>\ngently\n")
JSON = json.dumps({"v": {"start": [0.5, 2], "end": [2, 4.25],
                         "text": ["add the egg", "stir it, gently"]}})
LAYOUTS = {"v.csv": CSV, "v.srt": SRT, "v.vtt": VTT, "caption.json": JSON}
EXPECTED = [(0.5, 2.0, "add the egg"), (2.0, 4.25, "stir it, gently")]


def entry(**changes):
    return json.dumps({"v": {"start": [0, 1], "end": [1, 2], "text": ["a", "b"]} | changes})


def opened(folder, name, content):
    """The narrations of a file written into `folder`: the folder's, or the JSON file's."""
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return Captions(folder / name if name.endswith(".json") else folder)


def read(folder, name, content):
    return opened(folder, name, content).sentences("v")


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_says_the_same(tmp_path, name):
    """Catches: tags, notes or styles taken for speech; times, line ends and marks misread."""
    text = LAYOUTS[name]
    for content in (text, "\ufeff" + text, text.replace("\n", "\r\n"), text.replace("\n", "\r"),
                    text + "\n\n\n"):
        assert read(tmp_path, name, content) == EXPECTED
    assert pickle.loads(pickle.dumps(opened(tmp_path, name, text))).sentences("v") == EXPECTED


def test_csv_as_pandas_writes_it(tmp_path):
    """Catches: the index taken for start, "nan" for a sentence, another order; Latin-1 refused."""
    content = (",Text,note,start,end\n0,later,x,9,10\n1,NaN,,3,4\n2,,,5,6\n3,nan,,,\n"
               "4,flambé it,,1,2\n5,nan bread,,2,3\n").encode("latin-1")
    assert read(tmp_path, "v.csv", content) == [(1, 2, "flamb\ufffd it"), (2, 3, "nan bread"),
                                                (9, 10, "later")]


def test_what_is_not_a_word_is_left_out(tmp_path):
    """Catches: [Music] for a sentence; hours for minutes; a run ended by a silent video."""
    content = ("1\n00:00:01,000 --> 00:00:02,000\n[Music]\n\n2\n00:00:02,000 --> 00:00:03,000\n"
               "- \u266a\n\n3\n00:00:03,000 --> 00:00:04,000\n{\\an8}salt &amp;\u00a0 pepper "
               "[Applause] <3\n\n4\n01:02:03,500 --> 10:00:00,000\nbye\n")
    assert read(tmp_path, "v.srt", content) == [(3, 4, "salt & pepper <3"), (3723.5, 36000, "bye")]
    content = "1\n00:00:00,000 --> 00:00:01,000\n \nadd\n\n2\n00:00:01,000 --> 00:00:02,000\nstir\n"
    assert read(tmp_path, "v.srt", content) == [(0, 1, "add"), (1, 2, "stir")]
    (tmp_path / "v.srt").unlink()
    assert read(tmp_path, "v.vtt", "WEBVTT\n") == []
    assert read(tmp_path, "v.csv", "start,end,text\n") == []
    assert read(tmp_path, "c.json", entry(text=[None, float("nan")])) == []


@pytest.mark.parametrize("text, said", [
    ("1\n00:01,000 --> 00:02,000\nbake at\n350\n2\n00:02,000 --> 00:03,000\nstir\n7",
     [(1, 2, "bake at 350"), (2, 3, "stir 7")]),
    ("1\n\n00:01,000 --> 00:02,000\n\nadd\n\nsalt\n\n\n\n2\n\n00:02,000 --> 00:03,000\n\nstir\n",
     [(1, 2, "add salt"), (2, 3, "stir")]),
    ("00:01,000 --> 00:02,000\nbake at\n350\n\n00:02,000 --> 00:03,000\nstir\n",
     [(1, 2, "bake at 350"), (2, 3, "stir")]),
    ("WEBVTT\n\n1\n00:01.000 --> 00:02.000\nbake at\n350\n2\n00:02.000 --> 00:03.000\nstir\n\n"
     "NOTE 5\n", [(1, 2, "bake at 350"), (2, 3, "stir")]),
    ("WEBVTT\n\n\n\n00:01.000 --> 00:02.000\n\nadd\n\nsalt\n\n\n\n00:02.000 --> 00:03.000\n\n"
     "stir\n\n", [(1, 2, "add salt"), (2, 3, "stir")]),
    ("WEBVTT\n\n00:01.000 --> 00:02.000\nbake at\n350\n\nlast\n00:02.000 --> 00:03.000\nstir\n",
     [(1, 2, "bake at 350"), (2, 3, "stir")])])
def test_cues_without_empty_lines_or_with_more(tmp_path, text, said):
    """Catches: a cue's number said; a number that is said taken for one; a text lost."""
    assert read(tmp_path, "v.vtt" if text.startswith("WEBVTT") else "v.srt", text) == said


def test_only_tags_are_removed(tmp_path):
    """Catches: words lost between two signs; a tag read aloud."""
    shown = ("<v Bob><i>if</i> a < b<br>and</I> <c.colorE5E5E5>c ></c> <00:00:01.500>d, <font "
             "color='red'>5 > 3</font> and {\\an8}{salt} <3")
    assert read(tmp_path, "v.vtt", f"WEBVTT\n\n00:01.000 --> 00:02.000\n{shown}\n") == [
        (1, 2, "if a < b and c > d, 5 > 3 and {salt} <3")]


def rolling_vtt(lines, seconds=2.0):
    """As YouTube writes: a line is shown word by word, alone for 10 ms, then above the next."""
    def stamp(t):
        return f"00:{int(t) // 60:02d}:{t % 60:06.3f}"
    text, above = "WEBVTT\nKind: captions\nLanguage: en\n\n", " "
    for i, line in enumerate(lines):
        start, end = i * seconds, (i + 1) * seconds
        first, *rest = line.split()
        timed = first + "".join(f"<{stamp(start + .1)}><c> {word}</c>" for word in rest)
        for t0, t1, shown in ((start, end - .01, f"{above}\n{timed}"),
                              (end - .01, end, f"{line}\n ")):
            text += f"{stamp(t0)} --> {stamp(t1)} align:start position:0%\n{shown}\n\n"
        above = line
    return text


def test_rolling_captions_are_said_once(tmp_path):
    """Catches: a line twice, lost, or with the times of the one above; repeated words lost."""
    lines = ["so today we whisk", "the egg with a fork", "and then", "and then we fry it"]
    got = read(tmp_path, "v.vtt", rolling_vtt(lines))
    assert [text for *_, text in got] == lines
    assert [time for *times, _ in got for time in times] == pytest.approx([0, 2, 2, 4, 4, 6, 6, 8])
    assert unroll([(0, 2, "a b"), (2, 5, "a b"), (3, 4, "a b")]) == [(0, 5, "a b")]


@pytest.mark.parametrize("cues, texts", [
    ([(0, 2, "a b"), (1, 3, "c d"), (2, 4, "e f")], ["a b", "c d", "e f"]),
    ([(0, 2, "they get yellow"), (2, 4, "yellow yellow and soft")],
     ["they get yellow", "yellow yellow and soft"]),
    ([(0, 1, "a"), (1, 2, "a b"), (2, 3, "a b c"), (3, 4, "b c d"), (4, 5, "c d e")],
     ["a", "b", "c", "d", "e"]),
    ([(0, 1, "a b"), (1, 2, "a b c"), (2, 3, "a b c d e")], ["a b", "c", "d e"]),
    ([(0, 1, "thank you"), (30, 31, "thank you"), (60, 61, "thank you all")],
     ["thank you", "thank you", "thank you all"]),
    ([(0, 1, "a b"), (1, 2, "a c")], ["a b", "a c"])])
def test_only_whole_lines_on_the_screen_are_repetitions(cues, texts):
    """Catches: words dropped because they recur; sentences merged over a pause."""
    assert [text for *_, text in unroll(cues)] == texts


def test_folder_is_listed_without_opening_anything(tmp_path, monkeypatch):
    """Catches: a million files read; an id cut at a dot; other files, a pipe; another order."""
    for name in ("-a_1.csv", "b.srt", "b.steps.csv", "b.en.vtt", "my.video.CSV", "._b.csv", ".csv",
                 "readme.txt", "c.en-US.vtt", "c.csv", "c.srt", "d.de.vtt", "d.en.vtt"):
        (tmp_path / name).write_text("not a narration")
    os.mkfifo(tmp_path / "pipe.csv")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", None)
        patch.setattr("builtins.open", None)
        found = Captions(tmp_path)
        assert list(found) == ["-a_1", "b", "c", "d", "my.video"] and len(found) == 5
        assert "b" in found and "b.steps" not in found
    assert [found[name] for name in "bcd"] == ["b.srt", "c.csv", "d.en.vtt"]
    with pytest.raises(BadInput, match=r"b\.srt:1"):
        found.sentences("b")
    for name in ("talk.csv", "talk.2.csv", "t.2.srt", "t.srt", "t.hd.srt", "u.vtt", "u.en.srt",
                 "w.pt_BR.srt", "w.steps.csv"):
        (tmp_path / name).write_text("not a narration")
    found = Captions(tmp_path)
    assert {name: found[name] for name in found if name[0] in "tuw"} == {
        "talk": "talk.csv", "talk.2": "talk.2.csv", "t": "t.srt", "t.2": "t.2.srt",
        "t.hd": "t.hd.srt", "u": "u.vtt", "w": "w.pt_BR.srt"}
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"no videos in it; .*ID\.csv, ID\.srt, ID\.vtt"):
        Captions(tmp_path / "empty")


@pytest.mark.parametrize("name, content, message", [
    ("v.csv", "", "v.csv: the file is empty; a narration .fetch it again, or remove the file. is"),
    ("v.csv", "start,text\n1,a\n", "v.csv:1: no column end, or two; .*start, end, text; it is"),
    ("v.csv", "start,end,text\n0,1,a\n2,1,b\n", "v.csv:3: start '2', end '1'; .*not before"),
    ("v.csv", "start,end,end,text\n0,1,2,a\n", "v.csv:1: no column end, or two"),
    ("v.csv", "start,end,text\n0,x,a\n", "v.csv:2: start '0', end 'x'; finite seconds from 0 are"),
    ("v.csv", "start,end,text\n0,nan,a\n", "v.csv:2: start '0', end 'nan'"),
    ("v.csv", "start,end,text\n-1,1,a\n", "v.csv:2: start '-1'"),
    ("v.csv", "start,end,text\n0,1,a,b\n", "v.csv:2: 4 columns.*in quotes"),
    ("v.srt", "hello\n", "v.srt:1: no line as"),
    ("v.srt", "1\n00:00:01,000 --> soon\na\n", "v.srt:2: '00:00:01,000 --> soon' is not a time"),
    ("v.vtt", "WEBVTT\n\n00:61 - 00:62\na\n\n1 --> 2\nb\n", "v.vtt:6: '1 --> 2' is not a time"),
    ("c.json", '{"v":\n{"start": [', "c.json:2: not valid JSON.*a folder of narrations"),
    ("c.json", "[]", "c.json: no JSON object"),
    ("c.json", "[" * 100_000, "c.json: not valid JSON: .*recursion"),
    ("c.json", '{"v": {}, "v": {}}', "c.json: not valid JSON: the key 'v' is there 2 times"),
    ("c.json", "1" * 5_000, "c.json: not valid JSON: .*4300 digits"),
    ("c.json", '{"v": 3}', "c.json: video 'v': lists start, end and text of one length"),
    ("c.json", entry(end=[1]), "video 'v': lists start, end and text of one length"),
    ("c.json", entry(start=[0, "1"]), r"video 'v', entry 1 .*two numbers and a text are needed"),
    ("c.json", entry(text=["a", 7]), r"video 'v', entry 1 .*two numbers and a text are needed"),
    ("c.json", entry(end=[1, 10 ** 400]), "entry 1 .*seconds from 0 are needed")])
def test_narration_at_fault_is_named_with_its_line(tmp_path, name, content, message):
    """Catches: a traceback, a sentence of no length, or an error without file and line."""
    with pytest.raises(BadInput, match=message) as caught:
        read(tmp_path, name, content)
    assert str(caught.value).startswith(str(tmp_path)) and "\n" not in str(caught.value)


def test_check_counts_captions(tmp_path, capsys):
    """Catches: a file at fault that ends the check, or is not named; a video without a caption."""
    for name, content in (("a.csv", CSV), ("b.srt", SRT), ("c.csv", CSV.replace("2,4", "4,2"))):
        (tmp_path / name).write_text(content)
    (tmp_path / "b.mp4").write_text("no video")
    call("files", "check", "--data", "howto100m", "--captions", str(tmp_path), "--videos",
         str(tmp_path), "--json", f"{tmp_path}.json")
    assert json.loads(Path(f"{tmp_path}.json").read_text()) == {
        "captions": 3, "unreadable_captions": 1, "sentences": 4, "hours": 0.0, "videos": 3,
        "found": 1, "missing": 2, "unreadable": 1}
    out = capsys.readouterr().out
    assert f"unreadable: c: {tmp_path}/c.csv:3: start '4', end '2.25'" in out
    assert "unreadable: b: " in out
