"""Typing mistakes in the source."""

from dataclasses import dataclass

from transformer_jax.config_types import Rate
from transformer_jax.data.draws import Draws
from transformer_jax.data.noise.base import Noise
from transformer_jax.data.sources.base import Pair

_SHORTEST = 3  # letters of a word that can have one


@dataclass(frozen=True)
class Typos(Noise):
    """Some words of the source with a letter left out, doubled, or exchanged with the next."""

    share: Rate = 0.15  #: of the words of three letters or more

    def __call__(self, pair: Pair, draws: Draws) -> Pair:
        source, target = pair
        words = [
            _mistyped(word, draws) if len(word) >= _SHORTEST and draws.chance(self.share) else word
            for word in source.split(" ")
        ]
        return " ".join(words), target


def _mistyped(word: str, draws: Draws) -> str:
    place = draws.one(range(len(word) - 1))
    before, one, two, after = word[:place], word[place], word[place + 1], word[place + 2 :]
    middle = draws.one([two, one + one + two, two + one])
    return before + middle + after
