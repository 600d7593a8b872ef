"""Pairs that occur before in the same corpus, exactly or nearly."""

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transformer_jax.data.filters.base import Filter
from transformer_jax.data.sources.base import Languages, Pair

_NO_LETTERS = re.compile(r"[\W\d_]+")


def _marks(found: re.Match[str]) -> str:
    """The marks among what is no letter: without them, different words would be equal."""
    if found[0].isascii():
        return ""
    return "".join(c for c in found[0] if unicodedata.category(c)[0] == "M")


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
            (_NO_LETTERS.sub(_marks, source).casefold(), _NO_LETTERS.sub(_marks, target).casefold())
            for source, target in pairs
        ]
        return super().marks(letters, languages)
