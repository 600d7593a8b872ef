"""Sentences of different lengths as one array of a static shape."""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from transformer_jax.vocabulary import PAD_ID


def pad(
    sentences: Sequence[Sequence[int] | np.ndarray], rows: int, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Ids [rows, length] int32 and the mask of real tokens [rows, length] bool.

    Args:
        sentences: at most `rows` lists of at most `length` ids.
        rows: B; the mask of rows without a sentence is all False.
        length: L.
    """
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    return pad_flat(list(chain.from_iterable(sentences)), lengths, rows, length)


def pad_flat(
    tokens: np.ndarray | Sequence[int], lengths: np.ndarray, rows: int, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """As `pad`, of sentences that follow one another in `tokens` and have these lengths."""
    lengths_B = np.zeros(rows, np.int64)
    lengths_B[: len(lengths)] = lengths
    mask_BL = np.arange(length) < lengths_B[:, None]
    ids_BL = np.full((rows, length), PAD_ID, np.int32)
    ids_BL[mask_BL] = tokens
    return ids_BL, mask_BL
