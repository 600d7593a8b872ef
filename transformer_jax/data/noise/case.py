"""Text in capital letters, and with a capital letter at each word."""

from dataclasses import dataclass

from transformer_jax.data.draws import Draws
from transformer_jax.data.noise.base import Noise
from transformer_jax.data.sources.base import Pair


@dataclass(frozen=True)
class UpperCase(Noise):
    """Both sides in capital letters."""

    def __call__(self, pair: Pair, draws: Draws) -> Pair:
        source, target = pair
        return source.upper(), target.upper()


@dataclass(frozen=True)
class TitleCase(Noise):
    """A capital letter at the beginning of each word of both sides, as in a heading."""

    def __call__(self, pair: Pair, draws: Draws) -> Pair:
        source, target = (_title(text) for text in pair)
        return source, target


def _title(text: str) -> str:
    # Not str.title, which also makes the letter after an apostrophe a capital.
    return " ".join(word[:1].upper() + word[1:] for word in text.split(" "))
