"""Pairs of which one side is not in its language, as py3langid finds.

It is naive Bayes over byte n-grams (Lui and Baldwin 2012), small and without downloads, and right
for most sentences of 30 characters and more.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field, NonNegativeInt

from transformer_jax.data.filters.base import Filter
from transformer_jax.data.sources.base import Languages, Pair
from transformer_jax.errors import UserError


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
            base = code.replace("_", "-").partition("-")[0].lower()
            if base in _identifier().labels:
                bad |= [self._differs(pair[side], base) for pair in pairs]
        return bad

    def _differs(self, text: str, code: str) -> bool:
        if len(text) < self.shortest:
            return False
        return dict(_identifier().rank(text))[code] < self.least


@functools.cache
def _identifier() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ModuleNotFoundError as error:
        raise UserError(
            "data.filters=language needs a package: pip install 'transformer-jax[langid]'"
        ) from error
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
