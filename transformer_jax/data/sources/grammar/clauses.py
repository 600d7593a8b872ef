"""Phrases and clauses of the embedded corpus, each rendered in English and in German.

In German the place of the finite verb depends on the type of clause: second in a main clause
(`main`), before the subject if something else comes first (`inverted`), last in a subordinate
clause (`final`). Prefixes, participles and infinitives come at the end.
"""

from dataclasses import dataclass
from typing import Literal

from transformer_jax.data.sources.grammar.lexicon import (
    FIRST,
    PLURAL,
    THIRD,
    WORDS,
    Case,
    Draft,
    Noun,
    Tense,
    Verb,
    definite_article,
    indefinite_article,
    inflected_adjective,
    number_words,
)

Order = Literal["main", "inverted", "final"]
PresentOrPast = Literal["present", "past"]

#: The number of a plural that says no number.
SEVERAL = 0


def _join(*parts: str) -> str:
    return " ".join(part for part in parts if part)


@dataclass(frozen=True)
class Pronoun:
    """A personal pronoun; English has two forms, German three."""

    english_forms: tuple[str, str]
    german_forms: tuple[str, str, str]
    possessive: Draft  #: English word, German stem
    person: int = THIRD

    def english(self, case: Case) -> str:
        return self.english_forms[0 if case == "nominative" else 1]

    def german(self, case: Case) -> str:
        return self.german_forms[("nominative", "accusative", "dative").index(case)]


I = Pronoun(("I", "me"), ("ich", "mich", "mir"), ("my", "mein"), FIRST)  # noqa: E741
WE = Pronoun(("we", "us"), ("wir", "uns", "uns"), ("our", "unser"), PLURAL)
HE = Pronoun(("he", "him"), ("er", "ihn", "ihm"), ("his", "sein"))
SHE = Pronoun(("she", "her"), ("sie", "sie", "ihr"), ("her", "ihr"))
#: The pronoun for a thing or an animal, by German gender: one English word, three German ones.
IT = {
    "m": Pronoun(("it", "it"), ("er", "ihn", "ihm"), ("its", "sein")),
    "f": Pronoun(("it", "it"), ("sie", "sie", "ihr"), ("its", "ihr")),
    "n": Pronoun(("it", "it"), ("es", "es", "ihm"), ("its", "sein")),
}


@dataclass(frozen=True)
class Name:
    """A given name, the same in both languages and in every case."""

    name: str
    gender: str
    person: int = THIRD

    def english(self, case: Case) -> str:
        return self.name

    def german(self, case: Case) -> str:
        return self.name


@dataclass(frozen=True)
class NounPhrase:
    """Determiner, adjective, noun.

    The determiner is "the", "a", or a possessive (English word, German stem); a `number` above 1
    takes its place. With the number `SEVERAL` it is "the" or "": "the books", "books".
    """

    noun: Noun
    determiner: str | Draft = "the"
    adjective: str = ""
    number: int = 1

    @property
    def person(self) -> int:
        """THIRD for one, PLURAL for more."""
        return THIRD if self.number == 1 else PLURAL

    @property
    def gender(self) -> str:
        """m, f or n, as in German."""
        return self.noun.gender

    def english(self, case: Case) -> str:
        if self.number != 1:
            before = number_words(self.number)[0] if self.number else str(self.determiner)
            return _join(before, self.adjective, self.noun.english_plural)
        rest = f"{self.adjective} {self.noun.english}".strip()
        if isinstance(self.determiner, tuple):
            return f"{self.determiner[0]} {rest}"
        if self.determiner == "a" and rest[0] in "aeiou":
            return f"an {rest}"
        return f"{self.determiner} {rest}"

    def german(self, case: Case) -> str:
        gender = self.noun.gender
        noun = self.noun.german_singular(case)
        if self.number != 1:
            gender, noun = "plural", self.noun.german_many(case)
        if self.number > 1:
            article, after = number_words(self.number)[1], ""
        elif self.determiner == "the":
            article, after = definite_article(gender, case), "der"
        elif not self.determiner:
            article, after = "", ""
        else:
            stem = "ein" if self.determiner == "a" else self.determiner[1]
            article, after = indefinite_article(stem, gender, case), "ein"
        adjective = self.adjective and inflected_adjective(self.adjective, gender, case, after)
        return _join(article, adjective, noun)


