"""Verb phrases from narrations, the pool y^{1:K} that clips are matched with (paper, Sec. 3.2), by
the rule of Shen et al., CVPR 2021, on a dependency parse: "take off covers", "put link in box".
Unlike in theirs, words like the, some and our are dropped: "add the salt" and "add our salt" are
one phrase. The third column of the released file, concreteness, is empty here."""
from collections import Counter

from tqdm import tqdm

from files.captions import MAX_UNREADABLE, Captions
from support.errors import InputError, require
from support.read import PHRASE
from support.write import write_text

MOST_PHRASES = 9871                    # phrases of the paper's pool
SPACY_MODEL = "en_core_web_sm"      # spaCy's, of English
WHICH = "DET", "PRON"         # the, some, this, our: they only say which one


def verb_phrases(doc):
    """Return the phrases [str, ...] of a parsed text (spacy Doc), in lower case, without commas.
    Each direct object that is no pronoun gives one: the verb's lemma and particle, its noun chunk,
    and the verb's first preposition that has an object, with the noun chunk of that object."""
    phrases, chunks = [], {}
    for chunk in doc.noun_chunks:
        words = [token.text_with_ws for token in chunk
                 if token.pos_ not in WHICH or token.i == chunk.root.i or token.text == "no"]
        chunks[chunk.root.i] = "".join(words)
    for token in doc:
        if token.dep_ != "dobj" or token.pos_ == "PRON":
            continue
        verb = token.head
        words = [verb.lemma_]
        words += [child.text for child in verb.children if child.dep_ == "prt"]
        words.append(chunks.get(token.i, token.text))
        prep, place = prepositional_object(verb)
        if prep is not None:
            words += [prep.text, chunks.get(place.i, place.text)]
        phrases.append(" ".join(" ".join(words).replace(",", " ").lower().split()))
    return phrases


def prepositional_object(verb):
    """The first preposition of a verb that has an object, and that object; None, None if none."""
    for prep in verb.children:
        if prep.dep_ == "prep":
            for place in prep.children:
                if place.dep_ == "pobj":
                    return prep, place
    return None, None


def narrated_texts(captions, wrong):
    """Yield the sentences of all narrations; {id: reason} of the unreadable is put into `wrong`."""
    for name in tqdm(captions, "captions", mininterval=1):
        try:
            sentences = captions.sentences(name)
        except (InputError, OSError) as error:
            wrong[name] = str(error)
            continue
        for _, _, text in sentences:
            yield text


def collect(args):
    """Write the file of phrases. args: see __main__.py. InputError if spaCy is not installed, or if
    the file exists: it may have been edited by hand."""
    require(not args.out.exists(), f"--out {args.out}: exists; give another name")
    try:
        import spacy
        nlp = spacy.load(SPACY_MODEL, exclude=["ner"])
    except (ImportError, OSError) as error:
        raise InputError(f"{str(error).splitlines()[0]}; `pip install spacy` and `python -m spacy "
                         f"download {SPACY_MODEL}`, or the released list: docs/data.md") from None
    captions, counts, wrong = Captions(args.captions), Counter(), {}
    for doc in nlp.pipe(narrated_texts(captions, wrong)):
        counts.update(filter(PHRASE.fullmatch, verb_phrases(doc)))     # none with a quote or _
    kept = sorted((-count, phrase) for phrase, count in counts.items() if count >= args.min_count)
    found = f"{len(captions)} narrations, {len(wrong)} unreadable: {len(counts)} phrases"
    require(len(wrong) <= MAX_UNREADABLE * len(captions), f"{found}; "
            f"{next(iter(wrong.values()), '')}")
    require(len(kept) > 1, f"{found}, {len(kept)} of them frequent; lower --min-count")
    write_text(args.out, "".join(f"{phrase},{-count},\n" for count, phrase in kept[:MOST_PHRASES]))
    print(f"{found}; {args.out} has the {min(MOST_PHRASES, len(kept))} most frequent")
