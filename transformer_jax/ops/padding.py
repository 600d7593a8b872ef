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
    lengths_B = np.zeros(rows, np.int64)
    lengths_B[: len(sentences)] = [len(ids) for ids in sentences]
    mask_BL = np.arange(length) < lengths_B[:, None]
    ids_BL = np.full((rows, length), PAD_ID, np.int32)
    ids_BL[mask_BL] = list(chain.from_iterable(sentences))
    return ids_BL, mask_BL
