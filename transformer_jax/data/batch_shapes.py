"""The static shapes of a corpus: few (source, target) length limits with little padding.

Every pair goes to the cheapest box (S, T) that holds it; its cost is S + T slots. Finding the
best K boxes is a two-dimensional K-medians problem. A local search on the histogram of length
pairs solves it well: it starts from nested boxes at quantiles of the total length, and from a few
random ones, and moves one side of one box at a time while the total cost falls. The result is
deterministic. Once the histogram is made, the time does not depend on the number of pairs.

Lengths are arrays [2, pairs], source and target, EOS included.
"""

import math
from typing import NamedTuple

import numpy as np

from transformer_jax.data.config import BatchConfig
from transformer_jax.errors import UserError

Box = tuple[int, int]  # longest source and target
Shape = tuple[int, int, int]  # rows, longest source, longest target

_PART = 1 << 20  # pairs that are computed with at a time
_MAX_CELLS = 1500  # of the histogram; for more, lengths are rounded up to coarser steps
_MAX_ROUNDS = 30
_STARTS = 8  # local search ends in local optima; the best of a few starts is good enough
_LEAST_FILLED = 0.85  # share of the token budget that a batch must use; the rest evens out rows
_PREFERRED_ROWS = 8  # whole batches of 8 rows divide over the usual device counts


class Visits(NamedTuple):
    """How often the pairs of each corpus are seen in an epoch; the corpora follow each other."""

    ends: np.ndarray  #: [corpora] int64, the first pair after each corpus
    rates: np.ndarray  #: [corpora] float64, mean visits of a pair in an epoch

    def by_corpus(self, values: np.ndarray) -> list[np.ndarray]:
        """The values [..., pairs] of each corpus, views of those of all."""
        return np.split(values, self.ends[:-1], axis=-1)

    def quotas(self, shape_of: np.ndarray, num_shapes: int) -> np.ndarray:
        """Rows of each corpus in each shape in an epoch: [corpora, shapes] int64.

        Args:
            shape_of: [pairs], the shape of each pair.
            num_shapes: number of shapes.
        """
        pairs = np.zeros((len(self.ends), num_shapes), np.int64)
        for counts, own in zip(pairs, self.by_corpus(shape_of), strict=True):
            for part in in_parts(own):
                counts += np.bincount(part, minlength=num_shapes)
        # At least one: no pair is left out of all epochs.
        wanted = np.maximum(np.rint(pairs * self.rates[:, None]), 1).astype(np.int64)
        return np.where(pairs > 0, wanted, 0)


def in_parts(values: np.ndarray) -> list[np.ndarray]:
    """Views of parts of [..., pairs], so that what is computed of one at a time is small."""
    return [values[..., i : i + _PART] for i in range(0, values.shape[-1], _PART)]


