"""Which batches run when: new programs first, and several at a time on a CPU."""

import threading

import jax.numpy as jnp
import pytest

from transformer_jax.translation.run_batches import Timing, Work, run_batches
from transformer_jax.translation.text_batches import Row


def run(start, finish, lengths, threads, compiled=None):
    """Runs batches of one row each, with a program for each length."""
    return run_batches(
        set() if compiled is None else compiled,
        threads,
        [[Row(number, [4], [], length)] for number, length in enumerate(lengths)],
        Work(
            "a method",
            lambda length: 1,
            lambda batch: start(batch[0].number),
            lambda batch, result: finish(batch[0].number),
        ),
    )


def test_an_accelerator_is_one_batch_ahead_and_compiles_first():
    order, compiled = [], set()

    def events(lengths):
        order.clear()
        start, finish = (
            lambda number, name=name: order.append(f"{name} {number}")
            for name in ("start", "finish")
        )
        timing = run(start, finish, lengths, 1, compiled)
        return timing.compile_seconds > 0, ", ".join(order)

    compiling = "start 0, start 2, finish 0, finish 2, start 1, finish 1"
    assert events([32, 32, 16]) == (True, compiling)
    assert compiled == {("a method", 16), ("a method", 32)}
    known = "start 0, start 1, finish 0, start 2, finish 1, finish 2"
    assert events([32, 32, 16]) == (False, known)


@pytest.mark.parametrize("lengths", [[32, 32, 32], [32, 24, 16, 32]], ids=["one", "several"])
def test_a_cpu_runs_batches_at_the_same_time(lengths):
    """Of one program that is compiled, and of several that are not."""
    both = threading.Barrier(2, timeout=60)
    finished = []

    def start(number):
        if number in (1, 2):
            both.wait()  # raises unless the other one runs meanwhile
        return jnp.zeros(())

    run(start, finished.append, lengths, 2)
    assert finished == list(range(len(lengths)))


def test_the_speed_is_of_the_batches_after_the_first_of_each_program():
    timing = run(lambda number: None, lambda number: None, [32, 32, 16, 32], 1)
    assert (timing.rows, timing.compiled_rows) == (4, 2)
    assert Timing(5.0, 3.0, rows=4, compiled_rows=2).per_second(8) == 8 / 2 / 2
    assert Timing(5.0, 3.0, rows=4).per_second(4) is None
    both = Timing(5.0, 3.0, 4, 2) + Timing(1.0, 0.0, 2, 2)
    assert both == Timing(6.0, 3.0, 6, 4)


def test_no_two_threads_compile_one_program():
    running, most = [], []

    def start(number):
        running.append(number)
        most.append(len(running))
        threading.Event().wait(0.05)
        running.remove(number)
        return jnp.zeros(())

    compiled = set()
    run(start, lambda number: None, [32], 2, compiled)
    run(start, lambda number: None, [24, 24, 24], 2, compiled)
    assert most[:2] == [1, 1] and max(most) == 2


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_reaches_the_caller(threads):
    def start(number):
        if number == 3:
            raise ValueError("out of memory")
        return jnp.zeros(())

    with pytest.raises(ValueError, match="out of memory"):
        run(start, lambda number: None, [32] * 5, threads)
