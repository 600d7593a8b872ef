import gc
import subprocess
import sys
import threading
import time
from itertools import islice

import numpy as np
import pytest

from transformer_jax.data.batches import BatchPlan, Share, Stream, make_batch
from transformer_jax.data.config import BatchConfig, TokenizerConfig
from transformer_jax.data.ids import ids_of_pairs
from transformer_jax.data.pipeline import (
    batches,
    batches_of_pairs,
    in_thread,
    prefetched,
    through_tensorflow,
)
from transformer_jax.data.sentences import IdCorpus
from transformer_jax.data.tensorflow import has_tensorflow, import_tensorflow
from transformer_jax.data.tokenizer_training import train_tokenizers
from transformer_jax.errors import UserError

needs_tensorflow = pytest.mark.skipif(not has_tensorflow(), reason="TensorFlow is not installed")
ENGINES = [in_thread, pytest.param(through_tensorflow, marks=needs_tensorflow)]


@pytest.fixture(scope="module")
def corpus():
    rng = np.random.default_rng(0)
    source = [rng.integers(4, 90, n).tolist() for n in rng.integers(0, 12, 150)]
    target = [
        rng.integers(4, 90, max(0, len(s) + d)).tolist()
        for s, d in zip(source, rng.integers(-2, 3, 150), strict=True)
    ]
    return IdCorpus.from_lists(source, target)


@pytest.fixture(scope="module")
def plan(corpus):
    return BatchPlan(
        corpus.source.lengths, corpus.target.lengths, BatchConfig(tokens=128, num_buckets=4)
    )


