"""Verb phrases from narrations: the pool y^{1:K} that clips are matched with.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.2 and 4; the rule is that of Shen et al.,
CVPR 2021, on a dependency parse. "take off the covers" and "put a link in the box" are such. Each
entry of a narration is parsed alone: a phrase split between two is not found. The released file has
each phrase's concreteness in a third column, at least 4.2; here it is empty.
"""
from collections import Counter

from tqdm import tqdm

from files.captions import Captions
from support.command import BadInput, require, write_text


def verb_phrases(doc):
    """The phrases [str, ...] of one parsed text (a spacy Doc), in lower case and without commas: of
    each direct object that is not a pronoun its verb's lemma and particle, and its noun chunk; then
    the verb's first preposition with an object, and that one's noun chunk."""
    chunks = {chunk.root.i: chunk.text for chunk in doc.noun_chunks}
    phrases = []
    for token in doc:
        if token.dep_ == "dobj" and token.pos_ != "PRON":
            verb = token.head
            words = [verb.lemma_, *(child.text for child in verb.children if child.dep_ == "prt"),
                     chunks.get(token.i, token.text)]
            places = [(prep, place) for prep in verb.children if prep.dep_ == "prep"
                      for place in prep.children if place.dep_ == "pobj"]
            for prep, place in places[:1]:
                words += [prep.text, chunks.get(place.i, place.text)]
            phrases.append(" ".join(" ".join(words).replace(",", " ").lower().split()))
    return phrases


def load_parser(name):
    """A spaCy model with a dependency parser; BadInput if spaCy or the model is not installed."""
    try:
        import spacy
    except ImportError:
        raise BadInput("this needs spaCy, which is not installed: `pip install spacy`, then "
                       "`python -m spacy download en_core_web_sm`; or take the release's list: "
                       "docs/data.md") from None
    try:
        nlp = spacy.load(name, exclude=["ner"])
    except (OSError, ImportError, ValueError) as error:
        raise BadInput(f"--spacy-model {name}: {str(error).splitlines()[0]} Install it with "
                       f"`python -m spacy download {name}`, or name a model's folder") from None
    require("parser" in nlp.pipe_names, f"--spacy-model {name}: it has no dependency parser (it "
            f"has: {', '.join(nlp.pipe_names) or 'nothing'}); en_core_web_sm has one")
    return nlp


def collect(settings):
    """Write the file of phrases. settings: see __main__.PhrasesSettings."""
    captions, nlp = Captions(settings.captions), load_parser(settings.spacy_model)
    counts = Counter()
    texts = (text for name in tqdm(captions, desc="narrations", mininterval=1)
             for _, _, text in captions.sentences(name))
    for doc in nlp.pipe(texts):
        counts.update(verb_phrases(doc))
    frequent = sorted((-count, phrase) for phrase, count in counts.items()
                      if count >= settings.min_count)[:settings.top]
    kept = f"{len(frequent)} of {len(counts)} phrases of {len(captions)} narrations"
    require(len(frequent) > 1, f"{settings.captions}: {kept} occur often enough, two are needed; "
            f"lower --min-count {settings.min_count}")
    write_text(settings.out, "".join(f"{phrase},{-count},\n" for count, phrase in frequent))
    print(f"{settings.out}: {kept}")
