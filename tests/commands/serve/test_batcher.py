"""Sentences of many callers: none is lost or mixed up, whatever the others do."""

import asyncio
import threading
import time

import pytest

from transformer_jax.commands.serve.batcher import Batcher, QueueFull, alone
from transformer_jax.commands.serve.engine import Sentence


class Upper:
    """An engine that turns text into capitals, in groups of one length, and remembers its calls."""

    batch_size = 4

    def __init__(self, seconds=0.0, begins=lambda: None):
        self.seconds, self.begins, self.calls = seconds, begins, []
        self.threads = set()

    def group(self, sentence):
        return len(sentence.pieces)

    def translate(self, sentences):
        self.begins()
        time.sleep(self.seconds)
        self.threads.add(threading.get_ident())
        assert len({len(s.pieces) for s in sentences}) == 1
        self.calls.append([s.pieces for s in sentences])
        if any("bad" in s.pieces for s in sentences):
            raise ValueError("a bad one")
        return [[s.pieces.upper()] for s in sentences]


def with_batcher(**options):
    """Runs a test with a started batcher."""

    def decorated(test):
        async def started():
            async with Batcher(**options) as batcher:
                await test(batcher)

        return lambda: asyncio.run(started())

    return decorated


async def one(batcher, engine, *texts):
    return await batcher.translate([(engine, alone(Sentence(text))) for text in texts])


def steps(*texts):
    """Each waits for the translations of the one before."""
    done = []
    for text in texts:
        done.append((yield Sentence(text)))
    return done


@with_batcher()
async def test_every_caller_gets_its_own_in_order(batcher):
    engine, other = Upper(), Upper()
    texts = [[f"{i}x" + "y" * (i % 3), f"{i}z"] for i in range(200)]
    calls = (one(batcher, engine if i % 2 else other, *each) for i, each in enumerate(texts))
    assert await asyncio.gather(*calls) == [[[t.upper()] for t in each] for each in texts]
    assert len(engine.threads | other.threads) == 1
    sizes = [len(call) for call in engine.calls]
    assert max(sizes) == 4 and sum(sizes) == 200
    assert len(sizes) < 70  # they shared batches


@with_batcher(threads=2)
async def test_batches_run_in_several_threads_at_the_same_time(batcher):
    both = threading.Barrier(2, timeout=60)
    engine = Upper(begins=both.wait)  # raises unless the other batch runs meanwhile
    texts = [f"{i:03}" for i in range(16)]
    answers = await asyncio.gather(*(one(batcher, engine, text) for text in texts))
    assert answers == [[[text]] for text in texts]
    assert len(engine.threads) == 2
    assert [len(call) for call in engine.calls] == [4] * 4


@with_batcher(window=30.0)  # a full batch does not wait for its end
async def test_sentences_within_the_window_share_a_batch(batcher):
    engine = Upper()

    async def late(text):
        await asyncio.sleep(0.01)
        return await one(batcher, engine, text)

    await asyncio.gather(one(batcher, engine, "a"), late("b"), late("c"), late("d"))
    assert [sorted(call) for call in engine.calls] == [["a", "b", "c", "d"]]


@with_batcher(window=0.0)
async def test_many_go_before_one_that_has_waited_no_longer(batcher):
    engine = Upper(0.02)
    texts = ["first", "lone sentence", *["many"] * 8]
    await asyncio.gather(*(one(batcher, engine, text) for text in texts))
    assert sorted(len(call) for call in engine.calls) == [1, 1, 4, 4]
    assert engine.calls.index(["lone sentence"]) > 0


@with_batcher(window=0.0)
async def test_a_lone_sentence_is_not_passed_over_for_ever(batcher):
    """While other callers always fill the next batch."""
    engine = Upper(0.005)

    async def stream():
        while True:
            await one(batcher, engine, "many")

    streams = [asyncio.create_task(stream()) for _ in range(12)]
    await asyncio.sleep(0.1)
    assert await asyncio.wait_for(one(batcher, engine, "lone sentence"), 30)
    for each in streams:
        each.cancel()
    after = engine.calls[engine.calls.index(["lone sentence"]) - 1]
    assert len(after) == 4


