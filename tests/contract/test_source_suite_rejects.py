"""The suite of sources rejects each of these broken ones."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from transformer_jax.data.sources.base import Languages, Pair, Source, Split, missing
from transformer_jax.errors import UserError
from transformer_jax.testing import sources as suite


@dataclass(frozen=True)
class InMemory(Source):
    """Correct: pairs in a tuple."""

    text: tuple[tuple[str, tuple[Pair, ...]], ...]
    place: str

    def has(self, split: Split) -> bool:
        return split in dict(self.text)

    def pairs(self, split: Split, languages: Languages) -> Iterator[Pair]:
        if not self.has(split):
            raise missing(split, "one")
        for english, german in dict(self.text)[split]:
            yield (english, german) if languages == ("en", "de") else (german, english)

    def fingerprint(self, split: Split, languages: Languages) -> str:
        if not self.has(split):
            raise missing(split, "one")
        return f"{split} {languages} {dict(self.text)[split]!r}"


class Shuffled(InMemory):
    def pairs(self, split, languages):
        pairs = list(super().pairs(split, languages))
        return iter(random.sample(pairs, len(pairs)))


class WithoutTheLast(InMemory):
    def pairs(self, split, languages):
        return iter(list(super().pairs(split, languages))[:-1])


class OneWay(InMemory):
    def pairs(self, split, languages):
        return super().pairs(split, ("en", "de"))


class KnownByItsLength(InMemory):
    def fingerprint(self, split, languages):
        return f"{split} {len(dict(self.text)[split])}"


class KnownByItsPlace(InMemory):
    def fingerprint(self, split, languages):
        return super().fingerprint(split, languages) + self.place


class OneKeyForAllSplits(InMemory):
    def fingerprint(self, split, languages):
        return repr(dict(self.text)["train"])


class HashedByPython(InMemory):
    def fingerprint(self, split, languages):
        return str(hash(super().fingerprint(split, languages)))


class KnownByItsDirection(InMemory):
    def texts(self, languages):
        return [(self.fingerprint("train", languages), "")]


class HasEverything(InMemory):
    def has(self, split):
        return True


class KeyErrorForMissing(InMemory):
    def fingerprint(self, split, languages):
        return repr(dict(self.text)[split])


class ForgetsItsText(InMemory):
    def absolute(self):
        return type(self)((), self.place)


class PromisesDocuments(InMemory):
    has_documents = True


class ExamplesInAnyLanguage(InMemory):
    def examples(self, language):
        return ["The dog sleeps."]


BROKEN = [
    (Shuffled, suite.check_order_is_the_same_every_time),
    (WithoutTheLast, suite.check_pairs_are_exact),
    (OneWay, suite.check_direction),
    (KnownByItsLength, suite.check_fingerprint_follows_content),
    (KnownByItsPlace, suite.check_fingerprint_follows_content),
    (OneKeyForAllSplits, suite.check_fingerprint_knows_the_split),
    (HashedByPython, suite.check_fingerprint_is_the_same_in_another_process),
    (KnownByItsDirection, suite.check_texts_are_known_by_content),
    (HasEverything, suite.check_missing_split_is_named),
    (KeyErrorForMissing, suite.check_missing_split_is_named),
    (PromisesDocuments, suite.check_documents),
    (ForgetsItsText, suite.check_absolute),
    (ExamplesInAnyLanguage, suite.check_examples_are_sentences),
]


def maker(cls: type[InMemory]) -> suite.Maker:
    def make(folder: Path, text: suite.Text) -> tuple[Source, suite.Text]:
        return cls(tuple((name, tuple(pairs)) for name, pairs in text.items()), str(folder)), text

    return make


@pytest.mark.parametrize("check", suite.CHECKS, ids=lambda check: check.__name__)
def test_accepts_a_correct_source(check, tmp_path):
    check(maker(InMemory), tmp_path)


@pytest.mark.parametrize(("cls", "check"), BROKEN, ids=lambda value: value.__name__)
def test_rejects(cls, check, tmp_path):
    with pytest.raises((AssertionError, KeyError, UserError, pytest.fail.Exception)):
        check(maker(cls), tmp_path)


def test_every_check_rejects_something():
    assert {check for _, check in BROKEN} == set(suite.CHECKS)
