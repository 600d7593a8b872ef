"""The speed of this machine in a training, by which `train.minutes` settles its steps."""

import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Callable
from typing import NamedTuple

from transformer_jax.config import TrainConfig
from transformer_jax.errors import UserError
from transformer_jax.models.api import Params
from transformer_jax.parallel.processes import from_first, several
from transformer_jax.runs.start import Start
from transformer_jax.training.data import TrainingData
from transformer_jax.training.loop import Evaluate
from transformer_jax.training.reporter import in_words
from transformer_jax.training.trainer import Trainer

_LOGGER = logging.getLogger(__name__)

#: Share of the time left that is kept. The steps are measured alone. In a training the same cores
#: make batches, write metrics and save checkpoints: on two of them a step took 14 % longer.
_RESERVE = 0.15
#: Where fewer fit by the estimate, these are begun, and the end of the time ends them.
_LEAST_STEPS = 30
#: An evaluation is measured where so many times the compilation of a step are left: it has several
#: programs. Else there is no time for evaluations.
_COMPILATIONS = 8
#: Of the recipe's steps; with fewer a warning says what to expect of a model from scratch.
_FEW = 0.1


class Speed(NamedTuple):
    """Seconds on this machine."""

    step: float  #: mean over the batches of an epoch, without compilation
    evaluation: float = 0.0  #: of the validation set, without compilation; 0 without one
    compiling: float = 0.0  #: until the steps of all shapes are compiled


class Settled(NamedTuple):
    """What a training of some minutes does."""

    trainer: Trainer
    evaluate: Evaluate | None  #: None: there is no validation set, or no time for it
    deadline: float = math.inf  #: by `time.perf_counter()`, when its last evaluation is to begin


def measure_evaluation(
    evaluate: Evaluate, params: Params, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Seconds of an evaluation once it is compiled.

    Untrained parameters seldom predict EOS, so with them it takes longer than later.
    """
    evaluate(params, 0)  # compiles
    began = clock()
    evaluate(params, 0)
    return clock() - began


def resolve_steps(train: TrainConfig, speed: Speed, elapsed: float) -> TrainConfig:
    """The training that fits into `train.minutes`: fewer steps, with a warm-up of a tenth at most.

    Where all steps fit, it is the given one. Where few do, as far as an estimate tells, it is some
    tens of steps, or those that the time left would hold if nothing else took any.

    Args:
        train: has the most steps and the longest warm-up.
        speed: as measured.
        elapsed: seconds since the start of the run: reading, tokenizer, compilation.

    Raises:
        UserError: not one step fits.
    """
    minutes = train.minutes or math.inf
    left = 60 * minutes - elapsed
    # One evaluation is at the end, the others are every `evaluate_every` steps.
    step = speed.step + speed.evaluation / train.evaluate_every
    free = (left - speed.compiling) * (1 - _RESERVE) - speed.evaluation
    at_once = math.floor(min((left - speed.evaluation) / speed.step, _LEAST_STEPS))
    fitting = max(math.floor(min(free / step, train.steps)), min(at_once, train.steps))
    if fitting < 1:
        least = elapsed + speed.compiling + speed.evaluation + _LEAST_STEPS * step
        raise UserError(
            f"train.minutes={minutes:g}: not one step fits, after {elapsed / 60:.1f} min until "
            f"here, with {speed.step:.2g} s a step and {speed.evaluation:.2g} s an evaluation: "
            f"give {math.ceil(least / (1 - _RESERVE) / 60)} minutes or more, or set a smaller model"
        )
    if fitting >= train.steps:
        return train
    warmup = min(train.schedule.warmup_steps, max(1, fitting // 10))
    schedule = dataclasses.replace(train.schedule, warmup_steps=warmup)
    return dataclasses.replace(train, steps=fitting, schedule=schedule)


def describe_steps(given: TrainConfig, fitting: TrainConfig, speed: Speed) -> str:
    """What `resolve_steps` settled, for the user."""
    return (
        f"{fitting.minutes or 0:g} minutes on this machine: {fitting.steps:,} steps of "
        f"{speed.step:.2g} s, of which {fitting.schedule.warmup_steps:,} warm up (without "
        f"train.minutes: {given.steps:,} steps, about {in_words(given.steps * speed.step)})"
    )


def settle_length(
    start: Start,
    trainer: Trainer,
    data: TrainingData,
    evaluate: Evaluate | None,
    began: float,
    stack: contextlib.ExitStack,
) -> Settled:
    """The trainer for the steps that fit; its programs compile.

    With `train.minutes` the step of one shape is compiled and timed alone; those of the others are
    estimated by their size, and compile beside the evaluation and the first steps. The speed of the
    first process's machine counts.

    Args:
        start: says what is to be settled.
        trainer: of the start's config.
        data: what is trained on.
        evaluate: as in `fit`.
        began: `time.perf_counter()` at the start of the run.
        stack: at its end no thread compiles any more.

    Raises:
        UserError: not one step fits.
    """
    train = trainer.train
    shapes = data.shapes(train.steps)
    if not start.is_new or (minutes := train.minutes) is None:
        stack.enter_context(trainer.compiling_ahead(shapes))
        return Settled(trainer, evaluate)

    def fit_minutes(speed: Speed) -> TrainConfig:
        *agreed, elapsed = from_first(lambda: [*speed, time.perf_counter() - began])
        return resolve_steps(train, Speed(*agreed), elapsed)

    _LOGGER.info("train.minutes: compiling and timing a step and an evaluation")
    batch, larger = data.first()
    with trainer.compiling_ahead(shapes[:1]):
        compiling, seconds = trainer.measure_step(batch)
    step = larger * seconds
    fit_minutes(Speed(step))  # or says at once that nothing can be trained
    stack.enter_context(trainer.compiling_ahead(shapes))
    left = 60 * minutes - (time.perf_counter() - began)
    if evaluate and not from_first(lambda: left >= _COMPILATIONS * compiling):
        _LOGGER.warning(
            f"train.minutes={minutes:g}: too little time to compile an evaluation too: no "
            "BLEU while training, and `best` will mean the newest"
        )
        evaluate = None
    evaluation = 0.0
    if evaluate:
        evaluation = measure_evaluation(evaluate, trainer.init().eval_params)
    speed = Speed(step, evaluation, compiling * trainer.ahead.rounds_left())
    settled = fit_minutes(speed)
    _LOGGER.info(describe_steps(train, settled, speed))
    if settled.steps < train.steps * _FEW and not train.init_from:
        _LOGGER.warning(
            f"{(time.perf_counter() - began) / 60:.1f} of the {minutes:g} minutes went "
            f"into preparation, and {settled.steps:,} steps of {train.steps:,} are few: expect "
            "a poor model, or give more minutes"
        )
    deadline = began + 60 * minutes - evaluation - step  # the last step begins before
    if not several():
        trainer.ahead.deadline = deadline
    return Settled(trainer.with_length(settled), evaluate, deadline)
