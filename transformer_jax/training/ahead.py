"""Programs that are compiled in threads before they are needed.

A program of a training takes seconds to minutes to compile. XLA works without the interpreter's
lock, so the first batches are trained on, and several programs are compiled, at the same time. What
is computed does not change.
"""

import contextlib
import math
import os
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

#: A key, and a function that gives the lowered program; see `jax.jit(...).lower`.
Program = tuple[Hashable, Callable[[], Any]]

#: More threads would wait for each other: a fifth of the time holds the interpreter's lock.
_MOST_THREADS = 4


class Ahead:
    """Compiled programs by key, and those to come.

    Attributes:
        deadline: by `time.perf_counter()`; no program is waited for any longer. Threads that still
            compile then are left behind: they end with their program, and a normal exit of Python
            waits for them.
    """

    def __init__(self) -> None:
        self.deadline = math.inf
        self._programs: dict[Hashable, Future[Any]] = {}

    @contextlib.contextmanager
    def compiling(self, first: Sequence[Program], later: Sequence[Program]) -> Iterator[None]:
        """Compiles programs in threads, but for those that are compiled already.

        At the end those that nobody has begun are dropped, and the others waited for: a compiler
        cannot be interrupted.

        Args:
            first: what is needed at once.
            later: the others, in this order, which begin when the first ones are compiled.
        """
        pool = ThreadPoolExecutor(_num_threads(), "compile ahead")
        try:
            for programs in (first, later):
                before = list(self._programs.values()) if programs is later else []
                for key, lower in programs:
                    if key not in self._programs:
                        self._programs[key] = pool.submit(_compiled, lower, before)
            yield
        finally:
            pool.shutdown(wait=self.deadline == math.inf, cancel_futures=True)

    def get(self, key: Hashable, jitted: Any) -> Any:
        """The program of a key, waited for; `jitted` if no thread has begun to compile it.

        An error of the compiler is raised here.

        Raises:
            TimeoutError: it is not compiled by the deadline.
        """
        program = self._programs.get(key)
        if program is None or program.cancelled():
            return jitted
        if self.deadline < math.inf:  # nobody could interrupt what is compiled here
            return program.result(max(0.0, self.deadline - time.perf_counter()))
        return jitted if program.cancel() else program.result()

    def is_busy(self) -> bool:
        """Whether programs are being compiled, or will be."""
        return not all(program.done() for program in self._programs.values())

    def rounds_left(self) -> int:
        """How many programs each thread has yet to compile."""
        left = sum(not program.done() for program in self._programs.values())
        return math.ceil(left / _num_threads())

    def wait(self) -> None:
        """Returns when nothing is left to compile."""
        wait(self._programs.values())


def _num_threads() -> int:
    return min(os.cpu_count() or 1, _MOST_THREADS)


def _compiled(lower: Callable[[], Any], before: list[Future[Any]]) -> Any:
    wait(before)
    return lower().compile()
