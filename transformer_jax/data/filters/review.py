"""Filters at work: marks made while a text is read, then what is left out and what is reported."""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import compress, islice

import numpy as np

from transformer_jax.data.config import DataConfig
from transformer_jax.data.filters.base import Filter
from transformer_jax.data.filters.registry import FILTERS
from transformer_jax.data.sources.base import Languages, Pair
from transformer_jax.data.splits import without_held_out
from transformer_jax.settings.variants import to_text

_LOGGER = logging.getLogger(__name__)

_CHUNK = 10_000  # pairs that are marked at a time
_AT_ONCE = 1 << 24  # marks that are compared at a time

Marks = list[np.ndarray]  # of each filter, what it notes about some pairs


class Review:
    """What filters say about the pairs of a corpus.

    Args:
        chosen: the filters that leave pairs out. The others, as far as they are `counted`, only
            count them, with their default options.
        languages: of the pairs.
    """

    def __init__(self, chosen: Sequence[Filter], languages: Languages) -> None:
        kinds = {type(each) for each in chosen}
        others = (cls for cls in FILTERS.values() if cls.counted and cls not in kinds)
        # Copies: what a filter reads to judge, such as a model, is kept no longer than the review.
        self._filters = (*map(copy, chosen), *(cls() for cls in others))
        self._num_chosen = len(chosen)
        self._languages = languages

    def marks(self, pairs: Sequence[Pair]) -> Marks:
        """The marks that each filter gives some of the pairs, which depend on them alone."""
        return [each.marks(pairs, self._languages) for each in self._filters]

    def kept(self, name: str, marks: Sequence[Marks]) -> tuple[np.ndarray, str]:
        """Which pairs are used, [pairs] bool, and the counts as a line for the log.

        Args:
            name: of the corpus, for the line.
            marks: of its pairs, a part after the other.
        """
        total = sum(len(part[0]) for part in marks)
        kept = np.ones(total, bool)
        counts = []
        for number, each in enumerate(self._filters):
            bad = find_bad(each, [part[number] for part in marks])
            is_chosen = number < self._num_chosen
            if is_chosen:
                kept &= ~bad
            if found := int(bad.sum()):
                share = f"{found:,} {to_text(each, FILTERS)} ({found / total:.2%})"
                counts.append(f"{share} {'left out' if is_chosen else 'kept'}")
        left = f", {int(kept.sum()):,} of them used" if self._num_chosen else ""
        found_by = ", ".join(counts) or "nothing found"
        return kept, f"{name}: {total:,} pairs{left}; filters: {found_by}"


def pairs_used(data: DataConfig) -> Iterator[Pair]:
    """The training pairs of all corpora but those that filters leave out; the text is read twice.

    Raises:
        UserError: the text is damaged.
    """
    for name, corpus in zip(data.names, data.parts, strict=True):
        review = Review(data.filters, corpus.direction)
        rows, marks = without_held_out(data, corpus, deque()), []
        while chunk := [pair for _, pair in islice(rows, _CHUNK)]:
            marks.append(review.marks(chunk))
        kept, found = review.kept(name, marks)
        _LOGGER.info(found)
        yield from compress((pair for _, pair in without_held_out(data, corpus, deque())), kept)


def find_bad(judge: Filter, marks: Sequence[np.ndarray]) -> np.ndarray:
    """Which pairs of a corpus a filter leaves out: [pairs] bool.

    To find what is equal takes several times the memory of the marks. So these are divided by what
    they are: equal ones stay together and in their order.

    Args:
        judge: the filter.
        marks: that it gave to the pairs, a part after the other.
    """
    starts = np.cumsum([0, *map(len, marks)])
    bad = np.zeros(starts[-1], bool)
    divisor = 1 + len(bad) // _AT_ONCE
    for part in range(divisor):
        # As whole numbers, which are equal for equal marks.
        numbers = (each.view(f"u{each.itemsize}") for each in marks)
        places = [np.flatnonzero(each % divisor == part) for each in numbers]
        if any(map(len, places)):
            values = [each[rows] for each, rows in zip(marks, places, strict=True)]
            rows = [rows + start for rows, start in zip(places, starts, strict=False)]
            bad[np.concatenate(rows)] = judge.bad(np.concatenate(values))
    return bad
