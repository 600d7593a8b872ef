"""Random words, phrases and clauses for the sentence patterns of the embedded corpus."""

import random
from collections.abc import Sequence
from typing import TypeVar

from transformer_jax.data.sources.grammar.clauses import (
    HE,
    SEVERAL,
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
    inside,
    into,
)
from transformer_jax.data.sources.grammar.lexicon import (
    PLURAL,
    WORDS,
    Draft,
    Noun,
    Tense,
    Verb,
    Verbs,
)

T = TypeVar("T")

PRESENT_OR_PAST: tuple[PresentOrPast, ...] = ("present", "past")
_SIMPLE_TENSES: tuple[Tense, ...] = ("present", "present", "past", "past", "future")
_ALL_TENSES: tuple[Tense, ...] = (*_SIMPLE_TENSES, "can", "must", "want")
_CHILD = WORDS.persons[3]


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
        return self.one(options) if options and self.chance(probability) else ""

    def time(self, tense: Tense, probability: float) -> Draft:
        """A time that goes with the tense, with the given probability."""
        return self.one(WORDS.times[tense]) if self.chance(probability) else ("", "")

    def tense(self, *, simple: bool = False) -> Tense:
        """A tense; `simple` leaves out can, must and want."""
        return self.one(_SIMPLE_TENSES if simple else _ALL_TENSES)

    def tense_of(self, *tenses: Tense) -> Tense:
        """One of the given tenses."""
        return self.one(tenses)

    def verb(self, verbs: Verbs) -> Verb:
        """One of the verbs."""
        return self.one(list(verbs.values()))

    # Phrases

    def person(self, *, but_not: Phrase | None = None) -> NounPhrase | Name:
        """A person who is "he" or "she"; not of the gender of `but_not`."""
        while True:
            kind = self.one(("person", "person", "person", "relative", "relative", "name"))
            if kind == "name":
                phrase: NounPhrase | Name = Name(*self.one(WORDS.names))
            elif kind == "relative":
                adjective = self.maybe(0.2, WORDS.relative_attributes)
                owner = self.one((I, WE)).possessive
                phrase = NounPhrase(self.one(WORDS.relatives), owner, adjective)
            else:
                noun = self.one([n for n in WORDS.persons if n.gender != "n"])
                adjective = self.maybe(0.35, WORDS.person_attributes)
                phrase = NounPhrase(noun, "the", adjective)
            if phrase.gender != getattr(but_not, "gender", None):
                return phrase

    def subject(self) -> Phrase:
        """A subject: I, we, a person or a child."""
        if self.chance(0.2):
            return self.one((I, WE))
        if self.chance(0.1):
            return NounPhrase(_CHILD, self.one(("the", "a")))
        return self.person()

    def thing(
        self, nouns: Sequence[Noun], owner: Phrase | None = None, *, definite: bool = False
    ) -> NounPhrase:
        """A thing, in some sentences the owner's: "his old hat"."""
        adjective = self.maybe(0.4, WORDS.thing_attributes)
        determiner: str | Draft = "the" if definite or self.chance(0.6) else "a"
        if owner is not None and self.chance(0.25):
            determiner = possessive(owner) or determiner
        return NounPhrase(self.one(nouns), determiner, adjective)

    def anyone(self, *, but_not: Phrase | None = None) -> Phrase:
        """Anyone, with any article: I, she, Anna, my aunt, a dog, horses."""
        while True:
            kind = self.one(("pronoun", "name", "relative", "person", "person", "animal"))
            if kind == "pronoun" and but_not is None:
                return self.one((I, WE, HE, SHE))
            if kind == "name":
                phrase: NounPhrase | Name = Name(*self.one(WORDS.names))
            elif kind == "relative":
                owner = self.one((I, WE)).possessive
                phrase = NounPhrase(self.one(WORDS.relatives), owner)
            else:
                is_person = kind != "animal"
                nouns = WORDS.persons if is_person else WORDS.animals
                attributes = WORDS.person_attributes if is_person else WORDS.animal_attributes
                phrase = self.any_article(nouns, attributes)
            if kind != "pronoun" and phrase != but_not:
                return phrase

    def any_article(self, nouns: Sequence[Noun], attributes: Sequence[str]) -> NounPhrase:
        """The book, a book, the books, books; in some sentences with an adjective."""
        determiner, number = self.one((("the", 1), ("a", 1), ("the", SEVERAL), ("", SEVERAL)))
        return NounPhrase(self.one(nouns), determiner, self.maybe(0.25, attributes), number)

    def animal(self, *, but_not: Phrase | None = None) -> NounPhrase:
        """An animal; not of the gender of `but_not`."""
        nouns = [n for n in WORDS.animals if n.gender != getattr(but_not, "gender", None)]
        adjective = self.maybe(0.4, WORDS.animal_attributes)
        return NounPhrase(self.one(nouns), "the", adjective)

    def place(self) -> NounPhrase:
        """A place to be in or to go into."""
        adjective = self.maybe(0.3, WORDS.place_attributes)
        return NounPhrase(self.one(WORDS.places), "the", adjective)

    def state(self, states: Sequence[str], *besides: str) -> str:
        """An adjective that neither repeats nor contradicts the others."""
        return self.one([s for s in states if all(compatible(s, other) for other in besides)])

    # Clauses

    def deed(self, subject: Phrase, tense: Tense, *, definite: bool = False) -> Clause:
        """Someone does something to a thing."""
        name = self.one(list(WORDS.thing_verbs))
        thing = self.thing(WORDS.things_of_verb(name), subject, definite=definite)
        return Clause(subject, WORDS.thing_verbs[name], tense, thing)

    def meeting(self, subject: Phrase, tense: Tense) -> Clause:
        """Someone does something to a person or an animal."""
        verb = self.verb(WORDS.person_verbs)
        return Clause(subject, verb, tense, self.person(but_not=subject))

    def stay(self, subject: Phrase, tense: Tense) -> Clause:
        """Someone does something somewhere, comes, or goes."""
        group = self.one(("place", "motion", "time"))
        if group == "place":
            verb = self.verb(WORDS.place_verbs)
            return Clause(subject, verb, tense, place=inside(self.place()))
        if group == "motion":
            verb = self.verb(WORDS.motion_verbs)
            return Clause(subject, verb, tense, place=into(self.place()))
        verb = self.verb(WORDS.time_verbs)
        manner = self.one(WORDS.manners) if self.chance(0.5) else ("", "")
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
        return State.of(subject, self.state(WORDS.person_states), self.one(PRESENT_OR_PAST))


def possessive(owner: Phrase) -> Draft | None:
    """My, our, his or her (English word, German stem); None for a child and for several."""
    if isinstance(owner, Pronoun):
        return owner.possessive
    if getattr(owner, "noun", None) is _CHILD or owner.person == PLURAL:
        return None
    return (HE if getattr(owner, "gender", "") == "m" else SHE).possessive


def compatible(one: str, other: str) -> bool:
    """Whether two adjectives neither repeat nor contradict each other."""
    return one != other and {one, other} not in WORDS.opposites
