"""Pairs of which one side is not in its language, as py3langid finds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field, NonNegativeInt

from transformer_jax.data.filters.base import Filter
from transformer_jax.data.sources.base import Languages, Pair
from transformer_jax.settings.languages import detector, detector_label


@dataclass(frozen=True)
class Language(Filter):
    """Pairs of which one side is probably in another language.

    It needs `pip install 'transformer-jax[langid]'`, and is counted only where it is chosen, as
    it is much slower than the others. Languages that it does not know are not judged.
    """

    counted: ClassVar[bool] = False

    least: Annotated[float, Field(gt=0, lt=1)] = 0.1  #: the least probability of its own language
    shortest: NonNegativeInt = 30  #: shorter sentences, in characters, are not judged

    def marks(self, pairs: Sequence[Pair], languages: Languages) -> np.ndarray:
        bad = np.zeros(len(pairs), bool)
        for side, code in enumerate(languages):
            if label := detector_label(code):
                bad |= [self._differs(pair[side], label) for pair in pairs]
        return bad

    def _differs(self, text: str, label: str) -> bool:
        if len(text) < self.shortest:
            return False
        return dict(detector().rank(text))[label] < self.least
