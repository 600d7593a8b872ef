"""What the two kinds of subword sampling share: the words of a text, and random numbers."""

import re
from typing import Any

import numpy as np

_SPACE = "\u2581"  # how SentencePiece writes a space


class Words:
    """Cuts texts where no piece of the vocabulary can cross: before each space.

    Where a piece does cross spaces, or a language writes none, the "word" is the whole text.

    Args:
        processor: a `SentencePieceProcessor`.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        pieces = map(processor.id_to_piece, range(processor.vocab_size()))
        is_crossed = any(_SPACE in piece[1:] for piece in pieces)
        self._pattern = re.compile(".+" if is_crossed else f".[^{_SPACE}]*", re.DOTALL)
        self._unknown = processor.unk_id()

    def __call__(self, text: str) -> list[str]:
        """The words of a text, normalised: joined, they are what SentencePiece segments."""
        return self._pattern.findall(self._processor.normalize(text))

    def joined(self, ids: list[int]) -> list[int]:
        """Ids of the words of a text as SentencePiece gives them: one UNK for several in a row."""
        if self._unknown not in ids:
            return ids
        pairs = zip([None, *ids], ids, strict=False)
        return [i for before, i in pairs if not before == i == self._unknown]


def mixed(x: np.ndarray) -> np.ndarray:
    """Well-mixed 64-bit numbers, one for one (SplitMix64's finaliser, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