def length_histogram(
    lengths: np.ndarray, visits: Visits, multiple: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """The histogram of lengths [2, pairs], at least one pair, rounded up to `multiple`.

    It has the distinct pairs of lengths, [2, cells] int64, and how often each occurs, [cells]
    float64 (exact); below these are `lengths` and `counts`. There are at most `_MAX_CELLS` cells.
    For this, lengths are rounded up further, those above 256 at least to 32 steps between powers
    of two.
    """
    longest = -(-lengths.max(axis=1, keepdims=True).astype(np.int64) // multiple) * multiple
    width = int(_rounded(longest)[1, 0]) + 1
    # Not a table of all pairs of lengths, which would take 0.5 GB at 8,192 tokens.
    found: list[np.ndarray] = []
    weights_of: list[np.ndarray] = []
    for rate, own in zip(visits.rates, visits.by_corpus(lengths), strict=True):
        for source, target in in_parts(own):
            cells = _rounded(source) * width + _rounded(target)
            of_part, numbers = np.unique(cells, return_counts=True)
            found.append(of_part)
            weights_of.append(rate * numbers)
    cells, index = np.unique(np.concatenate(found), return_inverse=True)
    weights = np.bincount(index, weights=np.concatenate(weights_of))
    distinct = np.stack(np.divmod(cells, width))
    # A cell of a step holds at most step^2 of these: smaller steps are too fine.
    step = multiple * math.ceil(math.sqrt(len(cells) / _MAX_CELLS) / multiple)
    while True:
        # Coarser steps may not push a box beyond the longest sentence.
        rounded = np.minimum(-(-distinct // step) * step, longest)
        merged, index = np.unique(rounded[0] * width + rounded[1], return_inverse=True)
        if len(merged) <= _MAX_CELLS:
            return np.stack(np.divmod(merged, width)), np.bincount(index, weights=weights)
        step += multiple


def _rounded(lengths: np.ndarray) -> np.ndarray:
    """Lengths above 256 rounded up to 32 steps between powers of two, int64."""
    lengths = lengths.astype(np.int64)
    bits = np.frexp(lengths - 1)[1]
    steps = np.where(bits > 8, 2 ** np.maximum(bits - 6, 0), 1)
    return np.asarray(-(-lengths // steps) * steps, np.int64)


def choose_boxes(lengths: np.ndarray, counts: np.ndarray, num_boxes: int) -> list[Box]:
    """At most `num_boxes` boxes (S, T), ascending by S + T; the last one holds every pair."""

    def cost(boxes: np.ndarray) -> float:
        return float(counts @ boxes.sum(axis=1)[assign_boxes(boxes, lengths)])

    nested = _nested_start(lengths, counts, num_boxes)
    starts = [nested, *_random_starts(lengths, counts, num_boxes)]
    boxes = min((_descend(start, lengths, counts) for start in starts), key=cost)
    used = {*assign_boxes(boxes, lengths).tolist(), len(boxes) - 1}
    return sorted({(int(s), int(t)) for s, t in boxes[list(used)]}, key=lambda box: (sum(box), box))


def assign_boxes(boxes: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Index of the cheapest box that holds each pair, [pairs] of a small unsigned type.

    Args:
        boxes: [boxes, 2]; the last must hold all pairs.
        lengths: [2, pairs].
    """
    best = np.full(lengths.shape[1], len(boxes) - 1, np.min_scalar_type(len(boxes)))
    for i in np.argsort(-boxes.sum(axis=1), kind="stable"):  # the cheapest is written last
        for part, values in zip(in_parts(best), in_parts(lengths), strict=True):
            part[_holds(boxes[i], values)] = i
    return best


def _holds(box: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    return np.asarray((lengths[0] <= box[0]) & (lengths[1] <= box[1]))


def _nested_start(lengths: np.ndarray, counts: np.ndarray, num_boxes: int) -> np.ndarray:
    """Boxes at quantiles of the slots, half of them for each side; the largest box last."""
    total = lengths.sum(axis=0)
    order = np.argsort(total, kind="stable")
    share = np.cumsum((counts * total)[order])
    share /= share[-1]
    quantiles = np.searchsorted(share, np.arange(1, num_boxes) / num_boxes)
    halves = -(-total[order[quantiles]] // 2)
    boxes = []
    for side in lengths:
        limits = np.unique(side)
        boxes.append(limits[np.searchsorted(limits[:-1], [*halves, limits[-1]])])
    return np.stack(boxes, axis=1)


def _random_starts(lengths: np.ndarray, counts: np.ndarray, num_boxes: int) -> list[np.ndarray]:
    """Boxes of randomly drawn pairs; the largest box last."""
    words = np.random.Philox(key=0)  # raw words: the same under every NumPy version
    share = np.cumsum(counts) / counts.sum()
    starts = []
    for _ in range(_STARTS - 1):
        draws = words.random_raw(num_boxes - 1).astype(np.float64) / 2.0**64
        drawn = lengths[:, np.searchsorted(share, draws)]
        starts.append(np.append(drawn, lengths.max(axis=1, keepdims=True), axis=1).T)
    return starts


def _descend(boxes: np.ndarray, lengths: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Moves one side of one box at a time to where it saves most; the last box is fixed.

    The boxes are changed in place.
    """
    limits = [np.unique(side) for side in lengths]

    def cost_in(box: np.ndarray) -> np.ndarray:
        """Slots that each cell needs in the box, or in the last one if it does not fit."""
        return np.where(_holds(box, lengths), box.sum(), boxes[-1].sum())

    costs = np.stack([cost_in(box) for box in boxes])  # [boxes, cells]
    for _ in range(_MAX_ROUNDS):
        before = boxes.copy()
        for i, box in enumerate(boxes[:-1]):  # a view: moves change `boxes`
            others = np.delete(costs, i, axis=0).min(axis=0)
            for side, other in ((0, 1), (1, 0)):
                inside = (lengths[other] <= box[other]) & (lengths[side] <= limits[side][:, None])
                gain = np.maximum(others - (limits[side][:, None] + box[other]), 0)
                saved = np.where(inside, gain, 0) @ counts  # [limits], by each limit of this side
                if saved.max() > saved[limits[side] == box[side]].item():
                    box[side] = limits[side][saved.argmax()]
            costs[i] = cost_in(box)
        if (boxes == before).all():
            break
    return boxes


class Packing(NamedTuple):
    """The shapes of a corpus and how its pairs fill them."""

    shapes: list[Shape]  #: (B, S, T), ascending by S + T
    moves: list[int | None]  #: the larger shape that leftover rows move to; None: they stay
    batch_counts: list[int]  #: batches of each shape in an epoch
    shape_of: np.ndarray  #: [pairs], index of each pair's shape, before leftovers move
    quotas: np.ndarray  #: [corpora, shapes], rows of an epoch, before leftovers move

    @property
    def num_slots(self) -> int:
        """Source and target slots of an epoch."""
        batches = zip(self.batch_counts, self.shapes, strict=True)
        return sum(count * rows * (s + t) for count, (rows, s, t) in batches)


def pack(lengths: np.ndarray, config: BatchConfig, row_multiple: int, visits: Visits) -> Packing:
    """As few shapes as keep to `config.max_padding`, or `config.num_buckets` of them.

    Args:
        lengths: [2, pairs], at least one pair.
        config: budget of tokens, limits of padding and of the number of shapes.
        row_multiple: B is a multiple of it.
        visits: how often each pair is seen in an epoch.

    Raises:
        UserError: the budget does not hold `row_multiple` rows.
    """
    histogram = length_histogram(lengths, visits, config.length_multiple)
    parts = zip(visits.rates, visits.by_corpus(lengths), strict=True)
    tokens = sum(rate * int(own.sum()) for rate, own in parts)

    def attempt(num_boxes: int) -> tuple[Packing, bool]:
        boxes = choose_boxes(*histogram, num_boxes)
        packing = _fill(boxes, lengths, config, row_multiple, visits)
        return packing, tokens >= (1 - config.max_padding) * packing.num_slots

    low, high = 0, config.num_buckets  # the fewest that suffice are in (low, high]
    best, suffices = attempt(high)
    while suffices and high - low > 1:
        middle = (low + high) // 2
        packing, enough = attempt(middle)
        if enough:
            best, high = packing, middle
        else:
            low = middle
    return best


def _fill(
    boxes: list[Box], lengths: np.ndarray, config: BatchConfig, row_multiple: int, visits: Visits
) -> Packing:
    """Chooses B for each box, so that leftover rows waste the fewest slots."""
    shape_of = assign_boxes(np.asarray(boxes), lengths)
    quotas = visits.quotas(shape_of, len(boxes))
    pooled = quotas.sum(axis=0).tolist()
    packing = Packing([], [], [], shape_of, quotas)
    for i, (s, t) in enumerate(boxes):
        larger = [j for j in range(i + 1, len(boxes)) if boxes[j][0] >= s and boxes[j][1] >= t]
        parent = min(larger, key=lambda j: sum(boxes[j]), default=None)
        choices = np.array(_row_choices((s, t), config, row_multiple))
        waste = stay = -pooled[i] % choices * (s + t)  # the last batch is filled up
        if parent is not None:
            waste = np.minimum(stay, pooled[i] % choices * (sum(boxes[parent]) - s - t))
        best = waste.argmin()
        rows, moves = int(choices[best]), waste[best] < stay[best]
        whole, rest = divmod(pooled[i], rows)
        if parent is not None and moves:
            pooled[parent] += rest
        packing.shapes.append((rows, s, t))
        packing.moves.append(parent if moves else None)
        packing.batch_counts.append(whole + (rest > 0 and not moves))
    return packing


def _row_choices(box: Box, config: BatchConfig, row_multiple: int) -> list[int]:
    """The row counts B that a box may have, the largest first."""
    longest = max(box)
    fitting = config.budget // longest
    preferred = math.lcm(_PREFERRED_ROWS, row_multiple)
    multiple = preferred if fitting >= preferred else row_multiple
    most = fitting // multiple * multiple
    if most == 0:
        raise UserError(
            f"batch.tokens={config.budget} does not hold {multiple} row(s) of {longest} "
            f"tokens; set it to at least {multiple * longest} or lower batch.max_length"
        )
    least = max(multiple, math.ceil(_LEAST_FILLED * most))
    return list(range(most, least - 1, -multiple))
