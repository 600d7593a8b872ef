"""What each kind of noise answers; a noise is one file and a line of the registry."""

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeVar

from transformer_jax.data.sources.base import Pair

T = TypeVar("T")


class Draws:
    """Random choices. Only `Random.random` is used, which is the same in every Python version."""

    def __init__(self, key: str) -> None:
        seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
        self._random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        """True with the given probability."""
        return self._random() < probability

    def one(self, options: Sequence[T]) -> T:
        """One of the options, each as likely."""
        return options[int(self._random() * len(options))]


class Noise(ABC):
    """A change of the pairs of a corpus: `noise` of a corpus.

    It makes text as users type it, so that a model learns to translate that too. A noise is a
    frozen dataclass; its fields are the options.
    """

    @abstractmethod
    def __call__(self, pair: Pair, draws: Draws) -> Pair:
        """The pair with the noise.

        Args:
            pair: source and target sentence.
            draws: random choices, which depend on the noise and on the number of the pair.
        """
