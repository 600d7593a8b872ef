"""Sentences without their last mark."""

from dataclasses import dataclass

from transformer_jax.data.draws import Draws
from transformer_jax.data.noise.base import Noise
from transformer_jax.data.sources.base import Pair

#: Of the scripts that have one.
MARKS = ".!?…。！？।؟"


@dataclass(frozen=True)
class NoFinalMark(Noise):
    """Both sides without the full stop or other mark at their end, where both have one."""

    shortens = True

    def __call__(self, pair: Pair, draws: Draws) -> Pair:
        cut = [text.rstrip().rstrip(MARKS).rstrip() for text in pair]
        have_one = (text.rstrip()[-1:] in tuple(MARKS) for text in pair)
        return (cut[0], cut[1]) if all(have_one) and all(cut) else pair
