"""Steps compiled ahead in threads: the same training, with every error, and no thread left."""

import itertools
import threading
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from tests.quick import quick
from tests.training import toy
from transformer_jax.parallel.mesh import MeshConfig, make_mesh
from transformer_jax.paths import as_path
from transformer_jax.training.ahead import Ahead
from transformer_jax.training.loop import Feed, Session, fit
from transformer_jax.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("own_programs")

SHAPES = [(toy.ROWS, toy.LENGTH, toy.LENGTH), (toy.ROWS, toy.LENGTH, toy.LENGTH + 2)]


def batches_from(position):
    """Every third batch is wider."""
    while True:
        batch = toy.batch(position)
        if position % 3 == 1:
            batch |= {k: np.pad(batch[k], ((0, 0), (0, 2))) for k in ("target", "target_mask")}
        yield batch
        position += 1


def new_trainer():
    return Trainer(toy.MODEL, toy.TRAIN, make_mesh(MeshConfig()))


def fit_with(trainer, **options):
    return Session(trainer, Feed(batches_from), **options).train()


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.fixture(scope="module")
def undisturbed():
    return fit(toy.MODEL, toy.TRAIN, batches_from)


def test_an_accelerators_step_is_one_program_and_learns_the_same(undisturbed):
    trainer = new_trainer()
    trainer._in_halves = False
    with trainer.compiling_ahead(SHAPES):
        trainer.ahead.wait()
        state = fit_with(trainer)
    sizes = [program._cache_size() for program in trainer._step]
    assert sizes == [0, 0, 0]  # nothing was compiled twice
    assert set(trainer.ahead._programs) == set(SHAPES)  # no update by itself
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), state, undisturbed)


def test_the_update_compiled_ahead_fits_bfloat16_parameters():
    model = replace(toy.MODEL, param_dtype="bfloat16")
    trainer = Trainer(model, toy.TRAIN, make_mesh(MeshConfig()))
    with trainer.compiling_ahead(SHAPES):
        trainer.ahead.wait()
        assert fit_with(trainer).step == toy.TRAIN.steps


@pytest.mark.parametrize("waits", quick([True, False], True))
def test_a_training_with_steps_compiled_ahead_is_the_same(tmp_path, undisturbed, threads_of, waits):
    """From beginning to end, and stopped and continued."""
    for stop_after in (5, 100):
        trainer = new_trainer()
        calls = itertools.count(1)
        with trainer.compiling_ahead(SHAPES):
            if waits:
                trainer.ahead.wait()
            state = fit_with(
                trainer,
                workdir=as_path(tmp_path),
                should_stop=lambda calls=calls, last=stop_after: next(calls) >= last,
            )
        assert not threads_of("compile ahead")
        if waits:  # nothing was compiled twice
            assert trainer._step.gradient._cache_size() == trainer._step.update._cache_size() == 0
    assert state.step == toy.TRAIN.steps
    assert_same(state, undisturbed)


def test_a_shape_that_was_not_announced_is_compiled_when_it_comes(undisturbed):
    trainer = new_trainer()
    with trainer.compiling_ahead(SHAPES[1:]):
        trainer.ahead.wait()
        assert_same(fit_with(trainer), undisturbed)
    assert trainer._step.gradient._cache_size() == 1


def test_an_error_of_the_compiler_ends_the_training_where_the_shape_comes(threads_of):
    trainer = new_trainer()
    lower = trainer._step.gradient.lower

    def refused(params, step, batch):
        if batch["target"].shape[1] > toy.LENGTH:
            raise MemoryError("no room for the second shape")
        return lower(params, step, batch)

    trainer._step = trainer._step._replace(gradient=SimpleNamespace(lower=refused))
    steps = itertools.count()
    with (
        pytest.raises(MemoryError, match="no room for the second shape"),
        trainer.compiling_ahead(SHAPES),
    ):
        trainer.ahead.wait()
        fit_with(trainer, should_stop=lambda: next(steps) < 0)
    assert next(steps) == 1
    assert not threads_of("compile ahead")


def test_at_the_deadline_a_program_is_left_behind_and_the_steps_are_saved(
    tmp_path, threads_of, logged
):
    trainer, go = new_trainer(), threading.Event()
    lower = trainer._step.gradient.lower

    def slow(params, step, batch):
        assert batch["target"].shape[1] == toy.LENGTH or go.wait(60)
        return lower(params, step, batch)

    trainer._step = trainer._step._replace(gradient=SimpleNamespace(lower=slow))
    with trainer.compiling_ahead(SHAPES[:1]):
        trainer.ahead.wait()
    with trainer.compiling_ahead(SHAPES):
        trainer.ahead.deadline = time.perf_counter()
        state = fit_with(trainer, workdir=as_path(tmp_path))
    assert int(state.step) == 1 and (tmp_path / "checkpoints" / "1").is_dir()
    assert any("are over after 1 of" in each for each in logged())
    left_behind = threads_of("compile ahead")
    go.set()
    assert [thread.join(60) for thread in left_behind] == [None]


def test_what_nobody_has_begun_is_dropped_at_the_end_and_compiled_by_who_needs_it(threads_of):
    go, lowered = threading.Event(), []

    def program(key):
        def lower():
            lowered.append(key)
            assert go.wait(60)
            return SimpleNamespace(compile=lambda: f"compiled {key}")

        return key, lower

    ahead = Ahead()
    with ahead.compiling([program(0)], [program(key) for key in range(1, 20)]):
        while 0 not in lowered:
            time.sleep(0.01)
        assert ahead.is_busy()
        assert ahead.get(19, "jitted") == ahead.get("unknown", "jitted") == "jitted"
        ahead._programs[18].add_done_callback(lambda _: go.set())  # once it is dropped
    assert not threads_of("compile ahead") and not ahead.is_busy()
    assert lowered[0] == 0 and len(lowered) <= 4
    assert ahead.get(0, "jitted") == "compiled 0"
    assert ahead.get(18, "jitted") == "jitted"
