"""The suite of sources rejects each of these broken ones."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.broken import changed
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


class HashedByPython(InMemory):  # which other processes import
    def fingerprint(self, split, languages):
        return str(hash(super().fingerprint(split, languages)))


class KeyErrorForMissing(InMemory):
    def fingerprint(self, split, languages):
        return repr(dict(self.text)[split])


def without_the_direction(self, pairs, split, languages):
    return InMemory.pairs(self, split, ("en", "de"))


def by_the_length(self, key, split, languages):
    return f"{split} {len(dict(self.text)[split])}"


def by_the_direction(self, texts, languages):
    return [(self.fingerprint("train", languages), "")]


def of(name, change):
    return changed(InMemory, name, change)


BROKEN = [
    (
        suite.check_order_is_the_same_every_time,
        of("pairs", lambda self, pairs, *_: iter(sorted(pairs, key=lambda _: random.random()))),
    ),
    (suite.check_pairs_are_exact, of("pairs", lambda self, pairs, *_: iter(list(pairs)[:-1]))),
    (suite.check_direction, of("pairs", without_the_direction)),
    (suite.check_fingerprint_follows_content, of("fingerprint", by_the_length)),
    (
        suite.check_fingerprint_follows_content,
        of("fingerprint", lambda self, key, *_: key + self.place),
    ),
    (
        suite.check_fingerprint_knows_the_split,
        of("fingerprint", lambda self, *_: repr(dict(self.text)["train"])),
    ),
    (suite.check_fingerprint_is_the_same_in_another_process, HashedByPython),
    (suite.check_texts_are_known_by_content, of("texts", by_the_direction)),
    (suite.check_missing_split_is_named, of("has", lambda *_: True)),
    (suite.check_missing_split_is_named, KeyErrorForMissing),
    (suite.check_documents, of("has_documents", True)),
    (suite.check_absolute, of("absolute", lambda self, _: type(self)((), self.place))),
    (suite.check_examples_are_sentences, of("examples", lambda *_: ["The dog sleeps."])),
]


def maker(cls: type[InMemory]) -> suite.Maker:
    def make(folder: Path, text: suite.Text) -> tuple[Source, suite.Text]:
        return cls(tuple((name, tuple(pairs)) for name, pairs in text.items()), str(folder)), text

    return make


@pytest.mark.parametrize("check", suite.CHECKS, ids=lambda check: check.__name__)
def test_accepts_a_correct_source(check, tmp_path):
    check(maker(InMemory), tmp_path)


@pytest.mark.parametrize(("check", "cls"), BROKEN, ids=lambda value: value.__name__)
def test_rejects(check, cls, tmp_path):
    with pytest.raises((AssertionError, KeyError, UserError, pytest.fail.Exception)):
        check(maker(cls), tmp_path)


def test_every_check_rejects_something():
    assert {check for check, _ in BROKEN} == set(suite.CHECKS)
