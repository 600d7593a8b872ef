"""Pairs that occur before in the same corpus, exactly or nearly."""

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transformer_jax.data.filters.base import Filter
from transformer_jax.data.sources.base import Languages, Pair


class _Letters(dict[int, str | None]):
    """A table for `str.translate` that keeps letters, and marks, which tell words apart."""

    def __missing__(self, code: int) -> str | None:
        character = chr(code)
        is_kept = _NO_LETTER.match(character) is None or unicodedata.category(character)[0] == "M"
        kept = self[code] = character if is_kept else None
        return kept


_NO_LETTER = re.compile(r"[\W\d_]")
_LETTERS = _Letters()


@dataclass(frozen=True)
class Duplicates(Filter):
    """Pairs whose two sentences are those of an earlier pair.

    Pairs are compared by 64 bits of a hash: of ten million different pairs, two are taken for
    equal with a probability of 3 in a million.
    """

    def marks(self, pairs: Sequence[Pair], languages: Languages) -> np.ndarray:
        digests = [
            hashlib.blake2b(f"{source}\0{target}".encode(), digest_size=8).digest()
            for source, target in pairs
        ]
        return np.frombuffer(b"".join(digests), "<u8")

    def bad(self, marks: np.ndarray) -> np.ndarray:
        _, first = np.unique(marks, return_index=True)
        repeated = np.ones(len(marks), bool)
        repeated[first] = False
        return repeated


@dataclass(frozen=True)
class NearDuplicates(Duplicates):
    """Pairs that differ from an earlier pair in case, digits, spaces and punctuation at most.

    Exact duplicates are among them.
    """

    def marks(self, pairs: Sequence[Pair], languages: Languages) -> np.ndarray:
        letters = [
            (source.translate(_LETTERS).casefold(), target.translate(_LETTERS).casefold())
            for source, target in pairs
        ]
        return super().marks(letters, languages)
