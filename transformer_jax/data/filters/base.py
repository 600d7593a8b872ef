"""What each filter of training pairs answers; a filter is one file and a line of the registry."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from transformer_jax.data.sources.base import Languages, Pair


class Filter(ABC):
    """A reason to leave pairs out of the training text: `data.filters`.

    A filter is a frozen dataclass; its fields are the options. It sees the pairs of one corpus,
    without tags, a part at a time (`marks`), and then the marks of all of them (`bad`).
    """

    #: Whether a new run counts its pairs also where the filter is not chosen.
    counted: ClassVar[bool] = True

    @abstractmethod
    def marks(self, pairs: Sequence[Pair], languages: Languages) -> np.ndarray:
        """What the filter notes about each pair: [pairs], of one dtype and a few bytes each.

        Args:
            pairs: source and target sentences.
            languages: their codes.

        Raises:
            UserError: a package that the filter needs is missing.
        """

    def key(self) -> dict[str, Any]:
        """The options, for caches: with what folders hold in place of their names."""
        return vars(self)

    def bad(self, marks: np.ndarray) -> np.ndarray:
        """Which pairs of a corpus to leave out: [pairs] bool.

        Args:
            marks: of all pairs, or of those with some of the marks; in the order of the pairs.
        """
        return marks
