"""German-English sentence pairs drawn from a small grammar.

The grammar covers what makes this language pair hard, with words that a small model learns
in minutes: verb-final subordinate clauses, separable verbs, agreement in case and gender,
number words with swapped digits, and "it", whose German form depends on the noun that it
refers to. Each sentence has exactly one translation, in both directions.
"""

import functools
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from transformer_jax.data.sources.base import Languages, Pair, Source, Split
from transformer_jax.data.sources.grammar.draw import Draw
from transformer_jax.data.sources.grammar.lexicon import Draft
from transformer_jax.data.sources.grammar.patterns import PATTERNS, SHORT_PATTERNS, Pattern
from transformer_jax.data.sources.grammar.shortest import SHORTEST_PATTERNS
from transformer_jax.errors import UserError

#: Raise it when any sentence changes: the id caches depend on it.
VERSION = "1.2.0"
#: Sizes of the splits, which are cut in this order from one list.
SPLIT_SIZES: dict[Split, int] = {"train": 24_000, "validation": 500, "test": 500}
#: Of these "train" has so many, besides short and shortest sentences, and nothing held out.
NUM_LONG, NUM_SHORT, NUM_SHORTEST = 19_000, 3_000, 62_000


@dataclass(frozen=True)
class Grammar(Source):
    """About 82,000 sentence pairs drawn from a small grammar; see `sentences.py`."""

    # English to German, unless the config says otherwise.
    languages = ("en", "de")

    def has(self, split: Split) -> bool:
        """True: all three splits exist."""
        return True

    def pairs(self, split: Split, languages: Languages) -> Iterator[Pair]:
        """The pairs in the order in which the grammar draws them."""
        check_languages(languages)
        for english, german in split_pairs(split):
            yield (english, german) if languages == ("en", "de") else (german, english)

    def examples(self, language: str) -> list[str]:
        """The first three sentences of the validation set."""
        sides = {"en": 0, "de": 1}
        if language not in sides:
            return []
        return [pair[sides[language]] for pair in split_pairs("validation")[:3]]

    def fingerprint(self, split: Split, languages: Languages) -> str:
        """A hash of the grammar's version, since a version has one text."""
        check_languages(languages)
        content = f"grammar {VERSION} {split} {languages}"
        return hashlib.sha256(content.encode()).hexdigest()


def check_languages(languages: Languages) -> None:
    """Raises a UserError unless they are English and German."""
    if sorted(languages) != ["de", "en"]:
        raise UserError(
            f"the embedded corpora have English and German, not {languages[0]} -> {languages[1]}: "
            "set data.source_language and data.target_language to en and de, or de and en"
        )


def split_pairs(split: Split) -> list[Pair]:
    """The (English, German) pairs of a split.

    The splits are cut from one list without repetitions: no sentence is in two of them.
    """
    return _corpus()[split]


@functools.cache
def _corpus() -> dict[Split, list[Pair]]:
    long = islice(distinct(sentences(0)), sum(SPLIT_SIZES.values()))
    short = islice(sentences(0, SHORT_PATTERNS), NUM_SHORT)
    pairs = distinct(chain(long, short, sentences(0, SHORTEST_PATTERNS)))
    corpus = {split: list(islice(pairs, size)) for split, size in SPLIT_SIZES.items()}
    corpus["train"] = corpus["train"][:NUM_LONG] + list(islice(pairs, NUM_SHORT + NUM_SHORTEST))
    corpus["train"] = [pair for pair in corpus["train"] if not is_held_out(pair[0])]
    return corpus


def is_held_out(english: str) -> bool:
    """Whether no training text has this sentence, if it is one of up to 5 words: 1 of 16."""
    digest = hashlib.sha256(english.encode()).hexdigest()
    return digest[0] == "0" and len(english.split()) <= 5


def generate(seed: int, n: int) -> list[Pair]:
    """The first `n` (English, German) pairs of a seed, without those that repeat a sentence."""
    return list(islice(distinct(sentences(seed)), n))


def distinct(pairs: Iterable[Pair]) -> Iterator[Pair]:
    """The pairs, without those that repeat a sentence."""
    seen: tuple[set[str], set[str]] = set(), set()
    for pair in pairs:
        if pair[0] not in seen[0] and pair[1] not in seen[1]:
            seen[0].add(pair[0])
            seen[1].add(pair[1])
            yield pair


def sentences(seed: int, patterns: Sequence[Pattern] = PATTERNS) -> Iterator[Pair]:
    """Draws (English, German) pairs without end; pairs may repeat."""
    draw = Draw(seed)
    while True:
        yield finish(draw.one(patterns)(draw))


def finish(draft: Draft) -> Pair:
    """The sentences of a draft: a capital at the beginning, a full stop unless it is a question."""
    english, german = (text[0].upper() + text[1:] + "." * (text[-1] != "?") for text in draft)
    return english, german
