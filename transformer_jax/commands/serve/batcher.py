"""Sentences of many requests in common batches: an asyncio front, a few threads for the device.

All state belongs to the event loop, so there are no locks. A sentence waits in the group of those
that share its compiled program. An idle thread begins once a batch is full, nothing has come for a
tenth of `window`, or a sentence has waited for all of it: the answers to one batch make its callers
send their next sentences one after the other, and these should share a batch again. The thread
takes the group whose sentences have waited longest together: usually one that fills its batch,
but also a lone sentence, once it has waited longer than all the others.
"""

import asyncio
import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from transformer_jax.commands.serve.engine import Engine, Sentence
from transformer_jax.translation.translator import Translation

T = TypeVar("T")

#: Yields a sentence, or a block of them, and is sent its translations, best first, before it yields
#: the next. Returns the translations of each sentence.
Steps = Generator[Sentence, list[Translation], list[list[Translation]]]


class QueueFull(Exception):
    """Too much is waiting; the caller should try again later."""


def alone(sentence: Sentence) -> Steps:
    """The one step of a sentence that is translated alone."""
    return [(yield sentence)]


class _Job:
    """Steps of which one waits, or is on the device."""

    def __init__(self, engine: Engine, steps: Steps) -> None:
        self.engine, self.steps = engine, steps
        loop = asyncio.get_running_loop()
        self.result: asyncio.Future[list[list[Translation]]] = loop.create_future()

    def go_on(self, translations: list[Translation] | None) -> None:
        """Takes the next step; StopIteration: there is none."""
        # A generator that has not begun takes None alone.
        self.sentence = self.steps.send(translations)  # type: ignore[arg-type]
        self.group = (self.engine, self.engine.group(self.sentence))
        self.arrival = time.monotonic()


class Batcher:
    """Translates for many callers; start and end it with `async with`.

    Args:
        threads: batches that run at the same time.
        window: most seconds that a sentence waits for others if a thread is idle.
        limit: sentences that may wait. A caller is refused while as many are waiting, and
            otherwise taken whole, with its later steps. So at most one caller's sentences exceed
            it, and the steps that follow those on the device.
        observe: called with the size of every batch.
    """

    def __init__(
        self,
        *,
        threads: int = 1,
        window: float = 0.05,
        limit: int = 2048,
        observe: Callable[[int], None] = lambda size: None,
    ) -> None:
        self._window, self._limit, self._observe = window, limit, observe
        # A dict as a set in order of arrival, from which a job can leave at any place.
        self._jobs: dict[_Job, None] = {}
        self._others = 0
        self._last_arrival = -math.inf
        self._arrived = asyncio.Event()
        self._threads = threads
        self._device = ThreadPoolExecutor(threads, thread_name_prefix="device")

    async def __aenter__(self) -> "Batcher":
        self._workers = [asyncio.create_task(self._work()) for _ in range(self._threads)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.cancel()
        self._device.shutdown(wait=True, cancel_futures=True)

    @property
    def waiting(self) -> int:
        """Sentences and other work that the device has not begun."""
        return len(self._jobs) + self._others

    async def translate(self, work: Sequence[tuple[Engine, Steps]]) -> list[list[Translation]]:
        """The translations of each sentence, best first. If cancelled, they stop waiting.

        What it takes is sentences that are translated `alone`, or steps such as the blocks of a
        document. The sentences of all of them are in one list.

        Raises:
            QueueFull: too many are waiting.
        """
        self._admit()
        jobs = [_Job(engine, steps) for engine, steps in work]
        for job in jobs:
            self._go_on(job)
        try:
            results = await asyncio.gather(*(job.result for job in jobs))
            return list(chain.from_iterable(results))
        finally:
            for job in jobs:
                job.result.cancel()  # of those that are not done
                self._jobs.pop(job, None)

    async def run(self, function: Callable[[], T]) -> T:
        """Calls a function in a thread of the device, between two batches.

        Raises:
            QueueFull: too much is waiting.
        """
        self._admit()
        self._others += 1
        try:
            return await self.on_device(function)
        finally:
            self._others -= 1

    async def on_device(self, function: Callable[[], T]) -> T:
        """As `run`, but never refused: for the server itself, or to finish what was taken."""
        return await asyncio.get_running_loop().run_in_executor(self._device, function)

    def _admit(self) -> None:
        if self.waiting >= self._limit:
            raise QueueFull

    def _go_on(self, job: _Job, translations: list[Translation] | None = None) -> None:
        """Lets the next step of a job wait; the job is done if there is none."""
        try:
            job.go_on(translations)
        except StopIteration as end:
            job.result.set_result(end.value)
        except Exception as error:
            job.result.set_exception(error)
        else:
            self._jobs[job] = None
            self._last_arrival = job.arrival
            self._arrived.set()

    async def _work(self) -> None:
        """Keeps one thread of the device busy."""
        while True:
            batch = await self._next_batch()
            self._observe(len(batch))
            translate = partial(batch[0].engine.translate, [job.sentence for job in batch])
            try:
                results: list[Any] = await self.on_device(translate)
            except Exception as error:
                results = [error] * len(batch)
            for job, result in zip(batch, results, strict=True):
                if job.result.done():
                    continue  # its caller has gone
                if isinstance(result, Exception):
                    job.result.set_exception(result)
                else:
                    self._go_on(job, result)

    async def _next_batch(self) -> list[_Job]:
        """The next batch; see the top of the file."""
        while True:
            self._arrived.clear()
            if not self._jobs:
                await self._arrived.wait()
                continue
            groups: dict[Hashable, list[_Job]] = defaultdict(list)
            for job in self._jobs:
                if len(groups[job.group]) < job.engine.batch_size:
                    groups[job.group].append(job)
            firsts = list(groups.values())
            now = time.monotonic()
            oldest = min(batch[0].arrival for batch in firsts)
            rest = min(oldest + self._window, self._last_arrival + self._window / 10) - now
            if rest <= 0 or any(len(b) == b[0].engine.batch_size for b in firsts):
                batch = max(firsts, key=lambda batch: sum(now - job.arrival for job in batch))
                for job in batch:
                    del self._jobs[job]
                return batch
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await self._arrived.wait()
