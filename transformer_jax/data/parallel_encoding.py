"""Text -> ids for a whole corpus, in several processes where that pays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice

import numpy as np

from transformer_jax.data.id_corpus import Arrays
from transformer_jax.data.tokenizer import Tokenizers

_CHUNK = 10_000  # pairs sent to a worker at a time
_SMALL = 200_000  # pairs; below this, starting processes costs more than it saves
_PLANNING_SAMPLES = 2  # segmentations drawn per sentence to see how long samples get


def encoded_chunks(
    pairs: Iterable[tuple[str, str]], tokenizers: Tokenizers, alpha: float, workers: int
) -> Iterator[Arrays]:
    """Encoded chunks in the corpus's order; in processes once the corpus proves large."""
    iterator = iter(pairs)
    head = list(islice(iterator, _SMALL)) if workers > 1 else []
    if workers <= 1 or len(head) < _SMALL:
        for number, chunk in enumerate(_chunks(chain(head, iterator))):
            yield _encode_chunk(tokenizers, chunk, alpha, number)
        return
    # Imported here: most runs never need it. "spawn", because the parent may already hold
    # the threads of JAX or TensorFlow, which a fork would copy in an undefined state.
    import multiprocessing
    from collections import deque
    from concurrent.futures import Future, ProcessPoolExecutor

    pool = ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), _start_worker, (tokenizers, alpha)
    )
    waiting: deque[Future[Arrays]] = deque()
    try:
        for number, chunk in enumerate(_chunks(chain(head, iterator))):
            waiting.append(pool.submit(_work, chunk, number))
            if len(waiting) >= 2 * workers:  # bounds the text held in memory
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_worker_state: tuple[Tokenizers, float] | None = None


def _start_worker(tokenizers: Tokenizers, alpha: float) -> None:
    global _worker_state
    _worker_state = (tokenizers, alpha)


def _work(chunk: list[tuple[str, str]], number: int) -> Arrays:
    assert _worker_state is not None
    return _encode_chunk(_worker_state[0], chunk, _worker_state[1], number)


def _encode_chunk(
    tokenizers: Tokenizers, chunk: list[tuple[str, str]], alpha: float, number: int
) -> Arrays:
    arrays: Arrays = {}
    for i, side in enumerate(("source", "target")):
        tokenizer = (tokenizers.source, tokenizers.target)[i]
        texts = [pair[i] for pair in chunk]
        dtype = "<u2" if tokenizer.vocab_size <= 1 << 16 else "<i4"
        sentences = tokenizer.encode_batch(texts)
        lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
        arrays[f"{side}_offsets"] = lengths  # made cumulative when written
        arrays[f"{side}_ids"] = np.fromiter(
            chain.from_iterable(sentences), dtype, int(lengths.sum())
        )
        if alpha > 0:
            room = lengths.copy()
            for sample in range(_PLANNING_SAMPLES):
                first = (number * _PLANNING_SAMPLES + sample) * _CHUNK
                lengths_sampled = [
                    len(tokenizer.encode_sampled(text, first + i, alpha))
                    for i, text in enumerate(texts)
                ]
                np.maximum(room, lengths_sampled, out=room)
            arrays[f"{side}_room"] = room.astype("<i4")
            encoded = [text.encode("utf-8") for text in texts]
            arrays[f"{side}_text_offsets"] = np.fromiter(map(len, encoded), np.int64, len(encoded))
            arrays[f"{side}_text"] = np.frombuffer(b"".join(encoded), np.uint8)
    return arrays


def _chunks(pairs: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    iterator = iter(pairs)
    while chunk := list(islice(iterator, _CHUNK)):
        yield chunk
