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


Verbs = dict[str, Verb]  #: by the English base form with its particle or preposition


@dataclass(frozen=True)
class Lexicon:
    """All words. `attributes` stand before a noun, `states` in a clause with "to be"."""

    persons: tuple[Noun, ...]
    relatives: tuple[Noun, ...]
    animals: tuple[Noun, ...]
    things: dict[str, tuple[Noun, ...]]  #: by group
    places: tuple[Noun, ...]
    names: tuple[Noun, ...]  #: given names, the same in both languages
    adjectives: dict[str, tuple[str, str]]  #: German predicate form, German stem before an ending
    thing_attributes: tuple[str, ...]
    thing_states: tuple[str, ...]
    person_attributes: tuple[str, ...]
    relative_attributes: tuple[str, ...]
    animal_attributes: tuple[str, ...]
    place_attributes: tuple[str, ...]
    person_states: tuple[str, ...]
    opposites: tuple[set[str], ...]  #: adjectives that contradict each other in one sentence
    thing_verbs: Verbs  #: the object is a thing
    person_verbs: Verbs  #: the object is a person or an animal
    giving_verbs: Verbs  #: with a recipient (dative) and a thing (accusative)
    place_verbs: Verbs  #: without an object, with a place
    time_verbs: Verbs  #: without an object, with a time
    motion_verbs: Verbs  #: without an object, into a place
    frame_verbs: Verbs  #: with a clause, an infinitive or a price
    #: Adjectives of the thing that are a reason to do it ("because"), or not to ("although").
    reasons: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]
    times: dict[Tense, tuple[Draft, ...]]  #: that agree with each tense
    manners: tuple[Draft, ...]
    #: German finite auxiliaries in the order FIRST, THIRD, PLURAL.
    auxiliaries: dict[str, tuple[str, str, str]]
    #: Of articles and adjectives, by declension and gender (or "plural"), in the order of `CASES`.
    endings: dict[str, dict[str, tuple[str, str, str]]]
    english_ones: tuple[str, ...]  #: 0 to 19
    english_tens: tuple[str, ...]  #: 20, 30 ... 90
    german_ones: tuple[str, ...]
    german_tens: tuple[str, ...]

    def things_of(self, groups: Iterable[str]) -> list[Noun]:
        """The things of several groups."""
        return [noun for group in groups for noun in self.things[group]]

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
    if not 2 <= number <= 99:
        raise ValueError(f"number must be 2 to 99, got {number}")
    if number < 20:
        return WORDS.english_ones[number], WORDS.german_ones[number]
    tens, ones = divmod(number, 10)
    english, german = WORDS.english_tens[tens - 2], WORDS.german_tens[tens - 2]
    if not ones:
        return english, german
    return f"{english}-{WORDS.english_ones[ones]}", f"{WORDS.german_ones[ones]}und{german}"