#: A subject or an object. Its `person` is FIRST, THIRD or PLURAL. A pronoun comes before the nouns
#: of its clause, in both languages.
Phrase = Pronoun | Name | NounPhrase


def pronoun_for(phrase: NounPhrase | Name, *, thing: bool) -> Pronoun:
    """The pronoun for a singular phrase: it for things, he or she for persons."""
    if thing:
        return IT[phrase.gender]
    return HE if phrase.gender == "m" else SHE


def inside(place: NounPhrase) -> Draft:
    """Where something happens: "in the garden", "im Garten" (dative)."""
    german = place.german("dative")
    german = "im" + german[3:] if german.startswith("dem ") else "in " + german
    return f"in {place.english('dative')}", german


def into(place: NounPhrase) -> Draft:
    """Where something goes: "into the garden", "in den Garten" (accusative)."""
    german = place.german("accusative")
    german = "ins" + german[3:] if german.startswith("das ") else "in " + german
    return f"into {place.english('accusative')}", german


_ENGLISH_BE = {"present": ("am", "is", "are"), "past": ("was", "was", "were")}
_GERMAN_BE = {"present": WORDS.auxiliaries["sein"], "past": ("war", "war", "waren")}


def linked(*parts: Draft) -> Draft:
    """The parts one after the other, without spaces between them."""
    return "".join(part[0] for part in parts), "".join(part[1] for part in parts)


def _german_order(order: Order, subject: str, finite: str, middle: str, end: str) -> str:
    if order == "main":
        return _join(subject, finite, middle, end)
    if order == "inverted":
        return _join(finite, subject, middle, end)
    return _join(subject, middle, end, finite)


@dataclass(frozen=True)
class State:
    """A clause with "to be" and a complement (English, German)."""

    subject: Phrase
    complement: Draft
    tense: PresentOrPast = "present"
    negated: bool = False

    @classmethod
    def of(
        cls,
        subject: Phrase,
        adjective: str,
        tense: PresentOrPast = "present",
        negated: bool = False,
    ) -> "State":
        """The clause with an adjective as its complement."""
        return cls(subject, (adjective, WORDS.adjectives[adjective][0]), tense, negated)

    def english(self) -> str:
        """The English words."""
        be = _ENGLISH_BE[self.tense][self.subject.person]
        negation = "not" if self.negated else ""
        return _join(self.subject.english("nominative"), be, negation, self.complement[0])

    def english_question(self) -> str:
        """The words of a question, without its mark."""
        be = _ENGLISH_BE[self.tense][self.subject.person]
        return _join(be, self.subject.english("nominative"), self.complement[0])

    def german(self, order: Order = "main") -> str:
        """The German words, ordered for the type of clause."""
        return _german_order(
            order,
            self.subject.german("nominative"),
            _GERMAN_BE[self.tense][self.subject.person],
            "nicht" if self.negated else "",
            self.complement[1],
        )


