"""The speed of this machine in a training, by which `train.minutes` settles its steps."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from itertools import islice

import jax
import numpy as np

from transformer_jax.config import Config
from transformer_jax.parallel.processes import from_first
from transformer_jax.runs.open_values import (
    Speed,
    describe_steps,
    resolve_dropout,
    resolve_steps,
)
from transformer_jax.runs.start import Start
from transformer_jax.training.data import TrainingData
from transformer_jax.training.loop import Evaluate
from transformer_jax.training.trainer import Trainer

_LOGGER = logging.getLogger(__name__)

#: Steps of a shape that are timed: at most so many, and none after so many seconds.
_MOST_TIMED, _ENOUGH_SECONDS = 5, 1.0


def measure_speed(
    trainer: Trainer,
    batches: Iterable[tuple[dict[str, np.ndarray], int]],
    evaluate: Evaluate | None,
    clock: Callable[[], float] = time.perf_counter,
) -> Speed:
    """Compiles the programs of a training and times them. Their results are discarded.

    Several processes make the same call.

    Args:
        trainer: its compiled steps are used again. What it compiles ahead is waited for.
        batches: this process's rows of one batch of each shape, and how many batches of the shape
            an epoch has.
        evaluate: as in `fit`. Untrained parameters seldom predict EOS, so it takes longer here.
        clock: seconds from any beginning.
    """
    state = trainer.init()
    if evaluate:
        evaluate(state.eval_params, 0)  # compiles, beside the steps
    trainer.ahead.wait()
    seconds, counts = [], []
    for rows, count in batches:
        batch = trainer.place(rows)
        state, metrics = trainer.step(state, batch)  # compiles
        jax.block_until_ready(metrics)
        began, taken, repeats = clock(), 0.0, 0
        while repeats == 0 or (repeats < _MOST_TIMED and taken < _ENOUGH_SECONDS):
            state, metrics = trainer.step(state, batch)
            jax.block_until_ready(metrics)
            taken, repeats = clock() - began, repeats + 1
        seconds.append(taken / repeats)
        counts.append(count)
    evaluation = 0.0
    if evaluate:
        began = clock()
        evaluate(state.eval_params, 0)
        evaluation = clock() - began
    return Speed(float(np.average(seconds, weights=counts)), evaluation)


def settle_length(
    start: Start,
    trainer: Trainer,
    data: TrainingData,
    evaluate: Evaluate | None,
    began: float,
    stack: contextlib.ExitStack,
) -> Trainer:
    """The trainer for the steps that fit, and the dropout of their epochs; its programs compile.

    The speed of the first process's machine counts.

    Args:
        start: says what is to be settled.
        trainer: of the start's config.
        data: what is trained on.
        evaluate: as in `fit`.
        began: `time.perf_counter()` at the start of the run.
        stack: at its end no thread compiles any more.

    Raises:
        UserError: not even some tens of steps fit.
    """
    config = start.config

    def fit_minutes(speed: Speed) -> Config:
        *first, elapsed = from_first(lambda: [*speed, time.perf_counter() - began])
        return resolve_steps(config, Speed(*first), elapsed)

    if start.by_epochs:
        # The rate is part of the compiled steps, so it is settled before most of them are compiled:
        # by the speed of one batch, since all shapes hold about as many tokens.
        likely = config
        if start.measures_steps:
            likely = fit_minutes(measure_speed(trainer, islice(data.examples(), 1), None))
        config = resolve_dropout(config, likely.train.steps / data.plan.batches_per_epoch)
        if config.model != trainer.model:
            trainer = Trainer(config.model, config.train, trainer.mesh)
    stack.enter_context(trainer.compiling_ahead(data.shapes(config.train.steps)))
    if start.measures_steps:
        shapes = len(data.plan.shapes)
        _LOGGER.info("train.minutes: compiling %d shapes and measuring their steps", shapes)
        speed = measure_speed(trainer, data.examples(), evaluate)
        settled = fit_minutes(speed)
        _LOGGER.info(describe_steps(config.train, settled.train, speed))
        trainer = trainer.with_length(settled.train)
    return trainer
