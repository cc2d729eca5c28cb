"""files/phrases.py: the rule on parses typed by hand (no spaCy needed), counting, the command."""
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import call, fails

from files import phrases
from files.listings import load_phrases

# Per token: text, part of speech, relation, its head's position, lemma where it differs.
PARSES = {" ".join(token.split()[0] for token in tokens.split("|")): (tokens, chunks, found)
          for tokens, chunks, found in [
    ("Take VERB ROOT 0 take|off ADP prt 0|the DET det 3|covers NOUN dobj 0 cover",
     [(2, 4)], ["take off the covers"]),
    ("take VERB ROOT 0|the DET det 2|lid NOUN dobj 0|off ADP prt 0",
     [(1, 3)], ["take off the lid"]),
    ("we PRON nsubj 1|put VERB ROOT 1|a DET det 3|link NOUN dobj 1|in ADP prep 1|the DET det 6|"
     "box NOUN pobj 4|for ADP prep 1|you PRON pobj 7",
     [(0, 1), (2, 4), (5, 7), (8, 9)], ["put a link in the box"]),
    ("They PRON nsubj 1|poured VERB ROOT 1 pour|the DET det 3|Sauce NOUN dobj 1 sauce",
     [(0, 1), (2, 4)], ["pour the sauce"]),
    ("stirring VERB ROOT 0 stir|it PRON dobj 0|gently ADV advmod 0", [(1, 2)], []),
    ("chain VERB ROOT 0|one NUM dobj 0|and CCONJ cc 0|cut VERB conj 0|some DET det 6|"
     "red ADJ amod 6|onions NOUN dobj 3 onion", [(4, 7)], ["chain one", "cut some red onions"]),
    ("heat VERB ROOT 0|the DET det 2|oil NOUN dobj 0|in ADP prep 0", [(1, 3)], ["heat the oil"]),
    ("the DET det 1|egg NOUN nsubj 2|cooks VERB ROOT 2 cook|in ADP prep 2|butter NOUN pobj 3",
     [(0, 2), (4, 5)], []),
    ("wash VERB ROOT 0|a DET det 5|big ADJ amod 5|, PUNCT punct 5|red ADJ amod 5|"
     "apple NOUN dobj 0", [(1, 6)], ["wash a big red apple"])]}


def plain_doc(words, chunks):
    """What the rule reads of a spacy Doc."""
    tokens = [SimpleNamespace(i=i, text=word[0], pos_=word[1], dep_=word[2],
                              lemma_=(word + word[:1])[4]) for i, word in enumerate(words)]
    for token, word in zip(tokens, words):
        token.head = tokens[int(word[3])]
        token.children = [t for t, w in zip(tokens, words) if int(w[3]) == token.i != t.i]

    class Doc(list):
        noun_chunks = [SimpleNamespace(root=tokens[b - 1],         # all end with their root here
                                       text=" ".join(token.text for token in tokens[a:b]))
                       for a, b in chunks]
    return Doc(tokens)


def parse(text):
    tokens, chunks, _ = PARSES[text]
    return plain_doc([token.split() for token in tokens.split("|")], chunks)


@pytest.mark.parametrize("text", PARSES)
def test_verb_phrases_of_parses_by_hand(text):
    """Catches: a particle lost; the object as its lemma; a pronoun or subject; a preposition."""
    assert phrases.verb_phrases(parse(text)) == PARSES[text][2]


class FakeParser:
    """A spaCy pipeline that knows the parses above, and splits every other text into words."""
    pipe_names = ["parser"]

    def pipe(self, texts):
        for text in texts:
            yield parse(text) if text in PARSES else plain_doc(
                [[word, "X", "dep", "0"] for word in text.split()], [])


def test_phrases_are_counted_and_sorted(tmp_path, monkeypatch, capsys):
    """Catches: counts per video, ties in another order, a line cut off, --top not honored."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(phrases, "load_parser", lambda name: FakeParser())
    texts = ["Take off the covers", "chain one and cut some red onions", "stirring it gently"]
    Path("captions").mkdir()
    for name, spoken in (("a", [*texts, texts[0]]), ("b", [texts[0], "take the lid off"])):
        rows = "".join(f"0,1,{text}\n" for text in spoken)
        Path(f"captions/{name}.csv").write_text("start,end,text\n" + rows)
    flags = ("files", "phrases", "--captions", "captions", "--min-count", "1")
    call(*flags, "--out", "pool.txt")
    assert Path("pool.txt").read_text() == ("take off the covers,3,\nchain one,1,\n"
                                            "cut some red onions,1,\ntake off the lid,1,\n")
    assert capsys.readouterr().out == "pool.txt: 4 of 4 phrases of 2 narrations\n"
    call(*flags, "--top", "2")
    assert load_phrases("phrases.txt") == ["take off the covers", "chain one"]
    with pytest.raises(SystemExit):
        call(*flags[:4], "--out", "none.txt")
    assert re.search("error: captions: 0 of 4 phrases of 2 narrations .*lower --min-count 12\n$",
                     capsys.readouterr().err)
    assert not list(Path().glob("none.txt*"))


def no_model(name, exclude):
    raise OSError(f"[E050] Can't find model '{name}'.\nmore lines")


@pytest.mark.parametrize("module, message", [
    (None, "this needs spaCy, which is not installed: `pip install spacy`, then"),
    (SimpleNamespace(load=no_model), "--spacy-model en_core_web_sm: [E050] Can't find model "
                           "'en_core_web_sm'. Install it with `python -m spacy download"),
    (SimpleNamespace(load=lambda name, exclude: SimpleNamespace(pipe_names=["tagger"])),
     "--spacy-model en_core_web_sm: it has no dependency parser (it has: tagger)"),
], ids=["no spaCy", "no model", "no parser"])
def test_what_is_not_installed_is_named(tmp_path, monkeypatch, capsys, module, message):
    """Catches: ImportError or spaCy's own error as a traceback; a pool of no phrases."""
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("start,end,text\n0,1,add salt\n")
    monkeypatch.setitem(sys.modules, "spacy", module)
    assert message in fails(capsys, 2, "files", "phrases", "--captions", ".", "--out",
                            "/dev/null")
