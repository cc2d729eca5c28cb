"""`python -m files check` and `phrases`: counts, names, verb phrases of parses by hand."""
import re
import runpy
import sys
from fractions import Fraction
from types import SimpleNamespace

import pytest

from commands import call, fails, read_json
from files import phrases
from files.lists import load_phrases
from test_lists import coin, entry
from test_video import write

# Of each text: its tokens (text, part of speech, relation, its head's place, lemma if another), the
# places of its noun chunks, its phrases.
PARSES = {" ".join(token.split()[0] for token in tokens.split("|")): (tokens, chunks, found)
          for tokens, chunks, found in [
    ("Take VERB ROOT 0 take|off ADP prt 0|the DET det 3|covers NOUN dobj 0 cover",
     [(2, 4)], ["take off the covers"]),
    ("we PRON nsubj 1|put VERB ROOT 1|a DET det 3|link NOUN dobj 1|in ADP prep 1|the DET det 6|"
     "Box NOUN pobj 4|for ADP prep 1|you PRON pobj 7",
     [(0, 1), (2, 4), (5, 7), (8, 9)], ["put a link in the box"]),
    ("stirring VERB ROOT 0 stir|it PRON dobj 0|gently ADV advmod 0", [(1, 2)], []),
    ("chain VERB ROOT 0|one NUM dobj 0|and CCONJ cc 0|cut VERB conj 0|red ADJ amod 5|"
     "onions NOUN dobj 3 onion", [(4, 6)], ["chain one", "cut red onions"]),
    ("the DET det 1|egg NOUN nsubj 2|cooks VERB ROOT 2 cook|in ADP prep 2|butter NOUN pobj 3",
     [(0, 2), (4, 5)], [])]}


def parse(text):
    """What the rule reads of a spacy Doc."""
    words, chunks, _ = PARSES[text]
    words = [word.split() for word in words.split("|")]
    tokens = [SimpleNamespace(i=i, text=word[0], pos_=word[1], dep_=word[2],
                              lemma_=(word + word[:1])[4]) for i, word in enumerate(words)]
    for token, word in zip(tokens, words):
        token.head = tokens[int(word[3])]
        token.children = [t for t, w in zip(tokens, words) if int(w[3]) == token.i != t.i]
    doc = type("Doc", (list,), {})(tokens)
    doc.noun_chunks = [SimpleNamespace(root=tokens[end - 1], text=" ".join(
        token.text for token in tokens[begin:end])) for begin, end in chunks]
    return doc


@pytest.mark.parametrize("text", PARSES)
def test_verb_phrases_of_parses_by_hand(text):
    """Catches: a particle lost; the object as its lemma; a pronoun or subject; a preposition."""
    assert phrases.verb_phrases(parse(text)) == PARSES[text][2]


def narrate(folder, **videos):
    """A folder of ID.csv, each with these texts."""
    folder.mkdir()
    for name, texts in videos.items():
        rows = "".join(f"0,1,{text}\n" for text in texts)
        (folder / f"{name}.csv").write_text("start,end,text\n" + rows)
    return folder


def test_phrases_are_counted_and_sorted(tmp_path, monkeypatch, capsys):
    """Catches: counts per video, ties in another order, --min-count not honored; a narration that
    cannot be read left out in silence."""
    take, _, it, chain, nothing = PARSES
    captions = narrate(tmp_path / "captions", a=[take, chain, nothing, take], b=[take, it], c=[])
    monkeypatch.setitem(sys.modules, "spacy", SimpleNamespace(load=lambda name, exclude: (
        {"de_core_news_sm": SimpleNamespace(pipe=lambda texts: map(parse, texts))}[name])))
    pool = tmp_path / "pool.txt"
    flags = "phrases", "--captions", captions, "--out", pool, "--model", "de_core_news_sm"
    assert "lower --min-count" in fails(capsys, "files", *flags)
    call("files", *flags, "--min-count", "1")
    assert pool.read_text().split("\n") == [
        "take off the covers,3,", "chain one,1,", "cut red onions,1,", ""]
    assert load_phrases(pool) == ["take off the covers", "chain one", "cut red onions"]
    (captions / "c.csv").write_text("no narration")    # promise 21: one of three is above 5 %
    assert "3 narrations, 1 unreadable" in fails(capsys, "files", *flags, "--min-count", "1")


def test_spacy_is_not_installed(monkeypatch, capsys):
    """Catches: ImportError, or spaCy's own error about a model, as a traceback."""
    def no_model(name, exclude):
        raise OSError(f"[E050] Can't find model '{name}'.\nmore lines")
    for module, reason in ((None, "spacy"), (SimpleNamespace(load=no_model), "[E050] Can't find")):
        monkeypatch.setitem(sys.modules, "spacy", module)
        line = fails(capsys, "files", "phrases", "--captions", "x", "--out", "no.txt")
        assert reason in line and "`pip install spacy` and `python -m spacy download" in line


