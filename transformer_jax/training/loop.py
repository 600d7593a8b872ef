"""The training loop, over any iterator of batches.

A checkpoint holds everything that determines the next parameters: the state, the data position
(one integer) and the record of evaluations. So a run that is killed and restarted ends with the
parameters of a run that was never interrupted.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from transformer_jax.config import TrainConfig, validated
from transformer_jax.errors import UserError
from transformer_jax.models.api import Params
from transformer_jax.models.config import ModelConfig
from transformer_jax.parallel.mesh import (
    MeshConfig,
    batch_devices,
    batch_sharding,
    make_mesh,
    process_share,
)
from transformer_jax.parallel.processes import is_first
from transformer_jax.paths import as_path
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.lock import only_run
from transformer_jax.training.record import NO_EVALUATIONS, Origin, Record, meta, restore
from transformer_jax.training.reporter import AboutBatches, Reporter
from transformer_jax.training.state import TrainState
from transformer_jax.training.trainer import Trainer

_LOGGER = logging.getLogger(__name__)

#: Batches from a position on; position p is the p-th batch of the run.
BatchesFrom = Callable[[int], Iterator[dict[str, np.ndarray]]]
#: Scores of (params, step); the one named `bleu` selects the best checkpoint.
Evaluate = Callable[[Any, int], dict[str, float]]


def fit(
    model: ModelConfig,
    train: TrainConfig,
    batches: BatchesFrom,
    *,
    workdir: str | os.PathLike[str] | None = None,
    mesh: Mesh | None = None,
    evaluate: Evaluate | None = None,
    about_batches: AboutBatches = lambda positions: {},
    origin: Origin | None = None,
    initial: Callable[[], Params] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    progress: bool = False,
    trainer: Trainer | None = None,
    prepared: float = 0.0,
) -> TrainState:
    """Trains until `train.steps`, early stopping, or `should_stop`.

    Several processes make the same call; `batches` gives each its own rows, and the first one
    writes the metrics.

    Args:
        model: the model.
        train: the training.
        batches: gives the batches from a position on. Each is a dict of `source`,
            `source_mask`, `target`, `target_mask` (see `models.api.loss`); its number of rows
            must be a multiple of the mesh's data devices times `train.accumulate`.
        workdir: the folder of checkpoints and metrics; a run found there is continued. None keeps
            everything in memory.
        mesh: the devices, from `make_mesh`; default: all of them along `data`.
        evaluate: called with (params, step) every `train.evaluate_every` steps.
        about_batches: gives metrics of the batches at some positions, which are logged.
        origin: what determines the run besides its config, such as hashes of the text. It is
            stored in each checkpoint, and a run is continued only if the hashes are the same.
        initial: gives a new run the parameters to begin with, on the mesh; they are evaluated as
            step 0, and their memory is used again. None: random ones.
        should_stop: asked once after each step; True saves and returns. Several processes must
            be given the same answers.
        progress: draw a progress bar on standard error.
        trainer: one of this model, mesh and training, except for its steps and warm-up, whose
            compiled step is used again; default: a new one.
        prepared: seconds that the run took before, for the minutes in the metrics.

    Returns:
        The last state.

    Raises:
        UserError: the run in `workdir` was trained on other data or is in progress, its
            checkpoints are all damaged, something could not be written, the loss was not finite
            in `train.max_bad_steps` steps in a row, or the batches ended before `train.steps`
            (what was trained is saved).
    """
    began = time.perf_counter()
    train = validated(train, "train.")
    if train.minutes is not None:
        raise UserError(
            f"train.minutes={train.minutes:g}: `transformer-jax train` settles train.steps by it; "
            "here set train.steps"
        )
    origin = origin or Origin()
    path = None if workdir is None else as_path(workdir)
    ended = None  # the position at which the batches ended
    with contextlib.ExitStack() as stack:
        if path is not None and is_first():
            stack.enter_context(only_run(path))
        mesh = mesh or make_mesh(MeshConfig())
        trainer = trainer.lasting(train) if trainer else Trainer(model, train, mesh)
        to_device = feeder(mesh, train.accumulate)
        start, saved, record = 0, None, NO_EVALUATIONS
        checkpoints = None
        if path is not None:
            checkpoints = Checkpoints(path, train.keep_checkpoints, origin.files)
            stack.enter_context(checkpoints)
            start, saved, record = restore(checkpoints, trainer.abstract, origin)
        state = saved or trainer.init(initial() if initial else None)
        report = Reporter(
            train,
            trainer.schedule,
            path if is_first() else None,
            start,
            about_batches=about_batches,
            progress=progress and is_first(),
            began=began,
            prepared=prepared,
        )
        stack.callback(report.close)
        iterator = batches(start)
        if hasattr(iterator, "close"):
            stack.callback(iterator.close)

        def save(step: int, *, best: bool = False) -> None:
            if checkpoints:
                with report.pause():
                    report.sync()
                    about = meta(step, origin, record)
                    checkpoints.save(step, state.to_items(), about, best=best)

        if evaluate and initial and start == 0:
            with report.pause():
                scores = evaluate(state.eval_params, 0)
            report.write(0, {f"validation.{k}": v for k, v in scores.items()})
        for step in range(start + 1, train.steps + 1):
            if _stopped_early(train, record):
                break
            batch = next(iterator, None)
            if batch is None:
                ended = step - 1
                if ended > start:
                    save(ended)
                break
            with report.compiling(batch, beside=trainer.ahead.is_busy()):
                state, metrics = trainer.step(state, to_device(batch))
            report.log(step, metrics)
            if checkpoints:
                checkpoints.note_sealed()
            best_before = record.best_step
            if evaluate and (step % train.evaluate_every == 0 or step == train.steps):
                with report.pause():
                    scores = evaluate(state.eval_params, step)
                report.write(step, {f"validation.{k}": v for k, v in scores.items()})
                if "bleu" in scores:
                    record = record.with_bleu(scores["bleu"], step)
            is_best = record.best_step != best_before
            stopping = should_stop() or _stopped_early(train, record)
            due = step % train.checkpoint_every == 0 or step == train.steps
            if due or is_best or stopping:
                save(step, best=is_best)
            if stopping:
                break
        if _stopped_early(train, record):
            _LOGGER.info(
                "stopped early: no better validation BLEU in %d evaluations since step %d (%.2f)",
                record.evaluations_since_best,
                record.best_step,
                record.best_bleu,
            )
    if ended is not None:
        fewer = f", or set train.steps={ended}" if ended else ""
        raise UserError(
            f"the batches ended at position {ended}, before train.steps={train.steps}: "
            f"give more (epoch after epoch){fewer}"
        )
    return state


def feeder(mesh: Mesh, accumulate: int) -> Callable[[dict[str, np.ndarray]], dict[str, jax.Array]]:
    """Puts this process's rows on its devices, as its part of the global batch."""
    sharding = batch_sharding(mesh)
    _, shares = process_share(mesh)
    multiple = batch_devices(mesh) * accumulate

    def to_device(batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        rows = len(batch["target"]) * shares
        if rows % multiple:
            raise ValueError(
                f"a batch of {rows} rows does not divide into {multiple} parts "
                "(devices along data x fsdp, times train.accumulate)"
            )
        keys = ("source", "source_mask", "target", "target_mask")
        return {
            key: jax.make_array_from_process_local_data(
                sharding, batch[key], (rows, *batch[key].shape[1:])
            )
            for key in keys
        }

    return to_device


def _stopped_early(train: TrainConfig, record: Record) -> bool:
    patience = train.early_stopping
    return patience is not None and record.evaluations_since_best >= patience
