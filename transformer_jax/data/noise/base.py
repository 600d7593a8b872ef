"""What each kind of noise answers; a noise is one file and a line of the registry."""

from abc import ABC, abstractmethod
from typing import ClassVar

from transformer_jax.data.draws import Draws
from transformer_jax.data.sources.base import Pair


class Noise(ABC):
    """A change of the pairs of a corpus: `noise` of a corpus.

    It makes text as users type it, so that a model learns to translate that too. A noise is a
    frozen dataclass; its fields are the options.
    """

    #: It may take words from the end of a text. The word alignments of the others stay.
    shortens: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, pair: Pair, draws: Draws) -> Pair:
        """The pair with the noise.

        Args:
            pair: source and target sentence.
            draws: random choices, which depend on the noise and on the number of the pair.
        """