def test_check_with_spawned_workers(tmp_path, monkeypatch, start_method):
    """Catches: what a spawned worker, as on macOS and Windows, cannot find in its __main__."""
    folder = narrate(tmp_path / "v", a=["add salt"])
    write(folder / "a.mp4")
    start_method("spawn")
    monkeypatch.delitem(sys.modules, "files.__main__", raising=False)   # not imported yet
    argv = "files", "check", "--data", "howto100m", "--captions", folder, "--videos", folder
    monkeypatch.setattr(sys, "argv", [*map(str, argv), "--workers", "1", "--json",
                                      str(tmp_path / "o.json")])
    runpy.run_module("files", run_name="__main__", alter_sys=True)
    assert read_json(tmp_path / "o.json")["unreadable_ids"] == {}


def test_check_names_what_cannot_be_used(tmp_path, capsys):
    """Catches: a file at fault that ends the check, or is not named; a video without a caption."""
    folder = narrate(tmp_path / "v", a=["add salt"], b=["stir", "cut"], c=["x"])
    (folder / "c.csv").write_text("no narration")
    for name in ("a.mp4", "silent.mp4"):
        write(folder / name)                           # 4 s
    whole = write(tmp_path / "b.mkv").read_bytes()
    (folder / "b.mkv").write_bytes(whole[:len(whole) // 2])
    file = tmp_path / "o.json"
    call("files", "check", "--data", "howto100m", "--captions", folder, "--videos", folder,
         "--json", file)
    result = read_json(file)
    reasons = result.pop("unreadable_ids")
    assert result == {"captions": 3, "unreadable_captions": 1, "sentences": 3, "hours": 0.0,
                      "video_hours": 0.0, "videos": 3, "found": 2, "absent": 1, "unreadable": 1,
                      "absent_ids": ["c"],
                      "without_captions_ids": ["silent"]}
    assert "c.csv:1: " in reasons["c"] and re.search("b.mkv: (ends|damaged)", reasons["b"])
    steps = ("1", [0, 2], "stir"), ("3", [1.5, 3.5], "stir")
    videos = {name: entry(*steps, subset="testing") for name in ("a", "b", "gone")}
    (tmp_path / "COIN.json").write_text(coin(**videos))
    for flags, found in ((["--videos", folder], [2, 1, 1]), ([], 3 * [None])):
        call("files", "check", "--annotations", tmp_path / "COIN.json", *flags, "--json", file)
        result = read_json(file)
        assert result["forecast"]["test"] == {"listed": 3, "videos": 3, **dict(
            zip(("found", "absent", "unreadable"), found))}
        assert (result["classes"], result["distinct_texts"]) == (3, 2)
        assert result["absent_ids"] == (["gone"] if flags else None)
        assert list(result["unreadable_ids"]) == (["b"] if flags else [])


@pytest.mark.parametrize("scale", [1, 1000, 0.02])
def test_captions_in_other_units_are_said(tmp_path, scale, capsys):
    """Catches: milliseconds, or another unit, that only the hours of the videos show; a video
    without a caption, or a caption without a video, that hides it."""
    folder = tmp_path / "v"
    folder.mkdir()
    for name in ("a", "b", "silent"):
        write(folder / f"{name}.mp4", ticks=range(20), base=Fraction(1))     # 20 s
    for name in ("a", "b", "gone"):
        (folder / f"{name}.csv").write_text(f"start,end,text\n0,{18 * scale},add salt\n")
    call("files", "check", "--data", "howto100m", "--captions", folder, "--videos", folder,
         "--json", tmp_path / "o.json")
    warned = re.search(r"2 videos last [34][890] s in all, their captions (\d+) s: are the times",
                       capsys.readouterr().out)
    assert (warned and warned[1]) == (None if scale == 1 else f"{36 * scale:.0f}")
    result = read_json(tmp_path / "o.json")
    assert result["hours"] == round(3 * 18 * scale / 3600, 2) and result["video_hours"] == 0.01


def test_what_is_not_there_is_one_line(tmp_path, capsys):
    """Catches: a traceback for a file or folder that does not exist, or for a flag left out; a
    folder of other videos that is counted in silence."""
    captions, other = narrate(tmp_path / "captions", a=["add salt"]), tmp_path / "other"
    other.mkdir()
    (other / "b.mp4").touch()
    check = "check", "--data", "howto100m", "--captions"
    for flags, reason in ((check[:3], "needs --captions"), ((*check, "nowhere"), "nowhere"),
                          ((*check, captions, "--videos", "nowhere"), "nowhere: no such folder"),
                          ((*check, captions, "--videos", other), "listed is 'a', a file is 'b'"),
                          (("check", "--annotations", "no.json"), "no.json")):
        assert reason in fails(capsys, "files", *flags)
