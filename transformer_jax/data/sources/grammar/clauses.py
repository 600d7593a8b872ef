"""Phrases and clauses of the embedded corpus, each in English and in German.

In German the place of the finite verb depends on the type of clause: second in a main clause,
before the subject if something else comes first, last in a subordinate clause. Prefixes,
participles and infinitives come at the end.
"""

from dataclasses import dataclass
from typing import Literal

from transformer_jax.data.sources.grammar.lexicon import (
    CASES,
    FIRST,
    PLURAL,
    THIRD,
    WORDS,
    Case,
    Draft,
    Noun,
    Tense,
    Verb,
)

#: The type of a clause. `inverted`: something else comes first. `final`: after a conjunction.
#: `relative`: the same without its subject. `joined`: after "and", without what both clauses share,
#: "hat den Hut gesucht und ihn weggeworfen". `infinitive`: "pick up the letter", "den Brief
#: abzuholen".
Order = Literal["main", "inverted", "question", "final", "relative", "joined", "infinitive"]

NOTHING: Draft = ("", "")
THE: Draft = ("the", "der")
A: Draft = ("a", "ein")


def _join(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def linked(*parts: Draft | str) -> Draft:
    """The parts one after the other, without spaces between them; a `str` is in both languages."""
    drafts = [(part, part) if isinstance(part, str) else part for part in parts]
    return "".join(english for english, _ in drafts), "".join(german for _, german in drafts)


@dataclass(frozen=True)
class Pronoun:
    """A personal pronoun; English has two forms, German three."""

    english_forms: tuple[str, str]
    german_forms: tuple[str, str, str]
    possessive: Draft  #: English word, German stem
    person: int = THIRD
    gender: str = ""  #: none, even of "he" and "she"

    def english(self, case: Case) -> str:
        return self.english_forms[case != "nominative"]

    def german(self, case: Case) -> str:
        return self.german_forms[CASES.index(case)]


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
class NounPhrase:
    """Determiner, adjective, noun.

    The determiner is `THE`, `A`, a possessive (English word, German stem), the words of a number,
    or `NOTHING`, as before a name.
    """

    noun: Noun
    determiner: Draft = THE
    adjective: str = ""
    several: bool = False

    @property
    def person(self) -> int:
        """THIRD for one, PLURAL for more."""
        return PLURAL if self.several else THIRD

    @property
    def gender(self) -> str:
        """m, f or n, as in German."""
        return self.noun.gender

    def english(self, case: Case) -> str:
        noun = self.noun.english_plural if self.several else self.noun.english
        rest = _join(self.adjective, noun)
        needs_n = self.determiner == A and rest[0] in "aeiou"
        return _join(self.determiner[0] + "n" * needs_n, rest)

    def german(self, case: Case) -> str:
        gender = "plural" if self.several else self.noun.gender
        article, declension = self.determiner[1], "strong"
        if self.determiner == THE:
            article, declension = WORDS.ending("der", gender, case), "weak"
        elif article and not self.several:
            article, declension = article + WORDS.ending("ein", gender, case), "mixed"
        adjective = ""
        if self.adjective:
            stem = WORDS.adjectives[self.adjective][1]
            adjective = stem + WORDS.ending(declension, gender, case)
        return _join(article, adjective, self.noun.in_german(case, several=self.several))


#: A subject or an object. Its `person` is FIRST, THIRD or PLURAL. A pronoun comes before the nouns
#: of its clause, in both languages.
Phrase = Pronoun | NounPhrase


def pronoun_for(phrase: NounPhrase, *, thing: bool) -> Pronoun:
    """The pronoun for a singular phrase: it for things, he or she for persons."""
    if thing:
        return IT[phrase.gender]
    return HE if phrase.gender == "m" else SHE


def inside(place: NounPhrase) -> Draft:
    """Where something happens: "in the garden", "im Garten" (dative)."""
    german = f"in {place.german('dative')}".replace("in dem ", "im ")
    return f"in {place.english('dative')}", german


def into(place: NounPhrase) -> Draft:
    """Where something goes: "into the garden", "in den Garten" (accusative)."""
    german = f"in {place.german('accusative')}".replace("in das ", "ins ")
    return f"into {place.english('accusative')}", german


#: "to be", in present and past, with a complement. Its forms are in `_FINITE_BE` alone.
BE = Verb(("", "", ""), ("", "", "", ""))
_FINITE_BE = {
    "present": (("am", "bin"), ("is", "ist"), ("are", "sind")),
    "past": (("was", "war"), ("was", "war"), ("were", "waren")),
}


@dataclass(frozen=True)
class Clause:
    """A clause: who does what, or is what.

    `adverb` (a time) comes last in English and early in German. `complement` is a place, or what
    the subject is; it comes late in both. Use `negated` only where it means the same in both
    languages: in present, past and future and with "can", with definite objects.
    """

    subject: Phrase
    verb: Verb
    tense: Tense = "present"
    object: Phrase | None = None
    recipient: Phrase | None = None
    adverb: Draft = NOTHING
    complement: Draft = NOTHING
    negated: bool = False

    def words(self, order: Order = "main") -> Draft:
        """English and German words, ordered for the type of clause; no mark after a question."""
        return self._english(order), self._german(order)

    def _english(self, order: Order) -> str:
        subject = self.subject.english("nominative")
        finite, auxiliary, base = self._english_verbs()
        if order == "question":
            return _join(auxiliary, subject, self._english_predicate(base))
        if order == "infinitive" or (order == "joined" and self.tense == "future"):
            return self._english_predicate(base)
        if self.negated:
            finite = _join("cannot" if auxiliary == "can" else f"{auxiliary} not", base)
        predicate = self._english_predicate(finite)
        return predicate if order in ("relative", "joined") else _join(subject, predicate)

    def _english_verbs(self) -> tuple[str, str, str]:
        """Those of a statement; the auxiliary of questions and negations, and what follows it."""
        base, third, past = self.verb.english
        if self.verb is BE:
            be = _FINITE_BE[self.tense][self.subject.person][0]
            return be, be, ""
        is_third = self.subject.person == THIRD
        do = "does" if is_third else "do"
        if self.tense == "present":
            return third if is_third else base, do, base
        if self.tense == "past":
            return past, "did", base
        if self.tense == "want":
            return f"{'wants' if is_third else 'want'} to {base}", do, f"want to {base}"
        modal = "will" if self.tense == "future" else self.tense
        return f"{modal} {base}", modal, base

    def _english_predicate(self, verbs: str) -> str:
        """Verbs, particle, objects, complement and adverb."""
        verb = self.verb
        thing = self.object.english("accusative") if self.object else ""
        recipient = self.recipient.english("dative") if self.recipient else ""
        if isinstance(self.object, Pronoun):
            phrase = _join(verbs, verb.preposition, thing, verb.particle)
        else:
            phrase = _join(verbs, verb.preposition or verb.particle, recipient, thing)
        return _join(phrase, self.complement[0], self.adverb[0])

    def _german(self, order: Order) -> str:
        subject = self.subject.german("nominative")
        finite, closing, final = self._german_verbs()
        middle = self._german_middle()
        infinitive, prefix = self.verb.german[0], self.verb.prefix
        parts: dict[Order, tuple[str, ...]] = {
            "main": (subject, finite, middle, closing),
            "inverted": (finite, subject, middle, closing),
            "question": (finite, subject, middle, closing),
            "final": (subject, middle, final),
            "relative": (middle, final),
            "joined": (finite if self.tense == "present" else "", middle, closing),
            "infinitive": (middle, f"{prefix}zu{infinitive}" if prefix else f"zu {infinitive}"),
        }
        return _join(*parts[order])

    def _german_verbs(self) -> tuple[str, str, str]:
        """The finite verb, the end of a main clause, and both at the end of a subordinate one."""
        verb, person = self.verb, self.subject.person
        infinitive, first, third, participle = verb.german
        if verb is BE:
            be = _FINITE_BE[self.tense][person][1]
            return be, "", be
        if self.tense == "present":
            finite = (first, third, infinitive)[person]
            return finite, verb.prefix, verb.prefix + finite
        perfect = self.tense == "past"
        finite = WORDS.auxiliaries[verb.auxiliary if perfect else self.tense][person]
        closing = participle if perfect else verb.prefix + infinitive
        return finite, closing, f"{closing} {finite}"

    def _german_middle(self) -> str:
        thing = self.object.german(self.verb.case) if self.object else ""
        recipient = self.recipient.german("dative") if self.recipient else ""
        negation = "nicht" if self.negated else ""
        if isinstance(self.object, Pronoun):
            return _join(thing, self.adverb[1], negation, self.complement[1])
        return _join(self.adverb[1], recipient, thing, negation, self.complement[1])


def state(
    subject: Phrase, adjective: str, tense: Tense = "present", *, negated: bool = False
) -> Clause:
    """The clause that says how the subject is."""
    complement = adjective, WORDS.adjectives[adjective][0]
    return Clause(subject, BE, tense, complement=complement, negated=negated)
