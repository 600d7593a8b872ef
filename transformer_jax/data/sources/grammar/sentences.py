"""German-English sentence pairs drawn from a small grammar.

The grammar covers what makes this language pair hard, with words that a small model learns
in minutes: verb-final subordinate clauses, separable verbs, agreement in case and gender,
number words with swapped digits, and "it", whose German form depends on the noun that it
refers to. Each sentence has exactly one translation, in both directions.
"""

import functools
from collections.abc import Iterator

from transformer_jax.data.sources.grammar.draw import Draw
from transformer_jax.data.sources.grammar.patterns import PATTERNS

#: Raise it when any sentence changes: the id caches depend on it.
VERSION = "1.0.0"
#: Sizes of the splits, which are cut in this order from one list.
SPLIT_SIZES = {"train": 24_000, "validation": 500, "test": 500}


def _finish(draft: str) -> str:
    sentence = draft[0].upper() + draft[1:]
    return sentence if sentence.endswith("?") else sentence + "."


def sentences(seed: int) -> Iterator[tuple[str, str]]:
    """Draws (English, German) pairs without end; pairs may repeat."""
    draw = Draw(seed)
    while True:
        english, german = draw.one(PATTERNS)(draw)
        yield _finish(english), _finish(german)


def generate(seed: int, n: int) -> list[tuple[str, str]]:
    """The first `n` (English, German) pairs of a seed, without those that repeat a sentence."""
    pairs: list[tuple[str, str]] = []
    english_seen: set[str] = set()
    german_seen: set[str] = set()
    if n <= 0:
        return pairs
    for english, german in sentences(seed):
        if english in english_seen or german in german_seen:
            continue
        english_seen.add(english)
        german_seen.add(german)
        pairs.append((english, german))
        if len(pairs) == n:
            return pairs
    raise AssertionError("unreachable: the grammar draws without end")


@functools.cache
def _corpus() -> list[tuple[str, str]]:
    return generate(0, sum(SPLIT_SIZES.values()))


def split_pairs(split: str) -> list[tuple[str, str]]:
    """The (English, German) pairs of "train", "validation" or "test".

    The splits are cut from one list without repetitions: no sentence is in two of them.
    """
    start = 0
    for name, size in SPLIT_SIZES.items():
        if name == split:
            return _corpus()[start : start + size]
        start += size
    raise ValueError(f"split must be one of {list(SPLIT_SIZES)}, got {split!r}")
