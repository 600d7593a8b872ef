"""Pairs that occur before in the same corpus, exactly or nearly."""

import functools
import hashlib
import re
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transformer_jax.data.filters.base import Filter
from transformer_jax.data.sources.base import Languages, Pair


@functools.cache
def _no_letters() -> re.Pattern[str]:
    """Runs of what is neither a letter nor a mark: without marks, other words would be equal."""
    marks = [c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c)[0] == "M"]
    return re.compile(rf"(?:[^\w{''.join(marks)}]|[\d_])+")


@dataclass(frozen=True)
class Duplicates(Filter):
    """Pairs whose two sentences are those of an earlier pair.

    Pairs are compared by 64 bits of a hash: of ten million different pairs, two are taken for
    equal with a probability of 3 in a million.
    """

    def marks(self, pairs: Sequence[Pair], languages: Languages) -> np.ndarray:
        del languages
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
            (_no_letters().sub("", source).casefold(), _no_letters().sub("", target).casefold())
            for source, target in pairs
        ]
        return super().marks(letters, languages)
