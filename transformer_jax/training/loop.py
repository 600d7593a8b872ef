"""The training loop, over any iterator of batches.

Everything that decides the next parameters is in the checkpoint: the state, the
data position (one integer) and the evaluation record. A run that is killed and
started again therefore ends in the parameters of one that never stopped.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from transformer_jax.config import TrainConfig, validated
from transformer_jax.errors import UserError
from transformer_jax.models.config import ModelConfig
from transformer_jax.optimizers.optimizers import make_optimizer
from transformer_jax.parallel.mesh import (
    MeshConfig,
    batch_devices,
    batch_sharding,
    make_mesh,
    process_share,
)
from transformer_jax.parallel.processes import is_first
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.identity import check_identity
from transformer_jax.runs.lock import only_run
from transformer_jax.training.reporter import Reporter
from transformer_jax.training.state import (
    TrainState,
    abstract_state,
    init_state,
    state_shardings,
)
from transformer_jax.training.step import make_train_step

#: Batches from a position on; position p is the p-th batch the run ever sees.
BatchesFrom = Callable[[int], Iterator[dict[str, np.ndarray]]]
#: Scores of the given parameters; the one called `bleu` picks the best checkpoint.
Evaluate = Callable[[Any, int], dict[str, float]]


@dataclass(frozen=True)
class Record:
    """The run's memory of its evaluations."""

    best_bleu: float = -1.0
    best_step: int = -1
    evaluations_since_best: int = 0


def fit(
    model: ModelConfig,
    train: TrainConfig,
    batches: BatchesFrom,
    *,
    workdir: str | Path | None = None,
    mesh: MeshConfig | None = None,
    evaluate: Evaluate | None = None,
    meta: dict[str, Any] | None = None,
    files: Mapping[str, bytes] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    progress: bool = True,
    say: Callable[[str], None] | None = None,
) -> TrainState:
    """Trains until `train.steps`, early stopping, or `should_stop`.

    With several processes each calls this alike; `batches` gives each its own rows, and
    the first one writes the metrics.

    Args:
        model: the model.
        train: the schedule of the run.
        batches: gives the batches from a position on. Each is a dict of `source`,
            `source_mask`, `target`, `target_mask` (see `models.api.loss`); its
            rows must divide among the mesh's data devices and `train.accumulate`.
        workdir: where checkpoints and metrics go; a run found there is continued.
            None keeps everything in memory.
        mesh: how to lay devices out; default all of them along `data`.
        evaluate: called with (params, step) every `train.evaluate_every` steps.
        meta: a JSON-able dict to store in each checkpoint; a run is continued only
            where its `identity` (of the data, the tokenizer) is the one stored.
        files: contents to store in each checkpoint, by relative path.
        should_stop: asked once after each step; True saves and returns. With several
            processes all must be given the same answers.
        progress: draw a progress bar on standard error.
        say: takes lines for the user; default: standard error.

    Returns:
        The last state.

    Raises:
        UserError: the run in `workdir` was trained on other data or is going on, its
            checkpoints are all damaged, something could not be written, the loss was not
            finite in `train.max_bad_steps` steps in a row, or the batches ended before
            `train.steps` (what was trained is saved).
    """
    began = time.perf_counter()
    train = validated(train, "train.")
    say = say or (_say if is_first() else lambda text: None)
    with contextlib.ExitStack() as stack:
        if workdir is not None and is_first():
            stack.enter_context(only_run(workdir, say))
        device_mesh = make_mesh(mesh or MeshConfig())
        rate = train.schedule.build(model.d_model, train.steps)
        optimizer = make_optimizer(train.optimizer, rate, train.clip_norm)
        ema = train.ema_decay is not None
        shardings = state_shardings(model, optimizer, ema, device_mesh)
        to_device = _feeder(device_mesh, train.accumulate)
        saver = _Saver(workdir, train, meta or {}, files, say)
        stack.callback(saver.drop)
        abstract = abstract_state(model, optimizer, ema=ema, shardings=shardings)
        start, state, record = saver.restore(abstract)
        if state is None:
            state = init_state(model, optimizer, ema=ema, seed=train.seed, shardings=shardings)
        report = Reporter(
            train,
            rate,
            workdir if is_first() else None,
            start,
            progress=progress and is_first(),
            began=began,
            say=say,
        )
        stack.callback(report.close)
        step_fn = make_train_step(model, train, optimizer, device_mesh, shardings)
        iterator = stack.enter_context(contextlib.closing(_closable(batches(start))))
        for step in range(start + 1, train.steps + 1):
            if _stopped_early(train, record):
                break
            batch = next(iterator, None)
            if batch is None:
                if step > start + 1:
                    with report.pause():
                        report.sync()
                        saver.save(step - 1, state, record, best=False)
                    saver.finish()
                fewer = f", or set train.steps={step - 1}" if step > 1 else ""
                raise UserError(
                    f"the batches ended at position {step - 1}, before train.steps={train.steps}: "
                    f"give more (epoch after epoch){fewer}"
                )
            state, metrics = step_fn(state, to_device(batch))
            report.log(step, metrics)
            saver.look()
            evaluated_best = False
            if evaluate and (step % train.evaluate_every == 0 or step == train.steps):
                with report.pause():
                    scores = evaluate(state.eval_params, step)
                report.write(step, {f"validation.{k}": v for k, v in scores.items()})
                record, evaluated_best = _update(record, scores, step)
            stopping = should_stop() or _stopped_early(train, record)
            due = step % train.checkpoint_every == 0 or step == train.steps
            if due or evaluated_best or stopping:
                with report.pause():
                    report.sync()
                    saver.save(step, state, record, best=evaluated_best)
            if stopping:
                break
        saver.finish()
    return state


