"""Blocks: the training examples of a text whose documents are known.

A block is a range of consecutive sentences of one document. A partition cuts the whole text into
blocks; `data.blocks` may ask for several partitions, whose blocks are mixed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import PositiveInt

from transformer_jax.errors import UserError


@dataclass(frozen=True)
class Blocks:
    """Consecutive sentences of a document as one example, with a separator piece between them.

    A block ends where its document does. Each block is an example of its own: with several
    partitions, every sentence is seen once an epoch for each of them.
    """

    tokens: PositiveInt | None = None
    #: one partition: as many sentences as have at most so many pieces on each side, separators
    #: and EOS included; a longer sentence is a block alone
    sentences: tuple[PositiveInt, ...] = ()
    #: a partition for each of these numbers of sentences

    def check(self, longest: int) -> None:
        """Checks the options.

        Args:
            longest: what batches and the model hold, in pieces.

        Raises:
            UserError: not one of the options is given, or the blocks would be too long.
        """
        if (self.tokens is None) == (self.sentences == ()):
            raise UserError(
                "data.blocks: give tokens or sentences, as in blocks(tokens=512) or "
                "blocks(sentences=[1,2,5,10]); both are blocks(tokens=512),blocks(sentences=[1])"
            )
        if self.tokens and self.tokens > longest:
            raise UserError(
                f"data.blocks: blocks(tokens={self.tokens}) are longer than {longest} pieces: set "
                f"batch.max_length and model.max_length to at least {self.tokens}"
            )

    def partitions(self, slots: Sequence[np.ndarray], end_of: np.ndarray) -> Iterator[np.ndarray]:
        """For each partition, the first sentence of each block, ascending.

        Args:
            slots: of each side [sentences + 1], ascending: the slots that all sentences before
                one need, its separator or EOS included.
            end_of: [sentences], the first sentence after the document of each.
        """
        here = np.arange(len(end_of))
        if self.tokens:
            fitting = [np.searchsorted(each, each[:-1] + self.tokens, "right") for each in slots]
            following = np.maximum(np.minimum(*fitting) - 1, here + 1)
            yield _chain(np.minimum(following, end_of))
        for count in self.sentences:
            yield _chain(np.minimum(here + count, end_of))


def _chain(following: np.ndarray) -> np.ndarray:
    """0, following[0], following[following[0]], and so on below the length of the array."""

    def steps() -> Iterator[int]:
        values, at = following.data, 0
        while at < len(values):
            yield at
            at = values[at]

    return np.fromiter(steps(), np.int64)


def cut(blocks: Sequence[Blocks], slots: Sequence[np.ndarray], is_last: np.ndarray) -> np.ndarray:
    """The blocks of all partitions, [2, blocks] int64: first sentence, and the first after it.

    Args:
        blocks: what is asked for.
        slots: see `Blocks.partitions`.
        is_last: [sentences] bool, whether a document ends with the sentence.
    """
    ends = np.flatnonzero(is_last) + 1
    end_of = ends[np.searchsorted(ends, np.arange(len(is_last)), "right")]
    parts = [np.zeros((2, 0), np.int64)]
    for each in blocks:
        for first in each.partitions(slots, end_of):
            parts.append(np.stack([first, np.append(first[1:], len(is_last))[: len(first)]]))
    return np.concatenate(parts, axis=1)
