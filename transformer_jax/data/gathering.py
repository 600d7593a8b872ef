"""Sentences out of flat arrays into one padded array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from transformer_jax.vocabulary import EOS_ID, PAD_ID


def gather(
    ids: np.ndarray, offsets: np.ndarray, rows: np.ndarray, size: int, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Sentences `rows` with EOS, padded to [size, length] int32, and the mask of real tokens."""
    starts, ends = offsets[rows], offsets[rows + 1]
    lengths = np.zeros(size, np.int64)
    lengths[: len(rows)] = ends - starts + 1
    column = np.arange(length)
    mask = column < lengths[:, None]
    out = np.full((size, length), PAD_ID, np.int32)
    is_token = column < lengths[:, None] - 1
    index = (starts[:, None] + column)[is_token[: len(rows)]]
    out[is_token] = ids[index]
    real = np.arange(len(rows))
    out[real, lengths[: len(rows)] - 1] = EOS_ID
    return out, mask


def gather_sampled(
    sampled: list[Sequence[int]],
    ids: np.ndarray,
    offsets: np.ndarray,
    rows: np.ndarray,
    size: int,
    length: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Like `gather`, from sampled ids; a sample too long for the shape yields to the stored."""
    fitting = [
        np.asarray(sample) if len(sample) < length else ids[offsets[row] : offsets[row + 1]]
        for sample, row in zip(sampled, rows, strict=True)
    ]
    lengths = np.fromiter(map(len, fitting), np.int64, len(fitting))
    flat = np.concatenate(fitting) if fitting else np.zeros(0, np.int32)
    local = np.concatenate([[0], np.cumsum(lengths)])
    return gather(flat, local, np.arange(len(rows)), size, length)
