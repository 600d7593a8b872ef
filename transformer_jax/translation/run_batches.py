"""Batches that run at the same time, and programs that compile at the same time."""

import os
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import jax

from transformer_jax.translation.text_batches import Row

#: Most batches that run on a CPU at the same time; each has its own decoder state.
_MOST_THREADS = 8

Batch = list[Row]


def run_batches(
    batches: Sequence[Batch],
    start: Callable[[Batch], Any],
    finish: Callable[[Batch, Any], None],
    program: Callable[[Batch], Hashable],
    compiled: set[Hashable],
    threads: int,
) -> float:
    """Runs batches and reads their results, first those whose programs are not compiled.

    Args:
        batches: what to run.
        start: runs a batch; returns once its program is compiled and under way.
        finish: reads the results of a batch.
        program: what decides which program a batch runs.
        compiled: the programs of earlier calls; those of this one are added.
        threads: see `num_threads`.

    Returns:
        Seconds spent in compiling.
    """
    new: dict[Hashable, Batch] = {}
    others = []
    for batch in batches:
        key = program(batch)
        if key in compiled or key in new:
            others.append(batch)
        else:
            new[key] = batch
    with ThreadPoolExecutor(threads) as pool:
        began = time.perf_counter()
        _run(list(new.values()), start, finish, threads, pool)
        seconds = time.perf_counter() - began if new else 0.0
        compiled.update(new)
        _run(others, start, finish, threads, pool)
    return seconds


def _run(
    batches: list[Batch],
    start: Callable[[Batch], Any],
    finish: Callable[[Batch, Any], None],
    threads: int,
    pool: Executor,
) -> None:
    under_way: deque[tuple[Batch, Future[Any]]] = deque()

    def finish_all_but(most: int) -> None:
        while len(under_way) > most:
            batch, result = under_way.popleft()
            finish(batch, result.result())

    for batch in batches:
        if threads == 1:
            result: Future[Any] = Future()
            result.set_result(start(batch))
        else:
            result = pool.submit(lambda batch: jax.block_until_ready(start(batch)), batch)
        under_way.append((batch, result))
        finish_all_but(threads)
    finish_all_but(0)


def num_threads(arrays: Any) -> int:
    """How many batches run at the same time on the devices that `arrays` are on.

    A CPU takes one for each core: that is faster than many cores for one batch, whose operations
    are small. An accelerator runs one after the other; the host is then one batch ahead. Several
    devices must all run their programs in the same order.
    """
    devices = jax.tree.leaves(arrays)[0].devices()
    on_cpu = len(devices) == 1 and next(iter(devices)).platform == "cpu"
    return min(os.cpu_count() or 1, _MOST_THREADS) if on_cpu else 1