def _say(text: str) -> None:
    from tqdm import tqdm

    tqdm.write(text, file=sys.stderr)  # goes around a progress bar


def _closable(batches: Iterator[dict[str, np.ndarray]]) -> Any:
    """The batches as a generator, whose closing closes theirs where they can be closed."""
    try:
        yield from batches
    finally:
        if hasattr(batches, "close"):
            batches.close()


def _feeder(mesh: Mesh, accumulate: int) -> Callable[[dict[str, np.ndarray]], dict[str, jax.Array]]:
    """Puts this process's rows of a batch on its devices, as a part of the global batch."""
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


class _Saver:
    """The checkpoints of a run, with what goes into each; does nothing without a workdir."""

    def __init__(
        self,
        workdir: str | Path | None,
        train: TrainConfig,
        meta: dict[str, Any],
        files: Mapping[str, bytes] | None,
        say: Callable[[str], None],
    ) -> None:
        self._workdir = workdir
        self._meta = meta
        self._say = say
        self._checkpoints: Checkpoints | None = None
        if workdir is not None:
            self._checkpoints = Checkpoints(workdir, train.keep_checkpoints, files, say)

    def restore(self, abstract: TrainState) -> tuple[int, TrainState | None, Record]:
        """(steps done, state, record) of the run so far; (0, None, Record()) of a new one."""
        checkpoints = self._checkpoints
        if not checkpoints or not checkpoints.newest:
            return 0, None, Record()
        state, saved = checkpoints.restore(abstract)
        name, start = checkpoints.newest
        record = _read_record(saved, f"{self._workdir}/{name}/{start}/meta")
        check_identity(saved.get("identity"), self._meta.get("identity"), self._workdir)
        self._say(f"continuing after step {start}")
        # A kill may have come between the two copies of the best checkpoint.
        if name == "best" or (record.best_step == start and not checkpoints.has_best(start)):
            self.save(start, state, record, best=record.best_step == start)
        return start, state, record

    def save(self, step: int, state: TrainState, record: Record, *, best: bool) -> None:
        if self._checkpoints:
            meta = {**self._meta, "position": step, "record": asdict(record)}
            self._checkpoints.save(step, state, meta, best=best)

    def look(self) -> None:
        """Has a checkpoint noted that was sealed since the last step."""
        if self._checkpoints:
            self._checkpoints.look()

    def finish(self) -> None:
        """Returns when all is on disk."""
        checkpoints, self._checkpoints = self._checkpoints, None
        if checkpoints:
            checkpoints.close()

    def drop(self) -> None:
        """After a failure: finishes what is being saved, if this process is alone."""
        checkpoints, self._checkpoints = self._checkpoints, None
        # Several processes would wait for each other, and one of them may be dead.
        if checkpoints and jax.process_count() == 1:
            with contextlib.suppress(UserError):
                checkpoints.close()


def _read_record(saved: Any, where: str) -> Record:
    """The record of evaluations in a checkpoint's meta.

    Raises:
        UserError: it holds none that fits, or what it holds beside it does not.
    """
    meta: dict[str, Any] = saved if isinstance(saved, dict) else {}
    record: Any = meta.get("record")
    keys = [field.name for field in fields(Record)]
    fitting = isinstance(record, dict) and sorted(record) == sorted(keys)
    if not isinstance(saved, dict):
        problem = "it is no JSON object"
    elif not isinstance(meta.get("identity") or {}, dict):
        problem = 'key "identity": expected an object'
    elif not fitting or not all(type(value) in (int, float) for value in record.values()):
        problem = f'key "record": expected numbers {", ".join(keys)}'
    else:
        return Record(**record)
    raise UserError(
        f"{where}: {problem}; another version or a change by hand wrote it: put it back, "
        "remove that checkpoint, or use another folder"
    )


def _stopped_early(train: TrainConfig, record: Record) -> bool:
    patience = train.early_stopping
    return patience is not None and record.evaluations_since_best >= patience


def _update(record: Record, scores: dict[str, float], step: int) -> tuple[Record, bool]:
    bleu = scores.get("bleu")
    if bleu is None:
        return record, False
    if bleu > record.best_bleu:
        return Record(best_bleu=bleu, best_step=step), True
    return replace(record, evaluations_since_best=record.evaluations_since_best + 1), False
