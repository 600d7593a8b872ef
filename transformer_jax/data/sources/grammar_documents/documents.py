"""Documents of a few to a thousand sentences from the grammar of the embedded corpus.

Each has marked words of one kind (`kinds.py`), which only a sentence before them decides. The
sentences between are short ones of the grammar, and each has one translation wherever it stands.
They are short so that much of a text is what depends on other sentences. How many there are is
drawn so that each doubling of the distance is as likely as the next. Of each doubling of the length
of a document there are half as many documents, so as many sentences: the short ones teach how to
translate, and what a mark is, before the long ones can be learned from.

A document is a function of (seed, split, number), so documents are made when they are read.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Literal, NamedTuple, get_args

from annotated_types import Ge, Le
from pydantic import PositiveInt

from transformer_jax.data.draws import seed_of
from transformer_jax.data.sources.base import BOUNDARY, Languages, Pair, Source, Split
from transformer_jax.data.sources.grammar import sentences as grammar
from transformer_jax.data.sources.grammar.draw import Draw
from transformer_jax.data.sources.grammar.patterns import SHORT_PATTERNS
from transformer_jax.data.sources.grammar_documents.kinds import KINDS, Episode
from transformer_jax.errors import UserError
from transformer_jax.settings.types import COMMAS

#: Raise it when any document changes: the id caches depend on it.
VERSION = 2

KindName = Literal["agreement", "recall", "consistency", "order"]


class Line(NamedTuple):
    """A sentence of a document."""

    pair: Pair
    wrong: tuple[str, ...] = ()  #: of a marked sentence: the German one with each other word
    decided_by: int | None = None  #: of a marked sentence: the number of the line that decides


@dataclass(frozen=True)
class GrammarDocuments(Source):
    """Documents with words that only something far before them decides; see `kinds.py`.

    Each doubling of the number of sentences has as many sentences. "validation" and "test" share
    neither documents nor marked sentences with "train".
    """

    kinds: Annotated[tuple[KindName, ...], COMMAS] = get_args(KindName)
    #: of marked words; each document has one, and one that is named twice is twice as likely
    documents: PositiveInt = 10_000  #: of "train"
    held_out: PositiveInt = 100  #: documents of "validation", and of "test"
    least: Annotated[int, Ge(2)] = 2  #: sentences of the shortest documents
    most: Annotated[int, Ge(2)] = 100  #: sentences of the longest documents
    definitions: Annotated[tuple[Annotated[int, Ge(1), Le(64)], ...], COMMAS] = (1, 4, 16, 64)
    #: of invented words, one after the other, in recall; one number is drawn of those that fit
    seed: int = 0  #: another one draws other documents

    # English to German, unless the config says otherwise.
    languages = ("en", "de")

    # `BOUNDARY` ends each.
    has_documents = True

    def has(self, split: Split) -> bool:
        """True: all three splits exist."""
        return True

    def pairs(self, split: Split, languages: Languages) -> Iterator[Pair]:
        """The pairs of one document after the other, and `BOUNDARY` after each."""
        self._check(languages)
        for number in range(self.documents if split == "train" else self.held_out):
            for english, german in (*(line.pair for line in self.lines(split, number)), BOUNDARY):
                yield (english, german) if languages == ("en", "de") else (german, english)

    def fingerprint(self, split: Split, languages: Languages) -> str:
        """A hash of the versions and the options."""
        self._check(languages)
        content = f"{grammar.VERSION} {VERSION} {self} {split} {languages}"
        return hashlib.sha256(content.encode()).hexdigest()

    def lines(self, split: Split, number: int) -> list[Line]:
        """One document."""
        draw, fillers = streams(self.seed, split, number)
        length = _log_uniform(draw, self.least, self.most, as_many=False)
        name = draw.one(self.kinds)
        facts = min(KINDS[name].usual, length - 1)
        if name == "recall":
            fitting = [count for count in self.definitions if count < length]
            facts = draw.one(fitting or [min(self.definitions[0], length - 1)])
        episodes = KINDS[name].episodes(draw, split, facts)
        return _document(draw, fillers, episodes, length)

    def _check(self, languages: Languages) -> None:
        grammar.check_languages(languages)
        if self.least > self.most:
            raise UserError(
                f"grammar_documents(least={self.least}, most={self.most}): the shortest documents "
                "cannot be longer than the longest"
            )
        if not (self.kinds and self.definitions):
            raise UserError("grammar_documents: name at least one of kinds and of definitions")


def streams(*key: object) -> tuple[Draw, Iterator[Pair]]:
    """Random choices, and sentences without marked words, of a document with this key."""
    seeds = (seed_of(f"{key} {what}") for what in ("facts", "sentences"))
    return Draw(next(seeds)), grammar.sentences(next(seeds), SHORT_PATTERNS)


def _document(
    draw: Draw, fillers: Iterator[Pair], episodes: Iterator[Episode], length: int
) -> list[Line]:
    """Episodes with sentences between a fact and its mark, until the document has its length."""
    lines: list[Line] = []
    for episode in episodes:
        begin = len(lines)
        room = length - begin - len(episode.facts)
        if room < 1:
            break
        lines += map(Line, episode.facts)
        marks = draw.shuffled(episode.marks)[:room]
        for done, mark in enumerate(marks):
            free = length - len(lines) - (len(marks) - done)
            between = _log_uniform(draw, 1, free + 1) - 1
            lines += map(Line, islice(fillers, between))
            lines.append(Line(mark.pair, mark.wrong, begin + mark.fact))
    return [*lines, *map(Line, islice(fillers, length - len(lines)))]


def _log_uniform(draw: Draw, least: int, most: int, *, as_many: bool = True) -> int:
    """A number between the two, in whole numbers alone, which are the same on every machine.

    Each doubling is as likely; without `as_many` half as likely as the one before.
    """
    doublings = range(least.bit_length(), most.bit_length() + 1)
    bits = draw.one([b for b in doublings for _ in range(1 if as_many else 1 << doublings[-1] - b)])
    low, high = max(least, 1 << bits - 1), min(most, (1 << bits) - 1)
    return low + draw.one(range(high - low + 1))