@dataclass(frozen=True)
class Clause:
    """A clause with a full verb.

    `adverb` (a time) comes last in English and early in German, `place` late in both. Use
    `negated` only where it means the same in both languages: in present, past and future and
    with "can", with definite objects.

    A clause after "and" (`joined`) has no subject and, where both clauses share it, no
    auxiliary: "hat den Hut gesucht und ihn weggeworfen".
    """

    subject: Phrase
    verb: Verb
    tense: Tense = "present"
    object: Phrase | None = None
    recipient: Phrase | None = None
    adverb: Draft = ("", "")
    place: Draft = ("", "")
    negated: bool = False

    # English

    def _english_rest(self, form: str) -> str:
        """Everything after the subject and its auxiliaries, with the given verb form."""
        verb = self.verb
        thing = self.object.english("accusative") if self.object else ""
        recipient = self.recipient.english("dative") if self.recipient else ""
        if isinstance(self.object, Pronoun):
            phrase = _join(form, verb.preposition, thing, verb.particle)
        else:
            phrase = _join(form, verb.preposition or verb.particle, recipient, thing)
        return _join(phrase, self.place[0], self.adverb[0])

    def _english_auxiliary(self) -> tuple[str, str]:
        """The auxiliary of questions and negations, and the words before the base form."""
        third = self.subject.person == THIRD
        if self.tense == "past":
            return "did", ""
        if self.tense == "future":
            return "will", ""
        if self.tense in ("can", "must"):
            return self.tense, ""
        return ("does" if third else "do"), ("want to" if self.tense == "want" else "")

    def english(self, *, without_subject: bool = False, joined: bool = False) -> str:
        """The English words."""
        subject = "" if without_subject or joined else self.subject.english("nominative")
        base, third, past = self.verb.english
        if self.negated:
            auxiliary, infix = self._english_auxiliary()
            negated = "cannot" if auxiliary == "can" else f"{auxiliary} not"
            return _join(subject, negated, infix, self._english_rest(base))
        is_third = self.subject.person == THIRD
        if self.tense == "present":
            return _join(subject, self._english_rest(third if is_third else base))
        if self.tense == "past":
            return _join(subject, self._english_rest(past))
        if joined:
            return self._english_rest(base)
        if self.tense == "want":
            return _join(subject, "wants to" if is_third else "want to", self._english_rest(base))
        return _join(subject, self._english_auxiliary()[0], self._english_rest(base))

    def english_question(self) -> str:
        """The words of a question, without its mark."""
        auxiliary, infix = self._english_auxiliary()
        subject = self.subject.english("nominative")
        return _join(auxiliary, subject, infix, self._english_rest(self.verb.english[0]))

    def english_infinitive(self) -> str:
        """The clause without its subject: "pick up the letter today"."""
        return self._english_rest(self.verb.english[0])

    # German

    def _german_middle(self) -> str:
        thing = self.object.german(self.verb.case) if self.object else ""
        recipient = self.recipient.german("dative") if self.recipient else ""
        negation = "nicht" if self.negated else ""
        if isinstance(self.object, Pronoun):
            return _join(thing, self.adverb[1], negation, self.place[1])
        return _join(self.adverb[1], recipient, thing, negation, self.place[1])

    def _german_verbs(self) -> tuple[str, str, str]:
        """The finite verb, the end of a main clause, and the finite verb at the end of a clause."""
        verb, person = self.verb, self.subject.person
        infinitive, first, third, participle = verb.german
        if self.tense == "present":
            finite = (first, third, infinitive)[person]
            return finite, verb.prefix, verb.prefix + finite
        if self.tense == "past":
            finite = WORDS.auxiliaries[verb.auxiliary][person]
            return finite, participle, _join(participle, finite)
        finite = WORDS.auxiliaries[self.tense][person]
        closing = verb.prefix + infinitive
        return finite, closing, _join(closing, finite)

    def german(
        self, order: Order = "main", *, without_subject: bool = False, joined: bool = False
    ) -> str:
        """The German words, ordered for the type of clause."""
        subject = "" if without_subject or joined else self.subject.german("nominative")
        finite, closing, final = self._german_verbs()
        middle = self._german_middle()
        if joined and self.tense != "present":
            return _join(middle, closing)
        if order == "final":
            return _join(subject, middle, final)
        return _german_order(order, subject, finite, middle, closing)

    def german_infinitive(self) -> str:
        """The clause with "zu", inside a separable verb: "den Brief abzuholen"."""
        infinitive, prefix = self.verb.german[0], self.verb.prefix
        closing = f"{prefix}zu{infinitive}" if prefix else f"zu {infinitive}"
        return _join(self._german_middle(), closing)


def both(clause: State | Clause, order: Order = "main") -> Draft:
    """A clause in both languages, the German words ordered for the type of clause."""
    return clause.english(), clause.german(order)
