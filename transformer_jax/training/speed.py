"""The speed of this machine in a training, by which `train.minutes` settles its steps."""

import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import numpy as np

from transformer_jax.config import TrainConfig
from transformer_jax.errors import UserError
from transformer_jax.parallel.processes import from_first
from transformer_jax.runs.start import Start
from transformer_jax.training.data import TrainingData
from transformer_jax.training.loop import Evaluate
from transformer_jax.training.reporter import in_words
from transformer_jax.training.trainer import Trainer

_LOGGER = logging.getLogger(__name__)

#: Steps of a shape that are timed: at most so many, and none after so many seconds.
_MOST_TIMED, _ENOUGH_SECONDS = 5, 1.0

#: Share of the time left that is kept. The steps are measured alone. In a training the same cores
#: make batches, write metrics and save checkpoints: on two of them a step took 14 % longer.
_RESERVE = 0.15
#: Fewer steps teach a model nothing.
_LEAST_STEPS = 30
#: Of the recipe's steps; with fewer a warning says what to expect.
_FEW = 0.1


class Speed(NamedTuple):
    """Seconds on this machine, without compilation."""

    step: float  #: mean over the batches of an epoch
    evaluation: float  #: of the validation set; 0 without one


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


def resolve_steps(train: TrainConfig, speed: Speed, elapsed: float) -> TrainConfig:
    """The training that fits into `train.minutes`: fewer steps, with a warm-up of a tenth at most.

    Where all steps fit, it is the given one.

    Args:
        train: has the most steps and the longest warm-up.
        speed: as measured.
        elapsed: seconds since the start of the run: reading, tokenizer, compilation.

    Raises:
        UserError: not even some tens of steps fit.
    """
    minutes = train.minutes or math.inf
    # One evaluation is at the end, the others are every `evaluate_every` steps.
    step = speed.step + speed.evaluation / train.evaluate_every
    free = (60 * minutes - elapsed) * (1 - _RESERVE) - speed.evaluation
    fitting = max(0, int(free / step))
    if fitting < min(_LEAST_STEPS, train.steps):
        least = elapsed + (_LEAST_STEPS * step + speed.evaluation) / (1 - _RESERVE)
        raise UserError(
            f"train.minutes={minutes:g}: {fitting} steps fit, after {elapsed / 60:.1f} min until "
            f"the first one, with {speed.step:.2g} s a step and {speed.evaluation:.2g} s an "
            f"evaluation: give at least {math.ceil(least / 60)} minutes, or set a smaller model"
        )
    if fitting >= train.steps:
        return train
    warmup = min(train.schedule.warmup_steps, max(1, fitting // 10))
    schedule = dataclasses.replace(train.schedule, warmup_steps=warmup)
    return dataclasses.replace(train, steps=fitting, schedule=schedule)


def describe_steps(given: TrainConfig, fitting: TrainConfig, speed: Speed) -> str:
    """What `resolve_steps` settled, for the user."""
    minutes = fitting.minutes or 0.0
    if fitting.steps == given.steps:
        takes = in_words(fitting.steps * speed.step)
        return (
            f"{minutes:g} minutes on this machine are enough for all {given.steps:,} steps of "
            f"{speed.step:.2g} s: about {takes}"
        )
    return (
        f"{minutes:g} minutes on this machine: {fitting.steps:,} steps of {speed.step:.2g} s, of "
        f"which {fitting.schedule.warmup_steps:,} warm up (without train.minutes: {given.steps:,} "
        f"steps, about {in_words(given.steps * speed.step)})"
    )


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
    train = trainer.train
    measures_steps = start.is_new and train.minutes is not None
    shapes = data.shapes(train.steps)
    examples = list(data.examples()) if measures_steps else []

    def fit_minutes(speed: Speed) -> TrainConfig:
        *first, elapsed = from_first(lambda: [*speed, time.perf_counter() - began])
        return resolve_steps(train, Speed(*first), elapsed)

    if start.by_epochs:
        # The rate is part of the compiled steps, so it is settled before most of them are compiled:
        # by the speed of one batch, since all shapes hold about as many tokens.
        steps = train.steps
        if measures_steps:
            steps = fit_minutes(measure_speed(trainer, examples[:1], None)).steps
        trainer = trainer.for_epochs(steps / data.plan.batches_per_epoch)
    stack.enter_context(trainer.compiling_ahead(shapes))
    if measures_steps:
        _LOGGER.info(
            "train.minutes: compiling %d shapes and measuring their steps", len(data.plan.shapes)
        )
        speed = measure_speed(trainer, examples, evaluate)
        settled = fit_minutes(speed)
        _LOGGER.info(describe_steps(train, settled, speed))
        if settled.steps < train.steps * _FEW:
            _LOGGER.warning(
                f"{(time.perf_counter() - began) / 60:.1f} of the {train.minutes:g} minutes went "
                f"into preparation, and {settled.steps:,} steps of {train.steps:,} are few: expect "
                "a poor model, or give more minutes"
            )
        trainer = trainer.with_length(settled)
    return trainer
