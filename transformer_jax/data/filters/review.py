"""Filters at work: marks made while a text is read, then what is left out and what is reported."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from itertools import islice

import numpy as np

from transformer_jax.data.filters.base import Filter
from transformer_jax.data.filters.registry import FILTERS
from transformer_jax.data.sources.base import Languages, Numbered
from transformer_jax.variants import to_text

_LOGGER = logging.getLogger(__name__)

_CHUNK = 10_000  # pairs that are marked at a time


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
        self._marks: list[list[np.ndarray]] = [[] for _ in self._filters]
        self._count = 0

    def seen(self, numbered: Iterable[Numbered]) -> Iterator[Numbered]:
        """Yields the pairs, with the numbers of their documents, and marks them."""
        iterator = iter(numbered)
        while chunk := list(islice(iterator, _CHUNK)):
            pairs = [pair for _, pair in chunk]
            for marks, each in zip(self._marks, self._filters, strict=True):
                marks.append(each.marks(pairs, self._languages))
            self._count += len(chunk)
            yield from chunk

    def kept(self, name: str) -> np.ndarray:
        """Which of the pairs seen are used, [pairs] bool; logs the counts.

        Args:
            name: of the corpus, for the log.
        """
        kept = np.ones(self._count, bool)
        counts = []
        for number, (marks, each) in enumerate(zip(self._marks, self._filters, strict=True)):
            bad = each.bad(np.concatenate(marks)) if marks else np.zeros(0, bool)
            is_chosen = number < self._num_chosen
            if is_chosen:
                kept &= ~bad
            if found := int(bad.sum()):
                share = f"{found:,} {to_text(each, FILTERS)} ({found / self._count:.2%})"
                counts.append(f"{share} {'left out' if is_chosen else 'kept'}")
        left = f", {int(kept.sum()):,} of them used" if self._num_chosen else ""
        found_by = ", ".join(counts) or "nothing found"
        _LOGGER.info(f"{name}: {self._count:,} pairs{left}; filters: {found_by}")
        return kept
