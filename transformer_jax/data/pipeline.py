"""The stream of training batches: position -> batch, made ahead, in order, without end."""

import functools
import itertools
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from transformer_jax.data.batches import Batch, BatchPlan, Share, Stream, make_batch
from transformer_jax.data.config import BatchConfig
from transformer_jax.data.ids import ids_of_pairs
from transformer_jax.data.sampling import SubwordSampler
from transformer_jax.data.sentences import Sentences
from transformer_jax.data.tensorflow import has_tensorflow, import_tensorflow
from transformer_jax.data.tokenizer import SIDES, Side
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.errors import UserError, first_line
from transformer_jax.vocabulary import EOS_ID, PAD_ID

Item = TypeVar("Item")

_LOGGER = logging.getLogger(__name__)

_AHEAD = 4  # batches made ahead
_SEGMENT = 1024  # positions in one tf.data dataset
_COPIED = 1 << 28  # bytes of ids that tf.data, which copies them, is given at most


def batches_of_pairs(
    pairs: Iterable[tuple[str, str]],
    tokenizers: Tokenizers,
    config: BatchConfig | None = None,
    *,
    sampling_alpha: float | None = None,
) -> Callable[[int], Iterator[Batch]]:
    """The batches that a training makes of sentence pairs, from any position on, without end.

    Pairs of similar length are together, in few static shapes and in another order in each epoch.
    Position p is the p-th batch, of which each process gets its own rows. To begin at a later one
    takes no longer than at the first.

        batches = tj.batches_of_pairs(pairs, tokenizers, tj.BatchConfig(tokens=4096))
        tj.fit(model, train, batches)       # or: for batch in batches(0): ...

    Args:
        pairs: source and target sentences.
        tokenizers: from `train_tokenizers`, or of a run.
        config: how large batches are. Its `row_multiple` is by default the number of JAX's devices,
            over which `fit` divides a batch; with `train.accumulate` a multiple of both.
        sampling_alpha: draws another segmentation of each sentence in each epoch (`data/sampling`).

    Raises:
        UserError: something is no pair, none is short enough, or the tokenizers cannot sample.
    """
    import jax

    for number, pair in enumerate(pairs := list(pairs)):
        if not (isinstance(pair, tuple | list) and [type(each) for each in pair] == [str, str]):
            raise UserError(f"pairs: number {number} is {pair!r}: give (source, target) sentences")
    config = config or BatchConfig()
    sampler = sampling_alpha and SubwordSampler(tokenizers, sampling_alpha, config.seed)
    corpus = ids_of_pairs(pairs, tokenizers, sampler or None)
    multiple = config.row_multiple or jax.device_count()
    lengths = corpus.source.lengths, corpus.target.lengths
    plan = BatchPlan(*lengths, config, row_multiple=multiple)
    share = Share(jax.process_index(), jax.process_count(), multiple)
    return functools.partial(batches, Stream(corpus, plan, share, sampler or None))


def batches(stream: Stream, start: int = 0) -> Iterator[Batch]:
    """Yields `make_batch` at start, start + 1, … without end.

    They are made by tf.data where TensorFlow is installed, nothing is sampled or aligned and the
    ids are few, but by `make_batch` until TensorFlow is imported; else by `make_batch` in a thread.
    The batches are the same bit for bit. Close the iterator (or drop it) to stop its threads.

    Args:
        stream: of which corpus, and how.
        start: the first position, which is the number of batches already consumed.
    """
    # tf.data's threads run without the interpreter's lock. A sampler is Python and needs the lock,
    # so tf.data would gain nothing over the thread that machines without TensorFlow use.
    corpus = stream.corpus
    is_small = corpus.source.ids.nbytes + corpus.target.ids.nbytes <= _COPIED
    if is_small and not stream.sampler and not corpus.links and has_tensorflow():
        return _while_importing(stream, start)
    return in_thread(stream, start)


def in_thread(stream: Stream, start: int) -> Iterator[Batch]:
    """The batches, made by `make_batch` in a thread."""
    return prefetched(functools.partial(make_batch, stream), start, _AHEAD)


