"""Typing mistakes in the source."""

import re
from dataclasses import dataclass

from transformer_jax.data.draws import Draws
from transformer_jax.data.noise.base import Noise
from transformer_jax.data.sources.base import Pair
from transformer_jax.settings.types import Rate

_WORD = re.compile(r"\S{3,}")  # that can have one


@dataclass(frozen=True)
class Typos(Noise):
    """Some words of the source with a letter left out, doubled, or exchanged with the next."""

    share: Rate = 0.15  #: of the words of three letters or more

    def __call__(self, pair: Pair, draws: Draws) -> Pair:
        source, target = pair

        def typed(word: re.Match[str]) -> str:
            return _mistyped(word[0], draws) if draws.chance(self.share) else word[0]

        return _WORD.sub(typed, source), target


def _mistyped(word: str, draws: Draws) -> str:
    place = draws.one(range(len(word) - 1))
    before, one, two, after = word[:place], word[place], word[place + 1], word[place + 2 :]
    middle = draws.one([two, one + one + two, two + one])
    return before + middle + after
