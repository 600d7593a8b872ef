"""Random choices that are the same on every machine and in every Python version."""

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draws:
    """Random choices. Only `Random.random` is used, which is the same in every Python version."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        """True with the given probability."""
        return self._random() < probability

    def one(self, options: Sequence[T]) -> T:
        """One of the options, each as likely."""
        return options[int(self._random() * len(options))]


def seed_of(key: str) -> int:
    """The seed that a text stands for."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
