"""Batches that run at the same time, and programs that compile at the same time."""

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from typing import Generic, Self, TypeVar

import jax

from transformer_jax.translation.text_batches import Row

Batch = list[Row]
Results = TypeVar("Results")


@dataclass(frozen=True)
class Work(Generic[Results]):
    """What is done with the rows of a text.

    Attributes:
        program: what decides, with the length of its rows, which program a batch runs.
        num_rows: the number of rows of a batch, from their length.
        start: runs a batch; returns once its program is compiled and under way.
        finish: reads the results of a batch.
    """

    program: Hashable
    num_rows: Callable[[int], int]
    start: Callable[[Batch], Results]
    finish: Callable[[Batch, Results], None]


@dataclass(frozen=True)
class Timing:
    """How long a text took, and how much of it was translated by programs that were compiled."""

    seconds: float = 0.0  #: wall time, compilation included
    compile_seconds: float = 0.0  #: of these, until the first batch of each program was finished
    rows: int = 0  #: sentences or blocks
    compiled_rows: int = 0  #: of these, those in later batches

    def __add__(self, other: Self) -> Self:
        return type(self)(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    def per_second(self, count: int) -> float | None:
        """The speed without compilation; None where each batch was the first of its program.

        Args:
            count: what the text consists of, such as its sentences.
        """
        if not self.compiled_rows:
            return None
        computing = max(self.seconds - self.compile_seconds, 1e-9)
        return count * self.compiled_rows / self.rows / computing


def run_batches(
    compiled: set[Hashable], threads: int, batches: Iterable[Batch], work: Work[Results]
) -> Timing:
    """Runs batches and reads their results, first those whose programs are not compiled.

    Args:
        compiled: the programs of earlier calls; those of this one are added.
        threads: how many batches run at the same time.
        batches: what to run.
        work: what is done with them.

    Returns:
        How long that took.
    """
    new: dict[Hashable, Batch] = {}
    others: list[Batch] = []
    for batch in batches:
        key = work.program, batch[0].length
        if key in compiled or key in new:
            others.append(batch)
        else:
            new[key] = batch

    threads = min(threads, len(new) + len(others))  # a batch that is alone needs no other thread

    def begin(batch: Batch) -> Callable[[], Results]:
        """Starts a batch; what is returned waits for its results."""
        if threads < 2:
            results = work.start(batch)
            return lambda: results
        return pool.submit(lambda: jax.block_until_ready(work.start(batch))).result

    under_way: deque[tuple[Batch, Callable[[], Results]]] = deque()

    def finish_all_but(most: int) -> None:
        while len(under_way) > most:
            batch, results = under_way.popleft()
            work.finish(batch, results())

    def run(batches: Iterable[Batch]) -> None:
        for batch in batches:
            under_way.append((batch, begin(batch)))
            finish_all_but(threads)
        finish_all_but(0)

    with ThreadPoolExecutor(max(1, threads)) as pool:
        began = time.perf_counter()
        run(new.values())
        seconds = time.perf_counter() - began if new else 0.0
        compiled.update(new)
        run(others)
    counts = [sum(map(len, each)) for each in (new.values(), others)]
    return Timing(time.perf_counter() - began, seconds, sum(counts), counts[1])
