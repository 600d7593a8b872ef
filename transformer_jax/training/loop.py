"""The training loop, over any iterator of batches.

A checkpoint holds everything that determines the next parameters: the state, the data position
(one integer) and the record of evaluations. So a run that is killed and restarted ends with the
parameters of a run that was never interrupted.
"""

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypedDict, Unpack

import jax
import numpy as np
from etils import epath
from jax.sharding import Mesh

from transformer_jax.config import TrainConfig, validated
from transformer_jax.errors import UserError
from transformer_jax.metrics.criteria import CRITERIA
from transformer_jax.models.config import ModelConfig
from transformer_jax.models.inputs import BatchesFrom, checked
from transformer_jax.parallel.mesh import MeshConfig, make_mesh
from transformer_jax.parallel.processes import is_first, several
from transformer_jax.paths import as_path
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.lock import only_run
from transformer_jax.runs.pretrained import open_named
from transformer_jax.settings.variants import kind_of
from transformer_jax.training.profile import StepProfile
from transformer_jax.training.record import (
    NO_EVALUATIONS,
    Record,
    check_identity,
    meta,
    restore,
)
from transformer_jax.training.reporter import BatchMetrics, Reporter
from transformer_jax.training.state import TrainState
from transformer_jax.training.step import Loss, Metrics
from transformer_jax.training.trainer import Trainer

_LOGGER = logging.getLogger(__name__)

#: Scores of (params, step); the one that `train.best_by` names selects the best checkpoint.
Evaluate = Callable[[Any, int], dict[str, float]]


class Control(TypedDict, total=False):
    """How a training is watched."""

    should_stop: Callable[[], bool]
    #: asked once after each step; True saves and returns. Several processes must be given the same
    #: answers
    progress: bool  #: draw a progress bar on standard error


def fit(
    model: ModelConfig,
    train: TrainConfig,
    batches: BatchesFrom,
    *,
    loss: Loss | None = None,
    workdir: str | os.PathLike[str] | None = None,
    mesh: Mesh | None = None,
    evaluate: Evaluate | None = None,
    **control: Unpack[Control],
) -> TrainState:
    """Trains until `train.steps`, early stopping, or `should_stop`.

    Several processes make the same call; `batches` gives each its own rows, and the first one
    writes the metrics.

    Args:
        model: the model.
        train: the training. With `init_from` a new run begins with the parameters of that run's
            best checkpoint, which are evaluated as step 0.
        batches: gives the batches from a position on. Each is a dict of `source`,
            `source_mask`, `target`, `target_mask`, and with `train.alignment_weight` also
            `alignment` (see `models.api.loss`); its number of rows must be a multiple of the mesh's
            data devices times `train.accumulate`.
        loss: in place of `models.api.loss`: a pure function of (params, batch, dropout key) to the
            sums over the batch's target tokens of the loss and of the negative log-likelihood, and
            the number of these tokens. The mean loss of all devices' rows is minimised; batches may
            have more arrays for it. A run is continued with the function that is given then.
        workdir: the folder of checkpoints and metrics; a run found there is continued. None keeps
            everything in memory.
        mesh: the devices, from `make_mesh`; default: all of them along `data`.
        evaluate: called with (params, step) every `train.evaluate_every` steps.
        **control: `should_stop` and `progress`, see `Control`.

    Returns:
        The last state.

    Raises:
        UserError: the run in `workdir` was trained on other data or is in progress, its
            checkpoints are all damaged, something could not be written, the loss was not finite
            in `train.max_bad_steps` steps in a row, a batch is not one (`models.inputs`), the
            batches ended before `train.steps` (what was trained is saved), or `evaluate` lacks
            the score that `train.early_stopping` or `train.best_by` asks for.
    """
    for name, given, kind in (("model", model, ModelConfig), ("train", train, TrainConfig)):
        if not isinstance(given, kind):
            raise UserError(f"{name} is a {type(given).__name__}: give a {kind.__name__}")
    if loss is not None and not callable(loss):
        raise UserError(f"loss is {loss!r}: give a function of (params, batch, key)")
    train = validated(train, "train.")
    if train.minutes is not None:
        raise UserError(
            f"train.minutes={train.minutes:g}: `transformer-jax train` settles train.steps by it; "
            "here set train.steps"
        )
    path = None if workdir is None else as_path(workdir)
    session = Session(
        Trainer(model, train, mesh or make_mesh(MeshConfig()), loss),
        Feed(checked(model, batches)),
        workdir=path,
        evaluate=evaluate,
        **control,
    )
    with only_run(path) if path is not None and is_first() else contextlib.nullcontext():
        return session.train()


