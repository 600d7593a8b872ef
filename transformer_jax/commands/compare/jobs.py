"""Which trainings of a comparison are due, and the processes that they run in."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import TypeVar

P = TypeVar("P")
K = TypeVar("K")
#: (point, number of the seed) -> the validation score of a training; None until it is done.
Scored = Callable[[P, int], float | None]


def chosen(points: Sequence[P], scored: Scored[P]) -> P | None:
    """The point of a row's grid with the best validation score; None until all have one.

    They are tried with the first seed.
    """
    if len(points) == 1:
        return points[0]
    scores = [-math.inf if (score := scored(point, 0)) is None else score for point in points]
    return None if -math.inf in scores else points[scores.index(max(scores))]


def due(rows: Sequence[Sequence[P]], seeds: int, scored: Scored[P]) -> Iterator[tuple[P, int]]:
    """The trainings that are known by now, in their order: point and number of the seed.

    All points have the first seed; the other seeds are trained at each row's chosen point.
    """
    yield from ((point, 0) for points in rows for point in points)
    for seed in range(1, seeds):
        for points in rows:
            if (point := chosen(points, scored)) is not None:
                yield point, seed


def run_jobs(
    missing: Callable[[], Iterable[K]],
    process_of: Callable[[K], BaseProcess],
    on_end: Callable[[], None],
    jobs: int,
    should_stop: Callable[[], bool],
) -> list[K] | None:
    """Runs each training in a process of its own, so many at a time.

    A process's memory and CPU time are those of its training alone, and one that fails takes no
    other along. They divide the cores; on a GPU, each takes memory as it needs it.

    Args:
        missing: the trainings that may begin by now, the next one first; asked again and again.
        process_of: a training's process, which is not started yet.
        on_end: called when a process has ended.
        jobs: the number of processes at a time.
        should_stop: True ends all by SIGTERM, after which they save.

    Returns:
        The trainings whose processes failed; None if they were stopped.
    """
    cores = sorted(os.sched_getaffinity(0))
    if jobs > 1:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    running: dict[int, tuple[K, BaseProcess]] = {}
    begun: list[K] = []
    failed: list[K] = []
    try:
        while not should_stop():
            for slot in set(range(jobs)) - running.keys():
                key = next((each for each in missing() if each not in begun), None)
                if key is not None:
                    running[slot] = key, process_of(key)
                    begun.append(key)
                    os.sched_setaffinity(0, cores[slot % len(cores) :: jobs])  # it inherits this
                    running[slot][1].start()
                    os.sched_setaffinity(0, cores)
            if not running:
                return failed
            connection.wait([process.sentinel for _, process in running.values()], timeout=1)
            ended = [slot for slot, (_, process) in running.items() if process.exitcode is not None]
            for slot in ended:
                key, process = running.pop(slot)
                failed += [key] if process.exitcode else []
                on_end()
        return None
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.join()
