"""Choosing a few (source, target) length limits so that little of a batch is padding.

Every pair goes to the cheapest box (S, T) that holds it, cost S + T slots. Finding the
best K boxes is a two-dimensional K-medians problem; it is solved by local search on the
histogram of length pairs: from nested boxes at quantiles of the total length, and from a
few random ones, move one side of one box at a time as long as the total cost falls.
Deterministic, and independent of the number of pairs once the histogram is made.
"""

from __future__ import annotations

import numpy as np

_MAX_CELLS = 1500  # of the histogram; beyond it lengths are rounded up to coarser steps
_MAX_ROUNDS = 30
_STARTS = 8  # local search ends in local optima; the best of a few starts is near enough


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


def choose_boxes(histogram: LengthHistogram, num_boxes: int) -> list[tuple[int, int]]:
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
    found = [_descend(start, source, target, counts) for start in starts]
    boxes = min(found, key=lambda boxes: _cost(boxes, source, target, counts))
    used = np.bincount(_assign(boxes, source, target), weights=counts, minlength=len(boxes)) > 0
    used[-1] = True
    kept = {(int(s), int(t)) for s, t in boxes[used]}
    return sorted(kept, key=lambda box: (box[0] + box[1], box))


def assign_boxes(
    boxes: list[tuple[int, int]], source_lengths: np.ndarray, target_lengths: np.ndarray
) -> np.ndarray:
    """Index of the cheapest box that holds each pair, [pairs] int64; the last must hold all."""
    return _assign(np.asarray(boxes), source_lengths, target_lengths)


def _assign(boxes: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    best = np.full(len(source), len(boxes) - 1, np.int64)
    for i in np.argsort(-boxes.sum(axis=1), kind="stable"):  # dearest first, cheaper overwrite
        best[(source <= boxes[i, 0]) & (target <= boxes[i, 1])] = i
    return best


def _cost(boxes: np.ndarray, source: np.ndarray, target: np.ndarray, counts: np.ndarray) -> float:
    return float(counts @ boxes.sum(axis=1)[_assign(boxes, source, target)])


def _nested_start(
    source: np.ndarray,
    target: np.ndarray,
    counts: np.ndarray,
    num_boxes: int,
    largest: tuple[int, int],
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