@with_batcher(limit=10)
async def test_a_full_queue_refuses_and_loses_nothing(batcher):
    engine = Upper(0.01)
    accepted = [asyncio.create_task(one(batcher, engine, f"{i:03}")) for i in range(10)]
    await asyncio.sleep(0)
    assert batcher.waiting == 10
    with pytest.raises(QueueFull):
        await one(batcher, engine, "late")
    with pytest.raises(QueueFull):
        await batcher.run(lambda: None)
    assert await asyncio.gather(*accepted) == [[[f"{i:03}"]] for i in range(10)]
    assert batcher.waiting == 0
    assert await one(batcher, engine, "now") == [["NOW"]]


@with_batcher(limit=1)
async def test_who_was_taken_is_not_refused_later(batcher):
    """While others fill the queue between its steps."""
    engine = Upper(0.01)
    work = [(engine, steps(f"{i}a", f"{i}b", f"{i}c")) for i in range(3)]
    taken = asyncio.create_task(batcher.translate([*work, (engine, alone(Sentence("end")))]))
    await asyncio.sleep(0)
    refused = 0
    while not taken.done():
        try:
            await one(batcher, engine, "other")
        except QueueFull:
            refused += 1
        await asyncio.sleep(0)
    wanted = [[f"{i}{letter}"] for i in range(3) for letter in "ABC"]
    assert await taken == [*wanted, ["END"]] and refused
    assert batcher.waiting == 0


@with_batcher()
async def test_a_step_that_fails_fails_for_its_caller_only(batcher):
    engine = Upper()

    def broken():
        yield Sentence("first")
        raise ValueError("broken")

    work = [(engine, broken()), (engine, steps("never", "ends"))]
    with pytest.raises(ValueError, match="broken"):
        await batcher.translate(work)
    assert batcher.waiting == 0
    assert await one(batcher, engine, "next") == [["NEXT"]]


@with_batcher(window=0.0)
async def test_who_goes_away_costs_nothing_more(batcher):
    begun, go = threading.Semaphore(0), threading.Semaphore(0)

    def begins():
        begun.release()
        assert go.acquire(timeout=60)

    engine = Upper(begins=begins)
    first = asyncio.create_task(one(batcher, engine, "stay"))
    await asyncio.to_thread(begun.acquire)  # the device has begun
    going = asyncio.create_task(one(batcher, engine, "gone", "left"))
    staying = asyncio.create_task(one(batcher, engine, "here"))
    await asyncio.sleep(0)
    assert batcher.waiting == 3
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    go.release(2)
    assert await first == [["STAY"]] and await staying == [["HERE"]]
    assert batcher.waiting == 0 and begun.acquire(blocking=False)
    gone_while_running = asyncio.create_task(one(batcher, engine, "slow"))
    await asyncio.to_thread(begun.acquire)
    gone_while_running.cancel()
    go.release(2)
    assert await one(batcher, engine, "next") == [["NEXT"]]
    assert engine.calls == [["stay"], ["here"], ["slow"], ["next"]]


@with_batcher()
async def test_a_failing_batch_fails_for_its_callers_only(batcher):
    engine = Upper()
    bad = asyncio.create_task(one(batcher, engine, "bad one"))
    good = asyncio.create_task(one(batcher, engine, "good"))
    with pytest.raises(ValueError, match="a bad one"):
        await bad
    assert await good == [["GOOD"]]
    assert await one(batcher, engine, "next") == [["NEXT"]]


def test_leaving_waits_for_the_batch_in_hand():
    begun = threading.Event()
    engine = Upper(0.2, begins=begun.set)

    @with_batcher()
    async def leaves(batcher):
        engine.task = asyncio.create_task(one(batcher, engine, "a"))
        await asyncio.to_thread(begun.wait)

    leaves()
    assert engine.calls == [["a"]]


@with_batcher()
async def test_other_work_runs_in_the_same_thread(batcher):
    engine = Upper()
    await one(batcher, engine, "a")
    assert engine.threads == {await batcher.run(threading.get_ident)}
