"""Random words, phrases and clauses for the sentence patterns of the embedded corpus."""

import random
from collections.abc import Sequence
from typing import TypeVar

from transformer_jax.data.sources.grammar import lexicon
from transformer_jax.data.sources.grammar.clauses import (
    HE,
    SHE,
    WE,
    Clause,
    I,
    Name,
    NounPhrase,
    Phrase,
    PresentOrPast,
    Pronoun,
    State,
    Tense,
    inside,
    into,
)
from transformer_jax.data.sources.grammar.lexicon import Noun

T = TypeVar("T")
#: English and German, without capital and full stop; questions end with "?".
Draft = tuple[str, str]

PRESENT_OR_PAST: tuple[PresentOrPast, ...] = ("present", "past")
_SIMPLE_TENSES: tuple[Tense, ...] = ("present", "present", "past", "past", "future")
_ALL_TENSES: tuple[Tense, ...] = (*_SIMPLE_TENSES, "can", "must", "want")

#: What has a price: everything but the letter.
WARES = lexicon.CARRIED[1:]
GOODS = WARES + lexicon.FURNITURE + lexicon.DEVICES
#: The things each verb is used with.
THINGS_OF_VERB: dict[str, tuple[Noun, ...]] = {
    "buy": GOODS,
    "sell": GOODS,
    "find": lexicon.CARRIED + lexicon.FURNITURE,
    "look for": lexicon.CARRIED + lexicon.FURNITURE,
    "pick up": lexicon.CARRIED,
    "bring along": lexicon.CARRIED,
    "throw away": lexicon.CARRIED,
    "hide": lexicon.CARRIED,
    "open": lexicon.OPENED,
    "close": lexicon.OPENED,
    "switch on": lexicon.DEVICES,
    "turn off": lexicon.DEVICES,
    "repair": lexicon.FURNITURE + lexicon.DEVICES,
    "clean": lexicon.FURNITURE + lexicon.OPENED,
    "paint": lexicon.FURNITURE,
}
#: Adjectives of the thing that are a reason to do it ("because"), or not to ("although").
REASONS = {
    "buy": (("cheap", "beautiful", "new"), ("expensive", "old", "dirty")),
    "sell": (("old", "small", "big"), ("beautiful", "new")),
    "hide": (("expensive", "beautiful"), ("old", "big")),
    "paint": (("old", "beautiful"), ("new", "small")),
    "clean": (("dirty",), ("new", "small")),
    "repair": (("broken",), ("old", "cheap")),
    "throw away": (("old", "dirty"), ("new", "expensive")),
    "pick up": (("new", "small"), ("heavy", "dirty")),
    "bring along": (("beautiful", "small"), ("heavy", "big")),
}
#: Times that agree with each tense.
TIMES: dict[Tense, tuple[Draft, ...]] = {
    "present": (("now", "jetzt"), ("every day", "jeden Tag"), ("in the evening", "am Abend")),
    "past": (("yesterday", "gestern"), ("today", "heute"), ("on Monday", "am Montag")),
    "future": (("tomorrow", "morgen"), ("today", "heute"), ("on Sunday", "am Sonntag")),
    "can": (("today", "heute"), ("tomorrow", "morgen")),
    "must": (("today", "heute"), ("tomorrow", "morgen")),
    "want": (("today", "heute"), ("tomorrow", "morgen")),
}
_MANNERS = (("early", "früh"), ("late", "spät"))


