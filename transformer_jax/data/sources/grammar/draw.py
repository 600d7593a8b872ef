"""Random words, phrases and clauses for the sentence patterns of the embedded corpus."""

from collections.abc import Sequence
from typing import TypeVar

from transformer_jax.data.draws import Draws
from transformer_jax.data.sources.grammar.clauses import (
    HE,
    NOTHING,
    SHE,
    THE,
    WE,
    A,
    Clause,
    I,
    NounPhrase,
    Phrase,
    Pronoun,
    inside,
    into,
    pronoun_for,
    state,
)
from transformer_jax.data.sources.grammar.lexicon import WORDS, Draft, Noun, Tense, Verb

T = TypeVar("T")

SIMPLE_TENSES: tuple[Tense, ...] = ("present", "present", "past", "past", "future")
_ALL_TENSES: tuple[Tense, ...] = (*SIMPLE_TENSES, "can", "must", "want")


class Draw(Draws):
    """Random choices of words, phrases and clauses."""

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """The items in random order."""
        rest = list(items)
        return [rest.pop(self.one(range(len(rest)))) for _ in items]

    def maybe(self, probability: float, options: Sequence[str]) -> str:
        """One of the options with the given probability, otherwise ""."""
        return self.one(options) if options and self.chance(probability) else ""

    def time(self, tense: Tense, probability: float) -> Draft:
        """A time that goes with the tense, with the given probability."""
        return self.one(WORDS.times[tense]) if self.chance(probability) else NOTHING

    def tense(self, *tenses: Tense) -> Tense:
        """One of the given tenses; default: of all."""
        return self.one(tenses or _ALL_TENSES)

    def verb(self, *groups: str) -> Verb:
        """One of the verbs of some groups."""
        return self.one([verb for group in groups for verb in WORDS.verbs[group].values()])

    # Phrases

    def person(self, *, but_not: Phrase | None = None) -> NounPhrase:
        """A person who is "he" or "she"; not of the gender of `but_not`."""
        while True:
            kind = self.one(("person", "person", "person", "relative", "relative", "name"))
            if kind == "name":
                phrase = NounPhrase(self.one(WORDS.nouns["name"]), NOTHING)
            elif kind == "relative":
                phrase = self._relative(WORDS.attributes["relative"])
            else:
                noun = self.one([n for n in WORDS.nouns["person"] if n.gender != "n"])
                phrase = NounPhrase(noun, THE, self.maybe(0.35, WORDS.attributes["person"]))
            if but_not is None or phrase.gender != but_not.gender:
                return phrase

    def _relative(self, attributes: Sequence[str] = ()) -> NounPhrase:
        adjective = self.maybe(0.2, attributes)
        owner = self.one((I, WE))
        return NounPhrase(self.one(WORDS.nouns["relative"]), owner.possessive, adjective)

    def subject(self) -> Phrase:
        """A subject: I, we, a person or a child."""
        if self.chance(0.2):
            return self.one((I, WE))
        if self.chance(0.1):
            child = WORDS.nouns["person"][3]
            return NounPhrase(child, self.one((THE, A)))
        return self.person()

    def thing(
        self, nouns: Sequence[Noun], owner: Phrase | None = None, *, definite: bool = False
    ) -> NounPhrase:
        """A thing, in some sentences the owner's: "his old hat"."""
        adjective = self.maybe(0.4, WORDS.attributes["thing"])
        determiner = THE if definite or self.chance(0.6) else A
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
                phrase = NounPhrase(self.one(WORDS.nouns["name"]), NOTHING)
            elif kind == "relative":
                phrase = self._relative()
            elif kind == "animal":
                phrase = self.any_article(WORDS.nouns["animal"], WORDS.attributes["animal"])
            else:
                phrase = self.any_article(WORDS.nouns["person"], WORDS.attributes["person"])
            if kind != "pronoun" and phrase != but_not:
                return phrase

    def any_article(self, nouns: Sequence[Noun], attributes: Sequence[str] = ()) -> NounPhrase:
        """The book, a book, the books, books; in some sentences with an adjective."""
        determiner, several = self.one(((THE, False), (A, False), (THE, True), (NOTHING, True)))
        return NounPhrase(self.one(nouns), determiner, self.maybe(0.25, attributes), several)

    def animal(self, *, but_not: Phrase | None = None) -> NounPhrase:
        """An animal; not of the gender of `but_not`."""
        nouns = [n for n in WORDS.nouns["animal"] if but_not is None or n.gender != but_not.gender]
        adjective = self.maybe(0.4, WORDS.attributes["animal"])
        return NounPhrase(self.one(nouns), THE, adjective)

    def place(self) -> NounPhrase:
        """A place to be in or to go into."""
        adjective = self.maybe(0.3, WORDS.attributes["place"])
        return NounPhrase(self.one(WORDS.nouns["place"]), THE, adjective)

    def adjective(self, adjectives: Sequence[str], *besides: str) -> str:
        """One that neither repeats nor contradicts the others."""
        return self.one([a for a in adjectives if all(compatible(a, other) for other in besides)])

    # Clauses

    def deed(self, subject: Phrase, tense: Tense, *, definite: bool = False) -> Clause:
        """Someone does something to a thing."""
        verb = self.verb("thing")
        thing = self.thing(WORDS.nouns_of(verb.things), subject, definite=definite)
        return Clause(subject, verb, tense, thing)

    def meeting(self, subject: Phrase, tense: Tense) -> Clause:
        """Someone does something to a person or an animal."""
        verb = self.verb("person")
        return Clause(subject, verb, tense, self.person(but_not=subject))

    def deed_or_meeting(self, subject: Phrase, tense: Tense, probability: float) -> Clause:
        """A deed with the given probability, otherwise a meeting."""
        kind = self.deed if self.chance(probability) else self.meeting
        return kind(subject, tense)

    def stay(self, subject: Phrase, tense: Tense) -> Clause:
        """Someone does something somewhere, comes, or goes."""
        group = self.one(("place", "motion", "time"))
        verb = self.verb(group)
        if group == "time":
            manner = self.one(WORDS.manners) if self.chance(0.5) else NOTHING
            return Clause(subject, verb, tense, adverb=manner)
        place = inside(self.place()) if group == "place" else into(self.place())
        return Clause(subject, verb, tense, complement=place)

    def clause(self, subject: Phrase) -> Clause:
        """Any clause about the given person, short enough for a subordinate clause."""
        tense = self.tense(*SIMPLE_TENSES)
        kind = self.one(("deed", "deed", "meeting", "stay", "state"))
        if kind == "state":
            return state(subject, self.one(WORDS.states["person"]), self.tense("present", "past"))
        return {"deed": self.deed, "meeting": self.meeting, "stay": self.stay}[kind](subject, tense)


def possessive(owner: Phrase) -> Draft | None:
    """My, our, his or her (English word, German stem); None for a child."""
    if isinstance(owner, Pronoun):
        return owner.possessive
    return None if owner.gender == "n" else pronoun_for(owner, thing=False).possessive


def compatible(one: str, other: str) -> bool:
    """Whether two adjectives neither repeat nor contradict each other."""
    return one != other and {one, other} not in WORDS.opposites
