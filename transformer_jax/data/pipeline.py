"""The stream of training batches: position -> batch, made ahead, in order, without end."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np

from transformer_jax.data.batching import Batch, BatchPlan, Sampler, make_batch
from transformer_jax.data.corpus import IdCorpus
from transformer_jax.data.python_pipeline import prefetched
from transformer_jax.data.tensorflow import has_tensorflow, import_tensorflow

_KEYS = ("source", "source_mask", "target", "target_mask")


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
    """Yields `make_batch` at start, start + 1, … for ever.

    Args:
        corpus: the ids.
        plan: made from the corpus's lengths.
        start: the position to begin at: the number of batches already consumed.
        host: which slice of each batch, from 0.
        num_hosts: number of slices.
        row_multiple: batches are filled up to a multiple of as many rows.
        prefetch: batches made ahead.
        sampler: see `make_batch`.
        engine: "tensorflow" (tf.data), "python" (a thread), or "auto": tf.data where
            TensorFlow is installed. The batches are the same bit for bit.

    Close the iterator (or drop it) to stop its threads.
    """

    def make(position: int) -> Batch:
        return make_batch(corpus, plan, position, host, num_hosts, sampler, row_multiple)

    if engine == "tensorflow" or (engine == "auto" and has_tensorflow()):
        return _through_tensorflow(make, start, prefetch)
    return prefetched(make, start, prefetch)


def _through_tensorflow(make: Callable[[int], Batch], start: int, depth: int) -> Iterator[Batch]:
    tf = import_tensorflow()
    failures: list[BaseException] = []

    def call(position: Any) -> list[np.ndarray]:
        try:
            batch = make(int(position))
        except BaseException as error:  # tf.data would turn it into a text
            failures.append(error)
            raise
        return [batch[key] for key in _KEYS]

    types = (tf.int32, tf.bool, tf.int32, tf.bool)
    dataset = (
        tf.data.Dataset.range(start, np.iinfo(np.int64).max)
        .map(
            lambda position: tf.numpy_function(call, [position], types),
            num_parallel_calls=2,  # the work is NumPy's and holds the GIL: more gains nothing
            deterministic=True,
        )
        .prefetch(max(depth, 1))
    )
    options = tf.data.Options()
    # There is nothing to tune, and a stream that has been read for half a minute can wait as long
    # again for its tuning thread when it is closed.
    options.autotune.enabled = False
    dataset = dataset.with_options(options)
    held = [dataset.as_numpy_iterator()]
    del dataset

    def let_go() -> None:
        held.clear()

    # tf.data's threads need the interpreter to finish the batches in hand. A stream still
    # open when the program ends would wait for them after the interpreter has shut them
    # out, for ever; so it is let go while they can still run.
    atexit.register(let_go)
    try:
        while held:
            try:
                arrays = next(held[0])
            except tf.errors.OpError:
                if failures:
                    raise failures[0] from None
                raise
            yield dict(zip(_KEYS, arrays, strict=True))
    finally:
        atexit.unregister(let_go)
        let_go()
