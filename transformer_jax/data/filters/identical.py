"""Pairs whose sides are the same text."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transformer_jax.data.filters.base import Filter
from transformer_jax.data.sources.base import Languages, Pair


@dataclass(frozen=True)
class Identical(Filter):
    """Pairs whose source and target are equal, but for spaces at their ends."""

    def marks(self, pairs: Sequence[Pair], languages: Languages) -> np.ndarray:
        return np.array([source.strip() == target.strip() for source, target in pairs], bool)
