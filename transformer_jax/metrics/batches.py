"""Rows of ids through a model, in batches of a few static shapes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from transformer_jax.ops.padding import pad

#: Lengths that rows are padded to, so that few shapes are compiled.
LENGTHS = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536)
_SLOTS = 4096  # most [rows, length] slots of a batch


def in_batches(rows: Sequence[Sequence[int]], compute: Callable[[Any, Any], Any]) -> np.ndarray:
    """What a model computes for each row: [N, ...].

    Args:
        rows: ids, at most `LENGTHS[-1]` of each.
        compute: of (ids [B, S], mask [B, S]), which is True at ids.
    """
    order = sorted(range(len(rows)), key=lambda number: -len(rows[number]))
    found: dict[int, np.ndarray] = {}
    while order:
        length = min(x for x in LENGTHS if x >= len(rows[order[0]]))
        count = _SLOTS // length
        batch, order = order[:count], order[count:]
        arrays = pad([rows[number] for number in batch], count, length)
        found |= dict(zip(batch, np.asarray(compute(*arrays)), strict=False))
    return np.array([found[number] for number in range(len(rows))], np.float32)