class Draw:
    """Random choices. Only `Random.random` is used, which is the same in every Python version."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        """True with the given probability."""
        return self._random() < probability

    def one(self, options: Sequence[T]) -> T:
        """One of the options, each as likely."""
        return options[int(self._random() * len(options))]

    def number(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return low + int(self._random() * (high - low + 1))

    def maybe(self, probability: float, options: Sequence[str]) -> str:
        """One of the options with the given probability, otherwise ""."""
        return self.one(options) if self.chance(probability) else ""

    def time(self, tense: Tense, probability: float) -> Draft:
        """A time that goes with the tense, with the given probability."""
        return self.one(TIMES[tense]) if self.chance(probability) else ("", "")

    def tense(self, *, simple: bool = False) -> Tense:
        """A tense; `simple` leaves out can, must and want."""
        return self.one(_SIMPLE_TENSES if simple else _ALL_TENSES)

    def tense_of(self, *tenses: Tense) -> Tense:
        """One of the given tenses."""
        return self.one(tenses)

    # Phrases

    def person(self, *, but_not: Phrase | None = None) -> NounPhrase | Name:
        """A person who is "he" or "she"; not of the gender of `but_not`."""
        while True:
            kind = self.one(("person", "person", "person", "relative", "relative", "name"))
            if kind == "name":
                phrase: NounPhrase | Name = Name(*self.one(lexicon.NAMES))
            elif kind == "relative":
                adjective = self.maybe(0.2, lexicon.RELATIVE_ATTRIBUTES)
                owner = self.one((I, WE)).possessive
                phrase = NounPhrase(self.one(lexicon.RELATIVES), owner, adjective)
            else:
                noun = self.one([n for n in lexicon.PERSONS if n.gender != "n"])
                adjective = self.maybe(0.35, lexicon.PERSON_ATTRIBUTES)
                phrase = NounPhrase(noun, "the", adjective)
            if phrase.gender != getattr(but_not, "gender", None):
                return phrase

    def subject(self) -> Phrase:
        """A subject: I, we, a person or a child."""
        if self.chance(0.2):
            return self.one((I, WE))
        if self.chance(0.1):
            return NounPhrase(lexicon.PERSONS[3], self.one(("the", "a")))
        return self.person()

    def thing(
        self, nouns: Sequence[Noun], owner: Phrase | None = None, *, definite: bool = False
    ) -> NounPhrase:
        """A thing, in some sentences the owner's: "his old hat"."""
        adjective = self.maybe(0.4, lexicon.THING_ATTRIBUTES)
        determiner: str | tuple[str, str] = "the" if definite or self.chance(0.6) else "a"
        if owner is not None and self.chance(0.25):
            determiner = possessive(owner) or determiner
        return NounPhrase(self.one(nouns), determiner, adjective)

    def animal(self, *, but_not: Phrase | None = None) -> NounPhrase:
        """An animal; not of the gender of `but_not`."""
        nouns = [n for n in lexicon.ANIMALS if n.gender != getattr(but_not, "gender", None)]
        adjective = self.maybe(0.4, lexicon.ANIMAL_ATTRIBUTES)
        return NounPhrase(self.one(nouns), "the", adjective)

    def place(self) -> NounPhrase:
        """A place to be in or to go into."""
        adjective = self.maybe(0.3, lexicon.PLACE_ATTRIBUTES)
        return NounPhrase(self.one(lexicon.PLACES), "the", adjective)

    def state(self, states: Sequence[str], *besides: str) -> str:
        """An adjective that neither repeats nor contradicts the others."""
        return self.one([s for s in states if all(compatible(s, other) for other in besides)])

    # Clauses

    def deed(self, subject: Phrase, tense: Tense, *, definite: bool = False) -> Clause:
        """Someone does something to a thing."""
        name = self.one(list(lexicon.THING_VERBS))
        thing = self.thing(THINGS_OF_VERB[name], subject, definite=definite)
        return Clause(subject, lexicon.THING_VERBS[name], tense, thing)

    def meeting(self, subject: Phrase, tense: Tense) -> Clause:
        """Someone does something to a person or an animal."""
        verb = lexicon.PERSON_VERBS[self.one(list(lexicon.PERSON_VERBS))]
        return Clause(subject, verb, tense, self.person(but_not=subject))

    def stay(self, subject: Phrase, tense: Tense) -> Clause:
        """Someone does something somewhere, comes, or goes."""
        group = self.one(("place", "motion", "time"))
        if group == "place":
            verb, where = self.one(list(lexicon.PLACE_VERBS.values())), inside(self.place())
            return Clause(subject, verb, tense, place=where)
        if group == "motion":
            verb, where = self.one(list(lexicon.MOTION_VERBS.values())), into(self.place())
            return Clause(subject, verb, tense, place=where)
        verb = self.one(list(lexicon.TIME_VERBS.values()))
        manner = self.one(_MANNERS) if self.chance(0.5) else ("", "")
        return Clause(subject, verb, tense, adverb=manner)

    def clause(self, subject: Phrase, *, simple: bool = True) -> Clause | State:
        """Any clause about the given person, short enough for a subordinate clause."""
        tense = self.tense(simple=simple)
        kind = self.one(("deed", "deed", "meeting", "stay", "state"))
        if kind == "deed":
            return self.deed(subject, tense)
        if kind == "meeting":
            return self.meeting(subject, tense)
        if kind == "stay":
            return self.stay(subject, tense)
        return State.of(subject, self.state(lexicon.PERSON_STATES), self.one(PRESENT_OR_PAST))


def possessive(owner: Phrase) -> tuple[str, str] | None:
    """My, our, his or her (English word, German stem); None for a child and for several."""
    if isinstance(owner, Pronoun):
        return owner.possessive
    if getattr(owner, "noun", None) is lexicon.PERSONS[3] or owner.person == lexicon.PLURAL:
        return None
    return (HE if getattr(owner, "gender", "") == "m" else SHE).possessive


def compatible(one: str, other: str) -> bool:
    """Whether two adjectives neither repeat nor contradict each other."""
    return one != other and {one, other} not in lexicon.OPPOSITES
