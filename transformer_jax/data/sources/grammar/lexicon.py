"""The words of the embedded German–English corpus (`lexicon.json`), and how they inflect.

Every English word has one German word and the other way round, so that a
translation is determined by its source. Words whose English present and past
look alike ("read", "put") are left out for the same reason, and so are "you"
(three German words) and nouns whose English form hides the sex of the person.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal, NamedTuple, get_args

from pydantic import TypeAdapter

Case = Literal["nominative", "accusative", "dative"]
CASES: tuple[Case, ...] = get_args(Case)
Tense = Literal["present", "past", "future", "can", "must", "want"]
#: Words in English and German. A draft of a sentence has neither capital nor full stop; questions
#: end with "?".
Draft = tuple[str, str]
#: The forms of a verb that are used here: I; he, she, it; we, they.
FIRST, THIRD, PLURAL = 0, 1, 2


class Noun(NamedTuple):
    """A noun. `gender` is m, f or n; `weak` German nouns end in -n except in the nominative."""

    english: str
    english_plural: str
    german: str
    gender: str
    german_plural: str
    weak: bool = False

    def in_german(self, case: Case, *, several: bool) -> str:
        """The German noun for one or for several."""
        if several:
            takes_n = case == "dative" and self.german_plural[-1] not in "ns"
            return self.german_plural + "n" * takes_n
        return self.german + "n" * (self.weak and case != "nominative")


@dataclass(frozen=True)
class Verb:
    """A verb in both languages.

    `english`: base form, third person and past. `particle` follows a pronoun ("picks it up"),
    `preposition` precedes it ("looks for it"). `german`: infinitive, first and third person
    singular, participle. `prefix`: of a separable verb. `auxiliary`: haben or sein, which forms
    the perfect. `things`: the groups of things that it is used with.
    """

    english: tuple[str, str, str]
    german: tuple[str, str, str, str]
    particle: str = ""
    preposition: str = ""
    prefix: str = ""
    case: Case = "accusative"
    auxiliary: Literal["haben", "sein"] = "haben"
    things: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lexicon:
    """All words."""

    nouns: dict[str, tuple[Noun, ...]]  #: by group, such as person, name, place or wares
    adjectives: dict[str, tuple[str, str]]  #: German predicate form, German stem before an ending
    attributes: dict[str, tuple[str, ...]]  #: adjectives before a noun, by its group or thing
    states: dict[str, tuple[str, ...]]  #: adjectives with "to be", of a thing or person
    opposites: tuple[set[str], ...]  #: adjectives that contradict each other in one sentence
    #: By group, and by the English base form with its particle or preposition. The object is a
    #: thing or a person; giving: with a recipient (dative) and a thing (accusative). Without an
    #: object: in a place, at a time, motion into a place. frame: with a clause, an infinitive or a
    #: price.
    verbs: dict[str, dict[str, Verb]]
    #: Adjectives of the thing that are a reason to do it ("because"), or not to ("although").
    reasons: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]
    times: dict[Tense, tuple[Draft, ...]]  #: that agree with each tense
    manners: tuple[Draft, ...]
    #: German finite auxiliaries in the order FIRST, THIRD, PLURAL.
    auxiliaries: dict[str, tuple[str, str, str]]
    #: Of articles and adjectives, by declension and gender (or "plural"), in the order of `CASES`.
    endings: dict[str, dict[str, tuple[str, str, str]]]
    ones: tuple[Draft, ...]  #: 0 to 19
    tens: tuple[Draft, ...]  #: 20, 30 ... 90

    def nouns_of(self, groups: Iterable[str]) -> list[Noun]:
        """The nouns of several groups."""
        return [noun for group in groups for noun in self.nouns[group]]

    def ending(self, declension: str, gender: str, case: Case) -> str:
        """A form of "der", or an ending of "ein" or of an adjective.

        Args:
            declension: der (also the relative pronoun in the singular), ein; or of an adjective:
                weak (after "der"), mixed (after "ein"), strong (in plurals without an article).
            gender: m, f, n or plural.
            case: of the noun.
        """
        return self.endings[declension][gender][CASES.index(case)]


WORDS = TypeAdapter(Lexicon).validate_json(
    files(__package__).joinpath("lexicon.json").read_text(encoding="utf-8")
)


def number_words(number: int) -> Draft:
    """English and German words of 2 to 99: `21 -> ("twenty-one", "einundzwanzig")`."""
    if number < 20:
        return WORDS.ones[number]
    english, german = WORDS.tens[number // 10 - 2]
    if not number % 10:
        return english, german
    english_one, german_one = WORDS.ones[number % 10]
    return f"{english}-{english_one}", f"{german_one}und{german}"
