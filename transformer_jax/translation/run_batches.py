"""Batches that run at the same time, and programs that compile at the same time."""

import os
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from typing import Any, Self

import jax

from transformer_jax.translation.text_batches import Row

#: Most batches that run on a CPU at the same time; each has its own decoder state.
_MOST_THREADS = 8

Batch = list[Row]


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
    compiled: set[Hashable],
    threads: int,
    batches: Iterable[Batch],
    start: Callable[[Batch], Any],
    finish: Callable[[Batch, Any], None],
    program: Hashable,
) -> Timing:
    """Runs batches and reads their results, first those whose programs are not compiled.

    Args:
        compiled: the programs of earlier calls; those of this one are added.
        threads: see `num_threads`.
        batches: what to run.
        start: runs a batch; returns once its program is compiled and under way.
        finish: reads the results of a batch.
        program: what decides, with the length of its rows, which program a batch runs.

    Returns:
        How long that took.
    """
    new: dict[Hashable, Batch] = {}
    others = []
    for batch in batches:
        key = program, batch[0].length
        if key in compiled or key in new:
            others.append(batch)
        else:
            new[key] = batch

    def begin(batch: Batch) -> Callable[[], Any]:
        """Starts a batch; what is returned waits for its results."""
        if threads == 1:
            results = start(batch)
            return lambda: results
        return pool.submit(lambda: jax.block_until_ready(start(batch))).result

    under_way: deque[tuple[Batch, Callable[[], Any]]] = deque()

    def finish_all_but(most: int) -> None:
        while len(under_way) > most:
            batch, results = under_way.popleft()
            finish(batch, results())

    def run(batches: Iterable[Batch]) -> None:
        for batch in batches:
            under_way.append((batch, begin(batch)))
            finish_all_but(threads)
        finish_all_but(0)

    with ThreadPoolExecutor(threads) as pool:
        began = time.perf_counter()
        run(new.values())
        seconds = time.perf_counter() - began if new else 0.0
        compiled.update(new)
        run(others)
    counts = [sum(map(len, each)) for each in (new.values(), others)]
    return Timing(time.perf_counter() - began, seconds, sum(counts), counts[1])


def num_threads(arrays: Any) -> int:
    """How many batches run at the same time on the devices that `arrays` are on.

    A CPU takes one for each core: that is faster than many cores for one batch, whose operations
    are small. An accelerator runs one after the other; the host is then one batch ahead. Several
    devices must all run their programs in the same order.
    """
    devices = jax.tree.leaves(arrays)[0].devices()
    on_cpu = len(devices) == 1 and next(iter(devices)).platform == "cpu"
    return min(os.cpu_count() or 1, _MOST_THREADS) if on_cpu else 1
