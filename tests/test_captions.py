"""files/captions.py: narrations in every layout, rolling text, each error with its line."""
import json
import pickle

import pytest

from files.captions import Captions
from support.errors import InputError

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
    """Catches: an id cut at a dot; other files; German before English; accents left apart."""
    names = {"my.video.CSV": "my.video", "d.de.vtt": None, "d.en.vtt": "d",
             "e.de.vtt": None, "e.vtt": "e", "readme.txt": None,
             "lasagna.raw.srt": "lasagna.raw", "lasagna.en.srt": "lasagna",
             "Title [x_1].en-orig.vtt": "Title [x_1]", "cre\u0300me.en.vtt": "cr\u00e8me"}
    for name in names:
        (tmp_path / name).write_text("no narration")
    found = Captions(tmp_path)
    assert {id: file.name for id, file in found.items()} == {
        id: name for name, id in names.items() if id}
    assert list(found) == sorted(found)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty: no narrations; a folder of ID\.csv"):
        Captions(tmp_path / "empty")


@pytest.mark.parametrize("name, content, message", [
    ("v.csv", "start,end,text\n0,1,a\n2,1,b\n", "v.csv:3: starts at 2 s and ends at 1 s"),
    ("v.csv", "start,end,text\n0,x,a\n", "v.csv:2: .*'x'.*; times must be"),
    ("v.csv", f'start,end,text\n0,1,"{"a" * 140_000}\n', "v.csv: .*limit.*; a quote may be open"),
    ("v.srt", "hello\n", "v.srt:1: no srt and no vtt"),
    ("v.srt", "1\n00:00:01,000 --> soon\na\n", "v.srt:2: .*'soon'.*; times must be"),
    ("c.json", '{"v":\n{"start": [', "c.json: .*line 2.*; a folder of ID.csv"),
    ("c.json", '{"v": {"start": [0], "end": [1, 2], "text": ["a"]}}', "video v: .*of one length")])
def test_a_narration_at_fault_is_named_with_its_line(tmp_path, name, content, message):
    """Catches: a traceback, a sentence without length, an error without file and line."""
    with pytest.raises(InputError, match=message) as error:
        read(tmp_path, name, content)
    assert str(error.value).startswith(str(tmp_path)) and "\n" not in str(error.value)
