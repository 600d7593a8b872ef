"""The static shapes of a corpus: how few, how long, and how many rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from transformer_jax.data.bucketing import LengthHistogram, assign_boxes, choose_boxes
from transformer_jax.data.config import BatchConfig
from transformer_jax.errors import UserError

Box = tuple[int, int]  # longest source and target, EOS included
Shape = tuple[int, int, int]  # rows, longest source, longest target

_LEAST_FILLED = 0.85  # of the token budget, given up so that whole batches come out even
_PREFERRED_ROWS = 8  # whole batches of 8 rows divide over the usual device counts


def fewest_boxes(
    source: np.ndarray, target: np.ndarray, config: BatchConfig, row_multiple: int
) -> list[Box]:
    """As few (S, T) as keep to config.max_padding, or config.num_buckets of them."""
    histogram = LengthHistogram(source, target, config.length_multiple)
    tokens = int(source.sum(dtype=np.int64) + target.sum(dtype=np.int64))

    def found(number: int) -> tuple[list[Box], bool]:
        boxes = choose_boxes(histogram, number)
        counts = np.bincount(assign_boxes(boxes, source, target), minlength=len(boxes))
        choices = [row_choices((s, t), config, row_multiple) for s, t in boxes]
        slots = count_slots(*choose_rows(boxes, choices, counts)[::2])
        return boxes, tokens >= (1 - config.max_padding) * slots

    low, high = 0, config.num_buckets  # fewest that suffice is in (low, high]
    best, suffices = found(high)
    while suffices and high - low > 1:
        middle = (low + high) // 2
        boxes, enough = found(middle)
        if enough:
            best, high = boxes, middle
        else:
            low = middle
    return best


def given_boxes(
    source: np.ndarray,
    target: np.ndarray,
    given: Sequence[Shape],
    config: BatchConfig,
    row_multiple: int,
) -> tuple[list[Box], list[list[int]]]:
    """The given (S, T) and B; one more shape if they do not hold every pair."""
    multiple = config.length_multiple
    boxes, choices = [(s, t) for _, s, t in given], [[rows] for rows, _, _ in given]
    s, t = boxes[-1]
    if source.max() > s or target.max() > t:
        s = max(s, -(-int(source.max()) // multiple) * multiple)
        t = max(t, -(-int(target.max()) // multiple) * multiple)
        boxes.append((s, t))
        choices.append(row_choices((s, t), config, row_multiple)[:1])
    return boxes, choices


def row_choices(box: Box, config: BatchConfig, row_multiple: int) -> list[int]:
    """The row counts B a box may have, the largest first."""
    longest = max(box)
    fitting = config.tokens // longest
    preferred = math.lcm(_PREFERRED_ROWS, row_multiple)
    multiple = preferred if fitting >= preferred else row_multiple
    most = fitting // multiple * multiple
    if most == 0:
        raise UserError(
            f"batch.tokens={config.tokens} does not hold {multiple} row(s) of {longest} "
            f"tokens; set it to at least {multiple * longest} or lower batch.max_length"
        )
    least = max(multiple, math.ceil(_LEAST_FILLED * most))
    return list(range(most, least - 1, -multiple))


def choose_rows(
    boxes: list[Box], choices: list[list[int]], counts: np.ndarray
) -> tuple[list[Shape], list[int | None], list[int]]:
    """Fixes B for each box, so that leftovers waste the fewest slots.

    Returns:
        the shapes (B, S, T); for each the larger shape its leftover rows move to (None: they
        stay, in a last batch that is filled up); for each its number of batches.
    """
    pooled = [int(n) for n in counts]
    shapes: list[Shape] = []
    moves: list[int | None] = []
    batch_counts: list[int] = []
    for i, (s, t) in enumerate(boxes):
        larger = [j for j in range(i + 1, len(boxes)) if boxes[j][0] >= s and boxes[j][1] >= t]
        parent = min(larger, key=lambda j: sum(boxes[j])) if larger else None
        best: tuple[int, int, int | None] | None = None
        for rows in choices[i]:
            rest = pooled[i] % rows
            stay = (rows - rest) * (s + t) if rest else 0
            move = rest * (sum(boxes[parent]) - s - t) if parent is not None else stay
            option = (move, rows, parent) if move < stay else (stay, rows, None)
            if best is None or option[0] < best[0]:
                best = option
        assert best is not None
        _, rows, destination = best
        whole, rest = divmod(pooled[i], rows)
        if destination is not None:
            pooled[destination] += rest
        shapes.append((rows, s, t))
        moves.append(destination)
        batch_counts.append(whole + (destination is None and rest > 0))
    return shapes, moves, batch_counts


def count_slots(shapes: list[Shape], batch_counts: list[int]) -> int:
    """Source and target slots of an epoch."""
    return sum(n * b * (s + t) for n, (b, s, t) in zip(batch_counts, shapes, strict=True))