@dataclass(frozen=True)
class Feed:
    """The batches of a training, and what is known of them."""

    batches: BatchesFrom
    #: hashes of what determines a run besides its config, such as its text, by name; a run is
    #: continued only if they are the same as in its checkpoints
    identity: Mapping[str, str] = field(default_factory=dict)
    #: contents that each checkpoint holds, by relative path
    files: Mapping[str, bytes] = field(default_factory=dict)
    #: metrics of the batches at some positions, which are logged
    metrics: BatchMetrics = lambda positions: {}


@dataclass
class Session:
    """One start of a training: `train` restores what the folder holds, and goes on from there.

    The folder is its caller's: see `only_run`.

    Attributes:
        trainer: the model, how to train it and the mesh.
        feed: the batches.
        workdir: the folder of checkpoints and metrics, or None.
        evaluate: see `fit`, as for what follows.
        deadline: by `time.perf_counter()`; the step during which it passes is the last one of this
            start, or the one before it if its program is not compiled by then: it is evaluated and
            saved. One process alone looks at it.
        prepared: seconds that the run took before, for the minutes in the metrics.
        peak: FLOPs a second of all devices, for their share in the metrics; None if unknown.
        profile: how many steps are traced into the folder.

    Raises:
        UserError: the run in the folder was trained on other data, or early stopping has nothing
            to go by.
    """

    trainer: Trainer
    feed: Feed
    workdir: epath.Path | None = None
    evaluate: Evaluate | None = None
    should_stop: Callable[[], bool] = lambda: False
    progress: bool = False
    deadline: float = math.inf
    prepared: float = 0.0
    peak: float | None = None
    profile: int = 0

    def __post_init__(self) -> None:
        patience = self.trainer.train.early_stopping
        if patience is not None and self.evaluate is None and self.deadline == math.inf:
            raise UserError(f"train.early_stopping={patience}: needs `evaluate`")
        if self.workdir is not None:
            check_identity(self.feed.identity, self.workdir)
        self._criterion = self.trainer.train.best_by
        self._record = NO_EVALUATIONS
        self._checkpoints: Checkpoints | None = None

    def train(self) -> TrainState:
        """Trains until the end, and returns the last state.

        Raises:
            UserError: as `fit`.
        """
        began = time.perf_counter()
        with contextlib.ExitStack() as stack:
            done = self._restore(stack)
            self._report = Reporter(
                self.trainer.train,
                self.trainer.schedule,
                self.workdir if is_first() else None,
                done,
                began,
                self.prepared,
                self.feed.metrics,
                progress=self.progress and is_first(),
                share_of_peak=partial(self.trainer.share_of_peak, self.peak) if self.peak else None,
            )
            stack.callback(self._report.close)
            profile = StepProfile((self.workdir or epath.Path()) / "profile", self.profile)
            stack.callback(profile.close)
            iterator = self.feed.batches(done)
            if hasattr(iterator, "close"):
                stack.callback(iterator.close)
            ended = self._take_steps(iterator, done, profile)
            if self._stopped_early():
                since = self._record
                _LOGGER.info(
                    f"stopped early: no better validation {self._criterion.title} in "
                    f"{since.evaluations_since_best} evaluations since step {since.best_step} "
                    f"({self._criterion.score(since.best_bleu):.2f})"
                )
        if ended is not None:
            fewer = f", or set train.steps={ended}" if ended else ""
            steps = self.trainer.train.steps
            raise UserError(
                f"the batches ended at position {ended}, before train.steps={steps}: "
                f"give more (epoch after epoch){fewer}"
            )
        return self._state

    def _restore(self, stack: contextlib.ExitStack) -> int:
        """Takes the newest state of the folder, or a new one; returns the steps done."""
        done, saved = 0, None
        if self.workdir is not None:
            self._checkpoints = Checkpoints(
                self.workdir, self.trainer.train.keep_checkpoints, self.feed.files
            )
            stack.enter_context(self._checkpoints)
            done, saved, self._record = restore(self._checkpoints, self.trainer.abstract)
        given = None
        if saved is None and (init_from := self.trainer.train.init_from):
            given = open_named("train.init_from", init_from).params("best", self.trainer.mesh)
            given = self.trainer.measured(given, self.feed.batches)
        self._state = saved or self.trainer.init(given)
        return done

    def _take_steps(
        self, batches: Iterator[dict[str, np.ndarray]], done: int, profile: StepProfile
    ) -> int | None:
        """Trains on the batches; returns the position at which they ended, None if none lacked."""
        train, ended, over, stopping = self.trainer.train, None, 0, self._stopped_early()
        if train.init_from and done == 0:
            self._score(0)
        for step in range(done + 1, train.steps + 1):
            if stopping:
                break
            batch = next(batches, None)
            if batch is None:
                ended = step - 1
                break
            try:
                with (
                    self._report.compiling(batch),
                    jax.profiler.StepTraceAnnotation("train", step_num=step),
                ):
                    self._state, metrics = self.trainer.step(self._state, self.trainer.place(batch))
            except TimeoutError:  # at the deadline its program is not compiled
                over = step - 1
                break
            self._report.log(step, metrics)
            profile.end_step(metrics, is_settled=not self.trainer.ahead.is_busy())
            if self._checkpoints:
                self._checkpoints.note_sealed()
            if self._is_over(metrics):
                over = step
                break
            is_best = self._is_due(train.evaluate_every, step) and self._score(step)
            stopping = self.should_stop() or self._stopped_early()
            if self._is_due(train.checkpoint_every, step) or is_best or stopping:
                self._save(step, best=is_best)
        if over > done:
            is_best = self._score(over)
            if over < train.steps:
                _LOGGER.warning(
                    f"train.minutes={train.minutes} are over after {over:,} of {train.steps:,} "
                    "steps: saved; the same command trains the others"
                )
            self._save(over, best=is_best)
        if ended is not None and ended > done:
            self._save(ended)
        return ended

    def _is_over(self, metrics: Metrics) -> bool:
        """Whether the deadline has passed once the step with these metrics is done."""
        if self.deadline == math.inf or several():
            return False
        jax.block_until_ready(metrics)
        return time.perf_counter() > self.deadline

    def _is_due(self, every: int, step: int) -> bool:
        return step % every == 0 or step == self.trainer.train.steps

    def _score(self, step: int) -> bool:
        """Evaluates, and returns whether these parameters are the best so far."""
        if self.evaluate is None:
            return False
        with self._report.pause():
            scores = self.evaluate(self._state.eval_params, step)
        self._report.write(step, {f"validation.{key}": value for key, value in scores.items()})
        name, train = kind_of(self._criterion, CRITERIA), self.trainer.train
        if name not in scores and (train.early_stopping or train.best_by != TrainConfig().best_by):
            raise UserError(
                f"train.best_by={name}: `evaluate` returned {', '.join(scores) or 'nothing'}"
            )
        if step == 0 or name not in scores:
            return False
        record, goodness = self._record, self._criterion.goodness(scores[name])
        is_best = goodness > record.best_bleu
        best = (goodness, step) if is_best else (record.best_bleu, record.best_step)
        self._record = Record(*best, 0 if is_best else record.evaluations_since_best + 1)
        return is_best

    def _save(self, step: int, *, best: bool = False) -> None:
        if self._checkpoints:
            with self._report.pause():
                self._report.sync()
                about = meta(step, self.feed.identity, self._record)
                self._checkpoints.save(step, self._state.to_items(), about, best=best)

    def _stopped_early(self) -> bool:
        patience = self.trainer.train.early_stopping
        return patience is not None and self._record.evaluations_since_best >= patience
