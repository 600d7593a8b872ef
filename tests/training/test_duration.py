"""How many steps fit into `train.minutes`, with clocks of the tests' own."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import shared_programs
from tests.quick import quick
from tests.training import toy
from tests.training.toy import TRAIN
from transformer_jax.config import TrainConfig
from transformer_jax.errors import UserError
from transformer_jax.optimizers.schedules import SCHEDULES, CosineSchedule
from transformer_jax.parallel.mesh import MeshConfig, make_mesh
from transformer_jax.paths import as_path
from transformer_jax.training import loop, reporter
from transformer_jax.training.loop import Feed, Session, fit
from transformer_jax.training.speed import (
    Speed,
    describe_steps,
    measure_evaluation,
    resolve_steps,
)
from transformer_jax.training.trainer import Trainer

HOUR = TrainConfig(
    steps=10_000,
    minutes=60,
    schedule=CosineSchedule(learning_rate=1e-3, warmup_steps=400),
    evaluate_every=300,
)


def seconds_of(steps: int, speed: Speed, train: TrainConfig) -> float:
    """What a training takes at most: its steps, and an evaluation at the end besides the others."""
    evaluations = steps / train.evaluate_every + 1
    return steps * speed.step + evaluations * speed.evaluation


@pytest.mark.parametrize("elapsed", [0, 100, 1800])
@pytest.mark.parametrize(
    "speed", [Speed(0.65, 0), Speed(0.65, 20, 600), Speed(3.0, 200), Speed(20.0, 7)]
)
def test_the_most_steps_are_settled_that_fit_into_the_minutes(speed, elapsed):
    found = resolve_steps(HOUR, speed, elapsed)
    left = 0.85 * (3600 - elapsed - speed.compiling)
    assert seconds_of(found.steps, speed, HOUR) <= left < seconds_of(found.steps + 1, speed, HOUR)
    assert found.schedule.warmup_steps == min(400, found.steps // 10)
    assert found.schedule.learning_rate == 1e-3
    assert replace(found, steps=10_000, schedule=HOUR.schedule) == HOUR
    told = describe_steps(HOUR, found, speed)
    assert f"{found.steps:,} steps" in told and "(without train.minutes: 10,000 steps" in told


def test_there_are_never_more_steps_than_the_config_has():
    found = resolve_steps(HOUR, Speed(0.01, 1), 60)
    assert found == HOUR
    told = describe_steps(HOUR, found, Speed(0.01, 1))
    assert "60 minutes on this machine: 10,000 steps of 0.01 s, of which 400 warm up" in told
    assert "(without train.minutes: 10,000 steps, about 2 min)" in told
    few = replace(HOUR, steps=5, minutes=1, schedule=CosineSchedule(1e-3, warmup_steps=2))
    assert resolve_steps(few, Speed(0.1, 0), 50) == few  # fewer than some tens, but all


@pytest.mark.parametrize(
    ("left", "steps"), [(1000, 30), (100, 19), (26, 4), (9.9, 1), (9, None), (-5, None)]
)
def test_some_steps_are_begun_whenever_one_fits(left, steps):
    """Also where what is still to compile leaves no time for any, by the estimate."""
    train, speed = replace(HOUR, minutes=20), Speed(5.0, 4.5, compiling=2000)
    if steps:
        assert resolve_steps(train, speed, 1200 - left).steps == steps
        return
    with pytest.raises(UserError, match=r"train.minutes=20: not one step fits, after") as error:
        resolve_steps(train, speed, 1200 - left)
    minutes = int(str(error.value).split("give ")[1].split()[0])
    assert resolve_steps(replace(train, minutes=minutes), speed, 1200 - left).steps >= 30


def test_neither_compilation_nor_a_slow_moment_decides_on_the_speed():
    now = [0.0]
    seconds = iter([1000.0, 9.0, 0.5, 9.0])

    def passes(count: float) -> None:
        now[0] += count

    def step(state, batch):
        passes(next(seconds))
        return state, {}

    trainer = SimpleNamespace(init=dict, step=step, place=dict)
    assert Trainer.measure_step(trainer, {}, lambda: now[0]) == (
        991.0,
        9.0,
    )  # longer than is waited for
    seconds = iter([1000.0, 0.4, 0.3, 0.9])
    assert Trainer.measure_step(trainer, {}, lambda: now[0]) == pytest.approx((999.7, 0.3))
    calls = iter([500.0, 7.0])
    found = measure_evaluation(lambda params, step: passes(next(calls)), {}, lambda: now[0])
    assert found == 7


def test_at_the_deadline_what_was_trained_is_evaluated_and_saved(tmp_path, monkeypatch, logged):
    """And a later start trains the other steps, to the same bits."""
    now = [0.0]
    monkeypatch.setattr(loop.time, "perf_counter", lambda: now[0])
    train = replace(TRAIN, steps=9, evaluate_every=100, checkpoint_every=100)
    trainer = Trainer(toy.MODEL, train, make_mesh(MeshConfig()))
    evaluated = []

    def evaluate(params, step):
        evaluated.append(step)
        return {"bleu": 1.0}

    def batches(start):
        for batch in toy.batches_from(start):
            now[0] += 10
            yield batch

    def session(deadline):
        path = as_path(tmp_path)
        return Session(trainer, Feed(batches), workdir=path, evaluate=evaluate, deadline=deadline)

    state = session(deadline=35.0).train()
    assert int(state.step) == 4 and evaluated == [4]
    assert any("are over after 4 of 9 steps: saved; the same command" in e for e in logged())
    state = session(deadline=float("inf")).train()
    assert evaluated == [4, 9]
    jax.tree.map(np.testing.assert_array_equal, state, Session(trainer, Feed(batches)).train())


def test_a_program_depends_on_neither_length_nor_logs():
    """So that tests can share it (shared_programs.py), and a measured step a settled length."""
    mesh = make_mesh(MeshConfig())
    trainer = Trainer(toy.MODEL, TRAIN, mesh)
    arguments = trainer.abstract, trainer.abstract_batch((8, 6, 6)), trainer.horizon
    texts = set()
    for train in (TRAIN, replace(TRAIN, **shared_programs.LEFT_OUT)):
        programs = shared_programs.ALONE(toy.MODEL, train, mesh, None)
        lowered = programs.step.whole.lower(*arguments), programs.init.lower({})
        texts.add(tuple(each.as_text() for each in lowered))
    assert len(texts) == 1


@pytest.mark.usefixtures("own_programs")
@pytest.mark.parametrize("kind", quick(SCHEDULES, "cosine"))
def test_compiled_steps_serve_a_training_of_another_length(kind):
    """Measuring changes no bit, and compiles nothing that the training compiles again."""
    train = replace(TRAIN, schedule=SCHEDULES[kind](learning_rate=3e-3, warmup_steps=4))
    shorter = replace(train, steps=6, schedule=SCHEDULES[kind](learning_rate=3e-3, warmup_steps=2))
    mesh = make_mesh(MeshConfig())
    trainer = Trainer(toy.MODEL, train, mesh)
    trainer.step(trainer.init(), trainer.place(toy.batch(0)))
    reused = trainer.with_length(shorter)
    got = Session(reused, Feed(toy.batches_from)).train()
    jax.tree.map(np.testing.assert_array_equal, got, fit(toy.MODEL, shorter, toy.batches_from))
    assert reused._step is trainer._step
    assert trainer._step.gradient._cache_size() == trainer._step.update._cache_size() == 1
    assert [reused.schedule(n) for n in range(6)] == [
        shorter.schedule.build(toy.MODEL.d_model, 6)(jnp.int32(n)) for n in range(6)
    ]
    longer = fit(toy.MODEL, replace(train, steps=6), toy.batches_from)
    assert any(
        (one != other).any()
        for one, other in zip(
            jax.tree.leaves(got.params), jax.tree.leaves(longer.params), strict=True
        )
    )


def test_fit_takes_steps_and_no_minutes():
    with pytest.raises(UserError, match=r"train.minutes=3: .* here set train.steps"):
        fit(toy.MODEL, replace(TRAIN, minutes=3), toy.batches_from)


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        (0.001, None),  # nobody waits
        (
            20.0,
            "9,960 steps to go will take about 55 h 20 min on this machine, evaluations not "
            "counted; a new run with --config.train.minutes=60 takes an hour",
        ),
    ],
)
def test_the_time_to_come_is_told_once_after_some_steps(
    seconds, message, monkeypatch, logged, tmp_path
):
    now, train = [0.0], TrainConfig(steps=10_000, log_every=20)
    monkeypatch.setattr(reporter.time, "perf_counter", lambda: now[0])
    report = reporter.Reporter(train, lambda _: 0.1, None, 0, began=0.0)
    names = "loss_sum nll_sum tokens grad_norm finite skipped skipped_in_a_row"
    metrics = dict(zip(names.split(), (1.0, 1.0, 1.0, 1.0, True, 0, 0), strict=True))
    for step in range(1, 81):
        with report.compiling(toy.batch(0)):
            now[0] += 2 * seconds if step <= 20 else seconds  # at first others compile
        report.log(step, metrics)
        now[0] += 30 * (step == 2)
    told = [line for line in logged() if "to go" in line]
    assert told == ([message] if message else [])
