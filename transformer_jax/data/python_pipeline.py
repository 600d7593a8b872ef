"""Batches made ahead of time by a thread, for installations without TensorFlow."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def prefetched(make: Callable[[int], Item], start: int, depth: int) -> Iterator[Item]:
    """Yields make(start), make(start + 1), … without end, computed up to `depth` ahead.

    The thread ends when the generator is closed or collected; an exception in `make` is
    raised at the position where it happened.
    """
    items: queue.Queue[tuple[Item | None, BaseException | None]] = queue.Queue(max(depth, 1))
    stopped = threading.Event()

    def put(entry: tuple[Item | None, BaseException | None]) -> None:
        while not stopped.is_set():
            try:
                items.put(entry, timeout=0.1)
                return
            except queue.Full:
                continue

    def work() -> None:
        position = start
        while not stopped.is_set():
            try:
                item = make(position)
            except BaseException as error:  # handed over: the reader must see it
                put((None, error))
                return
            put((item, None))
            position += 1

    thread = threading.Thread(target=work, name="batch prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item, error = items.get()
            if error is not None:
                raise error
            assert item is not None
            yield item
    finally:
        stopped.set()
        thread.join()
