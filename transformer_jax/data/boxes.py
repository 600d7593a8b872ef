"""The static shapes of a corpus: few (source, target) length limits with little padding.

Every pair goes to the cheapest box (S, T) that holds it; its cost is S + T slots. Finding the
best K boxes is a two-dimensional K-medians problem, solved by local search on the histogram of
length pairs: starting from nested boxes at quantiles of the total length, and from a few random
ones, it moves one side of one box at a time while the total cost falls. The result is
deterministic, and the time does not depend on the number of pairs once the histogram is made.
"""

import math
from collections.abc import Sequence

import numpy as np

from transformer_jax.data.config import BatchConfig
from transformer_jax.errors import UserError

Box = tuple[int, int]  # longest source and target, EOS included
Shape = tuple[int, int, int]  # rows, longest source, longest target

_MAX_CELLS = 1500  # of the histogram; for more, lengths are rounded up to coarser steps
_MAX_ROUNDS = 30
_STARTS = 8  # local search ends in local optima; the best of a few starts is good enough
_LEAST_FILLED = 0.85  # share of the token budget that a batch must use; the rest evens out rows
_PREFERRED_ROWS = 8  # whole batches of 8 rows divide over the usual device counts


class LengthHistogram:
    """How often each pair of lengths occurs.

    Args:
        source_lengths: [pairs] int, at least one pair.
        target_lengths: [pairs] int.
        multiple: lengths are rounded up to a multiple of it, and so are all boxes.

    Attributes:
        source, target: [cells] int64, the distinct pairs of lengths.
        counts: [cells] float64.
    """

    def __init__(self, source_lengths: np.ndarray, target_lengths: np.ndarray, multiple: int = 1):
        most = [-(-int(np.max(x)) // multiple) * multiple for x in (source_lengths, target_lengths)]
        width = most[1] + 1
        table = np.bincount(np.asarray(source_lengths, np.int64) * width + target_lengths)
        cells = np.flatnonzero(table)
        counts = table[cells]
        step = multiple
        while True:
            # Coarser steps may not push a box beyond the longest sentence.
            source = np.minimum(-(-(cells // width) // step) * step, most[0])
            target = np.minimum(-(-(cells % width) // step) * step, most[1])
            merged, index = np.unique(source * width + target, return_inverse=True)
            if len(merged) <= _MAX_CELLS:
                break
            step += multiple
        self.source, self.target = merged // width, merged % width
        self.counts = np.bincount(index, weights=counts)


def choose_boxes(histogram: LengthHistogram, num_boxes: int) -> list[Box]:
    """At most `num_boxes` boxes (S, T), ascending by S + T; the last one holds every pair.

    Args:
        histogram: of the lengths, which sets the multiple that S and T keep to.
        num_boxes: at least 1.
    """
    source, target, counts = histogram.source, histogram.target, histogram.counts
    largest = (int(source.max()), int(target.max()))
    if num_boxes == 1:
        return [largest]
    starts = [_nested_start(source, target, counts, num_boxes, largest)]
    words = np.random.Philox(key=0)  # raw words: the same under every NumPy version
    share = np.cumsum(counts) / counts.sum()
    for _ in range(_STARTS - 1):
        draws = words.random_raw(num_boxes - 1).astype(np.float64) / 2.0**64
        cells = np.minimum(np.searchsorted(share, draws), len(share) - 1)
        starts.append(np.append(np.stack([source[cells], target[cells]], 1), [largest], 0))
    results = [_descend(start, source, target, counts) for start in starts]
    boxes = min(results, key=lambda boxes: _cost(boxes, source, target, counts))
    used = np.bincount(_assign(boxes, source, target), weights=counts, minlength=len(boxes)) > 0
    used[-1] = True
    kept = {(int(s), int(t)) for s, t in boxes[used]}
    return sorted(kept, key=lambda box: (box[0] + box[1], box))


def assign_boxes(
    boxes: list[Box], source_lengths: np.ndarray, target_lengths: np.ndarray
) -> np.ndarray:
    """Index of the cheapest box that holds each pair, [pairs] int64; the last must hold all."""
    return _assign(np.asarray(boxes), source_lengths, target_lengths)


def _assign(boxes: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    best = np.full(len(source), len(boxes) - 1, np.int64)
    for i in np.argsort(-boxes.sum(axis=1), kind="stable"):  # the cheapest is written last
        best[(source <= boxes[i, 0]) & (target <= boxes[i, 1])] = i
    return best


def _cost(boxes: np.ndarray, source: np.ndarray, target: np.ndarray, counts: np.ndarray) -> float:
    return float(counts @ boxes.sum(axis=1)[_assign(boxes, source, target)])


def _nested_start(
    source: np.ndarray,
    target: np.ndarray,
    counts: np.ndarray,
    num_boxes: int,
    largest: Box,
) -> np.ndarray:
    """Boxes at quantiles of the slots; the largest box last."""
    order = np.argsort(source + target, kind="stable")
    share = np.cumsum((counts * (source + target))[order])
    share /= share[-1]
    boxes = []
    for k in range(1, num_boxes):
        i = order[min(int(np.searchsorted(share, k / num_boxes)), len(order) - 1)]
        half = -(-(source[i] + target[i]) // 2)
        boxes.append((_at_least(source, half), _at_least(target, half)))
    return np.asarray([*boxes, largest], np.int64)


def _at_least(values: np.ndarray, limit: int) -> int:
    above = values[values >= limit]
    return int(above.min()) if len(above) else int(values.max())


def _descend(
    boxes: np.ndarray, source: np.ndarray, target: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """Coordinate descent; the last box is fixed."""
    values = (np.unique(source), np.unique(target))
    lengths = (source, target)

    def held(box: np.ndarray) -> np.ndarray:
        inside = (source <= box[0]) & (target <= box[1])
        return np.where(inside, float(box.sum()), np.inf)

    costs = np.stack([held(box) for box in boxes])  # [boxes, cells]
    for _ in range(_MAX_ROUNDS):
        moved = False
        for i in range(len(boxes) - 1):
            others = np.min(np.delete(costs, i, axis=0), axis=0)
            for side in (0, 1):
                # Cost as a function of this one limit v: cells with length <= v that also
                # fit the other side pay min(others, v + other limit), the rest pay others.
                fits = lengths[1 - side] <= boxes[i, 1 - side]
                saved = _savings(
                    values[side], int(boxes[i, 1 - side]), lengths[side], others, counts, fits
                )
                best = int(values[side][np.argmax(saved)])
                now = saved[np.searchsorted(values[side], boxes[i, side])]
                if saved.max() > now + 1e-6:
                    boxes[i, side] = best
                    moved = True
            costs[i] = held(boxes[i])
        if not moved:
            break
    return boxes


def _savings(
    limits: np.ndarray,
    other_limit: int,
    lengths: np.ndarray,
    others: np.ndarray,
    counts: np.ndarray,
    fits: np.ndarray,
) -> np.ndarray:
    """Slots saved by a box with each of the given limits on one side, [limits]."""
    inside = fits & (lengths <= limits[:, None])  # [limits, cells]
    gain = np.maximum(others - (limits[:, None] + other_limit), 0.0) * counts
    return np.asarray(np.where(inside, gain, 0.0).sum(axis=1))


def fewest_boxes(
    source: np.ndarray, target: np.ndarray, config: BatchConfig, row_multiple: int
) -> list[Box]:
    """As few (S, T) as keep to config.max_padding, or config.num_buckets of them."""
    histogram = LengthHistogram(source, target, config.length_multiple)
    tokens = int(source.sum(dtype=np.int64) + target.sum(dtype=np.int64))

    def attempt(number: int) -> tuple[list[Box], bool]:
        boxes = choose_boxes(histogram, number)
        counts = np.bincount(assign_boxes(boxes, source, target), minlength=len(boxes))
        choices = [row_choices((s, t), config, row_multiple) for s, t in boxes]
        slots = count_slots(*choose_rows(boxes, choices, counts)[::2])
        return boxes, tokens >= (1 - config.max_padding) * slots

    low, high = 0, config.num_buckets  # fewest that suffice is in (low, high]
    best, suffices = attempt(high)
    while suffices and high - low > 1:
        middle = (low + high) // 2
        boxes, enough = attempt(middle)
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