def _while_importing(stream: Stream, start: int) -> Iterator[Batch]:
    """Makes batches without TensorFlow until it is imported, which takes seconds, then with it.

    The import begins after the first batch: it holds the interpreter's lock, and would delay the
    first training step.
    """
    yield make_batch(stream, start)
    with ThreadPoolExecutor(1, "TensorFlow import") as pool:
        importing = pool.submit(import_tensorflow)
        for position in itertools.count(start + 1):
            if importing.done():
                break
            yield make_batch(stream, position)
    if error := importing.exception():
        _LOGGER.warning(
            "batches are made without TensorFlow, which cannot be imported: %s", first_line(error)
        )
        yield from in_thread(stream, position)
    yield from through_tensorflow(stream, position)


def through_tensorflow(stream: Stream, start: int) -> Iterator[Batch]:
    """The batches of one segment of positions after the other, each a tf.data dataset.

    No Python runs inside tf.data: its threads never wait for the interpreter, and the program
    can end while a stream is open.
    """
    tf = import_tensorflow()

    tensors = {}
    for side in SIDES:
        sentences: Sentences = getattr(stream.corpus, side)
        ids = sentences.ids if len(sentences.ids) else np.zeros(1, np.int32)
        tensors[side] = [tf.constant(each) for each in (ids, sentences.starts, sentences.stops)]

    def padded(side: Side, rows: Any, size: Any, length: Any) -> dict[str, Any]:
        """As `Sentences.padded`."""
        ids, starts, stops = tensors[side]
        starts_B1, stops_B1 = tf.gather(starts, rows)[:, None], tf.gather(stops, rows)[:, None]
        column_L = tf.range(length)
        lengths_B1 = stops_B1 - starts_B1
        places_BL = tf.where(column_L < lengths_B1, starts_B1 + column_L, 0)
        ids_BL = tf.cast(tf.gather(ids, places_BL), tf.int32)
        ids_BL = tf.where(column_L < lengths_B1, ids_BL, PAD_ID)
        ids_BL = tf.where(column_L == lengths_B1, EOS_ID, ids_BL)
        missing = [[0, size - tf.size(rows, tf.int64)], [0, 0]]  # rows of padding
        mask_BL = tf.pad(column_L <= lengths_B1, missing)
        return {side: tf.pad(ids_BL, missing, constant_values=PAD_ID), f"{side}_mask": mask_BL}

    def make(shape: Any, rows: Any) -> dict[str, Any]:
        size, source_length, target_length = tf.unstack(shape)
        source = padded("source", rows, size, source_length)
        return source | padded("target", rows, size, target_length)

    def segment(first: int) -> Any:
        positions = range(first, first + _SEGMENT)
        shapes, rows = zip(*(stream.plan.rows(i, stream.share) for i in positions), strict=True)
        ragged = tf.RaggedTensor.from_row_lengths(np.concatenate(rows), list(map(len, rows)))
        dataset = tf.data.Dataset.from_tensor_slices((np.array(shapes, np.int64), ragged))
        dataset = dataset.map(make, num_parallel_calls=2, deterministic=True).prefetch(_AHEAD)
        options = tf.data.Options()
        # Nothing is left to tune, and closing a stream would wait for the tuning thread.
        options.autotune.enabled = False
        return dataset.with_options(options)

    while True:
        yield from segment(start).as_numpy_iterator()
        start += _SEGMENT


def prefetched(make: Callable[[int], Item], start: int, depth: int) -> Iterator[Item]:
    """Yields make(start), make(start + 1), … without end, computed in a thread up to `depth` ahead.

    The thread ends when the generator is closed or collected. An exception in `make` is raised
    at the position where it happened.
    """
    pool = ThreadPoolExecutor(1, "batch prefetch")
    try:
        ahead = deque(pool.submit(make, start + i) for i in range(max(depth, 1)))
        for position in itertools.count(start + len(ahead)):
            item = ahead.popleft().result()
            ahead.append(pool.submit(make, position))
            yield item
    finally:
        if not sys.is_finalizing():  # at the end of the program, the thread just ends
            pool.shutdown(cancel_futures=True)
