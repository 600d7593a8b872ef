"""Sentences of two to five words, as often with each verb, adjective and noun of the lexicon."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

from transformer_jax.data.sources.grammar.clauses import (
    HE,
    NOTHING,
    SHE,
    WE,
    Clause,
    I,
    NounPhrase,
    Phrase,
    linked,
    state,
)
from transformer_jax.data.sources.grammar.draw import Draw
from transformer_jax.data.sources.grammar.lexicon import (
    WORDS,
    Draft,
    Noun,
    Tense,
    Verb,
    number_words,
)
from transformer_jax.data.sources.grammar.patterns import Pattern, short

Word = TypeVar("Word")

#: Tenses in which "not" means the same in both languages.
_NEGATED: tuple[Tense, ...] = ("present", "past", "future", "can")
#: Verbs have most forms in the present, and each its own in the past.
_PRESENT: tuple[Tense, ...] = ("present",)
_PAST: tuple[Tense, ...] = ("past",)
_TENSES: tuple[Tense, ...] = (*_PRESENT * 4, *_PAST * 3, "future", "can", "must", "want")
#: Verbs that mean something else without what they do it to, or are not German without it.
NEVER_ALONE = ("look for", "hide", "wake up", "try", "promise", "cost")
_LIVING = WORDS.nouns_of(("person", "relative", "animal", "name"))
_GOODS = WORDS.nouns_of(("wares", "furniture", "devices"))
_THINGS = [*_GOODS, *WORDS.nouns_of(("letters", "opened", "place"))]
#: Adjectives of what lives, and of what does not.
_OF_LIVING = [a for a in WORDS.adjectives if a not in ("new", "expensive", "cheap", "broken")]
_OF_THINGS = (*WORDS.states["thing"], "red", "black", "white", "green", "broken")
_FRAME = WORDS.verbs["frame"]


def _noun(draw: Draw, noun: Noun, *, plain: bool = False) -> NounPhrase:
    if noun in WORDS.nouns["name"]:
        return NounPhrase(noun, NOTHING)
    if noun in WORDS.nouns["relative"] and draw.chance(0.5):
        return NounPhrase(noun, draw.one((I, WE)).possessive)
    adjectives = _OF_LIVING if noun in _LIVING else _OF_THINGS
    return draw.any_article((noun,), () if plain else adjectives)


def _anyone(draw: Draw, *, but_not: Phrase | None = None) -> Phrase:
    """As `Draw.anyone`, half of them pronouns, mostly "I"; also for an object."""
    if draw.chance(0.5):
        return draw.one((HE, SHE) if but_not in (I, WE) else (I, I, WE, HE, SHE))
    return _noun(draw, draw.one(_LIVING))


def _alone(verb: Verb, draw: Draw) -> Draft:
    """I sleep. / Ich schlafe. Do I sleep now? / Schlafe ich jetzt?"""
    tense = draw.tense(*_TENSES)
    negated = tense in _NEGATED and draw.chance(0.15)
    adverb = draw.one((NOTHING, draw.one((*WORDS.times[tense], *WORDS.manners))))
    verb = replace(verb, preposition="")
    return short(draw, Clause(_anyone(draw), verb, tense, adverb=adverb, negated=negated))


def _with_thing(verb: Verb, draw: Draw) -> Draft:
    """We find a key. / Wir finden einen Schlüssel."""
    thing = _noun(draw, draw.one(WORDS.nouns_of(verb.things) or _GOODS))
    return short(draw, Clause(_anyone(draw), verb, draw.tense(*_TENSES), thing))


def _with_person(verb: Verb, draw: Draw) -> Draft:
    """She helps us. / Sie hilft uns."""
    subject = _anyone(draw)
    return short(draw, Clause(subject, verb, draw.tense(*_TENSES), _anyone(draw, but_not=subject)))


def _giving(verb: Verb, draw: Draw) -> Draft:
    """I give Anna books. / Ich gebe Anna Bücher."""
    subject, thing = _anyone(draw), _noun(draw, draw.one(_GOODS), plain=True)
    recipient = _anyone(draw, but_not=subject)
    if recipient is SHE:  # "her books" are hers
        recipient = HE
    return short(draw, Clause(subject, verb, draw.tense(*_TENSES), thing, recipient))


def _trying(verb: Verb, draw: Draw) -> Draft:
    """I try to sleep. / Ich versuche, zu schlafen."""
    infinitive = Clause(I, draw.verb("place", "time", "motion")).words("infinitive")
    main = Clause(_anyone(draw), verb, draw.tense("present", "past"))
    return linked(main.words(), (" to ", ", "), infinitive)


def _costing(verb: Verb, draw: Draw) -> Draft:
    """Hats cost ten euros. / Hüte kosten zehn Euro."""
    goods = Clause(_noun(draw, draw.one(_GOODS), plain=True), verb)
    return linked(goods.words(), " ", number_words(draw.one(range(2, 100))), (" euros", " Euro"))


def _being(adjective: str, draw: Draw) -> Draft:
    """The window is broken. / Das Fenster ist kaputt."""
    pairs = ((_OF_LIVING, _LIVING), (_OF_THINGS, _THINGS))
    nouns = draw.one([nouns for adjectives, nouns in pairs if adjective in adjectives])
    pronoun = nouns is _LIVING and draw.chance(0.4)
    subject = draw.one((I, WE, HE, SHE)) if pronoun else _noun(draw, draw.one(nouns), plain=True)
    return _state(subject, adjective, draw)


def _named(noun: Noun, draw: Draw) -> Draft:
    """A garden is beautiful. / We see the garden."""
    phrase = _noun(draw, noun, plain=True)
    if draw.chance(0.5):
        see = WORDS.verbs["person"]["see"]
        return short(draw, Clause(_anyone(draw), see, draw.tense(), phrase))
    return _state(phrase, draw.one(_OF_LIVING if noun in _LIVING else _OF_THINGS), draw)


def _state(subject: Phrase, adjective: str, draw: Draw) -> Draft:
    tense, negated = draw.tense("present", "present", "past"), draw.chance(0.15)
    return short(draw, state(subject, adjective, tense, negated=negated))


def _verbs(*groups: str) -> dict[str, Verb]:
    return {name: verb for group in groups for name, verb in WORDS.verbs[group].items()}


def _each(pattern: Callable[[Word, Draw], Draft], words: Iterable[Word]) -> Iterator[Pattern]:
    return (partial(pattern, word) for word in words)


_ALONE = (*_each(_alone, [v for n, v in _verbs(*WORDS.verbs).items() if n not in NEVER_ALONE]),)
_PERSON = [*_verbs("person").values(), _FRAME["ask"]]
_WITH_PERSON = (*_each(_with_person, _PERSON),)
_DATIVE = (*_each(_with_person, [verb for verb in _PERSON if verb.case == "dative"]),)
_GIVING = (*_each(_giving, _verbs("giving").values()),)
#: One for each kind of sentence and word; harder ones are drawn more often.
SHORTEST_PATTERNS: tuple[Pattern, ...] = (
    *_ALONE * 2,
    *_each(_with_thing, [*_verbs("thing").values(), _FRAME["promise"]]),
    *_WITH_PERSON * 3,
    *_DATIVE * 4,
    *_GIVING * 3,
    *_each(_trying, [_FRAME["try"], _FRAME["promise"]]),
    *_each(_costing, [_FRAME["cost"]]),
    *_each(_being, WORDS.adjectives),
    *_each(_named, [*_LIVING, *_THINGS]),
)
