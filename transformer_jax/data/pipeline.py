"""The stream of training batches: position -> batch, made ahead, in order, without end."""

import itertools
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

import numpy as np

from transformer_jax.data.batches import Batch, BatchPlan, Sampler, local_rows, make_batch
from transformer_jax.data.corpus import IdCorpus
from transformer_jax.data.tensorflow import has_tensorflow, import_tensorflow
from transformer_jax.vocabulary import EOS_ID, PAD_ID

Item = TypeVar("Item")

_KEYS = ("source", "source_mask", "target", "target_mask")
_SEGMENT = 1024  # positions in one tf.data dataset


def batches(
    corpus: IdCorpus,
    plan: BatchPlan,
    start: int = 0,
    *,
    host: int = 0,
    num_hosts: int = 1,
    row_multiple: int = 1,
    prefetch: int = 4,
    sampler: Sampler | None = None,
    engine: Literal["auto", "tensorflow", "python"] = "auto",
) -> Iterator[Batch]:
    """Yields `make_batch` at start, start + 1, … without end.

    Close the iterator (or drop it) to stop its threads.

    Args:
        corpus: the ids.
        plan: made from the corpus's lengths.
        start: the first position, which is the number of batches already consumed.
        host: which slice of each batch, from 0.
        num_hosts: number of slices.
        row_multiple: batches are filled up to a multiple of as many rows.
        prefetch: batches made ahead.
        sampler: see `make_batch`. It is Python, and therefore needs the python engine.
        engine: "tensorflow" (tf.data: ids are gathered and padded by TensorFlow's operations,
            in its threads), "python" (`make_batch` in a thread), or "auto": tf.data where
            TensorFlow is installed and nothing is sampled. The batches are the same bit for bit.
    """
    if engine == "tensorflow" and sampler:
        raise ValueError("a sampler is Python: use engine='python' or 'auto'")
    if engine == "tensorflow" or (engine == "auto" and not sampler and has_tensorflow()):
        return _through_tensorflow(
            corpus,
            lambda position: local_rows(plan, position, host, num_hosts, row_multiple),
            start,
            prefetch,
        )
    return prefetched(
        lambda position: make_batch(corpus, plan, position, host, num_hosts, sampler, row_multiple),
        start,
        prefetch,
    )


def _through_tensorflow(
    corpus: IdCorpus,
    rows_at: Callable[[int], tuple[tuple[int, int, int], np.ndarray]],
    start: int,
    depth: int,
) -> Iterator[Batch]:
    """The batches of one segment of positions after the other, each a tf.data dataset.

    No Python runs inside tf.data: its threads never wait for the interpreter, and the program
    can end while a stream is open.
    """
    tf = import_tensorflow()

    def tensor(values: np.ndarray) -> Any:
        return tf.constant(values if len(values) else np.zeros(1, values.dtype))

    source = tensor(corpus.source_ids), tensor(corpus.source_offsets)
    target = tensor(corpus.target_ids), tensor(corpus.target_offsets)

    def padded(ids: Any, offsets: Any, rows: Any, size: Any, length: Any) -> tuple[Any, Any]:
        """As `gather`: [size, length] ids with EOS, and the mask of real tokens."""
        starts, ends = tf.gather(offsets, rows), tf.gather(offsets, rows + 1)
        missing = [[0, size - tf.shape(rows, tf.int64)[0]]]
        starts_B1 = tf.pad(starts, missing)[:, None]
        lengths_B1 = tf.pad(ends - starts, missing, constant_values=-1)[:, None]
        column_L = tf.range(length)
        is_token_BL = column_L < lengths_B1
        tokens_BL = tf.gather(ids, tf.where(is_token_BL, starts_B1 + column_L, 0))
        ends_BL = tf.where(column_L == lengths_B1, EOS_ID, PAD_ID)
        return tf.where(is_token_BL, tf.cast(tokens_BL, tf.int32), ends_BL), column_L <= lengths_B1

    def segment(first: int) -> Any:
        shapes, rows = zip(*map(rows_at, range(first, first + _SEGMENT)), strict=True)
        all_rows = tf.constant(np.concatenate(rows))
        ends = np.cumsum([len(some) for some in rows])
        begins = np.append(0, ends[:-1])

        def make(shape: Any, begin: Any, end: Any) -> tuple[Any, ...]:
            some = all_rows[begin:end]
            return (
                *padded(*source, some, shape[0], shape[1]),
                *padded(*target, some, shape[0], shape[2]),
            )

        slices = (np.array(shapes, np.int64), begins, ends)
        dataset = tf.data.Dataset.from_tensor_slices(slices)
        dataset = dataset.map(make, num_parallel_calls=2, deterministic=True).prefetch(depth)
        options = tf.data.Options()
        # Nothing is left to tune, and closing a stream would wait for the tuning thread.
        options.autotune.enabled = False
        return dataset.with_options(options)

    while True:
        for arrays in segment(start).as_numpy_iterator():
            yield dict(zip(_KEYS, arrays, strict=True))
        start += _SEGMENT


def prefetched(make: Callable[[int], Item], start: int, depth: int) -> Iterator[Item]:
    """Yields make(start), make(start + 1), … without end, computed in a thread up to `depth` ahead.

    The thread ends when the generator is closed or collected. An exception in `make` is raised
    at the position where it happened.
    """
    items: queue.SimpleQueue[tuple[Item | None, BaseException | None]] = queue.SimpleQueue()
    room = threading.Semaphore(max(depth, 1))
    stopped = threading.Event()

    def work() -> None:
        for position in itertools.count(start):
            room.acquire()
            if stopped.is_set():
                return
            try:
                items.put((make(position), None))
            except BaseException as error:  # raised again in the reader's thread
                items.put((None, error))
                return

    thread = threading.Thread(target=work, name="batch prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item, error = items.get()
            if error is not None:
                raise error
            assert item is not None
            room.release()
            yield item
    finally:
        if not sys.is_finalizing():  # at the end of the program, the thread just ends
            stopped.set()
            room.release()
            thread.join()
