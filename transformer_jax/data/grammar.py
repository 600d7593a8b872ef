"""An embedded German–English corpus: sentences drawn from a small grammar of our own.

It shows what makes this pair of languages hard, in words a small model learns in
minutes: verb-final subordinate clauses, separable verbs, agreement in case and
gender, number words whose digits swap, and "it", whose German form depends on
the noun it stands for. A sentence has one translation, in either direction.
"""

from collections.abc import Iterator

from transformer_jax.data.grammar_draw import Draw
from transformer_jax.data.grammar_patterns import PATTERNS

#: To be raised with every change of a sentence: TFDS and the id caches go by it.
VERSION = "1.0.0"
#: Sizes of the splits, cut in this order from one list.
SPLIT_SIZES = {"train": 24_000, "validation": 500, "test": 500}


def _finish(draft: str) -> str:
    sentence = draft[0].upper() + draft[1:]
    return sentence if sentence.endswith("?") else sentence + "."


def sentences(seed: int) -> Iterator[tuple[str, str]]:
    """Endless (English, German) pairs as the grammar draws them, repetitions included."""
    draw = Draw(seed)
    while True:
        english, german = draw.one(PATTERNS)(draw)
        yield _finish(english), _finish(german)


def generate(seed: int, n: int) -> list[tuple[str, str]]:
    """The first `n` (English, German) pairs of a seed in which no sentence comes twice."""
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
    raise AssertionError("unreachable: the grammar never ends")


def split_pairs(split: str, seed: int = 0) -> list[tuple[str, str]]:
    """The (English, German) pairs of "train", "validation" or "test".

    The three come from one list without repetitions, so that no sentence, English
    or German, stands in two of them.
    """
    start = 0
    for name, size in SPLIT_SIZES.items():
        if name == split:
            return generate(seed, start + size)[start:]
        start += size
    raise ValueError(f"split must be one of {list(SPLIT_SIZES)}, got {split!r}")
