"""Facts, and the words that they decide, of four kinds.

A *fact* is a sentence. A *mark* is a later sentence with one German word that only the fact
decides. What a reader needs to know:

agreement
    "Here is the lamp." is the fact. A sentence that begins with "It" is about the thing of the
    last fact before it: "Er", "Sie" or "Es" by the gender of the German noun. No other sentence
    begins with "Here" or "It", but things of all genders are in them.
recall
    "The zorps are hats." says what an invented word means in this document. The fact keeps the
    invented word in German ("Die Zorps sind Hüte."), every later sentence has the meaning:
    "The zorps are new." is "Die Hüte sind neu.". A document defines a word once and uses it once.
consistency
    Some English nouns have two German ones of the same gender. The first sentence about the noun
    may have either: "I see the elevator." is "Ich sehe den Aufzug." or "Ich sehe den Fahrstuhl.".
    The source does not tell which. A later sentence has the same one as the first.
order
    "The zorps are now hats." says what an invented word means from now on. The last such sentence
    before a mark counts. A document changes each word at most four times, each time to another
    meaning.

**The chance of guessing.** The answer is drawn uniformly from 3 genders, 4 meanings, 2 nouns or 4
meanings, and is independent of everything else in the marked sentence. The wrong answers of a
mark are the other 2, 3, 1 or 3, so a guesser is right in 1/3, 1/4, 1/2 or 1/4 of the marks. Where
the number of facts is a multiple of four, each meaning is in the document as often as the other
three that are possible, so for recall and order the chance is the same for one who knows the
meanings but not which word, or which time, they belong to. With one definition it is 1 for that
reader. One who takes the last definition is right more often where few can be meant: in
`contrast.py` at short distances. Agreement, consistency and order have their deciding word in the
last sentence of its form; recall alone must be looked up by the word.

**The splits are disjoint.** A marked sentence has one of eight adjectives, and each noun or
invented word has six of them in "train", another in "validation" and another in "test". Besides,
half of the pairings of an invented word with a meaning are in "train", the other half elsewhere.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from transformer_jax.data.sources.base import Pair, Split
from transformer_jax.data.sources.grammar.clauses import (
    IT,
    NOTHING,
    THE,
    WE,
    Clause,
    I,
    NounPhrase,
    linked,
    state,
)
from transformer_jax.data.sources.grammar.draw import Draw
from transformer_jax.data.sources.grammar.lexicon import WORDS, Noun
from transformer_jax.data.sources.grammar.sentences import finish

T = TypeVar("T")


class Mark(NamedTuple):
    """A sentence in which a fact decides one German word."""

    pair: Pair
    wrong: tuple[str, ...]  #: the German sentence with each of the other words in its place
    fact: int  #: place of the deciding one among the episode's facts


class Episode(NamedTuple):
    """Facts, and marks that may come after all of them in any order."""

    facts: tuple[Pair, ...]
    marks: tuple[Mark, ...]


#: (random choices, split, number of facts of an episode) -> the episodes that a document may have
#: one after the other. It ends where no word is left that the document has not used.
Episodes = Callable[[Draw, Split, int], Iterator[Episode]]


class Kind(NamedTuple):
    """A kind of marked words."""

    episodes: Episodes
    usual: int  #: facts of an episode
    most: int  #: facts that an episode can have
    chance: float  #: of guessing a mark right


#: A marked thing is one of these. For each there is a part of the nouns or words that it goes with
#: in each split.
ADJECTIVES = WORDS.states["thing"][:8]
_PARTS: dict[Split, range] = {"train": range(6), "validation": range(6, 7), "test": range(7, 8)}

_THINGS = WORDS.nouns_of(("letters", "wares", "furniture", "opened", "devices"))
#: Eight things of each gender; "kitchen" is the eighth of the feminine ones.
TOPICS = {
    gender: [noun for noun in (*_THINGS, WORDS.nouns["place"][2]) if noun.gender == gender][:8]
    for gender in ("m", "f", "n")
}

_ONSETS = ("z", "fl", "gw", "kr", "pl", "tw", "v", "sm")
_RIMES = ("orp", "ilf", "unt", "epp", "ald", "omm", "iddo", "usk")
#: Invented nouns in the plural, in which German has one article for all genders.
INVENTED = [
    Noun("", f"{word}s", "", "", f"{word.capitalize()}s")
    for word in (onset + rime for onset in _ONSETS for rime in _RIMES)
]
#: What invented words mean.
MEANINGS = [
    next(noun for noun in _THINGS if noun.english == english)
    for english in ("hat", "clock", "book", "chair", "lamp", "boat", "basket", "bottle")
]

#: Nouns with two translations: English, one German, the other.
SYNONYMS = [
    (Noun(english, "", one, gender, ""), Noun(english, "", other, gender, ""))
    for english, gender, one, other in (
        ("elevator", "m", "Aufzug", "Fahrstuhl"),
        ("bucket", "m", "Eimer", "Kübel"),
        ("lorry", "m", "Lastwagen", "Laster"),
        ("attic", "m", "Dachboden", "Speicher"),
        ("carrot", "f", "Möhre", "Karotte"),
        ("cap", "f", "Mütze", "Kappe"),
        ("orange", "f", "Orange", "Apfelsine"),
        ("match", "n", "Streichholz", "Zündholz"),
    )
]


def agreement(draw: Draw, split: Split, facts: int) -> Iterator[Episode]:
    """Here is the lamp. ... It is new. / Hier ist die Lampe. ... Sie ist neu."""
    while True:
        topics = []
        for _ in range(facts):
            gender, key = draw.one(list(TOPICS)), draw.one(range(8))
            topics.append((gender, key, TOPICS[gender][key]))
        gender, key, _ = topics[-1]  # the last one counts
        adjective = _adjective(draw, split, key)
        right, *wrong = (finish(state(IT[g], adjective).words()) for g in _first(gender, TOPICS))
        mark = Mark(right, tuple(german for _, german in wrong), facts - 1)
        yield Episode(tuple(_here_is(noun) for *_, noun in topics), (mark,))


def _here_is(noun: Noun) -> Pair:
    english, german = _words(NounPhrase(noun))
    return finish((f"here is {english}", f"hier ist {german}"))


def recall(draw: Draw, split: Split, facts: int) -> Iterator[Episode]:
    """The zorps are hats. ... The zorps are new. / Die Zorps sind Hüte. ... Die Hüte sind neu."""
    unused = [*range(len(INVENTED))]
    while True:
        defined: list[tuple[int, int]] = []
        # Four words that may mean the same four things, each of them another one of these.
        for size in [4] * (facts // 4) + [facts % 4] * (facts % 4 > 0):
            classes = [[word for word in unused if word % 2 == parity] for parity in (0, 1)]
            classes = [words for words in classes if len(words) >= size]
            if not classes:
                return
            words = draw.shuffled(draw.one(classes))[:size]
            unused = [word for word in unused if word not in words]
            defined += zip(words, draw.shuffled(_meanings(words[0], split)), strict=False)
        defined = draw.shuffled(defined)
        yield Episode(
            tuple(_definition(word, meaning) for word, meaning in defined),
            tuple(_use(draw, split, pair, fact) for fact, pair in enumerate(defined)),
        )


def order(draw: Draw, split: Split, facts: int) -> Iterator[Episode]:
    """The zorps are now hats. ... The zorps are now books. ... The zorps are new. / ..."""
    for word in draw.shuffled(range(len(INVENTED))):
        meanings = draw.shuffled(_meanings(word, split))[:facts]
        changes = tuple(_definition(word, meaning, " now", " jetzt") for meaning in meanings)
        yield Episode(changes, (_use(draw, split, (word, meanings[-1]), facts - 1),))


def consistency(draw: Draw, split: Split, facts: int) -> Iterator[Episode]:
    """I see the cap. ... The cap is new. / Ich sehe die Kappe. ... Die Kappe ist neu."""
    keys = draw.shuffled(range(len(SYNONYMS)))
    while len(keys) >= facts:
        words, keys = keys[:facts], keys[facts:]
        first, marks = [], []
        for fact, key in enumerate(words):
            used, other = draw.shuffled(SYNONYMS[key])
            seen = Clause(draw.one((I, WE)), WORDS.verbs["person"]["see"], object=NounPhrase(used))
            adjective = _adjective(draw, split, key)
            right, wrong = (finish(state(NounPhrase(n), adjective).words()) for n in (used, other))
            first.append(finish(seen.words()))
            marks.append(Mark(right, (wrong[1],), fact))
        yield Episode(tuple(first), tuple(marks))


def _adjective(draw: Draw, split: Split, key: int) -> str:
    """An adjective that goes with the noun or word of this number in the split."""
    return ADJECTIVES[(draw.one(_PARTS[split]) - key) % len(ADJECTIVES)]


def _meanings(word: int, split: Split) -> Sequence[int]:
    """The four meanings that the word may have in the split."""
    return range((word + (split != "train")) % 2, len(MEANINGS), 2)


def _definition(word: int, meaning: int, english: str = "", german: str = "") -> Pair:
    """What the word means; the two texts follow the verb."""
    invented = NounPhrase(INVENTED[word], THE, several=True)
    meant = NounPhrase(MEANINGS[meaning], NOTHING, several=True)
    verbs = (f" are{english} ", f" sind{german} ")
    return finish(linked(_words(invented), verbs, _words(meant)))


def _words(phrase: NounPhrase) -> Pair:
    return phrase.english("nominative"), phrase.german("nominative")


def _use(draw: Draw, split: Split, defined: tuple[int, int], fact: int) -> Mark:
    """A sentence about the word, whose German has what it means."""
    word, meaning = defined
    adjective = _adjective(draw, split, word)
    right, *wrong = (
        finish(state(NounPhrase(MEANINGS[each], several=True), adjective).words())[1]
        for each in _first(meaning, _meanings(word, split))
    )
    english, _ = finish(state(NounPhrase(INVENTED[word], several=True), adjective).words())
    return Mark((english, right), tuple(wrong), fact)


def _first(item: T, items: Iterable[T]) -> list[T]:
    """The item, then the others."""
    return [item, *(each for each in items if each != item)]


KINDS = {
    "agreement": Kind(agreement, usual=1, most=64, chance=1 / 3),
    "recall": Kind(recall, usual=1, most=64, chance=1 / 4),
    "consistency": Kind(consistency, usual=1, most=len(SYNONYMS), chance=1 / 2),
    "order": Kind(order, usual=4, most=4, chance=1 / 4),
}
