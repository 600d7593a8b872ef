"""Other numbers."""

import re
from dataclasses import dataclass

from transformer_jax.data.draws import Draws
from transformer_jax.data.noise.base import Noise
from transformer_jax.data.sources.base import Pair

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Numbers(Noise):
    """Other digits in each number of two digits or more that both sides have, the same in both.

    A year stays a number of four digits, and 10.5 becomes 37.5: what is one digit stays, as it is
    often a word on the other side.
    """

    def __call__(self, pair: Pair, draws: Draws) -> Pair:
        of_source, of_target = (set(_NUMBER.findall(text)) for text in pair)
        shared = sorted(each for each in of_source & of_target if len(each) > 1)
        others = {
            number: draws.one("123456789") + "".join(draws.one("0123456789") for _ in number[1:])
            for number in shared
        }
        source, target = (
            _NUMBER.sub(lambda found: others.get(found[0], found[0]), text) for text in pair
        )
        return source, target
