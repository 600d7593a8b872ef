"""Sentences of ids, sorted into batches of a few static shapes.

A sentence's padded length depends on the sentence alone, and a batch holds sentences of
one padded length.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from transformer_jax.vocabulary import EOS_ID


class Row(NamedTuple):
    """A sentence, or a sentence pair, to be batched."""

    number: int  #: its place in the input
    source: list[int]
    target: list[int]  #: to be scored; when translating, the prefix
    length: int  #: what it is padded to
    num_forced: int = 0  #: pieces at the start of `target` that are not scored
    num_best: int = 1  #: translations that are asked for


def row_of(
    number: int, source: Sequence[int], target: Sequence[int], limit: int, **more: int
) -> Row:
    """The row of a pair of ids without EOS, both cut to fit the limit."""
    ended, given = ([*ids[: limit - 1], EOS_ID] for ids in (source, target))
    return Row(number, ended, given, padded_length(max(len(ended), len(given)), limit), **more)


def padded_length(length: int, limit: int) -> int:
    """The next of 16, 24, 32, 48, 64, 96, 128 …, at most `limit`: few shapes to compile."""
    padded = 16
    while padded < length:
        padded = padded * 3 // 2 if padded & (padded - 1) == 0 else padded * 4 // 3
    return min(padded, limit)


def padded_lengths(limit: int) -> list[int]:
    """All values of `padded_length`, ascending."""
    return sorted({padded_length(length, limit) for length in range(1, limit + 1)})


def batches(rows: list[Row], num_rows: Callable[[int], int]) -> Iterator[list[Row]]:
    """Batches of rows of one padded length, longest first, neighbours of similar length."""
    # Longest first, so that a batch that does not fit into memory fails at once.
    ordered = sorted(rows, key=lambda row: (-row.length, -len(row.source), -len(row.target)))
    for length, group in groupby(ordered, key=lambda row: row.length):
        of_length, size = list(group), num_rows(length)
        yield from (of_length[i : i + size] for i in range(0, len(of_length), size))