def equal(a, b):
    return a.keys() == b.keys() and all(
        np.array_equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_a_stream_can_start_at_any_position(corpus, plan, engine):
    count = 2 * plan.batches_per_epoch + 3  # across two ends of epoch
    expected = [make_batch(Stream(corpus, plan), p) for p in range(count)]
    for start in (0, 1, plan.batches_per_epoch, count - 2):
        stream = engine(Stream(corpus, plan), start)
        tail = list(islice(stream, count - start))
        stream.close()
        assert len(tail) == count - start
        assert all(map(equal, tail, expected[start:]))


@needs_tensorflow
def test_tf_data_continues_from_one_segment_to_the_next(corpus, plan, monkeypatch):
    monkeypatch.setattr("transformer_jax.data.pipeline._SEGMENT", 3)
    given = Stream(corpus, plan, Share(row_multiple=5))
    stream = through_tensorflow(given, 1)
    for position in range(1, 12):
        assert equal(next(stream), make_batch(given, position))


def test_auto_uses_tf_data_if_it_is_installed_and_suits(corpus, plan, monkeypatch):
    plain = Stream(corpus, plan)

    def names():
        streams = batches(plain), batches(plain._replace(sampler=lambda *_: ([], [])))
        return [stream.__name__ for stream in streams]

    monkeypatch.setattr("transformer_jax.data.pipeline.has_tensorflow", lambda: True)
    assert names() == ["_while_importing", "prefetched"]
    with monkeypatch.context() as patch:  # tf.data would copy them
        patch.setattr("transformer_jax.data.pipeline._COPIED", 8)
        assert names() == ["prefetched", "prefetched"]
    monkeypatch.setattr("transformer_jax.data.pipeline.has_tensorflow", lambda: False)
    assert names() == ["prefetched", "prefetched"]


@needs_tensorflow
def test_the_first_batches_do_not_wait_for_the_import_of_tensorflow(corpus, plan, monkeypatch):
    imported, real = threading.Event(), import_tensorflow
    segments = []

    def slow():
        assert imported.wait(60)
        return real()

    def through(stream, start):
        segments.append(start)
        return through_tensorflow(stream, start)

    monkeypatch.setattr("transformer_jax.data.pipeline.import_tensorflow", slow)
    monkeypatch.setattr("transformer_jax.data.pipeline.through_tensorflow", through)
    given = Stream(corpus, plan, Share(1, 2))
    stream = batches(given, 3)
    for position in range(3, 3 + plan.batches_per_epoch):
        assert equal(next(stream), make_batch(given, position))
    assert not segments
    imported.set()
    position += 1
    while not segments:
        assert equal(next(stream), make_batch(given, position))
        position += 1
    assert segments == [position - 1]
    for later in range(position, position + 3):
        assert equal(next(stream), make_batch(given, later))
    stream.close()


@needs_tensorflow
def test_a_tensorflow_that_cannot_be_imported_is_not_needed(corpus, plan, monkeypatch, caplog):
    def fail():
        raise ImportError("no such library")

    monkeypatch.setattr("transformer_jax.data.pipeline.has_tensorflow", lambda: True)
    monkeypatch.setattr("transformer_jax.data.pipeline.import_tensorflow", fail)
    stream = batches(Stream(corpus, plan))
    position = 0
    while not caplog.messages or position < 5:
        assert equal(next(stream), make_batch(Stream(corpus, plan), position))
        position += 1
    stream.close()
    assert caplog.messages == [
        "batches are made without TensorFlow, which cannot be imported: no such library"
    ]
    with pytest.raises(ImportError, match="no such library"):
        next(through_tensorflow(Stream(corpus, plan), 0))


@needs_tensorflow
def test_tf_data_of_sentences_that_are_all_empty():
    corpus = IdCorpus.from_lists([[]] * 10, [[]] * 10)
    plan = BatchPlan(corpus.source.lengths, corpus.target.lengths, BatchConfig(tokens=16))
    assert equal(
        next(through_tensorflow(Stream(corpus, plan), 0)), make_batch(Stream(corpus, plan), 0)
    )


def test_the_thread_runs_ahead_and_ends_with_the_generator(threads_of):
    made = []

    def make(position):
        made.append(position)
        return position

    stream = prefetched(make, 5, depth=3)
    assert next(stream) == 5
    assert threads_of("batch prefetch")
    while len(made) < 4:
        time.sleep(0.01)
    time.sleep(0.05)
    assert len(made) <= 5  # one read, three waiting, one in progress
    stream.close()
    assert not threads_of("batch prefetch")
    other = prefetched(make, 0, depth=1)
    next(other)
    del other
    gc.collect()
    assert not threads_of("batch prefetch")


def test_an_error_is_raised_at_its_position(threads_of):
    def make(position):
        if position == 2:
            raise KeyError("two")
        return position

    stream = prefetched(make, 0, depth=8)
    assert [next(stream), next(stream)] == [0, 1]
    with pytest.raises(KeyError, match="two"):
        next(stream)
    assert not threads_of("batch prefetch")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_program_that_does_not_close_its_stream_ends(engine):
    code = f"""
import numpy as np
from transformer_jax.data.batches import BatchPlan, Stream
from transformer_jax.data.config import BatchConfig
from transformer_jax.data.sentences import IdCorpus
from transformer_jax.data.pipeline import {engine.__name__}
corpus = IdCorpus.from_lists([[5, 6]] * 40, [[7]] * 40)
plan = BatchPlan(corpus.source.lengths, corpus.target.lengths, BatchConfig(tokens=64))
stream = {engine.__name__}(Stream(corpus, plan), 0)
print(next(stream)["source"].shape[1])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
    assert "Traceback" not in done.stderr


def test_batches_of_pairs_are_those_of_a_training_and_each_process_has_its_rows(monkeypatch):
    pairs = [(f"eins {'zwei ' * (i % 5)}", f"one {'two ' * (i % 5)}") for i in range(60)]
    tokenizers = train_tokenizers(TokenizerConfig(vocab_size=272), pairs)
    config = BatchConfig(tokens=256, max_length=40, num_buckets=2, row_multiple=4)
    whole = list(islice(batches_of_pairs(pairs, tokenizers, config)(3), 4))
    ids = ids_of_pairs(pairs, tokenizers)
    plan = BatchPlan(ids.source.lengths, ids.target.lengths, config, row_multiple=4)
    for position, batch in enumerate(whole, start=3):
        expected = make_batch(Stream(ids, plan, Share(row_multiple=4)), position)
        assert all(np.array_equal(batch[key], expected[key]) for key in expected)
    halves = []
    for process in range(2):
        monkeypatch.setattr("jax.process_index", lambda process=process: process)
        monkeypatch.setattr("jax.process_count", lambda: 2)
        halves.append(next(batches_of_pairs(pairs, tokenizers, config)(3)))
    joined = np.concatenate([half["source"] for half in halves])
    np.testing.assert_array_equal(joined, whole[0]["source"])
    with pytest.raises(UserError, match=r"pairs: number 1 is \('a', 'b', 'c'\): give \(source"):
        batches_of_pairs([("a", "b"), ("a", "b", "c")], tokenizers)
