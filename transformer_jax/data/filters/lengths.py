"""Pairs of which one side is much longer than the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field, FiniteFloat

from transformer_jax.data.filters.base import Filter
from transformer_jax.data.sources.base import Languages, Pair


@dataclass(frozen=True)
class LengthRatio(Filter):
    """Pairs with an empty side, or with (longer + 10) / (shorter + 10) above `most`, in characters.

    The ten characters let short sentences differ more.
    """

    most: Annotated[FiniteFloat, Field(gt=1)] = 3.0  #: the largest ratio that is kept

    def marks(self, pairs: Sequence[Pair], languages: Languages) -> np.ndarray:
        lengths = [(len(source.strip()), len(target.strip())) for source, target in pairs]
        shorter, longer = np.sort(np.array(lengths, np.int64).reshape(-1, 2), axis=1).T
        return np.asarray((longer + 10 > self.most * (shorter + 10)) | (shorter == 0))
