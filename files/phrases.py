"""Verb phrases from narrations: the pool y^{1:K} that clips are matched with.

Paper: Zhong et al., CVPR 2023 (arXiv:2303.17839), Sec. 3.2 ("a pool of step descriptions in the
form of verb phrases") and 4; the rule is that of Shen et al., CVPR 2021, on a dependency parse.

    verb + particle + object                                    take off + the covers
    the same + preposition + its object, if the verb has one    put + a link + in + the box

Each entry of a narration is parsed alone: a phrase split between two entries is not found. The
9,871 released phrases have a count of at least 12 and a concreteness of at least 4.2.
"""
import re
from collections import Counter

from tqdm import tqdm

from files.captions import open_captions
from files.listings import load_ratings
from support.command import BadInput, require, write_text


def verb_phrases(doc):
    """The phrases [str, ...] of one parsed text (a spacy Doc), in lower case and without commas.

    For each direct object (`dobj`) that is not a pronoun: lemma of its verb, the verb's particle
    (`prt`), the object's noun chunk. If the verb has a preposition (`prep`) with an object
    (`pobj`), the first such preposition and its object's noun chunk follow.
    """
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
            phrases.append(" ".join(re.sub(r"[,\s]+", " ", " ".join(words)).split()).lower())
    return phrases


def concreteness(doc, ratings):
    """The largest rating (1 to 5) of a phrase's words or their lemmas; None if none is rated."""
    rated = [ratings[word] for token in doc for word in (token.text.lower(), token.lemma_.lower())
             if word in ratings]
    return max(rated, default=None)


def load_parser(name):
    """A spaCy model with a dependency parser; BadInput if spaCy or the model is not installed."""
    try:
        import spacy
    except ImportError:
        raise BadInput("this needs spaCy, which is not installed: `pip install spacy`, then "
                       "`python -m spacy download en_core_web_sm`; or take the released "
                       "phrase file") from None
    try:
        nlp = spacy.load(name, exclude=["ner"])
    except (OSError, ImportError, ValueError) as error:
        raise BadInput(f"--spacy-model {name}: {str(error).splitlines()[0]} Install it with "
                       f"`python -m spacy download {name}`, or name a model's folder") from None
    require("parser" in nlp.pipe_names, f"--spacy-model {name}: it has no dependency parser (it "
            f"has: {', '.join(nlp.pipe_names) or 'nothing'}); en_core_web_sm has one")
    return nlp


def collect(settings):
    """Write the file of phrases. settings: see commands.PhrasesSettings."""
    # 1. What is said, and how concrete words are. Files are checked before the parser is loaded.
    captions = open_captions(settings.captions)
    ratings = load_ratings(settings.concreteness) if settings.concreteness else {}
    nlp = load_parser(settings.spacy_model)
    # 2. Count the phrases of all narrations, read one by one.
    counts = Counter()
    texts = (text for name in tqdm(captions, desc="narrations", mininterval=1)
             for _, _, text in captions.sentences(name))
    for doc in nlp.pipe(texts):
        counts.update(verb_phrases(doc))
    # 3. The most frequent ones, equal counts by alphabet, each with its concreteness.
    frequent = sorted((-count, phrase) for phrase, count in counts.items()
                      if count >= settings.min_count)[:settings.top]
    docs = nlp.pipe(phrase for _, phrase in frequent) if ratings else [()] * len(frequent)
    rated = ((phrase, -count, concreteness(doc, ratings))
             for (count, phrase), doc in zip(frequent, docs))
    lines = [f"{phrase},{count},{'' if rating is None else rating}\n"
             for phrase, count, rating in rated]
    kept = f"{len(lines)} of {len(counts)} phrases of {len(captions)} narrations"
    require(len(lines) > 1, f"{settings.captions}: {kept} occur often enough, two are needed; "
            f"lower --min-count {settings.min_count}")
    write_text(settings.out, "".join(lines))
    print(f"{settings.out}: {kept}")
